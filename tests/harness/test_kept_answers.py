"""Every question is worked out once, and no other is taken for it; on paper: the work is counted, not done."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness import backends
from harness.evaluate import Evaluator
from harness.judge.comparisons import OtherContexts
from harness.judge.draws import Drawn
from harness.judge.quick import Quick
from harness.judge.search import Tuned
from harness.questions import (
    CompareBriefly,
    Draw,
    MeasureContexts,
    MeasureSuite,
    Readings,
    ReadProbe,
    Sanitize,
    Sanitized,
    Tune,
    Verify,
)
from harness.records import Build, Check, Comparison, DeviceFacts, Draws, Interval, Outcome, Suite, Verdict
from harness.store import Store, write_atomically
from harness.timing import neighbours
from harness.tools.sanitizer import Report
from kernels import catalog
from kernels.catalog import Kernel
from kernels.spec import Workload

SEEN = (
    Workload(axes={"tokens": 3, "hidden": 129}, dtype="float32", timed=False),
    Workload(axes={"tokens": 8, "hidden": 512}, dtype="float32"),
)
UNSEEN = Workload(axes={"tokens": 5, "hidden": 320}, dtype="float32", held_out=True)
GPU = DeviceFacts(device="cuda", name="H", architecture="sm_90", units=132, last_level_cache_bytes=50 << 20)
SAME = Suite(speedup=Interval(median=1, low=1, high=1), comparison=Comparison.SAME)
RECORDED = Path(__file__).with_name("recorded_answers.json")
OPEN = "#define SIZE 1  // tune: 1 2\n"


def kernel(*workloads: Workload) -> Kernel:
    of = catalog.load("silu_and_mul")
    return replace(of, spec=of.spec.model_copy(update={"workloads": workloads, "dtypes": ("float32",)}))


def build(name: str, backend: str = "cuda") -> Build:
    return Build(candidate=name, backend=backend, ok=True, artefact=f"{name}.so")


def passed(name: str) -> Verdict:
    checks = (Check(workload="w", name="n", passed=True),)
    return Verdict(
        candidate=name, kernel="k", device="H", outcome=Outcome.PASSED, checks=checks, build=build(name), seconds=1
    )


class Counting(Evaluator):
    """Says what it would have worked out, and every time something else."""

    def __init__(self, folder: Path, *workloads: Workload, **settings: Any) -> None:
        settings = {"facts": GPU, "memory_bytes": 80 << 30, **settings}
        super().__init__(kernel(*(workloads or (*SEEN, UNSEEN))), "cuda", Store(folder), **settings)
        self.worked: list[Any] = []

    def _did(self, question: Any) -> int:
        self.worked.append(question)
        return len(self.worked)

    def _judge(self, question: Any) -> Any:
        number = self._did(question)
        match question:
            case Verify():
                return passed(question.build.candidate).model_copy(update={"seconds": number})
            case MeasureSuite():
                return question.verdict.model_copy(update={"build": question.build, "seconds": number})
            case MeasureContexts():
                return OtherContexts(timings=(), suites={"pdl": SAME.model_copy(update={"speedup": _one(number)})})
            case Draw():
                return Drawn(draws=Draws(count=question.count, bitwise=0, error=number, baseline_error=0.5))
            case ReadProbe():
                return Readings(values={"read": str(number)})
            case Sanitize():
                return Sanitized(reports=(Report(tool="memcheck", errors=0, seconds=number),))
            case Tune():
                return Tuned(candidate=question.candidate, values={"SIZE": 2}, tried=number)
            case CompareBriefly():
                return Quick(seconds=number)
        return super()._judge(question)


def _one(median: float) -> Interval:
    return Interval(median=median, low=median, high=median)


def questions(one: Evaluator) -> dict[str, Callable[[], Any]]:
    mine, other = passed("mine"), passed("other")
    first, second = (one.store.put(f"{OPEN}// {name}\n") for name in ("first", "second"))
    measure, label = one.measure, SEEN[0]
    return {
        "verify": lambda: one.verify(build("mine")),
        "verify another": lambda: one.verify(build("other")),
        "verify by another backend": lambda: one.verify(build("mine", "torch_extension")),
        "verify held out": lambda: one.verify(build("mine"), held_out=True),
        "verify one": lambda: one.verify(build("mine"), only=label),
        "verify the other one": lambda: one.verify(build("mine"), only=SEEN[1]),
        "measure": lambda: measure(mine, baseline="base"),
        "measure another": lambda: measure(other, baseline="base"),
        "beside another baseline": lambda: measure(mine, baseline="base 2"),
        "beside an incumbent": lambda: measure(mine, baseline="base", incumbent="best"),
        "beside another incumbent": lambda: measure(mine, baseline="base", incumbent="best 2"),
        "measure held out": lambda: measure(mine, baseline="base", held_out=True),
        "several contests": lambda: measure(mine, baseline="base", contests=2),
        "more contests": lambda: measure(mine, baseline="base", contests=3),
        "measure again": lambda: measure(mine, baseline="base", again=True),
        "elsewhere": lambda: one.measure_other_contexts(mine, baseline="base"),
        "another elsewhere": lambda: one.measure_other_contexts(other, baseline="base"),
        "elsewhere beside another": lambda: one.measure_other_contexts(mine, baseline="base 2"),
        "draw": lambda: one.draw_again(mine, baseline="base", count=3),
        "draw more": lambda: one.draw_again(mine, baseline="base", count=4),
        "draw another's": lambda: one.draw_again(other, baseline="base", count=3),
        "draw beside another": lambda: one.draw_again(mine, baseline="base 2", count=3),
        "sanitize": lambda: one.sanitize(mine),
        "sanitize another": lambda: one.sanitize(other),
        "tune": lambda: one.tune(first, seconds=1),
        "tune another": lambda: one.tune(second, seconds=1),
    }  # fmt: skip


def test_each_question_is_worked_out_once_and_none_is_taken_for_another(tmp_path: Path) -> None:
    one, answers = Counting(tmp_path), {}
    for name, ask in questions(one).items():
        before = len(one.worked)
        answers[name] = ask()
        assert len(one.worked) == before + 1, name
    before = list(one.worked)
    for name, ask in questions(one).items():
        assert ask() == answers[name] and one.worked == before, name
    again = Counting(tmp_path)  # of another process, on the same store
    assert {name: ask() for name, ask in questions(again).items()} == answers and not again.worked
    one.close(), again.close()


def test_what_is_worked_out_is_what_was_asked(tmp_path: Path) -> None:
    one = Counting(tmp_path)
    for ask in questions(one).values():
        ask()
    mine, other = build("mine"), build("other")
    verified = [(what.build, what.workloads(one), what.held_out) for what in one.worked if isinstance(what, Verify)]
    assert verified == [
        (mine, SEEN, False), (other, SEEN, False), (build("mine", "torch_extension"), SEEN, False),
        (mine, (UNSEEN,), True), (mine, SEEN[:1], False), (mine, SEEN[1:], False),
    ]  # fmt: skip
    measured = [
        (what.build, what.request.rivals, what.held_out, what.contests, what.again)
        for what in one.worked
        if isinstance(what, MeasureSuite)
    ]
    assert measured == [
        (mine, {"baseline": "base"}, False, 1, False), (other, {"baseline": "base"}, False, 1, False),
        (mine, {"baseline": "base 2"}, False, 1, False),
        (mine, {"baseline": "base", "incumbent": "best"}, False, 1, False),
        (mine, {"baseline": "base", "incumbent": "best 2"}, False, 1, False),
        (mine, {"baseline": "base"}, True, 1, False), (mine, {"baseline": "base"}, False, 2, False),
        (mine, {"baseline": "base"}, False, 3, False), (mine, {"baseline": "base"}, False, 1, True),
    ]  # fmt: skip
    one.close()


def test_what_was_kept_before_questions_were_records_is_found(tmp_path: Path) -> None:
    """Names and texts as commit 5bca04f kept them; there the numbers are in the order of the questions, too."""
    for name, text in json.loads(RECORDED.read_text()).items():
        kind, key = name.split("/")
        write_atomically(tmp_path / "records" / kind / f"{key}.json", text)
    one = Counting(tmp_path)
    one.key = lambda *parts: " ".join(parts)  # type: ignore[method-assign]
    answers = {name: ask() for name, ask in questions(one).items()}
    probes = one.probes(build("mine"), calls=False)
    assert not one.worked
    assert answers["verify"].seconds == 1 and answers["verify one"].seconds == 5 and answers["measure"].seconds == 7
    assert answers["measure again"].seconds == 15 and answers["draw more"].draws.error == 20
    assert answers["tune another"].tried == 26 and probes["sass"] == {"read": "28"}
    one.close()


@pytest.mark.parametrize(
    ("workloads", "settings", "values"),
    [
        ((*SEEN, UNSEEN.model_copy(update={"axes": {"tokens": 6, "hidden": 320}})), {}, {}),
        ((SEEN[0], SEEN[1].model_copy(update={"axes": {"tokens": 9, "hidden": 512}}), UNSEEN), {}, {}),
        ((), {"facts": GPU.model_copy(update={"name": "another"})}, {}),
        ((), {"exact_to": "base"}, {}),
        ((), {}, {"input": ("uniform",)}),
    ],
    ids=["unseen workload", "workload", "device", "exact", "values"],
)
def test_an_answer_depends_on_all_that_it_was_asked_under(
    tmp_path: Path, workloads: tuple[Workload, ...], settings: dict[str, Any], values: dict[str, tuple[str, ...]]
) -> None:
    one, other = Counting(tmp_path), Counting(tmp_path, *workloads, **settings)
    other.extend((), values)
    for evaluator in (one, other, other):
        evaluator.verify(build("mine"))
        evaluator.measure(passed("mine"), baseline="base")
    assert len(one.worked) == len(other.worked) == 2
    one.close(), other.close()


def test_a_short_contest_is_never_kept(tmp_path: Path) -> None:
    one = Counting(tmp_path)
    case = (SEEN[1], "cold")
    for number in (1, 2):
        assert one.compare_briefly(build("mine"), {"baseline": "base"}, [case]).seconds == number
    assert one.compare_briefly(build("mine"), {"baseline": "base"}).seconds == 3
    cases = [list(what.cases) for what in one.worked]
    assert cases == [[case], [case], [(SEEN[1], "cold"), (SEEN[1], "hot")]]
    one.close()


def test_who_is_the_baseline_or_has_failed_is_asked_no_more(tmp_path: Path) -> None:
    one = Counting(tmp_path)
    mine = passed("mine")
    failed = mine.failed(Outcome.INCORRECT, "off by one")
    for verdict, baseline in ((mine, "mine"), (failed, "base")):
        assert one.measure_other_contexts(verdict, baseline=baseline) is verdict
        assert one.draw_again(verdict, baseline=baseline) is verdict
    assert one.sanitize(failed) is failed
    assert one.tune(one.store.put("nothing open\n"), seconds=1).values == {}
    same = one.measure(mine, baseline="base", incumbent="mine")
    assert same.suite_incumbent == SAME and [what.request.rivals for what in one.worked] == [{"baseline": "base"}]
    one.close()


def test_who_is_wrong_on_a_fresh_draw_loses_all_that_it_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Counting(tmp_path)
    had = passed("mine").model_copy(update={"suite": SAME, "suite_incumbent": SAME, "suites_elsewhere": {"pdl": SAME}})
    monkeypatch.setattr(one, "_judge", lambda _question: Drawn(failure="draw 7 of 200: 9 times the tolerance"))
    found = one.draw_again(had, baseline="base")
    assert (found.outcome, found.reason) == (Outcome.INCORRECT, "draw 7 of 200: 9 times the tolerance")
    assert (found.suite, found.suite_incumbent, found.suites_elsewhere, found.timings) == (None, None, {}, ())
    one.close()


def test_a_tool_that_could_not_be_run_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, asked = Counting(tmp_path), []
    silent = Sanitized(reports=(Report(tool="memcheck", errors=0), Report(tool="racecheck", words="it is not here")))
    monkeypatch.setattr(one, "_judge", lambda what: asked.append(what) or silent)
    for number in (1, 2):
        assert one.sanitize(passed("mine")).passed and len(asked) == number
    unavailable = Readings(values={"unavailable": "it is not here"})
    monkeypatch.setattr(one, "_judge", lambda what: asked.append(what) or unavailable)
    number = len(one.probes(build("mine"), calls=False))
    assert number and one.probes(build("mine"), calls=False) and len(asked) == 2 + 2 * number
    one.close()


def test_the_sanitizer_sees_what_is_small_and_every_dtype(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the candidate's own process is gone by then: it would have the GPU's memory that the tool needs."""
    of = catalog.load("silu_and_mul")
    large = [
        Workload(axes={"tokens": 4096, "hidden": n}, dtype=t) for t in ("float16", "bfloat16") for n in (512, 1024)
    ]
    spec = of.spec.model_copy(update={"workloads": (*SEEN, *large, UNSEEN)})
    one = Evaluator(replace(of, spec=spec), "cuda", Store(tmp_path), facts=GPU, memory_bytes=80 << 30)
    seen: list[Any] = []

    def watch(*given: Any) -> tuple[Report, ...]:
        seen.extend([*given, list(dropped)])
        return (Report(tool="memcheck", errors=0),)

    dropped: list[str] = []
    monkeypatch.setattr(one.pool, "drop", dropped.append)
    monkeypatch.setattr("harness.tools.sanitizer.watch", watch)
    assert one.sanitize(passed("mine")).passed
    of_spec, of_build, workloads, device, say, gone = seen
    assert (of_spec, of_build, device, say, gone) == (spec, build("mine"), "cuda", one.say, ["mine"])
    assert {w.label for w in workloads} == {w.label for w in (*SEEN, UNSEEN, large[0], large[2])}
    one.close()


