"""Nsight Compute's counters of a build at its smallest and its largest timed workload: what the memory, the
multiprocessors and the warps did, and what the warps waited for.

Runs the candidate in the tools' box (harness/processes/toolbox.py), without sudo; where the driver keeps the counters for
administrators, the probe says so. A candidate could forge them: they advise a planner, and decide nothing.
"""

from __future__ import annotations

import csv
import math
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from harness.device import cuda_home
from harness.judge import staging
from harness.processes.toolbox import Ran, Toolbox, ToolboxUnavailable
from harness.records import Build, DeviceFacts
from kernels.spec import Frozen, Spec, Workload

NEEDS_CALLS = True
DEVICE = "cuda"
SECONDS = 30.0
"""Of one call under the tool, which takes it some seconds; where other tools hold the device's counters it waits for them."""

PATIENCE_S = 300.0
"""After a call that was ended for its time no other is begun for so long: each round of a run would wait again."""
_busy_until = 0.0  # by time.monotonic

# What a reading is called -> the counter, a name that holds from Volta on. The order is that of the readings.
METRICS = {
    "microseconds": "gpu__time_duration.sum",
    "DRAM throughput %": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "SM throughput %": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "issue slots busy %": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "tensor cores busy %": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "occupancy %": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "theoretical occupancy %": "sm__maximum_warps_per_active_cycle_pct",
    "registers a thread": "launch__registers_per_thread",
    "waves": "launch__waves_per_multiprocessor",
    "L1 hit %": "l1tex__t_sector_hit_rate.pct",
    "L2 hit %": "lts__t_sector_hit_rate.pct",
    "DRAM bytes read": "dram__bytes_read.sum",
    "DRAM bytes written": "dram__bytes_write.sum",
}
STALLS = (
    "barrier", "branch_resolving", "dispatch_stall", "drain", "gmma", "imc_miss", "lg_throttle", "long_scoreboard", "math_pipe_throttle",
    "membar", "mio_throttle", "no_instruction", "not_selected", "short_scoreboard", "sleeping", "tex_throttle", "wait",
)  # fmt: skip
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
NANOSECONDS = {"ns": 1.0, "nsecond": 1.0, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6, "s": 1e9, "second": 1e9}
"""`--print-units base` asks for the first; the spelling depends on the version."""
LAUNCHES = 16
"""Kernels that are looked at, of all calls together: each is replayed once for every few counters."""


class Profile(Frozen):
    """One launch: the counters by their own names, as numbers in the tool's base units."""

    kernel: str
    grid: str = ""
    block: str = ""
    counters: dict[str, float]

    @property
    def nanoseconds(self) -> float:
        return self.counters.get(METRICS["microseconds"], 0.0)


def find() -> Path | None:
    """ncu of the PATH, of the CUDA toolkit, or of its own package."""
    home = cuda_home()
    on_path = shutil.which("ncu")
    places = [Path(on_path)] if on_path else []
    places += [home / "bin" / "ncu"] if home else []
    places += sorted(Path("/opt/nvidia/nsight-compute").glob("*/ncu"), reverse=True)
    return next((place for place in places if place.is_file()), None)


def read(build: Build, facts: DeviceFacts, spec: Spec, workloads: Sequence[Workload]) -> dict[str, str]:
    """`workloads`: one call is profiled of each; readings are named after their place among them."""
    tool = find_usable(build, facts)
    if isinstance(tool, str):
        return {"unavailable": tool}
    readings: dict[str, str] = {}
    for name, workload in zip(_places(len(workloads)), workloads, strict=True):
        try:
            told_of = summarise(workload, _run(tool, spec, build, workload, facts.device))
        except ToolboxUnavailable as error:
            if not readings:
                return {"unavailable": str(error)}
            told_of = {"unavailable": str(error)}  # such as memory for the largest
        readings |= {f"{name}{key}": value for key, value in told_of.items()}
    return readings


def find_usable(build: Build, facts: DeviceFacts) -> Path | str:
    """The tool, or why this build cannot be watched by it, one clause."""
    if facts.device != "cuda":
        return "counters of an NVIDIA GPU only"
    if (tool := find()) is None:
        return "ncu was not found (it comes with the CUDA toolkit, as Nsight Compute)"
    return staging.why_not(build) or tool


def _places(count: int) -> list[str]:
    return [""] if count == 1 else ["small: ", *(f"{n}: " for n in range(2, count)), "large: "]


def _run(tool: Path, spec: Spec, build: Build, workload: Workload, on: str) -> list[Profile]:
    """Raises Unavailable with the tool's own words where it gave no counters."""
    wanted = ",".join([*METRICS.values(), *(STALL.format(name) for name in STALLS)])
    options = ["--page", "raw", "--print-units", "base", "--metrics", wanted]
    text, ran = collect(tool, options, spec, build, workload, on)
    launches = profiles(text)
    if not launches:
        raise ToolboxUnavailable(why_nothing(text, ran))
    return launches


