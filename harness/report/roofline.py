"""The roofline: FLOPs a second over FLOPs a byte, under a roof that bandwidth slants and arithmetic makes flat."""

from __future__ import annotations

from collections.abc import Sequence

from harness.records import DeviceFacts
from harness.report.inert import one_line
from harness.report.plot import (
    COLOURS,
    INK,
    LIGHT,
    Panel,
    RooflinePoint,
    _axes,
    _rule,
    _text,
    _whole,
    dots,
    legend,
    number,
    scale,
)

FILES = Sequence[tuple[str, str, Sequence[RooflinePoint]]]
MARGIN = 4.0
"""Factor by which the axes extend beyond what is drawn, on both sides."""


def roofs(facts: DeviceFacts, dtypes: Sequence[str]) -> list[tuple[str, float]]:
    """(name, GFLOP/s) of each flat roof over these dtypes, one line for those that share one, lowest first."""
    named: dict[tuple[str, float], list[str]] = {}
    for dtype in dtypes:
        for kind, gflops in facts.compute_roofs(dtype).items():
            named.setdefault((kind, gflops), []).append(dtype)
    lines = [(f"{kind} units, {', '.join(found)}", gflops) for (kind, gflops), found in named.items()]
    return sorted(lines, key=lambda one: one[1])


def roofline(files: FILES, gbps: float, flat: Sequence[tuple[str, float]], title: str, width: int = 860) -> str:
    """`files` are (name, kind, points with FLOPs); `gbps` the bandwidth of a large copy, `flat` the roofs of `roofs`, at least one."""
    left, right, top, bottom = 56.0, width - 20.0, 46.0, 300.0
    points = [point for _, _, found in files for point in found]
    ridges = [gflops / gbps for _, gflops in flat]
    xs = [*(point.intensity for point in points), *ridges]
    low, high = min(xs) / MARGIN, max(xs) * MARGIN
    across = scale([low, high], log=True)
    ys = [*(point.gflops for point in points), *(gflops for _, gflops in flat)]
    up = scale([min([*ys, low * gbps * MARGIN]), max(ys) * 1.5], log=True)

    def place(intensity: float, gflops: float) -> tuple[float, float]:
        return left + across(intensity) * (right - left), bottom - up(gflops) * (bottom - top)

    parts = [
        _text(12, 20, one_line(title, int(width / 7)), fill=INK, weight=600),
        *_axes(Panel("GFLOP/s", ()), across, up, (left, right, top, bottom)),
    ]
    start, end = max(low, up.low / gbps), max(ridges)
    parts.append(_rule(*place(start, start * gbps), *place(end, end * gbps), LIGHT))
    x, y = place((start * end) ** 0.5, (start * end) ** 0.5 * gbps)
    parts.append(_text(x - 8, y - 4, f"{number(gbps)} GB/s", anchor="end", fill=LIGHT))
    lowest = place(high, flat[0][1])[1]
    for below, ((name, gflops), ridge) in enumerate(reversed(list(zip(flat, ridges, strict=True)))):
        (x, y), (edge, _) = place(ridge, gflops), place(high, gflops)
        parts.append(_rule(x, y, edge, y, LIGHT))
        # The highest is named above its line, the others one under the other below all lines.
        at = lowest + 14 * below if below else y - 4
        parts.append(_text(right, at, f"{name}: {number(gflops)}", anchor="end", fill=LIGHT))
    parts += dots(files, lambda point: place(point.intensity, point.gflops))
    parts.append(_text((left + right) / 2, bottom + 34, "FLOPs for each byte that must move", anchor="middle"))
    named, y = legend([(name, COLOURS[kind]) for name, kind, _ in files], left, right, bottom + 58)
    return _whole(width, y + 14, [*parts, *named])
