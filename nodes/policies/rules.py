"""The offline optimiser: answers for every agent from the source's syntax tree and from what was measured so far.

No answer depends on anything but its request, so a resumed run plans what an unbroken one would have planned.
"""

from __future__ import annotations

import heapq
import itertools
import math
import re
import statistics
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from harness.backends import model_new
from harness.judge.tunables import structure
from harness.records import Bound, DeviceFacts, Outcome, Timing, sol_by_cache
from harness.store import digest
from harness.timing import comparison
from kernels.spec import Device, Spec, Workload, expression
from nodes import compiling, drafting
from nodes.lesson import Lesson
from nodes.options import Role
from nodes.policies import answers, versions
from nodes.rewrites import Facts, Rewrite, catalog, ordered
from nodes.rewrites.specialize.multiversion import multiversion
from nodes.rewrites.syntax.source import Source, Unsupported
from nodes.roles import (
    AgentRequest,
    Answer,
    Attempt,
    CoderAnswer,
    CoderRequest,
    DraftAnswer,
    DraftRequest,
    Finding,
    Plan,
    PlannerRequest,
    ProfilerRequest,
    Review,
    ReviewRequest,
    TesterAnswer,
    TesterRequest,
    Usage,
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
WORTH = 0.75
"""A plan that promises less of the incumbent's speed is not tried: what was measured of its steps already counts in the promise."""
STRIKES = 2
"""How often a step may come to nothing by itself, from whatever base."""
AT_THE_LIMIT = 0.93
"""Share of the speed of light from which on there is nothing left to say but so."""
SMALL_LIGHT_US = 3.0
"""Workloads whose bytes take less than this are over before a deeper memory pipeline would help."""
EDITS: dict[Device, dict[Bound, str]] = {
    "cuda": {
        "memory": "more bytes in flight: 16-byte loads, two to four of them before the first use, and each byte moved once",
        "latency": "a shorter chain: fewer barriers and dependent loads, more of the device at work on the small workloads",
        "compute": "fewer operations, or faster units for them: tensor cores or vector instructions, nothing computed twice",
        "launch": "fewer launches",
    },
    "cpu": {
        "memory": "whole vectors in the hot loop, several accumulators, neighbours in memory read together, all cores, and each byte moved once",
        "latency": "a shorter chain: several accumulators, whole vectors, no parallel region for a small workload",
        "compute": "fewer operations, or vector instructions for them, nothing computed twice",
        "launch": "fewer parallel regions",
    },
}
"""The edit that each bound asks for, by what the larger part of the lost time is lost to."""
SAYS_NOTHING = ("REFUSED", "NO_CANDIDATE", Outcome.CHEATED)
"""Outcomes that say nothing of a step's worth elsewhere: a person's no, a source that it does not apply to, and an
accusation made on a busy machine, for no rewrite cheats."""


class RulesPolicy:
    """Safe to use from several threads: it holds nothing."""

    name = "rules"

    def usage(self) -> dict[Role, Usage]:
        return {}

    def answer(self, request: AgentRequest[Answer]) -> Answer:
        return getattr(self, request.role)(request)

    def tester(self, request: TesterRequest) -> TesterAnswer:
        """Sizes that rewrites get wrong: one of everything, nothing divisible, a row too long for registers."""
        spec, device = request.spec, request.device.device
        suite = spec.suite(device)
        if not suite:
            return TesterAnswer(reasons="no workload of this device to start from")
        smallest = min(suite, key=lambda w: (math.prod(w.axes.values()), w.label))
        last = re.findall(r"\w+", spec.outputs[0].shape[-1])
        row = next((axis for axis in spec.axes if axis in last), spec.axes[-1])
        others = {axis: min(size, 3) for axis, size in smallest.axes.items() if axis != row}
        longest = max(w.axes[row] for w in suite)
        # Of a problem, whose only axis is the leading one, 1021 would be hundreds of its sizes.
        odd = min(1021, longest | 1)
        proposals = {
            f"{row} divides by nothing": {**others, row: odd},
            f"{row} divides by 2 alone": {**others, row: 2 * odd},
            f"{row} longer than any other": {**others, row: 2 * longest + 8},
            "one of everything else": {**dict.fromkeys(others, 1), row: smallest.axes[row]},
        }
        known = [w.axes for w in spec.workloads]
        workloads = [
            Workload(axes=axes, dtype=smallest.dtype, devices=(device,), timed=False)
            for axes in proposals.values()
            if axes not in known
        ]
        return TesterAnswer(workloads=tuple(workloads), reasons="; ".join(proposals))

    def drafter(self, request: DraftRequest) -> DraftAnswer:
        if request.repair:
            return DraftAnswer(reason="the rules have one draft for a module, and it failed")
        return drafting.draft(request.problem, request.device.device, request.numerics)

    def profiler(self, request: ProfilerRequest) -> Finding:
        timings = request.timings
        numbers = _numbers(request)
        fractions = [t.light_fraction for t in timings if t.light_fraction]
        if not fractions:
            return Finding(bound="unknown", summary="no workload has a speed of light to compare with", numbers=numbers)
        fraction = statistics.geometric_mean(fractions)
        ranked = sorted((t for t in timings if t.light_fraction), key=lambda t: t.light_fraction or 0.0)
        slow = tuple(
            dict.fromkeys(f"{t.workload.label} {t.cache}" for t in ranked if (t.light_fraction or 0) < AT_THE_LIMIT)
        )[:4]
        for cache, mean in sol_by_cache(timings).items():
            numbers[f"{cache}_percent_of_sol"] = round(100 * mean, 1)
        bound = _bound(request, fraction)
        return Finding(
            bound=bound,
            summary=f"{_said(bound, fraction)}: {100 * fraction:.0f} % of the speed of light over {len(fractions)} timings",
            light_fraction=fraction,
            numbers=numbers,
            edit=EDITS[request.device.device].get(bound, ""),
            slow_workloads=slow,
        )

    def planner(self, request: PlannerRequest) -> tuple[Plan, ...]:
        search = _Search(_of_native(request) if request.spec.problem else request)
        worth = WORTH * search.speedup_of(request.incumbent)
        rewritten = (search.plan(proposal) for proposal in search.rank() if proposal.speedup >= worth)
        return tuple(itertools.islice(itertools.chain(_compile_plans(request), rewritten), request.width))

    def reviewer(self, request: ReviewRequest) -> Review:
        """The rules have nothing against anything: what is wrong the checks find."""
        return Review(agrees=True)

    def coder(self, request: CoderRequest) -> CoderAnswer:
        if request.spec.problem:
            return self._in_module(request)
        return self._coded(request)

    def _in_module(self, request: CoderRequest) -> CoderAnswer:
        """Rewrites the native source of a problem's candidate; the module around it stays."""
        on = request.device.device
        inner = {name: _native(getattr(request, name), on) for name in ("source", "origin", "other")}
        answer = self._coded(request.model_copy(update=inner))
        if not answer.source:
            return answer
        whole = model_new.with_native_source(request.origin or request.source, on, answer.source)
        return answer.model_copy(update={"source": whole})

    def _coded(self, request: CoderRequest) -> CoderAnswer:
        if request.plan.version is not None:
            return _two_forms(request, request.plan.version)
        if compiling.STEP in request.plan.steps:
            return _compiled(request)
        facts = Facts(spec=request.spec, device=request.device)
        steps, start = list(request.plan.steps), request.source
        if request.repair:
            if not request.origin:
                return CoderAnswer(reason="a repair without the source that the plan starts from")
            start = request.origin
            steps = _tried(steps, request, facts)
            steps.remove(_blamed(steps, request, facts) or _suspect(steps, request.outcome))
            if not steps:
                return CoderAnswer(reason="no step of the plan is left to drop")
        texts = _texts(steps, start, facts)
        text, applied = [start, *texts.values()][-1], list(texts)
        if not applied:
            return CoderAnswer(reason=f"none of these applies to the source: {', '.join(steps)}")
        if request.repair and text == request.source:
            return CoderAnswer(reason="what is left of the plan is the source that failed")
        return CoderAnswer(source=text, reason=f"applied {', '.join(applied)}")


def _compile_plans(request: PlannerRequest) -> Iterator[Plan]:
    """The compiler's kernel of what the reference means, once in a run and before everything else."""
    tried = [*(a.plan for a in request.attempts), *(o.plan for o in request.objections)]
    if not request.reference or any(compiling.STEP in plan.steps for plan in tried):
        return
    if compiling.compile_kernel(request.spec, request.reference, request.device)[0]:
        why = "written anew from what reference.py computes, its numbers left to the search"
        yield Plan(
            id=digest(compiling.STEP, request.reference)[:12], title=compiling.STEP, steps=(compiling.STEP,), rationale=why,
            base=request.incumbent,
        )  # fmt: skip


def _compiled(request: CoderRequest) -> CoderAnswer:
    if request.repair:
        return CoderAnswer(reason="the compiler has one text for a reference, and it failed")
    source, reason = compiling.compile_planned(request.spec, request.reference, request.device, request.plan.steps)
    return CoderAnswer(source=source, reason=reason or request.plan.title)


def _native(text: str, on: Device) -> str:
    """The native source of a problem's candidate; "" where there is none, as in the eager module."""
    try:
        return model_new.native_source(text, on)
    except (ValueError, SyntaxError):
        return ""


def _of_native(request: PlannerRequest) -> PlannerRequest:
    on = request.device.device
    sources = {name: _native(text, on) for name, text in request.sources.items()}
    return request.model_copy(
        update={
            "source": _native(request.source, on),
            "sources": {name: text for name, text in sources.items() if text},
        }
    )


def _joined(text: str, other: str, language: str, spec: Spec, version: Version) -> str:
    """Both forms in one file. Raises Unsupported where they cannot be."""
    try:
        return multiversion(_parsed(text, language), _parsed(other, language), spec, version)
    except Unsupported:
        raise
    except Exception as error:  # as for a rewrite: a defect here must not end a run
        warnings.warn(f"multiversion failed on these sources: {error!r}", RuntimeWarning, stacklevel=2)
        raise Unsupported(f"multiversion failed: {error!r}") from error


def _two_forms(request: CoderRequest, version: Version) -> CoderAnswer:
    if request.repair:
        return CoderAnswer(reason="two forms that are right each for itself fail together")
    try:
        text = _joined(request.source, request.other, request.device.device, request.spec, version)
    except Unsupported as reason:
        return CoderAnswer(reason=f"the two forms cannot stand in one file: {reason}")
    return CoderAnswer(source=text, reason=request.plan.title)


def _texts(steps: list[str], start: str, facts: Facts) -> dict[str, str]:
    """What each step that applies makes of the text."""
    found: dict[str, str] = {}
    for step in steps:
        changed = apply_step(step, start, facts)
        if changed is not None:
            found[step] = start = changed
    return found


def _tried(steps: list[str], request: CoderRequest, facts: Facts) -> list[str]:
    """The plan's steps without those that earlier repairs dropped: the source that failed is what the others make."""
    for left in itertools.combinations(steps, len(steps) - request.repair + 1):
        if [request.origin, *_texts(list(left), request.origin, facts).values()][-1] == request.source:
            return list(left)
    kept = list(steps)
    for _ in range(min(request.repair, len(steps)) - 1):
        kept.remove(_suspect(kept, request.outcome))
    return kept


_ERROR_LINE = re.compile(r"\((\d+)\)\s*:\s*(?:catastrophic |fatal )?error|:(\d+):(?:\d+:)?\s*(?:fatal )?error")


def _blamed(steps: list[str], request: CoderRequest, facts: Facts) -> str | None:
    """The step that wrote the first line that the compiler does not take; None where it names none of a step's."""
    if request.outcome is not Outcome.COMPILE_ERROR:
        return None
    lines, texts = request.source.splitlines(), _texts(steps, request.origin, facts)
    for found in _ERROR_LINE.finditer(request.failure):
        number = int(found[1] or found[2])
        line = lines[number - 1].strip() if 0 < number <= len(lines) else ""
        before, blamed = _stripped(request.origin), None
        for step, text in texts.items():
            blamed = step if line and line in _stripped(text) - before else blamed
            before = _stripped(text)
        if blamed is not None:
            return blamed
    return None


def _stripped(text: str) -> set[str]:
    return {line.strip() for line in text.splitlines()}


def _suspect(steps: list[str], outcome: Outcome | None) -> str:
    """What to drop first of a plan that failed so: what rounds otherwise, then the last that takes the risk; forms come last."""
    known = catalog()

    def doubt(at: int) -> tuple[bool, bool, int]:
        rewrite = known[steps[at].partition(":")[0]]
        return not rewrite.normalizes, rewrite.phase == "arithmetic", at

    named = [at for at, step in enumerate(steps) if step.partition(":")[0] in known]
    risky = [at for at in named if outcome in known[steps[at].partition(":")[0]].risks]
    return steps[max(risky, key=doubt)] if risky else steps[-1]


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
class _Proposal:
    base: str
    steps: tuple[str, ...]
    speedup: float
    """Expected speedup over the baseline."""
    version: Version | None = field(default=None, compare=False)


class _Search:
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

    def plan(self, proposal: _Proposal) -> Plan:
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

    def rank(self) -> Iterator[_Proposal]:
        """Untried plans, each for a source that no other plan made, most promising first.

        Best first, with a bound: applying steps costs milliseconds each and there are thousands of lists, of which the
        promise of one plan rules out most.
        """
        if not self.request.attempts:
            yield from self._best_first(self._opening(), [])
        waiting: list[tuple[float, int, list[int], str, _Proposal]] = []
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
        self, lists: Iterator[tuple[str, tuple[str, ...]]], waiting: list[tuple[float, int, list[int], str, _Proposal]]
    ) -> Iterator[_Proposal]:
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
                heapq.heappush(waiting, (*order, _Proposal(base, applied, speedup)))
        while waiting:
            yield from self._new(heapq.heappop(waiting))

    def _two_forms(self) -> Iterator[tuple[str, _Proposal]]:
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
                text = _joined(self.sources[base], self.sources[version.candidate], language, request.spec, version)
            except Unsupported:
                continue
            name = self._structure(text)
            if name not in self.known:
                yield name, _Proposal(base, steps, speedup, version)

    def _new(self, entry: tuple[float, int, list[int], str, _Proposal]) -> Iterator[_Proposal]:
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


