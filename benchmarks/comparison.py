"""Does the comparison tell the truth? The baseline against itself, and against itself made slower on purpose.

    python -m benchmarks.comparison [--device auto|cuda|cpu] [--company plain|pdl|alone] [--trials 100] [--slower 3]

Each trial starts two fresh workers and measures one workload as the measure gate does, between neighbours of that kind. A/A should hardly ever say
FASTER or SLOWER; a kernel that is made slower should never be called FASTER.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from harness import comparison, device
from harness.evaluate import Evaluator
from harness.records import Build, Cache, Company, Comparison, Interval
from harness.store import Store
from harness.timing import Side
from kernels import catalog
from kernels.spec import Workload

# The added work waits for a share of the kernel's own time, given at run time through the environment of the build.
SLOWED = {
    "cuda": """
__global__ void wait_kernel(long long cycles) {{
  const long long start = clock64();
  while (clock64() - start < cycles) {{
  }}
}}
extern "C" void silu_and_mul_float32(const float* input, float* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {{
  original_float32(input, out, tokens, hidden, stream);
  wait_kernel<<<1, 1, 0, stream>>>({cycles}LL);
}}
""",
    "cpu": """
#include <chrono>
extern "C" void silu_and_mul_float32(const float* input, float* out, int64_t tokens, int64_t hidden) {{
  original_float32(input, out, tokens, hidden);
  const auto start = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - start < std::chrono::nanoseconds({nanoseconds})) {{
  }}
}}
""",
}
AXES = {"cuda": {"tokens": 4096, "hidden": 8192}, "cpu": {"tokens": 32, "hidden": 4096}}
CLOCK_GHZ = 1.98  # an H200's under load; only how slow "slower" comes out depends on it, and that is measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--slower", type=float, default=3.0, help="percent (default 3)")
    parser.add_argument("--cache", choices=("cold", "hot"), default="cold")
    parser.add_argument("--company", choices=("plain", "pdl", "alone"), default="plain")
    options = parser.parse_args()
    on, _ = device.choose(options.device)
    if on == "cpu" and options.company != "plain":
        parser.error("--company needs a GPU: on a CPU nothing is launched around a call")
    console = Console()
    workload = Workload(axes=AXES[on], dtype="float32", devices=(on,))
    kernel = catalog.load("silu_and_mul")
    kernel = replace(kernel, spec=kernel.spec.model_copy(update={"workloads": (workload,)}))
    with tempfile.TemporaryDirectory() as folder, Evaluator(kernel, on, Store(Path(folder))) as evaluator:
        text = kernel.baseline(on)[1].read_text()
        plain = evaluator.build(evaluator.store.put(text))
        alone = evaluator.measure(evaluator.verify(plain), baseline=plain.candidate)
        us = alone.timings[0].time_us
        wait_us = us * options.slower / 100 - (1.0 if on == "cuda" else 0.0)  # a launch of its own costs about 1 us
        body = SLOWED[on].format(cycles=int(wait_us * CLOCK_GHZ * 1e3), nanoseconds=int(wait_us * 1e3))
        slowed = evaluator.build(evaluator.store.put(text.replace("silu_and_mul_float32", "original_float32") + body))
        if not slowed.ok:
            raise SystemExit(f"the slowed kernel does not compile:\n{slowed.log}")
        table = Table(
            title=f"{evaluator.facts.name}: {workload.label}, {options.cache}, {options.company}, {us:.1f} us, {options.trials} trials"
        )
        for column in ("contest", "median ratio", *Comparison):
            table.add_column(str(column), justify="right")
        for name, candidate in (("against itself", plain), (f"{options.slower:g} % slower", slowed)):
            found = [
                trial(evaluator, plain, candidate, workload, options.cache, options.company)
                for _ in track(range(options.trials), name, console=Console(stderr=True))
            ]
            said = Counter(comparison.compare(interval, comparison.MARGIN[on]) for interval in found)
            middle = sorted(interval.median for interval in found)[len(found) // 2]
            table.add_row(name, f"{middle:.4f}", *(str(said[word]) for word in Comparison))
        console.print(table)


def trial(evaluator: Evaluator, one: Build, other: Build, workload: Workload, cache: Cache, on: Company) -> Interval:
    """The speedup of `other` over `one`, each in a fresh worker, in that company."""
    sides = [Side("one", evaluator.start(one)), Side("other", evaluator.start(other))]
    try:
        contest = evaluator.contest(workload, cache, on)
        return evaluator.run(contest, sides, check=("other",)).speedup("other")
    finally:
        for side in sides:
            side.worker.close()


if __name__ == "__main__":
    main()
