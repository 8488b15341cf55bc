"""What every run on this machine needs alike, and takes seconds to make: builds of our own sources, what the device reaches.

Each is named by all that it depends on. Whoever deletes the folder loses time.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from harness.records import Build
from harness.store import Record, Store

_MALLOC = ((-8, 1), (-3, 256 << 20), (-1, 512 << 20))
"""glibc's M_ARENA_MAX, M_MMAP_THRESHOLD and M_TRIM_THRESHOLD: one heap for all threads, of which half a gigabyte may be free."""


def keep_freed_memory() -> None:
    """Let this process use again what it has freed, instead of giving it back to the system and having it cleared anew.

    What is compared on a CPU is tens of megabytes at a time, again and again: expected values of silu_and_mul at 1024 x 5632 took
    0.60 s of the processor's time, 0.32 s of them in the kernel for 100,000 page faults, and take 0.22 s. Workers have their own.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's alone
    if mallopt is not None:
        for option, value in _MALLOC:
            mallopt(option, value)


def cache_folder() -> Path:
    """Where what is made once is kept: ASTROLABE_CACHE, else astrolabe in the user's cache folder."""
    named = os.environ.get("ASTROLABE_CACHE")
    return Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "astrolabe"


def store() -> Store | None:
    """None where this user can keep nothing: then each run makes its own."""
    try:
        folder = cache_folder().absolute() / "runs"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # or who has no home
        return None
    return Store(folder) if os.access(folder, os.W_OK) else None


def find_record(own: Store, everywhere: Store | None, kind: str, key: str, model: type[Record]) -> Record | None:
    """The record of a run's own store, else of this machine's, which the run keeps from then on."""
    found = own.find_record(kind, key, model)
    if found is None and everywhere is not None and (found := everywhere.find_record(kind, key, model)) is not None:
        own.keep(kind, key, found)
    return found


def get_build(key: str, into: Path, make: Callable[[Path], Build]) -> Build:
    """The build of that key in the folder `into`; made where this machine has none yet, by one process at a time."""
    if (everywhere := store()) is None:
        return make(into)
    folder = everywhere.build_folder(key)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        build = everywhere.find_record("build", key, Build)
        if build is None or not Path(build.artefact).exists():
            build = make(folder)
            if not build.ok:  # its log says why; the next run tries again
                return build
            everywhere.keep("build", key, build)
    made = Path(build.artefact)
    if made.is_dir():  # a Python module with what it was built into
        return build.model_copy(update={"artefact": str(shutil.copytree(made, into / made.name, dirs_exist_ok=True))})
    return build.model_copy(update={"artefact": shutil.copy2(made, into)})
