"""Batches of the CPU route: prepared by native threads into slots that are used again, and copied to a GPU one ahead."""

from __future__ import annotations

import ctypes
import math
import operator
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from minibatch.graphs import Graph, GraphError, convert, ids_of
from minibatch.memory import amount, available_bytes
from minibatch.native import library
from minibatch.timeline import SpanTrace

SEEDS_A_BATCH = 8
"""Seeds that a batch has for its hops; so a batch has at most as many of these."""


MOST_THREADS = 1024
LEFT_ALONE = 0.85
"""Share of free memory that slots may take."""


@dataclass
class Batch:
    """One mini-batch as message-flow layers.

    hops: for each hop, first the one next to the seeds, int32 [rows, fanout]: numbers of the sampled neighbours among the
    nodes known after that hop, -1 for none; its rows are the nodes known before (of a loader of the newest only, those that the
    hop before found). x: features of all nodes, [nodes, width]; y: labels of the seeds, a row each. nodes: int32 global ids, the
    seeds first and in their order, one that comes twice twice; all others once.
    """

    hops: list[torch.Tensor]
    x: torch.Tensor
    y: torch.Tensor
    nodes: torch.Tensor
    edges: int
    """Neighbours that were sampled in all hops, counted where they were: a count on a GPU would have to be waited for."""
    made: tuple[float, float, float, int]
    """When a native thread began it, had sampled it and had sliced it, by time.perf_counter, and the thread's number."""
    places: list[torch.Tensor] | None = None
    """Position of each sampled edge in the graph's col, int64, in the order of hops; only where the loader was asked
    for them."""
    counts: tuple[int, ...] = ()
    """Nodes known before each hop and after the last."""


def require_fanouts(fanouts: Sequence[int]) -> None:
    """Raises GraphError where these are no fanouts."""
    if not fanouts or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in fanouts):
        raise GraphError(f"fanouts must be at least 1, not {' '.join(map(str, fanouts))}; give one for each layer")
    if len(fanouts) > SEEDS_A_BATCH:
        raise GraphError(f"at most {SEEDS_A_BATCH} hops are sampled, not {len(fanouts)}")
    if max(fanouts) >= 1 << 31:
        raise GraphError(f"a fanout of {max(fanouts)} is more neighbours than a graph here has nodes")


def require_number(name: str, value: Any, least: int, most: int | None = None) -> int:
    """The whole number; raises GraphError where it is none or out of range."""
    try:
        found = operator.index(value)
    except TypeError:
        found = None
    if found is None or isinstance(value, bool) or found < least or (most is not None and found > most):
        upper = "" if most is None else f" and at most {most}"
        raise GraphError(f"{name} must be a whole number of at least {least}{upper}, not {value!r}")
    return found


def most_nodes(batch: int, fanouts: Sequence[int], nodes: int, *, repeated: bool = False) -> list[int]:
    """The most nodes that can be known before each hop and after the last; repeated: of seeds each is a row however often it comes."""
    known = [batch if repeated else min(batch, nodes)]
    most = nodes + batch - 1 if repeated else nodes
    for fanout in fanouts:
        known.append(min(known[-1] * (fanout + 1), most))
    return known


