"""What is warm for one kernel on one device: its suite, builds, the processes of its candidates, inputs and expected outputs.

Checks (verification.py), comparisons (comparisons.py, quick.py) and the search (search.py) work on a EvaluationSession; whoever asks for a
verdict asks an Evaluator (evaluate.py), which is one.
"""

from __future__ import annotations

import abc
import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field

from harness import backends, device, machine
from harness.checks import shipped, slices
from harness.checks.buffers import GuardedBuffers
from harness.checks.cases import NOT_SLICED, SPECIAL, Cases, Slicing
from harness.checks.drawing import distributions, draw_inputs
from harness.checks.fitting import explain_left_out, explain_one_signed, require_timed, too_large
from harness.checks.layout import Layout
from harness.checks.tolerance import TOLERANCE, rows_apart
from harness.device import ArgumentBuffers, generator
from harness.farside import sandbox
from harness.judge import triton_kernels
from harness.judge.builds import ADDED_LATER, Brought, BuildPlace, is_intact
from harness.judge.pool import Pool
from harness.once import Locks
from harness.processes.worker import Worker, WorkerFailure
from harness.records import Build, Cache, DeviceFacts, TimingContext
from harness.store import Store, digest, digest_of
from harness.timing import interleaved, load, neighbours, roofs, speed_of_light
from harness.timing.interleaved import ComparisonTimes
from harness.timing.sampling import PAIR, ABComparison, Arm, ArmFailure, ChanceEvidence
from kernels.catalog import Kernel
from kernels.spec import Device, Frozen, Spec, Workload

if TYPE_CHECKING:
    from harness.judge.rules import KernelRules

VERSION = "73"
"""Part of every cache key: raised when a verdict would come out differently."""
CACHES: tuple[Cache, ...] = ("cold", "hot")
SMALL_BYTES, SPECIAL_BYTES = 1 << 20, 64 << 20
"""Bytes moved by a call, below which a workload meets every value distribution; larger ones meet two: the time goes
where the risk is."""
CALL_S = 20.0
"""Seconds that a request to call a candidate may take."""
HOPELESS, FIRST_CALL_S = 1000.0, {"cuda": 8.0, "cpu": CALL_S}
"""Times of a baseline after which its candidate's call is given up, and seconds that a first call may take beyond them: what it loads,
and what a library tries out beside other processes on the host; on a CPU, which others may keep busy, as long as any."""
KEPT_CASE_BYTES = {"cuda": 16 << 30, "cpu": 2 << 30}


class MissingTool(Exception):
    """A compiler or device that the evaluation needs is not here; the message says what to install."""


class SessionSettings(Frozen):
    """Settings by which a session judges; they go wherever it does."""

    dtypes: tuple[str, ...] = ()
    """Data types that are judged; none named means all of the kernel's."""
    sandbox_mode: str = "auto"
    own_kernels: str = "some"
    """How much of a problem's work its candidates must do: "all", or "some", where libraries may do the rest."""
    exact_to: str = ""
    """Hash of the source whose outputs a candidate must have in every bit, or ""."""


