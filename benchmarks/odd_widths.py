"""A candidate beside its baseline at widths that the spec does not name: the rows of each timed visible workload longer.

    python -m benchmarks.odd_widths --kernel silu_and_mul FILE.cu [--baseline NAME] [--more 1] [--gate] [--device auto|cuda|cpu]

One workload of each dtype on either side of 100 MB is taken, and the axis that is the largest tensor's row gets `--more`
elements. A fallback that is slower than the source would be seen here before a user of such sizes sees it. With --gate it is not the file
that is timed but what the gate at the end of a run makes of it (nodes/fallback.py).
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from harness import device
from harness.evaluate import Evaluator
from harness.store import Store
from kernels import catalog
from kernels.catalog import Kernel
from kernels.spec import Spec, Workload
from nodes.fallback import beside_the_source
from nodes.rewrites.specialize.uneven import row_axis

LARGE_BYTES = 100e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", required=True)
    parser.add_argument("file", type=Path)
    parser.add_argument("--baseline")
    parser.add_argument("--more", type=int, default=1)
    parser.add_argument("--gate", action="store_true", help="with the source's own launch where it is faster")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    options = parser.parse_args()
    on, _ = device.choose(options.device)
    kernel = catalog.load(options.kernel)
    name, baseline_file = kernel.baseline(on, options.baseline)
    workloads = longer(kernel.spec, on, options.more)
    if not workloads:
        raise SystemExit(f"no axis of {options.kernel} is the length of its largest tensor's rows")
    text = options.file.read_text()
    if options.gate:
        text = gated(kernel, on, text, baseline_file.read_text())
    kernel = replace(kernel, spec=kernel.spec.model_copy(update={"workloads": workloads}))
    table = Table(title=f"{options.kernel} on {device.facts(on).name}: us a call")
    for column in ("workload", "cache", name, options.file.name, "speedup"):
        table.add_column(column, justify="right")
    with tempfile.TemporaryDirectory() as folder, Evaluator(kernel, on, Store(Path(folder))) as evaluator:
        baseline = evaluator.store.put(baseline_file.read_text())
        try:
            verdict = evaluator.verify(evaluator.build(evaluator.store.put(text)))
        except catalog.KernelError as error:
            raise SystemExit(f"rows {options.more} longer do not fit the kernel, try another --more: {error}") from None
        if verdict.passed:
            verdict = evaluator.measure(verdict, baseline=baseline)
        if not verdict.passed:
            raise SystemExit(f"{options.file}: {verdict.outcome}, {verdict.reason}")
        for timing in verdict.timings:
            table.add_row(
                timing.workload.label, timing.cache, f"{timing.baseline_us:.2f}", f"{timing.time_us:.2f}",
                f"{timing.speedup.median:.2f}x {timing.speedup.low:.2f}–{timing.speedup.high:.2f}",
            )  # fmt: skip
    Console(width=120).print(table)


def gated(kernel: Kernel, on: str, text: str, source: str) -> str:
    """The text of both forms, or the text where it is nowhere slower than its source."""
    with tempfile.TemporaryDirectory() as folder, Evaluator(kernel, on, Store(Path(folder))) as evaluator:
        baseline = evaluator.store.put(source)
        verdict = evaluator.verify(evaluator.build(evaluator.store.put(text)))
        if verdict.passed:
            verdict = evaluator.measure(verdict, baseline=baseline)
        if not verdict.passed:
            raise SystemExit(f"at the named sizes: {verdict.outcome}, {verdict.reason}")
        found = beside_the_source(evaluator, verdict, baseline)
        if found is None:
            print("nowhere slower than the source: the file as it is")
            return text
        candidate, version, _ = found
        print(f"the source's own launch for {version.said(kernel.spec)}")
        return evaluator.store.get(candidate)


def longer(spec: Spec, on: str, more: int) -> tuple[Workload, ...]:
    """One workload of each dtype and size, small or large, `more` elements longer along the largest tensor's last axis."""
    found: dict[tuple[str, bool], Workload] = {}
    for workload in spec.suite(on):
        axis = row_axis(spec, workload)
        if workload.timed and axis:
            is_large = max(spec.tensor_bytes(tensor, workload) for tensor in spec.tensors) > LARGE_BYTES
            axes = {**workload.axes, axis: workload.axes[axis] + more}
            found.setdefault((workload.dtype, is_large), workload.model_copy(update={"axes": axes}))
    return tuple(found.values())


if __name__ == "__main__":
    main()
