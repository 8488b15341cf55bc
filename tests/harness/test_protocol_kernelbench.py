"""KernelBench's protocol to the letter, as far as a CPU shows it: seeds, trials, tolerance, rounding, its files."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from harness import protocol_kernelbench as protocol
from harness.evaluate import Evaluator
from harness.farside import kernelbench as farside_kernelbench
from harness.farside.forms import OutputCopier
from harness.problems.pytorch import open_problem
from harness.processes.worker import WorkerFailure
from harness.protocol_kernelbench import KernelBenchResult
from harness.records import Outcome
from harness.store import Store

PROBLEM = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(16))

    def forward(self, x):
        return x * self.weight


def get_inputs():
    return [torch.rand(8, 16)]


def get_init_inputs():
    return []
"""
HONEST = PROBLEM.partition("\n\ndef get_inputs")[0].replace("class Model", "class ModelNew")


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evaluator]:
    folder = tmp_path_factory.mktemp("protocol")
    (folder / "level1").mkdir()
    path = folder / "level1" / "7_Scale.py"
    path.write_text(PROBLEM)
    with Evaluator(open_problem(path, "cpu"), "cpu", Store(folder / "store")) as found:
        yield found


def asked(evaluator: Evaluator, source: str) -> KernelBenchResult:
    return protocol.evaluate(evaluator, evaluator.kernel, source, timed=5)  # type: ignore[arg-type]


def test_the_trials_seeds_are_its_own():
    torch.manual_seed(42)  # as run_and_check_correctness draws them
    assert protocol._seeds(5) == [torch.randint(0, 2**32 - 1, (1,)).item() for _ in range(5)]


def test_an_honest_candidate(evaluator: Evaluator):
    found = asked(evaluator, HONEST)
    assert found.compiled and found.correctness and found.metadata["correctness_trials"] == "(5 / 5)"
    assert found.runtime == found.runtime_stats["mean"] > 0 and found.runtime_stats["num_trials"] == 5
    assert found.ref_runtime > 0


@pytest.mark.parametrize(
    ("change", "compiled", "name", "said"),
    [
        (("* self.weight", "* self.weight + 1e-3"), True, "correctness_issue", "Output mismatch"),
        (("* self.weight", "* self.weight * float('nan')"), True, "correctness_issue", "Output mismatch"),
        (("return x", "return x[:4]"), True, "correctness_issue", "shape mismatch"),
        (("* self.weight", "* self.weight.double()"), True, "runtime_error", "float64"),
        (("return x * self.weight", "return x * self.weight, 1"), True, "runtime_error", "no attribute 'shape'"),
        (("class ModelNew", "class Other"), False, "compilation_error", "no class ModelNew"),
        (("class ModelNew(", "class ModelNew(("), False, "compilation_error", "error"),
    ],
)  # fmt: skip
def test_what_fails_is_named_as_there(evaluator: Evaluator, change, compiled: bool, name: str, said: str):
    found = asked(evaluator, HONEST.replace(*change))
    assert (found.compiled, found.correctness, found.runtime) == (compiled, False, -1.0)
    assert said in found.metadata[name], found.metadata
    assert (found.ref_runtime > 0) == (name != "compilation_error" or "no class" in said), (
        "without it its analysis counts one problem less"
    )


def test_what_rounding_alone_does_to_a_problem_is_measured(tmp_path: Path):
    """A factor of a million before a sine: eager passes its own check no longer where inputs are the next numbers."""
    off = ("return x * self.weight", "return torch.sin(x * self.weight * 1e6)")
    (tmp_path / "level1").mkdir()
    path = tmp_path / "level1" / "8_Chaos.py"
    path.write_text(PROBLEM.replace(*off))
    with Evaluator(open_problem(path, "cpu"), "cpu", Store(tmp_path / "store")) as chaos:
        found = asked(chaos, HONEST.replace(off[0], "return torch.sin(x * (1e6 * self.weight))"))
    assert not found.correctness and float(found.metadata["eager_off_by_rounding"]) > 0.01
    said = protocol.disagreement(found, Outcome.PASSED, "", ())
    assert "so is eager from itself" in said and "a property of the problem" in said


