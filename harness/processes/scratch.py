"""Folders for what is boxed, all in one of this process, and no longer than it: what a process that was killed has left goes
when the next one makes its first."""

from __future__ import annotations

import atexit
import fcntl
import functools
import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

PREFIX, LOCK = "astrolabe-", "held"


def folder(name: str) -> Path:
    """A new one that only this user may enter. Whoever asks removes it."""
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=_of_this_process(tempfile.gettempdir(), os.getpid())))


@functools.cache
def _of_this_process(where: str, _process: int) -> Path:
    mine = Path(tempfile.mkdtemp(prefix=PREFIX, dir=where))
    # Under another name until it is held, or whoever looks meanwhile takes it for one that was left.
    held = os.open(mine / "new", os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(held, fcntl.LOCK_EX)
    (mine / "new").rename(mine / LOCK)
    atexit.register(remove_tree, mine)
    for other in Path(where).glob(f"{PREFIX}*/{LOCK}"):
        with suppress(OSError):  # held by who lives, or another user's
            _remove_if_left(other)
    return mine


def _remove_if_left(lock: Path) -> None:
    """Raises OSError where somebody holds it, or may not be asked."""
    descriptor = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if lock.parent.stat(follow_symlinks=False).st_uid == os.getuid():
            remove_tree(lock.parent)
    finally:
        os.close(descriptor)


def remove_tree(folder: Path) -> None:
    """Remove a folder that hostile code may have filled, however deep; links are not followed. Nothing there is no error."""
    with suppress(RecursionError):  # until Python 3.13 a thousand folders in one another are too many
        shutil.rmtree(folder, ignore_errors=True)
    if os.path.lexists(folder):
        subprocess.run(["rm", "-rf", "--", str(folder)], stderr=subprocess.DEVNULL, check=False)
