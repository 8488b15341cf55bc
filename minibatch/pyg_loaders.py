"""PyTorch Geometric's own loaders of links and of heterogeneous graphs, whose sampling is done by native code in threads.

What a batch is made of is decided by PyTorch Geometric: seeds, negatives and labels, attributes, transforms. While one is
computed with, the next are sampled: native code runs outside Python's lock, so there are no worker processes.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from inspect import signature
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import LinkLoader, NodeLoader
from torch_geometric.sampler import (
    BaseSampler,
    EdgeSamplerInput,
    HeteroSamplerOutput,
    NegativeSampling,
    NodeSamplerInput,
    NumNeighbors,
    SamplerOutput,
)
from torch_geometric.sampler.neighbor_sampler import edge_sample, node_sample

from minibatch.batches import batch_seed, require_number
from minibatch.graphs import GraphError, ids_of
from minibatch.relations import Neighbourhood, RelationSampler

ONE_KIND = ("", "", "")
"""Relation of a graph whose nodes are all of one kind."""
NOT_BUILT = ("input_time", "edge_label_time", "time_attr", "custom_cls", "neighbor_sampler")
"""Arguments of PyTorch Geometric's that are refused where they are given."""
WITHOUT_MEANING = (
    "num_workers", "persistent_workers", "prefetch_factor", "multiprocessing_context", "worker_init_fn", "timeout",
    "filter_per_worker", "is_sorted", "directed", "temporal_strategy",
)  # fmt: skip
"""Arguments of its worker processes, which there are none of: taken and left alone."""


class NativeSampler(BaseSampler):
    """Samples as torch_geometric.sampler.NeighborSampler does. What it returns is filled in by a thread: `wait` for it."""

    edge_permutation = None

    def __init__(
        self, data: Any, num_neighbors: Any, *, replace: bool, disjoint: bool, subgraph_type: Any, weight_attr: str | None,
        seed: int, threads: int,
    ) -> None:  # fmt: skip
        self.kind = getattr(subgraph_type, "value", subgraph_type)
        if self.kind not in ("directional", "bidirectional"):
            raise GraphError(
                f"subgraph_type {self.kind} is not built for links and heterogeneous graphs; there is directional and bidirectional"
            )
        if isinstance(data, tuple):
            raise GraphError("feature and graph stores are not built; give a Data or HeteroData in host memory")
        self.hetero, self.disjoint, self.seed = isinstance(data, HeteroData), disjoint, seed
        self.calls = itertools.count()
        wanted = num_neighbors if isinstance(num_neighbors, NumNeighbors) else NumNeighbors(num_neighbors)
        if self.hetero:
            self.num_nodes: Any = {kind: int(data[kind].num_nodes or 0) for kind in data.node_types}
            stores = {kind: data[kind] for kind in data.edge_types if data[kind].get("edge_index") is not None}
            fanouts: dict = dict(wanted.get_values(list(stores))) if stores else {}
            nodes = self.num_nodes
        else:
            self.num_nodes = int(data.num_nodes)
            stores = {ONE_KIND: data} if data.edge_index is not None else {}
            fanouts, nodes = {ONE_KIND: wanted.get_values()}, {"": self.num_nodes}
        weights = {}
        for relation, store in stores.items():
            if weight_attr is None:
                break
            if getattr(store, weight_attr, None) is None:
                raise GraphError(f"the data has no {weight_attr} of {relation}")
            weights[relation] = store[weight_attr]
        edges = {relation: tuple(store.edge_index) for relation, store in stores.items()}
        self.sampler = RelationSampler(nodes, edges, fanouts, weights=weights, replace=replace, disjoint=disjoint)
        self.pool = ThreadPoolExecutor(threads)

    def sample_from_nodes(self, inputs: NodeSamplerInput) -> Any:
        return node_sample(inputs, self._sample)

    def sample_from_edges(self, inputs: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None) -> Any:
        return edge_sample(inputs, self._sample, self.num_nodes, self.disjoint, None, neg_sampling)

    def _sample(self, seeds: Any, _time: Any) -> Any:
        """An output whose arrays come later; all that PyTorch Geometric adds to it before is `metadata`."""
        # Counted here, in the order of batches, so that threads do not decide what is sampled.
        number = batch_seed(self.seed, 0) + next(self.calls)
        out = HeteroSamplerOutput({}, {}, {}, {}) if self.hetero else SamplerOutput(*(torch.empty(0).long(),) * 4)
        by_kind = seeds if self.hetero else {"": seeds}
        if self.disjoint:
            out.batch = {}  # of which edge_sample takes trees modulo the links, so they are needed at once
            found = self.sampler.sample(by_kind, number)
            self._fill(out, found)
            return out
        out.pending = self.pool.submit(self.sampler.sample, by_kind, number)
        return out

    def _fill(self, out: Any, found: Neighbourhood) -> None:
        values: dict[str, dict[Any, Any] | None] = {
            "node": found.nodes, "row": found.columns, "col": found.rows, "edge": found.edges, "batch": found.trees,
            "num_sampled_nodes": found.node_counts, "num_sampled_edges": found.edge_counts,
        }  # fmt: skip
        for name, of_kinds in values.items():
            setattr(out, name, of_kinds if self.hetero or of_kinds is None else _only(of_kinds))

    def wait(self, out: Any) -> Any:
        """The output whole."""
        pending: Future[Neighbourhood] | None = out.__dict__.pop("pending", None)
        if pending is not None:
            self._fill(out, pending.result())
        return out.to_bidirectional() if self.kind == "bidirectional" else out


