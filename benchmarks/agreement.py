"""Do the company and a captured model step agree? The time that a file saves a call, as the one says and as the other.

    python -m benchmarks.agreement FILE.cu [FILE.cu ...] [--batch 1 8 32 ...] [--layers 8]

Each FILE is for the kernel of the catalog that its name begins with, such as silu_and_mul.best.cu, and stands against that
kernel's baseline. A GPU only: on a CPU no step is captured.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.table import Table

from harness import device, model
from harness.evaluate import Evaluator
from harness.records import Build, Company
from harness.sampling import Side
from harness.store import Store
from kernels import catalog
from kernels.catalog import Kernel
from kernels.spec import Workload

AXES = {
    "silu_and_mul": lambda batch, shape: {"tokens": batch, "hidden": shape.ffn},
    "fused_add_rmsnorm": lambda batch, shape: {"tokens": batch, "hidden": shape.hidden},
}
"""Kernels that a decode step calls once for each token of the batch."""
COMPANIES: tuple[Company, ...] = ("plain", "pdl")
CLOCKS = ("nvidia-smi", "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader,nounits", "--loop-ms=20", "-i")


class Clocks:
    """Those of the GPU that is used while it is worked on: matrix products may take the power that a kernel's clock then lacks."""

    def __enter__(self) -> Self:
        self.process = subprocess.Popen([*CLOCKS, device.first_visible()], stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        rows = [line.split(", ") for line in self.process.communicate()[0].splitlines()]
        looks = [(float(row[1]), float(row[0])) for row in rows if len(row) == 2]
        busy = sorted(looks)[len(looks) // 2 :]  # the half that drew more power: between samples a GPU idles
        watts, megahertz = (
            (f"{statistics.median(column):.0f}" for column in zip(*busy, strict=True)) if busy else ("?", "?")
        )
        self.says = f"{megahertz} MHz, {watts} W"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8, 32, 128, 256, 1024])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--samples", type=int, default=40)
    options = parser.parse_args()
    table = Table(title=f"microseconds that a call saves, {options.layers} layers, {options.dtype}")
    columns = (
        "kernel", "batch", "company", "in company", "saved", "clock", "in the model, saved", "clock", "step", "step gains",
    )  # fmt: skip
    for column in columns:
        table.add_column(column, justify="right")
    console = Console(width=150)
    with tempfile.TemporaryDirectory() as folder:
        for path in options.files:
            name = next((name for name in AXES if path.name.startswith(name)), None)
            if name is None:
                parser.error(f"{path.name} begins with none of {', '.join(AXES)}")
            for batch in options.batch:
                for line in compare(catalog.load(name), path.read_text(), batch, options, Store(Path(folder))):
                    table.add_row(*line)
                    console.print(*line, markup=False)
    console.print(table)


def compare(kernel: Kernel, text: str, batch: int, options: argparse.Namespace, store: Store) -> list[list[str]]:
    """A row for each company."""
    shape = model.Shape(batch=batch, layers=options.layers, prefill=0)
    workload = Workload(axes=AXES[kernel.spec.name](batch, shape), dtype=options.dtype, devices=("cuda",))
    alone = replace(kernel, spec=kernel.spec.model_copy(update={"workloads": (workload,)}))
    times: dict[Company, tuple[float, float]] = {}
    with Evaluator(alone, "cuda", store) as evaluator:
        baseline, best = (
            evaluator.build(store.put(source)) for source in (kernel.baseline("cuda")[1].read_text(), text)
        )
        for build in (baseline, best):
            if not build.ok:
                raise SystemExit(f"it does not compile:\n{build.log}")
        with Clocks() as beside:
            for on in COMPANIES:
                times[on] = contest(evaluator, baseline, best, workload, on)
    with Clocks() as within:
        found = model.run({kernel.spec.name: (kernel.spec, baseline, best)}, shape, "cuda", dtype=options.dtype, samples=options.samples)  # fmt: skip
    step = found.steps[0]
    rows = []
    for on, gain in (("plain", step.speedup), ("pdl", step.pdl)):
        if gain is not None:
            was, now = times[on]
            saved = (step.baseline_us - step.baseline_us / gain.median) / step.calls
            rows.append([
                kernel.spec.name, str(batch), on, f"{was:.2f} -> {now:.2f}", f"{was - now:.2f}",
                beside.says, f"{saved:.2f}", within.says, f"{step.baseline_us:.0f} us", f"{gain.median:.4f} ({gain.low:.4f} to {gain.high:.4f})",
            ])  # fmt: skip
    return rows


def contest(evaluator: Evaluator, baseline: Build, best: Build, workload: Workload, on: Company) -> tuple[float, float]:
    """Microseconds a call of both, hot, in that company."""
    sides = [Side("baseline", evaluator.start(baseline)), Side("best", evaluator.start(best))]
    try:
        median = evaluator.run(evaluator.contest(workload, "hot", on), sides).median_us
        return median["baseline"], median["best"]
    finally:
        for side in sides:
            side.worker.close()


if __name__ == "__main__":
    main()
