"""SALIENT's models over message-flow layers: GraphSAGE of our own kernels, others of PyTorch Geometric's layers; and a user's.

All take `(layers, x)`: layers deepest first, each int32 [rows, fanout] as in Batch.hops, places in the features or hidden rows
below, -1 for none, or Edges; x float32 or bfloat16 [nodes, width]; and give logits, float32 [seeds, classes]. A layer's rows are
the first of those below. One name is one model, with the same weights, whoever makes the batches.
"""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from minibatch.graphs import GraphError

NAMES = ("sage", "gat", "gin", "sage-ri")
Aggregate = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""(h [sources, width], ids int32 [rows, fanout]) -> (h[:rows], mean of h[ids])."""
RESIDUAL_SHARE = 0.2
"""Dropout of sage-ri in each of its places, as a share of other models': SALIENT's 0.1 where others have 0.5."""


@dataclass
class Edges:
    """A layer as edges, int64: from source[i], a place in the rows below, to row[i]; own [rows]: each row's own place below."""

    source: torch.Tensor
    row: torch.Tensor
    own: torch.Tensor

    @property
    def rows(self) -> int:
        return len(self.own)

    def index(self) -> torch.Tensor:
        """[2, edges] as PyTorch Geometric's layers take them."""
        return torch.stack([self.source, self.row])

    def with_self_loops(self) -> torch.Tensor:
        """The same with an edge from each row's own place, once."""
        other = self.source != self.own[self.row]
        source = torch.cat([self.source[other], self.own])
        return torch.stack([source, torch.cat([self.row[other], torch.arange(self.rows, device=source.device)])])


Layer = torch.Tensor | Edges


def edges_of(layer: Layer) -> Edges:
    """A layer as edges, whichever it is."""
    if isinstance(layer, Edges):
        return layer
    rows, places = torch.nonzero(layer >= 0, as_tuple=True)
    return Edges(layer[rows, places].long(), rows, torch.arange(len(layer), device=layer.device))


def edge_index(ids: torch.Tensor) -> torch.Tensor:
    """int64 [2, edges]: sources and rows of the neighbours that are there."""
    return edges_of(ids).index()


