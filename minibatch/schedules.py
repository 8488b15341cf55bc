"""Learning rates over epochs, by PyTorch's own schedulers."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import lr_scheduler

from minibatch.objectives import Objective

NAMES = ("constant", "cosine", "plateau")
PLATEAU: dict[str, Any] = {"factor": 0.5, "patience": 3}
"""The rate is halved after more than so many epochs without a better metric of valid ids."""


class RateSchedule:
    """One of NAMES, stepped once an epoch; it sets the optimizer's rate, a captured step's too."""

    def __init__(self, name: str, optimizer: torch.optim.Optimizer, epochs: int, objective: Objective) -> None:
        self.optimizer = optimizer
        self.rate_before = self._rate()
        """Learning rate of the epoch that was stepped last."""
        self.inner: Any = None
        if name == "cosine":
            self.inner = lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
        elif name == "plateau":
            higher = objective.better(1, 0)
            self.inner = lr_scheduler.ReduceLROnPlateau(optimizer, mode="max" if higher else "min", **PLATEAU)

    def _rate(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    def step(self, metric: float | None) -> None:
        """An epoch has ended; metric: of valid ids, the same on every rank."""
        self.rate_before = self._rate()
        if isinstance(self.inner, lr_scheduler.ReduceLROnPlateau):
            assert metric is not None  # commands.epoch refuses a graph without valid ids
            self.inner.step(metric)
        elif self.inner is not None:
            self.inner.step()

    def held(self) -> dict[str, Any]:
        """What `load` goes on from: numbers and lists of them."""
        state = {} if self.inner is None else self.inner.state_dict()
        return {name: _plain(value) for name, value in state.items()}

    def load(self, held: dict[str, Any]) -> None:
        if self.inner is not None:
            self.inner.load_state_dict(held)


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return float(value)
    return [_plain(one) for one in value] if isinstance(value, list) else value
