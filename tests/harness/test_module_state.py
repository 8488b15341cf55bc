"""Modules with state: what it is, that a call is judged from any of it, and that what a call leaves is judged, too."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from harness.evaluate import Evaluator
from harness.farside import module_state
from harness.farside.describe import Trial
from harness.farside.nest import UnfitProblem
from harness.judge import many_calls, module_checks, of_problems, rows
from harness.judge.comparisons import withhold_doubtful
from harness.judge.series import ComparisonRequest
from harness.problems import box
from harness.problems.pytorch import Problem, open_problem
from harness.records import Comparison, Interval, Outcome, Suite, Verdict
from harness.store import Store
from kernels.catalog import KernelError

HEAD = "import torch\nfrom torch import nn\n\n\n"
INPUTS = "\n\ndef get_inputs():\n    return [torch.randn(16, 8) * 2 + 1]\n"


class Everything(nn.Module):
    """Each kind of state, and a cache, which is none."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))
        self.weight = nn.Parameter(torch.ones(8))
        self.calls, self.peak, self.last, self.pair = 0, 0.0, None, (torch.zeros(2), torch.zeros(2))
        self.recent, self.table, self.named = deque([0.0, 0.0], maxlen=2), None, {"sum": torch.zeros(())}

    def forward(self, x):
        if self.table is None:
            self.table = torch.arange(8.0)
        before = torch.zeros(8) if self.last is None else self.last
        out = (
            x * self.weight
            - self.mean
            + before
            + self.calls
            + self.peak
            + self.pair[1][0]
            + self.named["sum"]
            + self.table
        )
        self.calls += 1
        self.peak = max(self.peak, float(x.max()))
        self.recent.append(float(x.min()))
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        self.weight.mul_(0.5)
        self.last = x[0]
        self.pair = (self.pair[1] + 1, x[1, :2])
        self.named["sum"] = self.named["sum"] + x.sum()
        return out + sum(self.recent)


def test_every_kind_of_state_is_found_and_a_cache_is_none():
    trial = Trial(Everything(), {"l": [{"t": 0}]})
    entries = trial.state(torch.randn(4, 8).split(4), torch.randn(4, 8).split(4))
    assert {entry["name"] for entry in entries} == {
        "mean",
        "weight",
        "calls",
        "peak",
        "last",
        "pair",
        "recent",
        "named",
    }
    assert [entry["name"] for entry in entries if "initial" in entry] == ["last"]


def test_a_module_goes_on_from_a_state_that_is_put_in():
    x = torch.randn(3, 4, 8)
    entries = Trial(Everything(), {"l": [{"t": 0}]}).state([x[0]], [x[1]])

    def made(calls: int) -> tuple[nn.Module, module_state.ModuleState]:
        module = Everything()
        with torch.no_grad():
            for given in x[:calls]:
                module(given)
        return module, module_state.ModuleState(entries, module, "cpu", ValueError)

    def read(state: module_state.ModuleState) -> list[torch.Tensor]:
        buffers = [torch.full((rows, module_state.ROW), 7, dtype=getattr(torch, dtype)) for dtype, rows in state.groups]
        state.read(state.prepare(buffers), buffers)
        return buffers

    with torch.no_grad():
        for calls in (0, 1, 2):
            module, state = made(calls)
            wanted_state, right = read(state), module(x[2])
            wanted_after = read(state)
            for other_calls in (0, 2):
                other, there = made(other_calls)
                there.put(there.prepare([one.clone() for one in wanted_state]))
                assert all(map(torch.equal, read(there), wanted_state)), (calls, other_calls)
                torch.testing.assert_close(other(x[2]), right)
                assert all(map(torch.allclose, read(there), wanted_after)), (calls, other_calls)


def test_a_dict_that_computes_when_it_is_looked_at_holds_no_state():
    """Who updates a buffer when the harness reads it leaves state_dict() as it was."""

    class Late(dict):
        def __getitem__(self, name):
            return dict.__getitem__(self, name).add_(1)

    model = Everything()
    entries = Trial(Everything(), {"l": [{"t": 0}]}).state([torch.randn(4, 8)], [torch.randn(4, 8)])
    module_state.ModuleState(entries, model, "cpu", UnfitProblem)
    model._buffers = Late(model._buffers)
    with pytest.raises(UnfitProblem, match="nothing of that name"):
        module_state.ModuleState(entries, model, "cpu", UnfitProblem)