class BatchLoader:
    """Prepares batches in order, several ahead, in native threads. Use as a context manager.

    graph: in host memory; labels, features and neighbours are converted where their dtypes are others. threads: 0 for one a core.
    copy: batches are copies that live until they are dropped; without, they are views of slots and hold until the next is asked
    for. newest_only: a hop expands only what the one before found, as PyTorch Geometric's loader does, else all nodes so far.
    with_replacement: a neighbour may be picked again; places: batches say where in col each edge was. The graph's edge_weights, where it
    has some, are probabilities of being picked up to a factor. Raises GraphError where arguments do not fit.
    """

    def __init__(
        self, graph: Graph, fanouts: Sequence[int], batch: int, *, threads: int = 0, slots: int = 0, seed: int = 0,
        pin: bool = False, with_features: bool = True, copy: bool = True, newest_only: bool = False, with_replacement: bool = False,
        places: bool = False,
    ) -> None:  # fmt: skip
        if not isinstance(graph, Graph):
            raise GraphError(
                f"the graph must be a minibatch Graph, such as from_pyg makes, not a {type(graph).__name__}"
            )
        if isinstance(fanouts, (str, int)):
            raise GraphError(f"fanouts must be a list, one for each layer, not {fanouts!r}")
        fanouts = [
            n.__index__() if hasattr(n, "__index__") and not isinstance(n, (bool, float)) else n for n in fanouts
        ]
        require_fanouts(fanouts)
        seed = require_number("seed", seed, -(1 << 63), (1 << 64) - 1)
        batch = require_number("batch", batch, 1, (1 << 31) - 1)
        cores = len(os.sched_getaffinity(0))
        threads = require_number("threads", threads, 0, MOST_THREADS) or cores
        slots = require_number("slots", slots, 0, 1 << 16) or threads + 2
        if graph.col.device.type != "cpu":
            raise GraphError("this loader takes a graph in host memory")
        self.graph = graph = usable(graph, with_features)
        self.fanouts, self.batch, self.seed, self.copy = list(fanouts), batch, seed, copy
        self.with_features, self.with_replacement = with_features, with_replacement
        self._options = (threads, slots, pin, with_features, newest_only, with_replacement, places)
        self._library = library((Path(__file__).parent / "loader.cpp").read_text(), "cpu")
        self._library.loader_open.restype = ctypes.c_void_p
        self._library.loader_next.restype = self._library.loader_edges.restype = ctypes.c_int64
        self._closed = False
        self._open: list[_Native] = []
        self._free: list[_Native] = [self._made()]

    def _made(self) -> _Native:
        made = _Native(self._library, self.graph, self.fanouts, self.batch, *self._options)
        self._open.append(made)
        return made

    @property
    def slots(self) -> list[tuple[torch.Tensor, ...]]:
        """Those of an epoch."""
        return self._open[0].slots

    def epoch(self, ids: torch.Tensor, number: int = 0) -> Iterator[Batch]:
        """Batches of these seeds, ids or a mask, in their order; `number` picks other neighbours.

        A seed that comes twice has two rows, each with neighbours of its own. Epochs of one loader may be read in turn: each
        has slots of its own. Raises GraphError where a seed is no node, ValueError where the loader is closed.
        """
        given = ids_of(ids, self.graph.nodes).cpu()
        number = require_number("an epoch's number", number, -(1 << 62), 1 << 62)
        return self._batches(given, batch_seed(self.seed, number))

    def _batches(self, given: torch.Tensor, seed: int) -> Iterator[Batch]:
        if self._closed:
            raise ValueError("the loader is closed")
        native = self._free.pop() if self._free else self._made()
        try:
            native.begin(given, seed)
            while (batch := native.next()) is not None:
                try:
                    yield copy_batch(batch) if self.copy else batch
                finally:
                    native.release()
                if self._closed:
                    raise ValueError("the loader is closed")
        finally:
            if not self._closed:
                self._free.append(native)

    def close(self) -> None:
        """End the threads. Safe to call twice."""
        self._closed = True
        while self._open:
            self._open.pop().close()

    def __enter__(self) -> BatchLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_open"):
            self.close()


class _Native:
    """Threads and slots of one epoch at a time."""

    def __init__(
        self, made_by: ctypes.CDLL, graph: Graph, fanouts: list[int], batch: int, threads: int, slots: int, pin: bool,
        with_features: bool, newest_only: bool, with_replacement: bool, places: bool,
    ) -> None:  # fmt: skip
        self.fanouts, self.newest_only = fanouts, newest_only
        wanted = torch.tensor(fanouts)
        most = most_nodes(batch, fanouts, graph.nodes, repeated=True)
        room = sum(rows * fanout for rows, fanout in zip(most, fanouts, strict=False))
        features = graph.features if with_features else torch.empty(0, 0)
        labels = graph.labels
        needed = [
            ((most[-1],), torch.int32), ((room,), torch.int32), ((most[-1] if with_features else 0, features.shape[1]), features.dtype),
            ((batch, *labels.shape[1:]), labels.dtype), ((room if places else 0,), torch.int64),
        ]  # fmt: skip
        size = sum(math.prod(shape) * kind.itemsize for shape, kind in needed)
        free = available_bytes()
        # Each thread has a table of numbers, of 12 bytes an entry and at least twice as many entries as nodes.
        tables = threads * 12 * (1 << max(10, (2 * most[-1] - 1).bit_length()))
        if slots * size + tables > LEFT_ALONE * free:
            raise GraphError(
                f"{slots} batches of {batch} at fanout {' '.join(map(str, fanouts))} take {amount(slots * size + tables)}, and "
                f"{amount(free)} are free: take a smaller batch, smaller fanouts or fewer threads"
            )
        self.slots = [
            tuple(torch.empty(shape, dtype=kind, pin_memory=pin) for shape, kind in needed) for _ in range(slots)
        ]
        self._library, self.places = made_by, places
        self._counts = torch.zeros(len(fanouts) + 1, dtype=torch.int64)
        addresses = (ctypes.c_void_p * (5 * slots))(
            *(tensor.data_ptr() if tensor.numel() else None for slot in self.slots for tensor in slot)
        )
        self._loader: int | None = self._library.loader_open(
            _at(graph.rowptr), _at(graph.col), _at(features) if with_features else None,
            ctypes.c_int64(features.shape[1] * features.dtype.itemsize), _at(labels),
            ctypes.c_int64(labels[:1].nbytes), _at(graph.edge_weights) if graph.edge_weights is not None else None,
            *_sizes(newest_only, with_replacement), _at(wanted), *_sizes(len(fanouts), batch, most[-1], threads), addresses,
            ctypes.c_int64(slots),
        )  # fmt: skip

    def begin(self, given: torch.Tensor, seed: int) -> None:
        self._library.loader_begin(self._opened(), _at(given), ctypes.c_int64(len(given)), ctypes.c_int64(seed))

    def next(self) -> Batch | None:
        """A view of the next slot; None at the epoch's end."""
        slot = self._library.loader_next(self._opened(), _at(self._counts), ctypes.c_int64(len(self.fanouts)))
        return self._view(slot) if slot >= 0 else None

    def release(self) -> None:
        if self._loader is not None:
            self._library.loader_release(self._opened())

    def _opened(self) -> ctypes.c_void_p:
        if self._loader is None:
            raise ValueError("the loader is closed")
        return ctypes.c_void_p(self._loader)

    def _view(self, slot: int) -> Batch:
        nodes, local, rows, labels, places = self.slots[slot]
        counts = self._counts.tolist()
        hops, picked, at, before = [], [], 0, 0
        for known, fanout in zip(counts, self.fanouts, strict=False):
            here = known - before
            hops.append(local[at : at + here * fanout].view(here, fanout))
            picked.append(places[at : at + here * fanout].view(here, fanout) if self.places else places)
            at += here * fanout
            before = known if self.newest_only else 0
        made = (ctypes.c_double * 4)()
        self._library.loader_made(self._opened(), ctypes.c_int64(slot), made)
        times = made[0], made[1], made[2], int(made[3])
        edges = self._library.loader_edges(self._opened(), ctypes.c_int64(slot))
        return Batch(
            hops, rows[: counts[-1]], labels[: counts[0]], nodes[: counts[-1]], edges, times,
            picked if self.places else None, tuple(counts),
        )  # fmt: skip

    def close(self) -> None:
        if self._loader is not None:
            loader, self._loader = self._opened(), None
            self._library.loader_close(loader)


