"""Where a step reads feature rows: a table on the device, or one in host memory behind a cache of hot rows on the device.

On a GPU the table in host memory is pinned, and only rows that the cache misses cross the bus. In padded batches threads of the
host gather these (gather.cpp), called by the stream itself: the host waits for nothing in a step. Other batches, and those of a
machine with few cores, are read by kernels through unified addresses (UVA). On the CPU the same code runs on plain memory.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from minibatch import ranks
from minibatch.batches import SEEDS_A_BATCH, batch_seed, pad_to
from minibatch.native import library
from minibatch.ops import Kernels
from minibatch.streams import Branch

if TYPE_CHECKING:
    from minibatch.resident import Sampler

PRESAMPLED = 256
"""Batches whose visits say which rows are hot: a fifth of an epoch on papers100M, about a second on a GPU."""
PRESAMPLED_AS = -2
"""The epoch's number whose neighbours are drawn for that; training counts from 0, and accuracy draws as -1."""

FILLED_AT_ONCE = 1 << 20
"""Rows of the cache, so that no second copy of it is made."""

PARTS = 8
"""Of a batch's rows that threads of the host gather: one crosses the bus while the next is gathered."""
FEWEST_THREADS = 6
"""With fewer a GPU reads the rows as fast itself."""


class _Request(ctypes.Structure):
    _fields_ = (
        ("table", ctypes.c_void_p), ("ids", ctypes.c_void_p), ("count", ctypes.c_void_p), ("out", ctypes.c_void_p),
        ("row_bytes", ctypes.c_int64), ("parts", ctypes.c_int64),
    )  # fmt: skip


class _Part(ctypes.Structure):
    _fields_ = (("request", ctypes.c_void_p), ("number", ctypes.c_int64))


@dataclass
class _Delivery:
    """What threads of the host gather for one slot of batches: pinned ids of the rows, their number, and the rows themselves."""

    ids: torch.Tensor
    count: torch.Tensor
    rows: torch.Tensor
    count_here: torch.Tensor
    """The number on the device."""
    request: _Request
    parts: ctypes.Array[_Part]


class FeatureTable:
    """All rows on the device."""

    def __init__(self, table: torch.Tensor, kernels: Kernels) -> None:
        self.table, self.kernels = table, kernels

    def begin(self) -> None:
        """An epoch begins."""

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """[ids, width]: the rows of int32 ids on the device, zeros where an id is -1."""
        return self.kernels.gather_rows(self.table, ids)

    def mean(self, ids: torch.Tensor) -> torch.Tensor:
        """[rows, width]: the means of the rows of int32 ids [rows, fanout] that are not -1."""
        return self.kernels.gather_mean(self.table, ids)

    def hit_share(self) -> float | None:
        """Share of rows read since `begin` that the cache held; None where there is no cache."""
        return None


