"""What a problem's inputs look like is kept, its files are read as people write them, and no gain comes from where they lie."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import torch

from harness.evaluate import Evaluator
from harness.farside.distributions import distribution, is_bound, is_structured, own_kind, table_of, take_sample
from harness.farside.nest import outline, pick_leaves
from harness.judge import whose_code
from harness.judge.comparisons import withhold_doubtful
from harness.judge.series import ComparisonRequest
from harness.judge.whose_code import CodeShares, doubt
from harness.problems.pytorch import Problem, open_problem
from harness.records import Comparison, Interval, Outcome, Suite, Verdict
from harness.store import Store
from kernels import importers

HEAD = "import torch\nfrom torch import nn\n\n\n"


def kind_of(draw: str) -> str:
    """As `describe` decides it."""
    whole = []
    for seed in (1, 2, 3):
        torch.manual_seed(seed)
        whole.append(eval(draw))
    draws = [take_sample(one) for one in whole]
    kind = "given" if is_bound(whole[0]) else distribution(draws)
    if kind in ("given", "among"):
        if not is_structured(whole[0]) and table_of(draws) is not None:
            return "among"
        return own_kind(draws, is_bound(whole[0]), is_structured(whole[0]))
    return kind


@pytest.mark.parametrize(
    ("draw", "kind"),
    [
        ("torch.randint(-60, 60, (256, 64)).float() / 4", "among"),
        ("torch.randint(0, 10, (256, 64)).float() / 10", "among"),
        ("(torch.rand(256, 64) < 0.3).float()", "among"),
        ("torch.rand(256, 64).mul(100).round()", "among"),
        ("torch.rand(16, 8) < 0.2", "among"),
        ("torch.rand(64, 64) < 0.5", "integers"),
        ("torch.arange(64) < torch.randint(1, 24, (8, 1))", "given"),
        ("torch.randn(256, 64) * 2 - 2", "normal"),
        ("torch.randn(256, 64) + 1e4", "normal"),
        ("torch.where(torch.rand(8, 64) < 0.2, -100, torch.randint(0, 2000, (8, 64)))", "among"),
        ("torch.where(torch.rand(8, 64) < 0.1, 255, torch.randint(0, 19, (8, 64)))", "among"),
        ("torch.randint(0, 2000, (8, 64))", "integers"),
        ("torch.randint(-3, 3, (8, 64))", "integers"),
        # Places and other elements decide: none of these may be drawn element by element.
        ("torch.where(torch.arange(64) < torch.randint(8, 64, (8, 1)), torch.randint(0, 2000, (8, 64)), -100)", "given"),
        ("torch.randint(0, 300, (2000,)).sort().values", "given"),
        ("torch.stack([torch.randperm(256) for _ in range(8)])", "given"),
        ("torch.nn.functional.one_hot(torch.randint(0, 16, (512,)), 16).float()", "given"),
        ("torch.tril(torch.ones(64, 64)) * (torch.rand(()) + 1).round()", "given"),
        ("(lambda a: a + a.T)(torch.randn(64, 64))", "given"),
        ("torch.softmax(torch.randn(64, 64), -1)", "given"),
        # Of these the numbers may be others, the places of zeros not.
        ("torch.triu(torch.randn(64, 64))", "near"),
        ("torch.randn(64, 64).exp() * torch.arange(1, 65)", "near"),
        # Of no known distribution, but none of their elements says anything of another.
        ("torch.relu(torch.randn(256, 64))", "among"),
        ("torch.randn(64, 64).exp()", "among"),
        ("torch.randn(256, 64) * (torch.rand(256, 64) < 0.1)", "among"),
    ],
)  # fmt: skip
def test_how_an_input_is_drawn(draw: str, kind: str):
    assert kind_of(draw).partition(":")[0] == kind


def opened(folder: Path, body: str, name: str = "problem.py", encoding: str = "utf-8") -> Problem:
    path = folder / name
    path.write_text(HEAD + body, encoding=encoding)
    return open_problem(path, "cpu")


MODEL = (
    "class Model(nn.Module):\n    def forward(self, {}):\n        return {}\n\n\ndef get_inputs():\n    return [{}]\n"
)


def test_ties_come_and_numbers_are_compared_as_eager_torch_does(tmp_path: Path):
    problem = opened(
        tmp_path,
        MODEL.format("x", "torch.round(x), x > 0.3, x == 0.7", "torch.randint(-50, 50, (64, 96)).float() / 10"),
    )
    assert problem.description is not None and problem.description.inputs[0].values == ("among",)
    text = problem.text.replace("class Model", "class ModelNew")
    wrong = [
        text.replace("torch.round(x)", "torch.sign(x) * torch.floor(x.abs() + 0.5)"),
        text.replace("x > 0.3", "x >= 0.3"),
        text.replace("x == 0.7", "x.double() == 0.7"),
    ]
    with Evaluator(problem, "cpu", Store(tmp_path / "store")) as evaluator:
        found = [evaluator.verify(evaluator.build(evaluator.store.put(one))) for one in (text, *wrong)]
        held = evaluator.verify(found[0].build, held_out=True)  # type: ignore[arg-type]
    assert found[0].passed and held.passed, (found[0].reason, held.reason)
    assert [one.outcome for one in found[1:]] == [Outcome.INCORRECT] * 3


@pytest.mark.parametrize(
    ("forward", "inputs", "drawn"),
    [
        ("torch.remainder(x, 7)", "torch.randint(0, 50, (32, 17))", True),
        ("(x >> 2) * 0.5", "torch.randint(0, 16, (32, 17), dtype=torch.int32)", True),
        ("torch.arange(50.0)[x]", "torch.randint(0, 50, (32, 17))", False),
        ("torch.arange(70.0)[x % 7 + x % 3]", "torch.randint(0, 50, (32, 17))", False),
        ("nn.functional.one_hot(x, 50)", "torch.randint(0, 50, (32, 17))", False),
        ("(torch.arange(50) < x.unsqueeze(-1)).float().masked_fill_(torch.arange(50) >= x.unsqueeze(-1), -math.inf).softmax(-1)",
         "torch.randint(1, 50, (32, 17))", False),
        ("x * 0.5", "torch.randint(0, 2, (32, 17))", False),
        ("100 // x", "torch.randint(1, 9, (32, 17))", False),
        ("x * 3", "torch.randint(0, 200, (32, 17), dtype=torch.uint8)", False),
    ],
    ids=["remainder", "shift", "index", "index by arithmetic", "one hot", "lengths", "mask", "divisor", "bytes"],
)  # fmt: skip
def test_integers_below_zero_are_drawn_where_they_are_no_places(forward: str, inputs: str, drawn: bool, tmp_path: Path):
    """fmod PASSED for remainder of integers that were all positive."""
    path = tmp_path / "model.py"
    body = f"    def forward(self, x):\n        return {forward}\n\n\ndef get_inputs():\n    return [{inputs}]\n"
    path.write_text(f"import math\n{HEAD}class Model(nn.Module):\n{body}")
    with closing(open_problem(path, "cpu")) as problem:
        kinds = [values for values in problem.spec.inputs[0].values if values.startswith("integers:-")]
        assert bool(kinds) is drawn, problem.spec.inputs[0].values


def test_fmod_is_no_remainder(tmp_path: Path):
    text = "class {}(nn.Module):\n    def forward(self, x):\n        return torch.{}(x, 7)\n"
    inputs = "\n\ndef get_inputs():\n    return [torch.randint(0, 50, (32, 17))]\n"
    path, store = tmp_path / "model.py", Store(tmp_path / "store")
    path.write_text(HEAD + text.format("Model", "remainder") + inputs)
    with closing(open_problem(path, "cpu")) as problem, Evaluator(problem, "cpu", store) as evaluator:
        for function, outcome in (("remainder", Outcome.PASSED), ("fmod", Outcome.INCORRECT)):
            found = evaluator.verify(evaluator.build(store.put(HEAD + text.format("ModelNew", function))))
            assert found.outcome is outcome, found.reason


def test_a_size_is_asked_with_data_and_one_is_larger_than_shown(tmp_path: Path):
    graph = MODEL.format(
        "x, to", "torch.zeros_like(x).index_add(0, to, x[to])", "torch.randn(300, 8), torch.randint(0, 300, (2000,))"
    )
    problem = opened(tmp_path, graph)
    assert problem.description is not None and problem.description.sizes == ()
    problem.close()
    boxes = MODEL.format("x, score", "x[score.argsort(-1)]", "torch.randn(40, 4), torch.randn(3, 40)")
    problem = opened(
        tmp_path, boxes
    )  # followed without values 20 rows seemed to do, and the module could not be imported
    assert problem.description is not None and problem.description.sizes == ()
    problem.close()
    problem = opened(tmp_path, MODEL.format("x", "x.cumsum(0)", "torch.randn(30, 8)"))
    assert max(w.axes["lead"] for w in problem.spec.workloads if w.held_out) > 30
    problem.close()


def test_whole_numbers_are_as_exact_as_they_are_given(tmp_path: Path):
    """A mask of ones that was off by 2^-24 at -1e9 let any attention pass."""
    forward = "((x @ x.mT) / 2 + ((1.0 - mask) * -1e9)[:, None]).softmax(-1) @ x"
    inputs = "torch.randn(4, 12, 16), (torch.rand(4, 12) < 0.8).float()"
    problem = opened(tmp_path, MODEL.format("x, mask", forward, inputs))
    text = problem.text.replace("class Model", "class ModelNew")
    with Evaluator(problem, "cpu", Store(tmp_path / "store")) as evaluator:
        texts = (text, text.replace("/ 2", "/ 2.1"))
        found = [evaluator.verify(evaluator.build(evaluator.store.put(one))) for one in texts]
    problem.close()
    assert [one.outcome for one in found] == [Outcome.PASSED, Outcome.INCORRECT], found[0].reason


def test_what_model_itself_raises_on_is_asked_of_nobody(tmp_path: Path):
    """Experts' rows are counted by what is positive and picked by what is not zero: with a NaN they do not go together."""
    problem = opened(tmp_path, MODEL.format("x", "x[x == x].view(x.shape) * 2", "torch.randn(4, 30)"))
    with Evaluator(problem, "cpu", Store(tmp_path / "store")) as evaluator:
        same = problem.text.replace("class Model(", "class ModelNew(")
        verdict = evaluator.verify(evaluator.build(evaluator.store.put(same)))
    assert verdict.passed, verdict.reason


