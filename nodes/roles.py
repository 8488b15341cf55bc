"""What an agent is asked and what it may answer. A policy is whoever answers: rules, a chat model, a recording.

Requests carry facts only; answers are frozen records, so they can be checkpointed, recorded and replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar, runtime_checkable

from pydantic import BaseModel, Field

from harness.records import Bound, DeviceFacts, Interval, Outcome, Timing
from kernels.spec import Frozen, Spec, Workload
from nodes.ledger import LedgerEntry
from nodes.lesson import Lesson, fitting
from nodes.options import Role
from nodes.rewrites.specialize.version import Version

Asked = TypeVar("Asked", bound="AgentRequest")
Answer = TypeVar("Answer")


class Usage(Frozen):
    """What answers have cost so far. Money is None as soon as one answer's price is unknown."""

    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    money_usd: float | None = 0.0

    def plus(self, other: Usage) -> Usage:
        one, two = self.money_usd, other.money_usd
        money = None if one is None or two is None else one + two
        return Usage(
            calls=self.calls + other.calls,
            tokens_in=self.tokens_in + other.tokens_in,
            tokens_out=self.tokens_out + other.tokens_out,
            money_usd=money,
        )


NEAR = 0.3
"""Share of the speed of light from which bytes that move, or operations, may be what bounds a kernel."""


class Finding(Frozen):
    """What bounds the incumbent, with the numbers."""

    bound: Bound
    summary: str
    light_fraction: float | None = None
    """Geometric mean over the timed workloads of speed of light / time."""
    numbers: dict[str, float] = Field(default_factory=dict)
    """Named figures with the unit in the name: `registers`, `load_width_bytes`, `cold_percent_of_sol` ..."""
    edit: str = ""
    """The one change that the numbers ask for, "" where they ask for none."""
    slow_workloads: tuple[str, ...] = ()
    """Labels of the workloads farthest from their bound, worst first."""
    probes: dict[str, dict[str, str]] = Field(default_factory=dict)
    """Readings of the probes that the answer was based on: the request's probes. The node adds it, no policy needs to."""
    of: str = ""
    """Hash of the source that it is about. The node adds it."""
    spec_doubt: str = ""
    """Why the spec may count more bytes or operations than a call needs; "" where nobody doubts it."""

    @property
    def likely_bound(self) -> Bound:
        """Nothing is bound by memory at a hundredth of its pace: what is far from every limit waits for something else."""
        far = self.light_fraction is not None and self.light_fraction < NEAR
        return "latency" if self.bound in ("memory", "at the limit") and far else self.bound


class Plan(Frozen):
    """One change to make to the incumbent, and what it should do to which number."""

    id: str
    title: str
    steps: tuple[str, ...] = Field(min_length=1)
    """Names of rewrites in order where rules plan; what to do, one sentence each, where a model does."""
    rationale: str = ""
    expected_speedup: float | None = None
    base: str = ""
    """Hash of the source that the plan starts from; the incumbent's unless the planner says otherwise."""
    version: Version | None = None
    """Set where the plan is to put another form beside the base's."""
    spec_doubt: str = ""
    """The planner's doubt, as in Finding."""


COMPILED_FIRST = "compiled"
"""Id of the plan under which the compiler's source was tried before any round (nodes/compiled_first.py)."""
MOST_ATTEMPTS = 24
"""The last ones, which a prompt shows."""