# --- what a session is told, and not ------------------------------------------------------------------------------------


def test_a_contest_is_of_the_case_that_was_asked_for(tmp_path: Path) -> None:
    with Evaluator(kernel(*SEEN, UNSEEN), "cpu", Store(tmp_path)) as one:
        for cache, on in (("hot", "alone"), ("cold", "plain")):
            held = one.open_comparison(SEEN[1], cache, on)  # type: ignore[arg-type]
            assert (held.kernel, held.workload, held.cache, held.context) == (one.kernel, SEEN[1], cache, on)
            assert held.layout.slots > 1 and held.size <= one.memory(held.size).size


def test_around_a_timed_call_stands_what_is_ours_or_nothing_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Counting(tmp_path)
    monkeypatch.setattr(one, "build", lambda name: build(name))
    ours = one.store.put(neighbours.BESIDE[one.device].read_text())
    assert one._neighbours() == Path(f"{ours}.so")
    broken = build("ours").model_copy(update={"ok": False, "log": "no such flag"})
    monkeypatch.setattr(one, "build", lambda _name: broken)
    with pytest.raises(RuntimeError, match=r"what stands around a timed call does not compile:\nno such flag"):
        one._neighbours()
    one.close()


# --- the bound of light ------------------------------------------------------------------------------------------------