def test_a_list_with_an_entry_a_row_is_taken_at_its_own_size_alone(tmp_path: Path):
    problem = opened(tmp_path, MODEL.format("x", "[row * 2 for row in x]", "torch.randn(4, 3)"))
    assert problem.description is not None and problem.description.sizes == ()
    assert problem.description.returns == {"list": [{"t": at} for at in range(4)]}
    problem.close()


@pytest.mark.parametrize(
    ("body", "encoding"),
    [
        ("class Gate(nn.Module):\n    def forward(self, x):\n        return x.tanh()\n\n\nModel = Gate\n", "utf-8"),
        ("class Gate(nn.Module):\n    def forward(self, x):\n        return x.tanh()\n\n\nclass Model(Gate):\n    pass\n", "utf-8-sig"),
        ("class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.own = torch.compile(nn.Tanh())\n\n"
         "    def forward(self, x):\n        return self.own(x)\n", "utf-8"),
    ],
)  # fmt: skip
def test_a_file_is_read_as_people_write_it(body: str, encoding: str, tmp_path: Path):
    problem = opened(tmp_path, f"{body}\n\ndef get_inputs():\n    return [torch.randn(16, 8)]\n", encoding=encoding)
    candidate = HEAD + "class ModelNew(nn.Module):\n    def forward(self, x):\n        return x.tanh()\n"
    with Evaluator(problem, "cpu", Store(tmp_path / "store")) as evaluator:
        for text in (candidate, problem.text):
            verdict = evaluator.verify(evaluator.build(evaluator.store.put(text)))
            assert verdict.passed, verdict.reason


