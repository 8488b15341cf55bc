"""What can be asked of an Evaluator: one frozen record a question, answered in this process (harness/evaluate.py) or by a
worker of a cluster (harness/remote.py).

A new question is a class here, and nothing else: its fields are what is asked, `answer` is the work, annotated with the record that it
gives. What more can be said of it, how its answer is kept or what becomes of it where a worker dies, has a default. It is asked by
`evaluator.ask(...)` here and on a cluster alike: fields and answer travel as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar, get_type_hints

from pydantic import BaseModel, Field

from harness import backends, probes
from harness.checks.drawing import distributions
from harness.judge import comparisons, draws, quick, search, staging, verification
from harness.judge.bands import Ratios
from harness.judge.builds import Brought, BuildPlace, compile_build, place_build
from harness.judge.comparisons import OtherContexts
from harness.judge.draws import Drawn
from harness.judge.quick import Quick
from harness.judge.search import Tuned, VariantRatios
from harness.judge.series import Case, ComparisonRequest
from harness.judge.session import EvaluationSession, MissingTool
from harness.judge.tunables import bake
from harness.records import Build, DeviceFacts, Outcome, Verdict
from harness.timing import roofs
from harness.timing.sampling import ArmFailure
from harness.tools import sanitizer
from kernels.catalog import KernelError
from kernels.spec import Frozen, Workload

Answer = TypeVar("Answer", bound=BaseModel)
KINDS: dict[str, type[EvaluationQuestion]] = {}
"""Every question by the name of its class."""


class EvaluationQuestion(Frozen, Generic[Answer]):
    """About one kernel, by whose session it is answered."""

    timed: ClassVar[bool] = True
    """Whether it is answered on a device that nothing else uses meanwhile."""
    kept_as: ClassVar[str] = ""
    """Kind of record under which its answer is in the store; "": it is worked out every time."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        KINDS[cls.__name__] = cls

    @classmethod
    def record(cls) -> type[Answer]:
        """What it is answered with."""
        return get_type_hints(cls.answer)["return"]

    @property
    def key(self) -> tuple[str, ...]:
        """Parts of the key of its answer in the store, beside the kernel, its suite and the device."""
        return ()

    @property
    def candidates(self) -> tuple[str, ...]:
        """Hashes of the sources that it is about, itself first: whoever answers has their builds."""
        return ()

    @property
    def attachments(self) -> set[str]:
        """Hashes of other contents of the store that whoever answers needs."""
        return set()

    def needs_device(self, _session: EvaluationSession) -> bool:
        return True

    def is_kept_by_machine(self, _session: EvaluationSession) -> bool:
        """Whether its answer is kept in the store of this machine, for all runs, and not in the run's alone."""
        return False

    def is_cacheable(self, _answer: Answer) -> bool:
        """Whether that answer is kept; not what another time may be otherwise, such as a tool that was missing."""
        return True

    def localize(self, _session: EvaluationSession) -> Self:
        """The question about the same build as that session's store has it."""
        return self

    def answer(self, session: EvaluationSession) -> Answer:
        """Raises KernelError, MissingTool, ValueError and RuntimeError, for faults that are not the candidate's."""
        raise NotImplementedError

    def answer_in_parts(
        self, _session: EvaluationSession, _ask: Callable[[EvaluationQuestion], Any], _idle: Callable[[], int]
    ) -> Answer | None:
        """The answer, put together here from questions that several devices answer at once; None: one device gives it whole.

        `_ask` sends one such question; `_idle` counts the devices that have nothing to do.
        """
        return None

    def import_answer(self, answer: Answer, _files: dict[str, bytes]) -> Answer:
        """The answer of another machine with paths of this one; `_files`: contents that came with it."""
        return answer

    def answer_after_crashes(self, _session: EvaluationSession, fault: str) -> Answer:
        """The answer where every worker that tried it died. Raises RuntimeError where that says nothing of the candidate."""
        raise RuntimeError(f"{type(self).__name__}: {fault}")


# --- of no kernel -------------------------------------------------------------------------------------------------------


class KernelIndependent(EvaluationQuestion[Answer], Generic[Answer]):
    """About no kernel: it needs a place to build in, and no session."""

    timed = False

    def answer(self, session: BuildPlace) -> Answer:
        raise NotImplementedError


class ToolchainFacts(Frozen):
    missing: str
    """Why sources of that backend cannot be built, or ""."""
    identity: str
    """Compiler and flags that build them."""


