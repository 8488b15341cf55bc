"""What the command line does to a terminal, a pipe and a person: encodings, signals, help, silence."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import run as door
from graph.session import Door
from tests.graph.doubles import BASELINE, Script, Silent, nobody, paper_context, record, settings

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    Door(tmp_path, paper_context(Script({1: ["speed 1.3"]}))).start(
        record(settings(rounds=1, baseline="plain ×")), BASELINE, Silent(), nobody
    )
    return tmp_path


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
@pytest.mark.parametrize("words", [["runs"], ["show", "run"], ["show", "run", "--json"], ["history", "run"]])
def test_any_encoding_of_the_output_will_do(runs: Path, words: list[str], encoding: str) -> None:
    done = subprocess.run(
        [sys.executable, str(REPOSITORY / "run.py"), *words, "--runs-dir", str(runs)],
        capture_output=True, check=False, env=os.environ | {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"},
    )  # fmt: skip
    said = done.stdout.decode(encoding)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    if words[-1] == "--json":
        assert json.loads(said)["baseline"] == "plain ×"
    elif words[0] != "history":
        assert ("1.30×" if encoding != "ascii" else "1.30x") in said and "?" not in said


@pytest.mark.parametrize(("command", "own"), [("resume", ()), ("fork", ()), ("", ("(5)", "(1)"))])
def test_help_names_only_defaults_that_hold_there(command: str, own: tuple[str, ...], capsys) -> None:
    with pytest.raises(SystemExit):
        door.main([*command.split(), "--help"])
    said = capsys.readouterr().out
    for default in ("(5)", "(1)"):
        assert (default in said) is (default in own)
    if command:
        assert "as before" in said


def test_ctrl_c_before_there_is_a_run_says_so(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def interrupted(_name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kernels.catalog.load", interrupted)
    assert door.main(["--kernel", "silu_and_mul"]) == 130
    assert capsys.readouterr().err == "run.py: interrupted\n"
    assert signal.getsignal(signal.SIGTERM) is not None
