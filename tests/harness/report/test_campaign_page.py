"""What a campaign's page says beside its figures."""

from __future__ import annotations

from datetime import UTC, datetime

from harness.records import Interval
from harness.report.campaign_page import CampaignPage, Line, render
from harness.report.fast_p import Solved


def page(words: tuple[str, ...], judged: int, total: int) -> CampaignPage:
    lines = [
        Line(
            id=f"l1-00{at}", state="done", outcome="PASSED", reason="", link="", seconds=1.0, stop_reason="rounds",
            solved=Solved(level=1, number=at, name="P"),
        )
        for at in range(judged)
    ]  # fmt: skip
    return CampaignPage(
        name="kb", suite="kb", device="cuda", words=words, commit="", started=datetime(2026, 1, 1, tzinfo=UTC),
        total=total, lines=tuple(lines),
    )  # fmt: skip


def test_what_was_not_judged_or_not_rewritten_is_said_above_the_figures():
    assert page(("--rounds", "3"), 4, 4).limits == ()
    cut = page(("--compare", "none", "--rounds", "0"), 3, 4)
    assert cut.limits[0].startswith("1 of 4 problems were not judged") and "of the 3 that were" in cut.limits[0]
    assert cut.limits[1].startswith("Drafts only (--rounds 0)")
    html = render(cut)
    assert all(html.index(said) < html.index("<table") for said in cut.limits)


def test_problems_that_were_judged_at_several_commits_are_said_to_be():
    """A campaign that goes on after a change of ours would have claimed the commit that it began at for all."""
    one = page(("--rounds", "3"), 4, 4).model_copy(update={"commit": "a" * 40})
    assert one.limits == () and f"commit {'a' * 12};" in render(one)
    later = [line.model_copy(update={"commit": "b" * 40 + "-dirty"}) for line in one.lines[:3]]
    several = one.model_copy(update={"lines": (*later, one.lines[3])})
    assert several.limits == (f"Not of one commit: 3 at {'b' * 12}-dirty, 1 at {'a' * 12}.",)


def test_slower_same_and_faster_are_told_apart_by_a_word_and_a_class_each():
    def line(low: float, high: float) -> Line:
        gain = Interval(median=(low + high) / 2, low=low, high=high)
        solved = Solved(level=1, number=1, name="P", correct=True, speedup={"eager": gain})
        return page((), 1, 1).lines[0].model_copy(update={"solved": solved, "reason": "w" * 300 + " end"})

    lines = (line(0.5, 0.6), line(0.9, 1.1), line(1.2, 1.3))
    assert [one.comparison for one in lines] == ["SLOWER", "SAME", "FASTER"]
    html = render(page((), 1, 3).model_copy(update={"lines": lines}))
    assert all(f'<span class="chip {word}">{word}</span>' in html for word in ("slower", "same", "faster"))
    assert html.count(" end</small>") == 3  # a long reason is wrapped, not cut
