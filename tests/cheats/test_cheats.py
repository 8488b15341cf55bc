"""Every known cheat ends as its header says, and never in FASTER; every honest candidate passes.

A file here is one candidate, of silu_and_mul where its header names no other kernel. The header says what it does and
`Must end in:` the outcomes that are right for it; `Found by chance`, that on busy cores a look may miss it, so that it is
looked at four times, not twice, before its test fails (how often one look misses it: `python -m benchmarks.cheats`); `Found by many calls or
rows`, that a verdict with fewer of them than outside of tests would not do. `honest_*`, who must pass whatever is asked, are the candidates that look suspicious and are not. A cheat whose outcome may be
PASSED is one that the box or the protocol makes harmless: then it is measured, and must not be FASTER.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import cheats
from harness import backends
from harness.evaluate import Evaluator
from harness.judge import many_calls, pool
from harness.judge.session import CALL_S
from harness.processes.worker import LIMITS, Worker
from harness.records import Outcome
from harness.timing import interleaved, neighbours
from kernels.spec import Device
from tests.machine import CONFIRMED_S, HOST_STEPS, LOOKED_AT

HANGS_S = 0.5
"""One that never answers is not waited for any longer."""

BY_CHANCE, BY_MANY = "// Found by chance.", "// Found by many calls or rows."
BY_LONG = f"{BY_MANY[:-1]}, a long row of them."


class Evaluators:
    """One for each kind of candidate, started when the first of its kind comes."""

    def __init__(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        self.folders, self.made = tmp_path_factory, dict[tuple[str, str, bool], Evaluator]()

    def get(self, suffix: str, kernel: str, *, may_pass: bool) -> Evaluator:
        """`may_pass`: nothing has to be found out, so its contests fill a small cache, as in other tests.

        Else caches are as large as they are: the fewer calls a request has, the more of a forged clock may be a busy core's
        doing.
        """
        for name in {".cpp": ["cpu"], ".py": ["cpu", "python_module"], ".cu": []}[suffix]:
            if reason := backends.get(name).why_unavailable():
                pytest.skip(reason)
        if (suffix, kernel, may_pass) not in self.made:
            with pytest.MonkeyPatch.context() as patch:
                if not may_pass:
                    patch.setattr("harness.device._cpu_caches", LOOKED_AT)
                # Of the two types of 16 bits one: what is attacked does not differ.
                but = ("float16",) if suffix == ".cpp" else ()
                made = cheats.evaluator(self.folders.mktemp("store"), suffix, kernel, but)
            self.made[suffix, kernel, may_pass] = made
        return self.made[suffix, kernel, may_pass]


@pytest.fixture(scope="module")
def evaluators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evaluators]:
    made = Evaluators(tmp_path_factory)
    with pytest.MonkeyPatch.context() as patch:
        # A quarter of what a worker may have is as soon too much, and filled sooner.
        limits = LIMITS._replace(memory_bytes=LIMITS.memory_bytes // 4)
        patch.setattr(pool, "LIMITS", limits)
        patch.setitem(Worker.__init__.__kwdefaults__, "limits", limits)
        patch.setitem(interleaved.CONFIRM_S, "cpu", CONFIRMED_S)  # who forges a clock is found out by it
        patch.setattr(neighbours, "HOST_STEPS", HOST_STEPS)  # who remembers inputs must not have met them
        yield made
    for one in made.made.values():
        one.close()


def examine(evaluators: Evaluators, name: str, suffix: str, request: pytest.FixtureRequest) -> None:
    text = cheats.source(name, suffix)
    allowed = cheats.must_end_in(text)
    assert allowed, f"{name}{suffix} has no header that says what must happen"
    may_pass = Outcome.PASSED in allowed
    if may_pass:  # as few samples do as there may be
        request.getfixturevalue("few_samples")
    if BY_MANY[:-1] in text or name.startswith("honest"):
        request.getfixturevalue("whole_checks")
    if BY_LONG in text:  # however busy the machine is
        request.getfixturevalue("monkeypatch").setattr(many_calls, "LONG_S", 30.0)
    evaluator = evaluators.get(suffix, cheats.kernel_of(text), may_pass=may_pass)
    evaluator.call_s = HANGS_S if allowed == {Outcome.TIMEOUT} else CALL_S
    faults: list[str] = []
    for look in range(4 if BY_CHANCE in text else 2):
        verdict = cheats.judge(evaluator, cheats.again(text, suffix, look), suffix)
        if not (fault := cheats.fault(name, verdict, allowed)):
            break
        faults.append(fault)
        # Once in some hundred measurements on busy cores chance says FASTER, and a look may miss what only a clock can see.
        assert verdict.passed, faults
        assert sum(said.startswith("FASTER") for said in faults) < 2, faults
    else:
        pytest.fail(str(faults))
    if held_out := cheats.must_end_in(text, held_out=True):
        outcome = evaluator.verify(evaluator.build(evaluator.store.put(text)), held_out=True).outcome
        assert outcome in held_out
    # One bad candidate never hurts the next: nothing is left of it, and the baseline still passes beside it.
    assert not list(Path("/tmp").glob("answer-*")) and not Path("/tmp/astrolabe-was-here").exists()


@pytest.mark.parametrize("name", cheats.names(".cpp"))
def test_on_a_cpu(evaluators: Evaluators, name: str, request: pytest.FixtureRequest) -> None:
    examine(evaluators, name, ".cpp", request)


@pytest.mark.parametrize("name", cheats.names(".py"))
def test_in_python(evaluators: Evaluators, name: str, request: pytest.FixtureRequest) -> None:
    examine(evaluators, name, ".py", request)


@pytest.mark.gpu
@pytest.mark.parametrize("name", cheats.names(".cu"))
def test_on_a_gpu(evaluators: Evaluators, name: str, request: pytest.FixtureRequest) -> None:
    examine(evaluators, name, ".cu", request)


@pytest.mark.parametrize("suffix", [".cpp", ".cu", ".py"])
def test_every_file_says_what_it_does(suffix: str) -> None:
    for name in cheats.names(suffix):
        text = (cheats.FOLDER / f"{name}{suffix}").read_text()
        first = text.splitlines()[0].lstrip('/#" ')
        assert len(first) > 20, f"{name}{suffix} begins without a sentence"
        assert cheats.must_end_in(text), f"{name}{suffix} does not say how it must end"


def test_a_verdict_does_not_depend_on_the_candidate_before(evaluators: Evaluators) -> None:
    text = cheats.source("honest_openmp_thread_local", ".cpp")
    one = evaluators.get(".cpp", cheats.kernel_of(text), may_pass=True)
    for name in ("crash", "hang", "forge_answer"):
        one.call_s = HANGS_S if name == "hang" else CALL_S
        before = one.verify(one.build(one.store.put(cheats.again(cheats.source(name, ".cpp"), ".cpp", 99))))
        one.call_s = CALL_S
        after = one.verify(one.build(one.store.put(f"{text}// after {name}\n")))  # not one that it was asked for before
        assert not before.passed and after.passed, f"after {name}: {after.reason}"


def test_there_are_enough_of_both_kinds() -> None:
    devices: tuple[Device, ...] = ("cpu", "cuda")
    names = {name for device in devices for suffix in cheats.SUFFIXES[device] for name in cheats.names(suffix)}
    honest = {name for name in names if name.startswith("honest_")}
    assert len(names - honest) >= 30
    assert len(honest) >= 8
