"""The report's pictures as inline SVG and positioned HTML: a few hundred bytes a mark, no script, no plotting library.

Colours are CSS classes that the template defines for light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from harness.records import Outcome
from harness.report.inert import one_line
from harness.report.result import AttemptRow, Result, WorkloadRow
from harness.report.words import interval, micros, times


@dataclass(frozen=True)
class Scale:
    """Maps values to 0..1, linearly or by logarithm, with ticks at round numbers."""

    low: float
    high: float
    log: bool
    ticks: tuple[float, ...]

    def __call__(self, value: float) -> float:
        value = min(max(value, self.low), self.high)
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def _steps(low: float, high: float, log: bool) -> tuple[float, ...]:
    """Round numbers inside [low, high], as few as read well."""
    if log:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for digits in ((1, 2, 5), (1, 3), (1,)):
            ticks = tuple(d * 10.0**e for e in decades for d in digits if low <= d * 10.0**e <= high)
            if len(ticks) <= 8:
                break
        return ticks
    for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.5, 1, 2, 5, 10, 20, 50, 100):
        if (high - low) / step <= 6:
            break
    return tuple(round(step * n, 6) for n in range(math.ceil(low / step), math.floor(high / step) + 1))


def speedup_scale(values: Sequence[float]) -> Scale:
    """Always shows 1.0x. Logarithmic from a fourfold spread up."""
    known = [min(max(value, 0.01), 1000.0) for value in values if math.isfinite(value)]
    low, high = min([*known, 1.0]), max([*known, 1.0])
    if high / low > 4:
        low, high = low / 1.15, high * 1.15
        return Scale(low, high, True, _steps(low, high, True))
    pad = max(0.08 * (high - low), 0.03)
    low, high = max(0.0, low - pad), high + pad
    return Scale(low, high, False, _steps(low, high, False))


def time_scale(rows: Sequence[WorkloadRow]) -> Scale:
    """Logarithmic: one suite spans 1 us to several milliseconds."""
    values = [v for row in rows for v in (row.baseline_us, row.best_us, *([row.light.us] if row.light else []))]
    low, high = min(values) / 1.12, max(values) * 1.12
    return Scale(low, high, True, _steps(low, high, True))


def _tick_text(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if value < 10 else f"{value:.0f}"


def rounds_chart(result: Result, width: int, height: int) -> Markup:
    """Speedup of every attempt by round: intervals, the incumbent's line, a mark on the axis for each failure.

    Drawn for a given width in CSS pixels, because an SVG scaled to a phone has unreadable text; the page holds two.
    """
    attempts = result.attempts
    last_round = max([result.rounds, 1, *(attempt.round for attempt in attempts)])
    timed = [(attempt, attempt.speedup) for attempt in attempts if attempt.speedup]
    scale = speedup_scale([bound for _, speedup in timed for bound in (speedup.low, speedup.median, speedup.high)])
    left, right, top, strip, bottom = 58, 56, 12, 26, 24
    floor = height - bottom - strip
    many = last_round > (width - left - right) / 26

    def y(value: float) -> float:
        return floor - scale(value) * (floor - top)

    def x(number: float) -> float:
        return left + (number + 0.3) / (last_round + 0.6) * (width - left - right)

    places = {id(attempt): _dodge(attempts, attempt) for attempt in attempts}
    parts: list[Markup] = []
    for tick in scale.ticks:
        kind = "one" if abs(tick - 1) < 1e-9 else "grid"
        parts.append(
            Markup('<line class="{}" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(
                kind, left, width - right, y(tick), y(tick)
            )
        )
        parts.append(
            Markup('<text class="tick" x="{}" y="{:.1f}" text-anchor="end">{}×</text>').format(
                left - 8, y(tick) + 4, _tick_text(tick)
            )
        )
    parts.append(
        Markup('<text class="tick" x="{:.1f}" y="{:.1f}">baseline</text>').format(width - right + 6, y(1.0) + 4)
    )
    parts.append(
        Markup('<line class="axis" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(
            left, width - right, height - bottom, height - bottom
        )
    )
    if any(not attempt.speedup for attempt in attempts):
        parts.append(
            Markup('<text class="tick" x="{}" y="{:.1f}" text-anchor="end">rejected</text>').format(
                left - 8, height - bottom - strip / 2 + 4
            )
        )
    for number in range(last_round + 1):
        if not many or number % math.ceil(last_round / 10) == 0:
            parts.append(
                Markup('<text class="tick" x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(
                    x(number), height - 7, number if number else "start"
                )
            )

    line = [f"M{x(0):.1f},{y(1.0):.1f}"]
    best = 1.0
    for attempt, speedup in timed:
        if attempt.accepted:
            best = speedup.median
            line.append(f"H{x(attempt.round) + 14 * places[id(attempt)]:.1f}V{y(best):.1f}")
    line.append(f"H{width - right:.1f}")
    parts.append(Markup('<path class="incumbent" d="{}"/>').format("".join(line)))
    for attempt in attempts:
        parts.append(_mark(attempt, x(attempt.round) + 14 * places[id(attempt)], y, height - bottom - strip / 2))
    if best != 1.0:
        lift = 0 if abs(y(best) - y(1.0)) > 14 else -14
        parts.append(
            Markup('<text class="now" x="{:.1f}" y="{:.1f}">{}</text>').format(
                width - right + 6, y(best) + 4 + lift, times(best)
            )
        )
    return Markup(
        '<svg viewBox="0 0 {} {}" width="{}" height="{}" role="img" aria-label="Speedup by round">{}</svg>'
    ).format(width, height, width, height, Markup("").join(parts))


def _dodge(attempts: Sequence[AttemptRow], attempt: AttemptRow) -> float:
    """Side by side where a round had several plans: -1 .. 1, 0 for a single one."""
    together = [other for other in attempts if other.round == attempt.round]
    place = next(i for i, other in enumerate(together) if other is attempt)
    return (place - (len(together) - 1) / 2) / max(1.0, (len(together) - 1) / 2)


def _mark(attempt: AttemptRow, x: float, y: Callable[[float], float], strip_y: float) -> Markup:
    title = one_line(f"Round {attempt.round}: {attempt.plan.title} – {attempt.outcome}", 160)
    if attempt.speedup is None:
        d = f"M{x - 4:.1f},{strip_y - 4:.1f}l8,8m0,-8l-8,8"
        kind = "cheated" if attempt.outcome == Outcome.CHEATED else "failure"
        return Markup('<path class="{}" d="{}"><title>{}</title></path>').format(kind, d, title)
    median, low, high = (y(v) for v in (attempt.speedup.median, attempt.speedup.low, attempt.speedup.high))
    return Markup(
        '<g class="{}"><title>{}, {}</title><path class="whisker" d="M{:.1f},{:.1f}V{:.1f}m-4,0h8M{:.1f},{:.1f}h8"/>'
        '<circle cx="{:.1f}" cy="{:.1f}" r="5"/></g>'
    ).format(
        "accepted" if attempt.accepted else "passed",
        title,
        interval(attempt.speedup),
        x,
        low,
        high,
        x - 4,
        low,
        x,
        median,
    )


@dataclass(frozen=True)
class Dumbbell:
    """One line of the time chart; positions in percent of the track."""

    row: WorkloadRow
    left: float
    width: float
    baseline: float
    best: float
    light: float | None
    title: str


@dataclass(frozen=True)
class Times:
    """The time chart: ticks in percent, and for each dtype and set of sizes its lines, cold before hot."""

    ticks: tuple[tuple[float, str, str], ...]
    """Place, label, and "minor" for those that a narrow screen has no room for."""
    groups: tuple[tuple[str, str, tuple[Dumbbell, ...]], ...]


NARROW_RAIL_PX, DIGIT_PX, GAP_PX = 200, 7, 8
"""The rail on a screen of 400 px, a digit of its labels, and what must be between two of them."""


def _spaced(ticks: Sequence[tuple[float, str]]) -> tuple[tuple[float, str, str], ...]:
    """The ticks, those marked minor whose labels would touch the one before on a narrow screen."""
    spaced, end = [], -math.inf
    for at, text in ticks:
        half = DIGIT_PX * len(text) / 2
        middle = at / 100 * NARROW_RAIL_PX
        minor = middle - half < end + GAP_PX
        spaced.append((at, text, "minor" if minor else ""))
        end = end if minor else middle + half
    return tuple(spaced)


def times_chart(rows: Sequence[WorkloadRow], scale: Scale) -> Times:
    def place(value: float) -> float:
        return round(100 * scale(value), 2)

    groups: dict[tuple[str, str], list[Dumbbell]] = {}
    for row in rows:
        a, b = place(row.baseline_us), place(row.best_us)
        light = place(row.light.us) if row.light else None
        bound = f", speed of light {micros(row.light.us)} µs" if row.light else ""
        title = f"{row.cache}: baseline {micros(row.baseline_us)} µs, best {micros(row.best_us)} µs{bound}"
        dumbbell = Dumbbell(row, min(a, b), round(abs(a - b), 2), a, b, light, title)
        groups.setdefault((row.dtype, row.label), []).append(dumbbell)
    return Times(
        ticks=_spaced([(place(tick), _tick_text(tick)) for tick in scale.ticks]),
        groups=tuple((dtype, label, tuple(lines)) for (dtype, label), lines in groups.items()),
    )
