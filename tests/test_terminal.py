"""What the command line does to a terminal, a pipe and a person: encodings, signals, help, silence."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import run as door
from graph.session import RunService
from tests.graph.doubles import BASELINE, Script, Silent, nobody, paper_context, record, settings

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    RunService(tmp_path, paper_context(Script({1: ["speed 1.3"]}))).start(
        record(settings(rounds=1, baseline="plain ×")), BASELINE, Silent(), nobody
    )
    return tmp_path


SHOWING = """
import sys
sys.path.insert(0, sys.argv[1])
import run
for encoding in sys.argv[3:]:
    sys.stdout.reconfigure(encoding=encoding)
    for words in (["runs"], ["show", "run"], ["show", "run", "--json"], ["history", "run"]):
        code = run.main([*words, "--runs-dir", sys.argv[2]])
        assert code == 0, (words, code)
        print("\\f", end="", flush=True)
"""
ENCODINGS = ["ascii", "latin-1", "cp1252", "utf-8"]


def test_any_encoding_of_the_output_will_do(runs: Path) -> None:
    """One process, which most of this takes; it begins with the first of them, said as a person's terminal says it."""
    done = subprocess.run(
        [sys.executable, "-c", SHOWING, str(REPOSITORY), str(runs), *ENCODINGS],
        capture_output=True, check=False, env=os.environ | {"PYTHONIOENCODING": ENCODINGS[0], "PYTHONUTF8": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    pages = done.stdout.split(b"\f")
    assert len(pages) == 4 * len(ENCODINGS) + 1
    for at, encoding in enumerate(ENCODINGS):
        listed, shown, record, history = (page.decode(encoding) for page in pages[4 * at : 4 * at + 4])
        for said in (listed, shown):
            assert ("1.30×" if encoding != "ascii" else "1.30x") in said and "?" not in said
        assert json.loads(record)["baseline"] == "plain ×"
        assert "the end" in history


@pytest.mark.parametrize(("command", "own"), [("resume", ()), ("fork", ()), ("", ("(5)", "(1)"))])
def test_help_names_only_defaults_that_hold_there(command: str, own: tuple[str, ...], capsys) -> None:
    with pytest.raises(SystemExit):
        door.main([*command.split(), "--help" if command else "--help-all"])
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


def test_a_slow_start_says_that_it_is_one(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def slow(_name: str) -> None:
        time.sleep(0.3)
        raise KeyboardInterrupt

    monkeypatch.setattr("kernels.catalog.load", slow)
    monkeypatch.setattr(door, "STARTING_S", 0.01)
    door.main(["--kernel", "silu_and_mul"])
    assert capsys.readouterr().err == "run.py: interrupted\n"  # a script gets one sentence
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    door.main(["--kernel", "silu_and_mul"])
    assert capsys.readouterr().err.startswith("run.py: still starting")


def test_evaluate_shows_what_it_is_at(capsys, tmp_path: Path) -> None:
    source = REPOSITORY / "tests" / "inputs" / "cpu_quantise" / "baseline.cpp"
    broken = tmp_path / "broken.cpp"
    broken.write_text(source.read_text().replace("127.0f", "126.0f"))
    words = ["evaluate", "--kernel", str(source.parent), "--device", "cpu"]
    assert door.main([*words, str(broken)]) == 3
    said = capsys.readouterr()
    assert " harness " in said.err and "checking " in said.err and "checking" not in said.out
    assert door.main([*words, str(broken), "--json"]) == 3
    said = capsys.readouterr()
    assert said.err == "" and json.loads(said.out)["outcome"] == "INCORRECT"


def test_a_refusals_escape_sequences_are_shown_and_not_obeyed(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    problem = tmp_path / "problem.py"
    problem.write_text(
        "class Model: pass\ndef get_inputs():\n    return []\nraise RuntimeError('\\x1b[2J\\x1b[HPASSED, FASTER 9.99x\\x1b[8m')\n"
    )
    assert door.main(["--kernel", str(problem), "--device", "cpu", "--rounds", "0", "--runs-dir", str(tmp_path)]) != 0
    out, err = capfd.readouterr()
    assert "\x1b" not in out + err and "␛[2J" in err