def _only(values: dict[Any, Any]) -> Any:
    """The value of a graph of one kind; of one without edges none."""
    return next(iter(values.values()), torch.empty(0, dtype=torch.int64))


class _Ahead:
    """Asks for some outputs ahead of the one that is waited for."""

    def __init__(self, outputs: Iterator[Any], finish: Callable[[Any], Any], ahead: int) -> None:
        self.outputs, self.finish, self.ahead = outputs, finish, ahead
        self.asked: deque[Any] = deque()

    def __iter__(self) -> _Ahead:
        return self

    def __next__(self) -> Any:
        self.asked.extend(itertools.islice(self.outputs, self.ahead - len(self.asked)))
        if not self.asked:
            raise StopIteration
        return self.finish(self.asked.popleft())


class _Native:
    """What both loaders share: arguments, and sampling ahead."""

    def _sampler(self, data: Any, num_neighbors: Any, given: dict[str, Any]) -> NativeSampler:
        for name in NOT_BUILT:
            if given.pop(name, None) is not None:
                raise GraphError(f"{name} is not built; leave it out")
        for name in WITHOUT_MEANING:
            given.pop(name, None)
        require_number("batch_size", given.get("batch_size", 1), 1, (1 << 31) - 1)
        threads = require_number("threads", given.pop("threads", 0), 0, 1024) or len(os.sched_getaffinity(0))
        self.ahead = threads + 2
        names = ("replace", "disjoint", "subgraph_type", "weight_attr")
        options = {
            name: given.pop(name, default)
            for name, default in zip(names, (False, False, "directional", None), strict=True)
        }
        seed = require_number("seed", given.pop("seed", 0), -(1 << 63), (1 << 64) - 1)
        taken = {name for kind in (*type(self).__mro__, DataLoader) for name in signature(kind).parameters}
        if unknown := set(given) - taken:
            raise GraphError(f"there is no argument {', '.join(sorted(unknown))}")
        return NativeSampler(data, num_neighbors, **options, seed=seed, threads=threads)

    def _get_iterator(self) -> Any:
        return _Ahead(DataLoader._get_iterator(self), self.filter_fn, self.ahead)  # type: ignore[arg-type, attr-defined]


class LinkNeighborLoader(_Native, LinkLoader):
    """torch_geometric.loader.LinkNeighborLoader: batches of edges and their endpoints' neighbourhoods, negatives among them.

    Takes its arguments, of a Data or HeteroData in host memory, and `threads`, 0 for one a core, and `seed`, of the neighbours;
    negatives and the order are drawn from torch's generator. Raises GraphError for what is not built.
    """

    def __init__(self, data: Any, num_neighbors: Any, edge_label_index: Any = None, **others: Any) -> None:
        sampler = self._sampler(data, num_neighbors, others)
        if edge_label_index is None and getattr(data, "edge_index", None) is None and isinstance(data, Data):
            raise GraphError("the data has no edge_index, and edge_label_index was not given")
        super().__init__(data, sampler, edge_label_index, filter_per_worker=False, **others)
        given = self.input_data
        ends = (given.row, given.col)
        for kind, ids in zip(given.input_type[::2] if given.input_type else ("", ""), ends, strict=True):
            ids_of(ids, sampler.sampler.nodes[kind], "edge_label_index's ids")

    def filter_fn(self, out: Any) -> Any:
        return super().filter_fn(self.link_sampler.wait(out))

    def __repr__(self) -> str:
        return "LinkNeighborLoader()"


class NodeNeighborLoader(_Native, NodeLoader):
    """torch_geometric.loader.NeighborLoader of a HeteroData, or of disjoint neighbourhoods: arguments as above, and input_nodes,
    ids or a mask, of a HeteroData a kind or (kind, ids or mask)."""

    def __init__(self, data: Any, num_neighbors: Any, input_nodes: Any = None, **others: Any) -> None:
        kind = input_nodes[0] if isinstance(input_nodes, tuple) else input_nodes
        if isinstance(data, HeteroData) and (not isinstance(kind, str) or kind not in data.node_types):
            raise GraphError(
                f"input_nodes must be a kind of nodes ({', '.join(data.node_types)}), or one with ids or a mask"
            )
        sampler = self._sampler(data, num_neighbors, others)
        super().__init__(data, sampler, input_nodes, filter_per_worker=False, **others)
        given = self.input_data
        ids_of(given.node, sampler.sampler.nodes[given.input_type or ""], "input_nodes")

    def filter_fn(self, out: Any) -> Any:
        return super().filter_fn(self.node_sampler.wait(out))

    def __repr__(self) -> str:
        return "NeighborLoader()"
