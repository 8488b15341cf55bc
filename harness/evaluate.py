"""The only place that knows build -> verify -> measure.

An Evaluator holds what is warm for one kernel on one device: inputs, expected outputs, the workers of the baseline and
the incumbent, the caches. Every answer is cached by content in the store, so asking twice costs nothing, and a resumed
run re-evaluates nothing that was finished.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import Field

from harness import (
    backends,
    clocks,
    company,
    comparison,
    device,
    light,
    load,
    of_problems,
    probes,
    properties,
    quick,
    roofs,
    samples,
    sandbox,
    sanitizer,
    timing,
)
from harness.bands import Split
from harness.correctness import (
    TOLERANCE,
    Bench,
    Case,
    Cases,
    Layout,
    distributions,
    failure,
    judge_several,
    make_case,
)
from harness.device import Arena, generator
from harness.engines.process import Worker, WorkerFailure
from harness.fitting import left_out, one_signed, require_timed, too_large
from harness.pool import Pool, is_python_side
from harness.problems import Problem
from harness.records import (
    Build,
    Cache,
    Check,
    Company,
    Comparison,
    DeviceFacts,
    Draws,
    Interval,
    Launch,
    Outcome,
    Suite,
    Timing,
    Verdict,
)
from harness.search import search
from harness.store import Store, digest
from harness.timing import PAIR, Contest, Result, Side, SideFailure
from harness.tunables import Tunable, bake, tunables
from kernels.catalog import Kernel, KernelError
from kernels.spec import Device, Frozen, Workload, expression

VERSION = "10"
"""Part of every cache key: raised when a verdict would come out differently."""
CACHES: tuple[Cache, ...] = ("cold", "hot")
ELSEWHERE: tuple[Company, ...] = ("pdl", "alone")
"""Companies beside the plain one, which decides."""
STRESSED = 2
"""Of the smallest timed workloads of each dtype so many are run behind a producer that triggers at once and stores late."""
SMALL_GAIN = 0.05
"""What is FASTER or SLOWER by less is timed once more in fresh processes, and both count: of 135 contests of a binary with
itself on an H200 one was 3.3 % SLOWER, cold, as long as its two processes lived."""
STRESS_LOOKS = 4
DRAWS = 200
"""Inputs that a winner meets beyond those of the checks: none wrong of so many excludes a failure rate of 1.5 %."""
EXACT_DRAWS = 16
DRAWN_BYTES = {"cuda": 16 << 20, "cpu": 1 << 20}
"""Workloads that move more are left to the checks."""
COMPILE_S = 300.0
CALL_S = 20.0
"""A request to call a candidate takes so long at most."""
SMALL_BYTES = 1 << 20
"""Workloads below this meet every value distribution, larger ones two of them: the time goes where the risk is."""
ALONE_TRIES = 3
RIVAL_TRIES = 3
"""A busy machine has accused an incumbent, and with that ended a run; a baseline that fails thrice has a fault."""
ALONE_BLOCKS = 5
"""Whether it is slowed by a tenth shows in as few."""
SLOWED = 1.1
"""A baseline that is so much slower while the candidate's process lives is being slowed by it."""
KEPT_CASE_BYTES = {"cuda": 16 << 30, "cpu": 2 << 30}


class Tuned(Frozen):
    """The variant that the search of a candidate's tunables picked."""

    candidate: str
    values: dict[str, int] = Field(default_factory=dict)
    split: Split | None = None
    """Values by bands of workloads, where those measured clearly faster than one choice for all."""
    tried: int = 0
    reason: str = ""


class MissingTool(Exception):
    """A compiler or device that the evaluation needs is not here; the message says what to install."""


def compiled(candidate: str, text: str, module: ModuleType, folder: Path, facts: DeviceFacts, **entry: str) -> Build:
    """That source built into `folder` by its backend for that device, or why it could not be."""
    source, artefact = folder / f"candidate{module.SUFFIX}", folder / getattr(module, "ARTEFACT", "candidate.so")
    source.write_text(text)
    start = time.perf_counter()
    done = module.compile(source, artefact, facts, COMPILE_S, **entry)
    return Build(
        candidate=candidate,
        backend=module.__name__.rpartition(".")[2],
        ok=done.ok,
        artefact=str(artefact) if done.ok else "",
        log=done.log[-20_000:],
        seconds=time.perf_counter() - start,
        resources=done.resources,
    )