def _numbers(request: ProfilerRequest) -> dict[str, float]:
    """The probes' readings that are plain numbers, as `probe_reading`."""
    numbers: dict[str, float] = {}
    for probe, readings in sorted(request.probes.items()):
        for reading, value in sorted(readings.items()):
            try:
                numbers[f"{probe}_{reading}"] = float(value)
            except ValueError:
                continue
    return numbers


def _bound(request: ProfilerRequest, fraction: float) -> Bound:
    """What the larger part of the lost time is lost to; every timing counts by the logarithm that it could gain."""
    if fraction >= AT_THE_LIMIT:
        return "at the limit"
    lost: dict[Bound, float] = {}
    for timing in request.timings:
        if not timing.light_fraction or not timing.light_us:
            continue
        room = max(0.0, -math.log(timing.light_fraction))
        kind = _bound_of(request, timing)
        lost[kind] = lost.get(kind, 0.0) + room
    return max(sorted(lost), key=lambda kind: lost[kind]) if lost else "unknown"


def _bound_of(request: ProfilerRequest, timing: Timing) -> Bound:
    spec, workload = request.spec, timing.workload
    moved = spec.read_bytes(workload) + spec.write_bytes(workload)
    if timing.light_us is not None and timing.light_us < SMALL_LIGHT_US:
        return "latency"
    intensity = expression(spec.flops, workload.axes) / max(1, moved)
    return "compute" if intensity > 20 else "memory"


def _said(bound: Bound, fraction: float) -> str:
    far = fraction < answers.NEAR
    return {
        "memory": "far below the memory bandwidth: too few bytes in flight, or too much work beside the loads"
        if far
        else "bound by memory traffic that does not keep enough bytes in flight, or moves too many",
        "latency": "bound by latency: launches, dependent loads and barriers of a short kernel",
        "compute": "bound by arithmetic",
        "launch": "bound by launches",
        "at the limit": "at the limit of the device",
        "unknown": "nothing measured says what bounds it",
    }[bound]


def first_steps(spec: Spec, device: DeviceFacts) -> tuple[str, ...]:
    """What the first plan for a source of this spec applies, as far as it applies, in order."""
    nothing = Finding(bound="unknown", summary="nothing was measured")
    return _Search(
        PlannerRequest(spec=spec, device=device, finding=nothing, incumbent="", source="", attempts=())
    )._bundle()
