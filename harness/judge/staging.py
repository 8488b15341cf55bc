"""Puts a candidate and its inputs into a folder, so that harness/farside/standalone.py can call it there, watched by a tool."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import backends
from harness.checks.drawing import draw
from harness.device import cuda_home, cuda_library, generator
from harness.records import Build
from kernels.spec import DTYPE_BYTES, Scalar, Size, Spec, Tensor, Workload

if TYPE_CHECKING:
    import torch

FARSIDE = Path(__file__).parent.parent / "farside"
STANDALONE, SAMPLED = FARSIDE / "standalone.py", FARSIDE / "sampled.py"
WRITTEN_BYTES = 64 << 20
"""Bytes of an input that are written; a larger input repeats them. Counters and addresses depend on sizes, not on
values."""


def why_not(build: Build) -> str:
    """Why this build cannot be called without torch, one clause; "" where it can."""
    if not build.ok:
        return "the build failed"
    if backends.get(build.backend).DEVICE != "cuda" or getattr(backends.get(build.backend), "PYTHON_SIDE", False):
        return f"backend {build.backend} is not called through a plain C entry on a GPU"
    return ""


@dataclass(frozen=True)
class Staged:
    """A command that calls the candidate, and what it must be able to read beside its folder."""

    command: list[str]
    readable: list[str]


def stage(spec: Spec, build: Build, workloads: Sequence[Workload], on: str, folder: Path) -> Staged:
    """Copy the candidate into `folder` and write fresh inputs for a call of each workload. `on`: where to draw them."""
    shutil.copyfile(build.artefact, folder / "candidate.so")
    shutil.copyfile(STANDALONE, folder / STANDALONE.name)  # the box's user may not be able to read this checkout
    calls = [_call(spec, workload, on, folder, f"{index}-") for index, workload in enumerate(workloads)]
    library = cuda_library()
    told = {"cuda_library": library, "library": "candidate.so", "calls": calls}
    (folder / "calls.json").write_text(json.dumps(told))
    command = [sys.executable, "-I", "-S", str(folder / STANDALONE.name), str(folder / "calls.json")]
    home = cuda_home()
    return Staged(command, [str(Path(library).parent), os.path.realpath(library), *([str(home)] if home else [])])


def stage_on_cpu(spec: Spec, build: Build, workload: Workload, folder: Path) -> list[str]:
    """The same for one call that harness/farside/sampled.py makes over and over; gives the words before its last, the seconds."""
    shutil.copyfile(build.artefact, folder / "candidate.so")
    shutil.copyfile(SAMPLED, folder / SAMPLED.name)
    calls = [_call(spec, workload, "cpu", folder)]
    (folder / "calls.json").write_text(json.dumps({"library": "candidate.so", "calls": calls}))
    return [sys.executable, "-I", "-S", str(folder / SAMPLED.name), str(folder / "calls.json")]


def _call(spec: Spec, workload: Workload, on: str, folder: Path, prefix: str = "") -> dict[str, Any]:
    """One call for a script in the box; its inputs are written beside it."""
    import torch

    files = {tensor.name: f"{prefix}{tensor.name}.bin" for tensor in spec.inputs}
    drawn: dict[str, torch.Tensor] = {}
    for tensor in spec.inputs:
        bound = spec.bound(tensor)
        drawn[tensor.name] = _values(spec, tensor, workload, on, drawn[bound.name] if bound else None)
        (folder / files[tensor.name]).write_bytes(drawn[tensor.name].view(torch.uint8).cpu().numpy().tobytes())
    arguments = [_encoded(spec, argument, workload, files) for argument in spec.arguments]
    return {"symbols": spec.entry_names(workload.dtype), "arguments": arguments}


def _size(spec: Spec, tensor: Tensor, workload: Workload) -> int:
    return spec.span(tensor, workload.axes) * DTYPE_BYTES[spec.dtype(tensor, workload)]


def _encoded(spec: Spec, argument: Tensor | Size | Scalar, workload: Workload, files: dict[str, str]) -> list:
    """As standalone.py takes it."""
    if isinstance(argument, Tensor):
        return ["t", _size(spec, argument, workload), files.get(argument.name, "")]
    if isinstance(argument, Size):
        return ["i", workload.axes[argument.name]]
    code = {"float": "f", "double": "d", "int64_t": "i", "void*": "i"}[argument.ctype]
    return [code, int(argument.value) if code == "i" else argument.value]


def _values(spec: Spec, tensor: Tensor, workload: Workload, on: str, bound: torch.Tensor | None = None) -> torch.Tensor:
    """The tensor's first distribution, flat; its first WRITTEN_BYTES where it is larger. Below `bound` everywhere, so that
    what is left out of either does not matter."""
    import torch

    width = DTYPE_BYTES[spec.dtype(tensor, workload)]
    count = min(_size(spec, tensor, workload), WRITTEN_BYTES) // width
    view = torch.empty(count, dtype=getattr(torch, spec.dtype(tensor, workload)), device=on)
    least = None if bound is None else bound.min().reshape(1)
    draw(view, tensor.values[0], workload, generator(on), least)
    return view
