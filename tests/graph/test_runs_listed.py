"""`runs`: sorted and filtered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import run as door
from graph.runs import RunFolder, RunStatus, now
from tests.graph.doubles import BASELINE, record, settings


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name, kernel, state, speedup in (
        ("b", "silu_and_mul", "finished", 1.3),
        ("a", "fused_add_rmsnorm", "paused", None),
        ("c", "silu_and_mul", "finished", 2.5),
    ):
        run = RunFolder(tmp_path, name)
        run.reserve()
        run.begin(record(settings(name)).model_copy(update={"kernel": kernel}), BASELINE)
        run.note(RunStatus(state=state, speedup=speedup, updated=now()))
    return tmp_path


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ([], "bac"),
        (["--sort", "speedup"], "abc"),
        (["--sort", "speedup", "--reverse"], "cba"),
        (["--sort", "kernel"], "abc"),
        (["--kernel", "silu*"], "bc"),
        (["--status", "paused"], "a"),
        (["--kernel", "silu*", "--sort", "speedup", "--reverse"], "cb"),
        (["--device", "cuda"], ""),
        (["--policy", "rules"], "bac"),
    ],
)
def test_runs_are_sorted_and_filtered(runs: Path, words: list[str], names: str, capsys) -> None:
    assert door.main(["runs", "--runs-dir", str(runs), "--json", *words]) == 0
    assert "".join(line["run_id"] for line in json.loads(capsys.readouterr().out)) == names


def test_nothing_that_fits_is_not_an_empty_folder(runs: Path, tmp_path: Path, capsys) -> None:
    assert door.main(["runs", "--runs-dir", str(runs), "--device", "cuda"]) == 0
    assert capsys.readouterr().out == f"none of the 3 runs in {runs}\n"
    assert door.main(["runs", "--runs-dir", str(tmp_path / "none")]) == 0
    assert "holds no run" in capsys.readouterr().out
