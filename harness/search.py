"""Search of the integers that a candidate leaves open, by building, checking and timing variants.

Optuna's TPE proposes; variants of a batch are built side by side, then timed in turn against the source as it came, so
that drift hits all of them alike. Few samples for all, more for the best few (successive halving). What wins here is
measured again like any candidate, against the incumbent, before anybody calls it faster.
"""

from __future__ import annotations

import itertools
import math
import os
import statistics
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from harness import comparison, timing
from harness.correctness import Layout
from harness.engines.process import Worker, WorkerFailure
from harness.records import Cache
from harness.timing import Contest, Side, SideFailure
from harness.tunables import Tunable, bake
from kernels.spec import Workload

if TYPE_CHECKING:
    from harness.evaluate import Evaluator

Key = tuple[tuple[str, int], ...]
"""A choice of values, sorted by name."""
FIRST_BLOCKS, LAST_BLOCKS, FINALISTS = 3, 9, 3
CASES = {"cuda": 8, "cpu": 3}
"""Timed workloads and cache states that a variant is tried on; the measure gate looks at all."""
MOST_VARIANTS = 64


def search(evaluator: Evaluator, source: str, open_: Sequence[Tunable], seconds: float) -> tuple[dict[str, int], int, str]:
    """(values, variants tried, what came of it) for `source`; the values it came with where none is clearly better."""
    deadline = time.monotonic() + seconds
    size = math.prod(len(t.choices) for t in open_)
    start = {t.name: t.value for t in open_}
    proposals = _Proposals(open_)
    batch = max(2, min(8, len(os.sched_getaffinity(0))))
    cases = _contests(evaluator)
    scores: dict[Key, float] = {}
    failed = 0
    while time.monotonic() < deadline and len(scores) + failed < MOST_VARIANTS:
        keys = proposals.ask(batch)
        if not keys:
            break
        for key, score in zip(keys, _measure(evaluator, source, [dict(key) for key in keys], cases, FIRST_BLOCKS), strict=True):
            proposals.tell(key, score)
            if score is None:
                failed += 1
            else:
                scores[key] = score
        evaluator.say(f"tuning: {len(scores)} of {size - 1} variants, best {math.exp(-min([0.0, *scores.values()])):.3f}x")
    tried = len(scores) + failed
    finalists = sorted(scores, key=scores.__getitem__)[:FINALISTS]
    if not finalists or scores[finalists[0]] >= 0:
        return start, tried, f"{tried} of {size - 1} variants tried, none faster than the numbers it came with"
    again = _measure(evaluator, source, [dict(key) for key in finalists], cases, LAST_BLOCKS)
    best = min(range(len(finalists)), key=lambda i: math.inf if again[i] is None else again[i])
    gain = again[best]
    if gain is None or gain >= -comparison.MARGIN[evaluator.device] / 2:
        return start, tried, f"{tried} of {size - 1} variants tried, none clearly faster than the numbers it came with"
    return dict(finalists[best]), tried, f"{tried} of {size - 1} variants tried, the best {math.exp(-gain):.3f}x"


class _Proposals:
    """Which variants to try next: all of a small space, the nearest to the start first; what TPE asks for in a large one."""

    def __init__(self, open_: Sequence[Tunable]) -> None:
        self.start = tuple(sorted((t.name, t.value) for t in open_))
        self.trials: dict[Key, Any] = {}
        self.seen: set[Key] = {self.start}
        self.study: Any = None
        if math.prod(len(t.choices) for t in open_) <= MOST_VARIANTS:
            names = sorted(open_, key=lambda t: t.name)
            every = [tuple(zip([t.name for t in names], p, strict=True)) for p in itertools.product(*(t.choices for t in names))]
            rank = {t.name: {c: abs(i - _place(t)) for i, c in enumerate(t.choices)} for t in names}
            self.left = sorted(every, key=lambda key: sum(rank[name][value] for name, value in key))
            return
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        # One seed for all: a resumed run proposes the same variants, whose builds it then finds in the store.
        sampler = optuna.samplers.TPESampler(seed=0, n_startup_trials=12, multivariate=True, constant_liar=True)
        self.study = optuna.create_study(sampler=sampler)
        self.space = {t.name: optuna.distributions.CategoricalDistribution(t.choices) for t in open_}

    def ask(self, count: int) -> list[Key]:
        found: list[Key] = []
        if self.study is None:
            while self.left and len(found) < count:
                key = self.left.pop(0)
                if key not in self.seen:
                    found.append(key)
        else:
            for _ in range(8 * count):  # it may propose what it proposed before
                if len(found) == count:
                    break
                trial = self.study.ask(self.space)
                key = tuple(sorted(trial.params.items()))
                if key in self.seen:
                    self.study.tell(trial, state=_failed())
                    continue
                self.trials[key] = trial
                self.seen.add(key)
                found.append(key)
        self.seen.update(found)
        return found

    def tell(self, key: Key, score: float | None) -> None:
        if self.study is None:
            return
        if score is None:
            self.study.tell(self.trials[key], state=_failed())
        else:
            self.study.tell(self.trials[key], score)


