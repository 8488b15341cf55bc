"""A page of rungs: a bar each, what each stage took, and a picture of which parts of a step overlap. Measures nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from harness.report.html import page_environment
from harness.report.svg import element, picture, text
from minibatch.graphs import Graph
from minibatch.timeline import STAGES, Span, window

WIDTHS = (960, 350)
"""Widths of a picture on a desktop and on a phone, CSS px."""
LANE, GAP = 22, 8
"""Heights in a timeline."""
FEWEST = 0.4
"""CSS pixels: a span that is shorter is drawn this long, so that it is seen."""


@dataclass(frozen=True)
class EpochRow:
    """One rung. Seconds and rates are None where it failed or was not measured; `error` says why."""

    rung: str
    what: str
    epoch_s: float | None = None
    extrapolated: bool = False
    """Whether the time is extrapolated from some batches of an epoch."""
    edges: float | None = None
    """Edges sampled in an epoch."""
    nodes: float | None = None
    """Nodes whose features an epoch reads; None where that is not counted."""
    row_bytes: int = 0
    """Bytes of one node's features."""
    floor_share: float | None = None
    """Share of an epoch's time that its bytes need at the device's copy rate."""
    accuracy: float | None = None
    stages_s: Mapping[str, float] = field(default_factory=dict)
    """Stage -> seconds of an epoch that it takes alone."""
    spans: Sequence[Span] = ()
    error: str = ""

    @property
    def edges_s(self) -> float | None:
        return self.edges / self.epoch_s if self.edges and self.epoch_s else None

    @property
    def feature_bytes_s(self) -> float | None:
        return self.nodes * self.row_bytes / self.epoch_s if self.nodes and self.epoch_s else None


@dataclass(frozen=True)
class EpochPage:
    graph: str
    device: str
    lines: Sequence[str]
    """Sentences on what was asked for and how it was measured."""
    rows: Sequence[EpochRow]


def row_of(rung: str, what: str, record: Any, accuracy: float | None, graph: Graph, spans: Sequence[Span]) -> EpochRow:
    """Row of the report for an epoch that was trained: training.Epoch or resident.ResidentEpoch."""
    row_bytes = graph.features.shape[1] * graph.features.element_size()
    stages = getattr(record, "stages_s", {})
    return EpochRow(
        rung, what, record.seconds, edges=record.edges, nodes=getattr(record, "nodes", None), row_bytes=row_bytes,
        accuracy=accuracy, stages_s=stages, spans=window(spans),
    )  # fmt: skip


def render(page: EpochPage) -> str:
    """One HTML file that opens offline, in light and dark, on a phone; no script."""
    timelines = [row for row in page.rows if row.spans]
    template = page_environment("minibatch").get_template("epochs.html.j2")
    return template.render(
        page=page,
        bars=[bars(page.rows, width) for width in WIDTHS],
        timelines=[(row, [timeline(row.spans, width) for width in WIDTHS]) for row in timelines],
        stages=[stage for stage in STAGES if any(span.stage == stage for row in timelines for span in row.spans)],
        columns=list(dict.fromkeys(name for row in page.rows for name in row.stages_s)),
        seconds=seconds,
        busy=lambda row: sum(spent for name, spent in row.stages_s.items() if name != "waiting"),
        slowest=max((row.epoch_s for row in page.rows if row.epoch_s), default=None),
    )


def seconds(value: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e6:.3g} µs"


def bars(rows: Sequence[EpochRow], width: int) -> Markup:
    """Seconds an epoch of each rung, from zero; a rung without is named with what kept it."""
    left, right, tall = 112, 92 if width > 500 else 76, 30
    longest = max((row.epoch_s for row in rows if row.epoch_s), default=1.0)
    height = tall * len(rows) + 8
    parts = []
    for at, row in enumerate(rows):
        top, middle = at * tall + 6, at * tall + 6 + tall / 2 - 2
        parts.append(text(left - 8, middle, row.rung, "end"))
        if row.epoch_s is None:
            parts.append(text(left, middle, "not measured"))
            continue
        long = max(1.0, row.epoch_s / longest * (width - left - right))
        said = ("≈ " if row.extrapolated else "") + seconds(row.epoch_s)
        parts.append(element("rect", class_="rung", x=left, y=float(top), width=long, height=tall - 12, rx=2))
        parts.append(text(left + long + 6, middle, said))
    return picture(width, height, parts, role="img", aria_label="seconds an epoch of each rung")


def timeline(spans: Sequence[Span], width: int) -> Markup:
    """Lanes over time, a rectangle a span, coloured by its stage."""
    lanes = list(
        dict.fromkeys(span.lane for span in sorted(spans, key=lambda span: (span.lane != "training", span.lane)))
    )
    left, right, bottom = 92, 14, 24
    end = max(span.end_s for span in spans)
    height = len(lanes) * (LANE + GAP) + bottom + 4
    floor = height - bottom

    def x(at: float) -> float:
        return left + at / end * (width - left - right)

    parts = []
    for tick in ticks(end, 8 if width > 500 else 3):
        parts.append(element("line", class_="grid", x1=x(tick), x2=x(tick), y1=0, y2=floor))
        parts.append(text(x(tick), height - 8, seconds(tick) if tick else "0", "middle"))
    for at, lane in enumerate(lanes):
        top = at * (LANE + GAP) + 4
        parts.append(text(left - 8, top + LANE / 2 + 4, lane, "end"))
        for span in spans:
            if span.lane == lane:
                long = max(FEWEST, x(span.end_s) - x(span.begin_s))
                title = element("title", f"{span.stage}, {seconds(max(0.0, span.end_s - span.begin_s))}")
                place = {"x": x(span.begin_s), "y": top, "width": float(long), "height": LANE}
                parts.append(element("rect", title, class_=f"stage {span.stage}", **place))
    return picture(width, height, parts, role="img", aria_label="when each part of some steps ran")


def ticks(end: float, most: int) -> list[float]:
    """Round times from 0 to `end`, at most about so many."""
    size = 1e-7
    while True:
        for step in (size, 2 * size, 5 * size):
            if end / step <= most:
                return [number * step for number in range(int(end / step) + 1)]
        size *= 10
