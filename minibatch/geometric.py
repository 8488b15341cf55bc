"""PyTorch Geometric's own way, to be measured against: NeighborLoader in worker processes, the models of models.py.

A layer is trimmed to the nodes that are still needed where the sampler says how many they are; float32 (TF32 matrix products
on a GPU). Its loader expands only the newest nodes at each hop, which is less work than ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from minibatch.graphs import Graph, GraphError
from minibatch.models import Edges
from minibatch.objectives import Objective
from minibatch.timeline import SpanTrace
from minibatch.training import Epoch, Say, nothing, train_pass


def name_sampler() -> str:
    """The library that samples for NeighborLoader here. Raises GraphError where there is none."""
    try:
        from torch_geometric import typing
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "torch_geometric"
        why = "is not here: pip install torch-geometric" if missing else f"cannot be imported ({error})"
        raise GraphError(f"--rung pyg needs PyTorch Geometric, which {why}") from None
    if typing.WITH_PYG_LIB:
        return "pyg-lib"
    if typing.WITH_TORCH_SPARSE:
        return "torch-sparse (biased: see kernels/sample_neighbors/wrong)"
    raise GraphError(
        "--rung pyg needs pyg-lib or torch-sparse beside torch-geometric, and neither can be imported here: take --rung salient"
    )


class _Places(torch.utils.data.Sampler):
    """Places in NeighborLoader's input nodes, set anew for each epoch, so that its workers live on."""

    def __init__(self) -> None:
        self.places = torch.empty(0, dtype=torch.int64)

    def __iter__(self) -> Iterator[int]:
        return iter(self.places.tolist())

    def __len__(self) -> int:
        return len(self.places)


def sampler_of(graph: Graph, fanouts: Sequence[int]) -> Any:
    """PyG's NeighborSampler over our rows as they are: it would make them of 16 bytes an edge and sort those."""
    from torch_geometric.data import Data
    from torch_geometric.sampler import NeighborSampler

    name_sampler()
    data = Data(edge_index=torch.empty(2, 0, dtype=torch.int64), num_nodes=graph.nodes)
    made = NeighborSampler(data, num_neighbors=fanouts)
    made.colptr, made.row, made.perm = graph.rowptr, graph.col.long(), None
    return made


class GeometricLoader:
    """Batches of torch_geometric.data.Data from NeighborLoader. on_device: features stay there and are sliced there. Close it."""

    def __init__(
        self, graph: Graph, fanouts: Sequence[int], batch: int, *, workers: int, device: str, on_device: bool = False,
        seed: int = 0,
    ) -> None:  # fmt: skip
        from torch_geometric.data import Data
        from torch_geometric.loader import NeighborLoader

        self.graph, self.batch, self.device, self.seed, self.hops = graph, batch, device, seed, len(fanouts)
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
        return model(layers_of(batch, self.hops), batch.x)[: batch.batch_size]

    def __len__(self) -> int:
        return -(-len(self.places) // self.batch)

    def close(self) -> None:
        """End its processes, at once: left to the garbage collector, which ends their queues first, each is waited for 5 s."""
        self.loader._iterator = None

    def __enter__(self) -> GeometricLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def layers_of(batch: Any, hops: int) -> list[Edges]:
    """A batch's layers, deepest first: of its edges those whose targets are still needed, where the batch says how many."""
    index, everyone = batch.edge_index, torch.arange(batch.num_nodes, device=batch.edge_index.device)
    if batch.get("num_sampled_nodes") is None:
        return [Edges(index[0], index[1], everyone)] * hops
    nodes, edges = list(batch.num_sampled_nodes), list(batch.num_sampled_edges)
    found = []
    for needed in range(hops, 0, -1):  # the first layer makes rows of all nodes but those of the last hop
        kept = index[:, : sum(edges[:needed])]
        found.append(Edges(kept[0], kept[1], everyone[: sum(nodes[:needed])]))
    return found


def train_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, loader: GeometricLoader, ids: torch.Tensor, number: int, objective: Objective,
    say: Say = nothing, trace: SpanTrace | None = None,
) -> Epoch:  # fmt: skip
    """One pass over the seeds `ids` in their order; `trace` gets the spans of its first batches."""
    return train_pass(
        model, optimizer, loader.epoch(ids, number), number, -(-len(ids) // loader.batch),
        loss_of=lambda batch: objective.loss(loader.logits(model, batch), batch.y[: batch.batch_size]),
        counted=lambda batch: (batch.edge_index.shape[1], batch.num_nodes), say=say, trace=trace or SpanTrace(loader.device, room=0),
    )  # fmt: skip


@torch.no_grad()
def outputs(
    model: nn.Module, loader: GeometricLoader, ids: torch.Tensor, say: Say = nothing
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """(logits, labels) of batches of `ids`, from sampled neighbourhoods (the loader's fanouts)."""
    model.eval()
    for number, batch in enumerate(loader.epoch(ids, -1)):
        yield loader.logits(model, batch), batch.y[: batch.batch_size]
        say(number + 1, len(loader))