def collect(
    tool: Path, options: Sequence[str], spec: Spec, build: Build, workload: Workload, on: str
) -> tuple[str, Ran]:
    """The table that ncu writes with those options of one call in the tools' box, and how it ended. Raises Unavailable."""
    table = ["--csv", "--log-file", "counters.csv", *options]
    text, ran = _called(tool, table, "counters.csv", spec, build, workload, on)
    return text.decode(errors="replace"), ran


def report(build: Build, facts: DeviceFacts, spec: Spec, workload: Workload) -> bytes:
    """One call as a file for Nsight Compute's window (.ncu-rep). Raises ToolboxUnavailable with what stands in its way."""
    tool = find_usable(build, facts)
    if isinstance(tool, str):
        raise ToolboxUnavailable(tool)
    options = ["--set", "detailed", "--export", "profile"]
    made, ran = _called(tool, options, "profile.ncu-rep", spec, build, workload, facts.device)
    if not made:
        raise ToolboxUnavailable(why_nothing("", ran))
    return made


def _called(
    tool: Path, options: Sequence[str], file: str, spec: Spec, build: Build, workload: Workload, on: str
) -> tuple[bytes, Ran]:
    """That file as ncu left it, and how it ended."""
    global _busy_until
    if time.monotonic() < _busy_until:
        raise ToolboxUnavailable(f"ncu took longer than {SECONDS:g} s a short while ago: others may hold the counters")
    # Clocks are left as they are, since other work may be timed; the cache is flushed before each replay.
    common = ["--clock-control", "none", "--launch-count", str(LAUNCHES)]
    with Toolbox() as box:
        staged = staging.stage(spec, build, [workload], on, box.scratch)
        readable = [*staged.readable, str(tool), str(tool.resolve().parent)]
        ran = box.run([str(tool), *common, *options, *staged.command], readable=readable, seconds=SECONDS)
        if ran.killed:
            _busy_until = time.monotonic() + PATIENCE_S
        return box.read_bytes(file), ran


def profiles(text: str) -> list[Profile]:
    """The launches in ncu's `--csv --page raw`: a header, a line of units, then a line a launch; `==` lines are talk."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    try:
        rows = list(csv.reader(lines[: 2 + LAUNCHES]))
    except csv.Error:  # not what ncu writes
        return []
    if not rows or "Kernel Name" not in rows[0]:
        return []
    header = rows[0]
    units: dict[str, str] = {}
    found: list[Profile] = []
    for row in rows[1:]:
        values = dict(zip(header, row, strict=False))
        if not values.get("ID") or "Kernel Name" not in values:
            units = values
            continue
        counters = {name: n for name in header if "__" in name and (n := _number(values.get(name, ""))) is not None}
        time = METRICS["microseconds"]
        if time in counters:
            counters[time] *= NANOSECONDS.get(units.get(time, "ns"), 1.0)
        grid, block = values.get("Grid Size", ""), values.get("Block Size", "")
        found.append(Profile(kernel=values["Kernel Name"], grid=grid, block=block, counters=counters))
    return found


def _number(text: str) -> float | None:
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None  # `n/a`, or a counter that this chip does not have
    return value if math.isfinite(value) else None


def why_nothing(text: str, ran: Ran) -> str:
    """ncu's own complaint, one line."""
    if ran.killed:
        return f"ncu {ran.killed}"
    talk = f"{text}\n{ran.output}".splitlines()
    said = [line.partition("== ")[2] for kind in ("==ERROR==", "==WARNING==") for line in talk if line.startswith(kind)]
    if any("ERR_NVGPUCTRPERM" in line for line in said):
        return "the driver keeps the GPU's counters for administrators (ERR_NVGPUCTRPERM)"
    last = [line.strip() for line in ran.output.splitlines() if line.strip() and not line.startswith("==PROF==")][-1:]
    return f"ncu ended with status {ran.code}: {(said or last or ['it said nothing'])[0][:300]}"


def summarise(workload: Workload, launches: Sequence[Profile]) -> dict[str, str]:
    """The longest launch of one call, as readings."""
    longest = max(launches, key=lambda launch: launch.nanoseconds)
    readings = {"workload": workload.label, "launches": str(len(launches))}
    readings["kernel"] = f"{longest.kernel[:80]} grid {longest.grid} block {longest.block}"
    for name, counter in METRICS.items():
        if counter in longest.counters:
            value = longest.counters[counter] * (1e-3 if name == "microseconds" else 1.0)
            readings[name] = f"{value:.0f}" if value >= 1000 else f"{value:.4g}"
    stalls = {name: longest.counters.get(STALL.format(name), 0.0) for name in STALLS}
    worst = sorted(stalls, key=lambda name: -stalls[name])[:4]
    waits = [f"{name} {stalls[name]:.1f}" for name in worst if stalls[name] >= 0.1]
    if waits:
        readings["warps waiting, for each that issues"] = ", ".join(waits)
    return readings
