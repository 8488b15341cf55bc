"""Where a step reads feature rows: a table on the device, or one in host memory behind a cache of hot rows on the device.

On a GPU kernels read the table in host memory through unified addresses (memory.py has the memory): only rows that the cache
misses cross the bus, and the host does nothing in a step. On the CPU the same code runs on plain memory.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING

import torch

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
        if out is None:
            out = self.cache.new_empty(len(ids), self.table.shape[1])
        if self.native is not None:
            sizes = (len(ids), self.table.shape[1] * self.table.element_size())
            keys = torch.empty_like(ids)
            self._call("find_missed", self.place, ids, keys, self.read, len(ids))
            with self.beside.fork():
                self._call("gather_held", self.cache, self.place, ids, out, *sizes)
            inorder, order = keys.sort()
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

    def _call(self, name: str, *values: torch.Tensor | int) -> None:
        stream = torch.cuda.current_stream().cuda_stream if self.cache.is_cuda else None
        assert all(value.is_contiguous() for value in values if isinstance(value, torch.Tensor)), name
        given = (ctypes.c_void_p(v.data_ptr()) if isinstance(v, torch.Tensor) else ctypes.c_int64(v) for v in values)
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
