"""What the harness says: frozen records, and an Outcome that is a closed enum.

The types refuse lies: no timing without PASSED, no PASSED without checks.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Literal

from pydantic import Field, model_validator

from kernels.spec import Device, Frozen, Workload

Cache = Literal["cold", "hot"]
Bound = Literal["memory", "latency", "compute", "launch", "at the limit", "unknown"]
"""Cause of the larger part of a kernel's lost time."""
TimingContext = Literal["plain", "pdl", "early", "alone"]
"""Kernels around a timed call: those that launch plainly; that take part in programmatic dependent launch and trigger
at their end, or at once; nothing (back to back with itself, which no model does)."""


class Roof(Frozen):
    """A measured rate of arithmetic, in 1e9 FLOPs a second, a multiply-add counted as two."""

    kind: Literal["vector", "matrix"]
    """The vector units by themselves, or a library's matrix product (tensor cores)."""
    dtype: str
    """Dtype of the inputs; `tf32` is float32 rounded."""
    gflops: float = Field(gt=0)


class DeviceFacts(Frozen):
    """What is known of the device, as read or measured there."""

    device: Device
    name: str
    architecture: str
    """`sm_90`, or the CPU's vector instruction set such as `avx512`."""
    units: int
    """Multiprocessors, or cores that this process may use."""
    last_level_cache_bytes: int
    bandwidth_gbps: float | None = None
    """Measured large-copy bandwidth, read plus write, in 1e9 bytes a second. This and what follows: harness/timing/roofs.py."""
    compute: tuple[Roof, ...] = ()
    core_gbps: float | None = None
    """1e9 bytes a second that one core of a CPU reads of what no cache holds."""
    region_us: float | None = None
    """Microseconds of an empty OpenMP region with all threads, the median, under the load that there was."""
    l1_bytes: int | None = None
    """Bytes of a core's data cache; None on a GPU, where it is what shared memory leaves."""
    l2_bytes: int | None = None
    shared_bytes: int | None = None
    """Bytes of a multiprocessor's shared memory, L1 not counted."""
    shared_block_bytes: int | None = None
    """Bytes of shared memory that one block may take, once the kernel has asked for more than 48 KiB (cudaFuncSetAttribute)."""
    registers: int | None = None
    """32-bit registers of a multiprocessor."""
    threads: int | None = None
    """Resident threads of a multiprocessor at most."""
    clock_mhz: int | None = None
    """The highest clock of the cores or multiprocessors; what they run at is measured beside each timing."""
    vector_bytes: int | None = None
    """Widest vector register of a core."""
    threads_per_core: int | None = None
    """Hardware threads that share a core: a CPU with SMT counts each of them as a unit."""
    generation: str = ""
    """Vendor, family, model and stepping of a CPU, whose name may say less."""
    huge_pages: str = ""
    """When Linux backs shared memory, in which a call's tensors lie, with huge pages: always, within_size, advise or never."""
    instructions: tuple[str, ...] = ()
    """Extensions of a CPU's instruction set that kernels care for, as /proc/cpuinfo names them."""

    def compute_roofs(self, dtype: str) -> dict[str, float]:
        """`vector` and `matrix` -> 1e9 FLOPs a second that arithmetic on this dtype reaches at most; what was not measured
        is left out. A dtype that has no roof of its own is computed in float32."""
        found = {}
        for kind in ("vector", "matrix"):
            reached = {roof.dtype: roof.gflops for roof in self.compute if roof.kind == kind}
            if (rate := reached.get(dtype, reached.get("float32"))) is not None:
                found[kind] = rate
        return found


class Outcome(StrEnum):
    """How one candidate ended. A candidate's failure is an Outcome; a failure of ours is an exception."""

    PASSED = "PASSED"
    COMPILE_ERROR = "COMPILE_ERROR"
    MISSING_ENTRY = "MISSING_ENTRY"
    RUNTIME_ERROR = "RUNTIME_ERROR"
    TIMEOUT = "TIMEOUT"
    OUT_OF_RESOURCES = "OUT_OF_RESOURCES"
    WRONG_SHAPE = "WRONG_SHAPE"
    WRONG_DTYPE = "WRONG_DTYPE"
    INCORRECT = "INCORRECT"
    CHEATED = "CHEATED"