class EvaluationSession(BuildPlace, abc.ABC):
    """Use as a context manager: closing ends the workers. Not safe for several threads at once, `build` excepted.

    What it wants to know before it judges it asks as anybody does (harness/evaluate.py): `toolchain`, `compile_into`, `measure_facts`.
    """

    turned = False
    """Whether the last side of a comparison is begun and prepared first: in every other series of processes."""
    width = 1
    """Sources that can be judged side by side."""
    builds_apart = False
    """Whether sources are built on other cores, or other machines, than things are timed on."""

    def __init__(
        self,
        kernel: Kernel,
        on: Device,
        store: Store,
        *,
        say: Callable[[str], None] = lambda _text: None,
        facts: DeviceFacts | None = None,
        memory_bytes: int | None = None,
        **settings: Any,
    ) -> None:
        """`facts`, `memory_bytes`: of the device, where it is another machine's; without, this one is looked at. `settings` as
        SessionSettings has them."""
        if on == "cpu":
            machine.keep_freed_memory()
        self.kernel, self.device, self.store, self.say = kernel, on, store, say
        self.settings = SessionSettings(**settings)
        self.spec = kernel.spec
        unknown = [dtype for dtype in self.settings.dtypes if dtype not in self.spec.dtypes]
        if unknown:
            raise ValueError(f"{self.spec.name} has no dtype {unknown[0]} (have: {', '.join(self.spec.dtypes)})")
        self.dtypes = self.settings.dtypes or self.spec.dtypes
        self.extra_workloads: tuple[Workload, ...] = ()
        self.extra_values: dict[str, tuple[str, ...]] = {}
        self.facts: DeviceFacts = facts or device.facts(on)
        self.device_bytes = memory_bytes or device.memory_bytes(on)
        self.call_s = CALL_S
        self.turns = itertools.count(random.randrange(1000))
        """By which large workloads take the distributions beside the first one in turn."""
        self.asks = set(SPECIAL)
        """Values that are no finite numbers and that candidates must hand on; those that the kernel's own baseline
        loses are left out."""
        self.looked_at_shipped = False
        """Whether the kernel's own baseline was looked at for what rounding in between makes it err by (harness/checks/shipped.py)."""
        self.notices = self._left_out() + explain_one_signed(self.spec)
        """Sentences for the user: workloads that are left out, layers of the sandbox that are missing."""
        self.layers: tuple[str, ...] = ()
        self.measured: dict[str, str] = {"timing": interleaved.describe(on), "tolerance": TOLERANCE}
        """How things were measured, in words, for the report."""
        self.others = 0.0
        self.clocks: list[dict[str, str]] = []
        """This device's clocks while something was timed; `others` is the largest share of the CPU that other
        programs took then."""
        self.toolchains: dict[str, tuple[str, str]] = {}
        """What `toolchain` says of a backend, by its module's name, where this session works for an Evaluator
        elsewhere: builds are named after that one's compilers."""
        self._measured_facts: DeviceFacts | None = None
        self.cases = Cases(kernel, on, KEPT_CASE_BYTES[on], self._slicing)
        self.paces_us: dict[str, float] = {}
        """Least microseconds of a call of a problem's Model, by workload label: a sample of a slow one has fewer
        calls."""
        self.baseline_us: dict[str, float] = {}
        """Microseconds of the baseline's call as timed so far, by workload label."""
        self._chance_of, self._chance = "", dict[str, ChanceEvidence]()
        """The candidate whose timed calls have last shown something of chance, and what, by workload label."""
        self._building = Locks()
        require_timed(self.spec, on, self.dtypes, self.device_bytes)
        self.pool = Pool(
            kernel, on, dtypes=self.dtypes, rules=self.rules, company=self._neighbours, least=self._least_memory,
            look=self._look_at_box, ahead=lambda build: self.compile_ahead(build, self.suite()),
        )  # fmt: skip

    def compile_ahead(
        self,
        build: Build,
        workloads: Sequence[Workload],
        spec: Spec | None = None,
        beyond: Callable[[], Iterable[Workload]] = tuple,
    ) -> None:
        """Have what calls of those workloads need compiled before a process that is judged makes them; does nothing on a CPU.

        `beyond`: what it may be called with later, compiled in the same process, or not where that fails.

        Inputs are drawn for this alone; `spec`: the kernel's with other scalars, for which Triton may compile anew. Held-out sizes come last, once the candidate has passed the others: what the processes
        before leave in the folder, later ones can read. Raises WorkerFailure as `triton_kernels.fill`.
        """
        if self.device != "cuda" or not triton_kernels.is_needed(build):
            return
        kind, spec = ", other scalars" if spec else "", spec or self.spec
        by_label = {f"{workload.label}{kind}": workload for workload in workloads}
        further = {f"{workload.label}{kind}": workload for workload in beyond()}
        smallest = triton_kernels.smallest_of_each_dtype(workloads, self.moved_bytes)

        def call(worker: Worker, label: str) -> None:
            workload = by_label.get(label) or further[label]
            bench = map_buffers(self, worker, workload, 1, spec=spec)
            values = distributions(spec, {})[0]
            inputs = draw_inputs(spec, workload, values, self.extra_values, self.device)
            bench.write(0, inputs)
            self.say(f"Triton compiles for {label}")
            answer = worker.request(bench.message(), timeout_s=triton_kernels.COMPILE_S)
            for turn in triton_kernels.turns_of(answer) if workload in smallest else ():
                worker.request(bench.message(turn=turn), timeout_s=triton_kernels.COMPILE_S)

        start = partial(self.pool.start, build, compilers=True)
        if triton_kernels.fill(Path(build.artefact), by_label, start, call, further):
            self.pool.drop(build.candidate)  # a process that lives has the folder as it was

    @cached_property
    @abc.abstractmethod
    def rules(self) -> KernelRules:
        """What judging asks of this kind of kernel."""

    def allow(self, allowed: tuple[tuple[str, float], ...]) -> None:
        """Judge by these errors from now on (Kernel.allowed): the baseline has them, too."""
        self.kernel = replace(self.kernel, allowed=allowed)
        said = "; ".join(
            f"{name}: {share:.2g} times what rounding every operator to 16 bits makes" for name, share in allowed
        )
        self.measured[shipped.HEADING] = shipped.write(allowed)
        self.measured["tolerance"] = f"{TOLERANCE}; beside that, since the kernel's own baseline errs so, {said}"
        self.cases = Cases(self.kernel, self.device, KEPT_CASE_BYTES[self.device], self._slicing)

    # --- the suite -----------------------------------------------------------------------------------------------

    def suite(self, *, held_out: bool = False) -> tuple[Workload, ...]:
        """The workloads of this run, smallest first, so that a wrong candidate is found out early."""
        extra = () if held_out else self.extra_workloads
        found = [w for w in (*self.spec.suite(self.device, held_out=held_out), *extra) if w.dtype in self.dtypes]
        fitting = [w for w in found if not self._too_large(w)]
        return tuple(sorted(fitting, key=self.moved_bytes))

    def patience_s(self, workload: Workload) -> float:
        """Seconds that a request may take which calls a candidate at that workload once or twice."""
        known_us = self.baseline_us.get(workload.label)
        if known_us is None:
            return self.call_s
        return min(self.call_s, FIRST_CALL_S[self.device] + HOPELESS * known_us * 1e-6)

    @cached_property
    def special_at(self) -> frozenset[str]:
        """Labels of workloads beyond SMALL_BYTES, one of each suite by chance, that meet values which are no finite numbers."""
        found = set()
        for held_out in (False, True):
            sizes = {one.label: self.moved_bytes(one) for one in self.suite(held_out=held_out)}
            large = [label for label, moved in sizes.items() if SMALL_BYTES < moved <= SPECIAL_BYTES]
            found |= {random.choice(large)} if large else set()
        return frozenset(found)

    def _too_large(self, workload: Workload) -> str:
        """Why this device cannot judge it, in slices neither; "" where it can."""
        said = too_large(self.spec, workload, self.device_bytes)
        return said and too_large(self.spec, workload, self.device_bytes, sliced=bool(self._axis_of_slices))

    def _left_out(self) -> tuple[str, ...]:
        of_device = self.spec, self.device, self.dtypes, self.device_bytes
        return explain_left_out(*of_device) and explain_left_out(*of_device, sliced=bool(self._axis_of_slices))

    @cached_property
    def _axis_of_slices(self) -> str:
        return rows_apart(self.kernel)

    def _slicing(self, workload: Workload) -> Slicing:
        if not too_large(self.spec, workload, self.device_bytes):
            return NOT_SLICED
        axis = self._axis_of_slices
        rows = slices.rows_at_once(self.spec, workload, axis, self.device_bytes, self.device)
        return Slicing(axis, rows, self.say)

    def slots(self, workload: Workload) -> int:
        """Argument sets that it is checked with: two calls are in flight at once of small ones only."""
        return 2 if self.moved_bytes(workload) <= SMALL_BYTES else 1

    def moved_bytes(self, workload: Workload) -> int:
        """Bytes that one call must read and write."""
        return self.spec.read_bytes(workload) + self.spec.write_bytes(workload)

    def key(self, *parts: str) -> str:
        """Key of an answer in the store: all that it depends on, and `parts`."""
        suite = [w.model_dump_json() for held_out in (False, True) for w in self.suite(held_out=held_out)]
        values = [f"{name}={','.join(v)}" for name, v in sorted(self.extra_values.items())]
        reference = self.kernel.defines_right()
        spec = self.spec.model_dump_json(exclude={"workloads"})
        exact = [f"exact to {self.settings.exact_to}"] if self.settings.exact_to else []
        return digest(VERSION, spec, reference, self.facts.model_dump_json(), *suite, *values, *exact, *parts)

    # --- build ---------------------------------------------------------------------------------------------------

    def backend(self, candidate: str) -> ModuleType:
        module = self.rules.backend(self.store.get(candidate))
        if missing := self.toolchain(module)[0]:
            raise MissingTool(missing)
        return module

    @abc.abstractmethod
    def toolchain(self, module: ModuleType) -> tuple[str, str]:
        """(why sources of that backend cannot be built, or "", compiler and flags that build them)."""

    @abc.abstractmethod
    def compile_into(self, candidate: str, module: ModuleType, into: Path) -> Build:
        """The source of that hash built into that folder by that backend, or why it could not be."""

    def content(self, name: str) -> bytes:
        return self.contents[name] if name in self.contents else self.store.get(name).encode()

    @cached_property
    def contents(self) -> dict[str, bytes]:  # type: ignore[override]
        """Headers of the kernel's."""
        return {digest(text): text for text in self.kernel.headers.values()}

    def build(self, candidate: str) -> Build:
        """Compile the source of that hash. Safe to call from several threads. Raises MissingTool without a compiler."""
        module = self.backend(candidate)
        _missing, identity = self.toolchain(module)
        self.measured[f"build, {backends.name_of(module)}"] = identity
        key = self.build_key(candidate, module)
        with self._building.of(key):
            kept = self.store.find_record("build", key, Build)
            if kept is not None and (not kept.ok or is_intact(kept)):
                return kept
            build = self._compiled(candidate, module, key)
            if build.ok:
                build = build.model_copy(update={"artefact_digest": digest_of(Path(build.artefact), ADDED_LATER)})
            self.store.keep("build", key, build)
            return build

    def build_key(self, candidate: str, module: ModuleType) -> str:
        """Key in the store of the build of that source by that backend."""
        brought = self.brought(candidate, module).digest()
        more = [brought] if brought else []
        return digest(
            candidate, module.__name__, self.toolchain(module)[1], *self._entry(candidate, module).values(), *more
        )

    def brought(self, candidate: str, module: ModuleType) -> Brought:
        """The kernel's headers and flags, for its own sources: not for ours, nor for what is no text for a compiler of C++."""
        if not hasattr(module, "FLAGS") or candidate in self.harness_sources:
            return Brought()
        settings = self.spec.build
        return Brought(settings.flags_on(self.device), settings.include, self.kernel.headers)

    def _entry(self, candidate: str, module: ModuleType) -> dict[str, str]:
        """A toolchain that binds the entry itself must know its name; the others build the same for every kernel."""
        return {} if candidate in self.harness_sources else backends.entry_of(module, self.spec, self.device)

    def _compiled(self, candidate: str, module: ModuleType, key: str) -> Build:
        def make(into: Path) -> Build:
            if getattr(module, "BINDS", False):  # half a minute and more, of which nothing else is seen
                self.say(f"{backends.name_of(module)} compiles")
            return self.compile_into(candidate, module, into)

        folder = self.store.build_folder(key)
        return machine.get_build(key, folder, make) if candidate in self._ours else make(folder)

    @cached_property
    def _ours(self) -> list[str]:
        """Hashes of the sources that every run builds: ours, and the baselines that the kernel came with."""
        baselines = [digest(path.read_text()) for path in self.kernel.folder.glob("baseline*") if path.is_file()]
        return [*self.harness_sources, *baselines]

    @cached_property
    def harness_sources(self) -> list[str]:
        """Hashes of the harness's own sources, which every run builds."""
        return [*self.beside(), self.store.put(roofs.source(self.device).read_text())]

    def is_ours(self, candidate: str) -> bool:
        """Whether what is found out about that source is this machine's to keep, for all runs."""
        return candidate in self._ours

    def beside(self) -> list[str]:
        """Hashes of the sources that are loaded beside a timed candidate."""
        ours = (speed_of_light.source(self.device), neighbours.BESIDE[self.device])
        return [self.store.put(path.read_text()) for path in ours]

    # --- workers -------------------------------------------------------------------------------------------------

    def memory(self, size: int) -> ArgumentBuffers:
        """An arena of at least `size` bytes; the workers let go of a smaller one."""
        return self.pool.make_buffers(size)

    def _neighbours(self) -> Path:
        """The library of what stands around a timed call: the kernels before and after it, or on a CPU the loop that makes it."""
        build = self.build(self.store.put(neighbours.BESIDE[self.device].read_text()))
        if not build.ok:
            raise RuntimeError(f"what stands around a timed call does not compile:\n{build.log}")
        return Path(build.artefact)

    def _least_memory(self) -> int:
        """Bytes of an arena that the largest workload of both suites fits into."""
        everything = (*self.suite(), *self.suite(held_out=True))
        return max(Layout(self.spec, one, self.slots(one), wide=True, shift=16).size for one in everything)

    def _look_at_box(self, worker: Worker) -> None:
        """Say once which layers of the sandbox are active; refuse to go on where they are required and missing."""
        if self.layers:
            return
        self.layers = tuple(worker.active)
        missing = tuple(sandbox.missing(worker.active))
        self.notices = (*self.notices, *missing)
        if missing and self.settings.sandbox_mode == "require":
            worker.close()
            self.close()
            raise MissingTool(f"--sandbox require: {'; '.join(missing)}")

    def open_comparison(
        self, workload: Workload, cache: Cache, on: TimingContext = "plain", *, kernel: Kernel | None = None
    ) -> ABComparison:
        """One workload in one cache state and timing context, ready to be run."""
        pace_us = self.paces_us.get(workload.label, 0.0) if kernel is None else 0.0
        cache_bytes = self.facts.last_level_cache_bytes
        extra = self.extra_values if kernel is None else None
        comparison = ABComparison(kernel or self.kernel, workload, cache, self.device, cache_bytes, on, pace_us, extra)
        comparison.open(self.memory(comparison.size))
        return comparison

    def chance_evidence(self, candidate: str, workload: Workload) -> ChanceEvidence:
        """What its timed calls of that workload have shown of chance in all comparisons since another was timed."""
        if self._chance_of != candidate:
            self._chance_of, self._chance = candidate, {}
        return self._chance.setdefault(workload.label, ChanceEvidence())

    def run(self, comparison: ABComparison, arms: list[Arm], **how: Any) -> ComparisonTimes:
        """`timing.run`, with the neighbours by themselves beside the sides where they are kernels."""
        pair = self._settled_pair(comparison)
        found = interleaved.run(comparison, arms, pair=pair, **how)
        comparison.pair = pair
        return found

    def find_fastest_us(self, comparison: ABComparison, arms: list[Arm], blocks: int) -> float:
        """`timing.find_fastest_us`, likewise."""
        return interleaved.find_fastest_us(comparison, arms, self._settled_pair(comparison), blocks)

    def _settled_pair(self, comparison: ABComparison) -> Arm | None:
        """The neighbours by themselves, where they are kernels, once every process that was dropped has ended."""
        self.pool.settle()
        if self.device != "cuda" or comparison.context == "alone":
            return None
        worker = self.pool.ours(PAIR, self._neighbours(), {PAIR: ("company_nothing",)})
        prepared = comparison.pair is not None and comparison.pair.worker is worker
        return comparison.pair if prepared else Arm(PAIR, worker, PAIR)

    def make_arm(self, name: str, build: Build) -> Arm:
        """Raises ArmFailure where its process cannot load."""
        try:
            return Arm(name, self.pool.get(build))
        except WorkerFailure as fault:
            raise ArmFailure(name, fault.outcome, fault.reason) from None

    def caches(self, workload: Workload) -> tuple[Cache, ...]:
        """A working set larger than the last-level cache is never hot."""
        return CACHES if self.moved_bytes(workload) <= self.facts.last_level_cache_bytes else CACHES[:1]

    def sol_us(self, workload: Workload, cache: Cache, on: TimingContext = "plain", *, again: bool = False) -> float:
        """The measured bound of this workload on this device in that cache state; `again` measures it once more."""
        text = speed_of_light.source(self.device).read_text()
        kernel, streaming = speed_of_light.kernel_for(self.spec, workload, self.device)
        key = digest("light", VERSION, self.facts.model_dump_json(), text, cache, on, kernel.spec.model_dump_json())
        everywhere = self.everywhere
        kept = machine.find_record(self.store, everywhere, "light", key, SpeedOfLight)
        if kept is not None and not again:
            return kept.microseconds
        self.say(f"measuring the speed of light at {workload.label}, {cache}")
        build = self.build(self.store.put(text))
        if not build.ok:
            raise RuntimeError(f"the speed-of-light probe does not compile:\n{build.log}")
        others = load.LoadWatch()
        comparison = self.open_comparison(streaming, cache, on, kernel=kernel)
        variants: dict[str, tuple[str, ...]] = {name: (name,) for name in speed_of_light.VARIANTS[self.device]}
        worker = self.pool.ours("light", Path(build.artefact), variants)
        # The fastest variant; each one's median, for a sample less its neighbours may come out short by chance.
        best = self.find_fastest_us(comparison, [Arm(name, worker, name) for name in variants], 5)
        best = min(best, kept.microseconds) if kept else best
        self.store.keep("light", key, SpeedOfLight(microseconds=best))
        # On a CPU what was measured beside others is too slow for those to come; a GPU's clock does not see who uses the cores.
        if everywhere is not None and (self.device == "cuda" or not others.warnings()):
            everywhere.keep("light", key, SpeedOfLight(microseconds=best))
        return best

    @cached_property
    def everywhere(self) -> Store | None:
        """What is kept on this machine for all its runs; None where nothing can be."""
        return machine.store()

    @abc.abstractmethod
    def measure_facts(self) -> DeviceFacts:
        """`facts` with what this device reaches at most: bandwidth, and FLOPs a second by dtype (harness/timing/roofs.py)."""

    def close(self) -> None:
        """End all workers, free the shared memory and the cases (gigabytes on a GPU). Safe to call twice."""
        self.pool.close()
        self.kernel.close()
        if self.cases.kept:
            self.cases.forget()  # a session and its pool hold each other, so it may be long until they are collected

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SpeedOfLight(Frozen):
    """A measured speed of light."""

    microseconds: float = Field(gt=0)


def map_buffers(
    session: EvaluationSession, worker: Worker, workload: Workload, slots: int, *, spec: Spec | None = None, **how: Any
) -> GuardedBuffers:
    """Argument sets of the workload in the arena, which the worker has mapped; `spec`: where it is not the session's; `how`:
    as Layout takes it."""
    spec = spec or session.spec
    layout = Layout(spec, workload, slots, **how)
    buffers = session.memory(layout.size)
    if buffers.id not in worker.mapped:
        worker.map(buffers)
    return GuardedBuffers(spec, buffers, layout, generator(session.device))
