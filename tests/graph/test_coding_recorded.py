"""A kernel that a person wrote through the tools as a strong model would (six answers, killed once by SIGKILL while its
tools were at work, and resumed): what was said, played back over g++ with times of paper."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from graph.opening import open_context
from graph.runs import RunRecord, now
from graph.session import RunService, kernel_digest
from graph.workflow import signature
from harness.evaluate import Evaluator
from harness.judge import quick
from harness.judge.comparisons import ComparisonRequest
from harness.judge.quick import Quick
from harness.records import Interval, Suite, Timing, Verdict
from harness.store import digest
from kernels import catalog
from nodes.options import ROLES
from nodes.policies.transcript import Transcript
from nodes.state import Settings
from tests.graph.doubles import Silent, comparison, interval, nobody

HERE = Path(__file__).parent
INPUTS = HERE.parent / "inputs"
NAME = "cpu_matrix_product"


def timing(workload, cache: str, speedup: float, over: float | None) -> Timing:
    against = None if over is None else Interval(median=over, low=over * 0.99, high=over * 1.01)
    return Timing(
        workload=workload, cache=cache, baseline_us=100.0, time_us=100.0 / speedup, speedup=interval(speedup),
        comparison=comparison(speedup), against_incumbent=against, light_us=1.0, samples=9,
    )  # fmt: skip


def paper_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source is as fast as it was recorded to be: twice the baseline, whatever this machine is doing."""

    def speed(self: Evaluator, candidate: str, baseline: str) -> float:
        return 1.0 if candidate == baseline else 2.0

    def measured(self: Evaluator, verdict: Verdict, *, baseline: str, **_: object) -> Verdict:
        factor = speed(self, verdict.candidate, baseline)
        timings = tuple(timing(w, "cold", factor, None) for w in self.suite() if w.timed)
        suite = Suite(speedup=interval(factor), comparison=comparison(factor))
        return verdict.model_copy(update={"timings": timings, "suite": suite})

    def contended(session: Evaluator, request: ComparisonRequest, cases: tuple, seconds: float) -> Quick:
        factor = speed(session, request.build.candidate, request.rivals["baseline"])
        return Quick(timings=tuple(timing(workload, cache, factor, None) for workload, cache in cases))

    monkeypatch.setattr(Evaluator, "measure", measured)
    monkeypatch.setattr(quick, "compare_briefly", contended)
    monkeypatch.setattr(Evaluator, "draw_again", lambda self, verdict, **_: verdict)


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_what_was_written_by_hand_through_the_tools_is_played_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paper_times(monkeypatch)
    recorded = HERE / "recorded" / f"{NAME}.tools.jsonl"
    kernel = catalog.load(str(INPUTS / NAME))
    source = kernel.baseline("cpu")[1].read_text()
    policy = dict.fromkeys(ROLES, "rules") | {"planner": "replay", "coder": "replay"}
    settings = Settings(
        run_id="played", kernel=str(INPUTS / NAME), device="cpu", policy=policy, baseline="baseline", source=digest(source),
        rounds=1, light_fraction=1.5, tune_seconds=0, coder="tools", transcript=str(recorded),
    )  # fmt: skip
    record = RunRecord(
        run_id="played", created=now(), settings=settings, kernel=NAME, kernel_digest=kernel_digest(kernel.folder),
        signature=signature(),
    )  # fmt: skip
    ending = RunService(tmp_path, open_context).start(record, source, Silent(), nobody)
    assert ending.state == "finished", ending.message
    (attempt,) = ending.result.attempts
    turns = [e for e in Transcript(recorded).exchanges() if "turn" in e.question.facts]
    assert (attempt.outcome, attempt.accepted, attempt.turns) == ("PASSED", True, len(turns)) and len(turns) == 6
    assert attempt.tools == {"compile": 2, "check": 2, "time": 2, "profile": 1, "submit": 1}
    assert ending.result.spent.tokens_in == 0


def test_each_answer_was_asked_for_once_though_it_was_killed() -> None:
    exchanges = Transcript(HERE / "recorded" / f"{NAME}.tools.jsonl").exchanges()
    turns = [e for e in exchanges if "turn" in e.question.facts]
    assert [e.question.facts["turn"] for e in turns] == [str(n) for n in range(1, 7)]
    named = ["", *(e.question.key("") for e in turns)]
    assert [e.question.after for e in turns] == named[:-1]  # each goes on from the one before
    results = [m.content for e in turns[1:] for m in e.question.messages]
    assert len(results) == 7 and all("(answer " in text for text in results)
    assert all(json.loads(call.arguments) is not None for e in turns for call in e.reply.calls)
