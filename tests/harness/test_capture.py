"""What a program calls a function with is recorded without disturbing it, and becomes a problem that can be judged."""

from __future__ import annotations

import json
import re
import sys
import types
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import torch
from torch.nn.functional import silu

from harness import capture
from harness.capture import distribution_of
from harness.capture.source import CaptureError
from harness.problems import pytorch
from kernels.importers import sol_execbench

pytest.importorskip("safetensors")  # the optional group `traces`

EPSILON = 1e-6
TABLE = torch.arange(4.0)


@pytest.fixture(autouse=True)
def _the_same_numbers():
    torch.manual_seed(0)


def normalised(x):
    return x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + EPSILON).to(x.dtype)


def step(x: torch.Tensor, ids, table, scale: float = 2.0, *, mode: str | None = None) -> tuple[torch.Tensor, ...]:
    """Uses a function and a constant of its module, and a library's function."""
    if mode == "plain":
        return x, ids
    return silu(normalised(x)) * table[ids] * scale, ids + 1


def in_place(x):
    return x.add_(1)


def of_a_global(x):
    return x + TABLE


def several(*tensors):
    return tensors[0] + tensors[1]


def count(x):
    return x.shape[0]


def same(x, other=None):
    return x


def called(folder: Path) -> capture.Recorder:
    recorder = capture.Recorder(step, folder, axes={"x": ("tokens", "hidden")})
    table = torch.randn(50, 32) * 0.1
    for n in (4, 9, 4, 4, 128, 700, 33, 9):
        recorder(torch.randn(n, 32), torch.randint(0, 50, (n,)), table, mode="fast")
    return recorder


def test_calls_go_through_and_are_counted_by_kind(tmp_path: Path):
    recorder = called(tmp_path)
    assert [kind.count for kind in recorder.kinds.values()] == [3, 2, 1, 1, 1] and not recorder.left_out
    x, ids, table = torch.randn(4, 32), torch.tensor([1, 2, 3, 0]), torch.randn(50, 32)
    for given, wanted in zip(recorder(x, ids, table=table), step(x, ids, table), strict=True):
        assert torch.equal(given, wanted)
    wide = torch.randn(4, 64)
    recorder(wide[:, ::2], ids, table)
    assert len(recorder.kinds) == 7  # without a mode, and with other strides
    report = recorder.report().splitlines()
    assert report[0].startswith("3 x x float32[4, 32] ordinary, ids int64[4] stored, table float32[50, 32] normal:0:0.")
    assert any("strides [64, 2]" in line for line in report)


def test_a_capture_becomes_a_problem_of_the_functions_own_source(tmp_path: Path):
    recorder = called(tmp_path / "step")
    folder = recorder.save()
    problem = sol_execbench.read(folder / "definition.json")
    axes = problem.definition.axes
    assert {name for name, axis in axes.items() if axis.type == "var"} == {"tokens"} and axes["hidden"].value == 32
    lines = [json.loads(line) for line in (folder / "workload.jsonl").read_text().splitlines()]
    assert [(line["axes"]["tokens"], line["calls"]) for line in lines] == [(4, 3), (9, 2), (128, 1), (700, 1), (33, 1)]
    first = next(iter(recorder.kinds.values()))
    for trace in problem.traces:  # our own code, so it may be executed here
        module = types.ModuleType("module")
        exec(problem._module(trace), module.__dict__)
        x, ids, table, scale = module.get_inputs()
        assert scale == 2.0 and table.std() < 0.2 and int(ids.max()) < 50
        if trace.axes["tokens"] == 4:
            assert torch.equal(ids, first.kept["ids"])
        for given, wanted in zip(module.Model()(x, ids, table, scale), step(x, ids, table, mode="fast"), strict=True):
            assert torch.equal(given, wanted)
    assert recorder.save() == folder  # anew, over itself
    with closing(pytorch.load(str(folder), "cpu")) as opened:
        assert opened.spec.axes == ("tokens",) and [t.name for t in opened.spec.outputs] == ["out_0", "out_1"]
        assert {t.name: t.constant for t in opened.spec.inputs} == {"x": False, "ids": False, "table": True}
        assert len(opened.spec.suite("cpu")) == 3 and len(opened.spec.suite("cpu", held_out=True)) == 2


def test_one_size_of_everything_leaves_the_first_axis_open(tmp_path: Path):
    recorder = capture.Recorder(normalised, tmp_path / "one")
    recorder(torch.randn(16, 8, dtype=torch.bfloat16))
    definition = json.loads((recorder.save() / "definition.json").read_text())
    assert definition["axes"] == {"x_0": {"type": "var"}, "x_1": {"type": "const", "value": 8}}
    assert definition["outputs"] == {"out": {"shape": ["x_0", "x_1"], "dtype": "bfloat16"}}


def test_values_that_no_distribution_describes_are_kept(tmp_path: Path):
    recorder = capture.Recorder(normalised, tmp_path)
    mask = torch.zeros(64, 64).masked_fill(torch.ones(64, 64).triu(1).bool(), -torch.inf)
    wanted = {"stored": (mask, torch.ones(100), torch.randn(2, 3)), "uniform": (torch.rand(500, 3),)}
    for said, tensors in wanted.items():
        for tensor in tensors:
            recorder(tensor)
            kind = list(recorder.kinds.values())[-1]
            assert kind.values["x"] == said and ("x" in kind.kept) == (said == "stored")
    told = capture.Recorder(normalised, tmp_path, values={"x": "range:-1:1"})
    told(mask)
    assert next(iter(told.kinds.values())).values == {"x": "range:-1:1"}


