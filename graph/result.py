"""State -> Result: the versioned record that result.json, the tables and the report show."""

from __future__ import annotations

import functools
import math
import platform
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from graph.runs import RunRecord, now
from harness.records import Comparison, Interval, Outcome, Timing, Verdict
from harness.report.result import (
    Answer,
    AttemptRow,
    FindingRow,
    PlanRow,
    Result,
    SpentRow,
    Status,
    Versions,
    WorkloadRow,
    policy_text,
)
from nodes.roles import Attempt
from nodes.state import Settings, State, Stop
from nodes.subjects import subject_of

REPOSITORY = Path(__file__).resolve().parent.parent


def baseline_failed(name: str, verdict: Verdict) -> str:
    """Why nothing can be compared with the baseline, and what to do."""
    said = f"the baseline ({name}) does not pass: {verdict.outcome}: {verdict.reason}"
    if verdict.outcome is Outcome.INCORRECT:
        said += "; if its arithmetic is meant so, `ulps` of that output in spec.py allows more (docs/kernels.md)"
    return said


def result(
    state: State,
    record: RunRecord,
    *,
    status: Status,
    error: str = "",
    sandbox: Sequence[str] = (),
    notices: Sequence[str] = (),
    measured: Mapping[str, str] | None = None,
) -> Result:
    """A run's record, finished or not. Without a winner that holds on held-out workloads, the best is the baseline."""
    settings = record.settings
    disqualified = state.get("disqualified", "")
    incumbent, first = state.get("incumbent"), state.get("baseline")
    best = first if disqualified or incumbent is None else incumbent.verdict
    held_out = state.get("held_out")
    held_out_timings = held_out.timings if held_out and not disqualified else ()
    stop = state.get("stop")
    if stop is Stop.BASELINE and first is not None:
        status, error = "failed", baseline_failed(settings.baseline, first)
    facts = state.get("device")
    total = state["spent"].total if "spent" in state else None
    found = state.get("finding")
    timings = best.timings if best else ()
    return Result(
        run_id=record.run_id,
        kernel=record.kernel,
        summary=record.summary,
        device=settings.device,
        device_name=facts.name if facts else "",
        facts=facts,
        policy=policy_text(settings.policy),
        policies=dict(settings.policy.items()),
        baseline=settings.baseline,
        dtypes=settings.dtypes,
        status=status,
        stop_reason=_stop_reason(stop, status, error),
        error=error,
        source=settings.source,
        best=settings.source if disqualified or incumbent is None else incumbent.candidate,
        best_round=0 if disqualified or incumbent is None else incumbent.round,
        speedup=best.suite.speedup if best and best.suite else None,
        worst=WorkloadRow.worst_of(timings),
        speedup_cold=geometric_mean(t.speedup for t in timings if t.cache == "cold"),
        speedup_hot=geometric_mean(t.speedup for t in timings if t.cache == "hot"),
        held_out_speedup=held_out.suite.speedup if held_out and held_out.suite else None,
        comparison=best.suite.comparison if best and best.suite else Comparison.UNCLEAR,
        held_out_outcome=held_out.outcome if held_out else None,
        held_out_comparison=held_out.suite.comparison if held_out and held_out.suite else None,
        held_out_reason=disqualified or (held_out.reason if held_out else ""),
        rounds=settings.stop.rounds,
        attempts=tuple(_attempt(attempt) for attempt in state.get("attempts", ())),
        workloads=tuple(WorkloadRow.of(timing) for timing in (*timings, *held_out_timings)),
        elsewhere=tuple(WorkloadRow.of(timing) for timing in best.elsewhere) if best else (),
        suites_elsewhere=best.suites_elsewhere if best else {},
        draws=best.draws if best else None,
        launch=best.launch if best else None,
        finding=FindingRow.made_from(found) if found else None,
        spent=SpentRow(
            seconds=state["spent"].seconds,
            calls=total.calls,
            tokens_in=total.tokens_in,
            tokens_out=total.tokens_out,
            money_usd=total.money_usd,
            nodes={name: round(visits.seconds, 2) for name, visits in state["spent"].nodes.items()},
        )
        if total
        else SpentRow(),
        sandbox=tuple(sandbox),
        measured=dict(measured or {}),
        notices=(*settings.why, *notices),
        warnings=_warnings(state, held_out_timings),
        answer=_answer(state.get("answer")),
        problem=subject_of(settings).drafted,
        against={name: suite.speedup for name, suite in best.against.items()} if best else {},
        degenerate=best.degenerate if best else (),
        notes=_notes(state, best),
        command=settings.command,
        versions=versions(settings),
        commit=commit(),
        started=record.created,
        finished=now() if status in ("finished", "failed") else None,
    )