def _failed() -> Any:
    import optuna

    return optuna.trial.TrialState.FAIL


def _place(tunable: Tunable) -> int:
    """Where among its choices the tunable starts; the middle where it starts at none of them."""
    return tunable.choices.index(tunable.value) if tunable.value in tunable.choices else len(tunable.choices) // 2


def _contests(evaluator: Evaluator) -> list[tuple[Workload, Cache]]:
    """A spread of the timed workloads and cache states, smallest and largest among them."""
    cases = [(w, c) for w in evaluator.suite() if w.timed for c in evaluator.caches(w)]
    most = CASES[evaluator.device]
    if len(cases) <= most:
        return cases
    return [cases[round(i * (len(cases) - 1) / (most - 1))] for i in range(most)]


def _measure(
    evaluator: Evaluator, source: str, variants: list[dict[str, int]], cases: list[tuple[Workload, Cache]], blocks: int
) -> list[float | None]:
    """Mean log of (time of the variant / time of the source as it came) over the cases; None where it failed.

    The worst case counts twice: numbers that are fast on most workloads and ruin one are of no use to anybody.
    """
    texts = [source, *(bake(source, values) for values in variants)]
    with ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)))) as pool:
        builds = list(pool.map(evaluator.build, [evaluator.store.put(text) for text in texts]))
    sides: dict[int, Side] = {}
    logs: dict[int, list[float]] = {}
    try:
        for index, build in enumerate(builds):
            if build.ok and (worker := _checked(evaluator, build)):
                sides[index] = Side(str(index), worker)
        if 0 not in sides:
            return [None] * len(variants)
        for workload, cache in cases:
            _time(evaluator, workload, cache, sides, logs, blocks)
    finally:
        for side in sides.values():
            side.worker.close()
    return [
        statistics.fmean(logs[i]) + max(0.0, *logs[i]) if i in sides and i in logs else None
        for i in range(1, len(texts))
    ]


def _checked(evaluator: Evaluator, build) -> Worker | None:
    """A worker that has been right on every small workload; None where it was not. The winner is verified in full."""
    try:
        worker = evaluator.start(build)
    except WorkerFailure:
        return None
    try:
        for workload in evaluator.suite():
            if Layout(evaluator.spec, workload, 1).size > 8 << 20:
                break
            for check in evaluator.checks(worker, workload, everything=False):
                if not check.passed:
                    worker.close()
                    return None
    except WorkerFailure:
        return None
    return worker


def _time(
    evaluator: Evaluator,
    workload: Workload,
    cache: Cache,
    sides: dict[int, Side],
    logs: dict[int, list[float]],
    blocks: int,
) -> None:
    """One contest of all sides that are left; a side that fails leaves, and the rest goes again."""
    while 0 in sides:
        fresh = {index: Side(side.name, side.worker) for index, side in sides.items()}
        contest = Contest(evaluator.kernel, workload, cache, evaluator.device, evaluator.facts.last_level_cache_bytes)
        contest.open(evaluator.memory(contest.layout.size))
        try:
            result = timing.run(contest, list(fresh.values()), blocks=(blocks, blocks))
        except SideFailure as fault:
            sides.pop(int(fault.side)).worker.close()
            continue
        for index, side in fresh.items():
            logs.setdefault(index, []).append(-math.log(statistics.median(result.ratios[side.name])))
        return