class Attempt(Frozen):
    """What one plan came to. A round ends in exactly one attempt for each of its plans."""

    round: int
    plan: Plan
    candidate: str = ""
    """Hash of the source, empty where no source came out of the plan."""
    outcome: Outcome | Literal["NO_CANDIDATE", "REFUSED"]
    reason: str = ""
    accepted: bool = False
    speedup: float | None = None
    """Speedup over the baseline; None, never 0, where it did not pass."""
    brief_speedup: float | None = None
    """Speedup over the baseline in the short comparison after which it was not timed in full (nodes/screening.py); no
    verdict's."""
    speedup_low: float | None = None
    speedup_high: float | None = None
    comparison: str = "UNCLEAR"
    """FASTER, SLOWER, SAME or UNCLEAR against the baseline."""
    against_incumbent: str = "UNCLEAR"
    gain: float | None = None
    """Median speedup over the incumbent of that moment."""
    gain_low: float | None = None
    gain_high: float | None = None
    """Bounds of the gain's interval (99 %)."""
    over: str = ""
    """Hash of the incumbent of that moment, which it was measured beside."""
    gains: tuple[Interval, ...] = ()
    """Gains over that source, one a timing, in the order of every verdict's timings."""
    contested: str = ""
    """Hash of the incumbent beside which it was contested again, because it had been UNCLEAR (nodes/contest.py)."""
    contests: int = 0
    """Number of repeated comparisons behind `contested`."""
    tuned: dict[str, int] = Field(default_factory=dict)
    tuning: str = ""
    """Sentence of the search of the open integers: how many of the variants it tried, and whether one was clearly faster."""
    evidence: dict[str, dict[str, str]] = Field(default_factory=dict)
    """Evidence of what it was compiled to and its counters, by probe: a reason for a failure or for a time."""
    spec_doubt: str = ""
    """The coder's doubt, as in Finding."""
    remarks: tuple[str, ...] = ()
    """Remarks of coder and reviewer on it, oldest first."""
    conversation: str = ""
    """Name in the store of what was said with a coder that works with tools; a single agent goes on in it."""
    trials: str = ""
    """Name in the store of what was known then of this source and of those that were tried on the way (nodes/ledger.py)."""
    repairs: int = 0
    seconds: float = 0.0
    turns: int = 0
    """Answers of a coder with tools."""
    tools: dict[str, int] = Field(default_factory=dict)
    """Calls of each tool, by name."""
    tool_seconds: float = 0.0
    """What they took."""


class Standing(Frozen):
    """Where a run stands when a round is planned: what is left of it, and how right was defined."""

    rounds: int
    stale_rounds: int = 0
    """Rounds without a gain up to now."""
    patience: int
    """Rounds without a gain that end the run."""
    seconds_left: float | None = None
    tokens_left: int | None = None
    money_usd_left: float | None = None
    tolerances: tuple[str, ...] = ()
    """Relative and absolute tolerance of an output at a workload, one sentence each, in the checker's words."""
    worst_error: float | None = None
    """The baseline's, in units of the tolerance."""

    def sentences(self, round_: int) -> str:
        said = [f"This is round {round_} of {self.rounds}."]
        left = [f"{self.seconds_left:.0f} s"] if self.seconds_left is not None else []
        left += [f"{self.tokens_left:,} tokens"] if self.tokens_left is not None else []
        left += [f"${self.money_usd_left:.2f}"] if self.money_usd_left is not None else []
        said += [f"Left of the run's budget: {', '.join(left)}."] if left else []
        if self.patience <= self.rounds - round_ + self.stale_rounds:
            said.append(
                f"The run ends after {self.patience} rounds in a row without a gain; now it is {self.stale_rounds}."
            )
        return " ".join(said)


class AgentRequest(Frozen, Generic[Answer]):
    """What an agent is asked; its answer is an `Answer`."""

    role: ClassVar[Role]
    spec: Spec
    device: DeviceFacts


class TesterAnswer(Frozen):
    """Workloads and value distributions to add to the suite. Nothing can be removed or loosened."""

    workloads: tuple[Workload, ...] = ()
    values: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Input tensor's name -> distributions to add, from the closed set of `kernels.spec.Values`."""
    reasons: str = ""


class TesterRequest(AgentRequest[TesterAnswer]):
    role = "tester"
    __test__: ClassVar[bool] = False  # pytest collects what begins with Test

    baseline_source: str


class DraftAnswer(Frozen):
    """A whole ModelNew (harness/backends/model_new.py), or "" with the reason why there is none."""

    source: str = ""
    reason: str = ""
    notes: tuple[str, ...] = ()
    """What was rewritten, and the algebra that makes it true; what stays with libraries."""


class DraftRequest(AgentRequest[DraftAnswer]):
    """For problems: a PyTorch module is not yet a kernel."""

    role = "drafter"
    problem: str
    """The problem's text: Model, get_inputs(), get_init_inputs()."""
    numerics: str = "eager"
    """eager: rounded where eager torch rounds; fp32: no TF32."""
    source: str = ""
    """The draft that failed, on a repair."""
    failure: str = ""
    """The compiler's or the checker's own words, trimmed, on a repair."""
    repair: int = 0


