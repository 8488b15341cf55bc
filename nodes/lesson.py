"""What one change came to in an earlier run, as another run may use it: a frozen record, and which of many fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationError

from harness.records import Cache, Outcome
from kernels.family import Family
from kernels.spec import Device, Frozen

SHOWN = 6
"""Lessons that a prompt shows at most."""
MOST_GAINS = 24


def _clipped(most: int) -> AfterValidator:
    return AfterValidator(lambda text: text if len(text) <= most else text[: most - 1] + "…")


Words = Annotated[str, _clipped(160)]
Ratio = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]


class Gain(Frozen):
    """Over the incumbent of then on one workload."""

    workload: Words
    cache: Cache
    median: Ratio
    low: Ratio
    high: Ratio


class Lesson(Frozen):
    """What one change to one kernel came to on one device."""

    format: Literal[1] = 1
    family: Family
    kernel: Words
    device: Device
    device_name: Words
    architecture: Words
    bound: Words = "unknown"
    """What bounded the source that was changed, as the profiler saw it."""
    policy: Words = ""
    """Who planned it."""
    title: Words
    steps: tuple[Words, ...] = Field(max_length=16)
    path: tuple[Words, ...] = Field(default=(), max_length=64)
    """All steps that led from the run's baseline to the candidate, this plan's last; () where they are not all known."""
    outcome: Outcome | Literal["NO_CANDIDATE", "REFUSED"]
    kept: bool = False
    reason: Annotated[str, _clipped(400)] = ""
    gain: Ratio | None = None
    """Speedup over the incumbent of that moment; None, never 0, where it did not pass."""
    over_base: Ratio | None = None
    """Speedup over the source that the plan started from."""
    speedup: Ratio | None = None
    """Speedup over the run's baseline."""
    gains: tuple[Gain, ...] = Field(default=(), max_length=MOST_GAINS)
    """Gains over the incumbent of that moment; the ones farthest from 1 where there are more than MOST_GAINS."""
    evidence: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """sha256 of the attempt as the run's checkpoints have it."""
    candidate: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    """sha256 of the source, in that run's store."""
    run_id: Words
    round: int
    at: datetime


def read(value: object) -> Lesson | None:
    """None for what is no lesson."""
    try:
        return Lesson.model_validate(value)
    except ValidationError:
        return None


def fitting(
    lessons: Sequence[Lesson], kernel: str, architecture: str, bound: str, most: int = SHOWN
) -> tuple[Lesson, ...]:
    """The most telling, each change once: of the same kernel and device and for the same bound first, large effects first.

    Every third is one that did not hold, where there are such: what fails costs as many rounds as what works.
    """

    def near(one: Lesson) -> float:
        return 2.0 * (one.kernel == kernel) + (one.architecture == architecture) + 0.5 * (one.bound == bound)

    def effect(one: Lesson) -> float:
        if one.speedup is None:
            return 0.5
        return math.log(one.speedup) + 2 * abs(math.log(one.gain or 1.0)) + 0.5 * one.kept

    unique: dict[tuple[str, ...], Lesson] = {}
    for one in sorted(lessons, key=lambda one: (-near(one), -effect(one), -one.at.timestamp(), one.evidence)):
        unique.setdefault((one.kernel, one.architecture, one.title, *(one.path or one.steps)), one)
    good = [one for one in unique.values() if one.kept or (one.gain or 0) > 1]
    bad = [one for one in unique.values() if not (one.kept or (one.gain or 0) > 1)]
    chosen: list[Lesson] = []
    while (good or bad) and len(chosen) < most:
        turn = bad if bad and (len(chosen) % 3 == 2 or not good) else good
        chosen.append(turn.pop(0))
    return tuple(chosen)
