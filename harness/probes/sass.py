"""The instruction mix of the machine code: how wide loads and stores are, what else the units are kept busy with.

Static counts over all kernels of the build, not weighted by how often an instruction runs. Needs cuobjdump and
nvdisasm (the CUDA toolkit's, or the wheels nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm), no GPU.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections import Counter
from pathlib import Path

from harness.backends import run_boxed
from harness.device import cuda_home
from harness.records import Build, DeviceFacts

DEVICE = "cuda"

_OPCODE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+\s+)?([A-Z][A-Z0-9_.]+)")
_UNITS = {
    **dict.fromkeys(("HMMA", "IMMA", "DMMA", "QMMA"), "tensor core products of a warp"),
    **dict.fromkeys(("HGMMA", "IGMMA", "QGMMA", "BGMMA"), "tensor core products of a warp group"),
    **dict.fromkeys(("FFMA", "FFMA2", "HFMA2", "DFMA"), "multiply-adds of vector units"),
    **dict.fromkeys(("UTMALDG", "UTMASTG", "UBLKCP"), "TMA copies"),
    "LDGSTS": "asynchronous copies to shared memory",
    "LDSM": "matrix loads from shared memory",
    "BAR": "barriers",
    "SHFL": "shuffles",
}
"""An opcode -> what it is counted as. What the tensor cores do decides a product, and is in none of the other counts."""
_WIDTHS = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}


def read(build: Build, facts: DeviceFacts) -> dict[str, str]:
    if facts.device != "cuda":
        return {"unavailable": "machine code of the GPU only"}
    try:
        text = disassemble(build)
    except ToolFailed as failure:
        return {"unavailable": str(failure)}
    return mix(text) if text else {"unavailable": "the build holds no machine code"}


def disassemble(build: Build, *, lines: bool = False) -> str:
    """The build's machine code as nvdisasm prints it, with source lines if asked for; "" where it holds none.

    Raises ToolFailed.
    """
    extract, disassemble = _tool("cuobjdump"), _tool("nvdisasm")
    if extract is None or disassemble is None:
        name = "cuobjdump" if extract is None else "nvdisasm"
        raise ToolFailed(f"{name} was not found (pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm)")
    readable = [str(Path(tool).resolve().parent.parent) for tool in (extract, disassemble)]
    readable.append(str(cuda_home() or "/usr"))
    with tempfile.TemporaryDirectory() as scratch:
        # The file is hostile input to these tools, so they run in the compilers' box. There `cuobjdump -sass` crashes: it
        # looks itself up under /proc by its process id, which is another one in the box's namespace.
        for copy in copy_libraries(build, Path(scratch)):  # what is found inside is named after it
            run_tool([extract, "-xelf", "all", copy.name], Path(scratch), readable)
        cubins = sorted(Path(scratch).glob("*.cubin"))
        return "".join(
            run_tool([disassemble, "-c", *(["-gi"] if lines else []), cubin.name], Path(scratch), readable)
            for cubin in cubins
        )


def copy_libraries(build: Build, folder: Path) -> list[Path]:
    """Copies of the build's compiled libraries, each by a name of its own: itself, or of a Python module's folder those in it,
    Triton's cubins left out."""
    found = [artefact := Path(build.artefact)]
    if artefact.is_dir():
        found = [*artefact.glob("native.so"), *sorted(artefact.glob("extensions/*/*.so"))]
    return [Path(shutil.copy(library, folder / f"{number}.so")) for number, library in enumerate(found)]


class ToolFailed(Exception):
    """A tool said nothing that can be used; the message is one clause that says why."""


def run_tool(command: list[str], scratch: Path, readable: list[str]) -> str:
    """What the tool printed. Raises ToolFailed with its last words."""
    code, text = run_boxed(command, scratch, readable, 60.0)
    if code:
        said = text.strip().splitlines()[-1][:200] if text.strip() else f"exit code {code}"
        raise ToolFailed(f"{Path(command[0]).name} failed: {said}")
    return text


def _tool(name: str) -> str | None:
    home = cuda_home()
    own = home / "bin" / name if home else None
    return str(own) if own and own.exists() else shutil.which(name)


def mix(sass: str) -> dict[str, str]:
    """Counts by what they mean for the kernel, of a disassembly as cuobjdump prints it."""
    opcodes = Counter(_OPCODE.findall(sass))
    found: Counter[str] = Counter()
    for opcode, count in opcodes.items():
        name, *modifiers = opcode.split(".")
        if name in ("LDG", "STG", "LDS", "STS"):
            width = next((_WIDTHS[m] for m in modifiers if m in _WIDTHS), 4)
            kind = {"LDG": "global loads", "STG": "global stores", "LDS": "shared loads", "STS": "shared stores"}[name]
            found[f"{kind} of {width} bytes"] += count
        elif name in ("LDL", "STL"):
            found["local memory accesses"] += count
        elif name == "MUFU":
            found[f"special function {'.'.join(modifiers[:1])}"] += count
        elif name in ("F2F", "F2FP", "I2F", "F2I", "HADD2") and (name != "HADD2" or "F32" in modifiers):
            found["conversions"] += count
        elif name in _UNITS:
            found[_UNITS[name]] += count
    found["instructions"] = sum(opcodes.values())
    return {name: str(count) for name, count in sorted(found.items())}