def test_a_helper_is_no_problem(tmp_path: Path):
    (tmp_path / "layers.py").write_text(
        HEAD + "class ModelBase(nn.Module):\n    pass\n\n\ndef get_inputs_of():\n    return []\n"
    )
    assert importers.for_file(tmp_path / "layers.py") is None


# --- what a module returns ----------------------------------------------------------------------------------------------


def test_a_user_gets_at_what_is_returned_in_the_same_way():
    from collections import namedtuple
    from dataclasses import make_dataclass

    pair, turned = namedtuple("Pair", "a b"), namedtuple("Turned", "b a")
    record, x, y = make_dataclass("Record", ["a", "b"]), torch.zeros(1), torch.ones(2)

    def taken(model: object, candidate: object) -> list:
        found: list = []
        pick_leaves(outline(model, []), candidate, found)
        return found

    assert taken((x, [y, None]), [x, (y, None)]) == [x, y]
    assert taken({"a": x, "b": y}, {"b": y, "a": x}) == [x, y], "by their names"
    assert taken(pair(x, y), pair(x, y)) == taken(record(x, y), record(x, y)) == [x, y]
    assert taken({"loss": 2.0}, {"loss": x}) == [x]
    for model, candidate in [
        (pair(x, y), (x, y)), (pair(x, y), turned(y, x)), (pair(x, y), {"a": x, "b": y}), (record(x, y), (x, y)),
        ({"a": x, "b": y}, (x, y)), ({"a": x, "b": y}, {"a": x, "c": y}), ((x, y), x), (x, (x,)), ((x, None), (x, y)),
        ((x, "mean"), (x, "sum")), ((x, (y, y)), (x, y, y)),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match="should be|Model's"):
            taken(model, candidate)


