"""The only place that knows build -> verify -> measure.

An Evaluator answers by content: every answer is kept in the store under the hash of what was asked, so asking twice costs
nothing, and a resumed run re-evaluates nothing that was finished.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness import probes
from harness.judge import quick, search, verification
from harness.judge.comparisons import (
    EXACTLY_ONE,
    ComparisonRequest,
    OtherContexts,
    measure_other_contexts,
    measure_suite,
)
from harness.judge.search import Tuned
from harness.judge.session import EvaluationSession
from harness.judge.tunables import bake
from harness.judge.verification import Drawn
from harness.problems.pytorch import Problem
from harness.records import Build, Comparison, Outcome, Suite, Verdict
from harness.timing.sampling import ArmFailure
from harness.tools import sanitizer
from kernels.catalog import Kernel
from kernels.spec import Frozen, Workload

DRAWS = 200
"""Inputs that a winner meets beyond those of the checks: none wrong of so many excludes a failure rate of 1.5 %."""


class Evaluator(EvaluationSession):
    """Judges sources for one kernel on one device. Order of the calls, for a source of which `store.put` gave the hash:

        build(candidate)                         -> Build     a failed one too: its log says why
        verify(build)                            -> Verdict   PASSED with checks, or what is wrong
        tune(candidate, seconds=...)             -> Tuned     optional: the best of its open integers, a new candidate
        measure(verdict, baseline=, incumbent=)  -> Verdict   PASSED only: with timings and the suite's comparison
        probes(build), sanitize(verdict)                      optional: what bounds it; compute-sanitizer on a GPU
        verify and measure with held_out=True                 last, once, for the winner

    `extend` adds workloads and values to check, before them. A source that fails is a verdict; what is raised is a fault of
    ours, of the spec (KernelError) or of the machine (MissingTool). Not safe for several threads at once, `build` excepted.
    Use as a context manager: closing ends the workers.

    What is asked is in the public methods, with its key in the store; the work is in the methods that they call where
    nothing is kept (`_made`, `_verify`, `_measure`, ...), and an engine that works elsewhere answers those
    (harness/engines).
    """

    width = 1
    """Sources that can be judged side by side."""
    waited_s = 0.0
    """Seconds so far in which a question only waited for a device that others used."""

    def verify(self, build: Build, *, held_out: bool = False, only: Workload | None = None) -> Verdict:
        """Correctness on the suite: PASSED with checks and no timings, or the candidate's failure.

        `only` one workload of the visible suite: raises ValueError where it is not in it.
        """
        workloads = tuple(w for w in self.suite(held_out=held_out) if only in (None, w))
        if not workloads:
            raise ValueError(
                f"{only.label if only else self.spec.name}: in the suite already, or too large for this device"
            )
        key = self.key("verify", build.candidate, build.backend, str(held_out), *([only.label] if only else []))
        return self.store.once(
            "verdict", key, Verdict, lambda: self._verify(build, workloads, held_out=held_out, only=only)
        )

    def _verify(
        self, build: Build, workloads: tuple[Workload, ...], *, held_out: bool, only: Workload | None
    ) -> Verdict:
        return verification.verify_build(self, build, workloads)

    def measure(
        self,
        verdict: Verdict,
        *,
        baseline: str,
        incumbent: str | None = None,
        held_out: bool = False,
        contests: int = 1,
        again: bool = False,
    ) -> Verdict:
        """The PASSED verdict with timings against the baseline (and the incumbent), interleaved; `again` times it anew.

        `contests`: how many of each workload in each cache state, every one in fresh processes, that count as one.

        A candidate that fails while it is timed (crashes, is wrong when nobody announced a check, has a clock that
        disagrees with ours, is faster than light) gets that as its verdict. Raises ValueError for a verdict that has
        not PASSED and RuntimeError where the baseline fails.
        """
        if not verdict.passed or verdict.build is None:
            raise ValueError(f"only a PASSED candidate is timed; this one is {verdict.outcome}")
        if incumbent == verdict.candidate != baseline:  # a plan has led to the incumbent again
            alone = self.measure(verdict, baseline=baseline, held_out=held_out, contests=contests, again=again)
            same = Suite(speedup=EXACTLY_ONE, comparison=Comparison.SAME)
            return alone.model_copy(update={"suite_incumbent": same}) if alone.passed else alone
        names = [baseline, incumbent or "", str(held_out), *([str(contests)] if contests > 1 else [])]
        names += ["again"] if again else []
        key = self.key("measure", verdict.candidate, verdict.build.backend, *names)
        request = ComparisonRequest(verdict.build, {"baseline": baseline})
        if incumbent and incumbent != baseline:
            request.rivals["incumbent"] = incumbent
        return self.store.once(
            "verdict", key, Verdict,
            lambda: self._measure(verdict, request, held_out=held_out, contests=contests, again=again),
        )  # fmt: skip

    def _measure(
        self, verdict: Verdict, request: ComparisonRequest, *, held_out: bool, contests: int, again: bool
    ) -> Verdict:
        return measure_suite(self, request, verdict, held_out=held_out, contests=contests)

    def compare_briefly(
        self, build: Build, rivals: dict[str, str], cases: Sequence[quick.Case] = (), *, seconds: float = 0.0
    ) -> quick.Quick:
        """A short, unofficial comparison (harness/judge/quick.py) at those cases, or at two of the visible suite.

        One pass over them, or as many as `seconds` allow until every comparison says something.
        """
        return self._compare_briefly(
            ComparisonRequest(build, rivals), tuple(cases) or tuple(quick.choose_cases(self)), seconds
        )

    def _compare_briefly(
        self, request: ComparisonRequest, cases: tuple[quick.Case, ...], seconds: float
    ) -> quick.Quick:
        return quick.compare_briefly(self, request, cases, seconds)

    def admits(self, workload: Workload) -> bool:
        """Whether the operation has that size: rows of pairs have no odd one."""
        try:
            self._admit((workload,), {})
        except ValueError:
            return False
        return True

    def measure_other_contexts(self, verdict: Verdict, *, baseline: str) -> Verdict:
        """The measured verdict with the times of the visible suite in other timing contexts (contests.ELSEWHERE), for the report; a
        candidate that fails there has that as its verdict.

        On a CPU the verdict as it is: nobody launches there. Raises as `measure` does.
        """
        if self.device != "cuda" or not verdict.passed or verdict.candidate == baseline:
            return verdict
        key = self.key("elsewhere", verdict.candidate, baseline)
        try:
            found = self.store.once(
                "elsewhere", key, OtherContexts, lambda: self._measure_other_contexts(verdict, baseline)
            )
        except ArmFailure as fault:
            if fault.arm != "candidate":
                raise RuntimeError(f"the {fault.arm} failed in other company: {fault.reason}") from None
            return verdict.failed(fault.outcome, f"in other company: {fault.reason}")
        return verdict.model_copy(update={"elsewhere": found.timings, "suites_elsewhere": found.suites})

    def _measure_other_contexts(self, verdict: Verdict, baseline: str) -> OtherContexts:
        assert verdict.build is not None
        return measure_other_contexts(self, ComparisonRequest(verdict.build, {"baseline": baseline}))

    def draw_again(self, verdict: Verdict, *, baseline: str, count: int = DRAWS) -> Verdict:
        """The PASSED verdict after `count` more independent draws over both suites, beside the baseline on the same inputs.

        INCORRECT where one is wrong. On a GPU also what the launch path takes the host.
        """
        if not verdict.passed or verdict.build is None or verdict.candidate == baseline:
            return verdict
        key = self.key("draws", verdict.candidate, baseline, str(count))
        build = verdict.build
        kept = self.store.once("draws", key, Drawn, lambda: self._draw(build, baseline, count))
        if kept.failure:
            return verdict.failed(Outcome.INCORRECT, kept.failure)
        return verdict.model_copy(update={"draws": kept.draws, "launch": kept.launch})

    def _draw(self, build: Build, baseline: str, count: int) -> Drawn:
        return verification.draws(self, build, self.build(baseline), count)

    def probes(self, build: Build, *, calls: bool = True) -> dict[str, dict[str, str]]:
        """What bounds a build: probe's name -> readings, or {"unavailable": why}. Kept, so that asking again says the same.

        Without `calls` only what is read without running it.
        """
        found: dict[str, dict[str, str]] = {}
        for name in probes.names(calls=calls, device=self.device):
            key = self.key("probe", name, build.candidate, build.backend)
            stores = [self.store]
            if self.is_ours(build.candidate) and self.everywhere is not None:
                stores.append(self.everywhere)
            readings = next(
                (kept for store in stores if (kept := store.find_record("probe", key, Readings)) is not None), None
            )
            if readings is None:
                readings = self._readings(name, build)
            if "unavailable" not in readings.values:
                for store in stores:
                    store.keep("probe", key, readings)
            found[name] = dict(readings.values)
        return found

    def _readings(self, name: str, build: Build) -> Readings:
        timed = [workload for workload in self.suite() if workload.timed]
        ends = [*timed[:1], *timed[1:][-1:]]  # the smallest and the largest
        return Readings(values=probes.read(name, build, self.facts, self.spec, ends))

    def sanitize(self, verdict: Verdict) -> Verdict:
        """The PASSED verdict once compute-sanitizer has watched the candidate: INCORRECT where it finds an error.

        On a CPU the verdict as it is. Where a tool cannot be run the verdict stays, with a warning that says why.
        """
        if self.device != "cuda" or not verdict.passed or verdict.build is None:
            return verdict
        key = self.key("sanitizer", verdict.candidate, verdict.build.backend)
        kept = self.store.find_record("sanitizer", key, Sanitized)
        if kept is None:
            kept = self._watch(verdict.build)
            if all(report.errors is not None for report in kept.reports):
                self.store.keep("sanitizer", key, kept)
        self.measured["compute-sanitizer"] = sanitizer.describe(kept.reports)
        return sanitizer.judge(verdict, kept.reports)

    def _watch(self, build: Build) -> Sanitized:
        self.pool.drop(build.candidate)
        return Sanitized(reports=sanitizer.watch(self.spec, build, self._sanitize(), self.device, self.say))

    def _sanitize(self) -> list[Workload]:
        """What compute-sanitizer sees: the small workloads of both suites, and of each dtype at least one."""
        everything = sorted((*self.suite(), *self.suite(held_out=True)), key=self.moved_bytes)
        first = {workload.dtype: workload for workload in reversed(everything)}
        return [w for w in everything if self.moved_bytes(w) <= verification.SMALL_BYTES or w is first[w.dtype]]

    def tune(self, candidate: str, *, seconds: float) -> Tuned:
        """Search the integers that the candidate leaves open, by building and measuring variants, for about `seconds`."""
        source = self.store.get(candidate)
        if not search.find_open_tunables(source):
            return Tuned(candidate=candidate, reason="nothing is left open")
        key = self.key("tune", candidate)
        if (kept := self.store.find_record("tuned", key, Tuned)) is not None:
            return kept
        tuned = self._search(candidate, seconds)
        self.store.put(bake(source, tuned.values))
        self.store.keep("tuned", key, tuned)
        return tuned

    def _search(self, candidate: str, seconds: float) -> Tuned:
        return search.search(self, self.store.get(candidate), seconds)


class Readings(Frozen):
    """What a probe read of one build."""

    values: dict[str, str]


class Sanitized(Frozen):
    """What compute-sanitizer said of one build."""

    reports: tuple[sanitizer.Report, ...]


def measure_against(evaluator: Evaluator, problem: Kernel, verdict: Verdict, mode: str) -> Verdict:
    """The verdict with its times against torch.compile's in `against`, or with a note of why there are none.

    `mode`: a key of problems.COMPILE_MODES.
    """
    if not verdict.passed:
        return verdict
    assert isinstance(problem, Problem)  # nothing else has modes
    compiled = evaluator.store.put(problem.compiled_source(mode))
    evaluator.say(f"timing against torch.compile ({mode})")
    built = evaluator.build(compiled)
    # A baseline need not be right at other sizes, and each is a compilation of half a minute.
    for workload in [one for one in evaluator.suite() if one.timed]:
        first = evaluator.verify(built, only=workload)
        if not first.passed:
            why = " ".join(first.reason.split())[:300]
            note = f"torch.compile ({mode}) is no baseline here: {first.outcome}: {why}"
            return verdict.model_copy(update={"notes": (*verdict.notes, note)})
    untimed = verdict.model_copy(update={"timings": (), "suite": None, "suite_incumbent": None, "against": {}})
    try:
        timed = evaluator.measure(untimed, baseline=compiled)
    except RuntimeError as fault:
        return verdict.model_copy(update={"notes": (*verdict.notes, f"torch.compile ({mode}): {fault}")})
    if not timed.passed or timed.suite is None:
        return timed
    return verdict.model_copy(update={"against": {**verdict.against, mode: timed.suite}})
