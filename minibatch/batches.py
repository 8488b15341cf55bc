"""Batches of the CPU route: prepared by native threads into slots that are used again, and copied to a GPU one ahead."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional as F

from minibatch.graphs import Graph, GraphError
from minibatch.native import library
from minibatch.timeline import Trace

SEEDS_A_BATCH = 8
"""Seeds that a batch has for its hops; so a batch has at most as many of these."""


@dataclass
class Batch:
    """One mini-batch as message-flow layers.

    hops: for each hop, first the one next to the seeds, int32 [rows, fanout]: numbers of the sampled neighbours among the
    nodes known after that hop, -1 for none; its rows are the nodes known before. x: features of all nodes,
    [nodes, width]; y: int64 labels of the seeds. nodes: int32 global ids.
    """

    hops: list[torch.Tensor]
    x: torch.Tensor
    y: torch.Tensor
    nodes: torch.Tensor
    edges: int
    """Neighbours that were sampled in all hops, counted where they were: a count on a GPU would have to be waited for."""
    made: tuple[float, float, float, int]
    """When a native thread began it, had sampled it and had sliced it, by time.perf_counter, and the thread's number."""


def require_fanouts(fanouts: list[int]) -> None:
    """Raises GraphError where these are no fanouts."""
    if not fanouts or min(fanouts) < 1:
        raise GraphError(f"fanouts must be at least 1, not {' '.join(map(str, fanouts))}; give one for each layer")
    if len(fanouts) > SEEDS_A_BATCH:
        raise GraphError(f"at most {SEEDS_A_BATCH} hops are sampled, not {len(fanouts)}")


def most_nodes(batch: int, fanouts: list[int], nodes: int) -> list[int]:
    """The most nodes that can be known before each hop and after the last."""
    known = [min(batch, nodes)]
    for fanout in fanouts:
        known.append(min(known[-1] * (fanout + 1), nodes))
    return known


class Loader:
    """Prepares batches in order, several ahead, in native threads. Use as a context manager.

    A batch's tensors are views of a slot and hold until the next batch is asked for.
    """

    def __init__(
        self, graph: Graph, fanouts: list[int], batch: int, *, threads: int = 0, slots: int = 0, seed: int = 0,
        pin: bool = False, with_features: bool = True,
    ) -> None:  # fmt: skip
        require_fanouts(fanouts)
        if graph.col.device.type != "cpu":
            raise GraphError("this loader takes a graph in host memory")
        self.graph, self.fanouts, self.batch, self.seed = graph, list(fanouts), batch, seed
        threads = threads or len(os.sched_getaffinity(0))
        slots = slots or threads + 2
        most = most_nodes(batch, fanouts, graph.nodes)
        places = sum(rows * fanout for rows, fanout in zip(most, fanouts, strict=False))
        width, kind = graph.features.shape[1], graph.features.dtype
        rows = most[-1] if with_features else 1
        self.slots = [
            (
                torch.empty(most[-1], dtype=torch.int32, pin_memory=pin),
                torch.empty(places, dtype=torch.int32, pin_memory=pin),
                torch.empty(rows, width, dtype=kind, pin_memory=pin),
                torch.empty(batch, dtype=torch.int64, pin_memory=pin),
            )
            for _ in range(slots)
        ]
        self._library = library((Path(__file__).parent / "loader.cpp").read_text(), "cpu")
        self._library.loader_open.restype = ctypes.c_void_p
        self._library.loader_next.restype = self._library.loader_edges.restype = ctypes.c_int64
        self._counts = torch.zeros(len(fanouts) + 1, dtype=torch.int64)
        wanted = torch.tensor(fanouts)
        addresses = (ctypes.c_void_p * (4 * slots))(*(tensor.data_ptr() for slot in self.slots for tensor in slot))
        self._loader = self._library.loader_open(
            _at(graph.rowptr), _at(graph.col), _at(graph.features) if with_features else None,
            ctypes.c_int64(width * kind.itemsize), _at(graph.labels), _at(wanted), *_sizes(len(fanouts), batch, most[-1]),
            ctypes.c_int64(threads), addresses, ctypes.c_int64(slots),
        )  # fmt: skip

    def epoch(self, ids: torch.Tensor, number: int = 0) -> Iterator[Batch]:
        """Batches of these seeds (int64, distinct) in their order; `number` picks other neighbours."""
        given = ids.cpu().to(torch.int64).contiguous()
        seed = batch_seed(self.seed, number)
        self._library.loader_begin(self._opened(), _at(given), ctypes.c_int64(len(given)), ctypes.c_int64(seed))
        hops = ctypes.c_int64(len(self.fanouts))
        while (slot := self._library.loader_next(self._opened(), _at(self._counts), hops)) >= 0:
            try:
                yield self._view(slot)
            finally:
                if self._loader is not None:
                    self._library.loader_release(self._opened())

    def _opened(self) -> ctypes.c_void_p:
        if self._loader is None:
            raise ValueError("the loader is closed")
        return ctypes.c_void_p(self._loader)

    def _view(self, slot: int) -> Batch:
        nodes, local, rows, labels = self.slots[slot]
        counts = self._counts.tolist()
        hops, at = [], 0
        for known, fanout in zip(counts, self.fanouts, strict=False):
            hops.append(local[at : at + known * fanout].view(known, fanout))
            at += known * fanout
        made = (ctypes.c_double * 4)()
        self._library.loader_made(self._opened(), ctypes.c_int64(slot), made)
        times = made[0], made[1], made[2], int(made[3])
        edges = self._library.loader_edges(self._opened(), ctypes.c_int64(slot))
        return Batch(hops, rows[: counts[-1]], labels[: counts[0]], nodes[: counts[-1]], edges, times)

    def close(self) -> None:
        """End the threads. Safe to call twice."""
        if self._loader is not None:
            loader, self._loader = self._opened(), None
            self._library.loader_close(loader)

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def padded_to(ids: torch.Tensor, size: int) -> torch.Tensor:
    """int32 [size]: the ids, then -1."""
    return F.pad(ids.to(torch.int32), (0, size - len(ids)), value=-1)


def batch_seed(seed: int, epoch: int) -> int:
    """Where the seeds of an epoch begin: batch b, hop h has this + b * SEEDS_A_BATCH + h. Of 64 bits, signed, whatever `seed` is."""
    return (((seed * 1_000_003 + epoch) << 32) + (1 << 63)) % (1 << 64) - (1 << 63)


def _at(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def _sizes(*values: int) -> list[ctypes.c_int64]:
    return [ctypes.c_int64(value) for value in values]


def ahead(batches: Iterator[Batch], device: str, trace: Trace | None = None) -> Iterator[Batch]:
    """The batches on the GPU, each copied on a stream of its own while the one before is computed on."""
    trace = trace or Trace(device, room=0)
    copying = torch.cuda.Stream()
    waiting: Batch | None = None
    for batch in batches:
        with torch.cuda.stream(copying), trace.span("copy stream", "copy"):
            hops = [hop.to(device, non_blocking=True) for hop in batch.hops]
            x, y, nodes = (tensor.to(device, non_blocking=True) for tensor in (batch.x, batch.y, batch.nodes))
            moved = Batch(hops, x, y, nodes, batch.edges, batch.made)
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
