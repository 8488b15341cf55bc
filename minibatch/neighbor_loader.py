"""PyTorch Geometric's NeighborLoader over native threads: the same arguments, the same batches, no worker processes."""

from __future__ import annotations

import copy as shallow
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from minibatch.batches import Batch, BatchLoader
from minibatch.graphs import KINDS, Graph, GraphError, convert, ids_of, in_place, in_rows

NOT_BUILT = {
    "input_time": None, "time_attr": None, "temporal_strategy": "uniform", "disjoint": False, "neighbor_sampler": None,
    "transform_sampler_output": None, "custom_cls": None,
}  # fmt: skip
"""Arguments of PyTorch Geometric's that mean something else than their default here, and are then refused."""
WITHOUT_MEANING = (
    "num_workers", "persistent_workers", "prefetch_factor", "filter_per_worker", "is_sorted",
    "multiprocessing_context", "worker_init_fn", "timeout",
)  # fmt: skip
"""Arguments of its worker processes, which there are none of: taken and left alone."""


class NeighborLoader:
    """Batches of torch_geometric.data.Data from sampled neighbourhoods, as torch_geometric.loader.NeighborLoader gives them.

    data: a Data with edge_index, int64 [2, edges] from sources to targets, in host memory. num_neighbors: a hop, the seeds' first;
    -1 for all. input_nodes: ids or a mask, all nodes where None. weight_attr names weights of edges. subgraph_type: "directional",
    "bidirectional" for the sampled edges in both directions, or "induced" for all edges between sampled nodes. A batch has n_id and
    e_id, where its nodes and edges were, input_id, where its seeds were among the input nodes (of a mask: in it), batch_size, the seeds first, num_sampled_nodes and num_sampled_edges a hop, and the data's
    attributes of nodes and edges. Batches live until they are dropped. Every iteration is an epoch: another order where `shuffle`,
    other neighbours; `seed` (or `generator`) decides both, but for the order that a `sampler` gives, one of PyTorch's over `dataset`, the
    places of input nodes. threads: 0 for one a core. Raises GraphError.
    """

    def __new__(cls, data: Any, num_neighbors: Any, input_nodes: Any = None, **others: Any) -> Any:
        """Of heterogeneous data, stores and disjoint neighbourhoods, those in time too, PyTorch Geometric's own loader over native
        sampling."""
        whole = not hasattr(data, "node_types") and not isinstance(data, tuple)
        if whole and not others.get("disjoint") and others.get("time_attr") is None:
            return super().__new__(cls)
        from minibatch.pyg_loaders import NodeNeighborLoader

        if whole:
            _require_whole(data, input_nodes)
        return NodeNeighborLoader(data, num_neighbors, input_nodes, **others)

    def __init__(
        self, data: Any, num_neighbors: list[int], input_nodes: Any = None, *, replace: bool = False,
        subgraph_type: Any = "directional", weight_attr: str | None = None, transform: Callable[[Any], Any] | None = None,
        batch_size: int = 1, shuffle: bool = False, drop_last: bool = False, generator: torch.Generator | None = None,
        sampler: Any = None, input_id: Any = None, directed: bool = True, seed: int = 0, threads: int = 0, pin_memory: bool = False,
        **others: Any,
    ) -> None:  # fmt: skip
        _require_built(data, num_neighbors, input_nodes, others)
        kind = (
            getattr(subgraph_type, "value", subgraph_type) if directed else "induced"
        )  # PyTorch Geometric's older name
        if kind not in ("directional", "bidirectional", "induced"):
            raise GraphError(f"there is no subgraph_type {kind}; there is directional, bidirectional and induced")
        self.data, self.transform, self.kind, self.pin = data, transform, kind, pin_memory
        self.batch_size, self.shuffle, self.drop_last, self.sampler = batch_size, shuffle, drop_last, sampler
        if sampler is not None and shuffle:
            raise GraphError("a sampler decides the order, so shuffle means nothing with it; leave one out")
        self.generator = generator or torch.Generator().manual_seed(seed)
        self.graph = _graph_of(data, weight_attr)
        self.input_nodes = (
            torch.arange(self.graph.nodes) if input_nodes is None else ids_of(input_nodes, self.graph.nodes)
        )
        mask = getattr(input_nodes, "dtype", None) in (torch.bool, np.dtype(bool))
        self.input_ids = self.input_nodes if mask else torch.arange(len(self.input_nodes))
        if input_id is not None:
            self.input_ids = convert("input_id", input_id)
            if self.input_ids.shape != self.input_nodes.shape:
                raise GraphError(f"there are {len(self.input_ids)} of input_id for {len(self.input_nodes)} input nodes")
        assert self.graph.edge_ids is not None
        self._edge_ids = self.graph.edge_ids
        degrees = self.graph.rowptr[1:] - self.graph.rowptr[:-1]
        widest = max(1, int(degrees.max()))
        # More than the highest degree changes nothing without replacement, and takes room.
        fanouts = [widest if n == -1 else n if replace else min(n, widest) for n in num_neighbors]
        self._x = getattr(data, "x", None)
        self.loader = BatchLoader(
            self.graph, fanouts, batch_size, threads=threads, seed=seed, newest_only=True, with_replacement=replace,
            places=True, with_features=self.graph.features.shape[1] > 0,
        )  # fmt: skip
        self.dataset = range(len(self.input_nodes))
        self.epochs = 0

    def __len__(self) -> int:
        count = len(self.dataset if self.sampler is None else self.sampler)
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        count = len(self.input_nodes)
        if self.sampler is not None:
            order = ids_of(list(self.sampler), count, "places that the sampler gives")
        else:
            order = torch.randperm(count, generator=self.generator) if self.shuffle else torch.arange(count)
        if self.drop_last:
            order = order[: len(order) // self.batch_size * self.batch_size]
        number, self.epochs = self.epochs, self.epochs + 1
        return self._batches(order, number)

    def __call__(self, index: Any) -> Any:
        """The batch of these places in the input nodes, however many; its neighbours are those of the next epoch."""
        places = ids_of(index, len(self.input_nodes), "places in the input nodes")
        one = BatchLoader(
            self.graph, self.loader.fanouts, max(1, len(places)), threads=1, seed=self.loader.seed, newest_only=True,
            with_replacement=self.loader.with_replacement, places=True, with_features=self.loader.with_features,
        )  # fmt: skip
        with one:
            return next(self._made(one, places, self.epochs))

    def _batches(self, order: torch.Tensor, number: int) -> Iterator[Any]:
        return self._made(self.loader, order, number)

    def _made(self, loader: BatchLoader, order: torch.Tensor, number: int) -> Iterator[Any]:
        first, attributes = 0, _attributes(self.data)  # as they are now: some are taken out of `loader.data`, or put in
        for batch in loader.epoch(self.input_nodes[order], number):
            seeds = batch.counts[0]
            made = self._data_of(batch, self.input_ids[order[first : first + seeds]], *attributes)
            first += seeds
            yield made if self.transform is None else self.transform(made)

    def _data_of(self, batch: Batch, input_id: torch.Tensor, of_nodes: list[str], of_edges: list[str]) -> Any:
        nodes = batch.nodes.long()
        edge_index, e_id, edges = self._induced(nodes) if self.kind == "induced" else self._sampled(batch)
        if self.kind == "bidirectional":
            edge_index, e_id, edges = *_both_ways(edge_index, e_id, len(nodes)), None
        made = shallow.copy(self.data)
        for name in of_nodes:
            native = name == "x" and self.loader.with_features and self.data.x is self._x
            made[name] = batch.x if native else self._rows(name, nodes)
        for name in of_edges:
            made[name] = self._rows(name, e_id)
        made.edge_index, made.n_id, made.e_id, made.input_id = edge_index, nodes, e_id, input_id
        made.batch_size, made.num_nodes = batch.counts[0], len(nodes)
        news = [batch.counts[0], *(b - a for a, b in zip(batch.counts, batch.counts[1:], strict=False))]
        made.num_sampled_nodes, made.num_sampled_edges = news, edges
        return made.pin_memory() if self.pin and torch.cuda.is_available() else made

    def _rows(self, name: str, ids: torch.Tensor) -> torch.Tensor:
        """Those of an attribute, on the device where it is."""
        values = _tensor(self.data[name])
        return values.index_select(self.data.__cat_dim__(name, values), ids.to(values.device))

    def _sampled(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, list[int] | None]:
        """edge_index, e_id and how many edges each hop has: hops one behind another."""
        parts, places, counts, first = [], [], [], 0
        for hop, at, known in zip(batch.hops, batch.places or [], batch.counts, strict=False):
            rows, columns = torch.nonzero(hop >= 0, as_tuple=True)
            parts.append(torch.stack([hop[rows, columns].long(), rows + first]))
            places.append(at[rows, columns])
            counts.append(len(rows))
            first = known
        return torch.cat(parts, dim=1), self._edge_ids[torch.cat(places)], counts

    def _induced(self, nodes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        """All edges between these nodes."""
        local = torch.full((self.graph.nodes,), -1)
        local[nodes.flip(0)] = torch.arange(len(nodes)).flip(0)  # of a seed that comes twice the first
        begin, degree = self.graph.rowptr[nodes], (self.graph.rowptr[1:] - self.graph.rowptr[:-1])[nodes]
        rows = torch.repeat_interleave(torch.arange(len(nodes)), degree)
        at = torch.arange(len(rows)) - (degree.cumsum(0) - degree)[rows] + begin[rows]
        source = local[self.graph.col[at].long()]
        kept = source >= 0
        return torch.stack([source[kept], rows[kept]]), self._edge_ids[at[kept]], None

    def close(self) -> None:
        """End the threads; the garbage collector does it too."""
        self.loader.close()

    def __repr__(self) -> str:
        return "NeighborLoader()"


def _require_built(data: Any, num_neighbors: Any, input_nodes: Any, others: dict[str, Any]) -> None:
    """Raises GraphError that names what is not built."""
    if isinstance(num_neighbors, dict):
        raise GraphError("num_neighbors of each kind are heterogeneous graphs'; give a list, one for each hop")
    _require_whole(data, input_nodes)
    for name, value in others.items():
        if name in NOT_BUILT and value not in (NOT_BUILT[name], None):
            raise GraphError(f"{name} is not built; leave it out")
        if name not in NOT_BUILT and name not in WITHOUT_MEANING:
            raise GraphError(f"there is no argument {name}")


def _require_whole(data: Any, input_nodes: Any) -> None:
    """Raises GraphError where the data is none of one kind of nodes, with edges."""
    if isinstance(input_nodes, tuple):
        raise GraphError("input_nodes of a named kind are heterogeneous graphs'; give ids or a mask")
    if getattr(data, "edge_index", None) is None:
        raise GraphError("the data has no edge_index (an adj_t is not read here)")


def _graph_of(data: Any, weight_attr: str | None) -> Graph:
    """The data's edges as in-neighbours, with x where the native loader copies its dtype."""
    nodes = int(data.num_nodes)
    if data.edge_index.dim() != 2 or len(data.edge_index) != 2:
        raise GraphError(f"edge_index must be [2, edges], sources and targets; it is {list(data.edge_index.shape)}")
    source, target = (ids_of(ids, nodes, "edge_index's ids") for ids in data.edge_index)
    rowptr, place = in_rows(target, nodes)
    x = _tensor(getattr(data, "x", None))
    native = (
        isinstance(x, torch.Tensor)
        and x.device.type == "cpu"
        and x.dim() == 2
        and x.dtype in KINDS["features"]
        and len(x) == nodes
    )
    weights = None
    if weight_attr is not None:
        if getattr(data, weight_attr, None) is None:
            raise GraphError(f"the data has no {weight_attr}")
        weights = convert("edge_weights", data[weight_attr])[place]
    none = torch.empty(0, dtype=torch.int64)
    return Graph(
        rowptr, convert("col", source[place]), x.contiguous() if native else torch.empty(nodes, 0),
        torch.empty(nodes, 0), none, none, none, 1, edge_ids=place, edge_weights=weights,
    )  # fmt: skip


def _both_ways(edges: torch.Tensor, e_id: torch.Tensor, nodes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Edges in both directions, each once, and the number of one that it was."""
    both = torch.cat([edges, edges.flip(0)], dim=1)
    keys, place = torch.unique(both[1] * nodes + both[0], return_inverse=True)
    of = e_id.new_full((len(keys),), torch.iinfo(torch.int64).max).scatter_reduce(0, place, e_id.repeat(2), "amin")
    return torch.stack([keys % nodes, keys // nodes]), of


def _tensor(values: Any) -> Any:
    """An array as the tensor that shares its memory; all else as it is."""
    return in_place(values) if isinstance(values, np.ndarray) else values


def _attributes(data: Any) -> tuple[list[str], list[str]]:
    """Names of tensors that have an element a node, and an edge."""
    held = (torch.Tensor, np.ndarray)
    names = [name for name, value in data if isinstance(value, held) and name != "edge_index"]
    nodes = [name for name in names if data.is_node_attr(name)]
    return nodes, [name for name in names if name not in nodes and data.is_edge_attr(name)]
