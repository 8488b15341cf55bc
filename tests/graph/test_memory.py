"""Memory over whole runs: what the next run is shown, two writers at once, damage, the command."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pytest

import run as door
from graph import checkpoints, memory
from graph.runs import RunError
from graph.session import Ending, RunService
from harness.store import digest
from nodes.lesson import Lesson
from nodes.memory import namespace
from nodes.options import RunOptions
from tests import forked
from tests.graph.doubles import BASELINE, Script, Silent, nobody, paper_context, record, settings
from tests.graph.test_session import Down


def run(folder: Path, script: Script, run_id: str = "run", front: Silent | None = None, **changes) -> Ending:
    made = settings(run_id, **{"memory": "on", **changes})
    return RunService(folder, paper_context(script)).start(record(made), BASELINE, front or Silent(), nobody)


def kept(folder: Path) -> list[Lesson]:
    with memory.store(folder) as store:
        return [entry.lesson for entry in memory.entries(store) if entry.lesson]


def shown(script: Script, role: str) -> list[list[str]]:
    return [[lesson.title for lesson in request.memory] for asked, request in script.asked if asked == role]


def test_the_next_run_is_shown_what_the_first_one_learned(tmp_path: Path) -> None:
    first, second = Script({1: ["speed 1.3", "incorrect\nspeed 2"]}), Script({1: ["speed 1.1"]})
    run(tmp_path, first, rounds=1, width=2, repairs=0)
    assert shown(first, "planner") == [[]]
    assert {(one.title, str(one.outcome), one.kept) for one in kept(tmp_path)} == {
        ("plan 0", "PASSED", True), ("plan 1", "INCORRECT", False),
    }  # fmt: skip
    run(tmp_path, second, "second", rounds=1)
    assert shown(second, "planner") == [["plan 0", "plan 1"]] == shown(second, "coder")
    assert {one.run_id for one in kept(tmp_path)} == {"run", "second"}


def test_what_is_contested_again_is_remembered_as_what_it_turned_out_to_be(tmp_path: Path) -> None:
    run(tmp_path, Script({1: ["speed 1.3\nunclear"]}), rounds=1)
    assert [(one.kept, one.reason) for one in kept(tmp_path)] == [(True, "FASTER with 3 times the samples")]


def test_a_winner_that_does_not_hold_is_remembered_so(tmp_path: Path) -> None:
    run(tmp_path, Script({1: ["speed 1.5\nheld-out fails"]}), rounds=1)
    (lesson,) = kept(tmp_path)
    assert not lesson.kept and lesson.gain is None and "did not hold" in lesson.reason
    assert "3000" not in lesson.model_dump_json()


def test_a_resumed_run_is_shown_what_it_was_shown_before(tmp_path: Path) -> None:
    run(tmp_path, Script({1: ["speed 1.3"]}), "first", rounds=1)
    rounds = {1: ["speed 1.1"], 2: ["speed 1.4"]}
    paused = run(tmp_path, Down(rounds, 2), "second", rounds=2)
    assert paused.state == "paused"
    run(tmp_path, Script({1: ["speed 1.7"]}), "third", rounds=1)
    again = Script(rounds)
    RunService(tmp_path, paper_context(again)).resume("second", Silent(), nobody)
    assert {lesson.run_id for _, request in again.asked for lesson in getattr(request, "memory", ())} == {"first"}


def test_memory_off_touches_nothing(tmp_path: Path) -> None:
    assert RunOptions().memory == settings().memory == "off", "nothing measured says that it pays"
    run(tmp_path, Script({1: ["speed 1.3"]}), rounds=1, memory="off")
    assert not (tmp_path / memory.FILE).exists()


def test_a_damaged_memory_is_one_sentence_and_the_run_goes_on(tmp_path: Path) -> None:
    damaged = b"SQLite format 3\x00" + b"not a database at all" * 100
    (tmp_path / memory.FILE).write_bytes(damaged)
    front = Silent()
    ending = run(tmp_path, Script({1: ["speed 1.3"]}), front=front, rounds=1)
    assert ending.state == "finished" and ending.result.improved
    (said,) = [text for kind, text in front.events if kind == "notice" and "memory" in text]
    assert said.startswith("this run goes without memory: the memory database") and said in ending.result.notices
    assert (tmp_path / memory.FILE).read_bytes() == damaged


def test_a_memory_that_fails_while_a_run_works_is_one_sentence_too(tmp_path: Path) -> None:
    class Breaks(Script):
        def coder(self, request):
            with sqlite3.connect(tmp_path / memory.FILE) as connection:
                connection.execute("DROP TABLE store")
            return super().coder(request)

    front = Silent()
    ending = run(tmp_path, Breaks({1: ["speed 1.3"], 2: ["speed 1.6"]}), front=front, rounds=1)
    assert ending.state == "finished" and ending.result.improved
    assert [text for kind, text in front.events if kind == "notice"][-1] == (
        "this run goes without memory: no such table: store"
    )


def test_a_folder_that_takes_no_memory_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / memory.FILE).mkdir()
    assert run(tmp_path, Script({1: ["speed 1.3"]}), rounds=1).result.improved


WRITERS, EACH = 3, 40
WRITER = """
import sys
from pathlib import Path
from graph import memory
print("ready", flush=True)
sys.stdin.readline()
with memory.open_memory(Path(sys.argv[1])) as store:
    for number in range(int(sys.argv[3])):
        store.put(("lessons", "cpu", "elementwise"), f"{sys.argv[2]} {number}", {"run_id": sys.argv[2]})
    sys.exit(store.said or 0)
