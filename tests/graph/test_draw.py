import itertools
import random
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from graph.draw import (
    END,
    MEANING,
    START,
    GraphEdge,
    GraphNode,
    count_edges,
    draw,
    parts,
    path_of,
    write,
)
from graph.workflow import NODES, build
from harness.report.svg import DrawError, png
from nodes.state import Spent
from tests.harness.report.hostile import PAYLOAD, dangerous

SVG = "{http://www.w3.org/2000/svg}"
ROUND = [
    "profiler",
    "planner",
    "review_plans",
    "approve_plans",
    "coder",
    "review_candidates",
    "approve_candidates",
    "compile",
    "verify",
    "tune",
    "measure",
    "select",
    "contest",
]
PATH = [
    START,
    "tester",
    "baseline",
    *ROUND,
    *ROUND[:8],
    *ROUND[4:9],
    *ROUND[11:],
    "profiler",
    "planner",
    "contest",
    "fallback",
    "held_out",
    END,
]


@pytest.fixture(scope="module")
def graph():
    return build()


@pytest.fixture(scope="module")
def real(graph):
    return parts(graph)


def texts(svg: str) -> list[tuple[float, float, str, str]]:
    """x, y, anchor and words of every text."""
    found = ET.fromstring(svg).iter(f"{SVG}text")
    return [(float(t.get("x", 0)), float(t.get("y", 0)), t.get("text-anchor", ""), t.text or "") for t in found]


def test_every_node_and_label_of_the_real_graph_is_there(real):
    nodes, edges = real
    said = [words for *_, words in texts(draw(nodes, edges))]
    assert {node.__name__ for node in NODES} <= set(said)
    for label in {edge.label for edge in edges} - {""}:
        assert said.count(label) == sum(edge.label == label for edge in edges)


def test_every_branch_has_a_meaning_and_every_meaning_a_branch(real):
    _, edges = real
    assert {(edge.source, edge.target) for edge in edges if edge.conditional} == set(MEANING)


def test_agents_gates_and_people_look_different(real):
    nodes, edges = real
    kinds = {node.name: node.kind for node in nodes}
    assert (kinds["planner"], kinds["measure"], kinds["approve_plans"], kinds[END]) == (
        "agent",
        "gate",
        "person",
        "end",
    )
    svg = draw(nodes, edges)
    # One more of each in the legend.
    assert [svg.count(f'class="node {kind}"') for kind in ("agent", "person")] == [8, 3]


def overlaps(svg: str) -> list[tuple[str, str]]:
    boxes = []
    for x, y, anchor, words in texts(svg):
        width = 6.0 * len(words)
        x0 = x - {"end": width, "middle": width / 2}.get(anchor, 0.0)
        boxes.append((x0, y - 9, x0 + width, y + 1, words))
    pairs = itertools.combinations(boxes, 2)
    return [(a[4], b[4]) for a, b in pairs if a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]]


def uprights(svg: str) -> dict[float, list[tuple[float, float, str]]]:
    """x of a lane -> the upright pieces of its lines, each with the row where its line ends."""
    found: dict[float, list[tuple[float, float, str]]] = {}
    for d in (path.get("d", "") for path in ET.fromstring(svg).iter(f"{SVG}path")):
        if trunk := re.fullmatch(r"M([\d.]+),([\d.]+)V([\d.]+)(Q.*)?", d):
            x, y0, y1 = map(float, trunk.groups()[:3])
            found.setdefault(x, []).append((min(y0, y1), max(y0, y1), d))
    return found


@pytest.mark.parametrize("seed", range(8))
def test_any_graph_draws_with_all_its_labels_and_no_line_or_text_over_another(seed):
    rng = random.Random(seed)
    names = [f"n{i}" for i in range(rng.randint(1, 14))]
    pairs = {(rng.choice(names), rng.choice(names)) for _ in range(rng.randint(0, 30))}
    edges = [GraphEdge(a, b, f"from {a} to {b}", rng.random() < 0.5) for a, b in pairs]
    svg = draw([GraphNode(name) for name in names], edges)
    said = [words for *_, words in texts(svg)]
    assert all(edge.label in said for edge in edges)
    assert not overlaps(svg)
    for pieces in uprights(svg).values():
        for (low, high, one), (other_low, other_high, other) in itertools.combinations(pieces, 2):
            assert high <= other_low + 0.2 or other_high <= low + 0.2, (one, other)


