"""Gate: UNCLEAR is a question. The best of a run's UNCLEAR candidates are contested again, and whether the run goes on is
said after that: so before the next round plans, and before the run ends. What the round came to is remembered then.
"""

from __future__ import annotations

from langgraph.runtime import Runtime

from harness.comparison import MARGIN
from harness.records import Comparison, Outcome
from nodes.context import Context
from nodes.evidence import seen_again
from nodes.memory import learn
from nodes.roles import Attempt
from nodes.select import attempt_of, unfit
from nodes.state import Draft, Incumbent, State, Stop
from nodes.stops import next_stop

MOST = 2
"""Candidates a visit."""
CONTESTS = 3
"""In fresh processes each, so with three times the samples. They alone decide: those of before are what the candidate was
picked by, and the largest of several noisy medians is too large."""


def contest(state: State, runtime: Runtime[Context]) -> dict:
    now = state
    for _ in range(MOST):
        attempt = most_promising(now)
        if attempt is None or _ended(now):
            break
        now = {**now, **_again(attempt, now, runtime.context)}  # type: ignore[typeddict-item]
    update = {key: now[key] for key in ("attempts", "incumbent", "stale_rounds") if now.get(key) is not state.get(key)}
    new = [one for one in now.get("attempts", []) if one.round == state["round"] or one not in state["attempts"]]
    learn(runtime.store, now, runtime.context.kernel.spec, new)
    stop = state.get("stop") or next_stop(now)
    return update if stop is None else {**update, "stop": stop}


def _ended(state: State) -> bool:
    """Nothing more is wanted, or there is no time for it."""
    return next_stop(state) in (Stop.LIGHT, Stop.SECONDS)


def promise(attempt: Attempt, incumbent: Incumbent) -> float:
    """How much faster than the incumbent of now the candidate would be, by the medians."""
    if attempt.over == incumbent.candidate:
        return attempt.gain or 0.0
    suite = incumbent.verdict.suite
    return (attempt.speedup or 0.0) / suite.speedup.median if suite else 0.0


def most_promising(state: State) -> Attempt | None:
    """The UNCLEAR attempt whose median is beyond the margin, the farthest; each meets an incumbent again only once."""
    incumbent, margin = state["incumbent"], MARGIN[state["settings"].device]
    open_ = [
        attempt
        for attempt in state.get("attempts", [])
        if attempt.outcome is Outcome.PASSED
        and attempt.against_incumbent == Comparison.UNCLEAR
        and attempt.candidate != incumbent.candidate
        and attempt.contested != incumbent.candidate
        and promise(attempt, incumbent) > 1 + margin
    ]
    return max(open_, key=lambda attempt: promise(attempt, incumbent), default=None)


def _again(attempt: Attempt, state: State, context: Context) -> dict:
    """What one more contest changes: that attempt, and the incumbent where it was FASTER."""
    evaluator, source, incumbent = context.evaluator, state["settings"].source, state["incumbent"]
    said = f"{attempt.plan.title}: {promise(attempt, incumbent):.3f}x and UNCLEAR, so with {CONTESTS} times the samples"
    context.say("contest", said)
    verdict = evaluator.measure(
        evaluator.verify(evaluator.build(attempt.candidate)),
        baseline=source,
        incumbent=None if incumbent.candidate == source else incumbent.candidate,
        contests=CONTESTS,
    )
    draft = Draft(
        plan=attempt.plan, candidate=attempt.candidate, verdict=verdict, tuned=attempt.tuned, repairs=attempt.repairs,
        tuning=attempt.tuning, seconds=attempt.seconds, spec_doubt=attempt.spec_doubt,
    )  # fmt: skip
    reason = unfit(draft, incumbent)
    after = attempt_of(draft, attempt.round, None if reason else draft, incumbent)
    words = f"{reason}, with {CONTESTS} times the samples" if reason else f"FASTER with {CONTESTS} times the samples"
    after = after.model_copy(update={"contested": incumbent.candidate, "reason": words, "evidence": attempt.evidence})
    context.say("contest", f"{attempt.plan.title}: {words}")
    attempts = [after if one is attempt else one for one in state["attempts"]]
    if reason:
        seen = seen_again([draft], incumbent, state["settings"])
        return {"attempts": attempts} | ({"incumbent": incumbent.model_copy(update={"seen": seen})} if seen else {})
    faster = Incumbent(candidate=attempt.candidate, verdict=verdict, round=attempt.round)
    return {"attempts": attempts, "incumbent": faster, "stale_rounds": 0}
