"""How much memory there is, and how to say it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from minibatch import ranks


def amount(size: float) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 1 << 29 else f"{size / 2**20:.1f} MiB"


def available_bytes() -> int:
    """Host memory that can be had without swapping, a rank's share of it."""
    found = re.search(r"^MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    free = int(found[1]) << 10 if found else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return free // ranks.here()
