"""Search of the integers that a candidate leaves open, by building, checking and timing variants.

Optuna's TPE proposes, for all workloads, for the small and for the large ones in turn; variants of a batch are built
side by side, then timed in turn against the source as it came, so that drift hits all of them alike. Few samples for
all, more for the best few (successive halving) and for those that are best on a band of sizes (harness/judge/bands.py). It ends
where the start's neighbours have been tried and the last variants brought nothing more: numbers that no single change makes better are
seldom far from the best. What wins here is measured again like any candidate, against the incumbent, before anybody calls it faster.
"""

from __future__ import annotations

import itertools
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from pydantic import Field

from harness.judge import bands
from harness.judge.bands import Key, Ratios, Split, score
from harness.judge.series import Case
from harness.judge.session import EvaluationSession
from harness.judge.tunables import Tunable, bake, tunables
from harness.judge.variants import measure_ratios
from harness.store import digest
from harness.timing import comparison
from kernels.spec import Frozen

MANY_CORES = 8
"""Cores from which on some are left for builds while a GPU's kernels are timed."""
FIRST_BLOCKS, LAST_BLOCKS, FINALISTS = 3, 9, 3
CASES = {"cuda": 8, "cpu": 3}
"""Timed workloads and cache states that a variant is tried on, by device; the measure gate times all of them."""
PROGRAMMATIC = "enable_pdl"
"""The variable by which a source lets its caller choose programmatic launch (docs/kernels.md)."""
MOST_VARIANTS = 64
PATIENCE = {False: 8, True: 16}
"""Variants in a row that bring nothing, once the start's neighbours have been tried: the search ends, later where some have gained."""
MOST_SAID = 12
"""Variants whose speeds are said."""
WORTH = 2.0
"""Margins that a gain is worth going on for: few samples show less by chance."""
STARTUP = 12
"""Variants that TPE draws at random before it models."""
PROGRAMMATIC_CASES = 2
"""Hot cases among kernels with programmatic launch that are timed, too, where the source has a choice of it: among
plain neighbours there is no next kernel to let begin early."""
One = TypeVar("One")
Measurement = Callable[[EvaluationSession, str, Sequence[dict[str, int]], Sequence[Case], int], list[Ratios | None]]
"""Measures variants of a source on cases by a number of blocks of samples; gives None for a variant that failed."""


class VariantRatios(Frozen):
    """What a `Measurement` came to, a row a variant."""

    rows: tuple[Ratios | None, ...]
    fault: str = ""
    """What took those who measured down, where none of them is known."""


class Tuned(Frozen):
    """The variant that the search of a candidate's tunables picked."""

    candidate: str
    values: dict[str, int] = Field(default_factory=dict)
    """Values for every workload: those that the source came with where none is clearly better."""
    split: Split | None = None
    """Values by bands of workloads, where these measured clearly faster than one choice for all."""
    tried: int = 0
    reason: str = ""


def find_open_tunables(source: str) -> list[Tunable]:
    """The integers of a source that a search may choose."""
    return [tunable for tunable in tunables(source) if len(tunable.choices) > 1]


