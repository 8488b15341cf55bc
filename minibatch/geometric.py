"""PyTorch Geometric's own way, to be measured against: NeighborLoader in worker processes and a model of its layers.

The model is PyG's GraphSAGE (GAT, GIN), trimmed to the nodes that a layer still needs where the sampler says how many they are;
float32 (TF32 matrix products on a GPU). Its loader expands only the newest nodes at each hop, which is less work than ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from minibatch import wholegraph
from minibatch.graphs import Graph, GraphError
from minibatch.timeline import Trace
from minibatch.training import Epoch, Say, nothing, one_pass

MODELS = {"sage": "GraphSAGE", "gat": "GAT", "gin": "GIN"}


def sampler_named() -> str:
    """The library that samples for NeighborLoader here. Raises GraphError where there is none."""
    try:
        from torch_geometric import typing
    except ImportError:
        raise GraphError("--rung pyg needs PyTorch Geometric, which is not here: pip install torch-geometric") from None
    if typing.WITH_PYG_LIB:
        return "pyg-lib"
    if typing.WITH_TORCH_SPARSE:
        return "torch-sparse (biased: see kernels/sample_neighbors/wrong)"
    raise GraphError(
        "--rung pyg needs pyg-lib or torch-sparse beside torch-geometric, and neither can be imported here: take --rung salient"
    )


def model_of(kind: str, width: int, hidden: int, classes: int, layers: int, dropout: float = 0.5) -> nn.Module:
    """PyG's own model with fresh weights. Raises GraphError for a kind that it does not have."""
    if kind not in MODELS:
        raise GraphError(f"--rung pyg has no model {kind}; it has {', '.join(MODELS)}")
    from torch_geometric import nn as geometric

    more = {"heads": 4} if kind == "gat" else {}
    return getattr(geometric, MODELS[kind])(width, hidden, layers, classes, dropout=dropout, **more)


class _Places(torch.utils.data.Sampler):
    """Places in NeighborLoader's input nodes, set anew for each epoch, so that its workers live on."""

    def __init__(self) -> None:
        self.places = torch.empty(0, dtype=torch.int64)

    def __iter__(self) -> Iterator[int]:
        return iter(self.places.tolist())

    def __len__(self) -> int:
        return len(self.places)


def sampler_of(graph: Graph, fanouts: list[int]) -> Any:
    """PyG's NeighborSampler over our rows as they are: it would make them of 16 bytes an edge and sort those."""
    from torch_geometric.data import Data
    from torch_geometric.sampler import NeighborSampler

    sampler_named()
    data = Data(edge_index=torch.empty(2, 0, dtype=torch.int64), num_nodes=graph.nodes)
    made = NeighborSampler(data, num_neighbors=fanouts)
    made.colptr, made.row, made.perm = graph.rowptr, graph.col.long(), None
    return made


class Loader:
    """Batches of torch_geometric.data.Data from NeighborLoader. on_device: features stay there and are sliced there. Close it."""

    def __init__(
        self, graph: Graph, fanouts: list[int], batch: int, *, workers: int, device: str, on_device: bool = False,
        seed: int = 0,
    ) -> None:  # fmt: skip
        from torch_geometric.data import Data
        from torch_geometric.loader import NeighborLoader

        self.graph, self.batch, self.device, self.seed = graph, batch, device, seed
        self.features = graph.features.to(device) if on_device else None
        data = Data(y=graph.labels, edge_index=torch.empty(2, 0, dtype=torch.int64))
        data.num_nodes = graph.nodes
        if not on_device:
            data.x = graph.features
        self.places = _Places()
        self.loader = NeighborLoader(
            data, num_neighbors=fanouts, input_nodes=torch.arange(graph.nodes), batch_size=batch,
            neighbor_sampler=sampler_of(graph, fanouts), sampler=self.places, num_workers=workers, persistent_workers=workers > 0, pin_memory=device == "cuda",
        )  # fmt: skip

    def epoch(self, ids: torch.Tensor, number: int) -> Iterator[Any]:
        """Batches of these seeds in their order, on the device, `x` float32; `number` picks other neighbours."""
        torch.manual_seed(hash((self.seed, number)))  # what DataLoader seeds its workers from
        self.places.places = ids.cpu()
        for batch in self.loader:
            moved = batch.to(self.device, non_blocking=True)
            moved.x = (moved.x if self.features is None else self.features[moved.n_id]).float()
            yield moved

    def logits(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """[seeds of the batch, classes]."""
        kept = {}
        if batch.get("num_sampled_nodes") is not None:
            kept = {
                "num_sampled_nodes_per_hop": list(batch.num_sampled_nodes),
                "num_sampled_edges_per_hop": list(batch.num_sampled_edges),
            }
        return model(batch.x, batch.edge_index, **kept)[: batch.batch_size]

    def __len__(self) -> int:
        return -(-len(self.places) // self.batch)

    def close(self) -> None:
        """End its processes, at once: left to the garbage collector, which ends their queues first, each is waited for 5 s."""
        self.loader._iterator = None

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def train_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: Loader | wholegraph.Loader,
    ids: torch.Tensor,
    number: int,
    say: Say = nothing,
    trace: Trace | None = None,
) -> Epoch:
    """One pass over the seeds `ids` in their order; `trace` gets the spans of its first batches."""
    return one_pass(
        model, optimizer, loader.epoch(ids, number), number, -(-len(ids) // loader.batch),
        loss_of=lambda batch: F.cross_entropy(loader.logits(model, batch), batch.y[: batch.batch_size]),
        counted=lambda batch: (_edges(batch), batch.num_nodes), say=say, trace=trace or Trace(loader.device, room=0),
    )  # fmt: skip


def _edges(batch: Any) -> int:
    return batch.edge_count if isinstance(batch, wholegraph.Batch) else batch.edge_index.shape[1]


@torch.no_grad()
def accuracy(model: nn.Module, loader: Loader | wholegraph.Loader, ids: torch.Tensor, say: Say = nothing) -> float:
    """Share of `ids` that are labelled rightly, from sampled neighbourhoods (the loader's fanouts)."""
    model.eval()
    right = torch.zeros((), device=loader.device)
    for number, batch in enumerate(loader.epoch(ids, -1)):
        right += (loader.logits(model, batch).argmax(dim=1) == batch.y[: batch.batch_size]).sum()
        say(number + 1, len(loader))
    return float(right) / len(ids)