class Comparison(StrEnum):
    FASTER = "FASTER"
    SLOWER = "SLOWER"
    SAME = "SAME"
    UNCLEAR = "UNCLEAR"


class Interval(Frozen):
    """A median and the confidence interval around it."""

    median: float
    low: float
    high: float


class Check(Frozen):
    """One comparison with the reference (or of guards, inputs, repeatability) on one workload."""

    workload: str
    name: str
    """Name of what was checked: a value distribution (`ordinary`), or `guards`, `inputs unchanged`, `second call` ..."""
    passed: bool
    error: float = 0.0
    """Largest |candidate - reference| in units of the tolerance; 1.0 is the limit."""
    tolerance: str = ""
    message: str = ""


class Timing(Frozen):
    """Time of one call on one workload in one cache state, against the baseline's, interleaved."""

    workload: Workload
    cache: Cache
    company: TimingContext = "plain"
    baseline_us: float = Field(gt=0)
    time_us: float = Field(gt=0)
    speedup: Interval
    """baseline time / candidate time."""
    comparison: Comparison
    against_incumbent: Interval | None = None
    """incumbent time / candidate time, where an incumbent other than the baseline was measured beside it."""
    incumbent_us: float | None = None
    incumbent_speedup: Interval | None = None
    """baseline time / incumbent time, in the same contest."""
    light_us: float | None = None
    """Speed of light: what this device needs to move the bytes at this size and mix; never less than an empty launch."""
    moved_bytes: int | None = None
    """Bytes that one call must read and write."""
    flops: int | None = None
    """Floating-point operations of one call, as the spec says; None where it does not."""
    compute_us: float | None = None
    """Microseconds that the highest measured roof of arithmetic in its dtype needs for them; None where they do not weigh
    (harness/timing/roofs.py)."""
    samples: int = Field(gt=0)
    others: float | None = None
    """Share of this machine's CPU, 0 to 1, that other processes took meanwhile; None where nobody looked."""
    note: str = ""

    @property
    def bound_us(self) -> float | None:
        """Speed of light, of memory or of arithmetic: whichever needs longer."""
        return max((us for us in (self.light_us, self.compute_us) if us is not None), default=None)

    @property
    def light_fraction(self) -> float | None:
        """Share of the speed of light reached, 1.0 at the bound."""
        return None if self.bound_us is None else self.bound_us / self.time_us


def sol_by_cache(timings: Iterable[Timing]) -> dict[Cache, float]:
    """Geometric mean of the share of the speed of light in each cache state, cold first; none where no bound is known."""
    shares: dict[Cache, list[float]] = {"cold": [], "hot": []}
    for timing in timings:
        if timing.light_fraction:
            shares[timing.cache].append(timing.light_fraction)
    return {cache: statistics.geometric_mean(here) for cache, here in shares.items() if here}


def geometric_light(timings: Iterable[Timing]) -> float | None:
    """Geometric mean of the share of the speed of light over all that were timed; None where no bound is known."""
    shares = [timing.light_fraction for timing in timings if timing.light_fraction]
    return statistics.geometric_mean(shares) if shares else None


class Suite(Frozen):
    """Geometric mean of the speedups of a set of timings; where workloads have weights, of the time of all calls."""

    speedup: Interval
    comparison: Comparison
    weighted: bool = False
    withheld: str = ""
    """Why it is UNCLEAR although its interval says FASTER, "" where it is not."""


class Build(Frozen):
    """A compiled candidate, or why it is none. `artefact` is a path in the store, named by content."""

    candidate: str
    backend: str
    ok: bool
    artefact: str = ""
    artefact_digest: str = ""
    """sha256 of the artefact, hex: one that was cut short or changed is built again."""
    log: str = ""
    seconds: float = 0.0
    resources: dict[str, str] = Field(default_factory=dict)
    """Figures of the compiler on each kernel: registers, spills, shared memory, by kernel name."""


