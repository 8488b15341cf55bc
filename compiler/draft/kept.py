"""Long rows of odd lengths that are read more than once stay in shared memory, each shared by a cluster of blocks (CUDA, sm_90 and later).

A row that a block folds and then goes through again comes from memory twice where the rows at work do not fit into the
second-level cache. The shared memory of up to eight neighbouring blocks, which form a cluster, holds rows of up to half a megabyte. Each
thread reads again only what it has put there itself, so that nothing waits but the folds. On an H200, x / norm(x) of 32,768 rows of
65,535 float32: 1.61x of eager, 1.04x read twice. Rows that come in packs of 16 bytes gained nothing (1 MB, mean and variance: 1.40x,
and 1.41x read twice, which then runs at 3.9 TB/s).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import torch

from .packing import Packs, Place

ROW_BYTES = 96 << 10
"""Two rows a multiprocessor of less than this stay in a cache of 50 MB (H100, H200: 132 multiprocessors) until they are read again."""
BLOCK_BYTES = 72 << 10
"""Shared memory of a block: three of them fit on a multiprocessor of Hopper, and one stores while another loads."""
THREADS = 512


@dataclass(frozen=True)
class Residency:
    """How rows that are read more than once stay with the blocks that share them, and what of a kernel's text follows from that."""

    names: dict[Place, str]
    """What of a row is kept, and as what."""
    in_there: set[Place] = field(default_factory=set, compare=False, kw_only=True)
    """What the loops that were printed have put there."""
    templates: ClassVar[tuple[str, ...]]
    parameters: ClassVar[tuple[str, ...]] = ()
    """Of the kernel, behind those of its buffers."""
    otherwise: ClassVar[str] = ""
    """These where nothing stays."""
    meeting = ""
    """The memory where blocks meet, as the text calls it."""

    def bound(self, threads: int) -> str:
        return f"__launch_bounds__({threads}) "

    def rows(self, first: str, step: str) -> tuple[str, str]:
        """The first of a block's rows and how far it is to the next, by those of a block that shares none."""
        return f"{first} / sharers", f"{step} / sharers"


@dataclass(frozen=True)
class Kept(Residency):
    """By clusters of blocks."""

    blocks: int
    bytes: int
    """Of a block's shared memory."""
    templates = ("int Blocks",)

    def before(self, length: str, type_of: Callable[[torch.dtype], str]) -> list[str]:
        """What the kernel says before its loop over rows: where a block's share of a row is kept, as elements of `type_of`."""
        lines = [
            "extern __shared__ float4 kept[];",
            "constexpr int Items = 1;",
            "constexpr int sharers = Blocks > 0 ? Blocks : 1;",
            f"const int sharer = blockIdx.x % sharers, width = Blocks > 0 ? {THREADS} : blockDim.x;",
        ]
        if len(self.names) > 1:
            share = "sharers * width * Items"
            lines.append(f"const int room = ({length} + {share} - 1) / ({share}) * width;")
        at = "kept"
        for place, name in self.names.items():
            type = f"Pack<{type_of(place.buffer.dtype)}, Items>"
            lines.append(f"{type}* const {name} = reinterpret_cast<{type}*>({at});")
            at = f"{name} + room"
        return [f"    {line}" for line in lines]

    def loops(self, packs: Packs, opened, tab: str, wide: str, end: str, threads: int) -> list[str]:
        """Lines that open the loop over packs and name (type, name, address) of each load: from memory, or what has been kept of it."""
        first = f"static_cast<{wide}>(sharer * width + threadIdx.x) * Items"
        step = "first += sharers * width * Items, slot += width"
        lines = []
        for place, (type, name, at) in zip(packs.loads, opened, strict=True):
            load = f"load_pack<Items>({at})"
            if place in self.in_there:
                load = f"Blocks > 0 ? {self.names[place]}[slot] : {load}"
            lines.append(f"const {type} {name} = {load};")
            if place in self.names and place not in self.in_there:
                lines.append(f"if (Blocks > 0) {self.names[place]}[slot] = {name};")
                self.in_there.add(place)
        return [
            f"{tab}#pragma unroll 8",
            f"{tab}for ({wide} first = {first}, slot = threadIdx.x; first < {end}; {step}) {{",
            *(f"{tab}    {line}" for line in lines),
        ]

    def fold(self, value: str, start: str, join: str) -> str:
        return f"cluster_fold<Blocks>({value}, {start}, {join})"

    def launch(self, kernel: str, items: int, arguments: str) -> list[str]:
        """Lines that launch the kernel and return, where the device can do so."""
        configured = f"{kernel}<{self.blocks}>, rows, {self.blocks}, {THREADS}, {self.bytes}, stream"
        return [
            "    if (kClusters) {",
            f"        launch_clusters({configured}, {arguments});",
            "        return;",
            "    }",
        ]


def kept_of(packs: dict[int, Packs], length: int, name: Callable[[str], str]) -> Kept | None:
    """`packs` of one element in all loops over a row of `length`; None where nothing is worth to be kept. `name` makes a new name."""
    loads = [place for one in packs.values() for place in one.loads]
    places = tuple(dict.fromkeys(place for place in loads if loads.count(place) > 1))
    sizes = [place.buffer.dtype.itemsize for place in places]
    if not places or min(sizes) * length < ROW_BYTES:
        return None
    for blocks in (1, 2, 4, 8):
        share = -(-length // (blocks * THREADS)) * THREADS
        if share * sum(sizes) <= BLOCK_BYTES:
            return Kept({place: name("kept") for place in places}, blocks, share * sum(sizes))
    return None
