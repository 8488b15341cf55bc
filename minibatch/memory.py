"""How much memory there is, and how to say it."""

from __future__ import annotations

import math
import mmap
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from minibatch import ranks

if TYPE_CHECKING:
    import torch

HUGE_PAGE_BYTES = 2 << 20


def amount(size: float) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 1 << 29 else f"{size / 2**20:.1f} MiB"


def available_bytes() -> int:
    """Host memory that can be had without swapping, a rank's share of it."""
    found = re.search(r"^MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    free = int(found[1]) << 10 if found else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return free // ranks.here()


class _Pages(mmap.mmap):
    """Memory of huge pages where the machine has them, which a GPU may read until it is freed."""

    registered: int | None = None
    """Its address, once a GPU may read it."""

    def __del__(self) -> None:
        if self.registered is not None and not sys.is_finalizing():
            import torch

            torch.cuda.cudart().cudaHostUnregister(self.registered)


def empty_pinned(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor in host memory that a GPU reads: of huge pages, which threads that read rows in no order find faster."""
    import torch

    size = math.prod(shape) * dtype.itemsize
    if size < HUGE_PAGE_BYTES:
        return torch.empty(shape, dtype=dtype, pin_memory=True)
    pages = _Pages(-1, size + HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(pages, dtype=torch.uint8)
    begin = -whole.data_ptr() % HUGE_PAGE_BYTES
    held = whole[begin : begin + size].view(dtype).view(shape)
    if int(torch.cuda.cudart().cudaHostRegister(held.data_ptr(), size, 0)):
        return torch.empty(shape, dtype=dtype, pin_memory=True)
    pages.registered = held.data_ptr()
    return held
