"""The graph as a picture, offline: own SVG, PNG made of it, mermaid text. Marks the path that a run took.

The layout is one column in the order of the pipeline, because that is what the graph is. Edges to the next node run
straight down; edges that skip nodes run through lanes on the right, edges that go back through lanes on the left.
All edges into one node from one side share a lane, and every label stands at its own departure point between the
node and the first lane, so nothing is hidden or crossed out. (LangGraph's ASCII drawing merges back edges and drops
labels; its PNG calls a hosted service.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from markupsafe import Markup

from harness.report.inert import one_line
from harness.report.svg import FONTS, DrawError, element, picture, save, text
from harness.report.words import duration
from harness.store import write_atomically
from nodes import agents

START, END = "__start__", "__end__"
MEANING: Mapping[tuple[str, str], str] = {
    ("tester", "drafter"): "a PyTorch module",
    ("tester", "baseline"): "a kernel",
    ("baseline", "profiler"): "passed",
    ("baseline", "held_out"): "at the limit",
    ("baseline", "__end__"): "failed",
    ("planner", "review_plans"): "plans",
    ("review_plans", "planner"): "objections",
    ("review_plans", "approve_plans"): "agreed",
    ("review_candidates", "coder"): "objections",
    ("review_candidates", "approve_candidates"): "agreed",
    ("planner", "contest"): "nothing left",
    ("compile", "coder"): "repair",
    ("compile", "verify"): "built",
    ("verify", "coder"): "repair",
    ("verify", "tune"): "passed",
    ("verify", "select"): "none passed",
    ("contest", "profiler"): "next round",
    ("contest", "fallback"): "stop",
}
"""What each branch of the graph means, in a word or two: LangGraph knows only where a router may go."""
FORMATS = (".svg", ".png", ".mmd")


@dataclass(frozen=True)
class GraphNode:
    name: str
    kind: str = "gate"
    """`agent` asks a policy, `gate` asks the harness, `person` waits for one, `end` is the start or an end."""
    inside: tuple[str, ...] = ()
    """The nodes of a subgraph, which take turns in it."""


@dataclass(frozen=True)
class GraphEdge:
    source: str
    target: str
    label: str = ""
    conditional: bool = False


Counts = Mapping[str, tuple[int, float]]
"""Node -> how often it ran, and seconds in all."""
Taken = Mapping[tuple[str, str], int]
"""(source, target) -> how often a run went that way."""


def parts(compiled: Any) -> tuple[tuple[GraphNode, ...], tuple[GraphEdge, ...]]:
    """Nodes and edges of a compiled LangGraph graph. A node's kind is its metadata's `kind`, else told by its name."""
    drawable, inside = compiled.get_graph(), _insides(compiled)
    nodes = tuple(
        GraphNode(name, _kind(name, node.metadata), inside.get(name, ())) for name, node in drawable.nodes.items()
    )
    edges = tuple(
        GraphEdge(
            edge.source, edge.target, str(edge.data or MEANING.get((edge.source, edge.target), "")), edge.conditional
        )
        for edge in drawable.edges
    )
    return nodes, edges


def _insides(compiled: Any) -> dict[str, tuple[str, ...]]:
    """Node -> the nodes of its subgraph."""
    return {
        name: tuple(one for one in subgraph.get_graph().nodes if one not in (START, END))
        for name, node in getattr(compiled, "nodes", {}).items()
        for subgraph in getattr(node, "subgraphs", ())
    }


def _kind(name: str, metadata: Mapping[str, Any] | None) -> str:
    if name in (START, END):
        return "end"
    if metadata and metadata.get("kind") in ("agent", "gate", "person"):
        return str(metadata["kind"])
    return "agent" if name in agents.describe_nodes() else "person" if name.startswith("approve") else "gate"


def count_edges(path: Iterable[str]) -> dict[tuple[str, str], int]:
    """How often each edge was taken, from the names of the nodes in the order in which they ran."""
    counted: dict[tuple[str, str], int] = {}
    for step in pairwise(path):
        counted[step] = counted.get(step, 0) + 1
    return counted


def path_of(history: Iterable[Any]) -> list[str]:
    """The nodes that a run passed, in order, from its checkpoints, newest first as LangGraph's history has them."""
    snapshots = list(history)
    path = [name for snapshot in reversed(snapshots) for name in snapshot.next[:1]]
    return [*path, END] if snapshots and not snapshots[0].next else path[:-1]