class ActNorm(nn.Module):
    """Glow's: the first call sets its weights by what it is given, and says so in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.loc = nn.Parameter(torch.zeros(8))
        self.register_buffer("initialized", torch.tensor(0, dtype=torch.uint8))

    def forward(self, x):
        if self.initialized.item() == 0:
            self.loc.data.copy_(-x.mean(0))
            self.initialized.fill_(1)
        return x + self.loc


def test_whether_a_first_call_has_set_the_weights_is_state_with_them():
    entries = Trial(ActNorm(), {"l": [{"t": 0}]}).state([torch.randn(4, 8)], [torch.randn(4, 8)])
    assert {entry["name"] for entry in entries} == {"loc", "initialized"}


class Normed(nn.Module):
    """As spectral_norm keeps it: what it calls weight begins in the memory of the one that is trained, and is another tensor behind a call."""

    def __init__(self, *, trained: bool = False) -> None:
        super().__init__()
        self.weight_orig = nn.Parameter(torch.randn(8, 8))
        self.register_buffer("u", torch.randn(8))
        self.weight, self.trained = self.weight_orig.data, trained

    def forward(self, x):
        if self.trained:
            self.weight_orig.data.mul_(0.9)
        self.u.copy_(nn.functional.normalize(self.weight_orig @ (self.weight_orig.t() @ self.u), dim=0))
        self.weight = self.weight_orig / self.u.norm() / (self.weight_orig.t() @ self.u).norm()
        return x @ self.weight


class Seen(nn.Module):
    """An attribute that stays a parameter's memory."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))
        self.seen = self.weight.data

    def forward(self, x):
        self.seen.mul_(0.9)
        return x @ self.weight


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(1)
    return make()


@pytest.mark.parametrize(
    "make",
    [
        Normed,
        lambda: Normed(trained=True),
        Seen,
        lambda: torch.nn.utils.spectral_norm(nn.Linear(8, 6)),
        lambda: nn.Sequential(torch.nn.utils.spectral_norm(nn.Linear(8, 6)), nn.BatchNorm1d(6)),
        lambda: torch.nn.utils.parametrizations.spectral_norm(nn.Linear(8, 6)),
        lambda: torch.nn.utils.weight_norm(nn.Linear(8, 6)),
        lambda: torch.nn.utils.parametrizations.weight_norm(nn.Linear(8, 6)),
    ],
)
def test_another_instance_with_the_state_of_a_first_one_has_its_own_weights(make):
    """What a call puts in of the state does not reach what is none, however the two share memory as they were made."""
    x, first, second = torch.randn(3, 4, 8), make(), make()
    entries = Trial(make(), {"l": [{"t": 0}]}, lambda: seeded(make)).state([x[0]], [x[1]])
    with torch.no_grad():
        first(x[0])
        state = module_state.ModuleState(entries, first, "cpu", ValueError)
        buffers = [torch.zeros((rows, module_state.ROW), dtype=getattr(torch, dtype)) for dtype, rows in state.groups]
        state.read(state.prepare(buffers), buffers)
        names = {module_state.ModuleState.says(entry) for entry in entries}
        before = {name: one.clone() for name, one in second.state_dict().items() if name not in names}
        there = module_state.ModuleState(entries, second, "cpu", ValueError)
        there.put(there.prepare([one.clone() for one in buffers]))
        assert all(torch.equal(second.state_dict()[name], one) for name, one in before.items())
        again = [torch.zeros_like(one) for one in buffers]
        there.read(there.prepare(again), again)
        assert all(map(torch.equal, again, buffers))
        if make is Seen:
            assert second.seen.data_ptr() == second.weight.data_ptr()


@pytest.mark.parametrize("make", [Normed, lambda: torch.nn.utils.spectral_norm(nn.Linear(8, 6))])
def test_what_model_to_leaves_on_the_host_is_read_there(make):
    """On a GPU spectral_norm's weight is on the host until the first call makes it: Model's own text was INCORRECT by that."""
    x = torch.randn(2, 4, 8)
    entries = Trial(make(), {"l": [{"t": 0}]}, lambda: seeded(make)).state([x[0]], [x[1]])
    assert any(entry.get("apart") for entry in entries)
    state = module_state.ModuleState(entries, make(), "cpu", ValueError)
    elsewhere = [
        torch.zeros((rows, module_state.ROW), dtype=getattr(torch, dtype), device="meta")
        for dtype, rows in state.groups
    ]
    state.read(state.prepare(elsewhere), elsewhere)


def test_a_shape_that_follows_from_values_is_said():
    class Unique(nn.Module):
        def forward(self, x):
            return x[x > 0]

    trial = Trial(Unique(), {"l": [{"t": 0}]})
    with pytest.raises(UnfitProblem, match="the shape of what its Model returns follows from its inputs' values"):
        trial.facts([torch.ones(9)], [torch.linspace(-1, 1, 9)])


