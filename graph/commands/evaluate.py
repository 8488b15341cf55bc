"""`run.py evaluate`: the verdict on one file."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from graph.commands.opened import door
from graph.commands.options import (
    BOTH,
    EXIT_SAME,
    Parser,
    common,
    lock_clocks,
    of_problems,
    on_device,
    protocol,
    usage_error,
)


def parser() -> argparse.ArgumentParser:
    made = Parser(
        prog="run.py evaluate", allow_abbrev=False,
        description="The verdict on one file, without any agent. Exit code 0 where it PASSED, 3 where it did not.",
    )  # fmt: skip
    on_device(made, required=False)
    of_problems(made, rule=None)
    protocol(made)
    made.add_argument("file", metavar="FILE", nargs="?", help="the source; without, --run's best")
    made.add_argument("--run", metavar="RUN", help="kernel, device, baseline and best file of that run")
    made.add_argument(
        "--axis", action="append", default=[], metavar="NAME=SIZES",
        help="sweep an axis instead of the spec's workloads: tokens=1:4096:x2, tokens=64:512:64 or tokens=1,7,33; repeatable "
        "for the sizes of others",
    )  # fmt: skip
    made.add_argument("--plot", type=Path, metavar="FILE", help="with --axis: time, bandwidth, speedup; .svg or .png")
    common(made)
    lock_clocks(made)
    made.set_defaults(go=go)
    return made


def go(asked: argparse.Namespace) -> int:
    from graph import draw, one_file, sweep
    from graph.live import Display, PlainDisplay
    from harness.clocks import locked

    if asked.plot and not asked.axis:
        return usage_error("--plot draws a sweep: give --axis too")
    what = one_file.of_run(door(asked), asked) if asked.run else one_file.of_file(asked)
    swept = sweep.sweep(what.kernel, what.device, asked.axis, asked.dtype) if asked.axis else None
    asked.starting.cancel()
    silent = asked.json and not sys.stderr.isatty()
    shows = Display() if silent else PlainDisplay(sys.stderr)
    with locked(asked.lock_clocks, what.device), shows as shown:
        said = one_file.evaluate(
            swept.kernel if swept else what.kernel, what.device, what.source, what.baseline,
            dtypes=(swept.dtype,) if swept else what.dtypes, sandbox=asked.sandbox,
            own_kernels=what.own_kernels, compare=what.compare, protocol=asked.protocol in BOTH,
            say=lambda line: shown.say("harness", line),
        )  # fmt: skip
    verdict, name = said.verdict, what.baseline[0]
    if asked.plot:
        draw.save(sweep.picture(swept, verdict, name, what.name), asked.plot)
    if asked.json:
        comparison = verdict.suite.comparison if verdict.suite else None
        record = {
            "file": what.name,
            "baseline": name,
            "comparison": comparison,
            "notices": said.notices,
            "held_out": said.held_out,
        }
        if said.kernelbench is not None:
            record["kernelbench"] = said.kernelbench.model_dump(mode="json")
        print(json.dumps(record | verdict.model_dump(mode="json"), indent=1))
    else:
        print_verdict(verdict, name, said.notices)
        if said.kernelbench is not None:
            print_kernelbench(said.kernelbench, verdict)
        if asked.plot:
            print(asked.plot)
    return 0 if verdict.passed else EXIT_SAME


def print_kernelbench(found, verdict) -> None:
    from harness.protocol_kernelbench import disagreement

    time = f", {found.runtime:g} ms (eager {found.ref_runtime:g} ms)" if found.runtime > 0 else ""
    print(f"KernelBench: compiled {found.compiled}, correct {found.correctness}{time}")
    if differs := disagreement(found, verdict.outcome, verdict.reason, verdict.degenerate):
        print(f"the two verdicts differ: {differs}")


def print_verdict(verdict, baseline: str, notices: tuple[str, ...]) -> None:
    from harness.report.console import Console
    from harness.report.result import WorkloadRow
    from harness.report.table import workloads_table
    from harness.report.words import interval, worst

    console = Console(highlight=False)
    if verdict.timings:
        console.print(workloads_table([WorkloadRow.of(t) for t in verdict.timings], f"against {baseline}"))
    words = f"{verdict.outcome}: {verdict.reason}" if verdict.reason else str(verdict.outcome)
    if verdict.suite:
        words += f", {verdict.suite.comparison} {interval(verdict.suite.speedup)}"
        slowest = worst(WorkloadRow.of(timing) for timing in verdict.timings)
        words += f", {slowest}" if slowest else ""
    console.print(words, markup=False)
    for notice in notices:
        console.print(f"notice: {notice}", markup=False)
    for mode, suite in verdict.against.items():
        console.print(f"against torch.compile ({mode}): {suite.comparison} {interval(suite.speedup)}", markup=False)
    if verdict.degenerate:
        console.print(f"degenerate problem: {', '.join(verdict.degenerate)} passes KernelBench's check", markup=False)
    for note in verdict.notes:
        console.print(f"note: {note}", markup=False)
    for warning in verdict.warnings:
        console.print(f"warning: {warning}", markup=False)
