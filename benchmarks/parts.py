"""Where the seconds of a full verdict go: own and total time of each part of the instrument, and how often it runs.

    python -m benchmarks.parts [--kernel silu_and_mul] [--device auto|cuda|cpu] [--verdicts 3] [--candidate FILE]
    python -m benchmarks.parts --run --kernel silu_and_mul --rounds 1

Times the kernel's default baseline against itself, and FILE against it; without FILE, on a GPU, the `production` baseline
against the `extracted` one, as a candidate that is faster and so is confirmed. `--run WORDS`: a whole `run.py WORDS`, each
part below the one that called it, from the start of this process on.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from harness import company, contests, correctness, device, sampling, timing, verification
from harness.engines.process import Worker
from harness.evaluate import Evaluator
from harness.store import Store
from kernels import catalog

PARTS: dict[Any, tuple[str, ...]] = {
    sampling.Contest: (
        "__init__", "open", "prepare", "plan", "settle", "sample", "long_sample", "_request", "_examine", "unwritten", "look",
        "finish",
    ),
    sampling: ("timed_request", "expected"),
    timing: ("run", "_confirm", "_doubt"),
    company.Production: ("open", "renew", "produce", "inputs", "digests_agree", "constants_intact", "_redraw_constants"),
    company.Mixture: ("fill", "renew", "mix"),
    correctness: ("expected",),
    correctness.Bench: ("__init__", "write", "check_outputs", "check_inputs", "check_guards"),
    Worker: ("__init__", "close", "map", "request", "pause", "proceed", "pin", "foreign_code"),
    Evaluator: ("verify", "measure", "light_us"),
    verification: ("_stress", "_refuse_library_kernels"),
    contests: ("_compare_alone", "_look_at_clocks"),
}  # fmt: skip
PARTS_OF_A_RUN = {
    **{
        f"nodes.{name}": (name,)
        for name in (
            "tester", "baseline", "profiler", "planner", "coder", "compile", "verify", "tune", "measure", "select", "contest",
            "fallback", "held_out",
        )
    },
    "graph.choices": ("choose",),
    "graph.session.Session": ("work", "ending"),
    "harness.device": ("facts", "memory_bytes", "clocks"),
    "harness.roofs": ("measured", "_vector", "_matrix", "_copy_gbps"),
    "harness.evaluate.Evaluator": (
        "__init__", "__exit__", "verify", "measure", "measure_elsewhere", "draw_again", "sanitize", "light_us", "build", "probes",
        "tune", "contend", "measured_facts", "contest", "run", "_compiled",
    ),
    "harness.pool.Pool": ("start", "settle", "arena", "ours", "drop"),
    "harness.correctness.Cases": ("get",),
    "harness.verification": ("checks", "_stress", "_refuse_library_kernels", "_launch"),
    "harness.contests": ("timed", "_compare_alone", "_look_at_clocks", "_light_us"),
    "harness.timing": ("_confirm", "_doubt"),
    "harness.sampling.Contest": ("open", "prepare", "sample", "long_sample", "look", "look_at_new_constants", "plan"),
    "harness.engines.process.Worker": ("__init__", "map", "unmap", "close"),
    "graph.outputs": ("write", "write_report"),
}  # fmt: skip
LEAST_S = 0.05


class Clock:
    """Wraps functions; what a part takes without the parts that it calls is its own."""

    def __init__(self, *, nested: bool = False) -> None:
        """`nested`: a part counts by itself below each part that calls it, in every thread."""
        self.own: Counter[str] = Counter()
        self.total: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.first: dict[str, float] = {}
        """When it was called first."""
        self.nested = nested
        self.of_thread = threading.local()

    def wrap(self, owner: Any, name: str) -> None:
        function: Callable[..., Any] = getattr(owner, name)
        label = f"{owner.__name__.rpartition('.')[2]}.{name.strip('_')}"

        @functools.wraps(function)
        def timed(*arguments: Any, **keywords: Any) -> Any:
            stack = self.of_thread.__dict__.setdefault("stack", [])
            start = time.perf_counter()
            path = f"{stack[-1][0]}/{label}" if self.nested and stack else label
            self.first.setdefault(path, start)
            stack.append([path, 0.0])
            try:
                return function(*arguments, **keywords)
            finally:
                seconds, (_, inner) = time.perf_counter() - start, stack.pop()
                self.own[path] += seconds - inner
                self.total[path] += seconds
                self.calls[path] += 1
                if stack:
                    stack[-1][1] += seconds

        setattr(owner, name, timed)

    def clear(self) -> None:
        for counter in (self.own, self.total, self.calls):
            counter.clear()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", default="silu_and_mul")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--verdicts", type=int, default=3)
    parser.add_argument("--candidate", type=Path)
    parser.add_argument("--run", nargs=argparse.REMAINDER, metavar="WORDS", help="what run.py is given")
    options = parser.parse_args()
    if options.run is not None:
        sys.exit(of_a_run(options.run))
    on, _ = device.choose(options.device)
    kernel = catalog.load(options.kernel)
    name, default = kernel.baseline(on)
    contests = [(f"{name} itself", default, default)]
    if options.candidate:
        contests.append((f"{options.candidate.name} against {name}", options.candidate, default))
    elif on == "cuda":
        pair = kernel.baseline(on, "production")[1], kernel.baseline(on, "extracted")[1]
        contests.append(("production against extracted", *pair))
    console, clock = Console(width=110), Clock()
    for owner, names in PARTS.items():
        for name in names:
            clock.wrap(owner, name)
    with tempfile.TemporaryDirectory() as folder, Evaluator(kernel, on, Store(Path(folder))) as evaluator:
        for title, path, against in contests:
            baseline = evaluator.store.put(against.read_text())
            evaluator.measure(evaluator.verify(evaluator.build(baseline)), baseline=baseline)  # inputs, speed of light
            sources = [f"{path.read_text()}\n// {title} {index}\n" for index in range(options.verdicts)]
            builds = [evaluator.build(evaluator.store.put(source)) for source in sources]
            clock.clear()
            start = time.perf_counter()
            for build in builds:
                verdict = evaluator.verify(build)
                if not verdict.passed:
                    raise SystemExit(f"{verdict.outcome}: {verdict.reason}\n{build.log}")
                verdict = evaluator.measure(verdict, baseline=baseline)
            each = (time.perf_counter() - start) / len(builds)
            console.print(
                show(f"{title}: {each:.2f} s a verdict without the build, {verdict.outcome}", clock, len(builds))
            )
            if verdict.suite:
                console.print(f"{verdict.suite.comparison} {verdict.suite.speedup.median:.4f}")


def of_a_run(words: list[str]) -> int:
    """A whole run, its parts as a tree on standard error: when each began first, what it took in all, and by itself."""
    clock, began = Clock(nested=True), time.perf_counter() - time.clock_gettime(time.CLOCK_BOOTTIME) + _started()
    for place, names in PARTS_OF_A_RUN.items():
        module, _, owner = place.rpartition(".") if place.rpartition(".")[2][0].isupper() else (place, "", "")
        loaded = importlib.import_module(module)
        for name in names:
            clock.wrap(getattr(loaded, owner) if owner else loaded, name)
    code = importlib.import_module("run").main(words)
    print(f"{time.perf_counter() - began:7.2f} s in all\n  from      s    own  calls", file=sys.stderr)
    for path in sorted(clock.total, key=lambda path: [clock.first["/".join(path.split("/")[: at + 1])] for at in range(path.count("/") + 1)]):  # fmt: skip
        if clock.total[path] >= LEAST_S:
            place = "  " * path.count("/") + path.rpartition("/")[2]
            times = f"{clock.first[path] - began:6.2f} {clock.total[path]:6.2f} {clock.own[path]:6.2f} {clock.calls[path]:6}"
            print(f"{times}  {place}", file=sys.stderr)
    return code


def _started() -> float:
    """When this process began, in seconds since the machine did."""
    return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")


def show(title: str, clock: Clock, verdicts: int) -> Table:
    """Parts by what they take themselves, per verdict."""
    table = Table(title=title)
    for column in ("part", "own ms", "total ms", "calls"):
        table.add_column(column, justify="left" if column == "part" else "right")
    for name, own in clock.own.most_common():
        total, calls = clock.total[name], clock.calls[name]
        table.add_row(name, f"{own / verdicts * 1e3:.1f}", f"{total / verdicts * 1e3:.1f}", f"{calls / verdicts:.1f}")
    return table


if __name__ == "__main__":
    main()