def test_an_honest_failure_is_no_property_of_the_problem(evaluator: Evaluator):
    found = asked(evaluator, HONEST.replace("* self.weight", "* self.weight + 1e-3"))
    assert found.metadata["eager_passes_off_by_rounding"] is True
    assert "property" not in protocol.disagreement(found, Outcome.PASSED, "", ())


@pytest.mark.gpu
def test_a_large_answer_is_read_before_the_next_trial_is_asked_for(tmp_path: Path):
    """Copies on a GPU go on behind the call: four of five trials were called wrong where an answer had gigabytes."""
    (tmp_path / "level1").mkdir()
    path = tmp_path / "level1" / "7_Scale.py"
    path.write_text(PROBLEM.replace("torch.rand(8, 16)", "torch.rand(1, 16).expand(1 << 26, 16)"))
    with Evaluator(open_problem(path, "cuda"), "cuda", Store(tmp_path / "store")) as on_gpu:
        assert asked(on_gpu, HONEST).metadata["correctness_trials"] == "(5 / 5)"


def test_an_expanded_input_takes_the_room_of_what_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """2^26 rows of one: as a tensor of its own it took 8 GiB in each process."""
    path = tmp_path / "7_Sum.py"
    path.write_text(
        PROBLEM.replace("torch.rand(8, 16)", "torch.rand(1, 16).expand(1 << 20, 16), torch.rand(4, 16).t()").replace(
            "def forward(self, x):\n        return x * self.weight",
            "def forward(self, x, y):\n        return (x[-4:] * self.weight).t() + y",
        )
    )
    own = path.read_text().partition("\n\ndef get_inputs")[0].replace("class Model", "class ModelNew")
    sizes, make = [], protocol._spec
    monkeypatch.setattr(protocol, "_spec", lambda *given: sizes.append(given[2:]) or make(*given))
    with Evaluator(open_problem(path, "cpu"), "cpu", Store(tmp_path / "store")) as found:
        assert asked(
            found, own.replace("return", "assert (x.stride(), y.stride()) == ((0, 1), (1, 16))\n        return")
        ).correctness
        assert not asked(found, own.replace("+ y", "+ y * (1 - torch.is_grad_enabled())")).correctness
    assert sizes[:2] == [(), (512,)], sizes


def test_what_is_within_its_tolerance_passes_there(evaluator: Evaluator):
    assert asked(evaluator, HONEST.replace("* self.weight", "* self.weight + 9e-5")).correctness


def test_a_candidate_cannot_shrink_the_inputs(evaluator: Evaluator):
    """There it shares a namespace with get_inputs; here it has one of its own."""
    assert asked(evaluator, HONEST + "\n\ndef get_inputs():\n    raise ValueError\n").correctness


SEARCHES = {
    "the caller's frames": """
    def found(self):
        frame = sys._getframe(1)
        while frame is not None:
            yield from list(frame.f_locals.values())
            frame = frame.f_back
""",
    "all that the collector knows": """
    def found(self):
        for one in gc.get_objects():
            yield one
            if type(one).__name__ == "Model":
                yield self.asked(one)
""",
    "what is mapped": """
    def found(self):
        import ctypes
        for line in open("/proc/self/maps"):
            if "memfd" in line:
                low, high = (int(end, 16) for end in line.split()[0].split("-"))
                raw = torch.frombuffer((ctypes.c_char * (high - low)).from_address(low), dtype=torch.uint8)
                for at in range(0, len(raw) - 512, 256):
                    yield raw[at : at + 512].view(torch.float32).view(8, 16).clone()
""",
}


@pytest.mark.parametrize("where", SEARCHES)
def test_models_answer_is_not_within_reach(evaluator: Evaluator, where: str):
    """Whatever of its answer's shape is neither the input nor empty is returned, and something else where nothing is."""
    thief = f"""
import gc
import sys

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(16))
        self.x = None

    def asked(self, model):
        return model(self.x)
{SEARCHES[where]}
    def forward(self, x):
        self.x = x
        for one in self.found():
            fits = type(one) is torch.Tensor and one.shape == x.shape and one.dtype == x.dtype and one.isfinite().all()
            if fits and one is not x and one.any() and not torch.equal(one, x):
                return one
        return x - 1
"""
    found = asked(evaluator, thief)
    assert found.compiled and not found.correctness
    refused = "lies in the memory that it is copied to" in found.metadata.get("runtime_error", "")
    assert refused or found.metadata["correctness_trials"] == "(0 / 5)", found.metadata