def test_a_function_is_recorded_where_it_stands(tmp_path: Path):
    module, before = sys.modules[__name__], normalised
    with capture.inside(module, "normalised", tmp_path / "inside") as recorder:
        step(torch.randn(70, 4), torch.zeros(70, dtype=torch.int64), torch.randn(3, 4))
    assert module.normalised is before and sum(kind.count for kind in recorder.kinds.values()) == 1
    assert (tmp_path / "inside" / "definition.json").is_file()


def test_a_folder_is_written_when_the_process_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch):
    kept: list[Callable] = []
    monkeypatch.setattr(capture.atexit, "register", lambda function, *given: kept.append(lambda: function(*given)))
    recorded = capture.into(tmp_path / "end")(normalised)
    kept[0]()
    assert capsys.readouterr().err == "capture: nothing of normalised was recorded: it was never called\n"
    recorded(torch.randn(70, 4))
    kept[0]()
    assert "capture: normalised is in" in capsys.readouterr().err and (tmp_path / "end" / "workload.jsonl").is_file()


def local_lambda() -> Callable:
    return lambda x: x + 1


def closing_over(tensor: torch.Tensor) -> Callable:
    def inner(x):
        return x + tensor

    return inner


CASES = [
    (lambda: in_place, (torch.zeros(3),), "it changes its argument x in place"),
    (lambda: count, (torch.zeros(3),), "it returns a int, not tensors"),
    (lambda: same, (3,), "it was called without a tensor"),
    (lambda: same, (torch.zeros(3), {}), "argument other is a dict, neither a tensor nor a number"),
    (
        lambda: normalised,
        (torch.zeros(3, dtype=torch.complex64),),
        "argument x is of dtype complex64",
    ),
    (lambda: normalised, (torch.zeros(0, 3),), "argument x is empty"),
    (lambda: of_a_global, (torch.zeros(4),), "of_a_global uses TABLE, a Tensor outside of it: make it an argument"),
    (lambda: several, (torch.zeros(4), torch.zeros(4)), "argument tensors is a tuple|takes tensors of any number"),
    (local_lambda, (torch.zeros(4),), "is not defined by `def`|the source of"),
    (lambda: closing_over(TABLE), (torch.zeros(4),), "inner uses tensor, a Tensor outside of it"),
    (lambda: torch.add, (torch.zeros(4), torch.zeros(4)), "no signature|has no source in Python"),
]


def test_a_full_disk_leaves_the_capture_that_was_there(tmp_path: Path, full_disk):
    folder = called(tmp_path / "step").save()
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    full_disk(1)
    with pytest.raises(OSError, match=re.escape(str(folder))):
        called(folder).save()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(("function", "given", "said"), CASES, ids=[said[:40] for *_, said in CASES])
def test_what_cannot_be_captured_is_one_sentence(function: Callable, given: tuple, said: str, tmp_path: Path):
    with pytest.raises((CaptureError, ValueError), match=said) as caught:
        recorder = capture.Recorder(function(), tmp_path / "no")
        recorder(*given)
        recorder.save()
    assert "\n" not in str(caught.value) and not (tmp_path / "no").exists()


def test_a_call_that_fails_fails_as_it_would(tmp_path: Path):
    recorder = capture.Recorder(normalised, tmp_path)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        recorder()
    with pytest.raises(AttributeError, match="has no attribute 'float'"):
        recorder("x")


def test_another_folder_is_not_written_over(tmp_path: Path):
    (tmp_path / "definition.json").write_text("{}")
    recorder = capture.Recorder(normalised, tmp_path)
    recorder(torch.randn(70, 4))
    with pytest.raises(CaptureError, match="was not made by capture: name another folder"):
        recorder.save()
    with pytest.raises(ValueError, match="normalised has no argument 'y'"):
        capture.Recorder(normalised, tmp_path, values={"y": "stored"})


@pytest.mark.gpu
def test_a_gpus_tensors_are_captured_by_the_same_code(tmp_path: Path):
    recorder = capture.Recorder(step, tmp_path / "gpu")
    for n in (64, 256):
        ids = torch.randint(0, 50, (n,), device="cuda")
        recorder(torch.randn(n, 32, device="cuda"), ids, torch.randn(50, 32, device="cuda"))
    with closing(pytorch.load(str(recorder.save()), "cuda")) as opened:
        assert len(opened.spec.workloads) == 2


def test_without_safetensors_capture_is_refused_before_anything_is_recorded(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(capture.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CaptureError, match="pip install safetensors"):
        capture.into(tmp_path / "no")(normalised)


def test_what_had_strides_is_said_of_every_verdict(tmp_path: Path):
    recorder = capture.Recorder(normalised, tmp_path / "strided")
    recorder(torch.randn(16, 24)[:, ::3])
    problem = sol_execbench.read(recorder.save() / "definition.json")
    assert problem.definition.strided == ("x",)
    with closing(pytorch.load(str(tmp_path / "strided"), "cpu")) as opened:
        assert "x had strides where it was captured" in opened.says()


def test_few_numbers_of_few_bits_are_normal_though_two_halves_share_some() -> None:
    draw = torch.Generator().manual_seed(1)
    assert {distribution_of(torch.randn(128, generator=draw).bfloat16()) for _ in range(60)} == {"ordinary"}
