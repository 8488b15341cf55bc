"""A candidate beside what a user would call instead: PyTorch eager and torch.compile, on the timed visible workloads.

    python -m benchmarks.library --kernel silu_and_mul FILE.cu [--baseline NAME] [--device auto|cuda|cpu]

The candidate is timed against its baseline as always. The library runs in this process, since it is no hostile code:
CUDA-graph replays over the same rotation of argument sets, its median of 15. Its outputs come from the allocator, which
inside a graph costs nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from harness import device
from harness.evaluate import Evaluator
from harness.store import Store
from harness.timing import Contest
from kernels import catalog
from kernels.catalog import Kernel

SAMPLES = 15


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", required=True)
    parser.add_argument("file", type=Path)
    parser.add_argument("--baseline")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    options = parser.parse_args()
    on, _ = device.choose(options.device)
    kernel = catalog.load(options.kernel)
    eager = functions(kernel)
    libraries = {"eager": eager, "torch.compile": torch.compile(eager, dynamic=False)}
    name, baseline_file = kernel.baseline(on, options.baseline)
    table = Table(title=f"{options.kernel} on {device.facts(on).name}: us a call")
    for column in ("workload", "cache", name, options.file.name, *libraries, "light", "beside the faster library"):
        table.add_column(column, justify="right")
    ratios: list[float] = []
    with tempfile.TemporaryDirectory() as folder, Evaluator(kernel, on, Store(Path(folder))) as evaluator:
        baseline = evaluator.store.put(baseline_file.read_text())
        build = evaluator.build(evaluator.store.put(options.file.read_text()))
        verdict = evaluator.measure(evaluator.verify(build), baseline=baseline)
        if not verdict.passed:
            raise SystemExit(f"{options.file}: {verdict.outcome}, {verdict.reason}")
        for timing in verdict.timings:
            contest = Contest(kernel, timing.workload, timing.cache, on, evaluator.facts.last_level_cache_bytes)
            contest.open(evaluator.memory(contest.layout.size))
            theirs = {library: seconds(call, contest) * 1e6 for library, call in libraries.items()}
            ratio = min(theirs.values()) / timing.time_us
            ratios.append(ratio)
            table.add_row(
                timing.workload.label, timing.cache, f"{timing.baseline_us:.2f}", f"{timing.time_us:.2f}",
                *(f"{us:.2f}" for us in theirs.values()), f"{timing.light_us:.2f}", f"{ratio:.2f}x",
            )  # fmt: skip
    console = Console(width=150)
    console.print(table)
    console.print(
        f"geometric mean {statistics.geometric_mean(ratios):.2f}x beside the faster library, least {min(ratios):.2f}x"
    )


def functions(kernel: Kernel) -> Callable[..., tuple[torch.Tensor, ...]]:
    """`eager` of the kernel's library.py."""
    path = kernel.folder / "library.py"
    if not path.exists():
        raise SystemExit(f"{kernel.spec.name} has no library.py")
    spec = importlib.util.spec_from_file_location(f"library_of_{kernel.spec.name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.eager


def seconds(call: Callable[..., object], contest: Contest) -> float:
    """Median seconds of one call over the contest's argument sets."""
    spec = contest.kernel.spec
    sets = [{t.name: contest.bench.read(slot, t) for t in spec.inputs} | spec.scalars for slot in contest.sets]
    many = sets * max(1, 200 // len(sets)) if contest.cache == "hot" and contest.device == "cuda" else sets
    with torch.no_grad():
        for arguments in sets[:3]:
            call(**arguments)
        if contest.device == "cpu":
            return statistics.median(_timed(lambda: [call(**a) for a in many]) for _ in range(SAMPLES)) / len(many)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for arguments in many:
                call(**arguments)
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        found = []
        for _ in range(SAMPLES):
            start.record()
            graph.replay()
            stop.record()
            stop.synchronize()
            found.append(start.elapsed_time(stop) * 1e-3 / len(many))
    return statistics.median(found[3:])


def _timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