class TieredTable(FeatureTable):
    """Rows in host memory, `room` of them held on the device too. Until `fill` the cache is empty."""

    def __init__(self, table: torch.Tensor, room: int, device: str, kernels: Kernels) -> None:
        super().__init__(table, kernels)
        self.room = min(room, len(table))
        self.cache = torch.zeros(1, table.shape[1], dtype=table.dtype, device=device)
        self.place = torch.full((len(table),), -1, dtype=torch.int32, device=device)
        self.read = torch.zeros(2, dtype=torch.int64, device=device)
        """Rows read, and those of them that were missed: counted on the device."""
        self.native = library((Path(__file__).parent / "features.cu").read_text(), "cuda") if device == "cuda" else None
        self.beside = Branch(device)
        """On which held rows are gathered beside those that are fetched."""
        self.crossing = Branch(device)
        """On which a part of the fetched rows crosses the bus while the next is gathered."""
        self.gatherer: ctypes.CDLL | None = None
        threads = len(os.sched_getaffinity(0)) // ranks.here() - 1  # the others are this process's own
        if device == "cuda" and threads >= FEWEST_THREADS:
            self._gather_by(threads)
        self.deliveries: dict[int, _Delivery] = {}

    def _gather_by(self, threads: int) -> None:
        self.gatherer = library((Path(__file__).parent / "gather.cpp").read_text(), "cpu")
        self.gatherer.gather_start(ctypes.c_int64(threads))

    def fill(self, hot: torch.Tensor) -> None:
        """Hold these rows (int64 ids, distinct, at most `room`)."""
        self.place.fill_(-1)
        if len(self.cache) < self.room:
            # Not before: to sort the nodes by how hot they are takes memory too, for a while.
            self.cache = self.cache.new_empty(self.room, self.cache.shape[1])
        for begin in range(0, len(hot), FILLED_AT_ONCE):
            part = hot[begin : begin + FILLED_AT_ONCE]
            at = torch.arange(begin, begin + len(part), device=self.cache.device)
            self.cache[begin : begin + len(part)] = self.rows(part.to(self.cache.device, torch.int32))
            # After the rows were read: what is not held yet comes from host memory.
            self.place[part.to(self.place.device)] = at.to(torch.int32)

    def begin(self) -> None:
        self.read.zero_()

    def rows(self, ids: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """out: where the rows go, the same for all batches of a slot."""
        delivery = self._delivery(out) if self.gatherer and out is not None and out.numel() else None
        if out is None:
            out = self.cache.new_empty(len(ids), self.table.shape[1])
        if self.native is not None:
            sizes = (len(ids), self.table.shape[1] * self.table.element_size())
            keys = torch.empty_like(ids)
            self._call("find_missed", self.place, ids, keys, self.read, len(ids))
            with self.beside.fork():
                self._call("gather_held", self.cache, self.place, ids, out, *sizes)
            inorder, order = keys.sort()
            if delivery:
                self._fetch_gathered(delivery, inorder, order, out)
            else:
                self._call("gather_missed", self.table, inorder, order, out, *sizes)
            self.beside.join()
            return out
        held = torch.where(ids >= 0, self.place[ids.clamp_min(0).long()], -1)
        missed = torch.where(held < 0, ids, -1)
        self.read += torch.stack([(ids >= 0).sum(), (missed >= 0).sum()])
        found = self.kernels.gather_rows(self.cache, held)
        return torch.add(
            found, self.kernels.gather_rows(self.table, missed), out=out
        )  # a row is zeros in one of the two

    def _delivery(self, out: torch.Tensor) -> _Delivery:
        """That of the slot whose rows go to `out`."""
        at = out.data_ptr()
        if at not in self.deliveries or len(self.deliveries[at].rows) != len(out):
            pin = self.cache.is_cuda
            ids, count = (
                torch.zeros(size, dtype=dtype, pin_memory=pin)
                for size, dtype in ((len(out), torch.int32), (1, torch.int64))
            )
            rows = torch.empty(out.shape, dtype=out.dtype, pin_memory=pin)
            size = out.shape[1] * out.element_size()
            request = _Request(*(t.data_ptr() for t in (self.table, ids, count, rows)), size, PARTS)
            parts = (_Part * PARTS)(*(_Part(ctypes.addressof(request), number) for number in range(PARTS)))
            self.deliveries[at] = _Delivery(ids, count, rows, count.to(out.device), request, parts)
        return self.deliveries[at]

    def _fetch_gathered(
        self, delivery: _Delivery, inorder: torch.Tensor, order: torch.Tensor, out: torch.Tensor
    ) -> None:
        """Into out the rows of ids that come first inorder, by threads of the host."""
        self._call("send_missed", inorder, delivery.ids, delivery.count, delivery.count_here, len(inorder))
        assert self.gatherer is not None
        for number, part in enumerate(delivery.parts):
            self._call("call_host", self.gatherer.gather_part, ctypes.byref(part))
            with self.crossing.fork():
                about = (delivery.rows, delivery.count_here, order, out, number, PARTS, delivery.request.row_bytes)
                self._call("place_gathered", *about)
        self.crossing.join()

    def _call(self, name: str, *values: Any) -> None:
        stream = torch.cuda.current_stream().cuda_stream if self.cache.is_cuda else None
        assert all(value.is_contiguous() for value in values if isinstance(value, torch.Tensor)), name
        given = (
            ctypes.c_void_p(v.data_ptr())
            if isinstance(v, torch.Tensor)
            else ctypes.c_int64(v)
            if isinstance(v, int)
            else v
            for v in values
        )
        getattr(self.native, f"features_{name}")(*given, ctypes.c_void_p(stream))

    def mean(self, ids: torch.Tensor) -> torch.Tensor:
        at = torch.arange(ids.numel(), dtype=torch.int32, device=ids.device).view_as(ids)
        return self.kernels.gather_mean(self.rows(ids.flatten()), torch.where(ids >= 0, at, -1))

    def hit_share(self) -> float | None:
        read, missed = self.read.tolist()
        return 1 - missed / max(1, read)


def visits(sampler: Sampler, ids: torch.Tensor, batches: int = PRESAMPLED) -> torch.Tensor:
    """int32 [nodes] on the device: in how many of some sampled batches of these seeds each node's features were read."""
    counts = torch.zeros(sampler.graph.nodes, dtype=torch.int32, device=sampler.device)
    hops = torch.arange(len(sampler.fanouts), device=sampler.device)
    shuffled = ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(0)).to(ids.device)]
    for number, seeds in enumerate(shuffled.split(sampler.batch)[:batches]):
        draws = hops + batch_seed(0, PRESAMPLED_AS) + number * SEEDS_A_BATCH
        known = sampler.exact(pad_to(seeds, sampler.batch), draws).heads[-1]
        counts.index_add_(0, known.long(), torch.ones_like(known))
    return counts


def hot_rows(visited: torch.Tensor, rowptr: torch.Tensor, room: int) -> torch.Tensor:
    """int64 [min(room, nodes)]: the most visited nodes, and among equals those of most neighbours, the hottest first.

    Few batches tell the hottest rows apart but leave most unvisited; of those the well connected are likelier to come.
    """
    degree = rowptr[1:] - rowptr[:-1]
    key = visited.to(torch.int64) * (int(degree.max()) + 1) + degree
    return torch.topk(key, min(room, len(key))).indices
