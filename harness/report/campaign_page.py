"""A campaign's `report.html` and `summary.json`: fast_p as tables and curves, one line a problem. Measures nothing."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from markupsafe import Markup
from pydantic import Field

from harness.records import Comparison, Interval
from harness.report import fast_p as figures
from harness.report import words
from harness.report.fast_p import FastPTable, Solved
from harness.report.html import page_environment
from harness.report.svg import Scale, element, picture, text
from kernels.spec import Frozen

EAGER = "eager"
BASELINES = {EAGER: "eager torch", "compile": "torch.compile", "max-autotune": "torch.compile, max-autotune"}
LOW, HIGH = 0.25, 16.0
TICKS = (0.5, 0.8, 1.0, 1.5, 2.0, 5.0, 10.0)


def compare_with_one(found: Interval) -> Comparison:
    return Comparison.FASTER if found.low > 1 else Comparison.SLOWER if found.high < 1 else Comparison.SAME


class Line(Frozen):
    """One problem."""

    id: str
    state: str
    """done, unfit, failed."""
    outcome: str
    reason: str
    link: str
    """Relative link to the run's report; "" where there is none."""
    seconds: float
    stop_reason: str
    kernelbench: str = ""
    disagreement: str = ""
    commit: str = ""
    """Astrolabe's commit at which it was judged; "" where it is the page's."""
    theirs: Solved | None = None
    """KernelBench's own verdict and times; None of a candidate that it was not asked about."""
    machine: str = ""
    load: float | None = None
    worst: str = ""
    """Its workload that gains least, in words; "" of a single one."""
    solved: Solved

    @property
    def comparison(self) -> Comparison | None:
        """With eager torch: by the whole interval."""
        found = self.solved.speedup.get(EAGER) if self.solved.correct else None
        if found is None:
            return None
        return compare_with_one(found)


class CampaignPage(Frozen):
    name: str
    suite: str
    device: str
    words: tuple[str, ...]
    commit: str
    started: datetime
    total: int = Field(ge=1)
    samples: int = Field(default=1, ge=1)
    """Independent runs of each problem, whose best is its line."""
    lines: tuple[Line, ...]

    @property
    def limits(self) -> tuple[str, ...]:
        """What the figures do not say by themselves, one sentence each."""
        said = []
        if left := self.total - len(self.lines):
            said.append(
                f"{left} of {self.total} problems were not judged: every share is of the {len(self.lines)} that were."
            )
        if "--rounds 0" in " ".join(self.words):
            said.append("Drafts only (--rounds 0): nothing was rewritten or searched after the first candidate.")
        commits = Counter(words.commit(line.commit or self.commit) for line in self.lines)
        if len(commits) > 1:
            judged = ", ".join(f"{n} at {name or 'one that is not known'}" for name, n in commits.most_common())
            said.append(f"Not of one commit: {judged}.")
        if self.theirs and (unasked := sum(line.theirs is None for line in self.lines)):
            said.append(
                f"KernelBench's own verdict was not asked about {unasked} candidates: its table leaves them out."
            )
        return tuple(said)

    @property
    def theirs(self) -> list[Solved]:
        """The counts by KernelBench's own verdict; empty where it was asked about none."""
        asked = any(line.kernelbench for line in self.lines)
        return [line.theirs for line in self.lines if line.theirs is not None] if asked else []

    @property
    def machines(self) -> tuple[str, ...]:
        """Those that problems were judged on, and how busy."""
        loads = sorted(line.load for line in self.lines if line.load is not None)
        busy = f", load {loads[0]:.1f} to {loads[-1]:.1f}" if loads else ""
        return tuple(f"{name}{busy}" for name in sorted({line.machine for line in self.lines if line.machine}))


class Summary(Frozen):
    """summary.json: every figure of the page. Problems that have not ended yet are not in the figures; `total` has them."""

    format: int = 1
    page: CampaignPage
    tables: tuple[FastPTable, ...]
    kernelbench: tuple[FastPTable, ...] = ()
    """The same tables by KernelBench's own verdict and times."""


def baselines(page: CampaignPage) -> list[str]:
    """Those that something was measured against, eager first and always."""
    seen = {name for line in page.lines for name in line.solved.speedup}
    return [name for name in BASELINES if name in seen or name == EAGER]


def summary(page: CampaignPage) -> Summary:
    problems = [line.solved for line in page.lines]
    k_values = sorted({*(k for k in figures.K if k <= page.samples), page.samples}) if page.samples > 1 else figures.K
    theirs = figures.tables(page.theirs, [EAGER], ()) if page.theirs else []
    return Summary(
        page=page, tables=tuple(figures.tables(problems, baselines(page), k_values)), kernelbench=tuple(theirs)
    )


def render(page: CampaignPage) -> str:
    found = summary(page)
    problems = [line.solved for line in page.lines]
    names = baselines(page)
    return (
        page_environment()
        .get_template("campaign.html.j2")
        .render(
            page=page,
            tables=[(BASELINES[name], [t for t in found.tables if t.baseline == name]) for name in names],
            baselines=[(name, BASELINES[name]) for name in names],
            p_values=[f"{p:g}" for p in figures.P],
            k_values=sorted({k for table in found.tables for k in table.pass_at_k}, key=int),
            wide=curves(problems, names, 960, 300),
            narrow=curves(problems, names, 350, 260),
            seconds=sum(line.seconds for line in page.lines),
            counts={state: sum(line.state == state for line in page.lines) for state in ("done", "unfit", "failed")},
            correct=sum(problem.correct for problem in problems),
            differ=[line for line in page.lines if line.disagreement],
            theirs=found.kernelbench,
            degenerate=sum(bool(problem.degenerate) for problem in problems),
        )
    )


def curves(problems: list[Solved], names: list[str], width: int, height: int) -> Markup:
    """fast_p over p as steps, one line a baseline; logarithmic in p. Drawn for a width in CSS pixels."""
    left, right, top, bottom = 44, 12, 12, 30
    across = Scale(LOW, HIGH, True, TICKS)
    inner, tall = width - left - right, height - top - bottom

    def x(value: float) -> float:
        return left + inner * across(value)

    def y(share: float) -> float:
        return top + tall * (1 - share)

    parts = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(element("line", class_="grid", x1=left, x2=width - right, y1=y(share), y2=y(share)))
        parts.append(text(left - 6, y(share) + 4, f"{share:.0%}", "end"))
    for tick in TICKS:
        parts.append(text(x(tick), height - 10, f"{tick:g}×", "middle"))
    for place, name in enumerate(names):
        speedups = sorted(one.speedup[name].median for one in problems if one.correct and name in one.speedup)
        if not speedups:
            continue
        points = [(x(LOW), y(len(speedups) / len(problems)))]
        for rank, value in enumerate(speedups):
            before, after = (len(speedups) - rank) / len(problems), (len(speedups) - rank - 1) / len(problems)
            points += [(x(value), y(before)), (x(value), y(after))]
        points.append((x(HIGH), points[-1][1]))
        line = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
        parts.append(element("polyline", class_=f"curve c{place}", points=line))
    return picture(width, height, parts, role="img", aria_label="share of problems faster than p")
