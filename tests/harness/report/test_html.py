from html.parser import HTMLParser

import pytest

from harness.report.html import Picture, render
from harness.report.result import Result
from tests.harness.report.example import BASELINE, BEST, RESULT, SOURCES, TRANSCRIPT
from tests.harness.report.hostile import HOSTILE_SOURCE, HOSTILE_TRANSCRIPT, PAYLOAD, dangerous, hostile_result

VOID = {"meta", "br", "img", "link", "input", "hr"}
SVG_SHAPES = {"path", "circle", "line", "rect"}


class Page(HTMLParser):
    """Tags, attributes and text; fails where tags do not nest."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(html)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data):
        if "style" not in self.open:
            self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


def test_the_page_says_what_the_record_says():
    words = Page(render(RESULT, SOURCES, transcript=TRANSCRIPT)).words
    for said in (
        "1.31×", "interval 1.29 – 1.33", "production", "NVIDIA H200", "silu_and_mul", "1.27× (1.25 – 1.29)", "rounds",
        "tokens 16384 · hidden 14336", "545", "331", "97 %", "held-out", "compile error", "Sixteen bytes a load",
        "largest error 41.3 times the tolerance", "the candidate of round 2", "landlock", "1980 MHz", "580.65.06",
        "python run.py --kernel silu_and_mul", "BLOCK 512", "gpt-x", "float64 reference",
    ):  # fmt: skip
        assert said.lower() in words.lower(), said


def test_one_file_nothing_from_outside_and_no_script():
    html = render(RESULT, SOURCES, graph_svg="<svg xmlns='http://www.w3.org/2000/svg'/>", transcript=TRANSCRIPT)
    page = Page(html)
    assert not {"script", "link", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in page.tags}
    for _, attributes in page.tags:
        for name, value in attributes.items():
            assert name not in ("href", "srcset", "action", "background")
            assert name != "src" or str(value).startswith("data:image/svg+xml;base64,")
    style = html[html.index("<style>") : html.index("</style>")]
    assert "url(" not in style and "@import" not in style
    policy = next(a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy and "script" not in policy


def test_hostile_text_is_inert():
    names = {name: HOSTILE_SOURCE + f"// {i}\n" for i, name in enumerate(SOURCES)}
    harmless, html = (
        Page(render(RESULT, SOURCES, transcript=TRANSCRIPT)),
        render(hostile_result(), names, graph_svg=f"<svg>{PAYLOAD}</svg>", transcript=HOSTILE_TRANSCRIPT),
    )
    page = Page(html)
    assert {tag for tag, _ in page.tags} <= {tag for tag, _ in harmless.tags} | {"img"}
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert not dangerous(html)
    assert "alert(1)" in page.words and "{{ 7*7 }}" in page.words, "it is shown, not dropped"


@pytest.mark.parametrize("status", ["running", "paused", "stopped", "failed", "finished"])
def test_a_run_that_has_nothing_yet(status):
    bare = Result(run_id="r", kernel="k", device="cpu", policy="rules", baseline="extracted", status=status)
    words = Page(render(bare, {})).words
    assert "No attempt has ended yet" in words
    assert "×" not in words.split("Speedup by round")[0], "no speedup is claimed"


def test_without_improvement_the_page_does_not_claim_one():
    same = Result.model_validate(RESULT.model_dump() | {"best": RESULT.source, "comparison": "SAME"})
    words = Page(render(same, SOURCES)).words
    head = words.split("Speedup by round")[0]
    assert "No candidate was clearly faster" in head and "1.31×" not in head.split("Cold")[0]
    assert "Best against" not in words


def test_a_winner_that_fails_on_held_out_workloads_is_no_winner():
    gone = RESULT.model_dump() | {"best": RESULT.source, "held_out_outcome": "INCORRECT", "held_out_reason": "NaN at 3"}
    head = Page(render(Result.model_validate(gone), SOURCES)).words.split("Speedup by round")[0]
    assert "the baseline stands" in head and "NaN at 3" in head and "no improvement" in head


def test_what_bounds_it_is_shown_with_the_readings_and_with_why_there_are_none():
    words = Page(render(RESULT, SOURCES)).words
    shown = words.split("What bounds it")[1].split("Every workload")[0]
    assert "latency" in shown and "wait for their first loads" in shown
    assert "most registers" in shown and "32" in shown
    assert "ncu says nothing: the driver keeps" in shown
    without = Result.model_validate(RESULT.model_dump() | {"finding": None})
    assert "What bounds it" not in Page(render(without, SOURCES)).words


def test_a_source_that_is_gone_leaves_only_its_diff_out():
    only_baseline = {RESULT.source: BASELINE}
    words = Page(render(RESULT, only_baseline)).words
    assert "Sixteen bytes a load" in words and "Diff against" not in words


def test_huge_text_stays_bounded():
    long_line = "x" * 3_000_000
    many_lines = "int a;\n" * 60_000
    row = RESULT.attempts[0].model_dump() | {"reason": long_line}
    row["plan"] |= {"title": long_line, "rationale": long_line}
    huge = Result.model_validate(RESULT.model_dump() | {"attempts": [row], "error": long_line})
    html = render(huge, {RESULT.source: many_lines, RESULT.best: long_line, row["candidate"]: BEST})
    assert len(html) < 6_000_000
    Page(html)


def test_an_attempt_is_held_against_the_one_before_it_too():
    steps = [
        row.model_copy(update={"plan": row.plan.model_copy(update={"base": ""})})
        for row in RESULT.attempts
        if row.candidate in SOURCES
    ]
    words = Page(render(RESULT.model_copy(update={"attempts": steps}), SOURCES)).words
    assert "Diff against the attempt before it" in words and "Diff against the production baseline" in words
    alone = RESULT.model_copy(update={"attempts": steps[:1]})
    assert "the attempt before it" not in Page(render(alone, SOURCES)).words


def test_pictures_come_in_as_images_where_nothing_runs():
    html = render(
        RESULT,
        SOURCES,
        roofs=[Picture(PAYLOAD, PAYLOAD, f"<svg>{PAYLOAD}</svg>", "<svg/>")],
        histograms=[f"<svg>{PAYLOAD}</svg>"],
    )
    assert html.count('src="data:image/svg+xml;base64,') == 3 and not dangerous(html)
