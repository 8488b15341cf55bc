"""The parent's side of the box: who belongs to it, what it uses, and a watchdog that ends it where that is too much."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from harness.farside.sandbox import ProcessLimits

WHOLE_LOOK = 10
"""One of so many looks at a tree finds members of its session too that descend from it no longer: it reads of every process."""


@dataclass(frozen=True)
class _Usage:
    memory_bytes: int
    threads: int


def read_at_once(path: str) -> str:
    """A small file of /proc: a third of what `Path.read_text` takes, where hundreds are read in a poll or two before and behind each request.
    Raises OSError where it is no more."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, 1 << 14).decode(errors="replace")
    finally:
        os.close(file)


def _read(path: str) -> str:
    """The same; "" where it is no more."""
    try:
        return read_at_once(path)
    except OSError:
        return ""


def _usage(pid: int) -> _Usage | None:
    lines = _read(f"/proc/{pid}/status").splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    if "RssAnon" not in fields:  # a zombie
        return None
    kilobytes = sum(int(fields[name].split()[0]) for name in ("RssAnon", "RssShmem", "VmSwap"))
    return _Usage(kilobytes * 1024, int(fields["Threads"]))


def _stat(pid: int) -> list[str]:
    """Fields of /proc/<pid>/stat after the name: state, parent, group, session, ..."""
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()


class _Processes:
    """Everybody's fields of `_stat`, read once for all watchdogs: eight compilers side by side had eight read all of /proc twenty
    times a second, and whoever checked a kernel meanwhile was four times as slow."""

    def __init__(self) -> None:
        self.lock, self.read_at = threading.Lock(), -1.0
        self.known: dict[int, list[str]] = {}

    def get(self, age_s: float) -> dict[int, list[str]]:
        """By process id, as it was that long ago at most."""
        with self.lock:
            if time.monotonic() - self.read_at >= age_s:
                began = time.monotonic()
                pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
                self.known = {pid: fields for pid in pids if (fields := _stat(pid))}
                self.read_at = began
            return self.known


_processes = _Processes()


def session_members(leader: int) -> list[int]:
    """Every process in the session that `leader` began."""
    return [pid for pid, fields in _processes.get(0.0).items() if fields[3] == str(leader)]


def descendants(leader: int) -> set[int]:
    """The children of `leader`, theirs, and so on. They are asked of the kernel thread by thread, 0.1 ms: who reads of every process whose
    child it is takes 4 ms among 160 processes, and a tenth of a second on a large host."""
    if not Path("/proc/thread-self/children").exists():
        return descendants_among_all(leader)
    found: set[int] = set()
    waiting = [leader]
    while waiting:
        with contextlib.suppress(OSError):  # gone meanwhile
            for task in os.scandir(f"/proc/{waiting.pop()}/task"):
                new = {int(pid) for pid in _read(f"{task.path}/children").split()} - found
                found |= new
                waiting += new
    return found


def descendants_among_all(leader: int) -> set[int]:
    """`descendants` by a look at every process there is: where the kernel does not list children."""
    return _below({leader}, _processes.get(0.0)) - {leader}


def family(leader: int, age_s: float = 0.0) -> set[int]:
    """Every process that descends from `leader` or is in its session: one that has left the session is still a child.

    As it was `age_s` ago at most.
    """
    known = _processes.get(age_s)
    return _below({pid for pid, fields in known.items() if pid == leader or fields[3] == str(leader)}, known)


def _below(found: set[int], known: dict[int, list[str]]) -> set[int]:
    while new := {pid for pid, fields in known.items() if int(fields[1]) in found} - found:
        found |= new
    return found


def folder_bytes(folder: str, most: int) -> int:
    """Bytes of the files below a folder; stops counting beyond `most`. Links are not followed."""
    total, pending = 0, [folder]
    while pending and total <= most:
        with contextlib.suppress(OSError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                else:
                    total += max(entry.stat(follow_symlinks=False).st_blocks * 512, 1)
                if total > most:
                    break
    return total


class Watchdog:
    """Kills a boxed process group that outgrows its limits or its time, and says why.

    The group's leader must be an unreaped child started with `start_new_session=True`. `tree`: it may have children
    (compilers). Without it only the leader is looked at, as seccomp lets a worker have none: two small reads of
    /proc a poll, 60 us, so that watching does not disturb what is timed.
    """

    def __init__(
        self,
        pid: int,
        limits: ProcessLimits,
        *,
        seconds: float | None = None,
        scratch: str = "",
        tree: bool = False,
        interval_s: float = 0.05,
    ) -> None:
        self.reason = ""
        """Why the group was killed; empty while it was not."""
        self._pid, self._limits, self._scratch, self._tree, self._interval = pid, limits, scratch, tree, interval_s
        self._seconds = seconds
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._began = _stat(pid)[19:20]
        self._stop, self._awake = threading.Event(), threading.Event()
        self._awake.set()
        self._polls = 0
        self._thread = threading.Thread(target=self._watch, name=f"watchdog-{pid}", daemon=True)
        self._thread.start()

    def sleeps(self) -> None:
        """The leader was stopped: until it goes on it needs no look, and each takes some time of what others do meanwhile."""
        if not self._tree:
            self._awake.clear()

    def goes_on(self) -> None:
        self._awake.set()

    def stop(self) -> str:
        """End the watch (call before the process is reaped) and return the reason for a kill, or ''."""
        self._stop.set()
        self._awake.set()
        self._thread.join()
        return self.reason

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _watch(self) -> None:
        while self._awake.wait() and not self._stop.wait(self._interval):
            if self._awake.is_set() and (reason := self._fault()):
                self.reason = reason
                self._kill()
                return

    def _pids(self) -> set[int]:
        self._polls += 1
        if not self._tree:
            return {self._pid}
        whole = self._polls % WHOLE_LOOK == 0
        return family(self._pid, self._interval) if whole else {self._pid, *descendants(self._pid)}

    def _fault(self) -> str:
        if self._deadline is not None and time.monotonic() > self._deadline:
            return f"took longer than {self._seconds:g} s"
        usages = [_usage(pid) for pid in self._pids()]
        memory = sum(usage.memory_bytes for usage in usages if usage)
        threads = sum(usage.threads for usage in usages if usage)
        if self._limits.memory_bytes and memory > self._limits.memory_bytes:
            return f"used {memory / 2**30:.2f} GiB of memory, {self._limits.memory_bytes / 2**30:.2f} GiB are allowed"
        if self._limits.threads and threads > self._limits.threads:
            return f"started {threads} processes and threads, {self._limits.threads} are allowed"
        if self._scratch and self._limits.scratch_bytes and self._polls % 4 == 0:
            size = folder_bytes(self._scratch, self._limits.scratch_bytes)
            if size > self._limits.scratch_bytes:
                allowed = self._limits.scratch_bytes / 2**20
                return f"filled its scratch folder beyond the {allowed:.0f} MiB that are allowed"
        return ""

    def _kill(self) -> None:
        if self._began != _stat(self._pid)[19:20]:
            return  # the pid is someone else's by now
        others = family(self._pid) if self._tree else set()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        for pid in {*others, *(session_members(self._pid) if self._tree else [])}:  # some may just have been born
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
