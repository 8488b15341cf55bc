"""The versioned record of a run: everything that `result.json`, the tables and the HTML report show.

Plain rows of its own, so that a reader needs neither the agents nor the graph. `python -m harness.report.result` prints
the JSON schema (kept in `docs/result.schema.json`).
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from harness.judge.in_model import ModelGain
from harness.records import (
    Cache,
    Comparison,
    DeviceFacts,
    Draws,
    EpochGain,
    Interval,
    Launch,
    Outcome,
    Suite,
    Timing,
    TimingContext,
)
from kernels.spec import Device, Dtype, Frozen

SCHEMA_VERSION: Literal[1] = 1
CONTRADICTION = 0.05
"""Share by which a speedup may miss the quotient of the two times beside it before a sentence says why."""
Status = Literal["running", "finished", "stopped", "paused", "failed"]
Hash = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]


class ResultRow(Frozen):
    model_config = ConfigDict(use_attribute_docstrings=True)  # the strings under the fields go into the schema

    @classmethod
    def made_from(cls, record: Frozen, **others: Any) -> Self:
        """The row with the fields that the record has too, and those others."""
        shared = cls.model_fields.keys() & type(record).model_fields.keys() - others.keys()
        return cls(**{name: getattr(record, name) for name in shared}, **others)


class PlanRow(ResultRow):
    id: str
    title: str
    steps: tuple[str, ...] = ()
    rationale: str = ""
    expected_speedup: float | None = None
    base: Hash = ""
    """sha256 of the source that the plan started from; "" means the baseline."""


class AttemptRow(ResultRow):
    """What one plan of one round came to. No speedup without PASSED."""

    round: int
    plan: PlanRow
    candidate: Hash = ""
    """sha256 of the source; "" where no source came out of the plan."""
    outcome: Outcome | Literal["NO_CANDIDATE", "REFUSED"]
    reason: str = ""
    comparison: Comparison = Comparison.UNCLEAR
    """The candidate against the baseline."""
    against_incumbent: Comparison = Comparison.UNCLEAR
    speedup: Interval | None = None
    """Baseline time / candidate time, geometric mean over the visible suite; None, never 0, if it did not pass."""
    gain: float | None = None
    """Median speedup over the incumbent of that moment."""
    accepted: bool = False
    tuned: dict[str, int] = Field(default_factory=dict)
    repairs: int = 0
    seconds: float = 0.0
    turns: int = 0
    """Answers of a coder that worked with tools."""
    tools: dict[str, int] = Field(default_factory=dict)
    """Calls of each tool, by name."""
    tool_seconds: float = 0.0
    """What they took."""

    @model_validator(mode="after")
    def _honest(self) -> AttemptRow:
        if self.outcome != Outcome.PASSED and (self.speedup or self.accepted):
            raise ValueError(f"round {self.round}: {self.outcome} with a speedup or accepted; only PASSED has either")
        return self


class Light(ResultRow):
    """The speed of light of one workload on this device."""

    us: float = Field(gt=0)
    fraction: float | None = None
    """Share of it that the best candidate reaches, 1.0 at the bound."""


class WorkloadRow(ResultRow):
    """One workload in one cache state: baseline and best candidate, interleaved."""

    axes: dict[str, int]
    dtype: Dtype
    held_out: bool = False
    cache: Cache
    company: TimingContext = "plain"
    baseline_us: float = Field(gt=0)
    best_us: float = Field(gt=0)
    speedup: Interval
    comparison: Comparison
    light: Light | None = None
    moved_bytes: int | None = None
    """Bytes that one call must read and write."""
    flops: int | None = None
    """Floating-point operations of one call, as the spec says."""
    samples: int = 0
    note: str = ""
    weight: float | None = None
    """Calls that a program makes at this size, where the spec says so."""

    @classmethod
    def of(cls, timing: Timing) -> WorkloadRow:
        workload, light = timing.workload, None
        if timing.bound_us is not None:
            light = Light(us=timing.bound_us, fraction=timing.light_fraction)
        sizes = {"axes": workload.axes, "dtype": workload.dtype, "held_out": workload.held_out}
        return cls.made_from(timing, **sizes, best_us=timing.time_us, light=light, weight=workload.weight)

    @classmethod
    def worst_of(cls, timings: Iterable[Timing]) -> WorkloadRow | None:
        """The one that gains least; None of fewer than two."""
        rows = sorted(map(cls.of, timings), key=lambda row: row.speedup.median)
        return rows[0] if len(rows) > 1 else None

    @property
    def gbps(self) -> float | None:
        """Bandwidth that the best candidate reached."""
        return self.moved_bytes / self.best_us * 1e-3 if self.moved_bytes else None

    @property
    def gflops(self) -> float | None:
        """Rate of arithmetic, in 1e9 operations a second."""
        return self.flops / self.best_us * 1e-3 if self.flops else None

    @property
    def label(self) -> str:
        """Sizes only, such as `tokens 64 · hidden 8192`."""
        return " · ".join(f"{axis} {size}" for axis, size in self.axes.items())


class FindingRow(ResultRow):
    """What bounds the candidate that the profiler last looked at: the incumbent at the start of a round."""

    bound: str
    summary: str
    probes: dict[str, dict[str, str]] = Field(default_factory=dict)
    """Probe -> its readings (`compiler`, `sass`, `ncu`), or {"unavailable": why}."""


class SpentRow(ResultRow):
    seconds: float = 0.0
    """Working time over all processes of the run; pauses do not count."""
    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    money_usd: float | None = 0.0
    """Money in USD; None where a price was unknown."""
    nodes: dict[str, float] = Field(default_factory=dict)
    """Node of the graph -> its part of `seconds`."""


class Versions(ResultRow):
    """`""` means not known or not there."""

    astrolabe: str = ""
    python: str = ""
    torch: str = ""
    compiler: str = ""
    driver: str = ""


class Answer(ResultRow):
    """A problem's fastest candidate that is right on visible and held-out workloads, or why it is not."""

    candidate: str
    outcome: Outcome
    reason: str = ""
    speedup: Interval | None = None
    against: dict[str, Interval] = Field(default_factory=dict)