class Draws(Frozen):
    """Independent inputs beyond those of the checks, every one of which the candidate got right."""

    count: int = Field(gt=0)
    bitwise: int = Field(ge=0)
    """Draws whose outputs equalled the baseline's in every bit."""
    error: float
    """Largest of the candidate, in units of the tolerance; 1.0 is the limit."""
    baseline_error: float
    differing: dict[str, float] = Field(default_factory=dict)
    """Output -> share of its elements (of codes, where it holds such) over all draws that are not the baseline's in every bit."""

    @property
    def equality(self) -> Literal["bitwise", "within tolerance"]:
        return "bitwise" if self.bitwise == self.count else "within tolerance"

    @property
    def excluded(self) -> float:
        """The failure rate that so many draws without a failure exclude with 95 % confidence: (1 - rate) ** count = 0.05."""
        return 1 - 0.05 ** (1 / self.count)


class Launch(Frozen):
    """What the launch path of one call takes the host, by the worker's own clock, in microseconds."""

    baseline_us: float = Field(gt=0)
    time_us: float = Field(gt=0)


class EpochGain(Frozen):
    """Epochs of mini-batch training with the baselines against epochs with these kernels' best, in turn (minibatch/trial.py)."""

    kernels: tuple[str, ...]
    graph: str = ""
    rung: str = ""
    nodes: int
    edges: int
    """Edges sampled in an epoch."""
    pairs: int
    speedup: Interval
    comparison: Comparison
    baseline_s: float = Field(gt=0)
    time_s: float = Field(gt=0)
    """Medians of an epoch."""
    baseline_accuracy: float | None = None
    accuracy: float | None = None
    """Accuracy on validation ids; None where the graph has none."""


class Verdict(Frozen):
    """All that the harness says of a candidate."""

    candidate: str
    """sha256 of the source, hex."""
    kernel: str
    device: str
    outcome: Outcome
    reason: str = ""
    checks: tuple[Check, ...] = ()
    timings: tuple[Timing, ...] = ()
    """Timings between plain neighbours, which decide."""
    elsewhere: tuple[Timing, ...] = ()
    """Timings in other contexts, for the report."""
    suite: Suite | None = None
    """Speedup over the baseline, over the timings."""
    suites_elsewhere: dict[TimingContext, Suite] = Field(default_factory=dict)
    draws: Draws | None = None
    launch: Launch | None = None
    suite_incumbent: Suite | None = None
    against: dict[str, Suite] = Field(default_factory=dict)
    """Other baseline's name, such as torch.compile of a problem's Model -> the speedup over it."""
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """Notes for the reader: how right was defined, whose kernels worked, what could not be seen."""
    degenerate: tuple[str, ...] = ()
    """Sources that pass KernelBench's check on a problem without computing."""
    build: Build | None = None
    seconds: float = 0.0

    @model_validator(mode="after")
    def _honest(self) -> Verdict:
        self._refuse_lies()
        return self

    def failed(self, outcome: Outcome, reason: str, **more: Any) -> Verdict:
        """What is known of the candidate, without its times: it has failed since. `more`: other fields.

        The one way from a verdict to a failed one.
        """
        if outcome is Outcome.PASSED:
            raise ValueError("PASSED is no failure")
        return Verdict.model_validate(
            dict(self)
            | {"timings": (), "elsewhere": (), "suite": None, "suites_elsewhere": {}, "suite_incumbent": None, "against": {}}
            | more
            | {"outcome": outcome, "reason": reason}
        )  # fmt: skip

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Verdict:
        """With other values, which must fit together as a new verdict's: pydantic's own copy looks at none."""
        if "outcome" in (update or {}):
            raise ValueError("a verdict's outcome is not changed in a copy: see Verdict.failed")
        copied = super().model_copy(update=update, deep=deep)
        copied._refuse_lies()
        return copied

    def _refuse_lies(self) -> None:
        if self.outcome is Outcome.PASSED:
            if not self.checks:
                raise ValueError("PASSED without a single check")
            failed = [check.name for check in self.checks if not check.passed]
            if failed:
                raise ValueError(f"PASSED with failed checks: {', '.join(failed)}")
        elif self.timings or self.suite or self.suite_incumbent or self.against:
            raise ValueError(f"{self.outcome} with timings: only a PASSED candidate has a time")
        elif not self.reason:
            raise ValueError(f"{self.outcome} without a reason")

    @property
    def passed(self) -> bool:
        return self.outcome is Outcome.PASSED
