"""The typed arguments of each tool. Their descriptions are what a model reads."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from harness.records import Cache
from kernels.spec import Device, Frozen, Spec, Workload

SOURCE_CHARS = 256_000
_CANDIDATE = "a source by the first digits of its name, as compile gave it; empty: the one compiled last"


def _take_lone(value: object) -> object:
    """A single one is a list of one, an empty name of none."""
    if isinstance(value, str):
        return (value,) if value.strip() else ()
    return (value,) if isinstance(value, dict) else value


def _write_number(value: object) -> object:
    """A number as it stands in a source."""
    finite = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    return str(int(value) if isinstance(value, bool) else value) if finite else value


Lone = BeforeValidator(_take_lone)
Defined = Annotated[str, BeforeValidator(_write_number, json_schema_input_type=str | float)]


class Edit(Frozen):
    """One replacement."""

    search: str = Field(min_length=1, max_length=SOURCE_CHARS, description="occurs exactly once, copied exactly")
    replacement: str = Field(default="", max_length=SOURCE_CHARS)


Then = Literal["check", "time", "profile", "submit"]
MOST_THEN = 4
_THEN = (
    "what to do with it at once where it builds, in this order; `submit` ends the work with the fastest that is right, unless its times "
    "are worse than the best so far's"
)
MOST_VARIANTS = 7


class Variant(Frozen):
    """The source changed, or another."""

    source: str = Field(default="", max_length=SOURCE_CHARS, description="another idea as a whole file")
    of: int = Field(default=0, ge=0, lt=MOST_VARIANTS, description="form of that earlier variant (1 ...)")
    define: dict[str, Defined] = Field(
        default={}, max_length=16, description="NAME: value, of `#define NAME value` lines"
    )
    edits: Annotated[tuple[Edit, ...], Lone] = Field(default=(), max_length=64)
    note: str = Field(default="", max_length=400)


class CompileArguments(Frozen):
    """Builds a source and names it. Answers with the compiler's errors, or its figures (registers, spills, shared memory, vectorised loops).
    With `variants` several: those that are right are timed in turns and ranked, and the fastest is the one compiled last."""

    source: str = Field(default="", max_length=SOURCE_CHARS, description="the whole file; or leave it empty and edit")
    base: str = Field(
        default="", max_length=64,
        description="what to edit: `baseline`, `best` (so far) or a source's name; empty: the one compiled last",
    )  # fmt: skip
    edits: Annotated[tuple[Edit, ...], Lone] = Field(
        default=(), max_length=64, description="applied to `base`, in order"
    )
    note: str = Field(default="", max_length=400, description="what is new, one line, for the ledger")
    variants: Annotated[tuple[Variant, ...], Lone] = Field(
        default=(), max_length=MOST_VARIANTS, description="more sources: forms of this one, or other ideas"
    )  # fmt: skip
    then: Annotated[tuple[Then, ...], Lone] = Field(default=(), max_length=MOST_THEN, description=_THEN)
    workloads: Annotated[tuple[str, ...], Lone] = Field(
        default=(), max_length=16, description="for `time` in `then`: as `time` takes them"
    )


class CheckArguments(Frozen):
    """Whether a source is right: every check but those of sizes that nobody is told. Says which check failed and by how much."""

    candidate: str = Field(default="", max_length=64, description=_CANDIDATE)


class TimeArguments(Frozen):
    """Times a source in turns with the baseline and the best so far, or with other sources, and ranks them; decides nothing. A source
    that was not checked is checked first. Samples of the same two sources add up over calls."""

    candidate: str = Field(default="", max_length=64, description=_CANDIDATE)
    against: Annotated[tuple[str, ...], Lone] = Field(
        default=(), max_length=4, description="other sources by name, in place of the best so far"
    )
    seconds: float = Field(
        default=25.0, ge=0, le=120,
        description="at most; series of samples until each comparison is decided, at least three",
    )  # fmt: skip
    workloads: Annotated[tuple[str, ...], Lone] = Field(
        default=(), max_length=16,
        description="labels of workloads or of any other size (its timed calls are checked), or `all`; none: the "
        "smallest and the largest",
    )  # fmt: skip
    caches: Annotated[tuple[Cache, ...], Lone] = Field(default=(), max_length=2, description="cold, hot; none: both")
    tune: bool = Field(
        default=False,
        description="instead: search its open `// tune:` integers for those seconds; says what each combination takes",
    )


class ProfileArguments(Frozen):
    """What bounds a source: hardware counters where they may be read, the hottest loops or stalls, the compiler's figures, bytes and
    operations; with `function` its machine code instead."""

    candidate: str = Field(default="", max_length=64, description=_CANDIDATE)
    function: str = Field(default="", max_length=200, description="part of a function's name")
    first_line: int = Field(default=1, ge=1, le=1_000_000, description="where the listing begins")


class ReadArguments(Frozen):
    """Shows a source, the difference of two, the attempts of earlier rounds, the ledger (a line for every source that was built), or what is
    known of such kernels."""

    what: Literal["source", "difference", "attempts", "ledger", "knowledge"]
    name: str = Field(
        default="",
        max_length=64,
        description="`baseline`, `best` (so far) or a source's name; empty: the one compiled last; of knowledge: a page, empty: this operation's",
    )
    to: str = Field(default="best", max_length=64, description="of a difference: what it is compared with")
    first_line: int = Field(default=1, ge=1, le=1_000_000)


class SubmitArguments(Frozen):
    """Ends the work on this plan or round: the source is built, checked and timed on all workloads, which decides. Or `none`, and why."""

    candidate: str = Field(default="", max_length=64, description=_CANDIDATE)
    notes: str = Field(default="", max_length=2000, description="what you changed and why it should be faster")
    spec_doubt: str = Field(
        default="", max_length=400,
        description="one sentence where the operation, as stated, counts more bytes or operations than a call needs; else empty",
    )  # fmt: skip
    none: str = Field(default="", max_length=2000, description="why no source is submitted; empty to submit one")


class ScheduleArguments(Frozen):
    """Shows the schedule of the source that Astrolabe's compiler writes from this operation's reference: its parameters as JSON, and what
    each means."""

    candidate: str = Field(
        default="",
        max_length=64,
        description="a source that Astrolabe's compiler wrote; empty: the best so far if it did, else its first one",
    )


class ScheduleEdit(Frozen):
    """One parameter of the schedule."""

    where: str = Field(
        min_length=1, max_length=120,
        description="a path: `float16.0.longest` of float16's version 0, `float16.0.1.items` of its kernel 1, "
        "`numbers.STREAM`; a version's own path with null removes it",
    )  # fmt: skip
    value: int | bool | None = None


class TryScheduleArguments(Frozen):
    """Builds the compiler's source with an edited schedule (without edits: as it is), as compile does. An edit that is not legal is refused
    with the reason."""

    candidate: str = Field(default="", max_length=64, description="whose schedule is edited; as in `schedule`")
    edits: Annotated[tuple[ScheduleEdit, ...], Lone] = Field(default=(), max_length=64, description="in order")
    record: str = Field(
        default="", max_length=SOURCE_CHARS, description="the whole schedule as JSON, in place of edits"
    )
    note: str = Field(default="", max_length=400, description="what is new, one line, for the ledger")
    then: Annotated[tuple[Then, ...], Lone] = Field(default=("check", "time"), max_length=MOST_THEN, description=_THEN)


Arguments = (
    CompileArguments | CheckArguments | TimeArguments | ProfileArguments | ReadArguments | SubmitArguments | ScheduleArguments
    | TryScheduleArguments
)  # fmt: skip
TOOLS: dict[str, type[Arguments]] = {
    "compile": CompileArguments,
    "check": CheckArguments,
    "time": TimeArguments,
    "profile": ProfileArguments,
    "read": ReadArguments,
    "submit": SubmitArguments,
    "schedule": ScheduleArguments,
    "try_schedule": TryScheduleArguments,
}


UNSAID = ("title", "default", "maxLength", "minLength", "minimum", "maxProperties")
"""Parts of a schema that a model reads in every request and has no use for: who goes beyond them is told so in one sentence."""


def schema(arguments: type[Frozen]) -> dict[str, Any]:
    """The JSON schema of a tool's arguments, without what its description says already and the titles that pydantic makes up."""

    def plain(node: Any, names: bool = False) -> Any:
        if isinstance(node, list):
            return [plain(one) for one in node]
        if not isinstance(node, dict):
            return node
        kept = {key: one for key, one in node.items() if names or (key not in UNSAID and one is not False)}
        return {key: plain(one, key in ("properties", "$defs")) for key, one in kept.items()}

    found: dict[str, Any] = plain(arguments.model_json_schema())
    found.pop("description", None)
    return found


MAKERS = ("compile", "try_schedule")
"""Tools that make a source: the last one's is meant where no name is given."""


def read_workload(label: str, spec: Spec, device: Device) -> Workload | None:
    """The workload that a label such as `float32 n=5` names; None where it names none of that spec's axes and dtypes."""
    dtype, *sizes = label.split() or [""]
    axes = {
        name: int(size)
        for name, _, size in (one.partition("=") for one in sizes)
        if size.isdecimal() and len(size) < 12
    }
    if dtype not in spec.dtypes or tuple(axes) != spec.axes or min(axes.values(), default=0) < 1:
        return None
    return Workload(axes=axes, dtype=dtype, devices=(device,))