"""


def test_runs_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    """Each makes the tables if it is the first."""
    writers = [forked.Program(WRITER, tmp_path, who, EACH) for who in range(WRITERS)]
    assert [writer.stdout.readline() for writer in writers] == ["ready\n"] * WRITERS
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    left = [writer.wait(120) for writer in writers]
    assert left == [0] * WRITERS, [writer.stderr.read() for writer in writers]
    with memory.store(tmp_path) as store:
        assert len(memory.entries(store)) == WRITERS * EACH


def command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = door.main(["memory", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_command_lists_exports_and_forgets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--runs-dir", str(tmp_path)]
    assert command(capsys, *where) == (0, f"{tmp_path} holds no memory: a run with --memory on leaves some\n", "")
    run(tmp_path, Script({1: ["speed 1.3"]}), "first", rounds=1)
    run(tmp_path, Script({1: ["speed 1.1"]}), "second", rounds=1)
    with memory.store(tmp_path) as store:
        store.put(namespace("cpu", "elementwise"), "odd", {"kernel": "odd", "family": 7})
    _, listed, _ = command(capsys, "list", *where)
    assert "plan 0" in listed and "1.300x" in listed and "kept" in listed and "2 of them" in listed
    assert "1 more cannot be read, and no run uses them" in listed
    _, exported, _ = command(capsys, "export", "--run", "fir*", *where)
    (line,) = exported.splitlines()
    assert json.loads(line)["run_id"] == "first" and json.loads(line)["candidate"] == digest("speed 1.3")
    code, _, error = command(capsys, "forget", *where)
    assert code == 2 and "say which" in error
    assert command(capsys, "forget", "--run", "first", *where)[1] == "1 forgotten\n"
    assert {one.run_id for one in kept(tmp_path)} == {"second"}
    assert command(capsys, "forget", "--all", *where)[1] == "2 forgotten\n"
    assert json.loads(command(capsys, "list", "--json", *where)[1]) == []


def test_a_database_that_a_full_disk_cannot_read_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> str:
        raise sqlite3.OperationalError("disk I/O error")

    (tmp_path / memory.FILE).touch()
    monkeypatch.setattr(checkpoints, "_quick_check", fail)
    for free, kind, words in ((0, OSError, "No space left"), (1 << 20, RunError, "is damaged")):
        monkeypatch.setattr(checkpoints.shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        with pytest.raises(kind, match=words):
            checkpoints.refuse_damaged(tmp_path / memory.FILE, "memory's")


def test_a_damaged_memory_is_said_to_who_asks_for_it(tmp_path: Path) -> None:
    (tmp_path / memory.FILE).write_bytes(b"nothing of the kind" * 99)
    with pytest.raises(RunError, match="is damaged"), memory.store(tmp_path):
        pass
