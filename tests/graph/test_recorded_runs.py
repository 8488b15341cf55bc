"""Runs that were answered by hand through the real client (docs/results.md), played back through the real graph.

Sources are compiled and checked for real, on the device of the recording; only the stopwatch is made of paper, so that which candidate becomes the
incumbent is as it was recorded, whatever else the machine does. The messages were taken out of the recordings: what an
answer is found by is its facts, and prompts may change.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.cheats import small
from graph.opening import answering
from graph.runs import RunRecord, now
from graph.session import Ending, RunService, kernel_digest
from graph.workflow import signature
from harness.evaluate import Evaluator
from harness.judge.quick import Quick
from harness.judge.search import Tuned
from harness.records import Comparison, Interval, Suite, Timing, Verdict
from harness.store import digest
from kernels import catalog
from kernels.spec import Device
from nodes.context import Context
from nodes.options import ROLES
from nodes.policies.prefix import cacheable
from nodes.policies.transcript import Transcript
from nodes.state import Settings
from tests.graph.doubles import Silent, nobody

pytestmark = pytest.mark.usefixtures("short_run")
RECORDED = Path(__file__).parent / "recorded"

# Round, outcome, how often it was repaired, kept. What was kept in the recording is kept here, but for numbers found by a search.
RUNS = {
    "silu_and_mul": [
        (1, "PASSED", 2, True),  # std::bit_cast in C++17; then exp clamped, where an infinity must give NaN
        (2, "PASSED", 0, False),  # the first edit's search text stood there three times: asked again
    ],
    "silu_and_mul.cuda": [(1, "PASSED", 0, True), (2, "PASSED", 0, True), (3, "PASSED", 0, False),
                          (4, "PASSED", 0, True), (5, "PASSED", 0, False)],
}  # fmt: skip
KEPT = {"silu_and_mul": {"faecc051665a"}, "silu_and_mul.cuda": {"de58daceaa9b", "c85070e51cea", "e6471c528df8"}}


class PaperClock(Evaluator):
    """Builds, probes and checks; what it is told is kept measures twice as fast as everything before, the rest the same."""

    kept: set[str]

    def measure(
        self,
        verdict: Verdict,
        *,
        baseline: str,
        incumbent: str | None = None,
        held_out: bool = False,
        again: bool = False,
    ) -> Verdict:
        faster = verdict.candidate[:12] in self.kept
        ratio = Interval(median=2.0, low=1.9, high=2.1) if faster else Interval(median=1.0, low=0.9, high=1.1)
        comparison = Comparison.FASTER if faster else Comparison.UNCLEAR
        timings = tuple(
            Timing(
                workload=workload, cache="cold", baseline_us=100.0, time_us=100.0 / ratio.median, light_us=10.0,
                speedup=ratio, comparison=comparison, samples=10,
            )
            for workload in self.suite(held_out=held_out)
            if workload.timed
        )  # fmt: skip
        suite = Suite(speedup=ratio, comparison=comparison)
        return verdict.model_copy(update={"timings": timings, "suite": suite, "suite_incumbent": suite})

    def compare_briefly(self, *_: object, **__: object) -> Quick:
        return Quick(reason="the stopwatch is made of paper")

    def tune(self, candidate: str, *, seconds: float) -> Tuned:
        return Tuned(candidate=candidate)


def replayed(tmp_path: Path, name: str, rounds: int, dtypes: tuple[str, ...]) -> tuple[Ending, Silent]:
    kernel = catalog.load(name.partition(".")[0])
    on: Device = "cuda" if name.endswith(".cuda") else "cpu"
    if dtypes:
        kernel = small(kernel, on, dtypes)
    baseline, path = kernel.baseline(on)
    source = path.read_text()
    made = Settings(
        run_id="played", kernel=kernel.spec.name, device=on, policy=dict.fromkeys(ROLES, "replay"), baseline=baseline,
        source=digest(source), dtypes=dtypes, rounds=rounds, patience=9, light_fraction=1.5,
        transcript=str(RECORDED / f"{name}.jsonl"),
    )  # fmt: skip
    began = RunRecord(
        run_id=made.run_id, created=now(), settings=made, kernel=made.kernel, kernel_digest=kernel_digest(kernel.folder),
        signature=signature(),
    )  # fmt: skip

    @contextmanager
    def open_context(run, record, state, say) -> Iterator[Context]:
        policies, before = answering(record.settings, run.folder / "transcript.jsonl", state, say)
        evaluator = PaperClock(kernel, on, run.store, dtypes=dtypes)
        evaluator.kept = KEPT[name]
        with evaluator:
            yield Context(
                kernel=kernel, evaluator=evaluator, store=run.store, policies=policies, say=say, usage_before=before
            )

    front = Silent()
    return RunService(tmp_path, open_context).start(began, source, front, nobody), front


def path_of(front: Silent, rounds: int) -> list[str]:
    """The nodes of each round as one line, those that do nothing here left out."""
    silent = {
        "tester", "baseline", "held_out", "review_plans", "approve_plans", "review_candidates", "approve_candidates", "contest",
        "fallback",
    }  # fmt: skip
    nodes = [name for kind, name in front.events if kind == "started" and name not in silent]
    lines = " ".join(nodes).split(" select")
    assert len(lines) == rounds + 1 and not lines[-1]
    return [line.strip() for line in lines[:-1]]


def expected_path(repairs: int, failing_builds: int) -> str:
    failed = ["coder compile"] * failing_builds + ["coder compile verify"] * (repairs - failing_builds)
    return " ".join(["profiler planner", *failed, "coder compile verify tune measure"])


def check(tmp_path: Path, name: str, rounds: int, dtypes: tuple[str, ...] = ()) -> None:
    ending, front = replayed(tmp_path, name, rounds, dtypes)
    assert ending.state == "finished", ending.message
    attempts = ending.result.attempts
    assert [(a.round, str(a.outcome), a.repairs, a.accepted) for a in attempts] == RUNS[name][:rounds]
    failing_builds = 1 if name == "silu_and_mul" else 0
    assert path_of(front, rounds) == [
        expected_path(repairs, failing_builds if repairs else 0) for _, _, repairs, _ in RUNS[name][:rounds]
    ]
    repaired = [text for kind, text in front.events if kind == "repair"]
    assert len(repaired) == sum(repairs for _, _, repairs, _ in RUNS[name][:rounds])
    assert ending.result.improved and ending.result.spent.tokens_in == 0
    if rounds > 3:  # shorter runs have the first request of each role as a larger part
        kept, total = cacheable(Transcript(next(tmp_path.rglob("transcript.jsonl"))).exchanges())
        assert kept >= 0.6 * total, f"a server could keep {kept / total:.0%} of the prompts"


def test_the_beginning_of_a_recorded_run(tmp_path: Path) -> None:
    """One dtype without large workloads, to be fast: so the spec is another one, and answers are found by their place."""
    check(tmp_path, "silu_and_mul", rounds=2, dtypes=("bfloat16",))


@pytest.mark.gpu
@pytest.mark.slow
def test_a_whole_run_recorded_on_a_gpu(tmp_path: Path) -> None:
    check(tmp_path, "silu_and_mul.cuda", rounds=5)
