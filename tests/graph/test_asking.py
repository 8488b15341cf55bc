"""Questions to a person at a terminal, and answers on the command line."""

from __future__ import annotations

import io
import os
import pty
import sys
from pathlib import Path

import pytest

from graph import asking
from graph.runs import RunError
from harness.store import Store
from tests import forked

PLAN = {
    "kind": "plan", "round": 1, "plan": "p", "text": "title\nstep", "why": "it waits\x1b[2J", "expected_speedup": 1.4,
}  # fmt: skip


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("yes\n", "yes"),
        ("Y\n", "yes"),
        ("no\n", "no"),
        ("no: later\n", "no: later"),
        ("what?\nyes\n", "yes"),
        ("", None),
    ],
)
def test_answers_at_the_terminal(
    typed: str, answer: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    assert asking.on_terminal(PLAN, Store(tmp_path)) == answer
    said = capsys.readouterr()
    assert "title\nstep" in said.err and said.out == ""
    assert (
        "why: it waits" in said.err
        and "\x1b" not in said.err
        and "expected: 1.40× over what it starts from" in said.err
    )


def test_nobody_is_asked_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("yes\n"))
    assert asking.on_terminal(PLAN, Store(tmp_path)) is None


def test_an_edit_is_made_in_the_editor_and_must_fit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store = Store(tmp_path)
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\necho "speed 2" > "$1"\n')
    editor.chmod(0o755)
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", str(editor))
    monkeypatch.setattr(sys, "stdin", Terminal("edit\n"))
    question = {**PLAN, "kind": "candidate", "candidate": store.put("speed 1")}
    assert asking.on_terminal(question, store) == {"edit": "speed 2\n"}
    monkeypatch.setattr(sys, "stdin", Terminal("edit\nno\n"))
    assert asking.on_terminal(PLAN, store) == "no"  # one line is no plan, so it was asked again
    monkeypatch.setenv("EDITOR", str(tmp_path / "none"))
    monkeypatch.setattr(sys, "stdin", Terminal("edit\nno\n"))
    assert asking.on_terminal(question, store) == "no"


def test_the_text_of_a_candidate_cannot_drive_the_terminal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal("no\n"))
    asking.on_terminal({**PLAN, "text": "\x1b[2Jgone"}, Store(tmp_path))
    assert "\x1b" not in capsys.readouterr().err


def test_answers_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "edit").write_text("speed 3")
    assert asking.from_option("yes") == "yes"
    assert asking.from_option("no: why") == "no: why"
    assert asking.from_option(f"@{tmp_path / 'edit'}") == {"edit": "speed 3"}


@pytest.mark.parametrize("text", ["", "maybe", "@/no/such/file", f"@{os.devnull}"])
def test_what_is_no_answer_is_refused(text: str) -> None:
    with pytest.raises(RunError, match="--answer"):
        asking.from_option(text)


SESSION = """
import os, sys
from pathlib import Path
from graph import live
from graph.asking import on_terminal
from graph.session import RunService
from tests.graph.doubles import BASELINE, Script, paper_context, record, settings

with live.display() as front:
    made = record(settings(rounds=1, approve="candidates"))
    ending = RunService(Path(sys.argv[1]), paper_context(Script({1: ["speed 1.3"]}))).start(made, BASELINE, front, on_terminal)
print("left as", ending.state, [row.accepted for row in ending.result.attempts], flush=True)
os._exit(0)
"""


@pytest.mark.parametrize(
    ("keys", "left"), [(b"yes\n", b"left as finished [True]"), (b"\x03", b"left as interrupted []")]
)
def test_at_a_real_terminal(keys: bytes, left: bytes, tmp_path: Path) -> None:
    """The live display makes room for the question, and Ctrl-C there does not wait for an answer."""
    mine, theirs = pty.openpty()
    process = forked.Program(SESSION, tmp_path, terminal=theirs)
    os.close(theirs)
    seen, asked = b"", False
    while True:
        try:
            data = os.read(mine, 65536)
        except OSError:  # the far side is closed
            break
        if not data:
            break
        seen += data
        if b"or edit? " in seen and not asked:
            asked = True
            os.write(mine, keys)
    os.close(mine)
    assert process.wait(20) == 0 and left in seen, seen[-2000:]
