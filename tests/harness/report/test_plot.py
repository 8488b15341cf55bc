"""Pictures that stand alone: whole XML whatever the names are, every number in its place."""

from __future__ import annotations

import random
import re
from xml.etree import ElementTree

import pytest

from harness.records import DeviceFacts, Interval, Roof
from harness.report import plot, roofline
from tests.harness.report.hostile import PAYLOAD, dangerous

SVG = "{http://www.w3.org/2000/svg}"


def drawn(svg: str) -> ElementTree.Element:
    assert not dangerous(svg) and "nan" not in svg and "inf" not in re.sub(r"[a-z]{4,}", "", svg)
    return ElementTree.fromstring(svg)


def test_a_forest_puts_faster_to_the_right() -> None:
    rows = [("slower", Interval(median=0.5, low=0.4, high=0.6)), (PAYLOAD, Interval(median=2.0, low=1.9, high=2.2))]
    page = drawn(plot.forest(rows, PAYLOAD, PAYLOAD, "right"))
    slow, fast = (float(one.get("cx")) for one in page.iter(f"{SVG}circle"))
    assert slow < fast


def test_panels_name_each_curve_apart() -> None:
    curves = tuple(plot.Curve(name, "best", ((1.0, 5.0), (1000.0, 5.0))) for name in ("a", "b", PAYLOAD))
    page = drawn(plot.panels((plot.Panel("time", curves), plot.Panel("speedup", curves, log_y=False)), "t", "tokens"))
    names = [float(one.get("y")) for one in page.iter(f"{SVG}text") if one.text in ("a", "b")]
    assert len(set(names)) == 4


def test_a_histogram_counts_every_sample() -> None:
    rng = random.Random(0)
    values = [10 * rng.lognormvariate(0, 0.1) for _ in range(200)] + [9_000.0]
    page = drawn(plot.histogram(PAYLOAD, [("baseline", "base", values), ("candidate", "best", [5.0, 5.0])]))
    tall = [float(one.get("height")) for one in page.iter(f"{SVG}rect") if one.get("fill-opacity")]
    assert max(tall) == pytest.approx(106, abs=1) and len(tall) > 5
    assert any("201 samples" in (one.text or "") for one in page.iter(f"{SVG}text"))


def test_the_roof_holds_files_and_bounds() -> None:
    points = [plot.RooflinePoint(1 << n, 2.0 * n, PAYLOAD, 3 << n) for n in range(10, 20)]
    for width in (380, 860):
        files = [("base", "base", points), ("best", "best", points[:3]), (PAYLOAD, "ink", points[:1])]
        page = drawn(plot.roof(files, points, 4000.0, PAYLOAD, width))
        assert len(list(page.iter(f"{SVG}circle"))) == 14
        assert all(0 <= float(one.get("cx")) <= width for one in page.iter(f"{SVG}circle"))


def test_a_roofline_has_both_roofs_and_every_file_below_them() -> None:
    facts = DeviceFacts(
        device="cuda", name="", architecture="sm_90", units=1, last_level_cache_bytes=1, bandwidth_gbps=4000.0,
        compute=(
            Roof(kind="vector", dtype="float32", gflops=6e4), Roof(kind="matrix", dtype="bfloat16", gflops=7e5),
        ),
    )  # fmt: skip
    flat = roofline.roofs(facts, ["bfloat16", "float32"])
    assert flat == [("vector units, bfloat16, float32", 6e4), ("matrix units, bfloat16", 7e5)]
    points = [plot.RooflinePoint(1 << 30, us, PAYLOAD, 3 << 30) for us in (300.0, 900.0)]
    for width in (380, 860):
        page = drawn(
            roofline.roofline([("base", "base", points), ("best", "best", points[:1])], 4000.0, flat, PAYLOAD, width)
        )
        dots = [float(one.get("cy")) for one in page.iter(f"{SVG}circle")]
        assert len(dots) == 3 and dots[0] == dots[2] < dots[1]
        roofs = [d for one in page.iter(f"{SVG}path") if one.get("stroke") == plot.LIGHT for d in [one.get("d")]]
        slant, *levels = [[float(n) for n in re.findall(r"[\d.]+", d)] for d in roofs]
        assert slant[3] < slant[1] and [level[1] == level[3] for level in levels] == [True, True]
        assert slant[2:] == levels[0][:2]  # the slope ends where the highest flat roof begins
        assert levels[0][1] < levels[1][1] < min(dots)  # 3 FLOPs a byte at 4 TB/s are far below 60 TFLOP/s
        assert any("matrix units, bfloat16: 700k" in (one.text or "") for one in page.iter(f"{SVG}text"))


@pytest.mark.parametrize(
    ("value", "text"), [(0.5, "0.5"), (12, "12"), (1234, "1,234"), (40960, "41k"), (3.2e6, "3.2M")]
)
def test_numbers_on_axes_are_short(value: float, text: str) -> None:
    assert plot.number(value) == text
