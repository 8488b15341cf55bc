"""A CUDA source at sizes that no memory holds: `python -m tests.nodes.rewrites.emulate.large KERNEL SOURCE DTYPE AXIS=SIZE,...`

The blocks at either end of the grid run in the emulation. Inputs are one file of random elements, mapped again and again; outputs
are pages that exist where something was written. The first and the last rows must be right as far as they were written, and so must some of
all pages that were. The file's length is a prime number of pages, so that an index that is off by a power of two reads other values. Ends with 1 where a value is
wrong, and by a signal where an index leads nowhere.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import tempfile
from pathlib import Path

import torch

from kernels import catalog
from kernels.spec import Scalar, Size, Tensor, Workload
from tests.nodes.rewrites.emulate.emulation import library

ENDS, PAGES = 8, 16
"""Blocks that run at either end, and rows that are compared there at most; pages of an output that are compared."""
PERIOD = 509 * mmap.PAGESIZE
READ, WRITE, PRIVATE, FIXED, ANONYMOUS, NORESERVE = 1, 2, 2, 0x10, 0x20, 0x4000
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]


def mapped(at: int | None, size: int, access: int, flags: int, fd: int = -1) -> int:
    found = LIBC.mmap(at, size, access, flags, fd, 0)
    if found in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "mmap")
    return int(found)


def memory(size: int, pattern: int | None) -> int:
    """Address of so many bytes between pages without access: of the file `pattern` again and again, changed for this process alone, or empty."""
    whole = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    base = mapped(None, whole + (2 << 30), 0, PRIVATE | ANONYMOUS | NORESERVE) + (1 << 30)
    if pattern is None:
        return mapped(base, whole, READ | WRITE, PRIVATE | ANONYMOUS | NORESERVE | FIXED)
    for first in range(0, whole, PERIOD):
        mapped(base + first, min(PERIOD, whole - first), READ | WRITE, PRIVATE | NORESERVE | FIXED, pattern)
    return base


def written(address: int, size: int) -> list[int]:
    """Offsets of the pages that exist."""
    page = mmap.PAGESIZE
    with Path("/proc/self/pagemap").open("rb") as file:
        file.seek(address // page * 8)
        entries = torch.frombuffer(bytearray(file.read(-(-size // page) * 8)), dtype=torch.int64)
    return [int(at) * page for at in (entries >> 62).nonzero().flatten()]


def view(address: int, dtype: torch.dtype, shape: list[int]) -> torch.Tensor:
    count = torch.Size(shape).numel()
    raw = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return torch.frombuffer(raw, dtype=dtype).view(shape)


def wrong(kernel: catalog.Kernel, text: str, workload: Workload) -> str:
    """What is wrong, "" if nothing. Of a kernel whose tensors have the first axis first, or are a constant."""
    spec, (axis, *_) = kernel.spec, kernel.spec.axes
    rows = workload.axes[axis]
    files: dict[torch.dtype, int] = {}
    places: dict[str, int] = {}
    arguments: list[object] = []
    for argument in spec.arguments:
        if isinstance(argument, Size):
            arguments.append(ctypes.c_int64(workload.axes[argument.name]))
        elif isinstance(argument, Scalar):
            arguments.append(ctypes.c_float(argument.value))
        else:
            dtype = getattr(torch, spec.dtype(argument, workload))
            if dtype not in files:
                files[dtype] = os.memfd_create("pattern")
                drawn = torch.randn(PERIOD // dtype.itemsize, generator=torch.Generator().manual_seed(1)).to(dtype)
                os.write(files[dtype], drawn.view(torch.uint8).numpy().tobytes())
            size = torch.Size(spec.shape(argument, workload.axes)).numel() * dtype.itemsize
            places[argument.name] = memory(size, files[dtype] if argument.role != "output" else None)
            arguments.append(ctypes.c_void_p(places[argument.name]))

    def at(tensor: Tensor, first: int, count: int) -> torch.Tensor:
        dtype = getattr(torch, spec.dtype(tensor, workload))
        shape = list(spec.shape(tensor, {**workload.axes, axis: count}))
        whole = list(spec.shape(tensor, workload.axes))
        skipped = first * torch.Size(whole[1:]).numel() if shape != whole else 0
        return view(places[tensor.name] + skipped * dtype.itemsize, dtype, shape)

    def expected(first: int, count: int) -> dict[str, torch.Tensor]:
        given = {t.name: at(t, first, count).double() for t in spec.tensors if t.role in ("input", "inout")}
        return kernel.reference(**given, **spec.scalars)

    def fault(first: int, count: int, want: dict[str, torch.Tensor]) -> str:
        for tensor in spec.outputs:
            got = at(tensor, first, count).double()
            apart = (got - want[tensor.name]).abs() > 0.02 * (1 + want[tensor.name].abs())
            apart &= (got != 0) | (tensor.role != "output")  # not written yet
            if bool(apart.any()):
                return f"{tensor.name}: {int(apart.sum())} elements of rows {first} to {first + count} are wrong"
        return ""

    ends = [(first, min(ENDS, rows)) for first in (0, max(0, rows - ENDS))]
    right = [expected(*end) for end in ends]  # before it changes them
    with tempfile.TemporaryDirectory() as folder:
        built = library(text, Path(folder))
    entry = next(getattr(built, name) for name in spec.entry_names(workload.dtype) if hasattr(built, name))
    entry(*arguments, ctypes.c_void_p(0))
    for tensor in (one for one in spec.outputs if one.role == "output"):
        row = (
            torch.Size(spec.shape(tensor, workload.axes)[1:]).numel()
            * getattr(torch, spec.dtype(tensor, workload)).itemsize
        )
        pages = written(places[tensor.name], rows * row)
        if not pages or pages[-1] < (rows - ENDS) * row // 2:
            return f"{tensor.name}: {len(pages)} pages were written, none in its second half"
        for offset in random.Random(len(pages)).sample(pages, min(PAGES, len(pages))):
            first, last = offset // row, min(rows, -(-(offset + mmap.PAGESIZE) // row))
            if said := fault(first, last - first, expected(first, last - first)):
                return said
    for (first, count), want in zip(ends, right, strict=True):
        if said := fault(first, count, want):
            return said
    return ""


def main(command: list[str]) -> int:
    name, source, dtype, sizes = command
    axes = {axis: int(size) for axis, _, size in (one.partition("=") for one in sizes.split(","))}
    os.environ["EMULATE_ENDS"] = str(ENDS)
    fault = wrong(catalog.load(name), Path(source).read_text(), Workload(axes=axes, dtype=dtype))  # type: ignore[arg-type]
    print(fault)
    return 1 if fault else 0