def self_and_mean(h: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same by torch alone: a bag of embeddings is the mean of the rows that it names."""
    some = ids >= 0
    count = some.sum(dim=1)
    mean = F.embedding_bag(ids[some].long(), h, count.cumsum(0) - count, mode="mean")
    return h[: len(ids)], mean


def mean_of(h: torch.Tensor, edges: Edges) -> torch.Tensor:
    """[rows, width]: the mean of each row's sources, zeros where it has none."""
    count = torch.bincount(edges.row, minlength=edges.rows).clamp_min(1)
    sums = h.new_zeros(edges.rows, h.shape[1]).index_add(0, edges.row, h[edges.source])
    return sums / count.to(h.dtype)[:, None]


class Model(nn.Module):
    """Layer by layer; the classifier sees the seeds' rows of the input and of every layer."""

    depth: int
    bytes_an_edge = 4
    """Bytes of a layer's own temporaries per neighbour and unit of its widest width."""

    def begin(self, x: torch.Tensor) -> torch.Tensor:
        """What the first layer reads."""
        return x

    def layer(self, number: int, h: torch.Tensor, edges: Edges) -> torch.Tensor:
        """[rows, out] of rows below h and edges."""
        raise NotImplementedError

    def classify(self, seen: list[torch.Tensor]) -> torch.Tensor:
        """Logits of rows of which `begin` and every layer gave these."""
        return seen[-1]

    def forward(self, layers: Sequence[Layer], x: torch.Tensor) -> torch.Tensor:
        # As our own kernels compute: in the features' 16 bits, from weights of 32.
        with torch.autocast(x.device.type, torch.bfloat16, enabled=x.dtype == torch.bfloat16):
            h, seen = self.begin(x), []
            seeds = layers[-1].rows if isinstance(layers[-1], Edges) else len(layers[-1])
            seen.append(h[:seeds])
            for number, layer in enumerate(layers):
                h = self.layer(number, h, edges_of(layer))
                seen.append(h[:seeds])
            return self.classify(seen).float()


class Sage(Model):
    """GraphSAGE with mean aggregation as SALIENT trains it: no bias, ReLU, dropout between layers."""

    def __init__(self, width: int, hidden: int, classes: int, layers: int, dropout: float) -> None:
        super().__init__()
        sizes = [width, *[hidden] * (layers - 1), classes]
        self.own = nn.ParameterList(_weight(a, b) for a, b in itertools.pairwise(sizes))
        self.neighbours = nn.ParameterList(_weight(a, b) for a, b in itertools.pairwise(sizes))
        self.depth = layers
        self.dropout = dropout
        self.aggregate: Aggregate = self_and_mean

    def forward(self, layers: Sequence[Layer], x: torch.Tensor) -> torch.Tensor:
        h = x
        for number, layer in enumerate(layers):
            if isinstance(layer, Edges):
                h = self.layer(number, h, layer)
            else:
                h = self.combine(number, *self.aggregate(h, layer))
        return h.float()

    def layer(self, number: int, h: torch.Tensor, edges: Edges) -> torch.Tensor:
        return self.combine(number, h[edges.own], mean_of(h, edges))

    def combine(self, number: int, own: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
        """The layer's output of rows and their neighbours' means, in the inputs' dtype."""
        h = torch.addmm(own @ self.own[number].to(own.dtype), mean, self.neighbours[number].to(own.dtype))
        if number == len(self.own) - 1:
            return h
        return F.dropout(F.relu(h), self.dropout, self.training)


def _weight(rows: int, columns: int) -> nn.Parameter:
    """As PyTorch Geometric's SAGEConv begins, which SALIENT trains: wider ones take several epochs more to learn."""
    return nn.Parameter(nn.init.uniform_(torch.empty(rows, columns), -(rows**-0.5), rows**-0.5))


class Norm(nn.BatchNorm1d):
    """Batch norm that normalises a single row by what it has learnt: the last batch of an epoch may have one seed."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and len(x) < 2:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        return super().forward(x)


class Gat(Model):
    """Graph attention, one head, self loops, no bias; ReLU and dropout between layers."""

    bytes_an_edge = 24

    def __init__(self, width: int, hidden: int, classes: int, layers: int, dropout: float) -> None:
        super().__init__()
        sizes = [width, *[hidden] * (layers - 1), classes]
        convolution = _geometric("gat").GATConv
        # Self loops are added by us: PyTorch Geometric takes row i for the target of source i, which holds for a batch only.
        made = (convolution(a, b, heads=1, bias=False, add_self_loops=False) for a, b in itertools.pairwise(sizes))
        self.convolutions, self.depth, self.dropout = nn.ModuleList(made), layers, dropout

    def layer(self, number: int, h: torch.Tensor, edges: Edges) -> torch.Tensor:
        h = self.convolutions[number]((h, h[edges.own]), edges.with_self_loops(), size=(len(h), edges.rows))
        return h if number == self.depth - 1 else F.dropout(F.relu(h), self.dropout, self.training)


class Gin(Model):
    """Graph isomorphism network: sums, perceptrons of two layers with batch norm, two linear layers at the end."""

    bytes_an_edge = 8

    def __init__(self, width: int, hidden: int, classes: int, layers: int, dropout: float) -> None:
        super().__init__()
        convolution = _geometric("gin").GINConv
        self.convolutions = nn.ModuleList(
            convolution(
                nn.Sequential(nn.Linear(n, hidden), Norm(hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
            )
            for n in [width, *[hidden] * (layers - 1)]
        )
        self.head = nn.ModuleList([nn.Linear(hidden, hidden), nn.Linear(hidden, classes)])
        self.depth, self.dropout = layers, dropout

    def layer(self, number: int, h: torch.Tensor, edges: Edges) -> torch.Tensor:
        return self.convolutions[number]((h, h[edges.own]), edges.index(), size=(len(h), edges.rows))

    def classify(self, seen: list[torch.Tensor]) -> torch.Tensor:
        return self.head[1](F.dropout(F.relu(self.head[0](seen[-1])), self.dropout, self.training))


class SageResInception(Model):
    """SALIENT's SAGEResInception: GraphSAGE with batch norm and residuals whose layers' outputs are all read by an MLP."""

    bytes_an_edge = 8

    def __init__(self, width: int, hidden: int, classes: int, layers: int, dropout: float) -> None:
        super().__init__()
        convolution = _geometric("sage-ri").SAGEConv
        inputs = [width, *[hidden] * (layers - 1)]
        self.convolutions = nn.ModuleList(convolution(n, hidden, bias=False) for n in inputs)
        self.norms = nn.ModuleList(Norm(hidden) for _ in inputs)
        self.residuals = nn.ModuleList([nn.Linear(width, hidden), *(nn.Identity() for _ in inputs[1:])])
        # SALIENT's MLP has no activation between its two layers.
        self.mlp = nn.Sequential(nn.Linear(width + hidden * layers, 2 * classes), nn.Linear(2 * classes, classes))
        self.depth, self.dropout = layers, RESIDUAL_SHARE * dropout

    def _dropped(self, h: torch.Tensor) -> torch.Tensor:
        return F.dropout(h, self.dropout, self.training)

    def begin(self, x: torch.Tensor) -> torch.Tensor:
        return self._dropped(x)

    def layer(self, number: int, h: torch.Tensor, edges: Edges) -> torch.Tensor:
        own = h[edges.own]
        both = self._dropped(h), self._dropped(own)
        out = self.norms[number](self.convolutions[number](both, edges.index(), size=(len(h), edges.rows)))
        return self._dropped(F.leaky_relu(out)) + self.residuals[number](own)

    def classify(self, seen: list[torch.Tensor]) -> torch.Tensor:
        return self.mlp(torch.cat([rows.to(seen[-1].dtype) for rows in seen], dim=1))


class UserModel(nn.Module):
    """A user's model, called as PyTorch Geometric's are, `net(x, edge_index)` on the batch's nodes, seeds first.

    It is fed by a loader that expands each node once (`newest_only`): all its layers see all edges of the batch.
    """

    def __init__(self, net: nn.Module, layers: int) -> None:
        super().__init__()
        self.net, self.depth = net, layers

    def forward(self, layers: Sequence[Layer], x: torch.Tensor) -> torch.Tensor:
        parts, first = [], 0
        for hop in reversed(layers):  # the seeds' first; each hop's rows are those behind the one before
            edges = edges_of(hop)
            parts.append(torch.stack([edges.source, edges.row + first]))
            first += edges.rows
        seeds = edges_of(layers[-1]).rows
        return self.whole(x, torch.cat(parts, dim=1))[:seeds]

    def whole(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """Outputs of all rows of x, float32; edges int64 [2, n]."""
        with torch.autocast(x.device.type, torch.bfloat16, enabled=x.dtype == torch.bfloat16):
            found = self.net(x, edges)
        if not isinstance(found, torch.Tensor) or found.dim() != 2 or len(found) != len(x):
            shape = list(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
            raise GraphError(f"the model must give a row a node, [{len(x)}, classes]; it gave {shape}")
        return found.float()


def _geometric(kind: str):
    try:
        from torch_geometric import nn as geometric
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "torch_geometric"
        why = "are not here: pip install torch-geometric" if missing else f"cannot be imported ({error})"
        raise GraphError(
            f"--model {kind} is built of PyTorch Geometric's layers, which {why} (or take --model sage)"
        ) from None
    return geometric


def is_own(kind: str) -> bool:
    """Whether the name is of a class in a file, FILE.py:CLASS."""
    return ".py:" in kind


def make(kind: str, width: int, hidden: int, classes: int, layers: int, dropout: float = 0.5) -> nn.Module:
    """The named model with fresh weights. Raises GraphError for an unknown name or a missing package."""
    built = {"sage": Sage, "gat": Gat, "gin": Gin, "sage-ri": SageResInception}
    if is_own(kind):
        return UserModel(_built(kind, width, hidden, classes, layers, dropout), layers)
    if kind not in built:
        raise GraphError(f"there is no model {kind!r}; there is {', '.join(NAMES)}, or FILE.py:CLASS of your own")
    if width < 1:
        raise GraphError("the graph's features have no columns, and a model needs some")
    return built[kind](width, hidden, classes, layers, dropout)


def _built(kind: str, width: int, hidden: int, classes: int, layers: int, dropout: float) -> nn.Module:
    """An object of the class that `kind` names, made with those of PyTorch Geometric's arguments that it takes."""
    path, _, name = kind.rpartition(":")
    if not Path(path).is_file():
        raise GraphError(f"--model {kind}: there is no file {path}")
    module_name = f"minibatch_model_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    values = {
        "in_channels": width,
        "hidden_channels": hidden,
        "out_channels": classes,
        "num_layers": layers,
        "dropout": dropout,
    }
    try:
        spec.loader.exec_module(module)
        found = getattr(module, name)
        takes = inspect.signature(found).parameters
        every = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in takes.values())
        net = found(**{key: value for key, value in values.items() if every or key in takes})
    except Exception as error:  # noqa: BLE001 - a user's file may do anything
        raise GraphError(
            f"--model {kind} cannot be made ({type(error).__name__}: {error}); it gets {', '.join(values)}"
        ) from None
    if not isinstance(net, nn.Module):
        raise GraphError(f"--model {kind} is no torch.nn.Module but a {type(net).__name__}")
    return net