def test_a_named_tuple_that_comes_out_plain_is_refused(tmp_path: Path):
    body = (
        "from typing import NamedTuple\n\n\nclass Out(NamedTuple):\n    a: torch.Tensor\n    b: torch.Tensor\n\n\n"
        "class Model(nn.Module):\n    def forward(self, x):\n        return Out(a=x, b=x.tanh())\n"
    )
    problem = opened(tmp_path, body + "\n\ndef get_inputs():\n    return [torch.randn(16, 8)]\n")
    text = (HEAD + body).replace("class Model", "class ModelNew")
    with Evaluator(problem, "cpu", Store(tmp_path / "store")) as evaluator:
        right, plain = (evaluator.verify(evaluator.build(evaluator.store.put(one)))
                        for one in (text, text.replace("Out(a=x, b=x.tanh())", "(x, x.tanh())")))  # fmt: skip
    assert right.passed, right.reason
    assert plain.outcome is Outcome.WRONG_SHAPE and "a, b" in plain.reason


# --- gains that no user has ---------------------------------------------------------------------------------------------


def test_who_writes_into_the_buffer_is_refused(tmp_path: Path):
    problem = opened(tmp_path, MODEL.format("x", "torch.relu(x)", "torch.randn(64, 32)"))
    finds = """
import gc
class ModelNew(nn.Module):
    def forward(self, x):
        buffers = [one for one in gc.get_referrers(type(x)) if False]
        frame = __import__("sys")._getframe(1)
        while frame is not None:
            for one in list(frame.f_locals.values()):
                if type(one) is list and one and type(one[0]) is tuple and len(one[0]) == 3:
                    buffers.append(one[0][1])
            frame = frame.f_back
        return VIEW
"""
    with Evaluator(problem, "cpu", Store(tmp_path / "store")) as evaluator:
        for view in (
            "torch.clamp(x, min=0, out=buffers[0])",
            "torch.clamp(x, min=0, out=buffers[0]).view(-1).view(64, 32)",
        ):
            verdict = evaluator.verify(evaluator.build(evaluator.store.put(HEAD + finds.replace("VIEW", view))))
            assert verdict.outcome is Outcome.CHEATED, verdict.reason
        same = evaluator.verify(
            evaluator.build(
                evaluator.store.put(
                    HEAD + "class ModelNew(nn.Module):\n    def forward(self, x):\n        return torch.relu(x)\n"
                )
            )
        )
        assert same.passed, same.reason