class ProfilerRequest(AgentRequest[Finding]):
    role = "profiler"
    source: str
    timings: tuple[Timing, ...]
    probes: dict[str, dict[str, str]] = Field(default_factory=dict)
    """Probe's name -> its readings, or {"unavailable": why}."""
    round: int = 0
    """0 where the asker did not say."""


class Objection(Frozen):
    plan: Plan
    reason: str


class PlannerRequest(AgentRequest[tuple[Plan, ...]]):
    role = "planner"
    finding: Finding
    incumbent: str
    """Hash of the incumbent's source."""
    source: str
    attempts: tuple[Attempt, ...]
    timings: tuple[Timing, ...] = ()
    """The incumbent's, over the visible suite, from the last contest that it took part in."""
    sources: dict[str, str] = Field(default_factory=dict)
    """Hash -> source of every candidate that PASSED, so that a plan may start from another than the incumbent."""
    width: int = 1
    round: int = 1
    memory: tuple[Lesson, ...] = ()
    """Lessons that earlier runs learned of this family on such a device, the most telling first."""
    reference: str = ""
    """The text of the kernel's reference.py; "" where there is none, or where a module says what is right."""
    exact: bool = False
    """Whether a candidate must be the baseline in every bit."""
    ledger: tuple[LedgerEntry, ...] = ()
    """Every source that the run has tried."""
    standing: Standing | None = None
    tools: bool = False
    """Whether the coder may work with tools."""
    rewrites: dict[str, str] | None = None
    """Rewrite -> what it does, where rules carry the plans out: a plan's steps must be these names. The policy that is asked adds it."""
    objections: tuple[Objection, ...] = ()
    """Plans of this round that the reviewer did not agree to: others are wanted in their place."""


class CoderAnswer(Frozen):
    """A whole file, or "" with the reason why there is none."""

    source: str = ""
    reason: str = ""
    spec_doubt: str = ""
    """The coder's doubt, as in Finding."""


class CoderRequest(AgentRequest[CoderAnswer]):
    role = "coder"
    finding: Finding
    plan: Plan
    source: str
    """The source that the plan starts from; on a repair, the source that failed."""
    origin: str = ""
    """The source that the plan starts from, on a repair."""
    other: str = ""
    """The source that the plan's version comes from, where it has one."""
    failure: str = ""
    """The compiler's or the checker's own words, trimmed, on a repair."""
    outcome: Outcome | None = None
    repair: int = 0
    round: int = 0
    """0 where the asker did not say."""
    memory: tuple[Lesson, ...] = ()
    incumbent_source: str = ""
    reference: str = ""
    """Text of the kernel's reference.py, as in PlannerRequest."""
    exact: bool = False
    timings: tuple[Timing, ...] = ()
    """The incumbent's, as the planner has them."""
    attempts: tuple[Attempt, ...] = ()
    ledger: tuple[LedgerEntry, ...] = ()
    standing: Standing | None = None
    stale_rounds: int = 0
    """Rounds since the incumbent last changed."""


FORGOTTEN = 12
"""Attempts are left out so many at a time: a list that loses its first line each round is a new one to a server's cache."""


