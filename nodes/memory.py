"""What runs learned, in a LangGraph Store: `learn` writes what a round's attempts came to, `recall` reads what fits a run.

A run recalls once, before its first round, and keeps what it found in its own store: a resumed run plans with the same
words, whatever others have learned meanwhile. Everything read is checked like an answer, for anyone may have written it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime

from langgraph.store.base import BaseStore, PutOp

from harness.records import Outcome
from harness.store import Store, digest
from kernels.spec import Frozen, Spec
from nodes.knowledge import families_of
from nodes.lesson import MOST_GAINS, Gain, Lesson, fitting, read
from nodes.roles import Attempt, Plan
from nodes.state import State

ROOT = "lessons"
SEARCHED = 1000
"""The latest of a family that are looked at."""
RECALLED = 48
"""Lessons that go into a run at most."""


class Recalled(Frozen):
    """What a run begins with, the most telling first."""

    lessons: tuple[Lesson, ...] = ()


# --- learning ------------------------------------------------------------------------------------------------------


def namespace(device: str, of: str) -> tuple[str, ...]:
    return (ROOT, device, of.replace(" ", "-"))


def learn(
    store: BaseStore | None,
    state: State,
    spec: Spec,
    attempts: Sequence[Attempt],
    withdrawn: str = "",
    reference: str = "",
) -> None:
    """Put down what these attempts came to; again, where they came to something else since.

    `reference`: the text of the kernel's reference.py. `withdrawn`: why what was kept does not hold after all.
    """
    if store is None or state["settings"].memory == "off" or not attempts:
        return
    lessons = [lesson(state, spec, attempt, withdrawn, reference) for attempt in attempts]
    store.batch(
        PutOp(
            namespace(one.device, one.family),
            digest("lesson", one.run_id, str(one.round), attempt.plan.id),
            one.model_dump(mode="json"),
            index=False,
        )
        for one, attempt in zip(lessons, attempts, strict=True)
    )


def lesson(state: State, spec: Spec, attempt: Attempt, withdrawn: str = "", reference: str = "") -> Lesson:
    settings, facts, found = state["settings"], state["device"], state.get("finding")
    every = {one.candidate: one for one in state.get("attempts", ()) if one.candidate}
    passed = attempt.outcome is Outcome.PASSED and not withdrawn
    return Lesson(
        family=families_of(spec, reference)[0],
        kernel=spec.name,
        device=settings.device,
        device_name=facts.name,
        architecture=facts.architecture,
        bound=found.bound if found else "unknown",
        policy=settings.policy["planner"],
        title=attempt.plan.title,
        steps=attempt.plan.steps[:16],
        path=_path(attempt.plan, every, settings.source),
        outcome=attempt.outcome,
        kept=attempt.accepted and not withdrawn,
        reason=" ".join((withdrawn or attempt.reason).split()),
        gain=attempt.gain if passed else None,
        over_base=_over_base(attempt, every, settings.source) if passed else None,
        speedup=attempt.speedup if passed else None,
        gains=_gains(state, attempt) if passed else (),
        evidence=digest(attempt.model_dump_json()),
        candidate=attempt.candidate,
        run_id=settings.run_id,
        round=attempt.round,
        at=datetime.now(UTC),
    )


def _path(plan: Plan, every: dict[str, Attempt], source: str) -> tuple[str, ...]:
    steps: tuple[str, ...] = ()
    seen: set[str] = set()
    while True:
        if plan.version is not None or plan.base in seen or len(steps) + len(plan.steps) > 64:
            return ()
        seen.add(plan.base)
        steps = (*plan.steps, *steps)
        if plan.base in ("", source):
            return steps
        if plan.base not in every:
            return ()
        plan = every[plan.base].plan


def _over_base(attempt: Attempt, every: dict[str, Attempt], source: str) -> float | None:
    if attempt.over == attempt.plan.base:
        return attempt.gain
    before = 1.0 if attempt.plan.base in ("", source) else getattr(every.get(attempt.plan.base), "speedup", None)
    return attempt.speedup / before if attempt.speedup and before else None


def _gains(state: State, attempt: Attempt) -> tuple[Gain, ...]:
    timings = state["baseline"].timings
    if len(timings) != len(attempt.gains):
        return ()
    found = [
        Gain(workload=timing.workload.label, cache=timing.cache, median=one.median, low=one.low, high=one.high)
        for timing, one in zip(timings, attempt.gains, strict=True)
    ]
    telling = sorted(found, key=lambda one: -abs(math.log(one.median)))[:MOST_GAINS]
    return tuple(one for one in found if one in telling)


# --- recalling -----------------------------------------------------------------------------------------------------


def recall(store: BaseStore | None, state: State, spec: Spec, own: Store, reference: str = "") -> str:
    """Key in the run's own store of what it may use, "" where there is nothing."""
    settings = state["settings"]
    if store is None or settings.memory == "off":
        return ""
    items = store.search(namespace(settings.device, families_of(spec, reference)[0]), limit=SEARCHED)
    lessons = [one for one in map(read, (item.value for item in items)) if one is not None]
    lessons = [
        one for one in lessons if one.run_id != settings.run_id
    ]  # before a fork, or of a name that was used before
    if not lessons:
        return ""
    facts = state["device"]
    found = Recalled(lessons=fitting(lessons, spec.name, facts.architecture, "unknown", RECALLED))
    key = digest("recalled", found.model_dump_json())
    own.keep("memory", key, found)
    return key


def recall_lessons(key: str, own: Store) -> tuple[Lesson, ...]:
    found = own.find_record("memory", key, Recalled) if key else None
    return found.lessons if found else ()
