"""bootstrap.py's own words, with a stand-in for pip: what is slow says what it is at, what fails says why."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import bootstrap

PIP = """#!{python}
import sys, time
print("Collecting torch")
print("  Downloading torch-2.13.0-cp311.whl (180.0 MB)", flush=True)
time.sleep(0.5)
print("ERROR: no space left", file=sys.stderr)
sys.exit({code})
"""


def stand_in(folder: Path, code: int) -> Path:
    path = folder / "python"
    path.write_text(PIP.format(python=sys.executable, code=code))
    path.chmod(0o755)
    return path


def test_a_long_installation_says_what_it_is_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(bootstrap, "EVERY_S", 0.2)
    assert bootstrap.pip(stand_in(tmp_path, 0), "torch").returncode == 0
    said = capsys.readouterr()
    assert "Downloading torch-2.13.0-cp311.whl (180.0 MB)" in said.out and said.err == ""


@pytest.mark.parametrize("quiet", [False, True])
def test_a_failed_installation_shows_pips_words(tmp_path: Path, capsys, quiet: bool) -> None:
    assert bootstrap.pip(stand_in(tmp_path, 3), "torch", quiet=quiet).returncode == 3
    assert ("ERROR: no space left" in capsys.readouterr().err) is not quiet
