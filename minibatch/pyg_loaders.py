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
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from torch_geometric.data import Data, FeatureStore, GraphStore, HeteroData
from torch_geometric.data.remote_backend_utils import num_nodes
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
from minibatch.graphs import GraphError, ids_of, in_place
from minibatch.relations import Neighbourhood, Relation, RelationSampler

OPTIONS = {
    "replace": False, "disjoint": False, "subgraph_type": "directional", "weight_attr": None, "time_attr": None,
    "temporal_strategy": "uniform",
}  # fmt: skip
"""Arguments of PyTorch Geometric's that say how neighbours are sampled."""
ONE_KIND = ("", "", "")
"""Relation of a graph whose nodes are all of one kind."""
NOT_BUILT = ("neighbor_sampler",)
"""Arguments of PyTorch Geometric's that are refused where they are given."""
WITHOUT_MEANING = (
    "num_workers", "persistent_workers", "prefetch_factor", "multiprocessing_context", "worker_init_fn", "timeout",
    "filter_per_worker", "is_sorted",
)  # fmt: skip
"""Arguments of its worker processes, which there are none of: taken and left alone."""


class NativeSampler(BaseSampler):
    """Samples as torch_geometric.sampler.NeighborSampler does. What it returns is filled in by a thread: `wait` for it."""

    edge_permutation = None

    def __init__(
        self, data: Any, num_neighbors: Any, *, replace: bool, disjoint: bool, subgraph_type: Any, weight_attr: str | None,
        time_attr: str | None, temporal_strategy: str, seed: int, threads: int,
    ) -> None:  # fmt: skip
        self.kind = getattr(subgraph_type, "value", subgraph_type)
        if self.kind not in ("directional", "bidirectional"):
            raise GraphError(
                f"subgraph_type {self.kind} is not built for links and heterogeneous graphs; there is directional and bidirectional"
            )
        if temporal_strategy not in ("uniform", "last"):
            raise GraphError(f"there is no temporal_strategy {temporal_strategy}; there is uniform and last")
        held = _held(data)
        self.seed, self.hetero = seed, "" not in held.nodes
        self.calls = itertools.count()
        wanted = num_neighbors if isinstance(num_neighbors, NumNeighbors) else NumNeighbors(num_neighbors)
        self.num_nodes: Any = held.nodes if self.hetero else held.nodes[""]
        if self.hetero:
            fanouts: dict = dict(wanted.get_values(list(held.edges))) if held.edges else {}
        else:
            fanouts = {ONE_KIND: wanted.get_values()}
        times = {} if time_attr is None else held.times(time_attr)
        self.node_time: Any = {of: when for of, when in times.items() if isinstance(of, str)} or None
        if self.node_time and not self.hetero:
            self.node_time = self.node_time[""]
        self.sampler = RelationSampler(
            held.nodes, held.edges, fanouts, weights=held.weights(weight_attr), times=times, last=temporal_strategy == "last",
            replace=replace, disjoint=disjoint,
        )  # fmt: skip
        self.disjoint = self.sampler.disjoint
        self.pool = ThreadPoolExecutor(threads)

    def sample_from_nodes(self, inputs: NodeSamplerInput) -> Any:
        return node_sample(inputs, self._sample)

    def sample_from_edges(self, inputs: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None) -> Any:
        return edge_sample(inputs, self._sample, self.num_nodes, self.disjoint, self.node_time, neg_sampling)

    def _sample(self, seeds: Any, times: Any) -> Any:
        """An output whose arrays come later; all that PyTorch Geometric adds to it before is `metadata`."""
        if times is not None and not self.sampler.times:
            raise GraphError("times of seeds need a time_attr, times of nodes or edges")
        # Counted here, in the order of batches, so that threads do not decide what is sampled.
        number = batch_seed(self.seed, 0) + next(self.calls)
        out = HeteroSamplerOutput({}, {}, {}, {}) if self.hetero else SamplerOutput(*(torch.empty(0).long(),) * 4)
        by_kind = seeds if self.hetero else {"": seeds}
        if self.disjoint:
            # edge_sample takes trees modulo the links, so they are needed at once
            self._fill(
                out, self.sampler.sample(by_kind, number, times if self.hetero or times is None else {"": times})
            )
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