def geometric_mean(speedups: Iterable[Interval]) -> Interval | None:
    """The geometric mean of independent medians: their half-widths add in squares, on the logarithm."""
    found = list(speedups)
    if not found:
        return None
    middle = sum(math.log(s.median) for s in found) / len(found)
    below = math.sqrt(sum(math.log(s.median / s.low) ** 2 for s in found)) / len(found)
    above = math.sqrt(sum(math.log(s.high / s.median) ** 2 for s in found)) / len(found)
    return Interval(median=math.exp(middle), low=math.exp(middle - below), high=math.exp(middle + above))


def _stop_reason(stop: Stop | None, status: Status, error: str) -> str:
    if stop is not None:
        return stop.value
    person = "" if error else "the person"  # a process that is gone was not stopped by one
    return {"stopped": person, "paused": "paused", "failed": "an error of ours"}.get(status, "")


def _warnings(state: State, held_out: Sequence[Timing]) -> tuple[str, ...]:
    said = list(state["incumbent"].verdict.warnings) if "incumbent" in state else []
    for timing in held_out:
        if timing.comparison is Comparison.SLOWER:
            said.append(f"slower on held-out {timing.workload.label}, {timing.cache}: {timing.speedup.median:.3f}x")
    finding = state.get("finding")
    doubts = {"profiler": finding.spec_doubt} if finding else {}
    for attempt in state.get("attempts", ()):
        doubts |= {
            f"planner, in round {attempt.round},": attempt.plan.spec_doubt,
            f"coder, in round {attempt.round},": attempt.spec_doubt,
        }
    said += [f"the {who} doubts the spec: {doubt}" for who, doubt in doubts.items() if doubt]
    return tuple(said)


def _answer(verdict: Verdict | None) -> Answer | None:
    if verdict is None:
        return None
    against = {name: suite.speedup for name, suite in verdict.against.items()}
    return Answer.made_from(verdict, speedup=verdict.suite.speedup if verdict.suite else None, against=against)


def _notes(state: State, best: Verdict | None) -> tuple[str, ...]:
    draft = state.get("draft")
    said = [f"the draft: {note}" for note in draft.notes] if draft else []
    if draft and draft.refused:
        said.append(f"no draft: {draft.refused}")
    return (*(best.notes if best else ()), *said)


def _attempt(attempt: Attempt) -> AttemptRow:
    speedup = None
    if attempt.speedup is not None:
        low, high = attempt.speedup_low or attempt.speedup, attempt.speedup_high or attempt.speedup
        speedup = Interval(median=attempt.speedup, low=low, high=high)
    return AttemptRow.made_from(attempt, plan=PlanRow.made_from(attempt.plan), speedup=speedup)


@functools.cache
def commit() -> str:
    """The commit of Astrolabe's own repository, with -dirty where files differ from it; "" where it does not run from one."""
    if not (REPOSITORY / ".git").exists() or shutil.which("git") is None:
        return ""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=40"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def versions(settings: Settings) -> Versions:
    compiler = ["nvcc", "--version"] if settings.device == "cuda" else ["g++", "--version"]
    driver = Path("/proc/driver/nvidia/version")
    return Versions(
        astrolabe=_version("astrolabe"),
        python=platform.python_version(),
        torch=_version("torch"),
        compiler=_said(tuple(compiler)),
        driver=driver.read_text().splitlines()[0] if settings.device == "cuda" and driver.is_file() else "",
    )


@functools.cache
def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


@functools.cache
def _said(command: tuple[str, ...]) -> str:
    """The line of `--version` that has the number."""
    if shutil.which(command[0]) is None:
        return ""
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip().splitlines()
    return next((line for line in lines if "release" in line), lines[0] if lines else "")
