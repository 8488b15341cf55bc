"""What tests of the compiler share: kernel folders made of a few words, and the question whether a text computes what the reference does."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernels import catalog
from kernels.catalog import Kernel
from kernels.spec import DTYPE_BYTES, Scalar, Size, Spec, Tensor, Workload
from tests.machine import LINKER
from tests.nodes.draft.direct import read_before
from tests.nodes.rewrites.emulate.emulation import emulated, run, small_workloads, workload

GCC = [
    "g++",
    "-std=c++17",
    "-O1",
    "-march=native",
    "-fopenmp",
    "-fPIC",
    "-Wall",
    "-Werror",
    "-Wno-unknown-pragmas",
]
ROLES = {"in": "input", "out": "output", "inout": "inout"}


def made(
    sizes: Sequence[Mapping[str, int]], dtypes: Sequence[str] = ("float32",), devices: Sequence[str] = ("cuda", "cpu"),
    numbers: Mapping[str, float] | None = None, timed: int = 99, unknown: Sequence[str] = (), tensors: Mapping[str, str] | None = None, **more: Any,
) -> Spec:  # fmt: skip
    """A spec of tensors such as `slot="in tokens int64 index:slots"`: role, shape, the dtype where it is not T, what is drawn.

    Of `sizes` the first `timed` are timed; the entry is told all axes but the `unknown` ones.
    """
    arguments = []
    for name, said in (tensors or {}).items():
        role, *words = said.split()
        dtype = next((word for word in words if word in DTYPE_BYTES), "T")
        values = tuple(word for word in words if ":" in word or word in ("bits", "distinct"))
        touched = next((word[1:] for word in words if word.startswith("@")), None)
        shape = tuple(word for word in words if word != dtype and word not in values and word[0] != "@")
        drawn = {"values": values} if values else {}
        arguments.append(Tensor(name=name, role=ROLES[role], shape=shape, dtype=dtype, touched=touched, **drawn))
    axes = tuple(sizes[0])
    return Spec(
        name="made", summary="made", axes=axes, dtypes=tuple(dtypes), **more,
        arguments=(
            *arguments, *(Size(name=axis) for axis in axes if axis not in unknown), *(Scalar(name=n, value=v) for n, v in (numbers or {}).items())
        ),
        workloads=tuple(
            Workload(axes=dict(one), dtype=dtype, devices=tuple(devices), timed=at < timed) for dtype in dtypes for at, one in enumerate(sizes)
        ),
    )  # fmt: skip


def folder_of(folder: Path, spec: Spec, reference: str) -> Kernel:
    """A kernel's folder, read as any other is."""
    head = "from kernels.spec import Spec\n\nSPEC = Spec.model_validate_json("
    (folder / "spec.py").write_text(f"{head}{spec.model_dump_json()!r})\n")
    (folder / "reference.py").write_text(reference)
    return catalog.load(str(folder))


def built(text: str, folder: Path) -> ctypes.CDLL:
    (folder / "candidate.cpp").write_text(text)
    command = [
        *GCC,
        "-shared",
        *LINKER,
        *read_before(*GCC)[0],
        str(folder / "candidate.cpp"),
        "-o",
        str(folder / "candidate.so"),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:3000]
    return ctypes.CDLL(str(folder / "candidate.so"))


def every_size(spec: Spec) -> list[str]:
    """What `check_text` is told so that sizes of many elements are computed too."""
    return [f"{w.dtype}:{','.join(f'{axis}={size}' for axis, size in w.axes.items())}" for w in spec.workloads]


def check_text(
    kernel: Kernel, text: str, folder: Path, device: str = "cuda", offsets: Sequence[int] = (0, 1), sized: Sequence[str] = (), **told: str
) -> None:  # fmt: skip
    """The text computes what the reference does, CUDA in the emulation: on the small workloads, or those `sized` as `float16:rows=3`, with
    every tensor moved by so many elements. `told`: what the emulation's environment says."""
    if device == "cuda":
        (folder / "candidate.cu").write_text(text)
        done = emulated(kernel.folder, folder / "candidate.cu", *map(str, offsets), *sized, **told)
        assert done.returncode == 0, f"{(kernel.folder / 'reference.py').read_text()}\n{done.stdout}{done.stderr}"
        return
    library = built(text, folder)
    for one in map(workload, sized) if sized else small_workloads(kernel.spec, device):
        for offset in offsets:
            assert run(kernel.spec, kernel, library, one, offset) == "", one.label


def check_limits(kernel: Kernel, text: str, folder: Path, name: str, limits: Sequence[int]) -> None:
    """As `check_text`, with a limit by which the text's host code chooses, as it is and at others, built once."""
    text, found = re.subn(
        rf"constexpr int64_t {name} = (.+?)([,;])",
        rf'const int64_t {name} = getenv("LIMIT") ? atoll(getenv("LIMIT")) : \1\2',
        text,
    )
    assert found == 1, name
    check_text(kernel, text, folder, offsets=(0,))
    for limit in limits:
        check_text(kernel, text, folder, offsets=(0,), LIMIT=str(limit))
