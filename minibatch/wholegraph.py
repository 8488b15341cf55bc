"""NVIDIA's way, to be measured against: WholeGraph samples and gathers on the GPU, PyTorch Geometric's SAGEConv computes.

Message-flow layers as ours. Written against pylibwholegraph 26.10 (optional: it is no dependency, it needs CUDA 13).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed, nn
from torch.nn import functional as F

from minibatch.graphs import Graph, GraphError


def require() -> Any:
    """pylibwholegraph's part for PyTorch. Raises GraphError where it cannot be imported."""
    try:
        from pylibwholegraph import torch as whole
    except (ImportError, OSError) as error:  # OSError: its libraries miss one of CUDA's
        raise GraphError(
            f"--rung wholegraph needs pylibwholegraph, which cannot be imported here ({error}): take --rung gpu-graph"
        ) from None
    return whole


class Convolutions(nn.Module):
    """PyG's SAGEConv, ReLU and dropout between layers."""

    def __init__(self, width: int, hidden: int, classes: int, layers: int, dropout: float = 0.5) -> None:
        super().__init__()
        from torch_geometric.nn import SAGEConv

        sizes = [width, *[hidden] * (layers - 1), classes]
        self.layers = nn.ModuleList(SAGEConv((a, a), b) for a, b in itertools.pairwise(sizes))
        self.dropout = dropout

    def forward(self, x: torch.Tensor, edges: list[torch.Tensor], rows: list[int]) -> torch.Tensor:
        """edges int64 [2, n] of each layer, deepest first, from sources to the first `rows` of them."""
        h = x
        for number, layer in enumerate(self.layers):
            h = layer((h, h[: rows[number]]), edges[number], size=(len(h), rows[number]))
            if number + 1 < len(self.layers):
                h = F.dropout(F.relu(h), self.dropout, self.training)
        return h


@dataclass
class Batch:
    x: torch.Tensor
    edges: list[torch.Tensor]
    rows: list[int]
    y: torch.Tensor
    batch_size: int

    @property
    def edge_count(self) -> int:
        return sum(edges.shape[1] for edges in self.edges)

    @property
    def num_nodes(self) -> int:
        return len(self.x)


class Loader:
    """Batches from a copy of the graph in WholeGraph's memory on this GPU. Use as a context manager: it is one a process."""

    def __init__(self, graph: Graph, fanouts: list[int], batch: int, *, seed: int = 0) -> None:
        self.whole = require()
        self.batch, self.fanouts, self.seed, self.device = batch, list(fanouts), seed, "cuda"
        self.labels, self.seeds = graph.labels, 0
        # Not by init_torch_env_and_create_wm_comm: it prints, and it leaves RANK in the environment, as if this were one of several.
        store = distributed.TCPStore("127.0.0.1", 0, world_size=1, is_master=True)
        distributed.init_process_group("nccl", store=store, rank=0, world_size=1)
        self.whole.init(0, 1, 0, 1, wm_log_level="error")
        everyone = self.whole.get_global_communicator()
        self.features = self._copied(everyone, graph.features)
        self.structure = self.whole.GraphStructure()
        self.structure.set_csr_graph(self._copied(everyone, graph.rowptr), self._copied(everyone, graph.col))

    def _copied(self, everyone: Any, values: torch.Tensor) -> Any:
        made = self.whole.create_wholememory_tensor(
            everyone, "continuous", "cuda", list(values.shape), values.dtype, None
        )
        local, _ = made.get_local_tensor()
        local.copy_(values)
        return made

    def epoch(self, ids: torch.Tensor, number: int) -> Iterator[Batch]:
        """Batches of these seeds in their order, x float32; `number` picks other neighbours."""
        random.seed(f"{self.seed} {number}")  # what WholeGraph draws each hop's seed from
        self.seeds = len(ids)
        for seeds in ids.to(self.device, torch.int32).split(self.batch):
            nodes, edges, _, _ = self.structure.multilayer_sample_without_replacement(seeds, self.fanouts)
            x = self.features.gather(nodes[0]).float()
            rows = [len(known) for known in nodes[1:]]
            yield Batch(x, [pairs.long() for pairs in edges], rows, self.labels[seeds.long()], len(seeds))

    def logits(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        return model(batch.x, batch.edges, batch.rows)

    def __len__(self) -> int:
        return -(-self.seeds // self.batch)

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.whole.finalize()