class Lit(Evaluator):
    """The times of the three variants of the probe are scripted."""

    def __init__(self, folder: Path, built: bool = True) -> None:
        super().__init__(kernel(*SEEN, UNSEEN), "cpu", Store(folder))
        self.times: list[list[float]] = []
        self.asked: list[tuple[Any, ...]] = []
        self.built = built
        self.everywhere = Store(
            folder / "machine"
        )  # what other tests kept is not found, whether the machine was idle or not
        self.pool.ours = lambda name, *_: name  # type: ignore[method-assign, assignment, return-value]

    def build(self, candidate: str) -> Build:
        return build(candidate, "cpu").model_copy(
            update={"ok": self.built, "log": "" if self.built else "no such flag"}
        )

    def open_comparison(self, workload: Workload, cache: Any, on: Any = "plain", *, kernel: Any = None) -> Any:
        return SimpleNamespace(of=(workload.axes["read"], workload.axes["write"], cache, on, kernel.spec.name))

    def find_fastest_us(self, comparison: Any, arms: list[Any], blocks: int) -> float:
        assert blocks == 5 and all((one.worker, one.symbol) == ("light", one.name) for one in arms)
        assert len(arms) == len(self.times[0])
        self.asked.append(comparison.of)
        return min(self.times.pop(0))