def order_nodes(nodes: Sequence[GraphNode], edges: Sequence[GraphEdge]) -> list[GraphNode]:
    """Top to bottom: every edge but the loops' goes down; where that leaves a choice, the order they were added in."""
    names = [node.name for node in nodes]
    following = {name: [edge.target for edge in edges if edge.source == name] for name in names}
    done: dict[str, int] = {}
    open_: set[str] = set()
    forward: list[tuple[str, str]] = []

    def visit(name: str) -> None:
        open_.add(name)
        for target in following[name]:
            if target not in open_:
                forward.append((name, target))
                if target not in done:
                    visit(target)
        open_.discard(name)
        done[name] = len(done)

    for name in sorted(names, key=lambda n: (n != START, names.index(n))):
        if name not in done:
            visit(name)
    waiting = {name: {s for s, t in forward if t == name} for name in names}
    result: list[GraphNode] = []
    by_name = {node.name: node for node in nodes}
    while waiting:
        ready = [name for name in names if name in waiting and not waiting[name]]
        name = min(ready or waiting, key=lambda n: (n == END, n != START, names.index(n)))
        del waiting[name]
        for before in waiting.values():
            before.discard(name)
        result.append(by_name[name])
    return result


# Geometry, in pixels. Text is measured by an average width, as no font is at hand here: 6.4 px at 11 px holds for the
# usual sans-serifs, and a wrong guess only moves a lane.
NODE_WIDTH = 168
NODE_HEIGHT = 38
INSIDE_HEIGHT = 24
GAP = 22
LABELLED_GAP = 34
PORT = 19
LANE = 15
STUB = 26
MARGIN = 16
CHARACTER = 6.4
LABEL_LIMIT = 28


@dataclass
class _Box:
    node: GraphNode
    y: float = 0.0
    height: float = NODE_HEIGHT
    ports: dict[tuple[str, str, str], float] = field(default_factory=dict)

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


def _text_width(text: str) -> float:
    return CHARACTER * len(text)


def _short(label: str) -> str:
    return one_line(label, LABEL_LIMIT)


def draw(
    nodes: Sequence[GraphNode],
    edges: Sequence[GraphEdge],
    counts: Counts | None = None,
    taken: Taken | None = None,
) -> str:
    """The graph as SVG text with a light look that turns dark where the viewer prefers that.

    With `counts`, nodes that ran are solid and carry "3 runs, 1.2 s", the others fade. With `taken`, the edges that the
    run took are solid and thick, with how often, where that is more than once.
    """
    order = order_nodes(nodes, edges)
    rank = {node.name: i for i, node in enumerate(order)}
    edges = [edge for edge in dict.fromkeys(edges) if edge.source in rank and edge.target in rank]
    straight = {}
    sides: dict[tuple[str, str], list[GraphEdge]] = {}  # (side, target) -> the edges that share that lane
    for edge in edges:
        step = rank[edge.target] - rank[edge.source]
        if step == 1 and edge.source not in straight:
            straight[edge.source] = edge
        else:
            sides.setdefault(("right" if step > 0 else "left", edge.target), []).append(edge)

    boxes = _place(order, straight, sides, taken)
    lanes = {side: _lanes(side, sides, rank) for side in ("left", "right")}
    widths = {side: _side_width(side, sides, lanes[side], taken) for side in ("left", "right")}
    left = MARGIN + widths["left"]
    centre = left + NODE_WIDTH / 2
    width = left + NODE_WIDTH + widths["right"] + MARGIN
    last = boxes[order[-1].name] if order else _Box(GraphNode(""))
    legend_y = last.y + last.height + 34
    width = max(width, 400.0)
    height = legend_y + 16

    body = [
        element("title", "The graph of a run"), STYLE, MARKERS,
        element("rect", class_="page", width="100%", height="100%", fill="#ffffff"),
    ]  # fmt: skip
    body += [_straight(edge, boxes[source], boxes[edge.target], centre, taken) for source, edge in straight.items()]
    for (side, target), group in sides.items():
        lane_x = _lane_x(side, lanes[side][target], widths, left, sides, taken)
        body.append(_lane(side, group, boxes, lane_x, left, taken))
    body += [*(_node(box, left, counts) for box in boxes.values()), _legend(legend_y, taken)]
    sizes = {"width": f"{width:.0f}", "height": f"{height:.0f}", "font_family": FONTS, "font_size": 13}
    return picture(width, height, body, xmlns="http://www.w3.org/2000/svg", class_="astrolabe-graph", **sizes)