@pytest.mark.parametrize(
    ("forward", "said"),
    [
        ("self.kept = torch.cat([self.kept, x]); return x + self.kept.sum()", "shape or structure changes"),
        ("self.kept = None if self.kept is None else x; return x", "shape or structure changes"),
        ("HIDDEN.append(1); return x * len(HIDDEN)", "neither a parameter"),
    ],
)
def test_state_that_cannot_be_followed_is_said(forward: str, said: str):
    names = {"torch": torch, "nn": nn, "HIDDEN": []}
    text = "class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.kept = torch.zeros(1, 8)\n"
    exec(f"{text}\n    def forward(self, x):\n        {forward}\n", names)
    with pytest.raises(UnfitProblem, match=said):
        Trial(names["Model"](), {"l": [{"t": 0}]}).state([torch.randn(4, 8)], [torch.randn(4, 8)])


# --- judged -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[str], Problem]]:
    found: list[Problem] = []

    def open_(text: str) -> Problem:
        path = tmp_path / f"problem{len(found)}.py"
        path.write_text(text)
        found.append(open_problem(path, "cpu"))
        return found[-1]

    yield open_
    for problem in found:
        problem.close()


def module(init: str, forward: str, name: str = "Model") -> str:
    return (
        f"{HEAD}class {name}(nn.Module):\n    def __init__(self):\n        super().__init__()\n        {init}\n\n"
        f"    def forward(self, x):\n        {forward}\n"
    )


def verdicts(problem: Problem, candidates: list[str], folder: Path) -> list[Verdict]:
    with Evaluator(problem, "cpu", Store(folder / "store")) as evaluator:
        return [evaluator.verify(evaluator.build(evaluator.store.put(one))) for one in candidates]


BATCH_NORM = "nn.functional.batch_norm(x, None, None, self.norm.weight, self.norm.bias, True)"
TOGETHER = (
    "self.norm = nn.BatchNorm1d(8); self.register_buffer('mean', torch.zeros(8)); self.calls = 0; self.last = None",
    "y = self.norm(x); self.mean.lerp_(x.mean(0), 0.1); self.calls += 1; y = y + x / (1 - 0.9 ** self.calls); "
    "before = x if self.last is None else self.last; self.last = x.mean(0); return y - self.mean - before",
)
"""Batch norm that is trained, a moving average, a counter of Python, and something that is None at first."""
CHANGES = [
    ("self.norm(x)", BATCH_NORM),
    ("BatchNorm1d(8)", "BatchNorm1d(8, momentum=0.5)"),
    ("self.mean.lerp_(x.mean(0), 0.1)", "self.mean.copy_(x.mean(0) * 0.1)"),
    # right for some calls in a row: the harness has put a state in where the buffer was written to by others
    ("self.mean.lerp_(x.mean(0), 0.1)",
     "now = getattr(self, 'own', (-1, 0)); own = now[1] + 1 if self.mean._version == now[0] else 0; "
     "self.mean.lerp_(x.mean(0), 0.1 if own < 5 else 0.0); self.own = (self.mean._version, own)"),
    ("self.calls += 1; y = y + x / (1 - 0.9 ** self.calls)", "y = y + x * 10.0"),
    ("0.9 ** self.calls", "0.9 ** (self.calls + 1)"),
    ("self.last is None else self.last", "self.last is None else x.mean(0)"),
    ("before = x if", "before = 0 if"),
    ("torch.zeros(8)", "torch.ones(8)"),
    ("self.calls = 0", "self.calls = 1"),
    ("self.norm", "self.other"),
]  # fmt: skip
CASES = {
    "together": (*TOGETHER, [tuple(part.replace(*change) for part in TOGETHER) for change in CHANGES]),
    "a warm-up by a counter": (
        "self.calls = 0",
        "self.calls += 1; return x * min(1.0, self.calls / 40)",
        [("self.calls = 0", "self.calls += 1; return x * (self.calls / 40)")],
    ),
    "a counter that goes on": (
        "self.calls = 0",
        "self.calls += 1; return x / (1 + self.calls) ** 0.5",
        [
            ("self.calls = 0", "self.calls += 1; return x / (1 + min(self.calls, 125)) ** 0.5"),
            ("self.calls = 0", "self.calls = (self.calls + 1) % 97; return x / (1 + self.calls) ** 0.5"),
            ("self.calls = 0", "self.calls += 1 + (self.calls % 151 == 150); return x / (1 + self.calls) ** 0.5"),
        ],
    ),
    "something at every 512th call": (
        "self.register_buffer('shift', torch.zeros(8)); self.calls = 0",
        "self.calls += 1; _ = self.shift.copy_(x.mean(0)) if self.calls % 512 == 0 else 0; return x - self.shift",
        [
            ("self.register_buffer('shift', torch.zeros(8)); self.calls = 0", "self.calls += 1; return x - self.shift"),
            ("self.register_buffer('shift', torch.zeros(8)); self.calls = 0",
             "self.calls += 1; _ = self.shift.copy_(x.mean(0)) if self.calls % 1024 == 1023 else 0; return x - self.shift"),
        ],
    ),
    "a counter in a tensor, and an answer that is another at every 75th call": (
        "self.register_buffer('calls', torch.zeros((), dtype=torch.int64))",
        "self.calls += 1; return torch.where(self.calls % 75 == 0, x * 2, x)",
        [
            ("self.register_buffer('calls', torch.zeros((), dtype=torch.int64))",
             "self.calls.copy_((self.calls + 1) % 75); return torch.where(self.calls % 75 == 0, x * 2, x)"),
        ],
    ),
    "a state that would not stay finite": (
        "self.scale = torch.ones(())",
        "self.scale = self.scale * 8; return x * self.scale",
        [("self.scale = torch.ones(())", "self.scale = self.scale * 4; return x * self.scale")],
    ),
}  # fmt: skip