def search(
    session: EvaluationSession,
    source: str,
    seconds: float,
    measure: Measurement | None = None,
    devices: Callable[[], int] = lambda: 1,
) -> Tuned:
    """Values for the tunables of `source`, found in about `seconds`; `measure` (the real one) times the variants.

    `devices`: how many of them `measure` can use now; the more there are, the more variants are proposed at once.
    """
    here = measure is None
    measure, open_ = measure or measure_ratios, find_open_tunables(source)
    deadline = time.monotonic() + seconds
    size = math.prod(len(t.choices) for t in open_)
    start: Key = tuple(sorted((t.name, t.value) for t in open_))
    cases = _contests(session, source)
    groups = _groups(session, cases)
    proposals = _Proposals(open_, len(groups))
    batch = batch_size()
    known: dict[Key, Ratios] = {}
    failed = 0
    margin = comparison.MARGIN[session.device]
    best_of, useless = [0.0 for _ in groups], 0
    while time.monotonic() < deadline and len(known) + failed < MOST_VARIANTS:
        if useless >= PATIENCE[min(best_of) < 0] and not proposals.near_left:
            break
        near = proposals.near_left
        # Of several devices no more than it takes to know whether the start's neighbours bring anything; then as many as they measure in the
        # time that one needs for its batch, and the last few with them.
        wide = batch * devices()
        count = min(max(batch, near or wide), wide)
        if not near and count < len(proposals.left) <= count + count // 4:
            count = len(proposals.left)
        keys = proposals.ask(min(count, MOST_VARIANTS - len(known) - failed))
        if not keys:
            break
        if here or session.builds_apart:
            more = max(len(keys), _built_ahead(session))
            _build_beside(session, source, proposals.next_of(min(more, MOST_VARIANTS - len(known) - failed)))
        for key, ratios in zip(keys, measure(session, source, _values(keys), cases, FIRST_BLOCKS), strict=True):
            if ratios is None:
                failed += 1
                proposals.tell(key, None)
            else:
                known[key] = ratios
                proposals.tell(key, [score(ratios, group) for group in groups])
        least = [min([0.0, *(score(ratios, group) for ratios in known.values())]) for group in groups]
        useless += len(keys)
        if any(now < before - WORTH * margin for now, before in zip(least, best_of, strict=True)):
            best_of, useless = least, 0
        if near and not proposals.near_left and min(best_of) < 0:
            useless = 0  # what gained by itself may gain more together
        best = min((score(ratios) for ratios in known.values()), default=0.0)
        session.say(f"tuning: {len(known)} of {size - 1} variants, best {math.exp(-min(0.0, best)):.3f}x")
    tried = len(known) + failed
    said = f"{tried} of {size - 1} variants tried"
    if tried < size - 1:
        said += f" ({f'the {seconds:.0f} s were over' if time.monotonic() >= deadline else 'the last ones brought nothing'})"
    said += _describe_variants(known)
    workloads = [workload for workload, _, _ in cases]
    as_it_came = [[1.0] * FIRST_BLOCKS for _ in cases]
    proposal = bands.propose(session.spec, workloads, known | {start: as_it_came}, margin)
    ahead = -margin / 4  # what is less ahead of the numbers it came with will not be clearly so
    finalists = [
        key for key in sorted(known, key=lambda key: score(known[key]))[:FINALISTS] if score(known[key]) < ahead
    ]
    finalists += [key for _, key in proposal[1] if key not in finalists and key != start] if proposal else []
    if not finalists:
        reason = f"{said}, none faster than the numbers it came with"
        return _tuned(source, start, None, tried, reason)
    again = measure(session, source, _values(finalists), cases, LAST_BLOCKS)
    last = {key: ratios for key, ratios in zip(finalists, again, strict=True) if ratios is not None}
    single = min(last, key=lambda key: score(last[key]), default=start)
    if single != start and score(last[single]) >= -margin / 2:
        single = start
    last[start] = [[1.0] * LAST_BLOCKS for _ in cases]
    split = bands.confirm(session.spec, workloads, proposal, last, single, margin) if proposal else None
    gain = math.exp(-score(last[single]))
    reason = f"the best {gain:.3f}x" if single != start else "none clearly faster than the numbers it came with"
    if split is not None:
        reason += f"; by {' * '.join(split.measure.sizes)} in {len(split.bands)} bands"
    return _tuned(source, single, split, tried, f"{said}, {reason}")


def _describe_variants(known: dict[Key, Ratios]) -> str:
    """Speed of the variants over the numbers that the source came with, the best first."""
    best = sorted(known, key=lambda key: score(known[key]))[:MOST_SAID]
    said = [f"{' '.join(f'{name}={value}' for name, value in key)} {math.exp(-score(known[key])):.2f}x" for key in best]
    return f": {'; '.join(said)}" if said else ""


def batch_size() -> int:
    """Variants that are built side by side."""
    return max(2, min(8, len(os.sched_getaffinity(0))))


