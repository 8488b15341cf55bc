"""Which lines of the source the warps waited at, and for what: Nsight Compute's samples of a call at the largest workload.

ncu gives samples by instruction; nvdisasm says which line each instruction came from (nvcc's -lineinfo). The two are put
together by the instructions themselves. Runs as ncu.py does, and advises only, as it does.
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.probes import ncu, sass
from harness.processes.toolbox import ToolboxUnavailable
from harness.records import Build, DeviceFacts
from kernels.spec import Spec, Workload

NEEDS_CALLS = True
DEVICE = "cuda"
AFTER = "ncu"
OPTIONS = ("--page", "source", "--print-source", "sass", "--section", "SourceCounters")
SAMPLES = "Warp Stall Sampling (All Samples)"
LINES, REASONS = 8, 3
"""The most that are told of: lines of a kernel, and reasons of a line."""
MOST_ROWS = 200_000
_FILE = re.compile(r'^\s*//## File "(?P<file>[^"]*)", line (?P<line>\d{1,7})')
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?P<text>.*?)\s*;")


@dataclass
class StallSamples:
    """One launch: of each instruction its opcode and how often a warp was seen waiting there, by reason."""

    kernel: str
    opcodes: list[str] = field(default_factory=list)
    samples: list[float] = field(default_factory=list)
    reasons: list[dict[str, float]] = field(default_factory=list)


def read(build: Build, facts: DeviceFacts, spec: Spec, workloads: Sequence[Workload]) -> dict[str, str]:
    """Stalls of the kernels in calls of the last of `workloads`."""
    tool = ncu.find_usable(build, facts)
    if isinstance(tool, str):
        return {"unavailable": tool}
    try:
        text, ran = ncu.collect(tool, OPTIONS, spec, build, workloads[-1], facts.device)
        launches = parse_launches(text)
        if not launches:
            return {"unavailable": ncu.why_nothing(text, ran)}
        listing = sass.disassemble(build, lines=True)
    except (ToolboxUnavailable, sass.ToolFailed) as error:
        return {"unavailable": str(error)}
    source = Path(build.artefact).with_name("candidate.cu")
    rows = source.read_text().splitlines() if source.is_file() else []
    longest = max(launches, key=lambda launch: sum(launch.samples))
    return {"workload": workloads[-1].label} | summarise(longest, lines_of(listing, longest.opcodes), rows)


def parse_launches(text: str) -> list[StallSamples]:
    """The launches in ncu's `--csv --page source`: a row with the kernel's name, a header, then a row an instruction."""
    found: list[StallSamples] = []
    header: list[str] = []
    try:
        for row in csv.reader(text.splitlines()[:MOST_ROWS]):
            if row[:1] == ["Kernel Name"] and len(row) > 1:
                found.append(StallSamples(row[1]))
                header = []
            elif found and "Source" in row and SAMPLES in row:
                header = row
            elif header and len(row) == len(header) and row[header.index("Source")].strip():
                values = dict(zip(header, row, strict=True))
                found[-1].opcodes.append(opcode(values["Source"]))
                found[-1].samples.append(_count(values[SAMPLES]))
                stalls = {name: _count(value) for name, value in values.items() if _is_reason(name)}
                found[-1].reasons.append({name.removeprefix("stall_"): n for name, n in stalls.items() if n})
    except csv.Error:  # not what ncu writes
        return []
    return [launch for launch in found if sum(launch.samples)]


def _is_reason(name: str) -> bool:
    """`stall_selected` is no wait, and of some versions each reason stands there again, for what was not issued."""
    return name.startswith("stall_") and name != "stall_selected" and "issued" not in name.lower()


def _count(text: str) -> float:
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return 0.0
    return value if math.isfinite(value) and value > 0 else 0.0


def opcode(text: str) -> str:
    """`@!P0 LDG.E R2, ...` -> `LDG.E`."""
    words = text.replace(";", " ").split()
    return next((word for word in words if not word.startswith("@")), "")


def lines_of(listing: str, opcodes: Sequence[str]) -> list[int]:
    """For each instruction its line in the candidate's file, 0 where it has none; [] where no function has these opcodes.

    Of what was inlined it is the innermost line that is the candidate's own.
    """
    wanted = _without_padding(opcodes)
    for function in listing.split("\t.section\t.text.")[1:]:
        line, known, found = 0, False, list[tuple[str, int]]()
        for row in function.splitlines():
            if place := _FILE.match(row):
                if not known:
                    line = 0
                if not line and Path(place["file"]).name == "candidate.cu":
                    line = int(place["line"])
                known = True
            elif instruction := _INSTRUCTION.match(row):
                known = False
                found.append((opcode(instruction["text"]), line))
        if _without_padding([name for name, _ in found]) == wanted:
            return [line for _, line in found][: len(wanted)]
    return []


def _without_padding(opcodes: Sequence[str]) -> list[str]:
    end = len(opcodes)
    while end and opcodes[end - 1] == "NOP":
        end -= 1
    return list(opcodes[:end])


def summarise(launch: StallSamples, lines: Sequence[int], source: Sequence[str]) -> dict[str, str]:
    """The lines with the most samples, or the instructions where their lines are not known."""
    total, by = sum(launch.samples), dict[str, float]()
    reasons: dict[str, Counter[str]] = {}
    for at, (name, count) in enumerate(zip(launch.opcodes, launch.samples, strict=True)):
        line = lines[at] if at < len(lines) else 0
        text = source[line - 1].strip()[:80] if 0 < line <= len(source) else ""
        place = f"line {line} {text}".strip() if line else f"instruction {at + 1} {name}"
        by[place] = by.get(place, 0) + count
        reasons.setdefault(place, Counter()).update(launch.reasons[at])
    readings = {"kernel": launch.kernel[:80], "samples": f"{total:.0f}"}
    for place, count in sorted(by.items(), key=lambda item: item[1], reverse=True)[:LINES]:
        said = [f"{name} {n / count:.0%}" for name, n in reasons[place].most_common(REASONS)]
        readings[place] = f"{count / total:.0%} of the samples" + (f": {', '.join(said)}" if said else "")
    return readings
