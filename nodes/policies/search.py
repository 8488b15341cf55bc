"""The rules' search: what could be tried next of a source, best first, by what its rewrites promise and what was measured of them."""

from __future__ import annotations

import heapq
import math
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from harness.judge.tunables import structure
from harness.records import DeviceFacts, Outcome
from harness.store import digest
from harness.timing import comparison
from kernels.spec import Spec
from nodes.lesson import Lesson
from nodes.policies import versions
from nodes.rewrites import Facts, Rewrite, catalog, ordered
from nodes.rewrites.specialize.multiversion import multiversion
from nodes.rewrites.syntax.source import Source, Unsupported
from nodes.roles import (
    Attempt,
    Finding,
    Plan,
    PlannerRequest,
    Version,
)

PRIOR_TRUST = 0.5
"""How far a rewrite's own SPEEDUP is believed against one measurement, which counts as 1."""
LEAST_LEFT = 0.1
"""Least share of a step's promised gain that is kept, where plans of other runs that held it gained less than
promised."""
MEMORY_TRUST = 0.5
"""Weight of one measurement of an earlier run on a similar kernel; on the same kernel and device it is 1."""
MOST_MEMORY = 2.0
"""Weight of all remembered measurements of a step together (upper bound): what this run measures decides."""
FAILURE_GAIN = 0.6
"""Gain that a plan counts with that did not pass, so that plans with the same steps come later."""
STRIKES = 2
"""How often a step may come to nothing by itself, from whatever base."""
SAYS_NOTHING = ("REFUSED", "NO_CANDIDATE", Outcome.CHEATED)
"""Outcomes that say nothing of a step's worth elsewhere: a person's no, a source that it does not apply to, and an
accusation made on a busy machine, for no rewrite cheats."""


def join_forms(text: str, other: str, language: str, spec: Spec, version: Version) -> str:
    """Both forms in one file. Raises Unsupported where they cannot be."""
    try:
        return multiversion(_parsed(text, language), _parsed(other, language), spec, version)
    except Unsupported:
        raise
    except Exception as error:  # as for a rewrite: a defect here must not end a run
        warnings.warn(f"multiversion failed on these sources: {error!r}", RuntimeWarning, stacklevel=2)
        raise Unsupported(f"multiversion failed: {error!r}") from error


@lru_cache(maxsize=16)
def _parsed(text: str, language: str) -> Source:
    """One tree for all the rewrites that look at a text."""
    return Source(text, language)


_facts = lru_cache(maxsize=4)(Facts.model_validate_json)


@lru_cache(maxsize=4096)
def _rewritten(step: str, text: str, facts_json: str) -> str | None:
    facts = _facts(facts_json)
    name, _, argument = step.partition(":")
    rewrite = catalog().get(name)
    if rewrite is None or step not in rewrite.forms:
        return None  # a model's plan, or one of another version
    source = _parsed(text, facts.device.device)
    try:
        new = rewrite(source, facts, argument) if argument else rewrite(source, facts)
    except Unsupported:
        return None
    except Exception as error:  # noqa: BLE001, a defect of one rule must not end a run that the other rules can serve
        warnings.warn(f"the rewrite {step} failed on this source: {error!r}", RuntimeWarning, stacklevel=2)
        return None
    if new is None or new == text:
        return None
    return new if _errors(_parsed(new, source.language)) <= _errors(source) else None


def _errors(source: Source) -> int:
    return sum(node.is_error or node.is_missing for node in source.walk()) if source.root.has_error else 0


def apply_step(step: str, text: str, facts: Facts) -> str | None:
    """The source after one step, or None where it does not apply. `step` is a rewrite's name, or `name:argument`."""
    return _rewritten(step, text, facts.model_dump_json())


@dataclass(frozen=True, order=True)
class Proposal:
    base: str
    steps: tuple[str, ...]
    speedup: float
    """Expected speedup over the baseline."""
    version: Version | None = field(default=None, compare=False)


