"""`run.py evaluate`: the verdict on one file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

from graph.commands.opened import open_service
from graph.commands.options import BOTH, EXIT_SAME, STARTED, ByProtocol, Clocks, Command, OfRuns, usage_error
from graph.request import OpenRequest
from harness.options import Option


class EvaluateCommand(ByProtocol, Clocks, OfRuns, Command):
    """The verdict on one file, without any agent. Exit code 0 where it PASSED, 3 where it did not."""

    file: Annotated[str, Option("FILE", positional=True)] = ""
    """The source; without, --run's best."""
    request: Annotated[
        OpenRequest,
        Option(only=("kernel", "baseline", "device", "dtypes", "sandbox", "own_kernels", "compare")),
    ] = OpenRequest()
    run: Annotated[str, Option("RUN")] = ""
    """Kernel, device, baseline and best file of that run."""
    axis: Annotated[tuple[str, ...], Option("NAME=SIZES")] = ()
    """Sweep an axis instead of the spec's workloads: tokens=1:4096:x2, tokens=64:512:64 or tokens=1,7,33; repeatable for the
    sizes of others."""
    plot: Path | None = None
    """Plot time, bandwidth and speedup along --axis; .svg or .png."""

    def go(self) -> int:
        from graph import one_file, sweep
        from graph.live import Display, PlainDisplay
        from harness.report import svg
        from harness.timing.clocks import lock

        if self.plot and not self.axis:
            return usage_error("--plot draws a sweep: give --axis too")
        if self.run:
            what = one_file.of_run(
                open_service(self.runs_dir, self.checkpointer), self.run, self.file, self.request, self.protocol
            )
        else:
            what = one_file.of_file(self.file, self.request, self.protocol)
        swept = sweep.sweep(what.kernel, what.device, self.axis, self.request.dtypes) if self.axis else None
        STARTED.set()
        silent = self.as_json and not sys.stderr.isatty()
        shows = Display() if silent else PlainDisplay(sys.stderr)
        with lock(self.lock_clocks, what.device), shows as shown:
            said = one_file.evaluate(
                swept.kernel if swept else what.kernel, what.device, what.source, what.baseline,
                dtypes=(swept.dtype,) if swept else what.dtypes, sandbox=self.request.sandbox,
                own_kernels=what.own_kernels, compare=what.compare, protocol=self.protocol in BOTH,
                say=lambda line: shown.say("harness", line),
            )  # fmt: skip
        verdict, name = said.verdict, what.baseline[0]
        if self.plot and swept is not None:
            svg.save(sweep.picture(swept, verdict, name, what.name), self.plot)
        if self.as_json:
            comparison = verdict.suite.comparison if verdict.suite else None
            from harness.report.result import WorkloadRow

            least = WorkloadRow.worst_of(verdict.timings)
            record: dict[str, Any] = {
                "file": what.name,
                "baseline": name,
                "comparison": comparison,
                "worst": least.model_dump(mode="json") if least else None,
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
            if self.plot:
                print(self.plot)
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
        weighted = " of the weighted calls' time" if verdict.suite.weighted else ""
        words += f", {verdict.suite.comparison} {interval(verdict.suite.speedup)}{weighted}"
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