@pytest.mark.parametrize(
    ("forward", "inputs", "known"),
    [
        ("torch.triu(x @ x)", "torch.triu(torch.randn(64, 64))", False),
        ("x.float().cumsum(0)", "torch.randint(0, 300, (2000,)).sort().values", True),
        ("x.flip(0)", "torch.randperm(5000)", True),
    ],
)
def test_where_a_draw_tells_the_answer_it_is_said(forward: str, inputs: str, known: bool, tmp_path: Path):
    problem = opened(tmp_path, MODEL.format("x", forward, inputs))
    with Evaluator(problem, "cpu", Store(tmp_path / "store")) as evaluator:
        said = evaluator.rules.why_unclear()
        assert bool(said) == known, said
        if known:  # and then nothing is FASTER
            build = evaluator.build(evaluator.store.put(problem.text.replace("class Model", "class ModelNew")))
            verdict = evaluator.verify(build)
            faster = Suite(speedup=Interval(median=2, low=1.9, high=2.1), comparison=Comparison.FASTER)
            timed = verdict.model_copy(update={"suite": faster})
            request = ComparisonRequest(build, {"baseline": evaluator.store.put(problem.text)})
            held = withhold_doubtful(evaluator, request, Verdict.model_construct(**dict(timed)))
            assert held.suite is not None and held.suite.comparison is Comparison.UNCLEAR
            assert any("get_inputs()" in said for said in held.warnings)


@pytest.mark.parametrize(
    ("seen", "libraries", "doubted"),
    [
        (CodeShares(own=50, library=5, neither=5, call_us=900), False, False),
        (CodeShares(own=0, library=50, neither=10, call_us=900), True, True),
        (CodeShares(own=20, library=30, neither=10, call_us=900), True, False),
        (CodeShares(own=20, library=30, neither=10, call_us=900), False, True),
        (CodeShares(own=20, library=30, neither=10, beside_torch=30, call_us=900), True, True),
        (CodeShares(own=20, library=30, neither=10, beside_torch=5, call_us=900), True, False),
        (CodeShares(own=5, library=30, neither=25, call_us=20), False, False),
        (CodeShares(own=3, call_us=900), False, True),
        (CodeShares(own=60, call_us=900, slower=1.4), False, True),
        (CodeShares(own=40, neither=20, call_us=900, copied=0.4), False, False),
        (
            CodeShares(own=58, neither=2, call_us=900, copied=0.4),
            False,
            True,
        ),  # it has written into what was to be copied to
    ],
)
def test_when_a_gain_may_be_a_librarys(seen: CodeShares, libraries: bool, doubted: bool):
    assert bool(doubt(seen, libraries=libraries)) == doubted


@pytest.mark.parametrize(
    ("path", "kind", "beside"),
    [
        ("", "own", 0),
        ("/tmp/code/candidate.so", "own", 0),
        ("/tmp/scratch/candidate/native.so", "own", 0),
        ("/tmp/scratch/candidate/copy.so", "library", 1),
        ("/tmp/scratch/fast.so", "library", 1),
        ("/tmp/scratch/libtorch_cpu.so (deleted)", "library", 1),
        ("/memfd:fast (deleted)", "library", 1),
        ("/opt/env/numpy.libs/libscipy_openblas64_.so", "library", 1),
        ("/opt/env/torch/lib/libtorch_cpu.so", "library", 0),
        ("/opt/env/torch/lib/libtorch_python.so", "neither", 0),
        ("/usr/lib/x86_64-linux-gnu/libc.so.6", "neither", 0),
        ("/usr/bin/python3.12", "neither", 0),
        ("[vdso]", "neither", 0),
        ("/tmp/scratch/libgomp.so.1", "library", 1),
        ("/tmp/scratch/libc10.so", "library", 1),
        ("/memfd:libtorch_python (deleted)", "library", 1),
        ("/usr/lib/x86_64-linux-gnu/libgomp.so.1 (deleted)", "library", 1),
        ("[heap]", "own", 0),
    ],
)
def test_whose_a_mapped_file_is(path: str, kind: str, beside: int):
    """What a candidate has written itself may be a copy of a library's file, whatever it is called."""
    maps = f"1000-2000 r-xp 00000000 08:01 1 {path}\n2000-3000 rw-p 00000000 00:00 0\n"
    seen = whose_code._sorted(
        [0x1800], maps, "/tmp/scratch", 900.0, frozenset(["/tmp/code/candidate.so", "/tmp/scratch/candidate/native.so"])
    )
    assert (getattr(seen, kind), seen.looks, seen.beside_torch) == (1, 1, beside)


