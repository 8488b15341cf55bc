"""Others at work on the machine: seen, said, and never taken for our own work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from harness.processes.watchdog import descendants, descendants_among_all
from harness.timing import load

pytestmark = pytest.mark.skipif(not Path("/proc/stat").exists(), reason="no /proc")
REPOSITORY = Path(__file__).resolve().parents[2]
SPIN = "import time\nend = time.monotonic() + 30\nwhile time.monotonic() < end: pass"
HOLD = "import time\nfrom harness.timing import load\nwith load.announce():\n    print('held', flush=True)\n    time.sleep(60)"


def settle(true) -> bool:
    for _ in range(100):
        if true():
            return True
        time.sleep(0.05)
    return False


def test_our_own_work_and_that_of_our_workers_is_not_anothers() -> None:
    before = load._own_s()
    child = subprocess.Popen([sys.executable, "-c", SPIN])
    try:
        assert settle(lambda: load._own_s() - before > 0.5)
    finally:
        child.kill()
        child.wait()
    assert load._own_s() - before > 0.5  # also once it has ended


def test_anothers_work_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is not a descendant: here, ours are taken to be none."""
    child = subprocess.Popen([sys.executable, "-c", SPIN])
    monkeypatch.setattr(load, "_own_s", lambda: 0.0)
    try:
        assert settle(lambda: load.others_at_work(0.2) > 0.5 / (os.cpu_count() or 1) * 0.5)
    finally:
        child.kill()
        child.wait()


def test_what_took_the_machine_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = load.LoadWatch()
    monkeypatch.setattr(load.LoadWatch, "share", lambda _self: 0.43)
    assert watch.warnings() == ["other processes took 43% of this machine's CPU while it was timed"]
    monkeypatch.setattr(load.LoadWatch, "share", lambda _self: 0.02)
    assert watch.warnings() == []


def test_another_measurement_is_announced_until_it_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(load, "others_at_work", lambda: 0.5)
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": str(tmp_path)}
    )  # fmt: skip
    try:
        assert other.stdout.readline() == "held\n"
        with load.announce() as said:
            assert f"another Astrolabe is measuring on this machine (process {other.pid})" in said[0]
            assert "other processes take 50% of this machine's CPU" in said[1]
    finally:
        other.kill()
        other.wait()
    with load.announce() as said:
        assert len(said) == 1


def test_a_file_that_is_not_ours_to_write_is_no_trouble(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / f"astrolabe-measuring-{os.getuid()}").symlink_to("/etc/passwd")
    monkeypatch.setattr(load, "others_at_work", lambda: 0.0)
    with load.announce() as said:
        assert said == ()


def test_descendants_are_listed_as_a_look_at_every_process_finds_them():
    """Of any thread, and their children, too."""
    started: list[subprocess.Popen] = []
    ready = "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"

    def start() -> None:
        started.append(subprocess.Popen([sys.executable, "-c", ready], stdout=subprocess.PIPE, text=True))

    start()
    listening = threading.Event()
    thread = threading.Thread(target=lambda: (start(), listening.wait()))
    thread.start()
    try:
        while len(started) < 2:
            time.sleep(0.01)
        grandchildren = {int(one.stdout.readline()) for one in started}
        family = {one.pid for one in started} | grandchildren
        here = os.getpid()
        assert family <= descendants(here) and family <= descendants_among_all(here)
        assert os.getppid() not in descendants(here)
    finally:
        for one in started:
            os.kill(one.pid, signal.SIGSTOP)
        for pid in grandchildren:
            os.kill(pid, signal.SIGKILL)
        for one in started:
            one.kill()
            one.wait()
            one.stdout.close()
        listening.set()
        thread.join()
