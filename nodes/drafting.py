"""The rules' draft of a problem: the package compiler/draft, run in the compilers' box, since it executes the problem."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

from harness.backends import ENTROPY, run_boxed
from harness.once import Once
from harness.processes.fork_server import site_packages
from harness.store import digest
from nodes.roles import DraftAnswer

PACKAGE = Path(__file__).resolve().parents[1] / "compiler" / "draft"
DRAFT_S = 300.0
MOST_BYTES = 8 << 20


_drafts: Once[DraftAnswer] = Once()
"""A campaign drafts its next problems while it times this one."""


def draft(problem: str, device: str, numerics: str = "eager") -> DraftAnswer:
    """A ModelNew for the problem's text, or one sentence why there is none; worked out once in this process."""
    return _drafts.get(digest(problem, device, numerics), lambda: _drafted(problem, device, numerics))


def _drafted(problem: str, device: str, numerics: str) -> DraftAnswer:
    with tempfile.TemporaryDirectory(prefix="astrolabe-draft-") as folder:
        scratch = Path(folder)
        shutil.copytree(PACKAGE, scratch / "draft")  # what Python compiled of it too: an eighth of a draft
        (scratch / "problem.py").write_text(problem)
        out = scratch / "out.json"
        command = [
            sys.executable,
            "-I",
            str(scratch / "draft"),
            str(scratch / "problem.py"),
            device,
            str(out),
            numerics,
        ]
        readable = [site_packages(), ENTROPY]
        code, output = run_boxed(command, scratch, readable, DRAFT_S, memory_bytes=16 << 30)
        if code != 0 or not out.is_file() or out.is_symlink() or out.stat().st_size > MOST_BYTES:
            last = (output.strip().splitlines() or ["no reason given"])[-1]
            return DraftAnswer(reason=f"the drafter failed on this module: {last[:400]}")
        return _answer(out.read_text(errors="replace"))


def _answer(text: str) -> DraftAnswer:
    """What the box wrote: the problem's code ran there too, so it is read as from a stranger."""
    try:
        said = json.loads(text)
    except ValueError:
        said = None
    if not isinstance(said, dict):
        return DraftAnswer(reason="the drafter's answer is no JSON object")
    if isinstance(said.get("source"), str) and said["source"].strip():
        notes = said.get("notes")
        notes = notes if isinstance(notes, list) else []
        return DraftAnswer(source=said["source"], notes=tuple(str(note)[:300] for note in notes[:20]))
    return DraftAnswer(reason=str(said.get("none") or "the drafter gave no source and no reason")[:500])
