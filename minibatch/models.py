"""Models over message-flow layers: GraphSAGE of our own, others out of PyTorch Geometric's layers.

All take `(layers, x)`: layers as in Batch.hops but deepest first, int32 [rows, fanout] of places in the features or hidden
rows below, -1 for none; x float32 or bfloat16 [nodes, width]; and give logits, float32 [seeds, classes].
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from minibatch.graphs import GraphError

NAMES = ("sage", "gat", "gin", "sage-ri")
Aggregate = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""(h [sources, width], ids int32 [rows, fanout]) -> (h[:rows], mean of h[ids])."""


def self_and_mean(h: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same by torch alone: a bag of embeddings is the mean of the rows that it names."""
    some = ids >= 0
    count = some.sum(dim=1)
    mean = F.embedding_bag(ids[some].long(), h, count.cumsum(0) - count, mode="mean")
    return h[: len(ids)], mean


class Sage(nn.Module):
    """GraphSAGE with mean aggregation as SALIENT trains it: no bias, ReLU, dropout between layers."""

    def __init__(self, width: int, hidden: int, classes: int, layers: int, dropout: float) -> None:
        super().__init__()
        sizes = [width, *[hidden] * (layers - 1), classes]
        self.own = nn.ParameterList(_weight(a, b) for a, b in itertools.pairwise(sizes))
        self.neighbours = nn.ParameterList(_weight(a, b) for a, b in itertools.pairwise(sizes))
        self.depth = layers
        self.dropout = dropout
        self.aggregate: Aggregate = self_and_mean

    def forward(self, layers: list[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        h = x
        for number, ids in enumerate(layers):
            h = self.layer(number, *self.aggregate(h, ids))
        return h.float()

    def layer(self, number: int, own: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
        """The layer's output of rows and their neighbours' means, in the inputs' dtype."""
        h = torch.addmm(own @ self.own[number].to(own.dtype), mean, self.neighbours[number].to(own.dtype))
        if number == len(self.own) - 1:
            return h
        return F.dropout(F.relu(h), self.dropout, self.training)

    def whole_layer(
        self, number: int, h: torch.Tensor, own: torch.Tensor, offsets: torch.Tensor, neighbours: torch.Tensor
    ) -> torch.Tensor:
        """The layer's output of rows `own` from all neighbours: ids in h of row i from offsets[i] to offsets[i + 1]."""
        mean = F.embedding_bag(neighbours.long(), h, offsets, mode="mean")
        return self.layer(number, own, mean.to(h.dtype))

    def classify(self, outputs: list[torch.Tensor]) -> torch.Tensor:
        """Logits of rows whose outputs of every layer these are."""
        return outputs[-1]


def _weight(rows: int, columns: int) -> nn.Parameter:
    """As PyTorch Geometric's SAGEConv begins, which SALIENT trains: wider ones take several epochs more to learn."""
    return nn.Parameter(nn.init.uniform_(torch.empty(rows, columns), -(rows**-0.5), rows**-0.5))


class Geometric(nn.Module):
    """A stack of PyTorch Geometric's convolutions; `gat` 4 heads, `gin` with two-layer perceptrons, `sage-ri` GraphSAGE
    whose layers' outputs are all read by the classifier (SALIENT's SAGEResInception, without its batch norm)."""

    def __init__(self, kind: str, width: int, hidden: int, classes: int, layers: int, dropout: float) -> None:
        super().__init__()
        try:
            from torch_geometric import nn as geometric
        except ImportError:
            raise GraphError(
                f"--model {kind} is built of PyTorch Geometric's layers, which are not here: pip install torch-geometric "
                "(or take --model sage)"
            ) from None
        self.kind, self.dropout, self.depth = kind, dropout, layers
        inputs = [width, *[hidden] * (layers - 1)]
        if kind == "gat":
            made = [geometric.GATConv((n, n), hidden // 4, heads=4, add_self_loops=False) for n in inputs]
        elif kind == "gin":
            made = [
                geometric.GINConv(nn.Sequential(nn.Linear(n, hidden), nn.ReLU(), nn.Linear(hidden, hidden)))
                for n in inputs
            ]
        else:
            made = [geometric.SAGEConv((n, n), hidden) for n in inputs]
        self.convolutions = nn.ModuleList(made)
        self.head = nn.Linear(hidden * layers if kind == "sage-ri" else hidden, classes)

    def forward(self, layers: list[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        h, seeds, seen = x, len(layers[-1]), []
        # As our own model computes: in the features' 16 bits, from weights of 32.
        with torch.autocast(x.device.type, torch.bfloat16, enabled=x.dtype == torch.bfloat16):
            for convolution, ids in zip(self.convolutions, layers, strict=True):
                rows = len(ids)
                h = convolution((h, h[:rows]), edge_index(ids), size=(len(h), rows))
                h = F.dropout(F.relu(h), self.dropout, self.training)
                seen.append(h[:seeds])
            return self.classify(seen).float()

    def whole_layer(
        self, number: int, h: torch.Tensor, own: torch.Tensor, offsets: torch.Tensor, neighbours: torch.Tensor
    ) -> torch.Tensor:
        """As Sage.whole_layer."""
        degree = torch.diff(offsets, append=offsets.new_tensor([len(neighbours)]))
        rows = torch.repeat_interleave(torch.arange(len(own), device=h.device), degree)
        edges = torch.stack([neighbours.long(), rows])
        return F.relu(self.convolutions[number]((h, own), edges, size=(len(h), len(own))))

    def classify(self, outputs: list[torch.Tensor]) -> torch.Tensor:
        """As Sage.classify."""
        return self.head(torch.cat(outputs, dim=1) if self.kind == "sage-ri" else outputs[-1])


def edge_index(ids: torch.Tensor) -> torch.Tensor:
    """int64 [2, edges]: sources and rows of the neighbours that are there."""
    rows, places = torch.nonzero(ids >= 0, as_tuple=True)
    return torch.stack([ids[rows, places].long(), rows])


def make(kind: str, width: int, hidden: int, classes: int, layers: int, dropout: float = 0.5) -> nn.Module:
    """The named model with fresh weights. Raises GraphError for an unknown name or a missing package."""
    if kind not in NAMES:
        raise GraphError(f"there is no model {kind!r}; there is {', '.join(NAMES)}")
    if kind == "sage":
        return Sage(width, hidden, classes, layers, dropout)
    return Geometric(kind, width, hidden, classes, layers, dropout)
