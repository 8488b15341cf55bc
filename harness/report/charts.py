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
from harness.report.svg import Scale, element, picture, ratio_scale, steps, text
from harness.report.words import interval, micros, times


def time_scale(rows: Sequence[WorkloadRow]) -> Scale:
    """Logarithmic: one suite spans 1 us to several milliseconds."""
    values = [v for row in rows for v in (row.baseline_us, row.best_us, *([row.light.us] if row.light else []))]
    low, high = min(values) / 1.12, max(values) * 1.12
    return Scale(low, high, True, steps(low, high, True))


def _tick_text(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if value < 10 else f"{value:.0f}"


def rounds_chart(result: Result, width: int, height: int) -> Markup:
    """Speedup of every attempt by round: intervals, the incumbent's line, a mark on the axis for each failure.

    Drawn for a given width in CSS pixels, because an SVG scaled to a phone has unreadable text; the page holds two.
    """
    attempts = result.attempts
    last_round = max([result.rounds, 1, *(attempt.round for attempt in attempts)])
    timed = [(attempt, attempt.speedup) for attempt in attempts if attempt.speedup]
    scale = ratio_scale([bound for _, speedup in timed for bound in (speedup.low, speedup.median, speedup.high)])
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
        parts.append(element("line", class_=kind, x1=left, x2=width - right, y1=y(tick), y2=y(tick)))
        parts.append(_tick(left - 8, y(tick) + 4, f"{_tick_text(tick)}×", "end"))
    parts.append(_tick(width - right + 6, y(1.0) + 4, "baseline"))
    parts.append(element("line", class_="axis", x1=left, x2=width - right, y1=height - bottom, y2=height - bottom))
    if any(not attempt.speedup for attempt in attempts):
        parts.append(_tick(left - 8, height - bottom - strip / 2 + 4, "rejected", "end"))
    for number in range(last_round + 1):
        if not many or number % math.ceil(last_round / 10) == 0:
            parts.append(_tick(x(number), height - 7, number or "start", "middle"))

    line = [f"M{x(0):.1f},{y(1.0):.1f}"]
    best = 1.0
    for attempt, speedup in timed:
        if attempt.accepted:
            best = speedup.median
            line.append(f"H{x(attempt.round) + 14 * places[id(attempt)]:.1f}V{y(best):.1f}")
    line.append(f"H{width - right:.1f}")
    parts.append(element("path", class_="incumbent", d="".join(line)))
    for attempt in attempts:
        parts.append(_mark(attempt, x(attempt.round) + 14 * places[id(attempt)], y, height - bottom - strip / 2))
    if best != 1.0:
        lift = 0 if abs(y(best) - y(1.0)) > 14 else -14
        parts.append(text(width - right + 6, y(best) + 4 + lift, times(best), class_="now"))
    return picture(width, height, parts, width=width, height=height, role="img", aria_label="Speedup by round")


def _tick(x: float, y: float, words: object, anchor: str = "") -> Markup:
    return text(x, y, words, anchor, class_="tick")


def _dodge(attempts: Sequence[AttemptRow], attempt: AttemptRow) -> float:
    """Side by side where a round had several plans: -1 .. 1, 0 for a single one."""
    together = [other for other in attempts if other.round == attempt.round]
    place = next(i for i, other in enumerate(together) if other is attempt)
    return (place - (len(together) - 1) / 2) / max(1.0, (len(together) - 1) / 2)


def _mark(attempt: AttemptRow, x: float, y: Callable[[float], float], strip_y: float) -> Markup:
    title = one_line(f"Round {attempt.round}: {attempt.plan.title} – {attempt.outcome}", 160)
    if attempt.speedup is None:
        kind = "cheated" if attempt.outcome == Outcome.CHEATED else "failure"
        return element("path", element("title", title), class_=kind, d=f"M{x - 4:.1f},{strip_y - 4:.1f}l8,8m0,-8l-8,8")
    median, low, high = (y(v) for v in (attempt.speedup.median, attempt.speedup.low, attempt.speedup.high))
    whisker = f"M{x:.1f},{low:.1f}V{high:.1f}m-4,0h8M{x - 4:.1f},{low:.1f}h8"
    return element(
        "g",
        element("title", f"{title}, {interval(attempt.speedup)}"),
        element("path", class_="whisker", d=whisker),
        element("circle", cx=x, cy=median, r=5),
        class_="accepted" if attempt.accepted else "passed",
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
    for at, label in ticks:
        half = DIGIT_PX * len(label) / 2
        middle = at / 100 * NARROW_RAIL_PX
        minor = middle - half < end + GAP_PX
        spaced.append((at, label, "minor" if minor else ""))
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
