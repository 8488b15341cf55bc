"""A candidate beside what a user would call instead: PyTorch eager and torch.compile, on the timed visible workloads.

    python -m benchmarks.library --kernel silu_and_mul FILE.cu [--baseline NAME] [--device auto|cuda|cpu]

The candidate is timed against its baseline as always. The library runs in this process, since it is no hostile code, in
the same company: on a GPU CUDA-graph replays of calls between the same neighbours, less the neighbours' own, medians of
15; on a CPU calls on inputs that were written just before. Its outputs come from the allocator, which inside a graph costs
nothing; what the consumer reads behind it is the candidate's output, which is as large.
"""

from __future__ import annotations

import argparse
import ctypes
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
from harness.farside.worker import Neighbours
from harness.store import Store
from harness.timing.sampling import ABComparison
from kernels import catalog
from kernels.catalog import Kernel

SAMPLES, WARM_UP = 15, 3


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
        neighbours = None
        if on == "cuda":
            neighbours = Path(evaluator.build(evaluator.store.put(neighbours.SOURCE.read_text())).artefact)
        for timing in verdict.timings:
            comparison = evaluator.open_comparison(timing.workload, timing.cache)
            theirs = {library: seconds(call, comparison, neighbours) * 1e6 for library, call in libraries.items()}
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


def seconds(call: Callable[..., object], comparison: ABComparison, neighbours: Path | None) -> float:
    """Median seconds of one call over the comparison's argument sets; `neighbours`: their library, on a GPU."""
    spec, production, slots = comparison.kernel.spec, comparison.production, range(comparison.layout.slots)
    sets = [{t.name: comparison.bench.read(slot, t) for t in spec.inputs} | spec.scalars for slot in slots]
    with torch.no_grad():
        for arguments in sets[:3]:
            call(**arguments)
        if neighbours is None:
            found = []
            for _ in range(SAMPLES):
                production.produce(list(slots))
                found.append(_timed(lambda: [call(**arguments) for arguments in sets]))
            return statistics.median(found) / len(sets)
        around = Neighbours(
            ctypes.CDLL(str(neighbours)), comparison.buffers.view.data_ptr(), production.message("plain")
        )
        graphs = [_captured(around, sets, call), _captured(around, sets, None)]
        found = []
        for _ in range(SAMPLES + WARM_UP):
            production.renew()
            torch.cuda.synchronize()
            whole, pair = (_replayed(graph) for graph in graphs)
            found.append((whole - pair) / len(sets))
    return statistics.median(found[WARM_UP:])


def _captured(around: Neighbours, sets: list[dict], call: Callable[..., object] | None) -> torch.cuda.CUDAGraph:
    """The calls between their neighbours; the neighbours alone for None."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        for slot, arguments in enumerate(sets):
            around.before(slot, len(sets), stream)
            if call is not None:
                call(**arguments)
            around.after(slot, stream)
    return graph


def _replayed(graph: torch.cuda.CUDAGraph) -> float:
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    graph.replay()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) * 1e-3


def _timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