def _place(
    order: Sequence[GraphNode],
    straight: Mapping[str, GraphEdge],
    sides: Mapping[tuple[str, str], list[GraphEdge]],
    taken: Taken | None,
) -> dict[str, _Box]:
    """Heights by the number of ports a side needs, one row each; then top to bottom."""
    rank = {node.name: i for i, node in enumerate(order)}
    boxes = {node.name: _Box(node) for node in order}
    y = float(MARGIN)
    for node in order:
        box = boxes[node.name]
        rows: dict[str, list[tuple[str, str, str]]] = {"left": [], "right": []}
        for (side, target), group in sides.items():
            if target == node.name:
                rows[side].append((side, "in", target))
            rows[side] += [(side, "out", edge.target) for edge in group if edge.source == node.name]
        box.y = y
        least = 26.0 if node.kind == "end" else NODE_HEIGHT + (INSIDE_HEIGHT if node.inside else 0)
        box.height = max(least, PORT * max(map(len, rows.values())) + 8)
        for side, ports in rows.items():
            # Those that come from or go above leave at the top, the others at the bottom: lines of a node do not cross.
            ports.sort(key=lambda port: _towards(port, side, rank, node.name))
            for i, port in enumerate(ports):
                box.ports[port] = y + box.height / 2 + (i - (len(ports) - 1) / 2) * PORT
        y += box.height
        edge = straight.get(node.name)
        y += LABELLED_GAP if edge and _label(edge, taken) else GAP
    return boxes


def _towards(port: tuple[str, str, str], side: str, rank: Mapping[str, int], name: str) -> tuple[int, int]:
    _, direction, target = port
    if direction == "in":  # right: from above; left: from below
        return (0 if side == "right" else 8, 0)
    if target == name:  # to itself, from below its entry as all that go back
        return (9, 0)
    return (1, rank[target]) if side == "left" else (2, -rank[target])


def _lanes(side: str, sides: Mapping[tuple[str, str], list[GraphEdge]], rank: Mapping[str, int]) -> dict[str, int]:
    """Target -> lane, 0 nearest the nodes; lanes are shared where their spans do not touch, short spans inside."""
    spans = {}
    for (on, target), group in sides.items():
        if on == side:
            reach = [rank[target], *(rank[edge.source] for edge in group)]
            spans[target] = (min(reach), max(reach))
    lanes: dict[str, int] = {}
    for target, (low, high) in sorted(spans.items(), key=lambda item: (item[1][1] - item[1][0], item[1])):
        lane = 0
        while any(lanes[o] == lane and spans[o][0] <= high and low <= spans[o][1] for o in lanes):
            lane += 1
        # Never inside a lane that this one's span covers: its stubs would cross that lane twice.
        inner = [lanes[o] + 1 for o in lanes if low <= spans[o][0] and spans[o][1] <= high and lanes[o] >= lane]
        lanes[target] = max([lane, *inner])
    return lanes


def _label(edge: GraphEdge, taken: Taken | None) -> str:
    label = _short(edge.label)
    times = taken.get((edge.source, edge.target), 0) if taken else 0
    return f"{label} ×{times}".strip() if times > 1 else label


def _label_space(side: str, sides: Mapping[tuple[str, str], list[GraphEdge]], taken: Taken | None) -> float:
    labels = [_label(edge, taken) for (on, _), group in sides.items() if on == side for edge in group]
    return STUB + max([_text_width(label) for label in labels], default=0.0)


def _side_width(
    side: str, sides: Mapping[tuple[str, str], list[GraphEdge]], lanes: Mapping[str, int], taken: Taken | None
) -> float:
    return _label_space(side, sides, taken) + LANE * max(lanes.values()) + 6 if lanes else 0.0


def _lane_x(
    side: str,
    lane: int,
    widths: Mapping[str, float],
    left: float,
    sides: Mapping[tuple[str, str], list[GraphEdge]],
    taken: Taken | None,
) -> float:
    distance = _label_space(side, sides, taken) + LANE * lane
    return left - distance if side == "left" else left + NODE_WIDTH + distance


