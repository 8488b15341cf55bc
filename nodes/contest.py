"""Gate: UNCLEAR is a question. The best of a run's UNCLEAR candidates are contested again, and whether the run goes on is
said after that: so before the next round plans, and before the run ends. What stays UNCLEAR is contested again at later
visits, with the samples that a decision needs, and before the run ends until nothing is left that more samples could decide.
What the round came to is remembered then.
"""

from __future__ import annotations

import math

from langgraph.runtime import Runtime

from harness.records import Comparison, Outcome
from harness.timing.comparison import MARGIN
from nodes.context import Context
from nodes.evidence import find_latest_timings
from nodes.memory import learn
from nodes.roles import Attempt
from nodes.select import attempt_of, unfit
from nodes.state import Draft, Incumbent, State, Stop
from nodes.stops import next_stop

MOST, MOST_AT_THE_END = 2, 6
"""Contests a visit; the last one's before a run ends."""
CONTESTS = 3
"""Repetitions of an unclear comparison, each in fresh processes. They alone decide: the candidate was picked by the
earlier samples, and the largest of several noisy medians is biased upwards."""
MOST_CONTESTS = 12
"""Contests of one candidate (upper bound): one that needs more stays UNCLEAR."""


def contest(state: State, runtime: Runtime[Context]) -> dict:
    now, tried = state, set[tuple[int, str]]()
    for turn in range(MOST_AT_THE_END):
        ends = now.get("stop") is not None or next_stop(now) is not None
        if _ended(now) or (turn >= MOST and not ends):
            break
        attempt = most_promising(now, without=frozenset(tried)) or (most_promising(now) if ends else None)
        if attempt is None:
            break
        tried.add((attempt.round, attempt.plan.id))
        now = {**now, **_again(attempt, now, runtime.context)}
    update = {key: now[key] for key in ("attempts", "incumbent", "stale_rounds") if now.get(key) is not state.get(key)}
    new = [one for one in now.get("attempts", []) if one.round == state["round"] or one not in state["attempts"]]
    learn(runtime.store, now, runtime.context.kernel.spec, new, reference=runtime.context.reference())
    stop = state.get("stop") or next_stop(now)
    return update if stop is None else {**update, "stop": stop}


def _ended(state: State) -> bool:
    """Nothing more is wanted, or there is no time for it."""
    return next_stop(state) in (Stop.LIGHT, Stop.SECONDS, Stop.ENOUGH)


def promise(attempt: Attempt, incumbent: Incumbent) -> float:
    """How much faster than the incumbent of now the candidate would be, by the medians."""
    if attempt.over == incumbent.candidate:
        return attempt.gain or 0.0
    suite = incumbent.verdict.suite
    return (attempt.speedup or 0.0) / suite.speedup.median if suite else 0.0


def contests_for(attempt: Attempt, incumbent: Incumbent, margin: float) -> int:
    """How many contests decide over the attempt, by the width of its interval; 0 where those would be too many, or where the interval has
    decided and FASTER was withheld for another reason.

    An interval narrows with the root of the number of samples. Those of a contest that is repeated are new ones, twice as many
    at least.
    """
    if (attempt.gain_low or 0.0) > 1 + margin:
        return 0
    if attempt.contested != incumbent.candidate:
        return CONTESTS
    if not attempt.gain or not attempt.gain_low:
        return 0
    width, room = math.log(attempt.gain / attempt.gain_low), math.log(attempt.gain / (1 + margin))
    wanted = max(2 * attempt.contests, math.ceil(attempt.contests * (width / room) ** 2))
    return wanted if wanted <= MOST_CONTESTS else 0


def most_promising(state: State, without: frozenset[tuple[int, str]] = frozenset()) -> Attempt | None:
    """The UNCLEAR attempt whose median is beyond the margin, the farthest, of those over which more samples can decide.

    `without` those of these rounds and plans.
    """
    incumbent, margin = state["incumbent"], MARGIN[state["settings"].device]
    open_ = [
        attempt
        for attempt in state.get("attempts", [])
        if attempt.outcome is Outcome.PASSED
        and attempt.against_incumbent == Comparison.UNCLEAR
        and attempt.candidate != incumbent.candidate
        and (attempt.round, attempt.plan.id) not in without
        and promise(attempt, incumbent) > 1 + margin
        and contests_for(attempt, incumbent, margin)
    ]
    return max(open_, key=lambda attempt: promise(attempt, incumbent), default=None)


def _again(attempt: Attempt, state: State, context: Context) -> dict:
    """What one more contest changes: that attempt, and the incumbent where it was FASTER."""
    evaluator, source, incumbent = context.evaluator, state["settings"].source, state["incumbent"]
    contests = contests_for(attempt, incumbent, MARGIN[state["settings"].device])
    said = f"{attempt.plan.title}: {promise(attempt, incumbent):.3f}x and UNCLEAR, so with {contests} times the samples"
    context.say("contest", said)
    verdict = evaluator.measure(
        evaluator.verify(evaluator.build(attempt.candidate)),
        baseline=source,
        incumbent=None if incumbent.candidate == source else incumbent.candidate,
        contests=contests,
    )
    draft = Draft(
        plan=attempt.plan, candidate=attempt.candidate, verdict=verdict, tuned=attempt.tuned, repairs=attempt.repairs,
        tuning=attempt.tuning, seconds=attempt.seconds, spec_doubt=attempt.spec_doubt, remarks=attempt.remarks,
    )  # fmt: skip
    reason = unfit(draft, incumbent)
    after = attempt_of(draft, attempt.round, None if reason else draft, incumbent)
    words = f"{reason or 'FASTER'}{',' if reason else ''} with {contests} times the samples"
    after = after.model_copy(
        update={
            "contested": incumbent.candidate,
            "contests": contests,
            "conversation": attempt.conversation,
            "turns": attempt.turns,
            "tools": attempt.tools,
            "tool_seconds": attempt.tool_seconds,
            "reason": words,
            "evidence": attempt.evidence,
            "trials": attempt.trials,
        }
    )
    context.say("contest", f"{attempt.plan.title}: {words}")
    attempts = [after if one is attempt else one for one in state["attempts"]]
    if reason:
        seen = find_latest_timings([draft], incumbent, state["settings"])
        return {"attempts": attempts} | ({"incumbent": incumbent.model_copy(update={"seen": seen})} if seen else {})
    faster = Incumbent(candidate=attempt.candidate, verdict=verdict, round=attempt.round)
    return {"attempts": attempts, "incumbent": faster, "stale_rounds": 0}