def copy_batch(batch: Batch) -> Batch:
    """The same in memory of its own."""
    hops, x, y, nodes = [hop.clone() for hop in batch.hops], batch.x.clone(), batch.y.clone(), batch.nodes.clone()
    places = None if batch.places is None else [at.clone() for at in batch.places]
    return replace(batch, hops=hops, x=x, y=y, nodes=nodes, places=places)


def usable(graph: Graph, with_features: bool = True) -> Graph:
    """The graph with arrays as native code reads them, converted where they were others. Raises GraphError."""
    names = ["rowptr", "col", "labels", *(["features"] if with_features else [])]
    names += [name for name in ("edge_ids", "edge_weights") if getattr(graph, name) is not None]
    tensors: dict[str, Any] = {name: convert(name, getattr(graph, name)) for name in names}
    made = replace(graph, **tensors)
    made.require_topology()
    for name in ("labels", "features") if with_features else ("labels",):
        if len(getattr(made, name)) != made.nodes:
            raise GraphError(f"the graph has {made.nodes} nodes and {name} for {len(getattr(made, name))}")
    return made


def pad_to(ids: torch.Tensor, size: int) -> torch.Tensor:
    """int32 [size]: the ids, then -1."""
    return F.pad(ids.to(torch.int32), (0, size - len(ids)), value=-1)


def batch_seed(seed: int, epoch: int) -> int:
    """Where the seeds of an epoch begin: batch b, hop h has this + b * SEEDS_A_BATCH + h. Of 64 bits, signed, whatever `seed` is."""
    return (((seed * 1_000_003 + epoch) << 32) + (1 << 63)) % (1 << 64) - (1 << 63)


def _at(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def _sizes(*values: int) -> list[ctypes.c_int64]:
    return [ctypes.c_int64(value) for value in values]


def ahead(batches: Iterator[Batch], device: str, trace: SpanTrace | None = None) -> Iterator[Batch]:
    """The batches on the GPU, each copied on a stream of its own while the one before is computed on."""
    trace = trace or SpanTrace(device, room=0)
    copying = torch.cuda.Stream()
    waiting: Batch | None = None
    for batch in batches:
        with torch.cuda.stream(copying), trace.span("copy stream", "copy"):
            hops = [hop.to(device, non_blocking=True) for hop in batch.hops]
            x, y, nodes = (tensor.to(device, non_blocking=True) for tensor in (batch.x, batch.y, batch.nodes))
            moved = replace(batch, hops=hops, x=x, y=y, nodes=nodes)
            copied = copying.record_event()
        if waiting is not None:
            yield waiting
        torch.cuda.current_stream().wait_event(copied)
        for tensor in (*moved.hops, moved.x, moved.y, moved.nodes):
            tensor.record_stream(torch.cuda.current_stream())
        copied.synchronize()  # the slot is written anew from here on; the compute stream has work of the batch before
        waiting = moved
    if waiting is not None:
        yield waiting