def test_a_random_model_is_called_with_the_generator_as_models_call_has_left_it(tmp_path: Path):
    """As there, where Model draws first; so a candidate that draws as Model does is another, there and here."""
    path = tmp_path / "7_Drop.py"
    path.write_text(PROBLEM.replace("x * self.weight", "nn.functional.dropout(x * self.weight, 0.5, True)"))
    with Evaluator(open_problem(path, "cpu"), "cpu", Store(tmp_path / "store")) as found:
        same = path.read_text().partition("\n\ndef get_inputs")[0].replace("class Model", "class ModelNew")
        assert not asked(found, same).correctness
        assert found.verify(found.build(found.store.put(same))).passed


def test_statistics_have_three_digits():
    found = protocol._stats([1.23456, 2.0, 3.0], {"hardware": "h", "device": "cuda:0"})
    assert found == {
        "mean": 2.08,
        "std": 0.723,
        "min": 1.23,
        "max": 3.0,
        "num_trials": 3,
        "hardware": "h",
        "device": "cuda:0",
    }


def test_its_files(tmp_path: Path):
    path = tmp_path / "level1" / "eval_results.json"
    good = KernelBenchResult(
        compiled=True, correctness=True, runtime=1.5, runtime_stats={"mean": 1.5}, ref_runtime_stats={"mean": 3.0}
    )
    for number in (23, 3, 23):
        protocol.add_to_results(path, number, good)
    found = json.loads(path.read_text())
    assert list(found) == ["3", "23"] and len(found["23"]) == 1
    assert set(found["3"][0]) == {"sample_id", "compiled", "correctness", "metadata", "runtime", "runtime_stats"}
    protocol.add_to_baseline(tmp_path / "b.json", 1, "23_Softmax.py", good)
    assert json.loads((tmp_path / "b.json").read_text()) == {"level1": {"23_Softmax.py": {"mean": 3.0}}}


def test_disagreements_have_a_reason():
    good, bad = (
        KernelBenchResult(compiled=True, correctness=True),
        KernelBenchResult(compiled=True, metadata={"runtime_error": "it broke"}),
    )
    assert (
        protocol.disagreement(good, Outcome.PASSED, "", ())
        == protocol.disagreement(bad, Outcome.INCORRECT, "x", ())
        == ""
    )
    assert "zeros would pass there too" in protocol.disagreement(good, Outcome.INCORRECT, "off", ("zeros",))
    assert "it broke" in protocol.disagreement(bad, Outcome.PASSED, "", ())


LAZY = {
    "skips one of its calls": "        self.calls = getattr(self, 'calls', 0) + 1\n"
    "        return torch.zeros_like(x) if self.calls == 10 else x * self.weight\n",
    "keeps answers by the address": "        if getattr(self, 'of', None) != x.data_ptr():\n"
    "            self.of, self.kept = x.data_ptr(), x * self.weight\n        return self.kept\n",
    "skips when gradients are asked for": "        if torch.is_grad_enabled():\n            return self.kept\n        self.kept = x * self.weight\n        return self.kept\n",
    "does what the frames of its callers say is looked at": "        import sys\n        frame = sys._getframe(1)\n        while frame is not None:\n"
    "            known = frame.f_locals\n            if 'looked' in known and known.get('trial') not in (None, known['looked']):\n"
    "                out, at = torch.empty_like(x), known.get('places')\n"
    "                if at is not None:\n                    out.view(-1)[at.view(-1)] = (x * self.weight).view(-1)[at.view(-1)]\n"
    "                return out if at is not None else x * self.weight\n"
    "            frame = frame.f_back\n        return torch.empty_like(x) if torch.is_grad_enabled() and len(sys._getframe(1).f_locals) else x * self.weight\n",
    "skips from the eighth call on": "        self.calls = getattr(self, 'calls', 0) + 1\n        return torch.empty_like(x) if self.calls > 8 else x * self.weight\n",
}


LATE = """
class Late(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        now = [one.of * one.by if type(one) is Late else one for one in args]
        return function(*now, **(kwargs or {}))
"""


