"""The only place that knows build -> verify -> measure.

An Evaluator holds what is warm for one kernel on one device: inputs, expected outputs, the baseline's worker, the
caches. Every answer is cached by content in the store, so asking twice costs nothing, and a resumed run re-evaluates
nothing that was finished.
"""

from __future__ import annotations

from pydantic import Field

from harness.records import Build, DeviceFacts, Verdict
from harness.store import Store
from kernels.catalog import Kernel
from kernels.spec import Device, Frozen, Workload


class Tuned(Frozen):
    """The variant that the search of a candidate's tunables picked."""

    candidate: str
    values: dict[str, int] = Field(default_factory=dict)
    tried: int = 0
    reason: str = ""


class Evaluator:
    """Not safe for several threads at once, `build` excepted. Use as a context manager: closing ends the workers."""

    def __init__(
        self,
        kernel: Kernel,
        device: Device,
        store: Store,
        *,
        dtypes: tuple[str, ...] = (),
        sandbox: str = "auto",
        extra_workloads: tuple[Workload, ...] = (),
        extra_values: dict[str, tuple[str, ...]] | None = None,
    ) -> None: ...

    facts: DeviceFacts
    notices: tuple[str, ...]
    """What the user should know at the start: missing sandbox layers, a throttled clock."""

    def extend(self, workloads: tuple[Workload, ...], values: dict[str, tuple[str, ...]]) -> None:
        """Adds what the tester proposed. Raises ValueError naming what the spec does not allow."""

    def build(self, candidate: str) -> Build:
        """Compile the source of that hash. Safe to call from several threads."""

    def verify(self, build: Build, *, held_out: bool = False) -> Verdict:
        """Correctness on the suite: PASSED with checks and no timings, or the candidate's failure."""

    def tune(self, candidate: str, *, seconds: float) -> Tuned:
        """Search the integers that the candidate leaves open, by building and measuring variants."""

    def measure(self, verdict: Verdict, *, baseline: str, incumbent: str | None = None, held_out: bool = False) -> Verdict:
        """The PASSED verdict with timings against the baseline (and the incumbent), interleaved."""

    def probes(self, build: Build) -> dict[str, dict[str, str]]:
        """What the cheap sources know of a build: probe's name -> readings, or {"unavailable": why}."""

    def close(self) -> None: ...

    def __enter__(self) -> Evaluator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