class CheckToolchain(KernelIndependent[ToolchainFacts]):
    backend: str

    def answer(self, session: BuildPlace) -> ToolchainFacts:
        module = backends.get(self.backend)
        missing = module.why_unavailable()
        return ToolchainFacts(missing=missing, identity="" if missing else module.identity(session.facts))


class Compile(KernelIndependent[Build]):
    """Has no `kept_as`: EvaluationSession.build keeps builds by toolchain and flags, for all suites."""

    candidate: str
    backend: str
    entry: dict[str, str]
    flags: tuple[str, ...] = ()
    """The kernel's own, its include folders, and its headers, path -> sha256."""
    include: tuple[str, ...] = ()
    headers: dict[str, str] = Field(default_factory=dict)
    into: str = Field(default="", exclude=True)
    """The folder that it is built into, which is another one everywhere."""

    @property
    def candidates(self) -> tuple[str, ...]:
        return (self.candidate,)

    @property
    def attachments(self) -> set[str]:
        return {self.candidate, *self.headers.values()}

    def answer(self, session: BuildPlace) -> Build:
        module = backends.get(self.backend)
        if missing := module.why_unavailable():
            raise MissingTool(missing)
        brought = Brought(self.flags, self.include, {name: session.content(one) for name, one in self.headers.items()})
        text = session.content(self.candidate).decode()
        return compile_build(self.candidate, text, module, Path(self.into), session.facts, brought, **self.entry)

    def import_answer(self, answer: Build, files: dict[str, bytes]) -> Build:
        return place_build(answer, Path(self.into), files)

    def answer_after_crashes(self, _session: EvaluationSession, fault: str) -> Build:
        return Build(candidate=self.candidate, backend=self.backend, ok=False, log=f"error: {fault}")


# --- of a kernel --------------------------------------------------------------------------------------------------------


class Admission(Frozen):
    reason: str = ""
    """Why the operation does not have such a size, or ""."""


class Admit(EvaluationQuestion[Admission]):
    """Whether reference and input generators take those sizes: an operation on pairs, say, has no odd row length."""

    workloads: tuple[Workload, ...]
    values: dict[str, tuple[str, ...]]

    def answer(self, session: EvaluationSession) -> Admission:
        try:
            for workload in self.workloads:
                session.cases.get(workload, distributions(session.spec, self.values)[0], self.values)
        except KernelError as error:
            return Admission(reason=str(error))
        return Admission()

    def answer_after_crashes(self, _session: EvaluationSession, fault: str) -> Admission:
        return Admission(reason=f"{', '.join(workload.label for workload in self.workloads)}: {fault}")


class MeasureRoofs(EvaluationQuestion[DeviceFacts]):
    """What the device reaches at most; kept by the device alone."""

    def answer(self, session: EvaluationSession) -> DeviceFacts:
        return roofs.measure_roofs(session)