def test_an_answer_that_computes_when_the_clock_has_stopped_is_found(evaluator: Evaluator):
    later = "        late = torch.empty(0).as_subclass(Late)\n        late.of, late.by = x, self.weight\n        return late\n"
    found = asked(evaluator, HONEST.replace("        return x * self.weight\n", later) + LATE)
    assert not found.correctness and "may compute when it is looked at" in str(found.metadata), found


STATEFUL = """        self.calls = self.calls + 1
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return x * self.weight - self.mean / self.calls
"""


def test_timed_calls_of_a_module_with_state_are_compared_too(tmp_path: Path):
    """Each goes on from the state that the one before has left, in Model's process as in the candidate's."""
    path = tmp_path / "7_Ema.py"
    init = "        self.weight = nn.Parameter(torch.rand(16))\n"
    text = PROBLEM.replace(
        init, f"{init}        self.calls = 0\n        self.register_buffer('mean', torch.zeros(16))\n"
    )
    path.write_text(text.replace("        return x * self.weight\n", STATEFUL))
    own = path.read_text().partition("\n\ndef get_inputs")[0].replace("class Model", "class ModelNew")
    with Evaluator(open_problem(path, "cpu"), "cpu", Store(tmp_path / "store")) as found:
        assert found.kernel.description.state  # type: ignore[attr-defined]
        assert asked(found, own).correctness
        for wrong in (
            own.replace(
                "        self.calls = self",
                "        if torch.is_grad_enabled():\n            return x\n        self.calls = self",
            ),
            own.replace("self.calls + 1", "min(self.calls + 1, 9)"),
            own.replace("        self.mean = 0", "        if not torch.is_grad_enabled():\n            self.mean = 0"),
        ):
            said = asked(found, wrong)
            assert not said.correctness and "one of its timed calls" in said.metadata["runtime_error"], wrong


def test_timed_calls_get_inputs_that_were_not_there_before(evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch):
    """Who keeps answers by the tensor, its address or its values would time a look-up: 22,000x, 167x."""
    theirs = farside_kernelbench.ProtocolAdapter.__new__(farside_kernelbench.ProtocolAdapter)
    theirs.torch, theirs.device, theirs.is_new = torch, "cpu", True
    theirs.detach, theirs.fill = torch.Tensor.detach, torch.Tensor.fill_
    theirs.precision = torch.float32
    theirs.problem = {"scalar_outputs": [False], "random": False, "state": [], "independent": [True, True, True]}
    theirs.outputs = [(name, at, False) for at, name in enumerate(("output_0", "generators", "elapsed", "given"))]
    theirs.namespace = SimpleNamespace(get_inputs=lambda: [torch.rand(8, 16), torch.arange(3), 2.0])
    for most in (1 << 30, 1):
        monkeypatch.setattr(farside_kernelbench, "DRAWN_BYTES", most)
        answers = list[torch.Tensor]()
        for _ in range(2):  # Model's process, and the candidate's
            seen: list[torch.Tensor] = []
            kept: list[tuple[int, torch.Tensor]] = []

            def model(x: torch.Tensor, _whole: torch.Tensor, _number: float, seen=seen, kept=kept) -> torch.Tensor:
                assert not any(x is one for one in seen), "known by its identity"
                ratios = [x / one for _, one in kept]
                assert all(float(ratio.max() - ratio.min()) > 0.01 for ratio in ratios), (
                    "known by its values, or a multiple of them"
                )
                if len(seen) >= 3:
                    kept.append((x.data_ptr(), x.clone()))
                    assert x.data_ptr() == kept[0][0], "a draw that is told by its address"
                    assert float(x.min()) >= 0 and float(x.max()) < 1
                    seen.append(x)
                else:
                    seen.append(torch.empty(0))  # warm-up calls have one draw
                return x * 2

            theirs.model = model
            theirs.copier, buffer = OutputCopier(), torch.empty(8, 16)
            elapsed = torch.zeros(1, dtype=torch.float64)
            theirs.begin_trials(torch.empty(1024, dtype=torch.uint8))
            for seed in range(21):
                theirs.renew_inputs(seed)
                theirs.time_trial([buffer, None, elapsed], seed)
                answers.append(buffer.clone())
            assert len(kept) == 21 and float(elapsed) > 0
        assert len(answers) == 42 and all(map(torch.equal, answers[:21], answers[21:])), "each process draws the same"


