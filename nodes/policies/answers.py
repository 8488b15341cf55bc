"""What a model may answer in each role, and how that becomes our records. What an answer names must exist."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from harness.records import Bound, sol_by_cache
from harness.store import digest
from kernels.spec import Workload
from nodes import compiling
from nodes.policies.replies import (
    REPLY_CHARS,
    CodeHeader,
    ReplyDraft,
    UnfitReply,
    clip,
    edits_of,
    header_and_rest,
    new_source,
    read_draft,
)
from nodes.roles import Finding, Plan, PlannerRequest, ProfilerRequest, Review, TesterAnswer, TesterRequest

MOST_WORKLOADS = 6
MOST_BYTES = 1 << 28
"""Bytes of all tensors of one proposed workload (upper bound): it is checked, not timed, and a model should not fill
the device."""
MOST_NUMBERS = 12


def _listed(*fields: str) -> BeforeValidator:
    """`{"a": 1}` is as good as `[{"axis": "a", "size": 1}]`: models write it so where nothing holds them to a schema."""

    def named(given: object) -> object:
        return [dict(zip(fields, pair, strict=True)) for pair in given.items()] if isinstance(given, dict) else given

    return BeforeValidator(named)


class AxisDraft(ReplyDraft):
    axis: str
    size: int = Field(gt=0, le=1 << 31)


class WorkloadDraft(ReplyDraft):
    axes: Annotated[list[AxisDraft], _listed("axis", "size")]
    dtype: str


class ValuesDraft(ReplyDraft):
    tensor: str
    values: Literal["ordinary", "large", "tiny", "zeros", "outliers", "infinities", "uniform"]


class TestsDraft(ReplyDraft):
    """Workloads and value distributions to add to the suite."""

    workloads: list[WorkloadDraft]
    values: list[ValuesDraft]
    reasons: Annotated[str, clip(1000)]


class NumberDraft(ReplyDraft):
    name: str
    value: float


class FindingDraft(ReplyDraft):
    """What bounds the kernel."""

    bound: Bound
    summary: Annotated[str, clip(1500)] = Field(min_length=1)
    numbers: Annotated[list[NumberDraft], _listed("name", "value")]
    slow_workloads: list[str]
    edit: Annotated[str, clip(400)] = ""
    """The one change that these numbers ask for; empty where they ask for none."""
    spec_doubt: Annotated[str, clip(500)] = ""


class PlanDraft(ReplyDraft):
    title: Annotated[str, clip(120)] = Field(min_length=1)
    steps: list[Annotated[str, clip(400)]] = Field(min_length=1, max_length=8)
    rationale: Annotated[str, clip(1500)]
    expected_speedup: float | None = Field(gt=0, le=1000, allow_inf_nan=False)
    base: str
    """Hash (its first 12 digits) of the source to start from; empty for the incumbent."""


class PlansDraft(ReplyDraft):
    """Plans for this round, each a different change."""

    plans: list[PlanDraft]
    nothing_left: Annotated[str, clip(500)]
    """Why there is nothing left to try; empty where there are plans."""
    spec_doubt: Annotated[str, clip(500)] = ""
    """Why the operation needs fewer bytes or operations than stated; empty where it does not."""


class ReviewDraft(ReplyDraft):
    """Whether this may go on."""

    agrees: bool
    reason: Annotated[str, clip(1500)]
    """What is wrong, where, and what would mend it; empty where you agree."""


class SingleHeader(CodeHeader):
    """The single agent's JSON before the code: what it found and what it is about to do."""

    bound: Bound = "unknown"
    plan: PlanDraft


# Keywords that some servers' structured outputs refuse; the limits are checked here when the answer is in.
_LIMITS = {
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "minItems", "maxItems",
    "pattern", "default", "title",
}  # fmt: skip


