"""Three problems of the starter suite, answered by hand through the real client as one strong agent would (--agents single, one
round): played back over g++ and the real checks, with times of paper. Right at once, each; what was kept is kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from graph.opening import answering
from graph.session import RunService, new_record
from harness.problems.pytorch import open_problem
from harness.store import digest
from kernels import suites
from nodes.context import Context
from nodes.options import ROLES
from nodes.state import Settings
from tests.graph.doubles import Silent, nobody
from tests.graph.test_recorded_runs import RECORDED, PaperClock

# Hashes of the draft, which was clearly faster than eager torch, and of the round's candidate, which was not clearly faster.
RUNS = {
    "Linear_sum_logsumexp": ("487ae517eff2", "649573283bfa"),  # one product with the summed weights
    "RMSNorm_channels": ("67c9e22795e1", "7f7c7976e648"),  # tiles of pixels; then their size left open
    "Cumulative_sum": ("df7fd1c7e150", "b9cf34c9580f"),  # a scan by doubling steps, measured slower
}
SLOW = ("RMSNorm_channels", "Cumulative_sum")


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in RUNS])
def test_a_problem_that_was_answered_by_hand(name: str, tmp_path: Path):
    path = next(path for path in suites.problems("starter") if path.stem.partition("_")[2] == name)
    text, (draft, tried) = path.read_text(), RUNS[name]
    made = Settings(
        run_id="played", kernel=str(path), device="cpu", policy=dict.fromkeys(ROLES, "replay"), baseline="eager",
        source=digest(text), rounds=1, patience=9, light_fraction=1.5, agents="single",
        transcript=str(RECORDED / f"{name}.problem.jsonl"),
    )  # fmt: skip

    @contextmanager
    def open_context(run, record, state, say) -> Iterator[Context]:
        policies, before = answering(record.settings, run.folder / "transcript.jsonl", state, say)
        problem = open_problem(path, "cpu")
        evaluator = PaperClock(problem, "cpu", run.store)
        evaluator.kept = {draft}
        with evaluator:
            yield Context(
                kernel=problem, evaluator=evaluator, store=run.store, policies=policies, say=say, usage_before=before
            )

    record = new_record(made, kernel=name, summary=name, folder=path)
    ending = RunService(tmp_path, open_context).start(record, text, Silent(), nobody)
    assert ending.state == "finished", ending.message
    attempts = ending.result.attempts
    assert [(a.round, a.candidate[:12], str(a.outcome), a.accepted) for a in attempts] == [
        (0, draft, "PASSED", True),
        (1, tried, "PASSED", False),
    ]
    assert ending.result.answer is not None and ending.result.answer.candidate.startswith(draft)
    assert ending.result.improved and ending.result.spent.tokens_in == 0
