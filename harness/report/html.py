"""`report.html`: one file that opens offline, in light and dark, on a phone; no script at all.

Candidates' code and models' words are hostile: Jinja2 escapes everything, control characters are made visible, a
content security policy forbids scripts and the network, and the graph's SVG comes in as an image, where nothing runs.
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from harness.records import Outcome
from harness.report import charts, words
from harness.report.inert import escape_controls, one_line
from harness.report.result import AttemptRow, Result
from harness.report.source import Diff, diff_html, source_html

PROSE_LIMIT = 20_000
"""Characters of a reason, a prompt or an answer that are shown."""


@dataclass(frozen=True)
class ExchangeView:
    """One question to a model and its answer, for the transcript."""

    role: str
    title: str
    prompt: str
    answer: str
    note: str = ""
    """Model, tokens, seconds: one line."""


@dataclass(frozen=True)
class Picture:
    """An SVG for a wide and for a narrow screen, under a heading."""

    heading: str
    alt: str
    wide: str
    narrow: str


@dataclass(frozen=True)
class AttemptView:
    row: AttemptRow
    diff: Diff | None
    against: str
    step: Diff | None
    """Difference to the attempt before this one, where that is another source than the plan's base."""
    before: str


def _attempt(row: AttemptRow, result: Result, sources: Mapping[str, str], language: str) -> AttemptView:
    base = row.plan.base or result.source
    diff = None
    if row.candidate in sources and base in sources:
        diff = diff_html(sources[base], sources[row.candidate], language)
    the_baseline = words.the_baseline(result.baseline)
    rounds = {other.candidate: other.round for other in result.attempts if other.candidate}
    against = f"the candidate of round {rounds[base]}" if base in rounds else the_baseline
    earlier = [other for other in result.attempts[: result.attempts.index(row)] if other.candidate in sources]
    last = earlier[-1] if earlier else None
    step = None
    if last and row.candidate in sources and last.candidate not in (base, row.candidate):
        step = diff_html(sources[last.candidate], sources[row.candidate], language)
    before = f"the attempt before it, {one_line(last.plan.title, 60)} of round {last.round}" if last else ""
    return AttemptView(row, diff, against, step, before)


def _headline(result: Result) -> tuple[str, str]:
    """Verdict in a few words, and the sentence under it."""
    where, the_baseline = result.device_name or result.device, words.the_baseline(result.baseline)
    if result.status == "failed":
        return "failed", "The run failed before it could say anything final."
    if result.improved and result.speedup:
        held_out = ""
        if result.held_out_speedup:
            held_out = f" On workloads that no agent saw it is {words.times(result.held_out_speedup.median)} as fast."
        return "faster", (
            f"The file of round {result.best_round} takes {words.percent(1 / result.speedup.median)} of the time of "
            f"{the_baseline} on {where}.{held_out}"
        )
    if result.held_out_reason:
        return "same", "The fastest file did not hold in the end, so the baseline stands."
    if result.untried:
        return "same", result.untried
    if result.status == "finished":
        return "same", f"No candidate was clearly faster than {the_baseline} on {where}."
    return "unclear", f"Nothing clearly faster than {the_baseline} on {where} so far."


@functools.cache
def page_environment(*packages: str) -> Environment:
    """The pages' templates, those of `packages` before these. Kept: compiling them takes longer than a page."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(name) for name in (*packages, "harness.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) else escape_controls(value, PROSE_LIMIT),
    )
    environment.filters.update(
        times=words.times,
        interval=words.interval,
        micros=words.micros,
        percent=words.percent,
        duration=words.duration,
        the_baseline=words.the_baseline,
        commit=words.commit,
        count=words.count,
        one_line=one_line,
    )
    return environment


def _encoded(svg: str) -> str:
    """For an image's address: what an SVG holds does not run there."""
    return base64.b64encode(svg.encode()).decode()


def render(
    result: Result,
    sources: Mapping[str, str],
    *,
    graph_svg: str = "",
    transcript: Sequence[ExchangeView] = (),
    prompts: str = "",
    roofs: Sequence[Picture] = (),
    histograms: Sequence[str] = (),
) -> str:
    """The page as text. `sources`: hash -> text of baseline, best and attempts; a missing one is left out.

    `roofs` and `histograms`: pictures of harness/report/plot.py and roofline.py.
    """
    language = "cu" if result.device == "cuda" else "cpp"
    visible, held_out = result.rows(held_out=False), result.rows(held_out=True)
    scale = charts.time_scale(result.workloads) if result.workloads else None
    verdict, sentence = _headline(result)
    baseline, best = sources.get(result.source), sources.get(result.best)
    return (
        page_environment()
        .get_template("report.html.j2")
        .render(
            result=result,
            verdict=verdict,
            sentence=sentence,
            worst=words.worst(visible) if result.improved else "",
            # Wide for desktops, narrow for phones; CSS shows one of them.
            rounds_wide=charts.rounds_chart(result, 960, 300),
            rounds_narrow=charts.rounds_chart(result, 350, 260),
            times_visible=charts.times_chart(visible, scale) if scale else None,
            times_held_out=charts.times_chart(held_out, scale) if scale and held_out else None,
            tables=[
                ("Visible workloads", visible),
                ("Held-out workloads", held_out),
                *(
                    (words.COMPANY[on], [row for row in result.elsewhere if row.company == on])
                    for on in result.suites_elsewhere
                ),
            ],
            evidence=words.evidence(result),
            attempts=[_attempt(row, result, sources, language) for row in result.attempts],
            passed=sum(row.outcome == Outcome.PASSED for row in result.attempts),
            best_source=source_html(best, language) if best else None,
            best_diff=diff_html(baseline, best, language)
            if baseline and best and result.best != result.source
            else None,
            baseline_source=source_html(baseline, language) if baseline else None,
            graph=_encoded(graph_svg),
            roofs=[replace(one, wide=_encoded(one.wide), narrow=_encoded(one.narrow)) for one in roofs],
            histograms=[_encoded(svg) for svg in histograms],
            transcript=transcript,
            prompts=prompts,
        )
    )
