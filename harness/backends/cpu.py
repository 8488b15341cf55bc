"""C++ by g++: one file, plain C entry points, no stream."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path

from harness.backends import ALONE, ALONE_LINKED, Compiled, form_of, is_python, run_boxed, together, with_entries
from harness.records import DeviceFacts

SUFFIX = ".cpp"
DEVICE = "cpu"
ENTRIES = True
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-Wall", "-Wno-unknown-pragmas")

AS_C = ("-x", "c", "-Wno-incompatible-pointer-types", "-Wno-discarded-qualifiers")
"""For a source whose added entries are C: pointers of the entry are the spec's types, those of the source its own structs."""


def compiler() -> str:
    return os.environ.get("CXX") or "g++"


def takes(text: str) -> bool:
    return not is_python(text) and form_of(text) == "plain"


def why_unavailable() -> str:
    if shutil.which(compiler()) is None:
        return f"{compiler()} was not found; install it (Debian, Ubuntu: apt-get install g++)"
    return ""


@functools.cache
def identity(facts: DeviceFacts) -> str:
    version = subprocess.run([compiler(), "--version"], capture_output=True, text=True, check=True).stdout
    return f"{version.splitlines()[0]} {' '.join(FLAGS)} {facts.name} {facts.architecture}"


def compile(
    source: Path, artefact: Path, facts: DeviceFacts, timeout_s: float, flags: tuple[str, ...] = (), entries: str = ""
) -> Compiled:
    text = source.read_text()
    source.write_text(with_entries(text, entries))
    added = source.read_text() != text
    alone: list[str] = []
    if added:  # what an engine marks as exported needs its other files, too
        names = "; ".join(re.findall(r"void (\w+)\(", entries))
        exported = source.with_name("entries.map")
        exported.write_text(f"{{ global: {names}; local: *; }};\n")
        alone = [*ALONE, *(f"-Wl,{flag}" for flag in ALONE_LINKED), f"-Wl,--version-script={exported}"]
    as_c = AS_C if added and 'extern "C"' not in entries else ()
    settings = [flag for flag in together(FLAGS, flags) if not as_c or not re.match(r"-std=(c|gnu)\+\+", flag)]
    # What GCC vectorised, and into how wide vectors, is what the profiler wants to know of a CPU candidate.
    command = [
        compiler(),
        *settings,
        *alone,
        *as_c,
        "-fopt-info-vec-optimized",
        "-o",
        str(artefact),
        str(source),
    ]
    code, output = run_boxed(command, source.parent, [], timeout_s)
    loops = re.findall(r":(\d+):\d+: optimized: loop vectorized using (\d+) byte vectors", output)
    log = "\n".join(line for line in output.splitlines() if ": optimized: " not in line)
    log = log.replace(f"{source.parent}/", "")
    widths = [int(width) for _, width in loops]
    resources = {
        "loops that g++ vectorised itself": str(len(loops)),
        "widest vector in them": f"{max(widths, default=0)} bytes",
    }
    return Compiled(code == 0 and artefact.exists(), log, resources if code == 0 else {})