def recall(request: PlannerRequest | CoderRequest) -> dict[str, Any]:
    """A prompt's variables for what is known: the last attempts, how many earlier ones are left out, lessons of other runs that fit."""
    over = max(0, len(request.attempts) - MOST_ATTEMPTS)
    earlier = -(-over // FORGOTTEN) * FORGOTTEN
    lessons = fitting(request.memory, request.spec.name, request.device.architecture, request.finding.bound)
    return {"attempts": request.attempts[earlier:], "earlier": earlier, "memory": lessons}


class ToolCall(Frozen):
    """A tool that a model wants to have called."""

    id: str
    name: str
    arguments: str
    """JSON, or what the model wrote in its place."""


class Turn(Frozen):
    """One answer of a coder that works with tools, and what came of it."""

    name: str
    """Hash of all that was said up to this answer and of the model's name for it: the next turn's question begins so."""
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    results: tuple[str, ...] = ()
    """One for each call."""
    reply: str = ""
    """Text that the model is told next, after an answer that called nothing, or after the last turn."""


class Asking(Frozen):
    """The turns in which a coder worked on one request."""

    request: CoderRequest
    turns: tuple[Turn, ...] = ()
    """Oldest first."""


class Conversation(Frozen):
    """All that was said with a coder about one draft: its first source, then each repair."""

    askings: tuple[Asking, ...] = ()


class TurnRequest(Frozen):
    request: CoderRequest
    turns: tuple[Turn, ...] = ()
    """Earlier turns on this request, oldest first."""
    earlier: Conversation = Conversation()
    """Messages before this request, where it is a repair of what was written in turns."""
    most_turns: int
    """Turns that the model is told it has."""
    tool_seconds: float
    compiler: bool = True
    """Whether Astrolabe's compiler writes a source for the operation: without one its tools are not offered."""


class TurnsEnded(Exception):
    """No further turn of this conversation can be had. The message is one sentence.

    `oneshot`: whoever answers without tools may still be asked.
    """

    def __init__(self, sentence: str, *, oneshot: bool) -> None:
        super().__init__(sentence)
        self.oneshot = oneshot


class Review(Frozen):
    """Whether the plan may be coded, or the candidate be built, checked and timed."""

    agrees: bool
    reason: str = ""
    """Reason for not agreeing: what is wrong and what would mend it."""


class ReviewRequest(AgentRequest[Review]):
    role = "reviewer"
    finding: Finding
    plan: Plan
    base: str
    """The source that the plan starts from."""
    source: str = ""
    """Source that the coder made of it; "" where the plan itself is to be agreed to."""
    tools: tuple[str, ...] = ()
    """Reports of the coder's tools on its sources, oldest first, where it worked with tools."""
    timings: tuple[Timing, ...] = ()
    """Times of the best source so far, as the planner has them."""
    standing: Standing | None = None
    attempts: tuple[Attempt, ...] = ()
    ledger: tuple[LedgerEntry, ...] = ()
    round: int = 1


class Policy(Protocol):
    """Answers for any role. `answer` may block; it must be safe to call from several threads (`--width`)."""

    name: str

    def answer(self, request: AgentRequest[Answer]) -> Answer: ...
    def usage(self) -> dict[Role, Usage]:
        """What this policy object has spent since it was made, by role. Answers that were replayed cost nothing."""
        ...


@dataclass(frozen=True)
class Prompt(Generic[Answer]):
    """How a model is asked one request, and how its answer is read (nodes/policies/model.py)."""

    step: str
    """Name of the question in the transcript; a replay finds the answer by it and by `facts`."""
    facts: dict[str, str]
    """Facts of the request that were not measured, beside kernel, device and spec."""
    variables: dict[str, Any]
    """Variables of the template nodes/prompts/<role>.md, beside spec and device."""
    read: Callable[[str], Answer]
    """Raises UnfitReply."""
    form: type[BaseModel] | None = None
    """Record that a model answers as JSON; None where it answers a header and code."""
    base: str = ""
    """The source that an answer's edits change."""
    stage: str = ""
    """Part of single.md that asks the single agent, where it has no template of the role's own."""
    otherwise: str = ""
    """Sentence on what becomes of the run without the answer."""
    nothing: str = ""
    """Sentence for an answer that holds nothing."""


@dataclass(frozen=True)
class Agent(Generic[Asked, Answer]):
    """A role: what options, policies, budgets, the transcript, the display and the pictures need to know of it."""

    nodes: dict[str, str]
    """Node of the graph -> what the display says while it works."""
    without: Callable[[Asked, str], Answer]
    """The answer where nobody can be asked, or no answer can be used; with the reason."""
    prompt: Callable[[Asked], Prompt[Answer]]
    answer_tokens: int = 6_000
    """Most tokens of one answer of a model, reasoning included; several models allow 16,384. Reserved before each call."""
    option: str = ""
    """The option of a run that asks for this agent; "" where every run has it."""
    several_models: bool = False
    """Whether several models may take turns in the role (`--model-<role> A,B`)."""


@runtime_checkable
class ToolUser(Protocol):
    """A policy whose coder may work with tools."""

    def turn(self, request: TurnRequest) -> Turn | None:
        """The next answer, without results; None where it works without tools here. Raises PolicyPaused, TurnsEnded."""
        ...


class PolicyPaused(Exception):
    """The answer cannot be had now (a server is down, a budget is spent); the run stops at its checkpoint.

    The message is one clear sentence for the user. `resume` asks the same request again.
    """
