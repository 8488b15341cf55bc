"""The typed arguments of each tool. Their descriptions are what a model reads."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from harness.records import Cache
from kernels.spec import Frozen

SOURCE_CHARS = 256_000
_CANDIDATE = "first digits of a source's name, as compile gave it; empty: the one compiled last"


class Edit(Frozen):
    """One replacement."""

    search: str = Field(min_length=1, max_length=SOURCE_CHARS, description="occurs exactly once, copied exactly")
    replacement: str = Field(default="", max_length=SOURCE_CHARS)


class CompileArguments(Frozen):
    """Build a source; gives it a name. Says errors, or registers, spills and shared memory of each kernel."""

    source: str = Field(default="", max_length=SOURCE_CHARS, description="the whole file; or leave it empty and edit")
    base: str = Field(
        default="", max_length=64,
        description="what to edit: `baseline`, `best` (so far) or the name of a source; empty: the one compiled last",
    )  # fmt: skip
    edits: tuple[Edit, ...] = Field(default=(), max_length=64, description="applied to `base`, in order")
    note: str = Field(default="", max_length=400, description="what is new in it, one line: the ledger shows it")
    then: tuple[Literal["check", "time"], ...] = Field(
        default=(), max_length=2, description="what to do with it at once where it builds, in this order"
    )


class CheckArguments(Frozen):
    """Is it right? The visible suite, in the checker's words."""

    candidate: str = Field(default="", max_length=64, description=_CANDIDATE)


class TimeArguments(Frozen):
    """A short comparison beside the baseline and the best so far: takes seconds, decides nothing. Checks first what was not checked. Samples
    of the same two sources add up over calls."""

    candidate: str = Field(default="", max_length=64, description=_CANDIDATE)
    against: str = Field(
        default="", max_length=64, description="another source by its name, in the place of the best so far"
    )
    seconds: float = Field(
        default=0.0, ge=0, le=120,
        description="goes on for at most so long, until each comparison says something; 0: one pass of 5 to 7 samples",
    )  # fmt: skip
    workloads: tuple[str, ...] = Field(
        default=(), max_length=16,
        description="labels of the operation's workloads, or `all`; none: the smallest and the largest",
    )  # fmt: skip
    caches: tuple[Cache, ...] = Field(default=(), max_length=2, description="cold, hot; none: both")


class ProfileArguments(Frozen):
    """What bounds it: counters, stalls, the compiler's figures, the roofline; of one function the machine code."""

    candidate: str = Field(default="", max_length=64, description=_CANDIDATE)
    function: str = Field(
        default="", max_length=200, description="part of a function's name: its SASS or assembly instead of counters"
    )
    first_line: int = Field(default=1, ge=1, le=1_000_000, description="of the listing")


class ReadArguments(Frozen):
    """Sources, differences, attempts, the ledger of every source that was tried, what is known of such kernels."""

    what: Literal["source", "difference", "attempts", "ledger", "knowledge"]
    name: str = Field(
        default="",
        max_length=64,
        description="`baseline`, `best` (so far) or a source's name; empty: the one compiled last; of knowledge: a page",
    )
    to: str = Field(default="best", max_length=64, description="of a difference: what it is compared with")
    first_line: int = Field(default=1, ge=1, le=1_000_000)


class SubmitArguments(Frozen):
    """The end: this source is built, checked and timed officially. Or none, and why."""

    candidate: str = Field(default="", max_length=64, description=_CANDIDATE)
    notes: str = Field(default="", max_length=2000, description="what you changed and why it should be faster")
    spec_doubt: str = Field(
        default="", max_length=400,
        description="one sentence where the spec counts more work than a call must do; empty otherwise",
    )  # fmt: skip
    none: str = Field(default="", max_length=2000, description="why no source comes of this plan; then nothing is sent")


class ScheduleArguments(Frozen):
    """How the source that Astrolabe's compiler writes from this operation's reference is computed: a record of numbers, and what each
    may be. For try_schedule."""

    candidate: str = Field(
        default="",
        max_length=64,
        description="a source that Astrolabe's compiler wrote; empty: the best so far where it did, else its first",
    )


class ScheduleEdit(Frozen):
    """One field of the record."""

    where: str = Field(
        min_length=1, max_length=120,
        description="a path in the record: `float16.0.longest` of float16's version 0, `float16.0.1.items` of its kernel 1, "
        "`numbers.STREAM`; a version's own path with null removes it",
    )  # fmt: skip
    value: int | bool | None = None


class TryScheduleArguments(Frozen):
    """That source with other numbers in its record: refused with the reason where they are not legal, else built as by compile."""

    candidate: str = Field(default="", max_length=64, description="whose schedule is edited, as in schedule")
    edits: tuple[ScheduleEdit, ...] = Field(default=(), max_length=64, description="in order")
    record: str = Field(
        default="", max_length=SOURCE_CHARS, description="or the whole record as JSON, in place of edits"
    )
    note: str = Field(default="", max_length=400, description="what is new in it, one line: the ledger shows it")
    then: tuple[Literal["check", "time"], ...] = Field(
        default=("check", "time"), max_length=2, description="what to do with it at once where it builds, in this order"
    )


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
MAKERS = ("compile", "try_schedule")
"""Tools that make a source: the last one's is meant where no name is given."""
