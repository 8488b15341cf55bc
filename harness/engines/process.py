"""This machine as the engine: Evaluators that work where they are asked."""

from __future__ import annotations

import os
from types import ModuleType
from typing import TYPE_CHECKING, Any

from harness.device import choose
from harness.engines import Cores, Engine, EngineChoice, Say
from kernels.spec import Device

if TYPE_CHECKING:
    from harness.evaluate import Evaluator
    from harness.store import Store
    from kernels.catalog import Kernel

CORES_OF_A_GPU = 6
"""CPU cores for judging on one GPU: those of the session, of the candidate's and of its rival's threads."""


class ThisMachine:
    """The engine `process` (harness/engines/__init__.py): Evaluators that work where they are."""

    memory_bytes: int | None = None
    here = True
    say: Say = staticmethod(lambda _text: None)

    def __init__(self, device: Device, why: str) -> None:
        self.device, self.why = device, why

    def kinds(self) -> dict[str, Engine]:
        return {self.device: self}

    def missing(self, backend: ModuleType) -> str:
        return backend.why_unavailable()

    def evaluator(self, kernel: Kernel, store: Store, **settings: Any) -> Evaluator:
        from harness.evaluate import Evaluator  # which imports this module

        return Evaluator(kernel, self.device, store, **settings)

    def cores(self) -> Cores:
        every = tuple(sorted(os.sched_getaffinity(0)))
        if self.device == "cpu" or len(every) < 2 * CORES_OF_A_GPU:
            return Cores(own=every, spare=())
        return Cores(own=every[:CORES_OF_A_GPU], spare=every[CORES_OF_A_GPU:])

    def width(self) -> int:
        return 1

    def lines(self) -> list[tuple[str, str]]:
        return []

    def close(self) -> None:
        """Nothing is open."""


def open_engine(_choice: EngineChoice, wanted: str, _say: Say, _every: bool) -> ThisMachine:
    """Raises DeviceError where the device that is wanted cannot be used."""
    return ThisMachine(*choose(wanted))
