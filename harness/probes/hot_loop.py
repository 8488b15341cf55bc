"""Where a CPU build spends its time: samples of a timer of our own while it is called at the largest workload, and the machine
code of the loops that have most of them, with its vector width and how many chains of dependent operations run side by side.

Instructions, cycles and cache misses of the calls where the machine has counters that may be read, which virtual machines and containers
mostly lack. Advises only: the candidate shares a process with the timer.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import backends
from harness.backends import run_boxed
from harness.farside import counted
from harness.judge import staging
from harness.probes.assembly import mix, shorten_name
from harness.records import Build, DeviceFacts
from kernels.spec import Spec, Workload

NEEDS_CALLS = True
DEVICE = "cpu"
SAMPLER = Path(__file__).with_name("sampler.cpp")
EVENTS = {"instructions": (0, 1), "cycles": (0, 0), "L1 data misses": (3, 1 << 16), "last-level cache misses": (0, 3)}
"""Types and configs of perf_event_open(2): loads that missed L1, and what missed the last cache."""
CALLING_S, BOX_S = 2.0, 30.0
SHARE, MOST_LOOPS = 0.15, 2
"""Share of the hottest function's samples that a loop needs, and the number of loops shown (upper bound)."""
WORTH, MOST_OTHERS = 0.02, 3
"""Share of all samples that a function or a library needs to be named, and the number of functions beside the hottest (upper bound)."""
SHOWN = 40
_LINE = re.compile(r"^\s+([0-9a-f]+):\t(\S+)\s*(.*)$")
_FUNCTION = re.compile(r"^[0-9a-f]+ <(.+)>:$")
_TARGET = re.compile(r"^([0-9a-f]+)\b")
_ACCUMULATES = re.compile(r"^v?(add|sub|mul|max|min|fn?m(add|sub)\d+)[ps][sdh]$|^vp(add|max|min)")
_VECTOR = re.compile(r"%([xyz]mm\d+)")


@dataclass(frozen=True)
class Instruction:
    at: int
    name: str
    operands: str