class Tune(EvaluationQuestion[Tuned]):
    kept_as = "tuned"
    candidate: str
    seconds: float

    @property
    def key(self) -> tuple[str, ...]:
        return "tune", self.candidate

    @property
    def candidates(self) -> tuple[str, ...]:
        return (self.candidate,)

    def answer(self, session: EvaluationSession) -> Tuned:
        return search.search(session, session.store.get(self.candidate), self.seconds)

    def answer_in_parts(
        self, session: EvaluationSession, ask: Callable[[EvaluationQuestion], Any], idle: Callable[[], int]
    ) -> Tuned | None:
        def measure(
            _session: EvaluationSession,
            _source: str,
            variants: Sequence[dict[str, int]],
            cases: Sequence[Case],
            blocks: int,
        ) -> list[Ratios | None]:
            built = self._build(session, variants) if session.builds_apart else []
            count = max(1, min(idle(), len(variants)))

            def part(first: int) -> tuple[Ratios | None, ...]:
                one = MeasureVariants(
                    candidate=self.candidate, variants=tuple(variants[first::count]), cases=tuple(cases), blocks=blocks,
                    built=tuple(built[first::count]),
                )  # fmt: skip
                return ask(one).rows

            with ThreadPoolExecutor(count) as pool:
                parts = list(pool.map(part, range(count)))
            return [parts[index % count][index // count] for index in range(len(variants))]

        return search.search(session, session.store.get(self.candidate), self.seconds, measure, lambda: max(1, idle()))

    def _build(self, session: EvaluationSession, variants: Sequence[dict[str, int]]) -> list[str]:
        """Hashes of the variants' texts, built side by side."""
        source = session.store.get(self.candidate)
        names = [session.store.put(bake(source, values)) for values in variants]
        with ThreadPoolExecutor(len(names)) as pool:
            list(pool.map(session.build, names))
        return names

    def answer_after_crashes(self, session: EvaluationSession, fault: str) -> Tuned:
        as_it_came = search.find_open_tunables(session.store.get(self.candidate))
        return Tuned(candidate=self.candidate, values={one.name: one.value for one in as_it_came}, reason=fault)


class MeasureVariants(EvaluationQuestion[VariantRatios]):
    """A part of a search: some variants of a source against it, on one device."""

    candidate: str
    variants: tuple[dict[str, int], ...]
    cases: tuple[Case, ...]
    blocks: int
    built: tuple[str, ...] = ()
    """Hashes of the variants' texts that are built already, by whoever asks."""

    @property
    def candidates(self) -> tuple[str, ...]:
        return (self.candidate, *self.built)

    def answer(self, session: EvaluationSession) -> VariantRatios:
        source = session.store.get(self.candidate)
        return VariantRatios(rows=tuple(search.measure_ratios(session, source, self.variants, self.cases, self.blocks)))

    def answer_after_crashes(self, _session: EvaluationSession, fault: str) -> VariantRatios:
        return VariantRatios(rows=(None,) * len(self.variants), fault=fault)


# --- of a build ---------------------------------------------------------------------------------------------------------


class AboutBuild(EvaluationQuestion[Answer], Generic[Answer]):
    build: Build

    @property
    def candidates(self) -> tuple[str, ...]:
        return (self.build.candidate,)

    def localize(self, session: EvaluationSession) -> Self:
        return self.model_copy(update={"build": session.build(self.build.candidate)})

    def import_answer(self, answer: Answer, _files: dict[str, bytes]) -> Answer:
        has = "build" in type(answer).model_fields
        return answer.model_copy(update={"build": self.build} if has else {})


class AgainstBaseline(AboutBuild[Answer], Generic[Answer]):
    """A build is compared with the baseline's."""

    baseline: str
    """Hash of the baseline's source."""

    @property
    def rivals(self) -> dict[str, str]:
        return {"baseline": self.baseline}

    @property
    def candidates(self) -> tuple[str, ...]:
        return (self.build.candidate, *self.rivals.values())

    @property
    def request(self) -> ComparisonRequest:
        return ComparisonRequest(self.build, self.rivals)


class AgainstRivals(AgainstBaseline[Answer], Generic[Answer]):
    """A build is compared with the baseline's and the incumbent's."""

    incumbent: str
    """Hash of the incumbent's source, or ""."""

    @property
    def rivals(self) -> dict[str, str]:
        return super().rivals | ({} if self.incumbent in ("", self.baseline) else {"incumbent": self.incumbent})


class Verify(AboutBuild[Verdict]):
    kept_as = "verdict"
    held_out: bool
    only: Workload | None = None
    """One workload of the suite."""

    @property
    def key(self) -> tuple[str, ...]:
        only = [self.only.label] if self.only else []
        return "verify", self.build.candidate, self.build.backend, str(self.held_out), *only

    def workloads(self, session: EvaluationSession) -> tuple[Workload, ...]:
        return tuple(w for w in session.suite(held_out=self.held_out) if self.only in (None, w))

    def needs_device(self, session: EvaluationSession) -> bool:
        return self.build.ok or session.rules.judges_failed_builds  # nothing is run for a failed build

    def answer(self, session: EvaluationSession) -> Verdict:
        return verification.verify_build(session, self.build, self.workloads(session))

    def answer_after_crashes(self, session: EvaluationSession, fault: str) -> Verdict:
        return verification.conclude(session, self.build, Outcome.RUNTIME_ERROR, fault)


class MeasureSuite(AgainstRivals[Verdict]):
    """`contests`: comparisons in fresh processes, put together. `again` has a key of its own, so that it is measured anew."""

    kept_as = "verdict"

    verdict: Verdict
    """PASSED, without its build."""
    held_out: bool
    contests: int
    again: bool

    @property
    def key(self) -> tuple[str, ...]:
        more = [*([str(self.contests)] if self.contests > 1 else []), *(["again"] if self.again else [])]
        names = self.build.candidate, self.build.backend, self.baseline, self.incumbent, str(self.held_out)
        return "measure", *names, *more

    def answer(self, session: EvaluationSession) -> Verdict:
        verdict = self.verdict.model_copy(update={"build": self.build})
        return comparisons.measure_suite(session, self.request, verdict, held_out=self.held_out, contests=self.contests)

    def answer_after_crashes(self, session: EvaluationSession, fault: str) -> Verdict:
        if self.build.candidate == self.baseline:
            raise RuntimeError(f"the baseline cannot be timed: {fault}")
        return self.verdict.failed(Outcome.RUNTIME_ERROR, fault, build=self.build)


class CompareBriefly(AgainstRivals[Quick]):
    others: tuple[str, ...] = ()
    """Hashes of further sources that take their turns in it."""
    cases: tuple[quick.Case, ...]
    seconds: float

    @property
    def rivals(self) -> dict[str, str]:
        return super().rivals | {f"other {number}": other for number, other in enumerate(self.others, start=2)}

    def answer(self, session: EvaluationSession) -> Quick:
        return quick.compare_briefly(session, self.request, self.cases, self.seconds)

    def answer_after_crashes(self, _session: EvaluationSession, fault: str) -> Quick:
        return Quick(outcome=Outcome.RUNTIME_ERROR, reason=fault)


class MeasureContexts(AgainstBaseline[OtherContexts]):
    """The times of the visible suite in other timing contexts (comparisons.ELSEWHERE)."""

    kept_as = "elsewhere"

    @property
    def key(self) -> tuple[str, ...]:
        return "elsewhere", self.build.candidate, self.baseline

    def is_cacheable(self, answer: OtherContexts) -> bool:
        return answer.outcome is None

    def answer(self, session: EvaluationSession) -> OtherContexts:
        try:
            return comparisons.measure_other_contexts(session, self.request)
        except ArmFailure as fault:
            if fault.arm != "candidate":
                raise RuntimeError(f"the {fault.arm} failed in other company: {fault.reason}") from None
            return OtherContexts(outcome=fault.outcome, reason=f"in other company: {fault.reason}")


class Draw(AgainstBaseline[Drawn]):
    """Checks on `count` more random inputs."""

    kept_as = "draws"
    count: int

    @property
    def key(self) -> tuple[str, ...]:
        return "draws", self.build.candidate, self.baseline, str(self.count)

    def answer(self, session: EvaluationSession) -> Drawn:
        return draws.draw_again(session, self.build, session.build(self.baseline), self.count)

    def answer_after_crashes(self, _session: EvaluationSession, fault: str) -> Drawn:
        return Drawn(failure=f"{self.count} draws: {fault}")


class Readings(Frozen):
    """What a probe read of one build."""

    values: dict[str, str]


class ReadProbe(AboutBuild[Readings]):
    kept_as = "probe"
    probe: str

    @property
    def key(self) -> tuple[str, ...]:
        return "probe", self.probe, self.build.candidate, self.build.backend

    def is_kept_by_machine(self, session: EvaluationSession) -> bool:
        return session.is_ours(self.build.candidate)

    def is_cacheable(self, answer: Readings) -> bool:
        return "unavailable" not in answer.values

    def answer(self, session: EvaluationSession) -> Readings:
        session.say(f"profiling: {self.probe}")
        timed = [workload for workload in session.suite() if workload.timed]
        ends = [*timed[:1], *timed[1:][-1:]]  # the smallest and the largest
        return Readings(values=probes.read(self.probe, self.build, session.facts, session.spec, ends))

    def answer_after_crashes(self, _session: EvaluationSession, fault: str) -> Readings:
        return Readings(values={"unavailable": fault})


class Sanitized(Frozen):
    """What compute-sanitizer said of one build."""

    reports: tuple[sanitizer.Report, ...]


class Sanitize(AboutBuild[Sanitized]):
    kept_as = "sanitizer"

    @property
    def key(self) -> tuple[str, ...]:
        return "sanitizer", self.build.candidate, self.build.backend

    def needs_device(self, _session: EvaluationSession) -> bool:
        return not staging.why_not(self.build)  # which is all that is said of others

    def is_cacheable(self, answer: Sanitized) -> bool:
        return all(report.errors is not None for report in answer.reports)

    @staticmethod
    def workloads(session: EvaluationSession) -> list[Workload]:
        """The small ones of both suites, and of each dtype at least one."""
        everything = sorted((*session.suite(), *session.suite(held_out=True)), key=session.moved_bytes)
        first = {workload.dtype: workload for workload in reversed(everything)}
        return [w for w in everything if session.moved_bytes(w) <= verification.SMALL_BYTES or w is first[w.dtype]]

    def answer(self, session: EvaluationSession) -> Sanitized:
        watched = session.spec, self.build, self.workloads(session), session.device, session.say
        return Sanitized(reports=sanitizer.watch(*watched))
