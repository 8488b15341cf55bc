"""How much memory there is, and how to say it."""

from __future__ import annotations

import ctypes
import math
import os
import re
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from minibatch import ranks
from minibatch.native import library

if TYPE_CHECKING:
    import torch


def amount(size: float) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 1 << 29 else f"{size / 2**20:.1f} MiB"


def available_bytes() -> int:
    """Host memory that can be had without swapping, a rank's share of it."""
    found = re.search(r"^MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    free = int(found[1]) << 10 if found else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return free // ranks.here()


def empty_pinned(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor in host memory that this process's GPU reads, in large pages where the machine can (memory.cu), else pinned."""
    import torch

    size = math.prod(shape) * dtype.itemsize
    native = library((Path(__file__).parent / "memory.cu").read_text(), "cuda")
    native.memory_make.restype = ctypes.c_void_p
    numbers = (size, torch.cuda.current_device(), max(1, len(os.sched_getaffinity(0)) // ranks.here()))
    made = native.memory_make(*map(ctypes.c_int64, numbers)) if size else None
    if not made:
        return torch.empty(shape, dtype=dtype, pin_memory=True)
    held = (ctypes.c_uint8 * size).from_address(made)
    weakref.finalize(held, native.memory_free, ctypes.c_void_p(made)).atexit = False  # the last tensor of it is gone
    return torch.frombuffer(held, dtype=torch.uint8).view(dtype).view(shape)
