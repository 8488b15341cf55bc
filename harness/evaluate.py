"""The only place that knows build -> verify -> measure.

An Evaluator answers by content: every answer is kept in the store under the hash of what was asked, so asking twice costs
nothing, and a resumed run re-evaluates nothing that was finished.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from types import ModuleType

from harness import backends, machine, probes, questions
from harness.checks.buffers import LaidOutAnewError
from harness.checks.fitting import retry_in_room
from harness.judge import quick, search
from harness.judge.comparisons import EXACTLY_ONE
from harness.judge.of_problems import ProblemRules
from harness.judge.rules import KernelRules
from harness.judge.search import Tuned
from harness.judge.session import EvaluationSession
from harness.judge.tunables import bake
from harness.problems.pytorch import Problem
from harness.processes import scratch
from harness.questions import Answer, EvaluationQuestion
from harness.records import Build, Comparison, DeviceFacts, Outcome, Suite, Verdict
from harness.store import Store, digest
from harness.tools import sanitizer
from kernels import catalog
from kernels.catalog import KernelError
from kernels.spec import Workload

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

    These methods ask questions (harness/questions.py), as anybody may: `ask` finds the answer in the store or has it judged, here,
    or elsewhere by an Evaluator of an engine (harness/remote.py).
    """

    waited_s = 0.0
    """Seconds so far in which a question only waited for a device that others used."""

    def ask(self, question: EvaluationQuestion[Answer]) -> Answer:
        """The answer that is kept, or a new one. Raises what the question's `answer` raises."""
        if not question.kept_as:
            return self._judge(question)
        kind, key, record = question.kept_as, self.key(*question.key), question.record()
        everywhere = self.everywhere if question.is_kept_by_machine(self) else None
        if (kept := machine.find_record(self.store, everywhere, kind, key, record)) is not None:
            return kept
        answer = self._judge(question)
        if question.is_cacheable(answer):
            for store in filter(None, (self.store, everywhere)):
                store.keep(kind, key, answer)
        return answer

    def _judge(self, question: EvaluationQuestion[Answer]) -> Answer:
        """Where the device's memory does not suffice once more, with no case, arena or candidate kept in it."""

        def make_room() -> None:
            self.pool.close()
            self.cases.forget()

        def answer() -> Answer:
            try:
                return question.answer(self)
            except LaidOutAnewError:  # by the start of a process, which lives now
                return question.answer(self)

        return retry_in_room(answer, make_room)

    @cached_property
    def rules(self) -> KernelRules:
        """The one place that asks what kind of kernel is judged."""
        return ProblemRules(self, self.kernel) if isinstance(self.kernel, Problem) else KernelRules(self)

    # --- what a session wants to know ----------------------------------------------------------------------------

    def toolchain(self, module: ModuleType) -> tuple[str, str]:
        if (known := self.toolchains.get(module.__name__)) is not None:
            return known
        facts = self.ask(questions.CheckToolchain(backend=backends.name_of(module)))
        return facts.missing, facts.identity

    def compile_into(self, candidate: str, module: ModuleType, into: Path) -> Build:
        brought = self.brought(candidate, module)
        return self.ask(
            questions.Compile(
                candidate=candidate, backend=backends.name_of(module), entry=self._entry(candidate, module), flags=brought.flags,
                include=brought.include, headers={name: digest(text) for name, text in brought.headers.items()},
                into=str(into),
            )
        )  # fmt: skip

    def measure_facts(self) -> DeviceFacts:
        if self._measured_facts is None:
            self._measured_facts = self.ask(questions.MeasureRoofs())
        return self._measured_facts

    # --- the suite -----------------------------------------------------------------------------------------------

    def extend(self, workloads: tuple[Workload, ...], values: dict[str, tuple[str, ...]]) -> None:
        """Add what the tester proposed; nothing can be removed. Raises ValueError naming what the spec does not allow."""
        names = {tensor.name for tensor in self.spec.inputs}
        for name in values:
            if name not in names:
                inputs = ", ".join(sorted(names))
                raise ValueError(f"values are proposed for {name!r}, which is no input (inputs: {inputs})")
        known = {w.label for w in self.spec.workloads}
        added = tuple({w.label: w for w in workloads if w.label not in known}.values())
        if any(w.weight for w in self.spec.workloads):  # nobody knows how often a program would call these
            added = tuple(w.model_copy(update={"timed": False}) for w in added)
        proposed = self.spec.model_copy(update={"workloads": (*self.spec.workloads, *added)})
        type(self.spec).model_validate(proposed.model_dump())
        for workload in added:
            if reason := self._too_large(workload):
                raise ValueError(reason)
        if added and (reason := self.ask(questions.Admit(workloads=added, values=values)).reason):
            raise ValueError(reason)
        self.extra_workloads, self.extra_values = added, dict(values)

    def admits(self, workload: Workload) -> bool:
        """Whether the operation has that size: rows of pairs have no odd one."""
        return not self.ask(questions.Admit(workloads=(workload,), values={})).reason

    # --- a candidate ---------------------------------------------------------------------------------------------

    def verify(self, build: Build, *, held_out: bool = False, only: Workload | None = None) -> Verdict:
        """Correctness on the suite: PASSED with checks and no timings, or the candidate's failure.

        `only` one workload of the visible suite: raises ValueError where it is not in it.
        """
        question = questions.Verify(build=build, held_out=held_out, only=only)
        if not question.workloads(self):
            asked = only.label if only else self.spec.name
            raise ValueError(f"{asked}: in the suite already, or too large for this device")
        return self.ask(question)

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
        return self.ask(
            questions.MeasureSuite(
                build=verdict.build, verdict=verdict.model_copy(update={"build": None}), baseline=baseline,
                incumbent=incumbent or "", held_out=held_out, contests=contests, again=again,
            )
        )  # fmt: skip

    def compare_briefly(
        self, build: Build, rivals: dict[str, str], cases: Sequence[quick.Case] = (), *, seconds: float = 0.0
    ) -> quick.Quick:
        """A short, unofficial comparison (harness/judge/quick.py) at those cases, or at the ends of the visible suite.

        One series at each, or as many as `seconds` allow until every comparison says something. `rivals`: `baseline`, perhaps
        `incumbent`, then `other 2`, `other 3` and so on.
        """
        return self.ask(
            questions.CompareBriefly(
                build=build, baseline=rivals["baseline"], incumbent=rivals.get("incumbent", ""),
                others=tuple(other for name, other in rivals.items() if name not in ("baseline", "incumbent")),
                cases=tuple(cases) or tuple(quick.choose_cases(self)), seconds=seconds,
            )
        )  # fmt: skip

    def measure_other_contexts(self, verdict: Verdict, *, baseline: str) -> Verdict:
        """The measured verdict with the times of the visible suite in other timing contexts (comparisons.ELSEWHERE), for the report; a
        candidate that fails there has that as its verdict.

        On a CPU the verdict as it is: nobody launches there. Raises as `measure` does.
        """
        if self.device != "cuda" or not verdict.passed or verdict.build is None or verdict.candidate == baseline:
            return verdict
        found = self.ask(questions.MeasureContexts(build=verdict.build, baseline=baseline))
        if found.outcome is not None:
            return verdict.failed(found.outcome, found.reason)
        return verdict.model_copy(update={"elsewhere": found.timings, "suites_elsewhere": found.suites})

    def draw_again(self, verdict: Verdict, *, baseline: str, count: int = DRAWS) -> Verdict:
        """The PASSED verdict after `count` more independent draws over both suites, beside the baseline on the same inputs.

        INCORRECT where one is wrong. On a GPU also what the launch path takes the host.
        """
        if not verdict.passed or verdict.build is None or verdict.candidate == baseline:
            return verdict
        found = self.ask(questions.Draw(build=verdict.build, baseline=baseline, count=count))
        if found.failure:
            return verdict.failed(Outcome.INCORRECT, found.failure)
        return verdict.model_copy(update={"draws": found.draws, "launch": found.launch})

    def probes(self, build: Build, *, calls: bool = True) -> dict[str, dict[str, str]]:
        """What bounds a build: probe's name -> readings, or {"unavailable": why}. Kept, so that asking again says the same.

        Without `calls` only what is read without running it.
        """
        found: dict[str, dict[str, str]] = {}
        for name in probes.names(calls=calls, device=self.device):
            why = probes.why_not(name, found)
            question = questions.ReadProbe(build=build, probe=name)
            found[name] = {"unavailable": why} if why else dict(self.ask(question).values)
        return found

    def sanitize(self, verdict: Verdict) -> Verdict:
        """The PASSED verdict once compute-sanitizer has watched the candidate: INCORRECT where it finds an error.

        On a CPU the verdict as it is. Where a tool cannot be run the verdict stays, with a warning that says why.
        """
        return self.sanitize_beside(verdict, lambda same: same)

    def sanitize_beside(self, verdict: Verdict, work: Callable[[Verdict], Verdict]) -> Verdict:
        """`sanitize` of what `work` makes of the verdict, both at once; nothing is timed before the tools have ended."""
        if self.device != "cuda" or not verdict.passed or verdict.build is None:
            return work(verdict)
        question, told = questions.Sanitize(build=verdict.build), Future[questions.Sanitized]()

        def ask() -> None:
            try:
                told.set_result(self.ask(question))
            except BaseException as fault:  # noqa: BLE001, it is raised where the answer is asked for
                told.set_exception(fault)

        self.pool.drop(verdict.candidate)
        self.pool.beside.append(told)
        threading.Thread(target=ask, name="sanitizer", daemon=True).start()
        found = work(verdict)
        reports = told.result().reports
        self.measured["compute-sanitizer"] = sanitizer.describe(reports)
        return sanitizer.judge(found, reports) if found.passed else found

    def build_ahead(self, candidate: str = "") -> None:
        """Build what is going to be asked for, where this machine has cores on which nothing is timed: the candidate and beside it the variants that a
        search of its open integers tries first, or without one what every run needs. For `begin_building`: it may end at any time.
        """
        if search.has_idle_cores(self):
            wanted = [candidate, *search.first_variants(self, candidate)] if candidate else self.harness_sources
            self.build_beside(wanted)
        elif candidate:
            self.build(candidate)

    def build_beside(self, sources: Sequence[str]) -> None:
        """Build sources, by their hashes, side by side."""
        with ThreadPoolExecutor(len(sources)) as pool:
            list(pool.map(self.build, sources))

    def tune(self, candidate: str, *, seconds: float) -> Tuned:
        """Search the integers that the candidate leaves open, by building and measuring variants, for about `seconds`."""
        source = self.store.get(candidate)
        if not search.find_open_tunables(source):
            return Tuned(candidate=candidate, reason="nothing is left open")
        tuned = self.ask(questions.Tune(candidate=candidate, seconds=seconds))
        self.store.put(bake(source, tuned.values))
        return tuned


