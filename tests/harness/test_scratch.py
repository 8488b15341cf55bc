"""What a process that was killed has left goes with the next one, and nothing of anybody who lives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from harness.processes import scratch

HOLD = """
import sys
from harness.processes import scratch
folder = scratch.folder("worker")
(folder / "output.txt").write_text("half of it")
print(folder, flush=True)
sys.stdin.read()
"""


def holder(where: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that has such a folder until its standard input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD], env={**os.environ, "TMPDIR": str(where)}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_killed_process_s_folders_go_with_the_next_one_and_those_of_who_lives_stay(tmp_path: Path) -> None:
    (killed, left), (living, kept) = holder(tmp_path), holder(tmp_path)
    try:
        assert left.is_dir() and kept.is_dir()
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert left.is_dir()
        after, own = holder(tmp_path)
        assert not left.parent.exists() and (kept / "output.txt").read_text() == "half of it" and own.is_dir()
        after.communicate()
        assert not own.parent.exists(), "who ends by itself removes its own"
    finally:
        living.communicate()
    assert list(tmp_path.iterdir()) == []


def test_nothing_that_only_looks_like_one_is_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    precious = tmp_path / "precious"
    precious.write_text("kept")
    for name in ("astrolabe-linked", "astrolabe-unheld"):
        (tmp_path / name).mkdir()
    (tmp_path / "astrolabe-linked" / scratch.LOCK).symlink_to(precious)
    scratch.folder("worker")
    assert precious.read_text() == "kept"
    assert (tmp_path / "astrolabe-linked").is_dir() and (tmp_path / "astrolabe-unheld").is_dir()
