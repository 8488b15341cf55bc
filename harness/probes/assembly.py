"""The instruction mix of a CPU build's machine code: how wide its vector instructions are, by whoever vectorised them.

g++ reports the loops that it vectorised itself, and so says 0 of loops that were written in intrinsics. Static counts over
the whole library, not weighted by how often an instruction runs.
"""

from __future__ import annotations

import platform
import re
import shutil
import tempfile
from collections import Counter
from pathlib import Path

from harness.backends import run_boxed
from harness.records import Build, DeviceFacts

DEVICE = "cpu"
SECONDS = 60.0
_INSTRUCTION = re.compile(r"^\s+[0-9a-f]+:\t(?P<name>[a-z][a-z0-9.]*)\s*(?P<operands>.*)$")
_REGISTER = re.compile(r"%([xyz])mm\d+")
_TARGET = re.compile(r"^[0-9a-f]+ <(?P<name>.+?)(?:@plt|\+0x[0-9a-f]+)*>$")
STUBS = ("__cxa_finalize", "deregister_tm_clones", "register_tm_clones", "__gmon_start__")
"""What every library of g++ calls where it is loaded and unloaded."""
MOST_CALLED, NAME_CHARS = 6, 60
_WIDTHS = {"x": 16, "y": 32, "z": 64}
_SCALAR = re.compile(r"(?:ss|sd|sh)$")  # addss, vfmadd231sd: one element of a vector register


def read(build: Build, facts: DeviceFacts) -> dict[str, str]:
    if facts.device != "cpu" or not build.artefact.endswith(".so") or platform.machine() != "x86_64":
        return {"unavailable": "machine code of x86-64 only"}
    tool = shutil.which("objdump")
    if tool is None:
        return {"unavailable": "objdump was not found (it comes with binutils)"}
    with tempfile.TemporaryDirectory() as scratch:
        # The file is hostile input to the tool, so it runs in the compilers' box.
        copy = Path(shutil.copy(build.artefact, scratch)).name
        code, text = run_boxed(
            [tool, "-d", "--demangle", "--no-show-raw-insn", "-j", ".text", copy], Path(scratch), ["/usr"], SECONDS
        )
    if code:
        said = text.strip().splitlines()[-1][:200] if text.strip() else f"exit code {code}"
        return {"unavailable": f"objdump failed: {said}"}
    return mix(text)


def shorten_name(name: str) -> str:
    """A demangled function's name without its arguments, those of its templates and the copies that g++ made of it."""
    name, shorter = name.replace("(anonymous namespace)::", ""), ""
    while shorter != name:  # templates from the inside outwards
        shorter, name = name, re.sub(r"(?<!operator)<[^<>]*>", "", name)
    name = re.split(r"(?<!operator)\(", name)[0]
    return re.split(r"(?<!operator) ", name)[-1][:NAME_CHARS]


def mix(listing: str) -> dict[str, str]:
    """Counts by what they mean for the kernel, of a disassembly of x86-64 as objdump prints it."""
    found: Counter[str] = Counter()
    called: Counter[str] = Counter()
    for line in listing.splitlines():
        if (instruction := _INSTRUCTION.match(line)) is None:
            continue
        name, operands = instruction["name"], instruction["operands"]
        found["instructions"] += 1
        widths = [_WIDTHS[letter] for letter in _REGISTER.findall(operands)]
        if widths:
            scalar = _SCALAR.search(name) or name.startswith(("cvtsi2", "vcvtsi2"))
            found["scalar float instructions" if scalar else f"vector instructions of {max(widths)} bytes"] += 1
        if name.startswith(("vfmadd", "vfmsub", "vfnmadd", "vfnmsub")):
            found["fused multiply-adds"] += 1
        elif name.startswith(("div", "vdiv", "sqrt", "vsqrt")) and widths:
            found["divisions and roots"] += 1
        elif "gather" in name:
            found["gathers"] += 1
        elif name.startswith(("movnt", "vmovnt")):
            found["streaming stores"] += 1
        elif name.startswith("call"):
            target = _TARGET.match(operands)
            called[shorten_name(target["name"]) if target else "through a register"] += 1
    for stub in STUBS:
        del called[stub]
    mixed = {name: str(count) for name, count in sorted(found.items())}
    calls = ", ".join(f"{name} {count}" for name, count in called.most_common(MOST_CALLED))
    return mixed | ({"calls": calls} if calls else {})
