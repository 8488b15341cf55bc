"""What a run is asked for and keeps as it is: each field is an option of run.py, its docstring the help (harness/options.py).

Light: `run.py --help` imports it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator, Field

from harness.options import Option, Options, whole_path
from nodes import agents

ROLES = agents.NAMES
if TYPE_CHECKING:
    Role = str
else:
    Role = Literal[ROLES]
AGENTS = (
    "agents\n--policy, --model, --tokens, --money, --answer-tokens and --effort also for\n  one role: "
    f"--model-coder ...\n  ({', '.join(ROLES)});\n  --model-coder A,B: on a plateau the next one writes"
)


class StopRule(Options):
    """When a run has tried enough; what it may use is in its Limits."""

    rounds: int = Field(default=5, ge=0)
    """Most rounds of plan, code, check and time."""
    patience: Annotated[int | None, Option(usual="half of --rounds, at least 3")] = Field(default=None, ge=1)
    """Stop after so many rounds without a gain."""
    enough_seconds: Annotated[
        float | None, Option(name="enough", usual="30 where rules answer and neither --rounds nor --seconds is given")
    ] = Field(default=None, ge=0)
    """With something FASTER, begin no round after so many seconds of work."""
    light_fraction: Annotated[float, Option("SHARE", "light")] = Field(default=0.97, gt=0, le=1.5)
    """Stop at this share of the speed of light ."""


class Limits(Options):
    """What a run may use; None is no limit."""

    seconds: float | None = Field(default=None, gt=0)
    """Stop after so many seconds of work."""
    tokens: int | None = Field(default=None, ge=0)
    """Most tokens that models may use."""
    money_usd: Annotated[float | None, Option("USD", "money")] = Field(default=None, ge=0)
    """Most money that models may cost."""
    role_tokens: Annotated[dict[Role, Annotated[int, Field(ge=0)]], Option(name="tokens")] = Field(default_factory=dict)
    role_money_usd: Annotated[dict[Role, Annotated[float, Field(ge=0)]], Option(name="money")] = Field(
        default_factory=dict
    )
    fallback: Annotated[
        Literal["rules", "pause"],
        BeforeValidator(lambda word: "pause" if word == "none" else word),  # as runs before 0.3 have it
        Option(name="when-spent", group=AGENTS),
    ] = "rules"
    """What happens once tokens or money are spent: rules answer from then on, or the run pauses."""


class Chat(Options):
    """Which models answer, and how their server is asked."""

    models: Annotated[dict[Role, str], Option("NAME", "model", every=True)] = Field(default_factory=dict)
    """Language model of --policy chat (key: OPENAI_API_KEY)."""
    interface: Literal["chat", "responses"] = "chat"
    """Interface of the model's server."""
    answer_tokens: Annotated[dict[Role, Annotated[int, Field(ge=1)]], Option("N", every=True)] = Field(
        default_factory=dict
    )
    """Most tokens of one answer, reasoning included (6,000 to 16,000 by role); doubled where one is cut off."""
    effort: Annotated[dict[Role, str], Option("LEVEL", every=True)] = Field(default_factory=dict)
    """Effort asked of a reasoning model, in its server's words: low, high, ..."""
    idle_seconds: Annotated[float | None, Option(usual="600")] = Field(default=None, gt=0)
    """Longest silence of a model's server."""
    answer_seconds: Annotated[float | None, Option(usual="3600")] = Field(default=None, gt=0)
    """Longest time for one answer."""
    prices: Annotated[str, whole_path(), Option("FILE")] = ""
    """Your own table of what models cost."""


class RunOptions(Options):
    """What a request and the run's Settings have alike."""

    dtypes: Annotated[tuple[str, ...], Option("DTYPE", "dtype")] = ()
    """Use only these dtypes of the spec; repeatable."""
    sandbox: Literal["auto", "require"] = "auto"
    """Require: refuse to start where a layer of the sandbox is missing."""
    own_kernels: Literal["some", "all"] = "some"
    """How much of a PyTorch module's work the candidate's own kernels must do; KernelBench asks for some."""
    numerics: Literal["eager", "fp32"] = "eager"
    """How the rules' draft of a PyTorch module rounds on a GPU: as eager torch does, TF32 in convolutions included, or
    without TF32."""
    stop: StopRule = StopRule()
    width: int = Field(default=1, ge=1)
    """Different plans in each round."""
    budget: Limits = Limits()
    repairs: int = Field(default=2, ge=0)
    """Most repairs of a candidate that does not build or is wrong."""
    exact: bool = False
    """Keep only sources whose outputs equal the baseline's in every bit."""
    memory: Literal["on", "off"] = "off"
    """On: read what earlier runs of such kernels learned, and leave it what this one learns."""
    approve: Literal["none", "plans", "candidates"] = "none"
    """Ask you before plans are coded, or candidates are built."""
    chat: Annotated[Chat, Option(group=AGENTS)] = Chat()
    review: Annotated[bool, Option(group=AGENTS)] = False
    """A reviewer must agree before a plan is coded and before a candidate is built; --model-reviewer asks for it too."""
    agents: Annotated[Literal["four", "single"], Option(group=AGENTS)] = "four"
    """Single: one agent, in one lasting conversation with tools."""
    coder: Annotated[Literal["tools", "oneshot"], Option(group=AGENTS)] = "oneshot"
    """How a model codes: in turns, compiling, checking, timing and profiling, where its server knows tools (tools); or
    in one answer with the whole source (oneshot)."""
    turns: Annotated[int, Option(group=AGENTS)] = Field(default=16, ge=1)
    """Answers of a coder with tools, for one plan."""
    transcript: Annotated[str, whole_path(), Option("FILE", group=AGENTS)] = ""
    """Recorded answers for --policy replay."""
