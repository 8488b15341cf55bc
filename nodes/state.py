"""The checkpointed facts of a run: hashes and small records, never sources or logs (those are in the store)."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

from pydantic import Field
from typing_extensions import TypedDict  # pydantic makes a schema of typing's only from Python 3.12 on

from harness.engines import EngineChoice
from harness.options import Option
from harness.records import Build, DeviceFacts, Timing, Verdict
from kernels.spec import Device, Frozen
from nodes.options import Role, RunOptions
from nodes.roles import Attempt, Finding, Plan, TesterAnswer, Usage

STATE_VERSION = 1
"""Raised when a field changes meaning; a resume under another version is refused by name."""


class Stop(Enum):
    """Why a run ended. Each is named in the result.

    Not a StrEnum: the PostgreSQL saver keeps whatever is a str as JSON, and it would come back without its type.
    """

    ROUNDS = "rounds"
    PLATEAU = "plateau"
    ENOUGH = "first look: --rounds 5 searches on"
    LIGHT = "speed of light"
    EXHAUSTED = "nothing left to try"
    SECONDS = "budget: seconds"
    TOKENS = "budget: tokens"
    MONEY = "budget: money"
    BASELINE = "baseline failed"


class Settings(RunOptions):
    """What the user asked for, decided. Fixed for the whole run; a resume reads it from the checkpoint."""

    run_id: str
    kernel: str
    """Name in the catalog, or the absolute path of a kernel folder."""
    device: Device
    policy: dict[Role, str]
    baseline: str
    """Name of the baseline that 1.0x is measured against, or the path that --source gave."""
    source: str
    """Hash of the baseline's source."""
    tune_seconds: float = Field(default=4.0, ge=0)
    """Upper bound on one search of a candidate's open integers; less where the run's budget is nearly spent."""
    tool_seconds: float = Field(default=120.0, gt=0)
    """Seconds of a coder's tools for one draft."""
    why: tuple[str, ...] = ()
    """Why this device and this policy, as said at the start."""
    draft: str = ""
    """Hash of the first candidate that the person gave for a problem; the drafter is not asked then."""
    engine: Annotated[EngineChoice, Option(absent=True)] = EngineChoice()
    """Where candidates are built, checked and timed."""
    compare: tuple[str, ...] = ()
    """Modes of torch.compile that a problem's winner is timed against, beside eager (harness/problems/pytorch.py)."""
    command: str = ""
    """The command line that does the same again."""

    def with_changes(self, **fields: Any) -> Settings:
        """With other values of those fields; one of a group is named without it. More rounds asked for are no first look."""
        if "rounds" in fields:
            fields = {"enough_seconds": None} | fields
        return Settings.model_validate(dict(self) | fields)


class Draft(Frozen):
    """A candidate of this round on its way to an Attempt."""

    plan: Plan
    candidate: str = ""
    build: Build | None = None
    verdict: Verdict | None = None
    tuned: dict[str, int] = Field(default_factory=dict)
    tuning: str = ""
    """Result of the search of the open integers: how many variants it tried, how much faster the best was."""
    lost: str = ""
    """Why it is not timed in full, though it PASSED (nodes/screening.py)."""
    brief_speedup: float | None = None
    """Speedup over the baseline by the short comparison in which it lost."""
    repairs: int = 0
    refused: str = ""
    """Why no source, or no further one, comes out of the plan. A draft that already failed keeps its verdict."""
    by_person: bool = False
    """The person refused it, rather than the coder giving up."""
    approved: str = ""
    """Hash of the source that the person said yes to."""
    objection: str = ""
    """Objection of the reviewer to the plan or the candidate; the planner or the coder is asked again."""
    agreed: str = ""
    """Hash of the candidate that the reviewer agreed to, or the plan's id."""
    remarks: tuple[str, ...] = ()
    """Remarks of coder and reviewer on it, oldest first; the planner reads them with the attempt."""
    trials: tuple[str, ...] = ()
    """Hashes of the sources that its coder tried with tools."""
    revisions: int = 0
    """Plans before this one in its place that the reviewer did not agree to."""
    notes: tuple[str, ...] = ()
    """Notes of the drafter on a problem's draft."""
    spec_doubt: str = ""
    seconds: float = 0.0
    turns: int = 0
    """Answers of a coder with tools."""
    tools: dict[str, int] = Field(default_factory=dict)
    """Calls of each tool, by name."""
    tool_seconds: float = 0.0
    """What they took."""
    conversation: str = ""
    """Name in the store of what was said with that coder (a Conversation); a repair goes on in it."""

    @property
    def failed(self) -> bool:
        return self.verdict is not None and not self.verdict.passed

    def awaits_coder(self, repairs: int) -> bool:
        """Nothing written yet, or what was written failed, or was objected to, and may still be repaired."""
        wrong = self.failed or bool(self.objection)
        return not self.refused and (not self.candidate or (wrong and self.repairs < repairs))


class Incumbent(Frozen):
    """The fastest candidate that PASSED; the baseline itself until one is clearly FASTER."""

    candidate: str
    verdict: Verdict
    round: int = 0
    seen: tuple[Timing, ...] = ()
    """Times of the last comparison beside a candidate that it took part in; () where there was none since its own."""

    @property
    def timings(self) -> tuple[Timing, ...]:
        return self.seen or self.verdict.timings


class Visits(Frozen):
    """How often a node finished, and the seconds that took."""

    count: int = 0
    seconds: float = 0.0


class Spent(Frozen):
    """What the run has used, over all its processes. Waiting for a person is not counted."""

    seconds: float = 0.0
    usage: dict[Role, Usage] = Field(default_factory=dict)
    nodes: dict[str, Visits] = Field(default_factory=dict)

    @property
    def total(self) -> Usage:
        total = Usage()
        for usage in self.usage.values():
            total = total.plus(usage)
        return total

    def after(self, node: str, seconds: float, usage: dict[Role, Usage]) -> Spent:
        """Once a node took that many seconds; `usage` is the run's, not the node's."""
        visits = self.nodes.get(node, Visits())
        return Spent(
            seconds=self.seconds + seconds,
            usage=usage,
            nodes=self.nodes | {node: Visits(count=visits.count + 1, seconds=visits.seconds + seconds)},
        )


def merge_attempts(left: list[Attempt], right: list[Attempt]) -> list[Attempt]:
    """Reducer: an attempt is named by round and plan, so a node that runs twice adds nothing twice.

    An attempt may come as a dict, from a person's edit in Studio.
    """
    both = [Attempt.model_validate(attempt) for attempt in [*left, *right]]
    merged = {(attempt.round, attempt.plan.id): attempt for attempt in both}
    return list(merged.values())


class State(TypedDict, total=False):
    version: int
    settings: Settings
    device: DeviceFacts
    tests: TesterAnswer
    draft: Draft
    """First candidate of a problem, made before any round."""
    baseline: Verdict
    incumbent: Incumbent
    finding: Finding
    memory: str
    """Key in the run's store of what it recalled before its first round (nodes/memory.py); "" is nothing."""
    round: int
    stale_rounds: int
    """Rounds since the incumbent last changed."""
    drafts: list[Draft]
    attempts: Annotated[list[Attempt], merge_attempts]
    spent: Spent
    stop: Stop
    held_out: Verdict
    answer: Verdict
    """Verdict on the candidate by which a problem counts: the winner, else the fastest that is right."""
    disqualified: str
    """Why the winner of the visible suite is no improvement after all: it failed on held-out workloads."""