class Evaluator:
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
    nothing is kept (`_compiled`, `_verified`, `_measured`, ...), and an engine that works elsewhere answers those
    (harness/engines).
    """

    width = 1
    """Sources that can be judged side by side."""
    waited_s = 0.0
    """Seconds so far in which a question only waited for a device that others used."""

    def __init__(
        self,
        kernel: Kernel,
        on: Device,
        store: Store,
        *,
        dtypes: tuple[str, ...] = (),
        sandbox_mode: str = "auto",
        own_kernels: str = "some",
        exact_to: str = "",
        say: Callable[[str], None] = lambda _text: None,
        facts: DeviceFacts | None = None,
        memory_bytes: int | None = None,
    ) -> None:
        """`facts`, `memory_bytes`: of the device, where it is another machine's; without, this one is looked at."""
        self.kernel, self.device, self.store, self.say = kernel, on, store, say
        self.exact_to = exact_to
        """Hash of the source whose outputs a candidate must have in every bit, or ""."""
        self.spec = kernel.spec
        unknown = [dtype for dtype in dtypes if dtype not in self.spec.dtypes]
        if unknown:
            raise ValueError(f"{self.spec.name} has no dtype {unknown[0]} (have: {', '.join(self.spec.dtypes)})")
        self.dtypes = dtypes or self.spec.dtypes
        self.extra_workloads: tuple[Workload, ...] = ()
        self.extra_values: dict[str, tuple[str, ...]] = {}
        self.facts: DeviceFacts = facts or device.facts(on)
        self.device_bytes = memory_bytes or device.memory_bytes(on)
        self.sandbox_mode = sandbox_mode
        self.own_kernels = own_kernels
        """Of a problem's candidates: "all" work is theirs, or "some", where libraries may do the rest."""
        self.call_s = CALL_S
        self.notices = left_out(self.spec, on, self.dtypes, self.device_bytes) + one_signed(self.spec)
        """What a person should know: workloads that are left out, layers of the sandbox that are missing."""
        self.layers: tuple[str, ...] = ()
        self.measured: dict[str, str] = {"timing": timing.describe(on), "tolerance": TOLERANCE}
        """How, in words, for the report."""
        self._others = 0.0
        self._clocks: list[dict[str, str]] = []
        self._measured_facts: DeviceFacts | None = None
        self._cases = Cases(kernel, on, KEPT_CASE_BYTES[on])
        self._locks: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()
        require_timed(self.spec, on, self.dtypes, self.device_bytes)
        self.pool = Pool(
            kernel, on, dtypes=self.dtypes, libraries=own_kernels == "some", company=self._company, least=self._least_memory,
            look=self._look_at_box,
        )  # fmt: skip

    # --- the suite -----------------------------------------------------------------------------------------------

    def suite(self, *, held_out: bool = False) -> tuple[Workload, ...]:
        """The workloads of this run, smallest first, so that a wrong candidate is found out early."""
        extra = () if held_out else self.extra_workloads
        found = [w for w in (*self.spec.suite(self.device, held_out=held_out), *extra) if w.dtype in self.dtypes]
        fitting = [w for w in found if not too_large(self.spec, w, self.device_bytes)]
        return tuple(sorted(fitting, key=self.moved))

    def moved(self, workload: Workload) -> int:
        """Bytes that one call must read and write."""
        return self.spec.read_bytes(workload) + self.spec.write_bytes(workload)

    def extend(self, workloads: tuple[Workload, ...], values: dict[str, tuple[str, ...]]) -> None:
        """Add what the tester proposed; nothing can be removed. Raises ValueError naming what the spec does not allow."""
        names = {tensor.name for tensor in self.spec.inputs}
        for name in values:
            if name not in names:
                raise ValueError(
                    f"values are proposed for {name!r}, which is no input (inputs: {', '.join(sorted(names))})"
                )
        known = {w.label for w in self.spec.workloads}
        added = tuple({w.label: w for w in workloads if w.label not in known}.values())
        proposed = self.spec.model_copy(update={"workloads": (*self.spec.workloads, *added)})
        type(self.spec).model_validate(proposed.model_dump())
        for workload in added:
            if reason := too_large(self.spec, workload, self.device_bytes):
                raise ValueError(reason)
        if added:
            self._admit(added, values)
        self.extra_workloads, self.extra_values = added, dict(values)

    def _admit(self, added: tuple[Workload, ...], values: dict[str, tuple[str, ...]]) -> None:
        """Raises ValueError for a size that the operation does not have, such as an odd number of pairs."""
        try:
            for workload in added:
                self._cases.get(workload, distributions(self.spec, values)[0], values)
        except KernelError as error:
            raise ValueError(str(error)) from None

    def _key(self, *parts: str) -> str:
        suite = [w.model_dump_json() for held_out in (False, True) for w in self.suite(held_out=held_out)]
        values = [f"{name}={','.join(v)}" for name, v in sorted(self.extra_values.items())]
        reference = self.kernel.defines_right()
        spec = self.spec.model_dump_json(exclude={"workloads"})
        exact = [f"exact to {self.exact_to}"] if self.exact_to else []
        return digest(VERSION, spec, reference, self.facts.model_dump_json(), *suite, *values, *exact, *parts)

    # --- build ---------------------------------------------------------------------------------------------------

    def backend(self, candidate: str) -> ModuleType:
        text = self.store.get(candidate)
        problem = isinstance(self.kernel, Problem) and backends.is_python(text)
        module = backends.for_source(text, self.device, problem=problem)
        if missing := self.toolchain(module)[0]:
            raise MissingTool(missing)
        return module

    def toolchain(self, module: ModuleType) -> tuple[str, str]:
        """(why sources of that backend cannot be built, or "", compiler and flags that build them)."""
        missing = module.why_unavailable()
        return missing, "" if missing else module.identity(self.facts)

    def build(self, candidate: str) -> Build:
        """Compile the source of that hash. Safe to call from several threads. Raises MissingTool without a compiler."""
        module = self.backend(candidate)
        _missing, identity = self.toolchain(module)
        self.measured[f"build, {module.__name__.rpartition('.')[2]}"] = identity
        key = self.build_key(candidate, module)
        with self._guard:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            kept = self.store.kept("build", key, Build)
            if kept is not None and (not kept.ok or Path(kept.artefact).exists()):
                return kept
            build = self._compiled(candidate, module, key)
            self.store.keep("build", key, build)
            return build

    def build_key(self, candidate: str, module: ModuleType) -> str:
        """Of the build of that source by that backend, in the store."""
        return digest(candidate, module.__name__, self.toolchain(module)[1], *self._entry(module).values())

    def _entry(self, module: ModuleType) -> dict[str, str]:
        """A toolchain that binds the entry itself must know its name; the others build the same for every kernel."""
        return {"entry": self.spec.entry_name} if is_python_side(module) else {}

    def _compiled(self, candidate: str, module: ModuleType, key: str) -> Build:
        text, folder = self.store.get(candidate), self.store.build_folder(key)
        return compiled(candidate, text, module, folder, self.facts, **self._entry(module))

    # --- workers -------------------------------------------------------------------------------------------------

    def start(self, build: Build) -> Worker:
        """A process of its own for this candidate, which the caller closes. Raises WorkerFailure where it cannot load."""
        return self.pool.start(build)

    def memory(self, size: int) -> Arena:
        """An arena of at least `size` bytes; the workers let go of a smaller one."""
        return self.pool.arena(size)

    def _company(self) -> Path | None:
        """The library of the kernels around a timed call, on a GPU."""
        if self.device != "cuda":
            return None
        build = self.build(self.store.put(company.SOURCE.read_text()))
        if not build.ok:
            raise RuntimeError(f"the kernels around a timed call do not compile:\n{build.log}")
        return Path(build.artefact)

    def _least_memory(self) -> int:
        """Bytes of an arena that the largest workload of both suites fits into."""
        everything = (*self.suite(), *self.suite(held_out=True))
        return max(Layout(self.spec, workload, 2).size for workload in everything)

    def _look_at_box(self, worker: Worker) -> None:
        """Say once which layers of the sandbox are active; refuse to go on where they are required and missing."""
        if self.layers:
            return
        self.layers = tuple(worker.active)
        missing = tuple(sandbox.missing(worker.active))
        self.notices = (*self.notices, *missing)
        if missing and self.sandbox_mode == "require":
            worker.close()
            self.close()
            raise MissingTool(f"--sandbox require: {'; '.join(missing)}")

    def contest(
        self, workload: Workload, cache: Cache, on: Company = "plain", *, kernel: Kernel | None = None
    ) -> Contest:
        """One workload in one cache state and company, ready to be run."""
        contest = Contest(kernel or self.kernel, workload, cache, self.device, self.facts.last_level_cache_bytes, on)
        contest.open(self.memory(contest.size))
        return contest

    def run(self, contest: Contest, sides: list[Side], **how: Any) -> Result:
        """`timing.run`, with the neighbours by themselves beside the sides where they are kernels."""
        pair = None
        if (library := self._company()) is not None and contest.company != "alone":
            pair = Side(PAIR, self.pool.ours(PAIR, library, {PAIR: ("company_nothing",)}), PAIR)
        return timing.run(contest, sides, pair=pair, **how)

    # --- verify --------------------------------------------------------------------------------------------------

    def verify(self, build: Build, *, held_out: bool = False, only: Workload | None = None) -> Verdict:
        """Correctness on the suite: PASSED with checks and no timings, or the candidate's failure.

        `only` one workload of the visible suite: raises ValueError where it is not in it.
        """
        workloads = tuple(w for w in self.suite(held_out=held_out) if only in (None, w))
        if not workloads:
            raise ValueError(
                f"{only.label if only else self.spec.name}: in the suite already, or too large for this device"
            )
        key = self._key("verify", build.candidate, build.backend, str(held_out), *([only.label] if only else []))
        if (kept := self.store.kept("verdict", key, Verdict)) is not None:
            return kept
        verdict = self._verified(build, workloads, held_out=held_out, only=only)
        self.store.keep("verdict", key, verdict)
        return verdict

    def _verified(
        self, build: Build, workloads: tuple[Workload, ...], *, held_out: bool, only: Workload | None
    ) -> Verdict:
        start = time.perf_counter()
        checks: list[Check] = []
        warnings: tuple[str, ...] = ()
        notes: tuple[str, ...] = ()
        outcome, reason = Outcome.PASSED, ""
        try:
            if not build.ok:
                raise WorkerFailure(Outcome.COMPILE_ERROR, first_error(build.log))
            worker = self.pool.get(build)
            self._entries(worker, workloads)
            with self.pool.guarding_memory(build.candidate):
                for workload in workloads:
                    self.say(f"checking {workload.label}")
                    for check in self.checks(worker, workload):
                        checks.append(check)
                        if not check.passed:
                            raise WorkerFailure(*failure(check))
                if self.exact_to and build.candidate != self.exact_to:
                    drawn = self._draws(build, self.build(self.exact_to), EXACT_DRAWS)
                    if drawn.draws is None or drawn.draws.equality != "bitwise":
                        reason = drawn.failure or "its outputs are not the baseline's in every bit (--exact)"
                        raise WorkerFailure(Outcome.INCORRECT, reason)
                if self.device == "cuda":
                    checks += self._stress(build, workloads)
            warnings = tuple(worker.warnings)
            if isinstance(self.kernel, Problem):
                notes = of_problems.look_at_kernels(self, self.kernel, build, workloads[0])
            elif self.device == "cuda" and is_python_side(backends.get(build.backend)):
                self._refuse_library_kernels(build, workloads[0])
        except WorkerFailure as fault:
            outcome, reason = fault.outcome, fault.reason
            self.pool.drop(build.candidate)
        return Verdict(
            candidate=build.candidate,
            kernel=self.spec.name,
            device=self.facts.name,
            outcome=outcome,
            reason=reason,
            checks=tuple(checks),
            warnings=warnings,
            notes=notes,
            degenerate=of_problems.degenerate(self, self.kernel) if isinstance(self.kernel, Problem) else (),
            build=build,
            seconds=time.perf_counter() - start,
        )

    def _stress(self, build: Build, workloads: tuple[Workload, ...]) -> list[Check]:
        """Every call of a chain in which each producer lets the kernel begin at once and stores 20 us later: one that was
        launched programmatically and does not wait for its inputs reads what was there before. Raises WorkerFailure."""
        found = []
        timed = [workload for workload in workloads if workload.timed]
        for dtype in dict.fromkeys(workload.dtype for workload in timed):
            for workload in [workload for workload in timed if workload.dtype == dtype][:STRESSED]:
                contest = self.contest(workload, "hot", "early")
                side = self._side("candidate", build)
                contest.prepare(side)
                contest.sample(side)
                for slot in random.sample(contest.called, min(STRESS_LOOKS, len(contest.called))):
                    try:
                        contest.look(side, slot)
                    except WorkerFailure as fault:
                        reason = (
                            f"behind a producer that triggers before it stores, at {workload.label}: {fault.reason}"
                        )
                        raise WorkerFailure(Outcome.INCORRECT, reason) from None
                found.append(Check(workload=workload.label, name="early trigger", passed=True, error=side.error))
                side.worker.proceed()
        return found

    def _refuse_library_kernels(self, build: Build, workload: Workload) -> None:
        """Raises WorkerFailure where kernels of a library ran, by their names; it may have been called from C.

        In a process of its own, since CUPTI slows the process that it has watched. Only a name found decides: where
        CUPTI is not there, nothing is known.
        """
        layout = Layout(self.spec, workload, 1)
        arena = self.memory(layout.size)
        case = self._cases.get(workload, distributions(self.spec, {})[0], {})
        Bench(self.spec, arena, layout, generator(self.device)).write(0, case.inputs)
        self._synchronize()
        message = {"op": "call", "dtype": workload.dtype, "calls": [layout.arguments(arena, 0)], "kernels": True}
        try:
            worker = self.start(build)
            try:
                worker.map(arena)
                worker.request(message | {"shapes": layout.shapes()})
            finally:
                worker.close()
        except WorkerFailure as fault:
            if fault.outcome is Outcome.CHEATED:
                raise

    def _entries(self, worker: Worker, workloads: tuple[Workload, ...]) -> None:
        for dtype in {w.dtype for w in workloads}:
            if dtype not in worker.found:
                wanted = " or ".join(self.spec.entry_names(dtype))
                raise WorkerFailure(Outcome.MISSING_ENTRY, f'the source exports no extern "C" {wanted}')

    def checks(self, worker: Worker, workload: Workload, *, everything: bool = True) -> Iterator[Check]:
        """The checks of one workload, one after another; only the first distribution without `everything`."""
        bench = self._bench(worker, workload, 2)
        known = distributions(self.spec, self.extra_values)
        small = self.moved(workload) <= SMALL_BYTES
        chosen = known if small or len(known) <= 2 else [known[0], random.choice(known[1:])]
        chosen = chosen if everything else known[:1]
        cases = [self._cases.get(workload, values, self.extra_values) for values in chosen]
        for case in cases:  # each at the same addresses as the one before
            yield from self._call(worker, bench, [case])
        if len(cases) > 1 and small:
            yield from self._call(worker, bench, cases[:2])
        if everything and small:
            yield from self._several(worker, bench, cases[0])

    def _several(self, worker: Worker, bench: Bench, case: Case) -> Iterator[Check]:
        """The check of several calls together, where the kernel's properties.py asks for one."""
        calls = properties.several(self.kernel, case.workload, case.inputs)
        outputs: list[dict] = []
        for inputs in calls:
            bench.write(0, inputs)
            self._synchronize()
            message = {"op": "call", "dtype": case.workload.dtype, "calls": [bench.layout.arguments(bench.arena, 0)]}
            worker.request(message | {"shapes": bench.layout.shapes()}, timeout_s=20.0)
            outputs.append({name: values.clone() for name, values in bench.outputs(0).items()})
        if calls:
            violated = judge_several(self.kernel, case.workload, calls, outputs)
            name = f"{len(calls)} calls together"
            yield Check(workload=case.workload.label, name=name, passed=not violated, message=violated)

    def _bench(self, worker: Worker, workload: Workload, slots: int) -> Bench:
        """Argument sets of the workload in the arena, which the worker has mapped."""
        layout = Layout(self.spec, workload, slots)
        arena = self.memory(layout.size)
        if arena.id not in worker.mapped:
            worker.map(arena)
        return Bench(self.spec, arena, layout, generator(self.device))

    def _call(self, worker: Worker, bench: Bench, cases: list[Case]) -> Iterator[Check]:
        layout = bench.layout
        for slot, case in enumerate(cases):
            bench.write(slot, case.inputs)
        self._synchronize()
        calls = [layout.arguments(bench.arena, slot) for slot in range(len(cases))]
        message = {"op": "call", "dtype": layout.workload.dtype, "calls": calls, "shapes": layout.shapes()}
        worker.request(message, timeout_s=self.call_s)
        together = "" if len(cases) == 1 else ", two calls in flight"
        for slot, case in enumerate(cases):
            yield bench.check_outputs(slot, case.expected, case.name + together)
            yield bench.check_inputs(slot, case.inputs, f"inputs unchanged, {case.name}{together}")
        yield bench.check_guards(f"guards, {cases[0].name}{together}")

    def _synchronize(self) -> None:
        if self.device == "cuda":
            import torch

            torch.cuda.synchronize()

    # --- measure -------------------------------------------------------------------------------------------------

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
            same = Suite(speedup=Interval(median=1, low=1, high=1), comparison=Comparison.SAME)
            return alone.model_copy(update={"suite_incumbent": same}) if alone.passed else alone
        names = [baseline, incumbent or "", str(held_out), *([str(contests)] if contests > 1 else [])]
        names += ["again"] if again else []
        key = self._key("measure", verdict.candidate, verdict.build.backend, *names)
        if (kept := self.store.kept("verdict", key, Verdict)) is not None:
            return kept
        rivals = {"baseline": baseline}
        if incumbent and incumbent != baseline:
            rivals["incumbent"] = incumbent
        measured = self._measured(verdict, rivals, held_out=held_out, contests=contests, again=again)
        self.store.keep("verdict", key, measured)
        return measured

    def _measured(
        self, verdict: Verdict, rivals: dict[str, str], *, held_out: bool, contests: int, again: bool
    ) -> Verdict:
        start, others, baseline = time.perf_counter(), load.Watch(), rivals["baseline"]
        itself = verdict.candidate == baseline
        timings: list[Timing] = []
        ratios: dict[str, list[list[float]]] = {"baseline": [], "incumbent": []}
        checks = list(verdict.checks)
        warnings: list[str] = list(verdict.warnings)
        self.pool.pinned = set(rivals.values())
        order = self.suite(held_out=held_out)
        if any(roofs.weighs(self.spec, workload) for workload in order if workload.timed):
            self.measured_facts()  # before there is a candidate's process whose memory is watched
        try:
            for workload in order:
                if not workload.timed:
                    continue
                for cache in reversed(self.caches(workload)):
                    self.say(f"timing {workload.label}, {cache}")
                    timed, found = self._time_fairly(
                        verdict, rivals, workload, (cache, "plain"), itself, ratios, contests
                    )
                    timings.append(timed)
                    checks += found
                    if timed.note:
                        warnings.append(f"{workload.label}, {cache}: {timed.note}")
            suite = self._suite(ratios["baseline"], timings)
            warnings += self._look_at_clocks() + self._look_at_load(others)
            if suite is not None and suite.comparison is Comparison.FASTER and not itself:
                self._compare_alone(verdict, baseline, random.choice([t for t in timings if t.cache == "cold"]))
        except SideFailure as fault:
            if fault.side != ("baseline" if itself else "candidate"):
                raise RuntimeError(f"the {fault.side} failed while it was timed: {fault.reason}") from None
            self.pool.drop(verdict.candidate)
            return verdict.model_copy(update={"outcome": fault.outcome, "reason": fault.reason})
        measured = verdict.model_copy(
            update={
                "timings": tuple(sorted(timings, key=lambda t: (order.index(t.workload), CACHES.index(t.cache)))),
                "checks": tuple(checks),
                "suite": suite,
                "suite_incumbent": self._suite(ratios["incumbent"], timings),
                "warnings": tuple(dict.fromkeys(warnings)),
                "seconds": verdict.seconds + time.perf_counter() - start,
            }
        )
        return Verdict.model_validate(measured.model_dump())

    def contend(self, build: Build, rivals: dict[str, str], cases: Sequence[quick.Case] = ()) -> quick.Quick:
        """A short, unofficial contest (harness/quick.py) at those cases, or at two of the visible suite."""
        return self._contended(build, rivals, tuple(cases) or tuple(quick.spread(self)))

    def _contended(self, build: Build, rivals: dict[str, str], cases: tuple[quick.Case, ...]) -> quick.Quick:
        self.pool.pinned = set(rivals.values())
        return quick.contest(self, build, rivals, cases)

    def measure_elsewhere(self, verdict: Verdict, *, baseline: str) -> Verdict:
        """The measured verdict with the times of the visible suite in other company (`ELSEWHERE`), for the report.

        On a CPU the verdict as it is: nobody launches there. Raises as `measure` does.
        """
        if self.device != "cuda" or not verdict.passed or verdict.candidate == baseline:
            return verdict
        key = self._key("elsewhere", verdict.candidate, baseline)
        if (kept := self.store.kept("elsewhere", key, Elsewhere)) is None:
            kept = self._in_other_company(verdict, baseline)
            self.store.keep("elsewhere", key, kept)
        return verdict.model_copy(update={"elsewhere": kept.timings, "suites_elsewhere": kept.suites})

    def _in_other_company(self, verdict: Verdict, baseline: str) -> Elsewhere:
        timings: list[Timing] = []
        suites: dict[Company, Suite] = {}
        for on in ELSEWHERE:
            ratios: dict[str, list[list[float]]] = {"baseline": [], "incumbent": []}
            for workload in self.suite():
                if workload.timed and "hot" in self.caches(workload):
                    self.say(f"timing {workload.label}, hot, {on}")
                    rivals = {"baseline": baseline}
                    timings.append(self._time_fairly(verdict, rivals, workload, ("hot", on), False, ratios)[0])
            if ratios["baseline"]:
                interval = comparison.geometric_mean(ratios["baseline"])
                said = comparison.compare(interval, comparison.MARGIN[self.device])
                suites[on] = Suite(speedup=interval, comparison=said)
        return Elsewhere(timings=tuple(timings), suites=suites)

    def draw_again(self, verdict: Verdict, *, baseline: str, count: int = DRAWS) -> Verdict:
        """The PASSED verdict after `count` more independent draws over both suites, beside the baseline on the same inputs.

        INCORRECT where one is wrong. On a GPU also what the launch path takes the host.
        """
        if not verdict.passed or verdict.build is None or verdict.candidate == baseline:
            return verdict
        key = self._key("draws", verdict.candidate, baseline, str(count))
        if (kept := self.store.kept("draws", key, Drawn)) is None:
            kept = self._drawn(verdict.build, baseline, count)
            self.store.keep("draws", key, kept)
        if kept.failure:
            return Verdict.model_validate(
                verdict.model_dump()
                | {"outcome": Outcome.INCORRECT, "reason": kept.failure, "timings": (), "elsewhere": ()}
                | {"suite": None, "suite_incumbent": None, "suites_elsewhere": {}}
            )
        return verdict.model_copy(update={"draws": kept.draws, "launch": kept.launch})

    def _drawn(self, build: Build, baseline: str, count: int) -> Drawn:
        return self._draws(build, self.build(baseline), count)

    def _draws(self, build: Build, baseline: Build, count: int) -> Drawn:
        everything = sorted((*self.suite(), *self.suite(held_out=True)), key=self.moved)
        small = [w for w in everything if self.moved(w) <= DRAWN_BYTES[self.device]] or everything[:1]
        bitwise, errors = 0, [0.0, 0.0]
        for number in range(count):
            workload = small[number % len(small)]
            values = random.choice(distributions(self.spec, self.extra_values))
            if number % 20 == 0:
                self.say(f"draw {number + 1} of {count}")
            case = make_case(self.kernel, workload, values, self.extra_values, self.device)
            found: list[list[Any]] = []
            for which, one in enumerate((build, baseline)):
                try:
                    worker = self.pool.get(one)
                    bench = self._bench(worker, workload, 1)
                    checks = list(self._call(worker, bench, [case]))
                except WorkerFailure as fault:
                    if which:
                        raise RuntimeError(f"the baseline failed on a fresh draw: {fault.reason}") from None
                    self.pool.drop(build.candidate)
                    return Drawn(failure=f"draw {number + 1} of {count}, {values} at {workload.label}: {fault.reason}")
                wrong = [check for check in checks if not check.passed]
                if wrong and not which:
                    return Drawn(failure=f"draw {number + 1} of {count}: {failure(wrong[0])[1]}")
                errors[which] = max(errors[which], *(check.error for check in checks))
                outputs = [bench.layout.bytes_view(bench.arena, tensor)[0] for tensor in self.spec.outputs]
                found.append([raw.clone() for raw in outputs])
            bitwise += all(bool((own == other).all()) for own, other in zip(*found, strict=True))
        draws = Draws(count=count, bitwise=bitwise, error=errors[0], baseline_error=errors[1])
        return Drawn(draws=draws, launch=self._launch(build, baseline, small[0]))

    def _launch(self, build: Build, baseline: Build, workload: Workload) -> Launch | None:
        if self.device != "cuda":
            return None
        seconds = []
        for one in (build, baseline):
            worker = self.pool.get(one)
            layout = self._bench(worker, workload, 1).layout
            message = {"op": "host", "dtype": workload.dtype, "shapes": layout.shapes(), "repeat": 200}
            message["calls"] = [layout.arguments(self.memory(layout.size), 0)]
            seconds.append(float(worker.request(message)["seconds"]))
        return Launch(time_us=seconds[0] * 1e6, baseline_us=seconds[1] * 1e6)

    def _look_at_load(self, others: load.Watch) -> list[str]:
        """Note what other processes took while a candidate was timed, the worst of them; a warning where it was much."""
        self._others = max(self._others, others.share())
        self.measured["load"] = (
            f"other processes took at most {self._others:.0%} of the CPU while a candidate was timed"
        )
        return others.said()

    def _look_at_clocks(self) -> list[str]:
        """Note the device's clocks and power right after it was timed; a warning where a GPU was throttled."""
        found = device.clocks() if self.device == "cuda" else device.cpu_clocks()
        if not found:
            return []
        self._clocks.append(found)
        held = f"; {clocks.held()}" if clocks.held() else ""
        self.measured["clocks"] = (
            f"{device.ranges(self._clocks)}, at the end of each of {len(self._clocks)} timings{held}"
        )
        if self.device == "cpu":
            return []
        reasons = found["clocks_event_reasons.active"]
        return [f"the GPU's clocks were held back while it was timed ({reasons})"] if device.throttled(reasons) else []

    def _compare_alone(self, verdict: Verdict, baseline: str, timed: Timing) -> None:
        """Time the baseline once more with the candidate's process gone. Raises SideFailure where it is faster then.

        A stopped process keeps no core busy, but what it left on a GPU runs on, and the baseline shares the device.
        """
        if self.device != "cuda":
            return
        self.pool.drop(verdict.candidate)
        contest = self.contest(timed.workload, timed.cache)
        slowest_us = 0.0
        for _ in range(ALONE_TRIES):
            side = Side("baseline", self.pool.get(self.build(baseline)))
            alone = self.run(contest, [side], blocks=(ALONE_BLOCKS, ALONE_BLOCKS))
            slowest_us = max(slowest_us, alone.median_us["baseline"])
            if timed.baseline_us <= SLOWED * slowest_us:
                return
            self.pool.drop(baseline)  # some kernels have two speeds, and which one it is depends on the process
        raise SideFailure(
            "candidate",
            Outcome.CHEATED,
            f"the baseline takes {timed.baseline_us:.2f} us beside it and {slowest_us:.2f} us without it, "
            f"at {timed.workload.label}, {timed.cache}",
        )

    def caches(self, workload: Workload) -> tuple[Cache, ...]:
        """A working set larger than the last-level cache is never hot."""
        return CACHES if self.moved(workload) <= self.facts.last_level_cache_bytes else CACHES[:1]

    def _suite(self, ratios: list[list[float]], timings: list[Timing]) -> Suite | None:
        """FASTER only where the cold cases are: a gain that only cached inputs bring is not one everywhere."""
        if not ratios:
            return None
        margin = comparison.MARGIN[self.device]
        interval = comparison.geometric_mean(ratios)
        said = comparison.compare(interval, margin)
        cold = [samples for samples, timed in zip(ratios, timings, strict=True) if timed.cache == "cold"]
        if said is Comparison.FASTER and comparison.geometric_mean(cold).median <= 1 + margin:
            said = Comparison.UNCLEAR
        return Suite(speedup=interval, comparison=said)

    def _time_fairly(
        self,
        verdict: Verdict,
        rivals: dict[str, str],
        workload: Workload,
        case: tuple[Cache, Company],
        itself: bool,
        ratios: dict[str, list[list[float]]],
        contests: int = 1,
    ) -> tuple[Timing, list[Check]]:
        """`_time`, and again where a rival failed: it has passed before, so a fresh process of it gets the doubt."""
        tries = 1
        while True:
            try:
                with self.pool.guarding_memory(verdict.candidate):
                    return self._time(verdict, rivals, workload, case, itself, ratios, contests)
            except SideFailure as fault:
                if fault.side not in rivals or tries == RIVAL_TRIES:
                    raise
                tries += 1
                self.say(f"timing {workload.label}, {', '.join(case)} again: {fault.side}: {fault.reason}")
                self.pool.drop(rivals[fault.side])

    def _time(
        self,
        verdict: Verdict,
        rivals: dict[str, str],
        workload: Workload,
        case: tuple[Cache, Company],
        itself: bool,
        ratios: dict[str, list[list[float]]],
        contests: int = 1,
    ) -> tuple[Timing, list[Check]]:
        cache, on = case
        mine = "baseline" if itself else "candidate"
        result = self._contested(verdict, rivals, workload, case, itself)
        for _ in range(contests - 1):
            result = result.joined(self._contested_anew(verdict, rivals, workload, case, itself))
        said = comparison.compare(comparison.median_interval(result.ratios[mine]), comparison.MARGIN[self.device])
        if (
            contests == 1
            and said in (Comparison.FASTER, Comparison.SLOWER)
            and abs(statistics.median(result.ratios[mine]) - 1) < SMALL_GAIN
        ):
            result = result.joined(self._contested_anew(verdict, rivals, workload, case, itself))
        raw = {side: tuple(seconds) for side, seconds in result.raw.items()}
        samples.keep(
            self.store, verdict.candidate, samples.Samples(workload=workload, cache=cache, company=on, seconds=raw)
        )
        speedups = result.ratios[mine]
        ratios["baseline"].append(speedups)
        against, incumbent_us, incumbent_speedup = None, None, None
        if "incumbent" in rivals and not itself:
            incumbent_us = result.median_us["incumbent"]
            incumbent_speedup = comparison.median_interval(result.ratios["incumbent"])
            paired = [c / i for c, i in zip(speedups, result.ratios["incumbent"], strict=True)]
            ratios["incumbent"].append(paired)
            against = comparison.median_interval(paired)
        mine_us = result.median_us[mine]
        light_us = min(self.light_us(workload, cache, on), result.median_us["baseline"])
        if mine_us < light.FASTER_THAN_LIGHT * light_us:
            # Before anyone is accused the bound is measured once more: a busy moment may have raised it.
            light_us = self.light_us(workload, cache, on, again=True)
        if mine_us < light.FASTER_THAN_LIGHT * light_us and not itself:
            reason = f"{mine_us:.2f} us at {workload.label}, {cache}: moving its bytes takes {light_us:.2f} us here"
            reason += "; or the spec counts more than a call must move (shapes, `touched`)"
            raise SideFailure(mine, Outcome.CHEATED, reason)
        interval = Interval(median=1, low=1, high=1) if itself else comparison.median_interval(speedups)
        return (
            Timing(
                workload=workload,
                cache=cache,
                baseline_us=result.median_us["baseline"],
                time_us=mine_us,
                speedup=interval,
                comparison=Comparison.SAME if itself else comparison.compare(interval, comparison.MARGIN[self.device]),
                against_incumbent=against,
                incumbent_us=incumbent_us,
                incumbent_speedup=incumbent_speedup,
                light_us=light_us,
                moved_bytes=self.moved(workload),
                flops=expression(self.spec.flops, workload.axes) or None,
                compute_us=roofs.compute_us(self, workload, min(mine_us, result.median_us["baseline"])),
                samples=result.samples,
                company=on,
                note="" if result.graph[mine] else "cannot be captured in a CUDA graph; timed with plain launches",
            ),
            result.checks[mine],
        )

    def _contested(
        self, verdict: Verdict, rivals: dict[str, str], workload: Workload, case: tuple[Cache, Company], itself: bool
    ) -> Result:
        """One contest of the rivals and, unless it is the baseline, the candidate, whose calls are looked at."""
        contest = self.contest(workload, *case)
        sides = [self._side(name, self.build(rival)) for name, rival in rivals.items()]
        if not itself:
            assert verdict.build is not None
            sides.append(self._side("candidate", verdict.build))
        return self.run(contest, sides, check=("baseline" if itself else "candidate",))

    def _contested_anew(
        self, verdict: Verdict, rivals: dict[str, str], workload: Workload, case: tuple[Cache, Company], itself: bool
    ) -> Result:
        """`_contested` in fresh processes: what a pair of them has by chance, both keep as long as they live."""
        for one in (*rivals.values(), verdict.candidate):
            self.pool.drop(one)
        return self._contested(verdict, rivals, workload, case, itself)

    def _side(self, name: str, build: Build) -> Side:
        """Raises SideFailure where its process cannot load."""
        try:
            return Side(name, self.pool.get(build))
        except WorkerFailure as fault:
            raise SideFailure(name, fault.outcome, fault.reason) from None

    def light_us(self, workload: Workload, cache: Cache, on: Company = "plain", *, again: bool = False) -> float:
        """The measured bound of this workload on this device in that cache state; `again` measures it once more."""
        key = digest(
            "light", VERSION, self.facts.model_dump_json(), light.source(self.device).read_text(), cache, on,
            self.spec.model_dump_json(include={"arguments"}), workload.label,
        )  # fmt: skip
        kept = self.store.kept("light", key, Light)
        if kept is not None and not again:
            return kept.microseconds
        text = light.source(self.device).read_text()
        build = self.build(self.store.put(text))
        if not build.ok:
            raise RuntimeError(f"the speed-of-light probe does not compile:\n{build.log}")
        kernel, streaming = light.kernel_for(self.spec, workload, self.device)
        contest = self.contest(streaming, cache, on, kernel=kernel)
        variants = {name: (name,) for name in light.VARIANTS[self.device]}
        worker = self.pool.ours("light", Path(build.artefact), variants)
        # The fastest variant; each one's median, for a sample less its neighbours may come out short by chance.
        found = [self.run(contest, [Side(name, worker, name)], blocks=(5, 5)).median_us[name] for name in variants]
        best = min(found)
        best = min(best, kept.microseconds) if kept else best
        self.store.keep("light", key, Light(microseconds=best))
        return best

    def measured_facts(self) -> DeviceFacts:
        """`facts` with what this device reaches at most: bandwidth, and FLOPs a second by dtype (harness/roofs.py)."""
        if self._measured_facts is None:
            self._measured_facts = self._with_roofs()
        return self._measured_facts

    def _with_roofs(self) -> DeviceFacts:
        return roofs.measured(self)

    def probes(self, build: Build, *, calls: bool = True) -> dict[str, dict[str, str]]:
        """What bounds a build: probe's name -> readings, or {"unavailable": why}. Kept, so that asking again says the same.

        Without `calls` only what is read without running it.
        """
        found: dict[str, dict[str, str]] = {}
        for name in probes.names(calls=calls):
            key = self._key("probe", name, build.candidate, build.backend)
            kept = self.store.kept("probe", key, Readings)
            found[name] = dict(kept.values) if kept else self._readings(name, build)
            if kept is None and "unavailable" not in found[name]:
                self.store.keep("probe", key, Readings(values=found[name]))
        return found

    def _readings(self, name: str, build: Build) -> dict[str, str]:
        timed = [workload for workload in self.suite() if workload.timed]
        ends = [*timed[:1], *timed[1:][-1:]]  # the smallest and the largest
        return probes.read(name, build, self.facts, self.spec, ends)

    def sanitize(self, verdict: Verdict) -> Verdict:
        """The PASSED verdict once compute-sanitizer has watched the candidate: INCORRECT where it finds an error.

        On a CPU the verdict as it is. Where a tool cannot be run the verdict stays, with a warning that says why.
        """
        if self.device != "cuda" or not verdict.passed or verdict.build is None:
            return verdict
        key = self._key("sanitizer", verdict.candidate, verdict.build.backend)
        kept = self.store.kept("sanitizer", key, Sanitized)
        if kept is None:
            kept = self._watched(verdict.build)
            if all(report.errors is not None for report in kept.reports):
                self.store.keep("sanitizer", key, kept)
        self.measured["compute-sanitizer"] = sanitizer.describe(kept.reports)
        return sanitizer.judge(verdict, kept.reports)

    def _watched(self, build: Build) -> Sanitized:
        self.pool.drop(build.candidate)
        return Sanitized(reports=sanitizer.watch(self.spec, build, self._sanitized(), self.device, self.say))

    def _sanitized(self) -> list[Workload]:
        """What compute-sanitizer sees: the small workloads of both suites, and of each dtype at least one."""
        everything = sorted((*self.suite(), *self.suite(held_out=True)), key=self.moved)
        first = {workload.dtype: workload for workload in reversed(everything)}
        return [w for w in everything if self.moved(w) <= SMALL_BYTES or w is first[w.dtype]]

    # --- tune ----------------------------------------------------------------------------------------------------

    def tune(self, candidate: str, *, seconds: float) -> Tuned:
        """Search the integers that the candidate leaves open, by building and measuring variants, for about `seconds`."""
        source = self.store.get(candidate)
        open_ = [tunable for tunable in tunables(source) if len(tunable.choices) > 1]
        if not open_:
            return Tuned(candidate=candidate, reason="nothing is left open")
        key = self._key("tune", candidate)
        if (kept := self.store.kept("tuned", key, Tuned)) is not None:
            return kept
        tuned = self._searched(candidate, source, open_, seconds)
        self.store.put(bake(source, tuned.values))
        self.store.keep("tuned", key, tuned)
        return tuned

    def _searched(self, candidate: str, source: str, open_: list[Tunable], seconds: float) -> Tuned:
        found = search(self, source, open_, seconds)
        return Tuned(
            candidate=digest(bake(source, found.values)),
            values=found.values,
            split=found.split,
            tried=found.tried,
            reason=found.reason,
        )

    # --- the end -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End all workers and free the shared memory. Safe to call twice."""
        self.pool.close()
        self.kernel.close()

    def __enter__(self) -> Evaluator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Drawn(Frozen):
    """What `draw_again` found; `failure`: what was wrong, or ""."""

    draws: Draws | None = None
    launch: Launch | None = None
    failure: str = ""


class Elsewhere(Frozen):
    """What was measured in other company."""

    timings: tuple[Timing, ...]
    suites: dict[Company, Suite]


class Readings(Frozen):
    """What a probe read of one build."""

    values: dict[str, str]


class Sanitized(Frozen):
    """What compute-sanitizer said of one build."""

    reports: tuple[sanitizer.Report, ...]


class Light(Frozen):
    """A measured speed of light."""

    microseconds: float = Field(gt=0)


def first_error(log: str) -> str:
    """The compiler's first complaint, one line, for a reason."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line.lower()), lines[0] if lines else "the compiler failed")
