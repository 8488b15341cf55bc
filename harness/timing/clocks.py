"""A GPU's clocks, held while something is timed where the user asks for it and may; the guard process lets go of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.device import DeviceError

GUARD = Path(__file__).with_name("clock_guard.py")
RELEASE_S = 30.0
_held: list[str] = []
"""Sentences on how this process holds the clocks, for the evidence."""


def describe_lock() -> str:
    """`locked at 1410 MHz`, or ""."""
    return _held[-1] if _held else ""


@contextmanager
def lock(mhz: int | None, device: str, engine: str = "process") -> Iterator[None]:
    """The first GPU's clocks at so many MHz inside; 0 leaves which to the guard, None locks nothing.

    They are let go of at the end, at an exception, and by the guard where this process is killed. A lock that somebody set
    before is gone then, too. Raises DeviceError where they cannot be locked.
    """
    if mhz is None:
        yield
        return
    if engine != "process":
        raise DeviceError(
            f"--lock-clocks holds this machine's GPU, and the engine {engine} times where it likes: leave it away"
        )
    if device != "cuda":
        raise DeviceError("--lock-clocks locks a GPU's clocks, and this is the CPU: leave it away")
    command = [sys.executable, "-P", str(GUARD), _uuid(), str(mhz)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as guard:
        assert guard.stdin is not None and guard.stdout is not None
        said, _, rest = guard.stdout.readline().strip().partition(" ")
        if said != "locked":
            raise DeviceError(f"--lock-clocks: {rest or 'the guard of the clocks ended without a word'}")
        _held.append(f"locked at {rest} MHz")
        try:
            yield
        finally:
            _held.pop()
            guard.stdin.close()
            if code := guard.wait(RELEASE_S):
                raise DeviceError(
                    f"the clocks could not be unlocked (code {code}): nvidia-smi --reset-gpu-clocks does it"
                )


def _uuid() -> str:
    import torch

    return f"GPU-{torch.cuda.get_device_properties(0).uuid}"