def _edge(edges: Sequence[GraphEdge], kind: str, taken: Taken | None, way: str, tip: str = "") -> Markup:
    """Colours are attributes, as resvg and old viewers know no media queries."""
    used = taken is not None and any(taken.get((edge.source, edge.target)) for edge in edges)
    dashed = all(edge.conditional for edge in edges) and not used
    return element(
        "path", class_=f"edge {kind}", fill="none", stroke="#b4540a" if kind == "back" else "#5b6670",
        stroke_width=2.4 if used else 1.3, stroke_linejoin="round", stroke_dasharray="5 3.5" if dashed else "",
        opacity="0.45" if taken is not None and not used else "", marker_end=tip and f"url(#tip-{tip})", d=way,
    )  # fmt: skip


def _text(
    x: float, y: float, words: str, kind: str, anchor: str = "start", size: float = 11, weight: str = ""
) -> Markup:
    colour = {"back": "#9a4708", "skip": "#4c565f", "note": "#5b6670"}.get(kind, "#16191d")
    return text(x, y, words, anchor, class_=f"t {kind}", font_size=size, fill=colour, font_weight=weight)


def _straight(edge: GraphEdge, above: _Box, below: _Box, centre: float, taken: Taken | None) -> Markup:
    y1, y2 = above.y + above.height, below.y
    line = _edge([edge], "next", taken, f"M{centre:.1f},{y1:.1f}V{y2 - 1.5:.1f}", tip="next")
    label = _label(edge, taken)
    return line + (_text(centre + 8, (y1 + y2) / 2 + 3, label, "skip") if label else "")


def _lane(
    side: str,
    group: Sequence[GraphEdge],
    boxes: Mapping[str, _Box],
    lane_x: float,
    left: float,
    taken: Taken | None,
) -> Markup:
    """The edges of one lane, farthest first. Each runs to where the next one joins, so that dashes do not fill up and
    the shared part is marked as taken if any edge that uses it was."""
    kind = "back" if side == "left" else "skip"
    edge_x = left if side == "left" else left + NODE_WIDTH
    outward = -1 if side == "left" else 1
    y_in = boxes[group[0].target].ports[(side, "in", group[0].target)]
    leaving = [(boxes[edge.source].ports[(side, "out", edge.target)], edge) for edge in group]
    leaving.sort(key=lambda item: -abs(item[0] - y_in))
    r = min([7.0, *(abs(y - y_in) / 2 for y, _ in leaving)])
    down = 1 if leaving[0][0] < y_in else -1
    out: list[Markup] = []
    for i, (y, edge) in enumerate(leaving):
        turn = f"Q{lane_x:.1f},{y:.1f} {lane_x:.1f},{y + down * r:.1f}"
        out.append(_edge([edge], kind, taken, f"M{edge_x:.1f},{y:.1f}H{lane_x - outward * r:.1f}{turn}"))
        trunk = [joined for _, joined in leaving[: i + 1]]
        way, tip = f"M{lane_x:.1f},{y + down * r:.1f}", ""
        if i + 1 < len(leaving):
            way += f"V{leaving[i + 1][0] + down * r:.1f}"
        else:
            turn = f"Q{lane_x:.1f},{y_in:.1f} {lane_x - outward * r:.1f},{y_in:.1f}"
            way, tip = f"{way}V{y_in - down * r:.1f}{turn}H{edge_x + outward * 1.5:.1f}", kind
        out.append(_edge(trunk, kind, taken, way, tip))
        label = _label(edge, taken)
        if label:
            out.append(_text(edge_x + outward * 8, y - 4, label, kind, "end" if side == "left" else "start"))
    return Markup("").join(out)


_FILLS = {
    "agent": ("#e3f1f1", "#00727a"),
    "gate": ("#eef0f3", "#6b7682"),
    "person": ("#fbf0d9", "#b87a00"),
    "end": ("#ffffff", "#9aa3ab"),
}