BY_CTYPES = """
import ctypes
import torch
from torch import nn

sgemm = ctypes.CDLL(torch.__path__[0] + "/lib/libtorch_cpu.so").sgemm_
letter = ctypes.c_char(b"N")


def of(value):
    return ctypes.byref(value)


class ModelNew(nn.Module):
    def forward(self, x, y):
        (m, k), n = x.shape, y.shape[1]
        out = torch.empty(m, n)
        i, one, zero = ctypes.c_int, ctypes.c_float(1), ctypes.c_float(0)
        a, b, c = (ctypes.c_void_p(t.data_ptr()) for t in (x, y, out))
        sgemm(of(letter), of(letter), of(i(n)), of(i(m)), of(i(k)), of(one), b, of(i(n)), a, of(i(k)), of(zero), c, of(i(n)))
        return out
"""


TELLS_CALLS_APART = BY_CTYPES.replace(
    "        out = torch.empty(m, n)\n",
    """        out = torch.empty(m, n)
        first = ctypes.c_float.from_address(x.data_ptr()).value
        seen, self.last = self.last == first, first
        if seen:
            native.mm(x, y, out, m, k, n)
            return out
""",
).replace("class ModelNew(nn.Module):\n", "class ModelNew(nn.Module):\n    last = None\n\n")
"""A library works wherever the inputs are new, as they are in calls that are timed."""


def test_a_library_that_is_called_by_ctypes_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # Twice as many looks as are needed, however long a busy machine takes to have them.
    monkeypatch.setattr(whose_code, "LOOKS", 2 * whose_code.FEWEST)
    monkeypatch.setattr(whose_code, "PATIENCE_S", 60.0)
    problem = opened(tmp_path, MODEL.format("x, y", "x @ y", "torch.randn(512, 512), torch.randn(512, 512)"))
    own = (
        HEAD
        + 'CPP_SOURCE = r"""\n#include <cstdint>\nextern "C" void mm(const float* x, const float* y, float* o, int64_t m, int64_t k, '
        "int64_t n) {\n  for (int64_t i = 0; i < m; ++i) { for (int64_t j = 0; j < n; ++j) o[i*n+j] = 0;\n    for (int64_t l = 0; l < k; ++l) "
        'for (int64_t j = 0; j < n; ++j) o[i*n+j] += x[i*k+l] * y[l*n+j]; } }\n"""\nnative = load_native(globals())\n\n\n'
        "class ModelNew(nn.Module):\n    def forward(self, x, y):\n        out = torch.empty(x.shape[0], y.shape[1])\n"
        "        native.mm(x, y, out, x.shape[0], x.shape[1], y.shape[1])\n        return out\n"
    )
    with Evaluator(problem, "cpu", Store(tmp_path / "store")) as evaluator:
        workload = next(one for one in evaluator.suite() if one.timed)
        said = []
        tells = own.partition("class ModelNew")[0] + TELLS_CALLS_APART
        for text in (BY_CTYPES, tells, own):
            build = evaluator.build(evaluator.store.put(text))
            assert text != tells or evaluator.verify(build).passed
            said.append(doubt(whose_code.watch(evaluator, build, workload), libraries=True))
    assert all("libtorch_cpu" in one for one in said[:2]) and not said[2], said


def test_what_is_centred_over_the_batch_depends_on_its_input(tmp_path: Path) -> None:
    """Of one row nothing is left; asked there, the spec said that a call touches a single element."""
    text = (
        "class Model(nn.Module):\n    def forward(self, x, unused):\n        return x - x.mean(dim=0, keepdim=True)\n\n\n"
        "def get_inputs():\n    return [torch.randn(16, 8), torch.randn(16, 8)]\n\n\ndef get_init_inputs():\n    return []\n"
    )
    problem = opened(tmp_path, text)
    assert [tensor.touched for tensor in problem.spec.inputs] == [None, "1"]