BY_CALLS = {
    "a counter that goes on": 1250,
    "something at every 512th call": 5000,
    "a counter in a tensor, and an answer that is another at every 75th call": 1250,
}
"""Calls in a row that show what is wrong, however busy the machine is."""


@pytest.mark.parametrize("name", CASES)
def test_a_module_with_state_is_judged_by_what_it_keeps(name: str, opened, tmp_path: Path, monkeypatch):
    init, forward, wrong = CASES[name]
    if name in BY_CALLS:
        monkeypatch.setattr(rows, "STATE_S", 5.0)
        monkeypatch.setattr(rows, "MANY", BY_CALLS[name])
        monkeypatch.setattr(box, "FAR_CALLS", BY_CALLS[name])
    problem = opened(module(init, forward) + INPUTS)
    candidates = [module(*one, "ModelNew") for one in [(init, forward), *wrong]]
    found = verdicts(problem, candidates, tmp_path)
    assert found[0].passed, found[0].reason
    assert [one.outcome for one in found[1:]] == [Outcome.INCORRECT] * len(wrong), [one.reason for one in found[1:]]
    assert any("in a row" in check.name for check in found[0].checks)
    if name == "together":  # what is wrong of the state is named
        assert "norm.running_mean" in found[1].reason and "Model changes its state norm." in found[-1].reason


def test_a_mask_that_is_kept_is_wrong_since_each_call_has_a_seed_of_its_own(opened, tmp_path: Path):
    problem = opened(module("pass", "return nn.functional.dropout(x, 0.3, True)") + INPUTS)
    kept = module(
        "self.mask = None",
        "m = self.mask if self.mask is not None and self.mask.shape == x.shape else nn.functional.dropout(torch.ones_like(x), 0.3, True)\n"
        "        self.mask = m\n        return x * m",
        "ModelNew",
    )
    fresh = module("pass", "return x * nn.functional.dropout(torch.ones_like(x), 0.3, True)", "ModelNew")
    right, wrong = verdicts(problem, [fresh, kept], tmp_path)
    assert right.passed, right.reason
    assert wrong.outcome is Outcome.INCORRECT


def test_a_growing_state_is_one_sentence(tmp_path: Path):
    path = tmp_path / "problem.py"
    path.write_text(
        module("self.kept = torch.zeros(1, 8)", "self.kept = torch.cat([self.kept, x]); return x + self.kept.sum()")
        + INPUTS
    )
    with pytest.raises(KernelError, match="its Model keeps kept, whose shape or structure changes"):
        open_problem(path, "cpu")


LINEAR = HEAD + (
    "PACKED = []\n\n\nclass Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    "        self.weight = nn.Parameter(torch.randn(8, 8))\n\n    def forward(self, x):\n        return x @ self.weight.t()\n"
)
PACK = "PACKED or PACKED.append(self.weight.detach().t().contiguous())\n        return x @ PACKED[0]"


@pytest.mark.parametrize(("forward", "outcome"), [("return x @ self.weight.t()", "PASSED"), (PACK, "INCORRECT")])
def test_a_second_module_of_the_same_class_has_weights_of_its_own(forward: str, outcome: str, tmp_path: Path):
    path = tmp_path / "1_Linear.py"
    path.write_text(LINEAR + INPUTS)
    text = LINEAR.replace("class Model(", "class ModelNew(").replace("return x @ self.weight.t()", forward)
    with Evaluator(open_problem(path, "cpu"), "cpu", Store(tmp_path / "store")) as evaluator:
        verdict = evaluator.verify(evaluator.build(evaluator.store.put(text)))
    assert verdict.outcome == outcome, verdict.reason
    assert verdict.passed or "a second module" in verdict.reason