def _node(box: _Box, left: float, counts: Counts | None) -> Markup:
    node = box.node
    runs, seconds = counts.get(node.name, (0, 0.0)) if counts is not None else (0, 0.0)
    idle = counts is not None and not runs and node.kind != "end"
    kind = node.kind if node.kind in _FILLS else "gate"
    fill, stroke = _FILLS[kind]
    width = 76.0 if node.kind == "end" and not box.ports else float(NODE_WIDTH)
    x = left + (NODE_WIDTH - width) / 2
    radius = box.height / 2 if node.kind == "end" else 5 if kind == "gate" else 14
    title = {START: "start", END: "end"}.get(node.name, one_line(node.name, 20))
    place = {"x": x, "y": box.y, "width": width, "height": box.height, "rx": min(radius, box.height / 2)}
    look = {"class_": f"node {kind}", "fill": fill, "stroke": stroke, "stroke_width": 2 if runs else 1.2}
    out = [element("rect", **look, **place)]
    centre = left + NODE_WIDTH / 2
    middle = box.middle - (INSIDE_HEIGHT / 2 if node.inside else 0)
    if node.inside:
        out.append(_text(centre, middle + 32, " ⇄ ".join(one_line(one, 12) for one in node.inside), "note", "middle"))
    note = f"{runs}× · {duration(seconds)}" if runs and node.kind != "end" else "not run" if idle else ""
    if node.kind == "end":
        out.append(_text(centre, box.middle + 4, title, "note", "middle", 12))
    else:
        out.append(_text(centre, middle + (-1.5 if note else 4.5), title, "name", "middle", 13, "600"))
    if note:
        out.append(_text(centre, middle + 13, note, "note", "middle"))
    return element("g", *out, opacity=0.5 if idle else 1)


def _legend(y: float, taken: Taken | None) -> Markup:
    out, x = [], float(MARGIN)
    for kind in ("agent", "gate", "person"):
        fill, stroke = _FILLS[kind]
        place = {"x": x, "y": y - 9, "width": 16, "height": 11, "rx": 3 if kind == "gate" else 5.5}
        out.append(element("rect", class_=f"node {kind}", fill=fill, stroke=stroke, stroke_width=1.2, **place))
        out.append(_text(x + 21, y, kind, "note"))
        x += 30 + _text_width(kind)
    some = GraphEdge("", "", conditional=True)
    lines: list[tuple[str, str, GraphEdge, Taken | None]] = [
        ("skip", "conditional", some, None),
        ("back", "back", some, None),
    ]
    lines += [] if taken is None else [("next", "taken", some, {("", ""): 1})]
    for kind, name, edge, used in lines:
        out += [_edge([edge], kind, used, f"M{x:.1f},{y - 4:.1f}h22"), _text(x + 27, y, name, "note")]
        x += 38 + _text_width(name)
    return Markup("").join(out)


STYLE = Markup(
    "<style>@media (prefers-color-scheme: dark) {"
    ".astrolabe-graph .page{fill:#161a1d}.astrolabe-graph .t{fill:#e6e9eb}.astrolabe-graph .t.note{fill:#98a2ab}"
    ".astrolabe-graph .t.skip{fill:#b3bcc4}.astrolabe-graph .t.back{fill:#eda262}"
    ".astrolabe-graph .edge{stroke:#8a949d}.astrolabe-graph .edge.back{stroke:#e08a3c}"
    ".astrolabe-graph .tip{fill:#8a949d}.astrolabe-graph .tip.back{fill:#e08a3c}"
    ".astrolabe-graph .agent{fill:#10373a;stroke:#45c4c9}.astrolabe-graph .gate{fill:#232a30;stroke:#7f8b96}"
    ".astrolabe-graph .person{fill:#362a12;stroke:#e3ad42}.astrolabe-graph .end{fill:#161a1d;stroke:#5d6770}"
    "}</style>"
)
MARKERS = element("defs", *(
    element(
        "marker", element("path", class_=f"tip {kind}", d="M0,0.6L8,4L0,7.4z", fill=colour), id=f"tip-{kind}",
        viewBox="0 0 8 8", refX=7, refY=4, markerWidth=8, markerHeight=8, markerUnits="userSpaceOnUse", orient="auto",
    )
    for kind, colour in (("next", "#5b6670"), ("skip", "#5b6670"), ("back", "#b4540a"))
))  # fmt: skip


def write(compiled: Any, path: Path, counts: Counts | None = None, taken: Taken | None = None) -> None:
    """Draws a compiled graph to `path`, by its suffix: .svg, .png or .mmd. Raises DrawError, and OSError."""
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise DrawError(f"cannot draw to {one_line(path, 120)}: the file must end in {', '.join(FORMATS)}")
    if suffix == ".mmd":
        write_atomically(path, mermaid(compiled))
        return
    save(draw(*parts(compiled), counts, taken), path)


def mermaid(compiled: Any) -> str:
    """Its Mermaid text, subgraphs opened."""
    return compiled.get_graph(xray=True).draw_mermaid()