def wire_schema(draft: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema as strict structured outputs want it: every property required, no others, no limits."""

    def strict(node: Any, named: bool = False) -> Any:
        if isinstance(node, list):
            return [strict(item) for item in node]
        if not isinstance(node, dict):
            return node
        if named:  # the keys are the model's own names here, not keywords
            return {key: strict(value) for key, value in node.items()}
        node = {k: strict(v, named=k in {"properties", "$defs"}) for k, v in node.items() if k not in _LIMITS}
        if node.get("type") == "object":
            node |= {"required": list(node.get("properties", {})), "additionalProperties": False}
        return node

    return strict(draft.model_json_schema())


# The tester ----------------------------------------------------------------------------------------------------------


def tests(reply: str, request: TesterRequest) -> TesterAnswer:
    """Only additions to what agents may see. Proposed workloads are checked, not timed: a speedup must stay comparable
    between runs whose testers had other ideas. The tester node tries them on the reference and the baseline first."""
    draft = read_draft(reply, TestsDraft)
    spec, known = request.spec, {workload.label for workload in request.spec.workloads}
    known_spec = spec.model_dump()
    added: dict[str, Workload] = {}
    for proposed in draft.workloads[:MOST_WORKLOADS]:
        sizes = {one.axis: one.size for one in proposed.axes}
        if set(sizes) != set(spec.axes):
            given = ", ".join(str(one.axis)[:40] for one in proposed.axes[:8]) or "none"
            raise UnfitReply(f"workloads: the axes must be exactly {', '.join(spec.axes)}; one has {given}")
        try:
            workload = Workload.model_validate(
                {
                    "axes": {axis: sizes[axis] for axis in spec.axes},
                    "dtype": proposed.dtype,
                    "devices": (request.device.device,),
                    "timed": False,
                }
            )
            if workload.label in known:
                continue
            spec.model_validate({**known_spec, "workloads": [*known_spec["workloads"], workload.model_dump()]})
            size_bytes = spec.read_bytes(workload) + spec.write_bytes(workload)
        except ValidationError as error:
            raise UnfitReply(f"workloads: {error.errors()[0]['msg']}") from None
        if size_bytes > MOST_BYTES:
            raise UnfitReply(f"workloads: {workload.label} takes {size_bytes} bytes; at most {MOST_BYTES}")
        added[workload.label] = workload
    values: dict[str, tuple[str, ...]] = {}
    floating = {t.name: t for t in spec.inputs if t.dtype == "T" or t.dtype.startswith(("float", "bfloat"))}
    for extra in draft.values:
        if extra.tensor not in floating:
            raise UnfitReply(
                f"values: {extra.tensor!r} is no floating-point input (those are {', '.join(floating) or 'none'})"
            )
        if extra.values not in (*floating[extra.tensor].values, *values.get(extra.tensor, ())):
            values[extra.tensor] = (*values.get(extra.tensor, ()), extra.values)
    return TesterAnswer(workloads=tuple(added.values()), values=values, reasons=draft.reasons)


# The profiler --------------------------------------------------------------------------------------------------------


def compute_finding(request: ProfilerRequest) -> Finding:
    """What the timings say by arithmetic alone; the part of a finding that no model is asked for."""
    shares = {(t.workload.label, t.cache): t.light_fraction for t in request.timings if t.light_fraction is not None}
    numbers: dict[str, float] = {}
    for cache, mean in sol_by_cache(request.timings).items():
        numbers[f"{cache}_percent_of_sol"] = round(100 * mean, 1)
    if request.timings:
        numbers["speedup"] = round(statistics.geometric_mean([t.speedup.median for t in request.timings]), 4)
    worst: dict[str, float] = {}
    for (label, _), share in shares.items():
        worst[label] = min(share, worst.get(label, math.inf))
    overall = statistics.geometric_mean(shares.values()) if shares else None
    probes = [
        f"{name}: {', '.join(f'{key} {value}' for key, value in readings.items())}"
        for name, readings in request.probes.items()
        if "unavailable" not in readings
    ]
    return Finding(
        bound="at the limit" if overall is not None and overall >= 0.97 else "unknown",
        summary=" ".join("; ".join(["measured figures only", *probes]).split())[:1500],
        light_fraction=overall,
        numbers=numbers,
        slow_workloads=tuple(sorted(worst, key=worst.__getitem__)[: max(1, min(4, len(worst) // 2))]),
    )


_NUMBER_NAME = re.compile(r"^[a-z][a-z0-9_]{0,40}$")


def finding(reply: str, request: ProfilerRequest) -> Finding:
    """The model's words beside the measured figures; where both name a figure, the measured one stays."""
    draft = read_draft(reply, FindingDraft)
    measured = compute_finding(request)
    named = {n.name: n.value for n in draft.numbers if _NUMBER_NAME.match(n.name) and math.isfinite(n.value)}
    labels = {timing.workload.label for timing in request.timings}
    slow = tuple(dict.fromkeys(label for label in draft.slow_workloads if label in labels))
    return measured.model_copy(
        update={
            "bound": measured.model_copy(update={"bound": draft.bound}).likely_bound,
            "summary": draft.summary,
            "numbers": dict(list(named.items())[:MOST_NUMBERS]) | measured.numbers,
            "slow_workloads": slow or measured.slow_workloads,
            "edit": draft.edit,
            "spec_doubt": draft.spec_doubt,
        }
    )


# The planner ---------------------------------------------------------------------------------------------------------


def plan_of(draft: PlanDraft, request: PlannerRequest) -> Plan:
    """Named by the hash of its content. Raises Unfit where `base` names no source that may be started from."""
    base = request.incumbent
    wanted = draft.base.strip()
    if wanted:
        found = [name for name in {request.incumbent, *request.sources} if len(wanted) >= 8 and name.startswith(wanted)]
        if len(found) != 1:
            raise UnfitReply(
                f"base: {wanted[:64]!r} is not the hash of a source that passed; leave it empty for the incumbent"
            )
        base = found[0]
    content = draft.model_dump_json()
    return Plan(
        id=digest("plan", content)[:16],
        title=draft.title,
        steps=tuple(draft.steps),
        rationale=draft.rationale,
        expected_speedup=draft.expected_speedup,
        base=base,
    )


def _refuse_repeats(plan: Plan, request: PlannerRequest) -> None:
    for attempt in request.attempts:
        if (attempt.plan.id, attempt.plan.base) == (plan.id, plan.base):
            raise UnfitReply(
                f"the plan {plan.title!r} was tried from the same source in round {attempt.round}: {attempt.outcome}"
            )


def plans(reply: str, request: PlannerRequest, allowed_steps: Iterable[str] | None = None) -> tuple[Plan, ...]:
    """At most `width` different plans; none only where the model says why nothing is left to try."""
    draft = read_draft(reply, PlansDraft)
    if not draft.plans and not draft.nothing_left:
        raise UnfitReply("plans: give at least one plan, or say in nothing_left why there is none")
    unique: dict[str, Plan] = {}
    for proposed in draft.plans:
        plan = plan_of(proposed, request)
        settings = compiling.STEP in plan.steps
        if allowed_steps is not None and (
            unknown := [
                s for s in plan.steps if s not in allowed_steps and not (settings and compiling.SETTING.fullmatch(s))
            ]
        ):
            raise UnfitReply(f"steps: {unknown[0][:80]!r} is not the name of a rewrite")
        _refuse_repeats(plan, request)
        unique.setdefault(plan.id, plan.model_copy(update={"spec_doubt": draft.spec_doubt}))
    return tuple(unique.values())[: request.width]


def review(reply: str) -> Review:
    draft = read_draft(reply, ReviewDraft)
    if not draft.agrees and not draft.reason.strip():
        raise UnfitReply("reason: say what is wrong and what would mend it, or agree")
    return Review(agrees=draft.agrees, reason=draft.reason)


def code(reply: str, base: str) -> tuple[str, str]:
    """(new source, notes); the source is "" where the model says that the plan cannot be carried out."""
    if len(reply) > REPLY_CHARS:
        raise UnfitReply(f"the answer is longer than {REPLY_CHARS} characters")
    header, rest = header_and_rest(reply, CodeHeader)
    if header.format == "none":
        return "", header.notes or "the model gave no reason"
    return new_source(header, rest, base), header.notes


def doubt(reply: str) -> str:
    """What an answer with code, which could be read, says against the spec."""
    return header_and_rest(reply, CodeHeader)[0].spec_doubt


def whole_file(reply: str) -> str:
    """The file in an answer that gives it whole; "" where it does not, or has none that can be used."""
    try:
        return code(reply, "")[0]
    except UnfitReply:
        return ""


def apply_edits(reply: str, base: str) -> str:
    """What `base` is after the edits of an answer; "" where it has none, or they do not fit."""
    try:
        edits = bool(base) and bool(edits_of(reply))
        return code(reply, base)[0] if edits else ""
    except UnfitReply:
        return ""


# The single agent ----------------------------------------------------------------------------------------------------


def single(reply: str, request: PlannerRequest) -> tuple[Plan, str]:
    """(plan, new source): all that one round of the single agent is. Its plan starts from the incumbent."""
    if len(reply) > REPLY_CHARS:
        raise UnfitReply(f"the answer is longer than {REPLY_CHARS} characters")
    header, rest = header_and_rest(reply, SingleHeader)
    if header.format == "none":
        raise UnfitReply("format none is not possible here: give the change as a file or as edits")
    plan = plan_of(header.plan.model_copy(update={"base": ""}), request)
    _refuse_repeats(plan, request)
    return plan, new_source(header, rest, request.source)
