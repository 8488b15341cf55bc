"""The machine code of one function of a build: SASS on a GPU, assembly on a CPU. No GPU is needed for either.

The artefact is hostile input to the tools that read it, so they run in the compilers' box, and what they print is cut.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

from harness.probes.sass import ToolFailed, copy_libraries, disassemble, run_tool
from harness.records import Build, DeviceFacts

MOST_CHARS = 40_000_000
"""Characters of a tool's output (upper bound): a disassembly of megabytes is ordinary where templates were instantiated
freely."""
_SASS_FUNCTION = re.compile(r"^\s*\.text\.([^\s:]+):\s*$")
_ASM_FUNCTION = re.compile(r"^[0-9a-f]+ <(.+)>:$")
_SASS_LINE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(.*?);")
_ASM_LINE = re.compile(r"^\s+[0-9a-f]+:\t(.*)$")


START_UP = ("_init", "_fini", "deregister_tm_clones", "register_tm_clones", "__do_global_dtors_aux", "frame_dummy")
"""What the linker adds to every shared library."""


def functions(build: Build, facts: DeviceFacts) -> dict[str, list[str]]:
    """Function's name -> its instructions, in the order of the file. Raises ToolFailed.

    Names are demangled on a CPU and as the compiler made them on a GPU.
    """
    gpu = facts.device == "cuda"
    text = disassemble(build) if gpu else _assembly(build)
    heading, line = (_SASS_FUNCTION, _SASS_LINE) if gpu else (_ASM_FUNCTION, _ASM_LINE)
    found: dict[str, list[str]] = {}
    here: list[str] | None = None
    for row in text[:MOST_CHARS].splitlines():
        if named := heading.match(row):
            here = found.setdefault(named[1], [])
        elif here is not None and (instruction := line.search(row)):
            here.append(" ".join(instruction[1].split()))
    return {name: rows for name, rows in found.items() if rows and name not in START_UP}


def _assembly(build: Build) -> str:
    tool = shutil.which("objdump")
    if tool is None:
        raise ToolFailed("objdump was not found (it comes with binutils)")
    with tempfile.TemporaryDirectory() as folder:
        command = [tool, "--disassemble", "--demangle", "--no-show-raw-insn", "--section=.text"]
        copies = copy_libraries(build, Path(folder))
        return "".join(run_tool([*command, copy.name], Path(folder), ["/usr"]) for copy in copies)
