"""What a tool answers."""

from __future__ import annotations

from pydantic import Field

from harness.records import Outcome
from kernels.spec import Frozen


class ToolResult(Frozen):
    """What a tool answers: words for the model, and the facts of it that the run keeps."""

    text: str
    tool: str = ""
    candidate: str = ""
    """Hash of the source that it was about; of several the best."""
    made: tuple[str, ...] = ()
    """Hashes of all sources that were built."""
    outcome: Outcome | None = None
    """Outcome of compile (PASSED: it builds), check or time."""
    checked: bool = False
    """Whether the outcome is that of a check, and not of the compiler alone."""
    gain: float | None = None
    """Geometric mean of the median speedups over the baseline, from `time`."""
    over_best: float | None = None
    """The same over the best so far, where it was timed beside that."""
    submitted: bool = False
    """Whether the call ended the work: `submit`, or a tool that was to submit what it made."""
    none: str = ""
    """The reason given to `submit` why no source comes of the plan."""
    notes: str = ""
    spec_doubt: str = ""
    seconds: float = Field(default=0.0, ge=0)


class ToolRefused(ValueError):
    """What was asked for cannot be done; the message is one sentence to the model, without text of other programs."""
