"""A Python module: `<entry>(...)` with torch tensors in the spec's order, or KernelBench's `class ModelNew(nn.Module)`.

Compiling is a syntax check, 30 ms. A module that brings C++ or CUDA through torch.utils.cpp_extension is imported once
in the compiler's box, without a GPU, so that its extensions are built there (g++ 25 s, nvcc a minute); the worker that
is judged finds them read-only and may start no compiler itself.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import json
import platform
import re
import shutil
import sys
from pathlib import Path

from harness.backends import ENTROPY, Compiled, is_python, run_boxed
from harness.backends.torch_extension import environment, why_no_torch
from harness.farside.triton_calls import uses_triton
from harness.processes.fork_server import FAR_SIDE, site_packages
from harness.processes.scratch import remove_tree
from harness.records import DeviceFacts

SUFFIX = ".py"
DEVICE = "any"
PYTHON_SIDE = True
BINDS = True
FLAGS: tuple[str, ...] = ()
ARTEFACT = "candidate"
"""A folder: candidate.py, and extensions/<name>/<name>.so where it brings some."""
MODULES, NAME = "modules", "name.txt"
"""In it, of a kernel whose `build.include` has modules: these, and the name by which the candidate is a module beside them (`build.binding`)."""
BOX = "box"
"""The only folder that the module may write to while it is imported. Nothing of ours is written there afterwards, or through
a link that it has left it would write elsewhere with our rights; and what is taken from there is no link."""
CUTE_DSL = "it is written in CuTe DSL (nvidia-cutlass-dsl), which is built for CUDA only"
_CHECK = "import sys; path = sys.argv[1]; compile(open(path, encoding='utf-8').read(), 'candidate.py', 'exec')"


def takes(text: str) -> bool:
    return is_python(text)


def uses_cute_dsl(text: str) -> bool:
    return re.search(r"^[ \t]*(import|from)[ \t]+cutlass\b", text, re.MULTILINE) is not None


def why_unavailable() -> str:
    return why_no_torch()


@functools.cache
def identity(facts: DeviceFacts) -> str:
    versions = [
        f"{name} {importlib.metadata.version(name)}" for name in ("torch", "triton") if importlib.util.find_spec(name)
    ]
    return f"python {platform.python_version()} {' '.join(versions)} {facts.architecture}"


def compile(
    source: Path,
    artefact: Path,
    facts: DeviceFacts,
    timeout_s: float,
    entry: str,
    binding: str = "",
    flags: tuple[str, ...] = (),
) -> Compiled:
    text, box = source.read_text(), source.with_name(BOX)
    code, output = run_boxed([sys.executable, "-I", "-S", "-c", _CHECK, str(source)], source.parent, [], timeout_s)
    if code != 0:
        return Compiled(False, syntax_error(output))
    if uses_cute_dsl(text):
        return Compiled(False, f"candidate.py: error: {CUTE_DSL}")
    if uses_triton(text) and importlib.util.find_spec("triton") is None:
        return Compiled(False, "candidate.py: error: Triton is not installed (python -m pip install triton)")
    remove_tree(box)  # of a build that was killed
    if re.search(r"\bcpp_extension\b", text):  # decides on a slower build, not on a verdict
        box.mkdir()
        command = [*environment(facts), sys.executable, "-I", str(FAR_SIDE)]
        command += ["build", str(shutil.copyfile(source, box / source.name)), str(box / "extensions"), site_packages()]
        code, output = run_boxed(command, box, [site_packages(), str(FAR_SIDE.parent), ENTROPY], timeout_s)
        if code != 0:
            return Compiled(False, output.replace(f"{box}/", ""))
    remove_tree(artefact)
    artefact.mkdir()
    shutil.copyfile(source, artefact / "candidate.py")
    places = [Path(flag[2:]) for flag in flags if flag.startswith("-I")]
    for place in places[1:]:  # the first holds all others
        for path in sorted(place.rglob("*.py")):
            to = artefact / MODULES / path.relative_to(place)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, to)
    asked = json.loads(binding) if binding else ""
    if isinstance(asked, str) and (artefact / MODULES).is_dir() and re.fullmatch(r"\w+(\.\w+)*", asked):
        (artefact / NAME).write_text(asked)
    for built in sorted((box / "extensions").glob("*/*.so")):
        if any(path.is_symlink() for path in (built, built.parent, built.parent.parent)) or not built.is_file():
            continue
        folder = artefact / "extensions" / built.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(built, folder / built.name)
    remove_tree(box)
    return Compiled(True, "")


def syntax_error(output: str) -> str:
    """The interpreter's last words as `candidate.py:7: error: invalid syntax: the line`."""
    lines = output.strip().splitlines() or ["the syntax check failed"]
    place = next((m for line in lines if (m := re.search(r'File "candidate\.py", line (\d+)', line))), None)
    if place is None:
        return lines[-1]
    shown = next((line.strip() for line in lines[lines.index(place.string) + 1 :]), "")
    return f"candidate.py:{place[1]}: error: {lines[-1].removeprefix('SyntaxError: ')}: {shown}"
