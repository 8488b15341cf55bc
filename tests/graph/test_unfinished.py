"""What `show`, `history`, `export` and `fork` say of runs that are not over, or of which something is lost."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from rich.console import Console

import run as door_of
from graph.runs import RunError, RunFolder
from graph.session import RunService
from harness.report.table import print_attempts
from nodes.roles import PolicyPaused
from tests.graph.doubles import BASELINE, Script, Silent, nobody, paper_context, record, settings

ROUNDS = {1: ["speed 1.3"], 2: ["speed 1.2"], 3: ["speed 1.6"]}


class Mute(Script):
    """Its server is down before anything is measured."""

    def tester(self, request):
        raise PolicyPaused("the server does not answer")


class Late(Script):
    """Its server is down in the third round."""

    def coder(self, request):
        if request.round == 3:
            raise PolicyPaused("the server does not answer")
        return super().coder(request)


def door(folder: Path, script: Script) -> RunService:
    return RunService(folder, paper_context(script))


def begun(folder: Path) -> RunFolder:
    """A run whose process was killed before its first checkpoint."""
    run = RunFolder(folder, "run")
    run.begin(record(settings()), BASELINE)
    return run


def shown(folder: Path, *words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = door_of.main([*words, "--runs-dir", str(folder)])
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.parametrize("words", [("show", "run"), ("show", "run", "--json"), ("history", "run"), ("graph", "run")])
def test_nothing_is_known_of_a_run_without_a_checkpoint(tmp_path: Path, words, capsys) -> None:
    run = begun(tmp_path)
    code, out, said = shown(tmp_path, *words, capsys=capsys)
    assert (code, out, said.count("\n")) == (2, "", 1)
    assert "run run has no checkpoint: it was stopped before its first node had finished" in said
    assert f"run.py resume run --runs-dir {tmp_path}" in said
    assert not run.checkpoints.exists()  # looking changes nothing


def test_a_run_that_is_paused_in_its_first_node_is_not_called_finished(tmp_path: Path, capsys) -> None:
    paused = door(tmp_path, Mute(ROUNDS)).start(record(settings()), BASELINE, Silent(), nobody)
    assert paused.state == "paused"
    code, out, _ = shown(tmp_path, "show", "run", capsys=capsys)
    assert code == 0 and "No improvement" not in out and "Attempts" not in out
    assert "Not finished: nothing faster than the plain baseline so far: twice on cpu" in out
    assert "paused; 0 attempts" in out
    assert "the server does not answer" in out and f"run.py resume run --runs-dir {tmp_path}" in out


def test_a_run_that_is_stopped_later_says_what_it_has(tmp_path: Path) -> None:
    ending = door(tmp_path, Late(ROUNDS)).start(record(settings()), BASELINE, Silent(), nobody)
    result = door(tmp_path, Script(ROUNDS)).result(ending.run)
    console = Console(record=True, width=150)
    print_attempts(result, console)
    text = console.export_text()
    assert "Not finished: 1.30×" in text and "paused; 2 attempts" in text


def test_the_record_is_shown_where_the_checkpoints_are_lost(tmp_path: Path, capsys) -> None:
    ending = door(tmp_path, Script(ROUNDS)).start(record(settings()), BASELINE, Silent(), nobody)
    ending.run.checkpoints.unlink()
    code, out, _ = shown(tmp_path, "show", "run", capsys=capsys)
    assert code == 0 and "1.60×" in out and "finished: rounds" in out
    assert "has no checkpoint any more" in out and "its record as it was last written" in out.replace("\n", " ")
    code, out, said = shown(tmp_path, "history", "run", capsys=capsys)
    assert (code, out) == (2, "") and "run run has no checkpoint any more: they were lost" in said
    (ending.run.folder / "result.json").unlink()
    code, out, said = shown(tmp_path, "show", "run", capsys=capsys)
    assert (code, out) == (2, "") and "has no checkpoint any more: they were lost" in said and "resume" not in said


@pytest.mark.parametrize("command", ["export", "fork", "resume"])
def test_a_lost_store_is_one_sentence(tmp_path: Path, command: str, capsys) -> None:
    paper = door(tmp_path, Script(ROUNDS))
    ending = door(tmp_path, Late(ROUNDS)).start(record(settings()), BASELINE, Silent(), nobody)
    point = next(s for s in paper.history(ending.run) if s.next == ("profiler",))
    shutil.rmtree(ending.run.store.folder)
    more = ["--checkpoint", point.config["configurable"]["checkpoint_id"], "--run-id", "new"]
    code, out, said = shown(tmp_path, command, "run", *(more if command == "fork" else []), capsys=capsys)
    assert (code, said.count("\n"), out) == (2, 1, ""), said
    assert "sources are lost" in said and str(ending.run.store.folder) in said
    assert not (tmp_path / "new").exists() and RunFolder(tmp_path, "run").status.state == "paused"


def test_a_run_without_samples_says_so(tmp_path: Path, capsys) -> None:
    door(tmp_path, Late(ROUNDS)).start(record(settings()), BASELINE, Silent(), nobody)
    code, out, said = shown(tmp_path, "export", "run", "--samples", str(tmp_path / "s.csv"), capsys=capsys)
    assert (code, out) == (2, "") and "has kept no samples" in said and not (tmp_path / "s.csv").exists()


def test_a_fork_that_is_refused_leaves_nothing_behind(tmp_path: Path, capsys) -> None:
    door(tmp_path, Script(ROUNDS)).start(record(settings()), BASELINE, Silent(), nobody)
    code, out, said = shown(tmp_path, "fork", "run", "--checkpoint", "nothing", "--run-id", "new", capsys=capsys)
    assert (code, out) == (2, "") and "has no checkpoint 'nothing'" in said
    assert not (tmp_path / "new").exists()


def test_an_ambiguous_checkpoint_names_some_that_it_may_be(tmp_path: Path, capsys) -> None:
    ending = door(tmp_path, Script(ROUNDS)).start(record(settings()), BASELINE, Silent(), nobody)
    ids = [s.config["configurable"]["checkpoint_id"] for s in door(tmp_path, Script(ROUNDS)).history(ending.run)]
    _, _, said = shown(tmp_path, "fork", "run", "--checkpoint", "-", capsys=capsys)
    assert f"'-' may be any of {len(ids)} checkpoints of run run" in said and "give more of it" in said


def test_a_start_that_the_database_refuses_leaves_no_run(tmp_path: Path) -> None:
    refused = RunService(tmp_path, paper_context(Script(ROUNDS)), "postgresql://nobody@127.0.0.1:1/nothing")
    with pytest.raises(RunError, match="PostgreSQL at"):
        refused.start(record(settings()).model_copy(update={"checkpointer": "postgresql"}), BASELINE, Silent(), nobody)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_something_in_it_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    refused = RunService(tmp_path, paper_context(Script(ROUNDS)), "postgresql://nobody@127.0.0.1:1/nothing")
    with pytest.raises(RunError, match="PostgreSQL at"):
        refused.start(record(settings()).model_copy(update={"checkpointer": "postgresql"}), BASELINE, Silent(), nobody)
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"
