"""A coder with tools on a GPU's kernels, without a GPU: prompts, tools, turns and recordings are real, builds and times are of paper.

Recordings that were made on a GPU (`recorded/*.tools.cuda.jsonl`) are played back: a product of halves that was written by hand from the
requests, and decode attention, whose answers were prepared (docs/results.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from graph.opening import answering
from graph.runs import RunRecord, now
from graph.session import Ending, RunService, kernel_digest
from graph.workflow import signature
from harness.evaluate import Evaluator
from harness.judge.quick import Case, Quick
from harness.judge.search import Tuned
from harness.questions import Admission, Admit
from harness.records import Build, Check, DeviceFacts, Outcome, Suite, Timing, Verdict
from harness.store import digest
from kernels import catalog
from nodes.context import Context
from nodes.options import ROLES
from nodes.policies.transcript import Transcript
from nodes.state import Settings
from tests.graph.doubles import Silent, comparison, interval, nobody
from tests.nodes.policies.examples import GPU

INPUTS = Path(__file__).parents[1] / "inputs" / "tools"
RECORDED = Path(__file__).parent / "recorded"


class PaperGpu(Evaluator):
    """Every source compiles and is right, and each is twice as fast as the one that was built before it."""

    def __init__(self, *given: object, **more: object) -> None:
        super().__init__(*given, facts=GPU, memory_bytes=1 << 37, **more)  # type: ignore[arg-type]
        self.built: list[str] = []

    def measure_facts(self) -> DeviceFacts:
        return GPU

    def ask(self, question: Any) -> Any:
        """Nothing can be drawn on that device."""
        return Admission() if isinstance(question, Admit) else super().ask(question)

    def build(self, candidate: str) -> Build:
        if candidate not in self.built:
            self.built.append(candidate)
        kernels = {"product": "registers=168 spills=0 shared=0"}
        return Build(candidate=candidate, backend="cuda", ok=True, artefact="none.so", resources=kernels)

    def verify(self, build: Build, **_: object) -> Verdict:
        check = Check(workload=self.suite()[0].label, name="ordinary", passed=True, error=0.1)
        return Verdict(
            candidate=build.candidate,
            kernel=self.spec.name,
            device="cuda",
            build=build,
            outcome=Outcome.PASSED,
            checks=(check,),
        )

    def timings(self, candidate: str, baseline: str, cases: Sequence[Case]) -> tuple[Timing, ...]:
        factor = 2.0 ** (self.built.index(candidate) - self.built.index(baseline))
        return tuple(
            Timing(
                workload=workload, cache=cache, baseline_us=100.0, time_us=100.0 / factor, speedup=interval(factor), samples=9,
                comparison=comparison(factor), light_us=1.0, compute_us=2.0,
            )
            for workload, cache in cases
        )  # fmt: skip

    def measure(self, verdict: Verdict, *, baseline: str, held_out: bool = False, **_: object) -> Verdict:
        cases: list[Case] = [(workload, "cold") for workload in self.suite(held_out=held_out) if workload.timed]
        timings = self.timings(verdict.candidate, baseline, cases)
        suite = Suite(speedup=timings[0].speedup, comparison=timings[0].comparison)
        return verdict.model_copy(update={"timings": timings, "suite": suite, "suite_incumbent": suite})

    def compare_briefly(self, build: Build, rivals: dict[str, str], cases: Sequence[Case] = (), **_: object) -> Quick:
        timed = [workload for workload in self.suite() if workload.timed]
        timings = self.timings(build.candidate, rivals["baseline"], cases or [(timed[0], "cold"), (timed[-1], "cold")])
        faster = {
            name: 2.0 ** (self.built.index(build.candidate) - self.built.index(of)) for name, of in rivals.items()
        }
        pairs = {name: ((factor,) * 5,) * 3 for name, factor in faster.items()}
        return Quick(timings=timings, pairs=(pairs,) * len(timings))

    def tune(self, candidate: str, *, seconds: float) -> Tuned:
        return Tuned(candidate=candidate)

    def probes(self, build: Build, *, calls: bool = True) -> dict[str, dict[str, str]]:
        return {"ncu": {"large: issue slots busy %": "12"}}

    def sanitize(self, verdict: Verdict) -> Verdict:
        return verdict

    def sanitize_beside(self, verdict: Verdict, work: Callable[[Verdict], Verdict]) -> Verdict:
        return work(self.sanitize(verdict))

    def draw_again(self, verdict: Verdict, *, baseline: str) -> Verdict:
        return verdict

    def measure_other_contexts(self, verdict: Verdict, *, baseline: str) -> Verdict:
        return verdict


def ran(folder: Path, name: str, transcript: Path) -> Ending:
    """Roles that are not in the transcript are answered by the rules."""
    folder_of = str(INPUTS / name) if (INPUTS / name).is_dir() else name
    kernel = catalog.load(folder_of)
    baseline, path = kernel.baseline("cuda")
    source = path.read_text()
    there = {exchange.question.role for exchange in Transcript(transcript).exchanges()}
    policy = {role: "replay" if role in there else "rules" for role in ROLES}
    settings = Settings(
        run_id="replay", kernel=folder_of, device="cuda", policy=policy,
        models=dict.fromkeys(ROLES, "hand"), baseline=baseline, source=digest(source), rounds=1, light_fraction=1.5,
        tune_seconds=0, coder="tools", transcript=str(transcript),
    )  # fmt: skip
    record = RunRecord(
        run_id="replay", created=now(), settings=settings, kernel=name, kernel_digest=kernel_digest(kernel.folder),
        signature=signature(),
    )  # fmt: skip

    @contextmanager
    def open_context(run, record, state, say) -> Iterator[Context]:
        policies, before = answering(record.settings, run.folder / "transcript.jsonl", state, say)
        with PaperGpu(kernel, "cuda", run.store) as evaluator:
            yield Context(
                kernel=kernel, evaluator=evaluator, store=run.store, policies=policies, say=say, usage_before=before
            )

    return RunService(folder, open_context).start(record, source, Silent(), nobody)


@pytest.mark.parametrize("recording", sorted(RECORDED.glob("*.tools.cuda.jsonl")), ids=lambda path: path.name)
def test_a_recording_is_played_back(recording: Path, tmp_path: Path) -> None:
    ending = ran(tmp_path, recording.name.partition(".")[0], recording)
    assert ending.state == "finished", ending.message
    turns = [e for e in Transcript(recording).exchanges() if "turn" in e.question.facts]
    named = ["", *(e.question.key("") for e in turns)]
    assert [e.question.after for e in turns] == named[:-1]  # each was asked for once, though the run was killed
    asked = Counter(call.name for e in turns for call in e.reply.calls)
    (attempt,) = ending.result.attempts
    assert attempt.turns == len(turns) >= 2 and attempt.tools == asked and asked["submit"] == 1
    assert attempt.accepted and ending.result.spent.tokens_in == 0
