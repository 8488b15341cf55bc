"""The rules' draft of a problem: the package compiler/draft, run in the compilers' box, since it executes the problem."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.backends import ENTROPY
from harness.once import Once
from harness.processes.fork_server import PythonWorker, get_fork_server
from harness.processes.worker import LIMITS, Worker, WorkerFailure
from harness.store import digest
from nodes.roles import DraftAnswer

PACKAGE = Path(__file__).resolve().parents[1] / "compiler" / "draft"
DRAFT_S = 300.0
MOST_BYTES = 8 << 20
OUT = "out.json"


_drafts: Once[DraftAnswer] = Once()
"""A campaign drafts its next problems while it times this one."""


def draft(problem: str, device: str, numerics: str = "eager") -> DraftAnswer:
    """A ModelNew for the problem's text, or one sentence why there is none; worked out once in this process."""
    return _drafts.get(digest(problem, device, numerics), lambda: _drafted(problem, device, numerics))


def _drafted(problem: str, device: str, numerics: str) -> DraftAnswer:
    worker = None
    try:
        worker = DraftWorker()
        worker.draft(problem, device, numerics)
    except WorkerFailure as fault:
        if worker is None or not worker.answer:
            return DraftAnswer(reason=f"the drafter failed on this module: {' '.join(fault.reason.split())[:400]}")
    finally:
        if worker is not None:
            worker.close()
    return _answer(worker.answer) if worker.answer else DraftAnswer(reason="the drafter gave no answer")


class DraftWorker(PythonWorker):
    """Drafts one problem, forked from a process that has imported torch: to import it took three quarters of a draft's time."""

    answer = ""
    """What it wrote; read before its folder goes, since a draft that takes too long ends its process with an answer."""

    def __init__(self) -> None:
        """Raises WorkerFailure."""
        self.fork_server, self.device, self.compilers = get_fork_server("cpu", libraries=True), "cpu", True
        self.limits = LIMITS._replace(memory_bytes=16 << 30, threads=1024)
        Worker._enter(self)

    def draft(self, problem: str, device: str, numerics: str) -> None:
        """Raises WorkerFailure."""
        package = self._own(PACKAGE)
        asked = {"role": "draft", "text": problem, "arguments": [device, str(self.scratch / OUT), numerics]}
        message: dict[str, Any] = {
            "op": "load", "path": str(package), "arguments": [], "entry": "", "backend": "model_new", "symbols": {},
            "site": self.fork_server.site, "compilers": True, "ours": True, "problem": asked, **self._device(),
        }  # fmt: skip
        self.request(message, timeout_s=DRAFT_S)

    def _visible(self) -> dict[str, Any]:
        return {"readable": [*super()._visible()["readable"], ENTROPY]}

    def close(self) -> None:
        out = self.scratch / OUT
        if not self.answer and out.is_file() and not out.is_symlink() and out.stat().st_size <= MOST_BYTES:
            self.answer = out.read_text(errors="replace")
        super().close()


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
