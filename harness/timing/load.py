"""Who else uses this machine while something is timed: other processes' share of the CPU, and other measurements.

On Linux only, from /proc: a machine that does not say is taken to be idle.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.processes.watchdog import descendants

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
DISTURBED = 0.1
"""Share of the machine's CPU time from which on others disturb: more than the background of an idle machine takes, and
enough to be felt on two cores."""


def others_at_work(seconds: float = 0.2) -> float:
    """Share of this machine's CPU time (0 to 1) that other processes take, watched for so long."""
    watch = LoadWatch()
    time.sleep(seconds)
    return watch.share()


class LoadWatch:
    """From its making on: what share of the CPU time of the cores that we may use went to processes that are not ours."""

    def __init__(self) -> None:
        self.began, self.busy, self.own = time.monotonic(), _busy_s(), _own_s()

    def share(self) -> float:
        """0 to 1; a process of ours that ended unseen counts as another's, for the little that it did since."""
        passed = (time.monotonic() - self.began) * len(os.sched_getaffinity(0))
        others = (_busy_s() - self.busy) - (_own_s() - self.own)
        return min(max(others / passed, 0.0), 1.0) if passed else 0.0

    def warnings(self) -> list[str]:
        """A warning for what was timed meanwhile, or nothing."""
        share = self.share()
        return (
            [f"other processes took {share:.0%} of this machine's CPU while it was timed"] if share >= DISTURBED else []
        )


def _busy_s() -> float:
    """CPU seconds that the cores which this process may use have worked, stolen ones included."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return 0.0
    ours, ticks = {f"cpu{core}" for core in os.sched_getaffinity(0)}, 0
    for name, *fields in (line.split() for line in lines if line.startswith("cpu")):
        if name in ours:
            user, nice, system, _idle, _waiting, *more = (int(field) for field in fields)
            ticks += user + nice + system + sum(more[:3])  # what follows, guests, is in user already
    return ticks / TICKS_PER_S


def _own_s() -> float:
    """CPU seconds of this process and its descendants, of those too that have ended and were waited for."""
    ticks = 0
    for pid in {os.getpid(), *descendants(os.getpid())}:
        with contextlib.suppress(OSError, ValueError):  # gone meanwhile
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(int(field) for field in fields[11:15])
    return ticks / TICKS_PER_S


@contextmanager
def announce() -> Iterator[tuple[str, ...]]:
    """Held while something is timed here: gives sentences about who else is at work, and lets others know of this.

    Advice only, and it never waits. Another measurement is seen where it is of the same user.
    """
    said = []
    share = others_at_work()
    with _measuring() as other:
        if other is not None:
            said.append(
                f"another Astrolabe is measuring on this machine (process {other}): the two disturb each other, and "
                "intervals come out wider"
            )
        if share >= DISTURBED:
            said.append(f"other processes take {share:.0%} of this machine's CPU: intervals come out wider")
        yield tuple(said)


@contextmanager
def _measuring() -> Iterator[int | None]:
    path = Path(tempfile.gettempdir()) / f"astrolabe-measuring-{os.getuid()}"
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:  # somebody else's file under that name, no room: nothing is known
        yield None
        return
    try:
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not flock: a forked worker would go on holding it
        except OSError:
            pid = os.pread(handle, 20, 0).decode(errors="replace").strip()
            yield int(pid) if pid.isdigit() else 0
        else:
            os.ftruncate(handle, 0)
            os.pwrite(handle, str(os.getpid()).encode(), 0)
            yield None
    finally:
        os.close(handle)
