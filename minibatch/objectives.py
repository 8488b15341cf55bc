"""What is learnt: one class a node, several labels a node, or numbers. Each has a loss, and a metric that validation compares."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from minibatch.graphs import Graph, GraphError


@dataclass(frozen=True)
class Objective:
    """kind: one of KINDS."""

    kind: str

    @property
    def metric(self) -> str:
        return KINDS[self.kind]

    def better(self, one: float, other: float | None) -> bool:
        """Whether a metric is better than another, or than none."""
        return other is None or (one < other if self.kind == "regression" else one > other)

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The mean over rows that have a label (class -1, or NaN, is none), of float32 logits [rows, classes]."""
        if self.kind == "classes":
            # Not its own mean: that is made by one block on a GPU, and is NaN where no row has a label.
            each = F.cross_entropy(logits, labels, ignore_index=-1, reduction="none")
            return each.sum() / (labels >= 0).sum().clamp_min(1)
        known = ~labels.isnan()
        wanted = labels.nan_to_num()
        if self.kind == "multi-label":
            each = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
        else:
            each = F.mse_loss(logits, wanted, reduction="none")
        return torch.where(known, each, 0).sum() / known.sum().clamp_min(1)

    def counts(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """float64 [2] that add up over batches; the metric is made of their sums."""
        if self.kind == "classes":
            known = labels >= 0
            found = ((logits.argmax(dim=1) == labels) & known).sum(), known.sum()
        elif (
            self.kind == "multi-label"
        ):  # micro F1: twice the right ones over all that were said and all that there are
            known, said, true = ~labels.isnan(), logits > 0, labels > 0.5
            found = 2 * (said & true).sum(), (said & known).sum() + (true & known).sum()
        else:
            known = ~labels.isnan()
            found = torch.where(known, (logits - labels.nan_to_num()) ** 2, 0).sum(), known.sum()
        return torch.stack([one.double() for one in found])

    def value(self, counts: torch.Tensor) -> float | None:
        """The metric; None where nothing was labelled."""
        first, second = counts.tolist()
        if not second:
            return None
        return (first / second) ** 0.5 if self.kind == "regression" else first / second

    def metric_of(self, batches: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> float | None:
        """The metric of (logits, labels) of batches."""
        sums = None
        for logits, labels in batches:
            more = self.counts(logits, labels)
            sums = more if sums is None else sums + more
        return None if sums is None else self.value(sums)

    def predictions(self, logits: torch.Tensor) -> torch.Tensor:
        """int64 [rows] of classes, uint8 [rows, classes] of labels that hold, or float32 [rows, outputs] of numbers."""
        if self.kind == "classes":
            return logits.argmax(dim=1)
        return (logits > 0).to(torch.uint8) if self.kind == "multi-label" else logits


KINDS = {"classes": "accuracy", "multi-label": "micro_f1", "regression": "rmse"}
"""Kind -> its metric."""


def of(graph: Graph, kind: str | None = None) -> Objective:
    """The graph's own kind, by its labels: classes of whole numbers, several labels where all numbers are 0 or 1, else regression.

    kind: another that its labels allow. Raises GraphError where they do not.
    """
    labels = graph.labels
    if labels.dtype == torch.int64:
        if kind not in (None, "classes"):
            raise GraphError(
                f"--loss {kind} needs labels of float32, [nodes, outputs], and this graph has one class a node"
            )
        return Objective("classes")
    binary = bool(((labels == 0) | (labels == 1) | labels.isnan()).all())
    if kind == "classes" or (kind == "multi-label" and not binary):
        raise GraphError(f"--loss {kind} does not fit the graph's labels, which are numbers of float32")
    return Objective(kind or ("multi-label" if binary else "regression"))