class Result(ResultRow):
    """A run, finished or not. A field changes its meaning only together with `schema_version`."""

    schema_version: Literal[1] = SCHEMA_VERSION
    run_id: str
    kernel: str
    summary: str = ""
    """One line on what the kernel computes."""
    device: Device
    device_name: str = ""
    facts: DeviceFacts | None = None
    policy: str
    """`rules`, or `planner=chat, others rules`."""
    policies: dict[str, str] = Field(default_factory=dict)
    """Role -> policy."""
    baseline: str
    """Name of the baseline, or the user's file, that 1.0x is."""
    status: Status
    stop_reason: str = ""
    error: str = ""
    """Sentence on what went wrong where the status is `failed`, or what is awaited where it is `paused`."""
    dtypes: tuple[str, ...] = ()
    """Data types that were judged; all of the kernel's where none is named."""
    source: Hash = ""
    """sha256 of the baseline's source."""
    best: Hash = ""
    """sha256 of the incumbent's source; the baseline's where nothing was clearly faster."""
    best_round: int = 0
    """Round that made it; 0 is the baseline."""
    speedup: Interval | None = None
    """Best against baseline, cold and hot together: geometric mean over the visible suite, or of all calls' time by the workloads' weights."""
    worst: WorkloadRow | None = None
    """The visible workload that gains least, beside `speedup`; None of fewer than two."""
    speedup_cold: Interval | None = None
    speedup_hot: Interval | None = None
    held_out_speedup: Interval | None = None
    comparison: Comparison = Comparison.UNCLEAR
    held_out_outcome: Outcome | None = None
    """Outcome of the best on the held-out workloads; None where it has not met them."""
    held_out_comparison: Comparison | None = None
    held_out_reason: str = ""
    rounds: int = 0
    """Rounds that were asked for."""
    attempts: tuple[AttemptRow, ...] = ()
    workloads: tuple[WorkloadRow, ...] = ()
    elsewhere: tuple[WorkloadRow, ...] = ()
    """The best in other company than the plain one, which decides."""
    suites_elsewhere: dict[TimingContext, Suite] = Field(default_factory=dict)
    draws: Draws | None = None
    launch: Launch | None = None
    model: ModelGain | None = None
    """Gain of a model's step (`run.py model`)."""
    epoch: EpochGain | None = None
    """Gain of an epoch of mini-batch training (`run.py epoch --with RUN`)."""
    finding: FindingRow | None = None
    spent: SpentRow = SpentRow()
    sandbox: tuple[str, ...] = ()
    """Layers that were in force, such as `landlock`, `seccomp`, `no network`."""
    notices: tuple[str, ...] = ()
    """Sentences said at the start: a missing layer, a throttled clock, why this device and this policy."""
    warnings: tuple[str, ...] = ()
    answer: Answer | None = None
    """The candidate by which a problem counts; None where none was right."""
    problem: bool = False
    """Whether it is a PyTorch module that was made faster; its baseline is eager torch."""
    against: dict[str, Interval] = Field(default_factory=dict)
    """Speedup over other baselines by name: torch.compile's modes."""
    degenerate: tuple[str, ...] = ()
    """Sources that pass KernelBench's check on a problem without computing."""
    notes: tuple[str, ...] = ()
    """Notes on how right was defined, whose kernels worked, what the drafter said."""
    measured: dict[str, str] = Field(default_factory=dict)
    """Words on how it was measured, by heading (`clocks`, `tolerance`, `samples`, `timing` ...)."""
    command: str = ""
    """Command line that does the same again."""
    versions: Versions = Versions()
    commit: str = ""
    """Commit of Astrolabe's repository; "" where it does not run from one."""
    started: datetime | None = None
    finished: datetime | None = None

    @property
    def improved(self) -> bool:
        return bool(self.best) and self.best != self.source and self.comparison is Comparison.FASTER

    @property
    def untried(self) -> str:
        """What to do where the offline optimiser ended without a single attempt, or ""."""
        if self.attempts or self.status != "finished" or self.policies.get("planner") != "rules":
            return ""
        return "None of the offline optimiser's rewrites fits this source; --policy chat asks a language model (docs/agents.md)."

    @property
    def footnotes(self) -> tuple[str, ...]:
        """Sentences for numbers of this run that seem to contradict each other."""
        said = []
        quotients = (abs(math.log(row.baseline_us / row.best_us / row.speedup.median)) for row in self.workloads)
        if any(quotient > math.log(1 + CONTRADICTION) for quotient in quotients):
            said.append(
                "A speedup is the median over pairs timed in turn, so it need not be the quotient of the two medians "
                "beside it: where they differ much, the machine was busy."
            )
        kept = self.speedup.median if self.speedup else math.inf
        if any(row.speedup and not row.accepted and row.speedup.median > kept for row in self.attempts):
            said.append(
                "An attempt replaces the best so far by its gain over it, the two timed in turn. Speedups over the baseline "
                "are of different minutes, so one that was not kept may read higher than the best."
            )
        return tuple(said)

    def rows(self, *, held_out: bool) -> tuple[WorkloadRow, ...]:
        return tuple(row for row in self.workloads if row.held_out == held_out)

    @property
    def weighted(self) -> bool:
        """Whether the visible workloads' weights decide the speedup."""
        visible = [row for row in self.workloads if not row.held_out]
        return bool(visible) and all(row.weight for row in visible)

    @property
    def light_fraction(self) -> float | None:
        """Geometric mean over the visible workloads of the share of the speed of light; None where none is known."""
        shares = [row.light.fraction for row in self.rows(held_out=False) if row.light and row.light.fraction]
        return statistics.geometric_mean(shares) if shares else None


def policy_text(policies: Mapping[Any, str]) -> str:
    """`{"planner": "chat", "coder": "rules", ...}` as `planner=chat, others rules`."""
    if not policies:
        return ""
    common = Counter(policies.values()).most_common(1)[0][0]
    exceptions = [f"{role}={policy}" for role, policy in policies.items() if policy != common]
    return ", ".join([*exceptions, f"others {common}"]) if exceptions else common


def schema() -> str:
    """The JSON schema of `result.json`, as kept in `docs/result.schema.json`."""
    return json.dumps(Result.model_json_schema(mode="serialization"), indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    sys.stdout.write(schema())