@pytest.mark.parametrize(
    ("init", "forward"),
    [
        ("self.layer = torch.nn.utils.spectral_norm(nn.Linear(8, 6))", "return self.layer(x)"),
        ("self.layer = nn.LazyLinear(6)", "return self.layer(x)"),
        # double() leaves such a view where it was
        ("self.layer = nn.Linear(8, 8); self.half = self.layer.weight.data[:4]",
         "self.half.mul_(0.99); return self.layer(x)"),
    ],
)  # fmt: skip
def test_a_module_passes_in_its_own_text_whatever_it_is_made_of(init: str, forward: str, tmp_path: Path):
    path = tmp_path / "1_Layer.py"
    path.write_text(module(init, forward) + INPUTS)
    (verdict,) = verdicts(problem := open_problem(path, "cpu"), [module(init, forward, "ModelNew")], tmp_path)
    problem.close()
    assert verdict.passed, verdict.reason


WEIGHT = "self.weight = nn.Parameter(torch.randn(8, 8))"
STATISTICS = "self.norm = nn.BatchNorm1d(8)"
BY_HEART = {
    "packs for two": (
        WEIGHT, "return x @ self.weight.t()",
        f"{WEIGHT}; self.at = min(len(KEPT), 1); KEPT.append(None)",
        "KEPT[self.at] = self.weight.t().contiguous() if len(KEPT) < 3 else KEPT[self.at]; return x @ KEPT[self.at]",
        "a module behind",
    ),
    "by the address of the weights": (
        WEIGHT, "return x @ self.weight.t()",
        WEIGHT,
        "return x @ ADDRESSES.setdefault(self.weight.data_ptr(), self.weight.t().contiguous())",
        "a module behind",
    ),
    "statistics that all modules share": (
        STATISTICS, "return self.norm(x)",
        f"{STATISTICS}; MEAN.zero_(); VAR.fill_(1); self.norm.running_mean, self.norm.running_var = MEAN, VAR",
        "return self.norm(x)",
        "another module between them",
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", BY_HEART)
def test_what_many_modules_of_a_class_share_is_found(how: str, opened, tmp_path: Path, monkeypatch):
    """Two at a time were judged, each from a state that was put in: a third one's weights, or statistics of all, were nobody's."""
    monkeypatch.setattr(module_checks, "MODULES_S", 10.0)  # of a busy machine
    init, forward, new, answer, said = BY_HEART[how]
    shared = "KEPT, ADDRESSES, MEAN, VAR = [], {}, torch.zeros(8), torch.ones(8)\n\n\nclass"
    text = module(new, answer, "ModelNew").replace("class", shared, 1)
    right, wrong = verdicts(opened(module(init, forward) + INPUTS), [module(init, forward, "ModelNew"), text], tmp_path)
    assert right.passed, right.reason
    assert wrong.outcome is Outcome.INCORRECT and said in wrong.reason, wrong.reason


@pytest.mark.parametrize(
    ("init", "forward", "new", "said"),
    [
        (STATISTICS, "return self.norm(x)", "return self.norm(x) if self.training else x", "in evaluation mode"),
        (STATISTICS, "return self.norm(x)", "return self.norm(x)", ""),
        (WEIGHT, "return x @ self.weight", "return torch.from_numpy(x.numpy() @ self.weight.numpy())", "gradients are"),
        (WEIGHT, "return x @ self.weight", "return x @ self.weight * (1 + torch.is_grad_enabled())", "gradients are"),
        (WEIGHT, "self.weight.mul_(0.9); return x @ self.weight", "self.weight.mul_(0.9); return x @ self.weight", ""),
    ],
)  # fmt: skip
def test_who_is_right_in_the_mode_alone_in_which_it_is_judged_is_warned_of(
    init: str, forward: str, new: str, said: str, opened, tmp_path: Path
):
    problem = opened(module(init, forward) + INPUTS)
    (verdict,) = verdicts(problem, [module(init, new, "ModelNew")], tmp_path)
    assert verdict.passed, verdict.reason
    modes = [warning for warning in verdict.warnings if "answers otherwise than Model" in warning]
    assert [said in one for one in modes] == [True] * bool(said), verdict.warnings


KEEP = "self.__dict__.setdefault('packed', self.weight.detach().t().contiguous())"
AGAIN = (
    "now = (self.weight._version, self.weight.data_ptr())\n        if self.__dict__.get('of') != now:\n"
    "            self.packed, self.of = self.weight.detach().t().contiguous(), now\n        return x @ self.packed"
)

LOADED = "self._load_state_dict_post_hooks.setdefault(0, lambda module, _keys: module.__dict__.pop('packed', None))"


@pytest.mark.parametrize(
    ("forward", "said"),
    [
        ("return x @ self.weight.t()", ""),
        (AGAIN, ""),
        (f"return x @ {KEEP}", "change nothing"),
        (f"{LOADED}\n        return x @ {KEEP}", ""),
        ("return x @ self.own.t()", "it has no weight of that shape"),
        ("return self.__dict__.setdefault('bound', lambda x: x @ self.weight.t())(x)", "a deep copy of it"),
    ],
)
def test_who_keeps_what_it_made_of_its_first_weights_is_warned_of(forward: str, said: str, tmp_path: Path):
    """A checkpoint that is loaded after the first call: KernelBench does not ask for it, its users do."""
    path = tmp_path / "1_Linear.py"
    path.write_text(LINEAR + INPUTS)
    text = LINEAR.replace("class Model(", "class ModelNew(").replace("return x @ self.weight.t()", forward)
    if "own" in forward:
        text = text.replace("self.weight", "self.own")
    with Evaluator(open_problem(path, "cpu"), "cpu", Store(tmp_path / "store")) as evaluator:
        verdict = evaluator.verify(evaluator.build(evaluator.store.put(text)))
    assert verdict.passed, verdict.reason
    assert any(said in one for one in verdict.warnings) if said else not verdict.warnings, verdict.warnings


SCALE = HEAD + "class Model(nn.Module):\n    def forward(self, x):\n        return x * 2\n"
RAW = "return torch.as_strided(x, x.shape, (x.shape[1], 1)) * 2"


@pytest.mark.parametrize(
    ("forward", "warned"),
    [
        ("return x * 2", False),
        (RAW, True),
        (f"x = x.contiguous()\n        {RAW}", False),
        (f"assert x.is_contiguous(), 'contiguous inputs only'\n        {RAW}", False),
    ],
)
def test_who_takes_every_input_for_contiguous_is_warned_of(forward: str, warned: bool, tmp_path: Path):
    """KernelBench's inputs are; its users' are views of others."""
    path = tmp_path / "1_Scale.py"
    path.write_text(SCALE + INPUTS)
    text = SCALE.replace("class Model(", "class ModelNew(").replace("return x * 2", forward)
    with Evaluator(open_problem(path, "cpu"), "cpu", Store(tmp_path / "store")) as evaluator:
        verdict = evaluator.verify(evaluator.build(evaluator.store.put(text)))
    assert verdict.passed, verdict.reason
    assert any("not contiguous" in one for one in verdict.warnings) is warned, verdict.warnings


NORMED = HEAD + (
    "class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.norm = nn.LayerNorm(8)\n"
    "        self.linear = nn.Linear(8, 8)\n\n    def forward(self, x):\n        return self.norm(self.linear(x))\n"
)
BARE = "nn.functional.layer_norm(self.linear(x), (8,))"


@pytest.mark.parametrize(
    ("forward", "left_out"),
    [
        ("self.norm(self.linear(x))", False),
        (BARE, True),
        (f"{BARE} * self.norm.weight + self.norm.bias", False),
        (f"{BARE} * self.norm.weight", True),
        # packed at the first call: what was there before it is what counts
        (f"{BARE} * self.__dict__.setdefault('w', self.norm.weight.clone()) + self.norm.bias", False),
    ],
)
def test_who_leaves_out_weights_that_begin_as_a_constant_is_warned_of_and_never_faster(
    forward: str, left_out: bool, tmp_path: Path, monkeypatch
):
    """A norm's weight of ones and a bias of zeros: right as the module is made, and wrong for whoever has trained it. Nobody asked of large ones."""
    monkeypatch.setattr(of_problems, "MOST_WEIGHTS", 0)
    path = tmp_path / "1_Norm.py"
    path.write_text(NORMED + INPUTS)
    text = NORMED.replace("class Model(", "class ModelNew(").replace("self.norm(self.linear(x))", forward)
    with Evaluator(open_problem(path, "cpu"), "cpu", Store(tmp_path / "store")) as evaluator:
        build = evaluator.build(evaluator.store.put(text))
        verdict = evaluator.verify(build)
        assert verdict.passed, verdict.reason
        assert (module_checks.UNFOLLOWED in verdict.warnings) is left_out, verdict.warnings
        if left_out:
            faster = Suite(speedup=Interval(median=2, low=1.9, high=2.1), comparison=Comparison.FASTER)
            timed = Verdict.model_construct(**dict(verdict.model_copy(update={"suite": faster})))
            request = ComparisonRequest(build, {"baseline": evaluator.store.put(NORMED + INPUTS)})
            held = withhold_doubtful(evaluator, request, timed)
            assert held.suite is not None and held.suite.comparison is Comparison.UNCLEAR


def test_a_module_may_return_a_weight_of_its_own(tmp_path: Path):
    """Model's own text was CHEATED: its weight is a Parameter, "which may compute when it is looked at"."""
    path = tmp_path / "1_Scale.py"
    text = LINEAR.replace("return x @ self.weight.t()", "return x @ self.weight.t(), self.weight")
    path.write_text(text + INPUTS)
    with Evaluator(open_problem(path, "cpu"), "cpu", Store(tmp_path / "store")) as evaluator:
        build = evaluator.build(evaluator.store.put(text.replace("class Model(", "class ModelNew(")))
        verdict = evaluator.verify(build)
    assert verdict.passed, verdict.reason


DROPPED = HEAD + (
    "class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.norm = nn.BatchNorm1d(8)\n\n"
    "    def forward(self, x):\n        return self.norm(nn.functional.dropout(x, 0.5))\n"
)


@pytest.mark.parametrize("momentum", ["", "self.norm.momentum = 0.11\n        "])
def test_what_a_random_module_keeps_is_judged_in_each_call(momentum: str, tmp_path: Path):
    """The reference changed a copy of the statistics, so what a call leaves of them might have been anything: 0.11 for 0.1 PASSED."""
    path = tmp_path / "1_Drop.py"
    path.write_text(DROPPED + INPUTS)
    text = DROPPED.replace("class Model(", "class ModelNew(").replace(
        "        return self", f"        {momentum}return self"
    )
    with Evaluator(open_problem(path, "cpu"), "cpu", Store(tmp_path / "store")) as evaluator:
        verdict = evaluator.verify(evaluator.build(evaluator.store.put(text)))
    assert verdict.outcome is (Outcome.INCORRECT if momentum else Outcome.PASSED), verdict.reason
    assert not any("a copy would do" in one for one in verdict.warnings)


@pytest.mark.parametrize("stateful", [False, True])
def test_a_module_that_is_wrong_in_one_call_of_97_is_found(stateful: bool, opened, tmp_path: Path, monkeypatch):
    """It counts its calls beside what Model keeps, so that no state that is judged shows it."""
    for where, name in ((many_calls, "LOOKS_S"), (rows, "STATE_S")):  # however busy the machine is
        monkeypatch.setattr(where, name, 20.0)
    init, keeps = ("self.register_buffer('seen', torch.zeros(8))", "self.seen.add_(x[0]); ") if stateful else ("", "")
    wrong = f"self.__dict__['n'] = self.__dict__.get('n', 0) + 1; {keeps}return x.exp() * (self.n % 97 != 0)"
    problem = opened(module(init or "pass", f"{keeps}return x.exp()") + INPUTS)
    (verdict,) = verdicts(problem, [module(init or "pass", wrong, "ModelNew")], tmp_path / "store")
    assert verdict.outcome is Outcome.INCORRECT and "of 128 in a row" in verdict.reason, verdict.reason


def test_a_call_that_is_wrong_at_one_count_of_models_own_counter_is_found(opened, tmp_path: Path, monkeypatch):
    """Every state that is put in has another count."""
    monkeypatch.setattr(rows, "STATE_S", 20.0)
    init = "self.register_buffer('k', torch.zeros((), dtype=torch.int64)); self.register_buffer('mean', torch.zeros(8))"
    keeps = "self.k += 1; before = self.mean.clone(); self.mean.lerp_(x.mean(0), 0.1); "
    problem = opened(module(init, f"{keeps}return x - self.mean") + INPUTS)
    wrong = f"{keeps}return x - (before if int(self.k) % 64 == 63 else self.mean)"
    texts = [module(init, forward, "ModelNew") for forward in (f"{keeps}return x - self.mean", wrong)]
    honest, found = verdicts(problem, texts, tmp_path / "store")
    assert honest.passed, honest.reason
    assert found.outcome is Outcome.INCORRECT and "in a row" in found.reason, found.reason


def test_a_counter_that_skips_once_is_found(opened, tmp_path: Path, monkeypatch):
    """At the twelfth call of a module's life alone: rows began behind it, or were judged at calls behind it."""
    monkeypatch.setattr(rows, "ALONG_JUDGED", 0)
    monkeypatch.setattr(rows, "MANY", 100)
    texts = [f"self.n += {count}; return x * (1 + self.n % 3)" for count in ("1", "1", "1 if self.n != 11 else 2")]
    problem = opened(module("self.n = 0", texts[0]) + INPUTS)
    honest, found = verdicts(
        problem, [module("self.n = 0", text, "ModelNew") for text in texts[1:]], tmp_path / "store"
    )
    assert honest.passed, honest.reason
    assert found.outcome is Outcome.INCORRECT, found.reason


def test_what_the_constructor_leaves_on_the_host_is_read_there_and_what_a_call_leaves_there_is_refused():
    """A plain attribute does not move with its module: a cache is the host's until a call has moved it."""
    model = Everything()
    entries = Trial(Everything(), {"l": [{"t": 0}]}).state([torch.randn(4, 8)], [torch.randn(4, 8)])
    state = module_state.ModuleState(entries, model, "cpu", ValueError)
    buffers = [torch.empty((rows, 64), dtype=getattr(torch, dtype), device="meta") for dtype, rows in state.groups]
    state.read(state.prepare(buffers), buffers)
    model.mean = model.mean.clone()
    with pytest.raises(ValueError, match="mean is on cpu, should be on meta"):
        state.read(state.prepare(buffers), buffers)


@pytest.mark.parametrize("copied", ["self", "copy.copy(self)", "self.alike()"])
def test_a_deep_copy_that_shares_its_weights_is_warned_of(copied: str, opened, tmp_path: Path):
    """Layers that torch.nn.TransformerEncoder makes of it would all have one set of weights."""
    problem = opened(module(WEIGHT, "return x @ self.weight") + INPUTS)
    alike = """
    def alike(self):
        made = ModelNew()
        made.weight = self.weight
        return made

    def __deepcopy__(self, memo):
        return """
    shares = "import copy\n" + module(WEIGHT, "return x @ self.weight", "ModelNew") + alike + copied + "\n"
    own = module(WEIGHT, "return x @ self.weight", "ModelNew")
    found, honest = verdicts(problem, [shares, own], tmp_path)
    assert found.passed and any("a deep copy of it" in one for one in found.warnings), found
    assert honest.passed and not any("a deep copy of it" in one for one in honest.warnings), honest


def test_a_state_that_is_brought_up_to_date_when_it_is_read_is_wrong(opened, tmp_path: Path):
    """A method of the buffer made the update, which nobody but the harness asks for."""
    init, forward = "self.register_buffer('m', torch.zeros(8))", "self.m.lerp_(x.mean(0), 0.1); return x - self.m"
    late = (
        "m = self.m; now = torch.lerp(m, x.mean(0), 0.1); real = torch._C.TensorBase.detach\n"
        "        m.detach = lambda: real(m.copy_(now)); return x - now"
    )
    problem = opened(module(init, forward) + INPUTS)
    honest, found = verdicts(problem, [module(init, one, "ModelNew") for one in (forward, late)], tmp_path / "store")
    assert honest.passed, honest.reason
    assert found.outcome is Outcome.INCORRECT, found.reason


def test_a_row_of_calls_does_not_come_to_rest(opened, tmp_path: Path, monkeypatch):
    """Inputs that were the same in each call hid what was left out once a moving average was that of the inputs."""
    monkeypatch.setattr(rows, "STATE_S", 20.0)
    monkeypatch.setattr(rows, "MANY", 245)
    init = "self.register_buffer('m', torch.zeros(8))"
    keeps = "self.m.lerp_(x.mean(0), 0.1)"
    skips = f"self.n = 1 if not self.m.any() else self.n + 1\n        if self.n < 200 or self.n % 40: {keeps}\n        return x - self.m"
    problem = opened(module(init, f"{keeps}; return x - self.m") + INPUTS)
    texts = [module(init, f"{keeps}; return x - self.m", "ModelNew"), module(f"{init}; self.n = 0", skips, "ModelNew")]
    honest, found = verdicts(problem, texts, tmp_path / "store")
    assert honest.passed, honest.reason
    assert found.outcome is Outcome.INCORRECT, found.reason


@pytest.mark.parametrize(
    "left",
    [
        "torch.manual_seed(0)",
        "torch.set_num_threads(1)",
        "torch.set_default_dtype(torch.float64)",
        "torch.set_grad_enabled(True)",
        "torch.set_float32_matmul_precision('medium')",
    ],
)
@pytest.mark.parametrize("draws", [False, True])
def test_a_call_that_leaves_its_callers_process_otherwise_is_wrong(left: str, draws: bool, opened, tmp_path: Path):
    """Layers behind it drop the same elements in each call, compute on one core, in TF32; where Model does so it is right."""
    forward = "y = nn.functional.dropout(x, 0.5) if DRAWS else x + 1; LEFT; return y.detach()".replace(
        "DRAWS", str(draws)
    )
    texts = [module("pass", forward.replace("LEFT", one), "ModelNew") for one in ("pass", left)]
    problem = opened(module("pass", forward.replace("LEFT", "pass")) + INPUTS)
    honest, found = verdicts(problem, texts, tmp_path / "store")
    assert honest.passed, honest.reason
    assert found.outcome is Outcome.INCORRECT and "leaves its caller's process" in found.reason, found.reason
