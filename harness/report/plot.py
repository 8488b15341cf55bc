"""Pictures of numbers as SVG that stands alone: a forest of intervals, and lines over an axis. No plotting library.

Colours are attributes, not classes, and the ground is white, so that any viewer and the PNG show the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from harness.records import Interval
from harness.report import svg
from harness.report.inert import one_line
from harness.report.svg import Scale, element, ratio_scale, steps

INK, MUTED, LINE, BEST, BASE, LIGHT = "#16191d", "#5d6670", "#e4e6e8", "#00727a", "#8b949c", "#b87a00"
COLOURS = {"best": BEST, "base": BASE, "light": LIGHT, "ink": INK}
FONT = "DejaVu Sans, Liberation Sans, Arial, sans-serif"
LETTER_PX = 6.6
"""Width of a letter of 11 px labels, px (on the wide side)."""


@dataclass(frozen=True)
class Curve:
    """One line of a panel: (x, y) by x, drawn with dots; `kind` is a key of COLOURS."""

    name: str
    kind: str
    points: tuple[tuple[float, float], ...]
    dashed: bool = False


@dataclass(frozen=True)
class Panel:
    """Curves over one axis. `floor` and `least_y` keep a line in sight, such as 1.0x."""

    title: str
    curves: tuple[Curve, ...]
    log_y: bool = True
    shows: tuple[float, ...] = field(default=())


def scale(values: Sequence[float], *, log: bool) -> Scale:
    low, high = min(values), max(values)
    if log:
        low, high = low / 1.15, high * 1.15
    else:
        pad = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
        low, high = min(0.0, low), high + pad
    return Scale(low, high, log, steps(low, high, log) if log or high < 600 else _wide_steps(high))


def _wide_steps(high: float) -> tuple[float, ...]:
    step = 10 ** math.floor(math.log10(high))
    step = step / 2 if high / step < 3 else step
    return tuple(step * n for n in range(int(high / step) + 1))


def number(value: float) -> str:
    if value >= 10_000:
        unit, letter = next(one for one in ((1e9, "G"), (1e6, "M"), (1e3, "k")) if value >= one[0])
        return f"{value / unit:,.3g}{letter}"
    return f"{value:,.0f}" if value >= 10 else f"{value:.3g}"


def _text(x: float, y: float, words: object, *, anchor: str = "start", fill: str = MUTED, weight: int = 400) -> Markup:
    return svg.text(x, y, words, anchor, fill=fill, font_weight=weight)


def _rule(x1: float, y1: float, x2: float, y2: float, colour: str = LINE, dash: str = "none") -> Markup:
    return svg.path((x1, y1), (x2, y2), stroke=colour, stroke_dasharray=dash)


def _whole(width: float, height: float, parts: Sequence[Markup]) -> str:
    ground = element("rect", width="100%", height="100%", fill="#ffffff")
    head = {"xmlns": "http://www.w3.org/2000/svg", "width": f"{width:.0f}", "height": f"{height:.0f}"}
    return svg.picture(width, height, [ground, *parts], **head, font_family=FONT, font_size=11, fill="none") + "\n"


def forest(rows: Sequence[tuple[str, Interval]], title: str, left_word: str, right_word: str, width: int = 860) -> str:
    """One line a row: the ratio and its interval on a common logarithmic scale, 1 in the middle of attention."""
    label = min(max([LETTER_PX * len(name) for name, _ in rows] or [60]) + 16, width * 0.5)
    left, right, top, step = label + 12, width - 130, 62, 20
    axis = ratio_scale([bound for _, ratio in rows for bound in (ratio.low, ratio.median, ratio.high)])
    bottom = top + step * len(rows)

    def x(value: float) -> float:
        return left + axis(value) * (right - left)

    parts = [_text(16, 24, title, fill=INK, weight=600)]
    for tick in axis.ticks:
        one = abs(tick - 1) < 1e-9
        parts.append(_rule(x(tick), top - 8, x(tick), bottom, MUTED if one else LINE, "2 2" if one else "none"))
        parts.append(_text(x(tick), bottom + 16, f"{tick:.3g}×", anchor="middle"))
    parts.append(_text(x(1) - 10, top - 14, f"← {left_word}", anchor="end"))
    parts.append(_text(x(1) + 10, top - 14, f"{right_word} →"))
    for number_, (name, ratio) in enumerate(rows):
        y = top + step * (number_ + 0.5)
        colour = BASE if ratio.low <= 1 <= ratio.high else BEST if ratio.median > 1 else "#b3261e"
        parts.append(_text(left - 12, y + 4, name, anchor="end", fill=INK))
        parts.append(_rule(x(ratio.low), y, x(ratio.high), y, colour))
        parts.append(element("circle", cx=x(ratio.median), cy=y, r=4, fill=colour))
        said = f"{ratio.median:.2f}× ({ratio.low:.2f} – {ratio.high:.2f})"
        parts.append(_text(width - 8, y + 4, said, anchor="end", fill=colour, weight=600))
    return _whole(width, bottom + 30, parts)


def panels(shown: Sequence[Panel], title: str, x_title: str, width: int = 860, height: int = 210) -> str:
    """The panels one under the other over one logarithmic axis, each curve named at its right end."""
    left, right, top = 64, width - 150, 44
    xs = [x for panel in shown for curve in panel.curves for x, _ in curve.points]
    across = scale(xs, log=True)
    parts = [_text(16, 24, title, fill=INK, weight=600)]

    def x(value: float) -> float:
        return left + across(value) * (right - left)

    for place, panel in enumerate(shown):
        begin, end = top + place * height + 24, top + (place + 1) * height - 22
        values = [y for curve in panel.curves for _, y in curve.points]
        up = scale([*values, *panel.shows], log=panel.log_y)
        parts += _axes(panel, across, up, (left, right, begin, end))
        names: list[tuple[float, Curve]] = []
        for curve in panel.curves:
            points = [(x(at), end - up(value) * (end - begin)) for at, value in curve.points]
            colour, dash = COLOURS[curve.kind], "5 4" if curve.dashed else "none"
            parts.append(svg.path(*points, stroke=colour, stroke_width="1.6", stroke_dasharray=dash))
            if not curve.dashed:
                parts += [element("circle", cx=px, cy=py, r=2.6, fill=colour) for px, py in points]
            names.append((points[-1][1], curve))
        at = -math.inf
        for y, curve in sorted(names, key=lambda one: one[0]):
            at = max(y, at + 14)  # names do not lie on one another
            parts.append(_text(right + 10, at + 4, curve.name, fill=COLOURS[curve.kind], weight=600))
    bottom = top + len(shown) * height
    parts.append(_text((left + right) / 2, bottom + 10, x_title, anchor="middle"))
    return _whole(width, bottom + 24, parts)


def _axes(panel: Panel, across: Scale, up: Scale, box: tuple[float, float, float, float]) -> list[Markup]:
    left, right, begin, end = box
    parts = [_text(left, begin - 8, panel.title, fill=INK)]
    for tick in up.ticks:
        y = end - up(tick) * (end - begin)
        parts += [_rule(left, y, right, y), _text(left - 8, y + 4, number(tick), anchor="end")]
    for tick in across.ticks:
        x = left + across(tick) * (right - left)
        parts += [_rule(x, begin, x, end), _text(x, end + 15, number(tick), anchor="middle")]
    return parts


BINS = 30


def histogram(name: str, sides: Sequence[tuple[str, str, Sequence[float]]], width: int = 400, height: int = 190) -> str:
    """How the samples of each side (its name, its kind, microseconds) lie, over one logarithmic axis.

    A long tail is gathered in the last bin, at three times the largest median.
    """
    medians = [sorted(values)[len(values) // 2] for _, _, values in sides]
    low, high = min(min(values) for _, _, values in sides), max(3 * max(medians), 1e-9)
    across = scale([low, min(high, max(max(values) for _, _, values in sides))], log=True)
    left, right, begin, end = 14.0, width - 14.0, 58.0, height - 26.0
    parts = [_text(12, 20, name, fill=INK, weight=600)]
    for tick in across.ticks:
        x = left + across(tick) * (right - left)
        parts += [_rule(x, begin, x, end), _text(x, end + 15, number(tick), anchor="middle")]
    parts.append(_text(right, height - 2, "µs", anchor="end"))
    for place, (side, kind, values) in enumerate(sides):
        counts = [0] * BINS
        for value in values:
            counts[min(int(across(value) * BINS), BINS - 1)] += 1
        step = (right - left) / BINS
        heights = [count / len(values) * (end - begin) / max(max(counts) / len(values), 1e-9) for count in counts]
        for at, tall in enumerate(heights):
            if tall:
                bar = {"x": left + at * step, "y": end - tall, "width": step - 0.5, "height": tall}
                parts.append(element("rect", **bar, fill=COLOURS[kind], fill_opacity="0.55"))
        said = f"{side}: {len(values)} samples"
        parts.append(_text(12 + place * (width / 2 - 6), 40, said, fill=COLOURS[kind], weight=600))
    return _whole(width, height, parts)


@dataclass(frozen=True)
class RooflinePoint:
    """One timing of one file: what a call must move and compute, and the microseconds that it took."""

    moved_bytes: int
    time_us: float
    title: str
    flops: int = 0
    """0: not known."""

    @property
    def gbps(self) -> float:
        return self.moved_bytes / self.time_us * 1e-3

    @property
    def gflops(self) -> float:
        return self.flops / self.time_us * 1e-3

    @property
    def intensity(self) -> float:
        """FLOPs a byte."""
        return self.flops / self.moved_bytes


def roof(
    files: Sequence[tuple[str, str, Sequence[RooflinePoint]]],
    light: Sequence[RooflinePoint],
    peak_gbps: float,
    title: str,
    width: int = 860,
) -> str:
    """Achieved bandwidth over the bytes of a call: `files` are (name, kind, points), `light` the measured bound."""
    left, right, top, bottom = 52.0, width - 20.0, 46.0, 290.0
    every = [point for _, _, points in files for point in points] + list(light)
    across = scale([float(point.moved_bytes) for point in every], log=True)
    up = scale([*(point.gbps for point in every), *([peak_gbps] if peak_gbps else [])], log=True)

    def at(point: RooflinePoint) -> tuple[float, float]:
        return left + across(float(point.moved_bytes)) * (right - left), bottom - up(point.gbps) * (bottom - top)

    box = (left, right, top, bottom)
    parts = [
        _text(12, 20, one_line(title, int(width / 7)), fill=INK, weight=600),
        *_axes(Panel("GB/s", ()), across, up, box),
    ]
    if peak_gbps:
        y = bottom - up(peak_gbps) * (bottom - top)
        parts += [_rule(left, y, right, y, LIGHT, "2 3"), _text(right, y - 4, "a large copy", anchor="end", fill=LIGHT)]
    for point in light:
        x, y = at(point)
        parts.append(_rule(x - 9, y, x + 9, y, LIGHT))
    parts += dots(files, at)
    parts.append(_text((left + right) / 2, bottom + 34, "bytes that a call must move", anchor="middle"))
    entries = [*((name, COLOURS[kind]) for name, kind, _ in files), ("– speed of light", LIGHT)]
    named, y = legend(entries, left, right, bottom + 58)
    return _whole(width, y + 14, [*parts, *named])


def dots(
    files: Sequence[tuple[str, str, Sequence[RooflinePoint]]], at: Callable[[RooflinePoint], tuple[float, float]]
) -> list[Markup]:
    """A circle for each timing of each file, filled where it is the best."""
    found = []
    for _, kind, points in files:
        for point in points:
            x, y = at(point)
            inside = COLOURS[kind] if kind == "best" else "#ffffff"
            title = element("title", one_line(point.title, 160))
            found.append(element("circle", title, cx=x, cy=y, r=4, fill=inside, stroke=COLOURS[kind]))
    return found


def legend(entries: Sequence[tuple[str, str]], left: float, right: float, y: float) -> tuple[list[Markup], float]:
    """(name, colour) in as many lines as they need, and where the last line stands."""
    parts, x = [], left
    for name, colour in entries:
        long = LETTER_PX * len(one_line(name, 40)) + 24
        if x > left and x + long > right:
            x, y = left, y + 18
        parts.append(_text(x, y, one_line(name, 40), fill=colour, weight=600))
        x += long
    return parts, y
