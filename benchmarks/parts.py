"""Where the seconds of a full verdict go: own and total time of each part of the instrument, and how often it runs.

    python -m benchmarks.parts [--kernel silu_and_mul] [--device auto|cuda|cpu] [--verdicts 3] [--candidate FILE]

Times the kernel's default baseline against itself, and FILE against it; without FILE, on a GPU, the `production` baseline
against the `extracted` one, as a candidate that is faster and so is confirmed.
"""

from __future__ import annotations

import argparse
import functools
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


class Clock:
    """Wraps functions; what a part takes without the parts that it calls is its own."""

    def __init__(self) -> None:
        self.own: Counter[str] = Counter()
        self.total: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.inner: list[float] = []
        self.thread = threading.get_ident()

    def wrap(self, owner: Any, name: str) -> None:
        function: Callable[..., Any] = getattr(owner, name)
        label = f"{owner.__name__.rpartition('.')[2]}.{name.strip('_')}"

        @functools.wraps(function)
        def timed(*arguments: Any, **keywords: Any) -> Any:
            if threading.get_ident() != self.thread:
                return function(*arguments, **keywords)
            start = time.perf_counter()
            self.inner.append(0.0)
            try:
                return function(*arguments, **keywords)
            finally:
                seconds, inner = time.perf_counter() - start, self.inner.pop()
                self.own[label] += seconds - inner
                self.total[label] += seconds
                self.calls[label] += 1
                if self.inner:
                    self.inner[-1] += seconds

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
    options = parser.parse_args()
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
