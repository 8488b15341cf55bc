"""The offline optimiser: answers for every agent from the source's syntax tree and from what was measured so far.

No answer depends on anything but its request, so a resumed run plans what an unbroken one would have planned.
"""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Iterator

from harness.backends import model_new
from harness.records import Bound, Outcome, Timing, sol_by_cache
from harness.store import digest
from kernels.spec import Device, Workload, expression
from nodes import compiling, drafting
from nodes.options import Role
from nodes.policies.search import Search, apply_step, join_forms
from nodes.rewrites import Facts, catalog
from nodes.rewrites.syntax.source import Unsupported
from nodes.roles import (
    NEAR,
    AgentRequest,
    Answer,
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

WORTH = 0.75
"""A plan that promises less of the incumbent's speed is not tried: what was measured of its steps already counts in the promise."""
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
        search = Search(_of_native(request) if request.spec.problem else request)
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
    if _compilation(request).source()[0]:
        why = "written anew from what reference.py computes, its numbers left to the search"
        yield Plan(
            id=digest(compiling.STEP, request.reference)[:12], title=compiling.STEP, steps=(compiling.STEP,), rationale=why,
            base=request.incumbent,
        )  # fmt: skip


def _compilation(asked: PlannerRequest | CoderRequest) -> compiling.Compilation:
    return compiling.Compilation(spec=asked.spec, reference=asked.reference, device=asked.device, exact=asked.exact)


def _compiled(request: CoderRequest) -> CoderAnswer:
    if request.repair:
        return CoderAnswer(reason="the compiler has one text for a reference, and it failed")
    source, reason = _compilation(request).planned(request.plan.steps)
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


def _two_forms(request: CoderRequest, version: Version) -> CoderAnswer:
    if request.repair:
        return CoderAnswer(reason="two forms that are right each for itself fail together")
    try:
        text = join_forms(request.source, request.other, request.device.device, request.spec, version)
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
    far = fraction < NEAR
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