def test_the_bound_is_the_fastest_way_to_move_a_workloads_bytes_and_is_kept_by_what_it_depends_on(
    tmp_path: Path,
) -> None:
    one, small, large = Lit(tmp_path), SEEN[0], SEEN[1]

    def bound(times: list[float], *case: Any, **how: Any) -> float:
        one.times, one.asked = [times], []
        found = one.sol_us(*case, **how)
        assert not times or not one.times
        return found

    assert bound([5.0, 4.0, 6.0], large, "cold") == 4
    assert one.asked == [(2 * 8 * 512 * 4 // 16, 8 * 512 * 4 // 16, "cold", "plain", "light")]
    assert bound([], large, "cold") == 4
    assert bound([3.0, 2.0, 9.0], large, "hot") == 2 and bound([8.0, 8.0, 7.0], small, "cold") == 7
    assert bound([9.0, 9.0, 9.0], large, "cold", "alone") == 9 and one.asked[0][3] == "alone"
    assert [bound([], *case) for case in ((large, "cold"), (large, "hot"), (small, "cold"))] == [4, 2, 7]
    # Measured once more, a busy moment is no bound, and a quiet one is.
    assert bound([7.0, 7.0, 7.0], large, "cold", again=True) == 4 and bound([], large, "cold") == 4
    assert bound([7.0, 3.0, 7.0], large, "cold", again=True) == 3 and bound([], large, "cold") == 3
    one.close()


def test_a_probe_that_does_not_compile_is_a_fault_of_ours(tmp_path: Path) -> None:
    one = Lit(tmp_path, built=False)
    with pytest.raises(RuntimeError, match=r"the speed-of-light probe does not compile:\nno such flag"):
        one.sol_us(SEEN[1], "hot")
    one.close()


# --- exactly the baseline's bits ---------------------------------------------------------------------------------------


@pytest.mark.skipif(bool(backends.get("cpu").why_unavailable()), reason="g++ is not installed")
def test_who_must_have_the_baselines_bits_and_errs_otherwise_is_refused(tmp_path: Path) -> None:
    of = kernel(*SEEN, UNSEEN)
    source = of.baseline("cpu")[1].read_text()
    rounded = source.replace("silu * to_float", "1.000001f * silu * to_float")  # a quarter of the tolerance
    assert rounded != source
    store = Store(tmp_path)
    baseline, same, other = (store.put(text) for text in (source, f"{source}// the same\n", rounded))
    with Evaluator(of, "cpu", store) as lenient:
        verdict = lenient.verify(lenient.build(other))
        assert verdict.passed, verdict.reason
        drawn = lenient.draw_again(verdict, baseline=baseline, count=16).draws
        assert (
            drawn is not None and drawn.count == 16 and drawn.bitwise < 16
        )  # zeros are equal, and what else is drawn is not
        assert 0 < drawn.baseline_error < drawn.error < 1
    with Evaluator(of, "cpu", store, exact_to=baseline) as strict:
        refused = strict.verify(strict.build(other))
        assert refused.outcome is Outcome.INCORRECT and "not the baseline's in every bit" in refused.reason
        assert strict.verify(strict.build(same)).passed and strict.verify(strict.build(baseline)).passed
