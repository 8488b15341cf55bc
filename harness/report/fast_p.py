"""KernelBench's figures over a set of problems: fast_p, pass@k, rates. Arithmetic only; nothing here measures.

fast_p is the share of ALL problems whose candidate is correct and more than p times as fast as the baseline; a problem
that could not be worked on counts as one that was not solved.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from pydantic import Field

from harness.records import Interval
from harness.report.words import times
from kernels.spec import Frozen

P = (0.0, 0.5, 0.8, 1.0, 1.5, 2.0, 5.0)
K = (1, 5, 10)
Bound = Literal["median", "low"]


class Solved(Frozen):
    """What became of one problem."""

    level: int
    number: int
    name: str
    compiled: bool = False
    correct: bool = False
    speedup: dict[str, Interval] = Field(default_factory=dict)
    """Baseline ("eager", "compile", "max-autotune") -> the speedup over it, where the candidate is correct and was
    timed."""
    degenerate: tuple[str, ...] = ()
    samples: int = Field(default=0, ge=0)
    """Candidates that were written."""
    right: int = Field(default=0, ge=0)
    """Written candidates that passed."""


def fast_p(problems: Sequence[Solved], p: float, baseline: str, bound: Bound = "median") -> float:
    """Share of the problems that are correct and strictly more than `p` times as fast, by the median or the lower bound.

    Correctness alone is fast_0: a candidate without a time counts there and nowhere else. 0.0 of no problems.
    """

    def fast(one: Solved) -> bool:
        if not one.correct:
            return False
        if p == 0:
            return True
        found = one.speedup.get(baseline)
        return found is not None and getattr(found, bound) > p

    return _share(problems, fast)


def compile_rate(problems: Sequence[Solved]) -> float:
    return _share(problems, lambda one: one.compiled)


def correct_rate(problems: Sequence[Solved]) -> float:
    return _share(problems, lambda one: one.correct)


def speedups(problems: Iterable[Solved], baseline: str) -> list[float]:
    """Speedups of the correct candidates that were timed."""
    return [one.speedup[baseline].median for one in problems if one.correct and baseline in one.speedup]


def geometric_mean(problems: Iterable[Solved], baseline: str) -> float | None:
    """Geometric mean of the speedups of correct candidates; None where none was timed."""
    found = speedups(problems, baseline)
    return math.exp(math.fsum(map(math.log, found)) / len(found)) if found else None


def worst(problems: Iterable[Solved], baseline: str) -> str:
    """The problem that gains least, for beside a mean: `0.45× at 13_DenseNet`; "" where fewer than two were timed."""
    found = sorted((one.speedup[baseline].median, one) for one in problems if one.correct and baseline in one.speedup)
    return f"{times(found[0][0])} at {found[0][1].number}_{found[0][1].name}" if len(found) > 1 else ""


def pass_at_k(samples: int, right: int, k: int) -> float:
    """The unbiased estimator of the chance that one of `k` samples is right (arXiv 2107.03374). Needs samples >= k."""
    if not 0 <= right <= samples or not 1 <= k <= samples:
        raise ValueError(f"pass@{k} of {right} right ones among {samples} samples is not defined")
    return 1.0 - math.comb(samples - right, k) / math.comb(samples, k)


def mean_pass_at_k(problems: Sequence[Solved], k: int) -> float | None:
    """Over the problems with at least k samples; those without any count as 0. None where none has so many."""
    fit = [one for one in problems if one.samples >= k]
    if not fit:
        return None
    lost = sum(1 for one in problems if not one.samples)
    return math.fsum(pass_at_k(one.samples, one.right, k) for one in fit) / (len(fit) + lost)


class FastPTable(Frozen):
    """The figures of one set of problems against one baseline."""

    title: str
    baseline: str
    problems: int
    compile_rate: float
    correct_rate: float
    fast: dict[str, float]
    """fast_p by p, on the median."""
    fast_low: dict[str, float]
    """fast_p by p, on the lower bound of the interval."""
    geometric_mean: float | None
    median: float | None = None
    """Median of the same speedups."""
    worst: str = ""
    """The problem that gains least; "" where fewer than two were timed."""
    pass_at_k: dict[str, float]


def table(title: str, problems: Sequence[Solved], baseline: str, k_values: Sequence[int] = K) -> FastPTable:
    found = speedups(problems, baseline)
    passes = {str(k): value for k in k_values if (value := mean_pass_at_k(problems, k)) is not None}
    return FastPTable(
        title=title,
        baseline=baseline,
        problems=len(problems),
        compile_rate=compile_rate(problems),
        correct_rate=correct_rate(problems),
        fast={f"{p:g}": fast_p(problems, p, baseline) for p in P},
        fast_low={f"{p:g}": fast_p(problems, p, baseline, "low") for p in P},
        geometric_mean=geometric_mean(problems, baseline),
        median=statistics.median(found) if found else None,
        worst=worst(problems, baseline),
        pass_at_k=passes,
    )


def tables(problems: Sequence[Solved], baselines: Sequence[str], k_values: Sequence[int] = K) -> list[FastPTable]:
    """Tables by baseline: each level, all levels, and all without the degenerate problems where there are some."""
    found = []
    for baseline in baselines:
        levels = sorted({one.level for one in problems})
        for level in levels:
            found.append(table(f"level {level}", [one for one in problems if one.level == level], baseline, k_values))
        if len(levels) > 1:
            found.append(table("all levels", problems, baseline, k_values))
        sound = [one for one in problems if not one.degenerate]
        if len(sound) < len(problems):
            found.append(table(f"without {len(problems) - len(sound)} degenerate", sound, baseline, k_values))
    return found


def _share(problems: Sequence[Solved], counts: Callable[[Solved], bool]) -> float:
    return sum(map(counts, problems)) / len(problems) if problems else 0.0