def begin_building(
    evaluator: Evaluator, candidate: str = "", make: Callable[[], str] | None = None, *, variants: bool = True
) -> threading.Thread:
    """Begin `build_ahead` of the candidate in a thread that keeps silent on failure: whoever asks for a build next finds out, and says so.

    `make` makes a source there and gives its name, or "" where there is none. Without `variants` nothing else of a candidate is built: nobody is going
    to search its open integers.
    """

    def work() -> None:
        name = make() if make else candidate
        if variants and (name or not make):
            evaluator.build_ahead(name)
        elif name:
            evaluator.build(name)

    return _begin(work, "build")


def begin_first_builds(name: str, baseline: str | None, facts: Callable[[], DeviceFacts]) -> threading.Thread:
    """Begin to build for that GPU or CPU what a run of the kernel asks for first, before there is its evaluator: that one then waits for what this
    machine keeps, or finds it. Keeps silent on failure. `baseline`: which of the kernel's, "" for its first, None for none."""

    def work() -> None:
        if machine.store() is None:
            return
        folder = scratch.folder("first")
        try:
            kernel, on = catalog.load(name), facts()
            with Evaluator(kernel, on.device, Store(folder), facts=on, memory_bytes=1 << 50) as evaluator:
                wanted = list(evaluator.harness_sources)
                if baseline is not None:
                    text = kernel.baseline(on.device, baseline or None)[1].read_text()
                    wanted.insert(0, evaluator.store.put(text))
                evaluator.build_beside(wanted)
        finally:
            scratch.remove_tree(folder)

    return _begin(work, "first builds")


def _begin(work: Callable[[], None], name: str) -> threading.Thread:
    """A thread that does the work and keeps silent on failure."""

    def silently() -> None:
        with contextlib.suppress(BaseException):  # a reference, and what it imports, may raise anything
            work()

    thread = threading.Thread(target=silently, name=name, daemon=True)
    thread.start()
    return thread


def measure_against(evaluator: Evaluator, verdict: Verdict, mode: str) -> Verdict:
    """The verdict with its times against torch.compile's in `against`, or with a note of why there are none.

    `mode`: a key of problems.COMPILE_MODES.
    """
    if not verdict.passed:
        return verdict
    try:
        compiled = evaluator.store.put(evaluator.rules.compiled_source(mode))
    except KernelError as fault:
        return verdict.model_copy(update={"notes": (*verdict.notes, f"torch.compile ({mode}): {fault}")})
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
