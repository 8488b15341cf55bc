"""Does the measure tell the truth? Kernels against themselves, and against themselves made slower on purpose.

    python -m benchmarks.comparison [--device auto|cuda|cpu] [--kernel NAME ...] [--trials 200] [--slower 3] [--slowed 10]
    python -m benchmarks.comparison --trials 7 --slowed 0 --faster 5 --slowed-baselines 10

A trial is one timed workload in one cache state, out of a whole verdict as users get it: the baseline with a comment more,
each side in a fresh process. None should be FASTER or SLOWER. Then each timed workload once more beside a file that waits
that many percent of the kernel's time (10 on a GPU below 2 us): that should be SLOWER, and never FASTER. With `--faster` the
baseline is what waits, and the kernel as it is should be FASTER. What a verdict costs stands below: seconds of wall, and of all
processors.
"""

from __future__ import annotations

import argparse
import re
import resource
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from harness import device
from harness.evaluate import Evaluator
from harness.records import Comparison, Timing
from harness.store import Store
from harness.timing import comparison, samples
from kernels import catalog
from kernels.catalog import Kernel
from kernels.spec import Device

ASTRA = ("silu_and_mul", "fused_add_rmsnorm", "merge_attn_states_lse")
CLOCK_GHZ = 1.9
"""Of an H200 or H100 under load; only how slow "slower" comes out depends on it, and that is measured."""
SMALL_US = 2.0
LOSE_TIME = {
    "cuda": """
__device__ __forceinline__ void lose_time() {{
  if (threadIdx.x == 0 && blockIdx.x == gridDim.x - 1) {{
    const long long start = clock64();
    while (clock64() - start < {cycles}LL) {{
    }}
  }}
  __syncthreads();
}}
""",
    "cpu": """
#include <chrono>
static void lose_time() {{
  const auto start = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - start < std::chrono::nanoseconds({nanoseconds})) {{
  }}
}}
""",
}
FUNCTIONS = {"cuda": r"(__global__[^{;]*\{)", "cpu": r'(extern "C" void [^{;]*\{)'}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--kernel", action="append", default=[], help="repeatable (Astra's three)")
    parser.add_argument("--dtype", default="", help="(float16 on a GPU, float32 on a CPU)")
    parser.add_argument("--trials", type=int, default=200, help="against itself, all kernels together (200)")
    parser.add_argument("--slower", type=float, default=3.0, help="percent (3)")
    parser.add_argument("--slowed", type=int, default=10, help="trials of each slowed workload and cache state (10)")
    parser.add_argument("--faster", type=float, default=5.0, help="percent that a baseline waits (5)")
    parser.add_argument("--slowed-baselines", type=int, default=0, help="trials of each of those (0)")
    parser.add_argument("--from-us", type=float, default=0.0, help="slow down only workloads that take so long (0)")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no verdict after so many")
    options = parser.parse_args()
    on, _ = device.choose(options.device)
    dtype = options.dtype or ("float16" if on == "cuda" else "float32")
    kernels = [catalog.load(name) for name in options.kernel or ASTRA]
    late = time.monotonic() + options.seconds
    console = Console(width=170)
    itself: dict[str, list[Timing]] = {kernel.spec.name: [] for kernel in kernels}
    table = make_slowed_table(f"made slower, {device.facts(on).name}")
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        number = 0
        while sum(map(len, itself.values())) < options.trials and time.monotonic() < late:
            number += 1
            for kernel in (one for one in kernels if time.monotonic() < late):
                itself[kernel.spec.name] += verdicts(kernel, on, dtype, store, f"\n// twin {number}\n")
        console.print(against_itself(itself, f"against itself, {device.facts(on).name}"))
        for kernel in kernels:
            for waits, percent, trials in (
                ("candidate", options.slower, options.slowed),
                ("baseline", options.faster, options.slowed_baselines),
            ):
                if trials and time.monotonic() < late:
                    slow_down(
                        kernel,
                        on,
                        dtype,
                        store,
                        itself[kernel.spec.name],
                        waits,
                        percent,
                        trials,
                        table,
                        late,
                        options.from_us,
                    )
    console.print(table)


def verdicts(
    kernel: Kernel, on: Device, dtype: str, store: Store, more: str, *, slow_us: float = 0.0, waits: str = "candidate"
) -> list[Timing]:
    """The timings of one verdict on the baseline with `more` text, all processes fresh; what `waits` does so `slow_us` a call."""
    text = kernel.baseline(on)[1].read_text()
    prelude = LOSE_TIME[on].format(cycles=int(slow_us * CLOCK_GHZ * 1e3), nanoseconds=int(slow_us * 1e3))
    slow = prelude + re.sub(FUNCTIONS[on], r"\1 lose_time();", text) if slow_us else text
    candidate, baseline = (text, slow) if waits == "baseline" else (slow, text)
    wall, began = time.perf_counter(), used_s()
    with Evaluator(kernel, on, store, dtypes=(dtype,)) as evaluator:
        judged = evaluator.verify(evaluator.build(store.put(candidate + more)))
        built = time.perf_counter(), used_s()
        measured = evaluator.measure(judged, baseline=store.put(baseline)) if judged.passed else judged
        now = time.perf_counter(), used_s()
    if not measured.passed:
        raise SystemExit(f"{kernel.spec.name}: {measured.outcome}: {measured.reason}")
    said = Counter(str(timing.comparison) for timing in measured.timings)
    cost = f"verified {built[0] - wall:.1f} s, {built[1] - began:.1f} s of CPU; timed {now[0] - built[0]:.1f} s, {now[1] - built[1]:.1f} s of CPU"
    print(f"{kernel.spec.name}{more.strip().replace('//', ',')}: {dict(said)}; {cost}", file=sys.stderr)
    wrong = [] if slow_us else [t for t in measured.timings if t.comparison in (Comparison.FASTER, Comparison.SLOWER)]
    for timing in wrong:
        taken = samples.load(store, measured.candidate, timing.workload, timing.cache, timing.company)
        print(samples.as_csv([taken] if taken else []), file=sys.stderr)
    return list(measured.timings)


def used_s() -> float:
    """Seconds of processor time of this process and of those of its children that have ended."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def slow_down(
    kernel: Kernel, on: Device, dtype: str, store: Store, known: list[Timing], waits: str, percent: float, trials: int,
    table: Table, late: float, from_us: float,
) -> None:  # fmt: skip
    """One row for each timed workload that takes so long, and cache state: how often it was found out which file waits."""
    margin = comparison.MARGIN[on]
    for workload in [w for w in kernel.spec.suite(on, held_out=False) if w.timed and w.dtype == dtype]:
        us = statistics.median(t.baseline_us for t in known if t.workload == workload)
        if us < from_us:
            continue
        share = 10.0 if on == "cuda" and us < SMALL_US else percent
        alone = replace(kernel, spec=kernel.spec.model_copy(update={"workloads": (workload,)}))
        found: dict[str, list[Timing]] = {}
        for number in range(trials):
            if time.monotonic() > late:
                break
            more = f"\n// {waits} waits, {workload.label}, {number}\n"
            for timing in verdicts(alone, on, dtype, store, more, slow_us=us * share / 100, waits=waits):
                found.setdefault(timing.cache, []).append(timing)
        right, wrong = Comparison.SLOWER, Comparison.FASTER
        if waits == "baseline":
            right, wrong = wrong, right
        for cache, timings in found.items():
            said = Counter(timing.comparison for timing in timings)
            middle = statistics.median(timing.speedup.median for timing in timings)
            real = " (within the margin)" if abs(middle - 1) < margin else ""
            table.add_row(
                kernel.spec.name, workload.label, cache, f"{us:.2f}", f"the {waits}, {share:g} %", f"{middle:.4f}{real}",
                f"{said[right]} of {len(timings)} {right}", f"{said[wrong]} {wrong}",
            )  # fmt: skip


def against_itself(itself: dict[str, list[Timing]], title: str) -> Table:
    table = Table(title=title)
    for column in ("kernel", "trials", *Comparison, "distance from 1: median", "95 %", "largest", "interval's width"):
        table.add_column(str(column), justify="right")
    for name, timings in [*itself.items(), ("all", [t for some in itself.values() for t in some])]:
        said = Counter(timing.comparison for timing in timings)
        away = sorted(abs(timing.speedup.median - 1) for timing in timings)
        widths = [timing.speedup.high - timing.speedup.low for timing in timings]
        table.add_row(
            name, str(len(timings)), *(str(said[word]) for word in Comparison), f"{statistics.median(away):.2%}",
            f"{away[int(0.95 * (len(away) - 1))]:.2%}", f"{away[-1]:.2%}", f"{statistics.median(widths):.2%}",
        )  # fmt: skip
        for timing in timings if name != "all" else []:
            if timing.comparison in (Comparison.FASTER, Comparison.SLOWER):
                what = f"{name}, {timing.workload.label}, {timing.cache}, {timing.time_us:.2f} us"
                interval = f"{timing.speedup.median:.3f}x {timing.speedup.low:.3f} to {timing.speedup.high:.3f}"
                table.caption = f"{table.caption or ''}{timing.comparison}: {what}: {interval}\n"
    return table


def make_slowed_table(title: str) -> Table:
    table = Table(title=title)
    for column in ("kernel", "workload", "cache", "us", "waits", "median ratio", "found", "wrong"):
        table.add_column(column, justify="right")
    return table


if __name__ == "__main__":
    main()