class Search:
    """What could be tried next, best first, given everything that was measured."""

    def __init__(self, request: PlannerRequest) -> None:
        self.request = request
        self.facts = Facts(spec=request.spec, device=request.device)
        self.facts_json = self.facts.model_dump_json()
        self.after: dict[tuple[str, tuple[str, ...]], tuple[str, tuple[str, ...]]] = {}
        self.structures: dict[str, str] = {}
        self.sources = {**request.sources, request.incumbent: request.source}
        tried = [a for a in request.attempts if a.plan.base and a.plan.version is None]
        self.root = tried[0].plan.base if tried and tried[0].plan.base in self.sources else request.incumbent
        self.tried = {(a.plan.base, a.plan.steps) for a in request.attempts}
        self.tried |= {(objection.plan.base, objection.plan.steps) for objection in request.objections}
        self.known = {a.candidate for a in request.attempts if a.candidate}
        # What was tuned comes back with other numbers; the search has been over its structure already.
        self.known |= {self._structure(source) for source in self.sources.values()}
        # Where the host chooses numbers by size, what was planned reads otherwise than what came of it.
        planned = [self._after(a.plan.base, a.plan.steps)[0] for a in tried if a.plan.base in self.sources]
        self.known |= {self._structure(text) for text in planned}

    def plan(self, proposal: Proposal) -> Plan:
        version = proposal.version
        why = (
            "; ".join(f"{step}: {self.rewrite(step).expected}" for step in proposal.steps)
            if version is None
            else "each form is kept where it measured faster; the host chooses"
        )
        return Plan(
            id=digest(proposal.base, *proposal.steps)[:12],
            title=" + ".join(proposal.steps),
            steps=proposal.steps,
            rationale=why,
            expected_speedup=round(proposal.speedup, 3),
            base=proposal.base,
            version=version,
        )

    def rewrite(self, step: str) -> Rewrite:
        return catalog()[step.partition(":")[0]]

    @cached_property
    def names(self) -> list[str]:
        """Rewrites of this device, in the order in which they are applied."""
        return [rewrite.name for rewrite in ordered(self.request.device.device)]

    @cached_property
    def steps(self) -> list[str]:
        """With their variants, each behind the plain form."""
        return [form for name in self.names for form in catalog()[name].forms]

    @cached_property
    def alone(self) -> frozenset[str]:
        """Steps that only go on, by themselves, from what was measured."""
        return frozenset(step for step in self.steps if self.rewrite(step).alone)

    @cached_property
    def given_up(self) -> frozenset[tuple[str, ...]]:
        """Single steps that came to nothing often enough; every new base would ask for them once more."""
        failed = Counter(self._searched(a.plan.steps) for a in self.request.attempts if not a.accepted)
        return frozenset(steps for steps, times in failed.items() if len(steps) == 1 and times >= STRIKES)

    def _searched(self, steps: tuple[str, ...]) -> tuple[str, ...]:
        """Those of the steps that are there to gain something; the others every list has."""
        return tuple(step for step in steps if step not in self.normalizing)

    @cached_property
    def normalizing(self) -> dict[str, None]:
        """Steps that only bring a text into form, in order: nothing to search over."""
        return {rewrite.name: None for rewrite in ordered(self.request.device.device) if rewrite.normalizes}

    def prior(self, step: str) -> float:
        """Natural logarithm of the speedup to expect before anything was measured."""
        rewrite = self.rewrite(step)
        gain = math.log(rewrite.speedup(self.facts))
        bound = self.request.finding.bound
        fits = bound in rewrite.helps or bound in {"unknown", "at the limit"}
        variant = 0.02 if ":" in step else 0.0  # the plain form first, where nothing speaks against it
        return (gain if fits else 0.3 * gain) - variant

    @cached_property
    def gains(self) -> dict[str, float]:
        """Logarithm of each step's speedup: what is known of it, corrected by what plans with the step measured."""
        prior = {step: self.prior(step) for step in self.steps}
        trust = dict.fromkeys(self.steps, PRIOR_TRUST)
        remembered = list(self._remembered())
        rows = [(lesson.steps, gain, weight) for lesson, gain, weight in remembered]
        for steps, _, weight in rows:
            for step in trust.keys() & set(steps):
                trust[step] = min(PRIOR_TRUST + MOST_MEMORY, trust[step] + weight)
        fitted = _fitted(prior, dict.fromkeys(self.steps, PRIOR_TRUST), rows)
        plans = defaultdict[str, list[set[str]]](list)
        for lesson, _, _ in remembered:
            plans[lesson.kernel].append(set(lesson.steps))
        # A plan that gained less than it promised says of none of its steps that it costs: that takes one that did not gain, or
        # another plan for that kernel without the step.
        blamed = {step for steps, gain, _ in rows if gain <= 0 for step in steps}
        blamed |= {
            step for tried in plans.values() for step in set[str]().union(*tried) - tried[0].intersection(*tried)
        }
        prior = {
            step: fitted[step] if step in blamed else max(fitted[step], min(before, LEAST_LEFT * before))
            for step, before in prior.items()
        }
        return _fitted(prior, trust, [(a.plan.steps, self._measure(a), 1.0) for a in self.request.attempts])

    def _remembered(self) -> Iterator[tuple[Lesson, float, float]]:
        """(what an earlier run learned, the logarithm of the gain over what it started from, what that counts)."""
        here = (self.request.spec.name, self.request.device.architecture)
        for lesson in self.request.memory:
            failed = lesson.outcome not in (Outcome.PASSED, *SAYS_NOTHING)
            if failed or lesson.over_base:
                gain = FAILURE_GAIN if failed else lesson.over_base or 1.0
                yield lesson, math.log(gain), 1.0 if (lesson.kernel, lesson.architecture) == here else MEMORY_TRUST

    def _measure(self, attempt: Attempt) -> float:
        """Logarithm of what the plan gained over its base."""
        speedup = attempt.speedup or attempt.brief_speedup
        return math.log(speedup / self.speedup_of(attempt.plan.base) if speedup else FAILURE_GAIN)

    def speedup_of(self, source: str) -> float:
        """Speedup of a source that passed, over the baseline."""
        measured = [a.speedup for a in self.request.attempts if a.candidate == source and a.speedup is not None]
        return max(measured, default=1.0)

    def _after(self, base: str, steps: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
        """The source after those of the steps that apply, and which they are. Lists share what they begin with."""
        if not steps:
            return self.sources[base], ()
        if (base, steps) not in self.after:
            text, applied = self._after(base, steps[:-1])
            changed = _rewritten(steps[-1], text, self.facts_json)
            self.after[base, steps] = (text, applied) if changed is None else (changed, (*applied, steps[-1]))
        return self.after[base, steps]

    def _structure(self, text: str) -> str:
        """Hash of a source without the numbers that a search picks."""
        if text not in self.structures:
            self.structures[text] = digest(structure(text))
        return self.structures[text]

    def _bundle(self, without: frozenset[str] = frozenset()) -> tuple[str, ...]:
        """One form of every rewrite that should help, in order: the form that promises most."""
        chosen = []
        for name in self.names:
            forms = [s for s in self.steps if s.partition(":")[0] == name and s not in without | self.alone]
            best = max(forms, key=lambda step: self.gains[step], default=None)
            if best is not None and self.gains[best] > 0 and name not in without:
                chosen.append(best)
        return tuple(chosen)

    def _bases(self) -> list[str]:
        """The baseline, the incumbent, and the next best sources that passed."""
        passed = sorted(
            {a.candidate for a in self.request.attempts if a.speedup is not None and a.candidate in self.sources},
            key=lambda candidate: (-self.speedup_of(candidate), candidate),
        )
        return list(dict.fromkeys([self.root, self.request.incumbent, *passed[:3]]))

    def _lists(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Steps worth simulating, by base: the bundle, single steps, the bundle less or more one or two of them.

        And what led earlier runs to their best, in their order.
        """
        for lesson in self.request.memory:
            if lesson.kept and lesson.path:
                yield self.root, tuple(step for step in dict.fromkeys(lesson.path) if step in self.gains)
        every = tuple(step for step in self.steps if step not in self.alone and step not in self.normalizing)
        whole = tuple(self.normalizing)
        # What such a step made of a source, and did not make it better, is no place to go on from in the same way.
        came_to_nothing = {a.candidate for a in self.request.attempts if self.alone.intersection(a.plan.steps)}
        came_to_nothing -= {self.request.incumbent}
        for base in self._bases():
            bundle = self._bundle()
            yield base, bundle
            for step in every:
                yield base, self._order([*whole, step])
            for step in sorted(self.alone):
                if base != self.root and base not in came_to_nothing:
                    yield base, (step,)
        bundle = self._bundle()
        for step in every:
            name = step.partition(":")[0]
            rest = [s for s in bundle if s.partition(":")[0] != name]
            yield self.root, tuple(rest)
            yield self.root, self._order([*rest, step])
            for other in every:
                second = other.partition(":")[0]
                if other > step and second != name:
                    fewer = [s for s in rest if s.partition(":")[0] != second]
                    yield self.root, tuple(fewer)
                    yield self.root, self._order([*fewer, step])
                    yield self.root, self._order([*fewer, other])
                    yield self.root, self._order([*fewer, step, other])
                    yield self.request.incumbent, self._order([*whole, step, other])

    def _order(self, steps: list[str]) -> tuple[str, ...]:
        return tuple(sorted(dict.fromkeys(steps), key=self.steps.index))

    def _at_most(self, base: str, steps: tuple[str, ...]) -> float:
        """What a plan of those of the steps that apply can promise, before it is known which do."""
        return self.speedup_of(base) * math.exp(sum(max(0.0, self.gains[step]) for step in steps))

    def rank(self) -> Iterator[Proposal]:
        """Untried plans, each for a source that no other plan made, most promising first.

        Best first, with a bound: applying steps costs milliseconds each and there are thousands of lists, of which the
        promise of one plan rules out most.
        """
        if not self.request.attempts:
            yield from self._best_first(self._opening(), [])
        waiting: list[tuple[float, int, list[int], str, Proposal]] = []
        joined = [(-round(p.speedup, 6), 1, [len(self.steps)], name, p) for name, p in self._two_forms()]
        last = self.request.attempts[-1] if self.request.attempts else None
        if joined and not (last is not None and last.plan.version is not None and not last.accepted):
            # Both forms are measured, the lists below are guesses; but what was only noise in them goes on promising.
            yield from self._new(joined.pop(0))
        for entry in joined:
            heapq.heappush(waiting, entry)
        yield from self._best_first(self._lists(), waiting)

    def _opening(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Before anything was measured: all that should help, and that less one step which the others may do better without."""
        bundle = self._bundle()
        yield self.root, bundle
        for step in self._searched(self._after(self.root, bundle)[1]):
            yield self.root, tuple(other for other in bundle if other != step)

    def _best_first(
        self, lists: Iterator[tuple[str, tuple[str, ...]]], waiting: list[tuple[float, int, list[int], str, Proposal]]
    ) -> Iterator[Proposal]:
        """What these lists come to, most promising first; what is in `waiting` already goes among them."""
        bounds = {plan: self._at_most(*plan) for plan in dict.fromkeys(lists)}
        place = {step: at for at, step in enumerate(self.steps)}
        for (base, steps), bound in sorted(bounds.items(), key=lambda item: -item[1]):
            while waiting and -waiting[0][0] > bound:
                yield from self._new(heapq.heappop(waiting))
            text, applied = self._after(base, steps)
            name = self._structure(text)
            if not applied or self._searched(applied) in {(), *self.given_up}:
                continue
            if (base, applied) not in self.tried and not {name, digest(text)} & self.known:
                speedup = self.speedup_of(base) * math.exp(sum(self.gains[step] for step in applied))
                order = (-round(speedup, 6), len(applied), [place[step] for step in applied], name)
                heapq.heappush(waiting, (*order, Proposal(base, applied, speedup)))
        while waiting:
            yield from self._new(heapq.heappop(waiting))

    def _two_forms(self) -> Iterator[tuple[str, Proposal]]:
        """Pairs of measured sources that promise more in one file than the incumbent, each with its file's structure."""
        request, language = self.request, self.request.device.device
        found = versions.propose(
            request.spec,
            tuple(timing.workload for timing in request.timings),
            versions.collect_points(self.root, len(request.timings), request.attempts),
            self.speedup_of(request.incumbent),
            comparison.MARGIN[language],
        )
        for base, version, speedup in found:
            steps = (f"multiversion {version.candidate[:8]}: {version.said(request.spec)}",)
            if (base, steps) in self.tried or not {base, version.candidate} <= self.sources.keys():
                continue
            try:
                text = join_forms(self.sources[base], self.sources[version.candidate], language, request.spec, version)
            except Unsupported:
                continue
            name = self._structure(text)
            if name not in self.known:
                yield name, Proposal(base, steps, speedup, version)

    def _new(self, entry: tuple[float, int, list[int], str, Proposal]) -> Iterator[Proposal]:
        """The proposal, unless one for the same source came before."""
        *_, name, proposal = entry
        if name not in self.known:
            self.known.add(name)
            yield proposal


def _fitted(
    prior: dict[str, float], trust: dict[str, float], rows: list[tuple[tuple[str, ...], float, float]]
) -> dict[str, float]:
    """Each step's part in the gains that were measured of (steps, gain, weight), by ridge regression to the prior."""
    gains = dict(prior)
    known = [(tuple(step for step in steps if step in gains), gain, weight) for steps, gain, weight in rows]
    for _ in range(60):  # coordinate descent; the problem is tiny and convex
        for step in gains:
            mine = [(steps, gain, weight) for steps, gain, weight in known if step in steps]
            if not mine:
                continue
            residual = sum(weight * (gain - sum(gains[s] for s in steps if s != step)) for steps, gain, weight in mine)
            gains[step] = (residual + trust[step] * prior[step]) / (sum(one[2] for one in mine) + trust[step])
    return gains


def first_steps(spec: Spec, device: DeviceFacts) -> tuple[str, ...]:
    """What the first plan for a source of this spec applies, as far as it applies, in order."""
    nothing = Finding(bound="unknown", summary="nothing was measured")
    return Search(
        PlannerRequest(spec=spec, device=device, finding=nothing, incumbent="", source="", attempts=())
    )._bundle()