@dataclass
class _Held:
    """What there is of nodes and edges: a kind of nodes is "" and a relation ONE_KIND where there is one."""

    nodes: dict[str, int]
    edges: dict[Relation, tuple[Any, Any]]
    attribute: Callable[[str], dict[Any, Any]]
    """(name) -> those of kinds and relations that have one."""

    def weights(self, name: str | None) -> dict[Relation, Any]:
        found = {} if name is None else self.attribute(name)
        for relation in self.edges if name is not None else ():
            if relation not in found:
                raise GraphError(f"the data has no {name} of {relation}")
        return {relation: found[relation] for relation in self.edges if relation in found}

    def times(self, name: str) -> dict[Any, torch.Tensor]:
        """Of kinds of nodes or of relations."""
        found = self.attribute(name)
        if not found:
            raise GraphError(f"the data has no {name} of nodes or of edges, which time_attr names")
        if len({isinstance(of, str) for of in found}) > 1:
            raise GraphError(f"nodes and edges have {name}; time_attr takes the times of one of them")
        return {of: _tensor(values) for of, values in found.items()}


def _held(data: Any) -> _Held:
    """Of a Data, a HeteroData or a pair of feature and graph store."""
    if isinstance(data, tuple):
        return _of_stores(*data)
    if isinstance(data, HeteroData):
        stores = [(data[kind], kind) for kind in (*data.node_types, *data.edge_types)]
        return _Held(
            {kind: int(data[kind].num_nodes or 0) for kind in data.node_types},
            {of: tuple(data[of].edge_index) for of in data.edge_types if data[of].get("edge_index") is not None},
            lambda name: {of: store[name] for store, of in stores if name in store},
        )

    def attribute(name: str) -> dict[Any, Any]:
        if name not in data:
            return {}
        return {"" if data.is_node_attr(name) else ONE_KIND: data[name]}

    edges = {} if data.edge_index is None else {ONE_KIND: tuple(data.edge_index)}
    return _Held({"": int(data.num_nodes)}, edges, attribute)


def _of_stores(features: FeatureStore, graph: GraphStore) -> _Held:
    rows, columns, places = graph.coo()
    one = isinstance(rows, torch.Tensor)
    if any(place is not None for place in ([places] if one else places.values())):
        raise GraphError("a graph store that sorts its edges anew is not taken; give its edges as COO or CSC")
    held = [attr for attr in features.get_all_tensor_attrs() if attr.attr_name is not None]

    def attribute(name: str) -> dict[Any, Any]:
        found = {}
        for attr in held:
            if attr.attr_name == name:
                attr.index = None
                found["" if attr.group_name is None else attr.group_name] = features.get_tensor(attr)
        return found

    if one:
        return _Held({"": max(*graph.get_all_edge_attrs()[0].size)}, {ONE_KIND: (rows, columns)}, attribute)
    kinds = dict.fromkeys(kind for attr in held if isinstance(kind := attr.group_name, str))
    kinds |= dict.fromkeys(kind for source, _, target in rows for kind in (source, target))
    return _Held(
        {kind: num_nodes(features, graph, kind) for kind in kinds},
        {of: (rows[of], columns[of]) for of in rows},
        attribute,
    )


def _tensor(values: Any) -> torch.Tensor:
    return torch.as_tensor(values)


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
        options = {name: given.pop(name, default) for name, default in OPTIONS.items()}
        if not given.pop("directed", True):
            options["subgraph_type"] = "induced"
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
        if others.get("time_attr") is not None and others.get("edge_label_time") is None:
            raise GraphError("with time_attr each link has a time, and 'edge_label_time' is not set")
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
        if input_nodes is None and isinstance(data, tuple):
            raise GraphError(
                "input_nodes of stores must be given: ids or a mask, or a kind of nodes, alone or with one of them"
            )
        kind, ids = (
            input_nodes if isinstance(input_nodes, (tuple, list)) and len(input_nodes) == 2 else (input_nodes, None)
        )
        if isinstance(ids, np.ndarray):  # PyTorch Geometric takes a mask of NumPy's for ids
            input_nodes = kind, in_place(ids)
        elif isinstance(input_nodes, np.ndarray):
            input_nodes = in_place(input_nodes)
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
