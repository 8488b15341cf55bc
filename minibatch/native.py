"""Compiled sources of this application and of kernels: built once by the harness's toolchains, kept by their content."""

from __future__ import annotations

import ctypes
import hashlib
import tempfile
from pathlib import Path

from harness import backends
from harness.device import facts
from harness.machine import cache_folder
from harness.store import digest

COMPILE_S = 300.0


class NativeError(Exception):
    """A source cannot be built here; one sentence that says why."""


def library(source: str, device: str) -> ctypes.CDLL:
    """The shared library of a C++ (device "cpu") or CUDA source ("cuda"). Raises NativeError."""
    backend = backends.get(device)
    if missing := backend.why_unavailable():
        raise NativeError(missing)
    known = facts(device)
    kept = cache_folder() / "native" / f"{digest(source, backend.identity(known))}.so"
    if not whole(kept):
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as made:
            written = Path(made) / f"source{backend.SUFFIX}"
            written.write_text(source)
            artefact = Path(made) / "library.so"
            done = backend.compile(written, artefact, known, COMPILE_S)
            if not done.ok:
                raise NativeError(f"a source does not compile for {device}: {done.log.strip()[:300]}")
            sums = Path(made) / "sum"
            sums.write_text(hashlib.sha256(artefact.read_bytes()).hexdigest())
            artefact.rename(kept)
            sums.rename(kept.with_suffix(".sha256"))
    return ctypes.CDLL(str(kept))


def whole(kept: Path) -> bool:
    """Whether a kept library is what was written: one that is cut off would end the process with SIGBUS."""
    try:
        return hashlib.sha256(kept.read_bytes()).hexdigest() == kept.with_suffix(".sha256").read_text()
    except OSError:
        return False
