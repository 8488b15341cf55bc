"""Asks the person at the terminal what nodes/approve.py wants to know, or reads the answer of `resume --answer`."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from graph.runs import RunError
from harness.report.inert import escape_controls, one_line
from harness.report.words import times
from harness.store import Store
from nodes.approve import Answer, edit_plan
from nodes.roles import Plan

_ANSWERS = "answer yes, no, or `no: why`, or @FILE with what should be there instead"


def on_terminal(question: dict[str, Any], store: Store) -> Answer | None:
    """None where standard input is no terminal: then the run pauses, and can be answered days later."""
    if not sys.stdin.isatty():
        return None
    out = sys.stderr
    said = [f"Round {question['round']}, {question['kind']} {question['plan']}:", escape_controls(question["text"])]
    if question.get("why"):
        said.append(f"why: {one_line(question['why'], 600)}")
    gain = question.get("expected_speedup")
    said.append(f"expected: {times(gain)} over what it starts from" if gain else "expected: nothing in numbers")
    print("", *said, "", sep="\n\n", file=out)
    while True:
        print("yes, no, `no: why`, or edit? ", end="", file=out, flush=True)
        line = sys.stdin.readline()
        if not line:
            return None
        word = line.strip()
        if word.lower() in ("y", "yes"):
            return "yes"
        if word.lower() in ("n", "no"):
            return "no"
        if word.lower().startswith("no:"):
            return word
        if word.lower() in ("e", "edit"):
            whole = store.get(question["candidate"]) if question["kind"] == "candidate" else question["text"]
            edited = _edited(whole)
            if edited is not None:
                try:
                    fits({"edit": edited}, question)
                except RunError as error:
                    print(error, file=out)
                else:
                    return {"edit": edited}


def from_option(text: str) -> Answer:
    """The value of --answer. Raises RunError where it is no answer."""
    if text in ("yes", "no") or text.startswith("no:"):
        return text
    if not text.startswith("@"):
        raise RunError(f"--answer {text!r} is no answer: {_ANSWERS}")
    try:
        edit = Path(text[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"--answer {text}: the file cannot be read: {error}") from None
    if not edit.strip():
        raise RunError(f"--answer {text}: the file is empty")
    return {"edit": edit}


def fits(answer: Answer, question: dict[str, Any]) -> None:
    """Raises RunError where an edit is not of the form that the question wants."""
    if isinstance(answer, dict) and question["kind"] == "plan":
        try:
            edit_plan(Plan(id="edited", title="", steps=("",)), answer["edit"])
        except ValueError as error:
            raise RunError(str(error)) from None


def _edited(text: str) -> str | None:
    """The text as the person left it in $EDITOR; None where it is empty or the editor failed."""
    command = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "edit.txt"
        path.write_text(text)
        try:
            done = subprocess.run([*command, str(path)], check=False)
        except OSError as error:
            print(f"the editor {command[0]} cannot be started ({error.strerror}); set EDITOR", file=sys.stderr)
            return None
        return path.read_text() if done.returncode == 0 and path.read_text().strip() else None
