"""The live objects of a run: never checkpointed, made anew by every process that works on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from harness.evaluate import Evaluator
from harness.store import Store
from kernels.catalog import Kernel
from nodes.roles import Policy, Role


def _silent(_event: str, _text: str) -> None:
    pass


@dataclass(frozen=True)
class Context:
    kernel: Kernel
    evaluator: Evaluator
    store: Store
    policies: dict[Role, Policy]
    say: Callable[[str, str], None] = field(default=_silent)
    """say(kind, text): progress inside a node, for the live display. Nothing may depend on it."""