def has_idle_cores(session: EvaluationSession) -> bool:
    """Whether sources may be compiled while something is timed."""
    return session.builds_apart or (session.device == "cuda" and len(os.sched_getaffinity(0)) >= MANY_CORES)


def _built_ahead(session: EvaluationSession) -> int:
    """Variants whose builds are begun before they are asked for: a batch for each device, where none of these builds itself."""
    return batch_size() * (session.width if session.builds_apart else 1)


def _build_beside(session: EvaluationSession, source: str, keys: Sequence[Key]) -> None:
    """Begin to build the variants that come next, on cores where nothing is timed; whoever asks for one waits for it."""
    if not keys or not has_idle_cores(session):
        return

    def build(name: str) -> None:
        with suppress(Exception):  # whoever asks next finds out, and says so
            session.build(name)

    pool = ThreadPoolExecutor(len(keys), thread_name_prefix="variants")
    for key in keys:
        pool.submit(build, session.store.put(bake(source, dict(key))))
    pool.shutdown(wait=False)


def first_variants(session: EvaluationSession, candidate: str) -> list[str]:
    """The variants that a search of that candidate tries first."""
    source = session.store.get(candidate)
    first = nearest_first(find_open_tunables(source))[0][: _built_ahead(session)]
    return [session.store.put(bake(source, dict(key))) for key in first]


def _tuned(source: str, key: Key, split: Split | None, tried: int, reason: str) -> Tuned:
    candidate = digest(bake(source, dict(key)))
    return Tuned(candidate=candidate, values=dict(key), split=split, tried=tried, reason=reason)


def _values(keys: Sequence[Key]) -> list[dict[str, int]]:
    return [dict(key) for key in keys]