def test_the_path_of_a_run_is_marked(real):
    nodes, edges = real
    spent = Spent()
    for name in PATH[1:-1]:
        spent = spent.after(name, 0.5, {})
    svg = draw(nodes, edges, {name: (ran.count, ran.seconds) for name, ran in spent.nodes.items()}, count_edges(PATH))
    assert not overlaps(svg)
    said = [words for *_, words in texts(svg)]
    assert "3× · 1.5 s" in said  # coder and others
    assert "1× · 0.5 s" in said
    assert "repair" in said and "taken" in said
    faded = draw(nodes, edges, {"tester": (1, 0.1)}, count_edges(PATH[:2]))
    assert [words for *_, words in texts(faded)].count("not run") == len(NODES) - 1


class Snapshot:
    def __init__(self, *following: str) -> None:
        self.next = following


def test_a_path_from_the_checkpoints():
    newest_first = [Snapshot(), Snapshot("b"), Snapshot("a"), Snapshot(START)]
    assert path_of(newest_first) == [START, "a", "b", END]
    assert path_of(newest_first[1:]) == [START, "a"], "b is due, it has not run"
    assert path_of([]) == []


def test_hostile_names_are_inert():
    nodes = [GraphNode("a"), GraphNode(PAYLOAD), GraphNode("b", kind=PAYLOAD)]
    svg = draw(nodes, [GraphEdge("a", PAYLOAD, PAYLOAD), GraphEdge(PAYLOAD, "a", PAYLOAD, True)], {PAYLOAD: (1, 1.0)})
    tags = {element.tag for element in ET.fromstring(svg).iter()}
    assert tags == {SVG + tag for tag in ["svg", "title", "style", "defs", "marker", "path", "rect", "text", "g"]}
    assert not dangerous(svg)


@pytest.mark.parametrize("suffix", [".SVG", ".png", ".mmd"])
def test_files(tmp_path, graph, suffix):
    if suffix == ".png":
        pytest.importorskip("resvg_py")
        if "no" in (_font_missing() or ""):
            pytest.skip("no font on this machine")
    path = tmp_path / f"graph{suffix}"
    write(graph, path, {"tester": (1, 0.1)})
    data = path.read_bytes()
    start = {".svg": b"<svg", ".png": b"\x89PNG\r\n\x1a\n", ".mmd": b"---"}[suffix.lower()]
    assert data.startswith(start)
    if suffix == ".mmd":
        assert b"compile -.-> coder" in data.replace(b"&nbsp;", b"")


def _font_missing() -> str:
    try:
        png("<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>")
    except DrawError as error:
        return str(error)
    return ""


def test_another_suffix_is_refused(tmp_path, graph):
    with pytest.raises(DrawError, match=r"must end in \.svg, \.png, \.mmd"):
        write(graph, tmp_path / "graph.pdf")


def test_without_the_converter_there_is_one_clear_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(DrawError, match="pip install resvg-py"):
        png("<svg/>")


def test_without_a_font_there_is_one_clear_sentence(monkeypatch):
    resvg = pytest.importorskip("resvg_py")
    bare = resvg.svg_to_bytes
    monkeypatch.setattr(resvg, "svg_to_bytes", lambda **more: bare(**more, skip_system_fonts=True))
    with pytest.raises(DrawError, match="fonts-dejavu-core"):
        png("<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>")


def test_drawing_needs_no_network_and_no_torch(tmp_path):
    code = (
        "import socket, sys\n"
        "def refuse(*a, **k): raise AssertionError('network')\n"
        "socket.socket.connect = refuse\n"
        "from graph.draw import *\n"
        "draw([GraphNode('a')], [])\n"
        "assert 'torch' not in sys.modules and 'langgraph' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_the_coders_subgraph_is_drawn(graph, tmp_path: Path) -> None:
    nodes, _ = parts(graph)
    assert {node.name: node.inside for node in nodes if node.inside} == {"coder": ("model", "tools")}
    write(graph, tmp_path / "graph.mmd")
    text = (tmp_path / "graph.mmd").read_text()
    inner = text[text.index("subgraph coder") : text.index("end\n", text.index("subgraph coder"))]
    assert "model" in inner and "compile, check, time, profile, read, submit" in inner
    write(graph, tmp_path / "graph.svg")
    assert "model ⇄ tools" in (tmp_path / "graph.svg").read_text()