def test_indices_alone_are_drawn_anew_for_each_timed_call_however_large(monkeypatch: pytest.MonkeyPatch):
    """Integers cannot be scaled: beyond DRAWN_BYTES a call's were those of the one before, and its answer could be kept."""
    monkeypatch.setattr(farside_kernelbench, "DRAWN_BYTES", 1)
    model = farside_kernelbench.ProtocolAdapter.__new__(farside_kernelbench.ProtocolAdapter)
    model.torch, model.device, model.is_new, model.precision = torch, "cpu", False, torch.float32
    model.problem, seen = {"random": False, "state": [], "independent": [True]}, list[torch.Tensor]()
    model.namespace, model.model = SimpleNamespace(get_inputs=lambda: [torch.randint(1000, (64,))]), lambda x: x
    model.begin_trials(torch.empty(1024, dtype=torch.uint8))
    for seed in range(8):
        model.renew_inputs(seed)
        assert not any(torch.equal(model.given[0], one) for one in seen)
        seen.append(model.given[0].clone())


@pytest.mark.parametrize("how", LAZY)
def test_a_timed_call_that_does_not_compute_is_found(evaluator: Evaluator, how: str):
    found = asked(evaluator, HONEST.replace("        return x * self.weight\n", LAZY[how]))
    known = (
        "address" in how and "correctness_issue" in found.metadata
    )  # where a trial's input lies as the one before did
    assert not found.correctness and (known or "one of its timed calls" in found.metadata["runtime_error"]), found


SLOW = "        for _ in range(3000):\n            x.sum()\n        return x * self.weight\n"
FORGED = """
import sys
import time

its = sys.modules["astrolabe_farside.kernelbench"].ProtocolAdapter
its.clock = staticmethod(lambda own=time.perf_counter: own() * {share})
"""


@pytest.mark.parametrize(
    ("share", "said"), [(1e-3, "its clock lacks"), (-1.0, "what cannot be"), (float("nan"), "what cannot be")]
)
def test_a_clock_that_lies_is_held_against_ours(evaluator: Evaluator, share: float, said: str):
    slow = HONEST.replace("        return x * self.weight\n", SLOW)
    found = asked(evaluator, slow + FORGED.format(share=f"float('{share}')"))
    assert not found.correctness and said in found.metadata["runtime_error"], found
    assert asked(evaluator, slow).correctness


AHEAD = """
import sys
import torch
from torch import nn


def answer(x):
    for _ in range(40):
        x = (x.sin() + x.cos()).sigmoid()
    return x


class Model(nn.Module):
    def forward(self, x):
        return answer(x)


def get_inputs():
    return [torch.rand(64, 64)]
"""
FINDS_THE_ADAPTER = """
        frame = sys._getframe()
        while not hasattr(frame.f_locals.get("self"), "renew_inputs"):
            frame = frame.f_back
        adapter = frame.f_locals["self"]
        if not hasattr(self, "kept"):
            self.kept, renew = None, adapter.renew_inputs

            def renew_and_compute(*given):
                renew(*given)
                self.kept = answer(adapter.given[0])

            adapter.renew_inputs = renew_and_compute
        return answer(x) if self.kept is None else self.kept
"""
DRAWS_THEM_BEFORE = """
        frame = sys._getframe()
        while not hasattr(frame.f_locals.get("self"), "renew_inputs"):
            frame = frame.f_back
        adapter = frame.f_locals["self"]
        if hasattr(adapter, "chance") and not hasattr(self, "kept"):
            copied, state = type(adapter.chance)(), torch.get_rng_state()
            copied.setstate(adapter.chance.getstate())
            self.kept, self.calls = [], -2
            for _ in range(6):
                seed, _ = copied.getrandbits(31), copied.getrandbits(63)
                self.kept.append(answer(adapter.draw(seed)[0]))
            torch.set_rng_state(state)
        if getattr(self, "kept", None):
            self.calls += 1
            if self.calls > 0:
                return self.kept.pop(0)
        return answer(x)
"""
SLOWS_THE_CLOCK = """
        import time
        if not hasattr(time, "real"):
            time.real, time.began = time.perf_counter, time.perf_counter()
            time.perf_counter = lambda: time.began + (time.real() - time.began) / 10
        return answer(x)
"""