def _groups(session: EvaluationSession, cases: Sequence[Case]) -> list[list[int]]:
    """Cases whose best numbers are looked for: all of them, and the smaller and larger half where sizes differ."""
    every = list(range(len(cases)))
    ordered = sorted(every, key=lambda case: session.moved_bytes(cases[case][0]))
    small, large = ordered[: len(ordered) // 2], ordered[len(ordered) // 2 :]
    if len({workload.label for workload, _, _ in cases}) < 2:
        return [every]
    return [every, small, large]


def _is_small(open_: Sequence[Tunable]) -> bool:
    return math.prod(len(t.choices) for t in open_) <= MOST_VARIANTS


def nearest_first(open_: Sequence[Tunable]) -> tuple[list[Key], int]:
    """Variants in the order in which they are tried, all of a small space, and how many of them differ from the start in one number."""
    names = sorted(open_, key=lambda t: t.name)
    start = {t.name: t.value for t in names}
    has_start = all(t.value in t.choices for t in names)
    if _is_small(open_):
        values = itertools.product(*(t.choices for t in names))
        every = [tuple(zip([t.name for t in names], one, strict=True)) for one in values]
    elif has_start:
        every = [_with(tuple(start.items()), t.name, choice) for t in names for choice in t.choices]
    else:
        every = []
    changed = {key: sum(value != start[name] for name, value in key) for key in every}
    rank = {t.name: {c: abs(i - _place(t)) for i, c in enumerate(t.choices)} for t in names}
    ordered = sorted(every, key=lambda key: (changed[key] > 1, sum(rank[name][value] for name, value in key)))
    near = sum(count == 1 for count in changed.values())
    return [key for key in ordered if changed[key]], near if has_start else STARTUP


class _Proposals:
    """Which variants to try next: those that differ from the start in one number, the nearest first; then all others of a small
    space, of a large one what TPE asks for.

    One study for each group of cases: they ask in turn, and every measurement is told to all of them.
    """

    def __init__(self, open_: Sequence[Tunable], groups: int) -> None:
        self.start = tuple(sorted((t.name, t.value) for t in open_))
        self.trials: dict[Key, tuple[int, Any]] = {}
        self.seen: set[Key] = {self.start}
        self.studies: list[Any] = []
        self.turn = 0
        self.left, self.near_left = nearest_first(open_)
        """`near_left`: how many that differ from the start in one number have not been asked for; of a start that is no choice, so many
        at random."""
        if _is_small(open_):
            return
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        for seed in range(groups):
            # Fixed seeds: a resumed run proposes the same variants, whose builds it then finds in the store.
            sampler = optuna.samplers.TPESampler(
                seed=seed, n_startup_trials=STARTUP, multivariate=True, constant_liar=True
            )
            self.studies.append(optuna.create_study(sampler=sampler))
        self.space: dict[str, Any] = {t.name: optuna.distributions.CategoricalDistribution(t.choices) for t in open_}

    def ask(self, count: int) -> list[Key]:
        found: list[Key] = []
        while self.left and len(found) < count:
            key = self.left.pop(0)
            if key not in self.seen:
                found.append(key)
        if self.studies:
            for _ in range(8 * count):  # it may propose what it proposed before
                if len(found) == count:
                    break
                study = self.turn % len(self.studies)
                self.turn += 1
                trial = self.studies[study].ask(self.space)
                key = tuple(sorted(trial.params.items()))
                if key in self.seen:
                    self.studies[study].tell(trial, state=_failed())
                    continue
                self.trials[key] = study, trial
                self.seen.add(key)
                found.append(key)
            else:
                found += itertools.islice(self._neighbours(), count - len(found))
        self.seen.update(found)
        self.near_left = max(0, self.near_left - len(found))
        return found

    def next_of(self, count: int) -> list[Key]:
        """What is asked for next whatever is measured until then."""
        return [key for key in self.left if key not in self.seen][:count]

    def _neighbours(self) -> Iterator[Key]:
        """What no study asks for any more: untried variants that differ in one number from the best of one."""
        for study in self.studies:
            finished = [trial for trial in study.get_trials(deepcopy=False) if trial.value is not None]
            best = min(finished, key=lambda trial: trial.value).params if finished else {}
            for name in best:
                for value in self.space[name].choices:
                    key = _with(tuple(best.items()), name, value)
                    if key not in self.seen:
                        self.seen.add(key)
                        yield key

    def tell(self, key: Key, scores: Sequence[float] | None) -> None:
        """What a variant came to in each group; None where it failed."""
        if not self.studies:
            return
        import optuna

        asked, trial = self.trials.get(key, (None, None))
        if scores is None:
            if asked is not None:
                self.studies[asked].tell(trial, state=_failed())
            return
        for index, (study, value) in enumerate(zip(self.studies, scores, strict=True)):
            if index == asked:
                study.tell(trial, value)
            else:
                study.add_trial(optuna.trial.create_trial(params=dict(key), distributions=self.space, value=value))


def _failed() -> Any:
    import optuna

    return optuna.trial.TrialState.FAIL


def _with(key: Key, name: str, value: int) -> Key:
    return tuple(sorted({**dict(key), name: value}.items()))


def _place(tunable: Tunable) -> int:
    """Where among its choices the tunable starts; the middle where it starts at none of them."""
    return tunable.choices.index(tunable.value) if tunable.value in tunable.choices else len(tunable.choices) // 2


def _contests(session: EvaluationSession, source: str) -> list[Case]:
    """A spread of the timed workloads and cache states, smallest and largest among them."""
    timed = [workload for workload in session.suite() if workload.timed]
    cases: list[Case] = [(w, c, "plain") for w in timed for c in session.caches(w)]
    hot: list[Case] = [(w, "hot", "pdl") for w in timed if "hot" in session.caches(w)]
    chosen = spread_evenly(cases, CASES[session.device])
    return chosen + spread_evenly(hot, PROGRAMMATIC_CASES) if PROGRAMMATIC in source else chosen


def spread_evenly(every: list[One], most: int) -> list[One]:
    """As many of them at most, the first and the last included."""
    if len(every) <= most:
        return every
    return [every[round(i * (len(every) - 1) / (most - 1))] for i in range(most)]
