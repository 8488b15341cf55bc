"""Workers with libraries of ours: the neighbours of timed calls by themselves, and the speed of light's probe."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from harness.device import ArgumentBuffers
from harness.processes.worker import SiblingWorker, Worker, WorkerFailure, get_spares
from harness.store import digest, digest_of
from kernels.spec import Device

Workers = dict[str, Worker]
_idle: list[Workers] = []
"""Of pools that are closed, for the next one."""
_content = functools.lru_cache(64)(digest_of)


class OwnWorker(Worker):
    """One for them. It begins none that wait: a problem's candidates take others."""

    def _spare(self) -> Worker | None:
        return get_spares().take(self.limits, more=False) if self.device == "cuda" else None


class OwnLibraries:
    """For one pool, each kept until its end. On a GPU all are in one process, which the next pool goes on with: nothing of a candidate was
    ever in it, and CUDA's start takes longer than what most problems ask of it."""

    def __init__(self, device: Device, company: Callable[[], Path]) -> None:
        self.device, self.company = device, company
        self.workers: Workers = {}

    def get(self, name: str, artefact: Path, symbols: dict[str, tuple[str, ...]]) -> tuple[Worker, Worker | None]:
        """(its worker, the one before that has died). Raises WorkerFailure where it cannot be started."""
        if not self.workers and self.device == "cuda" and _idle:
            self.workers = _idle.pop()
        key = digest(name, _content(artefact))
        before = self.workers.get(key)
        if before is not None and before.alive:
            return before, None
        first = next((one for one in self.workers.values() if one.alive), None) if self.device == "cuda" else None
        if first is not None:
            worker: Worker = SiblingWorker(first, artefact, symbols)
        else:
            worker = OwnWorker(device=self.device, artefact=artefact, symbols=symbols, company=self.company())
        self.workers[key] = worker
        return worker, before

    def leave(self, arena: ArgumentBuffers | None) -> list[Worker]:
        """Let the next pool have them, without this one's arena; those that must end instead."""
        workers, self.workers = self.workers, {}
        every = list(workers.values())
        if self.device != "cuda" or not every or not all(one.alive for one in every):
            return every
        try:
            if arena is not None:
                for one in every:
                    one.unmap(arena)
        except WorkerFailure:
            return every
        _idle.append(workers)
        return []