def test_work_done_while_inputs_are_made_and_a_clock_replaced_gain_nothing(tmp_path: Path):
    (tmp_path / "level1").mkdir()
    path = tmp_path / "level1" / "8_Chain.py"
    path.write_text(AHEAD)
    source = AHEAD.partition("\n\ndef get_inputs")[0].replace("class Model", "class ModelNew")
    with Evaluator(open_problem(path, "cpu"), "cpu", Store(tmp_path / "store")) as found:
        for way in (FINDS_THE_ADAPTER, DRAWS_THEM_BEFORE):
            ahead = asked(found, source.replace("\n        return answer(x)", way.rstrip()))
            assert not ahead.correctness or least(ahead) < 5, ahead
        slow = asked(found, source.replace("\n        return answer(x)", SLOWS_THE_CLOCK.rstrip()))
        assert not slow.correctness or least(slow) < 5, slow


def least(found: KernelBenchResult) -> float:
    """Model's quickest call over the candidate's, which other programs do not move."""
    return float(found.ref_runtime_stats["min"]) / float(found.runtime_stats["min"])


ONLY_AT_FIRST = """
own = sys.modules["astrolabe_farside.kernelbench"].ProtocolAdapter
real, calls = own.on_cpu, []


def on_cpu(self, model, given):
    taken, answer = real(self, model, given)
    calls.append(taken)
    return (taken / 1000 if len(calls) <= 6 else taken), answer


own.on_cpu = on_cpu
"""


def test_who_is_accused_once_is_judged_by_what_is_timed_then(evaluator: Evaluator):
    """A clock that lies in the first calls of a process, and is believed once they are timed again, must not be what is reported."""
    slow = HONEST.replace("        return x * self.weight\n", SLOW)
    found = asked(evaluator, "import sys\n" + slow + ONLY_AT_FIRST)
    assert not found.correctness, found


def test_nothing_of_the_candidate_is_there_when_model_is_timed_again(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
):
    """What it leaves at work on a GPU while it is made would be in Model's times, and so much more might its own clock hide."""
    begun, timed = protocol._Process.__init__, protocol._Process.time
    told: list[str] = []

    def begin(self: protocol._Process, *args: object, reference: bool, **how: object) -> None:
        told.append("Model begins" if reference else "the candidate begins")
        begun(self, *args, reference=reference, **how)  # type: ignore[arg-type]

    def time_(self: protocol._Process, maker: protocol._Process, *asked_for: int) -> object:
        told.append("Model is timed" if self is maker else "the candidate is timed")
        return timed(self, maker, *asked_for)

    monkeypatch.setattr(protocol._Process, "__init__", begin)
    monkeypatch.setattr(protocol._Process, "time", time_)
    slow = HONEST.replace("        return x * self.weight\n", SLOW)
    assert not asked(evaluator, slow + FORGED.format(share="1e-3")).correctness
    order = ["Model begins", "Model is timed", "the candidate begins", "the candidate is timed"]
    assert told == order * protocol.CLOCK_TRIES


def busier(monkeypatch: pytest.MonkeyPatch, from_process: int) -> None:
    """A call takes two milliseconds more in that process and all behind it, as beside another program."""
    own, started = protocol._Process.ask, list[protocol._Process]()

    def ask(self: protocol._Process, seed: int, of_call: int = 0) -> None:
        if self not in started:
            started.append(self)
        own(self, seed, of_call)
        if seed == protocol.CALL and started.index(self) >= from_process:
            time.sleep(2e-3)

    monkeypatch.setattr(protocol._Process, "ask", ask)


def test_a_machine_that_becomes_busy_accuses_nobody(evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch):
    busier(monkeypatch, from_process=1)
    found = asked(evaluator, HONEST)
    assert found.correctness, found


def lacking(seed: int, more_ms: float, every: int = 1, noise: float = 0.1, calls: int = 100) -> protocol._TimedCalls:
    """What requests take beside the clocks, the candidate's and Model's, where every so many of the candidate's hide so much of 2 ms."""
    chance = random.Random(seed)

    def took() -> float:
        return 0.4 + chance.expovariate(1 / noise) + (3.0 if chance.random() < 0.1 else 0.0)  # others have the core

    made = [[took() + (more_ms if call % every == 0 else 0.0), took()] for call in range(calls)]
    return protocol._TimedCalls([2.0 - more_ms / every] * calls, made, torch.ones(3), torch.ones(3))