def read(build: Build, facts: DeviceFacts, spec: Spec, workloads: Sequence[Workload]) -> dict[str, str]:
    """The hottest loop in calls of the last of `workloads`."""
    if facts.device != "cpu" or platform.machine() != "x86_64":
        return {"unavailable": "machine code of x86-64 only"}
    if not build.ok or not build.artefact.endswith(".so") or getattr(backends.get(build.backend), "PYTHON_SIDE", False):
        return {"unavailable": "it is not called through a plain C entry"}
    tools = {name: shutil.which(name) for name in ("objdump", "g++")}
    if lacking := [name for name, path in tools.items() if path is None]:
        return {"unavailable": f"{' and '.join(lacking)} not found"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = ["g++", "-O2", "-shared", "-fPIC", str(SAMPLER), "-o", str(folder / "sampler.so")]
        code, said = run_boxed(made, folder, ["/usr", str(SAMPLER)], BOX_S)
        if not code:
            command = [*staging.stage_on_cpu(spec, build, workloads[-1], folder), str(CALLING_S)]
            events = [f"{name}={kind}:{config}" for name, (kind, config) in EVENTS.items()]
            outside = [sys.executable, "-I", "-S", str(Path(counted.__file__).absolute()), *events, "--"]
            code, said = run_boxed(command, folder, ["/usr"], BOX_S, outside=outside)
        if code:
            return {"unavailable": f"it could not be sampled: {(said.strip().splitlines() or ['no word'])[-1][:200]}"}
        listing = ["objdump", "-d", "--demangle", "--no-show-raw-insn", "-j", ".text", "candidate.so"]
        code, text = run_boxed(listing, folder, ["/usr"], BOX_S)
    try:
        found = json.loads(said.strip().splitlines()[-1])
        inside = Counter({int(at): int(count) for at, count in found["inside"].items()})
        elsewhere = Counter({str(name): int(count) for name, count in found["outside"].items()})
        counters = describe_counters(found["counters"], int(found["calls"]))
    except (ValueError, LookupError, TypeError, AttributeError):  # the candidate wrote in its place
        return {"unavailable": "the samples cannot be read"}
    return {"workload": workloads[-1].label} | counters | summarise(text if not code else "", inside, elsewhere)


def why_not_counted() -> str:
    """Why this machine's cache misses cannot be counted, one clause; "" where they can."""
    found = counted.count(*EVENTS["last-level cache misses"])
    if isinstance(found, str):
        return found
    os.close(found)
    return ""


def describe_counters(found: Mapping[str, int | str], calls: int) -> dict[str, str]:
    """What the calls took by the machine's counters, and which of them it lacks; `run.py doctor` says why."""
    said = {
        f"{name} a call": f"{count / max(calls, 1):,.0f}" for name, count in found.items() if isinstance(count, int)
    }
    lacking = [name for name, count in found.items() if not isinstance(count, int)]
    if lacking and not said:
        return {"hardware counters": "none can be read on this machine"}
    return said | ({"not to be counted here": ", ".join(lacking)} if lacking else {})


def summarise(listing: str, inside: Counter[int], outside: Counter[str]) -> dict[str, str]:
    """Summary of samples by offset and of a disassembly as objdump prints it. An offset may be the instruction after the one
    that waited."""
    total = inside.total() + outside.total()
    if not total:
        return {"unavailable": "no sample was taken"}
    said = {"samples": f"{total}, one each millisecond of CPU time"}
    if far := [(name, count) for name, count in outside.most_common(3) if count >= WORTH * total]:
        said["outside of the candidate"] = ", ".join(f"{name} {count / total:.0%}" for name, count in far)
        if any("libgomp" in name for name, _ in far):
            said["outside of the candidate"] += " (in libgomp: threads that wait for work or for one another)"
    functions = parse_listing(listing)
    by_function = {name: sum(inside[one.at] for one in code) for name, code in functions.items()}
    if not any(by_function.values()):
        return said
    name, *others = sorted(by_function, key=by_function.__getitem__, reverse=True)
    working = total - sum(count for library, count in outside.items() if "libgomp" in library)

    def share(samples: int) -> str:
        more = f", {samples / working:.0%} of those outside of libgomp" if working < total else ""
        return f"{samples / total:.0%} of the samples{more}"

    said["hottest function"] = f"{shorten_name(name)}: {share(by_function[name])}"
    if more := [other for other in others[:MOST_OTHERS] if by_function[other] >= WORTH * total]:
        beside = {
            one: f" ({by_function[one] / working:.0%} outside of libgomp)" if working < total else "" for one in more
        }
        said["other functions"] = ", ".join(
            f"{shorten_name(one)} {by_function[one] / total:.0%}{beside[one]}" for one in more
        )
    for number, loop in enumerate(hot_loops(functions[name], inside), 1):
        said[f"loop {number}"] = f"{share(sum(inside[one.at] for one in loop))}, {len(loop)} instructions"
        said[f"loop {number} has"] = ", ".join(
            f"calls of {count}" if what == "calls" else f"{count} {what}" for what, count in _mix(loop).items()
        )
        if chains := accumulators(loop):
            wait = ": each operation waits for the one before" if len(chains) == 1 else ""
            said[f"loop {number} accumulates in"] = f"{len(chains)} registers ({', '.join(chains[:8])}){wait}"
        for one in loop[:SHOWN]:
            samples = f"{inside[one.at] / total:.0%} " if inside[one.at] else ""
            said[f"loop {number} {one.at:x}"] = f"{samples}{one.name} {one.operands}".strip()
    return said


def parse_listing(listing: str) -> dict[str, list[Instruction]]:
    found: dict[str, list[Instruction]] = {}
    here: list[Instruction] | None = None
    for row in listing.splitlines():
        if named := _FUNCTION.match(row):
            here = found.setdefault(named[1], [])
        elif here is not None and (line := _LINE.match(row)):
            here.append(Instruction(int(line[1], 16), line[2], line[3]))
    return found


def hot_loops(code: Sequence[Instruction], samples: Counter[int]) -> list[Sequence[Instruction]]:
    """The innermost loops with SHARE or more of the function's samples, the hottest first; all of it where there is none."""
    places = {one.at: at for at, one in enumerate(code)}
    loops = []
    for last, one in enumerate(code):
        target = _TARGET.match(one.operands) if one.name.startswith("j") else None
        first = places.get(int(target[1], 16)) if target else None
        cold = first is not None and any(
            each.name.startswith("ret") for each in code[first:last]
        )  # behind the function's end
        if first is not None and first <= last and not cold:
            loops.append((first, last))
    innermost = [one for one in loops if not any(one[0] <= o[0] and o[1] <= one[1] for o in loops if o != one)]
    counted = {one: sum(samples[each.at] for each in code[one[0] : one[1] + 1]) for one in innermost}
    least = SHARE * sum(samples[one.at] for one in code)
    hot: list[tuple[int, int]] = []
    for start, end in sorted((one for one in innermost if counted[one] >= least), key=lambda one: -counted[one]):
        # Two jumps back into one body make loops that share most of their instructions: they are shown once.
        if all(end < first or last < start for first, last in hot):
            hot.append((start, end))
    return [code[first : last + 1] for first, last in hot[:MOST_LOOPS]] or [code]


def accumulators(loop: Sequence[Instruction]) -> list[str]:
    """Vector registers that an addition, a product or a comparison of the loop both reads and writes."""
    found = []
    for one in loop:
        registers = _VECTOR.findall(one.operands)
        kept = registers and (registers[-1] in registers[:-1] or "fm" in one.name or not one.name.startswith("v"))
        written = sum(_VECTOR.findall(each.operands)[-1:] == registers[-1:] for each in loop)
        if _ACCUMULATES.match(one.name) and kept and written == 1:
            found.append(registers[-1])
    return list(dict.fromkeys(found))


def _mix(loop: Sequence[Instruction]) -> dict[str, str]:
    return mix("\n".join(f"  {one.at:x}:\t{one.name} {one.operands}" for one in loop))