def accused(timed: list[protocol._TimedCalls]) -> bool:
    first, *again = timed
    try:
        protocol._check_timed(lambda: (again.pop(), first), first, first, 1e-4, "cpu")
    except WorkerFailure as fault:
        assert "its clock lacks" in fault.reason
        return True
    return False


def test_a_clock_is_held_against_models_of_the_same_calls():
    """Who hid half a millisecond of a call, or all of every fourth one, was believed; on a busy machine, who hid work in a thread of its own, too."""
    for seed in range(0, 60, 3):
        series = range(seed, seed + protocol.CLOCK_TRIES)
        assert not accused([lacking(one, 0.0) for one in series])
        assert not accused([lacking(one, 0.0, noise=1.0) for one in series])
        assert accused([lacking(one, 1.2) for one in series])
        assert accused([lacking(one, 6.0, every=3) for one in series])
        assert accused([pausing(lacking(one, 2.0, every=2)) for one in series])


def pausing(timed: protocol._TimedCalls) -> protocol._TimedCalls:
    """With long pauses beside the clock in few calls, so that chance seems to explain the rest: half of all work was hidden."""
    made = [[own + 2000.0 * (call in PAUSES), beside] for call, (own, beside) in enumerate(timed.lacking_ms)]
    return timed._replace(lacking_ms=made)


PAUSES = (3, 15, 28, 36, 49, 57, 70, 82)


def test_what_an_answer_or_all_tensors_do_when_they_are_read_is_not_asked(evaluator: Evaluator, tmp_path: Path):
    """A tensor's own attribute, a class in a parameter's place, and a method of all tensors did the work beside the clock: 6x to 9x."""
    own = "        late = torch.empty_like(x)\n        late.detach = lambda: torch.mul(x, self.weight, out=late)\n        return late\n"
    found = asked(evaluator, HONEST.replace("        return x * self.weight\n", own))
    assert not found.correctness and "attributes of its own" in str(found.metadata), found
    place = "        torch.nn.Parameter = Late\n        late = torch.empty(0).as_subclass(Late)\n        late.of, late.by = x, self.weight\n        return late\n"
    found = asked(evaluator, HONEST.replace("        return x * self.weight\n", place) + LATE)
    assert not found.correctness and "may compute when it is looked at" in str(found.metadata), found
    of_all = "torch.Tensor.detach = torch.Tensor.fill_ = lambda *given: 1 / 0\n"
    assert asked(evaluator, HONEST + of_all).correctness


def test_signs_of_large_inputs_are_other_in_each_timed_call(monkeypatch: pytest.MonkeyPatch):
    """What scaling leaves as it is was the answer of a Model that asks for signs alone: 2x by looking it up."""
    monkeypatch.setattr(farside_kernelbench, "DRAWN_BYTES", 1)
    model = farside_kernelbench.ProtocolAdapter.__new__(farside_kernelbench.ProtocolAdapter)
    model.torch, model.device, model.is_new, model.precision = torch, "cpu", False, torch.float32
    model.namespace = SimpleNamespace(get_inputs=lambda: [torch.randn(64, 64), torch.arange(4096.0)])
    model.model = lambda _x, _sorted: None
    model.problem, seen = {"random": False, "state": [], "independent": [True, False]}, list[torch.Tensor]()
    model.begin_trials(torch.empty(1 << 16, dtype=torch.uint8))
    counts = set[tuple[int, int]]()
    for seed in range(40):
        model.renew_inputs(seed)
        signs = model.given[0].sign()
        counts.add((len(model.patterns[0]) if model.patterns else 0, int((signs > 0).sum())))
        assert not seen or seed < 2 or all(float((signs != one).float().mean()) > 0.1 for one in seen[1:])
        assert float((model.given[1][1:] > 0).float().mean()) == 1 and float(model.given[1][-1]) > 3000, (
            "as it was drawn"
        )
        assert float(model.given[0].abs().mean()) > 0.6, "factors stay with their elements"
        seen.append(signs)
    for parts in zip(*counts, strict=True):  # sums of what has one factor were kept, and how many are positive
        assert len(set(parts)) > 20
