"""Long rows that are read more than once stay in the shared memory of a group of blocks, whose grid is launched together (CUDA).

A row of up to a third of what the device's shared memory holds is loaded once: each block of a group keeps a part of it, the blocks meet in
memory at every fold, and go on with what they keep. While one group waits, another one's blocks on the same multiprocessors load or store.
On an H200 (float32, 7.5 GB): a group norm of 8 MB groups took 10.2 ms read twice and takes 6.0 (eager 9.0), an instance norm of 1 MB
5.6 and 4.7 (8.2); a softmax of rows of 1.5 MB took 4.7 read three times and 5.4 in groups, so only means and variances go so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from .cuda import whole
from .kept import Residency
from .packing import PACK_BYTES, Packs

THREADS = 256
BLOCKS = 3
"""Of a multiprocessor."""
KEPT_PACKS = 16
"""Packs of 16 bytes that a thread keeps: 64 KB a block."""
ROW_BYTES, MOST_BYTES = 1 << 20, 8 << 20
"""Of shorter rows nothing was gained; of longer ones fewer than two groups of blocks are at work (H100, H200: 132 multiprocessors)."""
KINDS = {"welford"}
"""Of folds."""
MEETING_WORDS = 1 << 15
"""Of the memory where blocks meet: a counter a group, and two times eight words a block."""


def prelude() -> str:
    return whole("block_groups.cuh").replace("THREADS", str(THREADS))


@dataclass(frozen=True)
class BlockGroup(Residency):
    slots: int
    """Packs of each that a thread keeps."""
    packs: int
    """Of a row."""
    meeting: str
    templates, otherwise = ("int Items", "int Slots"), ", nullptr, 1"

    @property
    def parameters(self) -> tuple[str, ...]:  # type: ignore[override]  # it names its own memory
        return f"unsigned* {self.meeting}", "int sharers"

    def bound(self, threads: int) -> str:
        return f"__launch_bounds__(Slots > 0 ? {THREADS} : {threads}, Slots > 0 ? {BLOCKS} : 1) "

    def rows(self, first: str, step: str) -> tuple[str, str]:
        own, apart = (f"Slots > 0 ? {word} / sharers : {word}" for word in (first, step))
        return own, f"({apart})"

    def before(self, length: str, type_of: Callable[[torch.dtype], str]) -> list[str]:
        lines = [
            "    const int sharer = Slots > 0 ? blockIdx.x % sharers : 0;",
            "    unsigned turn = 0;",
            "    extern __shared__ float4 kept[];",
        ]
        at = "kept"
        for place, name in self.names.items():
            type = f"Pack<{type_of(place.buffer.dtype)}, Items>"
            lines.append(f"    {type}* const {name} = reinterpret_cast<{type}*>({at}) + threadIdx.x;")
            at = f"{name} - threadIdx.x + Slots * {THREADS}"
        return lines

    def loops(self, packs, opened, tab: str, wide: str, end: str, threads: int) -> list[str]:
        """Also, in front, lines that load what is not kept yet, all of it at once."""
        new = [
            (place, at) for place, (_, _, at) in zip(packs.loads, opened, strict=True)
            if place in self.names and place not in self.in_there
        ]  # fmt: skip
        self.in_there.update(place for place, _ in new)
        first = f"(static_cast<{wide}>(sharer) * Slots + slot) * {THREADS} + threadIdx.x"
        loads = []
        if new:
            loads = [
                f"{tab}if (Slots > 0) {{",
                f"{tab}    #pragma unroll",
                f"{tab}    for (int slot = 0; slot < Slots; ++slot) {{",
                f"{tab}        const {wide} first = ({first}) * Items;",
                f"{tab}        if (first < {end}) {{",
                *(f"{tab}            copy_pack(&{self.names[place]}[slot * {THREADS}], {at});" for place, at in new),
                f"{tab}        }}",
                f"{tab}    }}",
                f"{tab}    __pipeline_commit();",
                f"{tab}    __pipeline_wait_prior(0);",
                f"{tab}}}",
            ]
        head = [
            f"{tab}#pragma unroll 4",
            f"{tab}for (int slot = 0; Slots == 0 || slot < Slots; ++slot) {{",
            f"{tab}    const {wide} first = (Slots > 0 ? {first} : static_cast<{wide}>(slot) * {threads} + threadIdx.x) * Items;",
            f"{tab}    if (first >= {end}) break;",
        ]
        loading = []
        for place, (type, name, at) in zip(packs.loads, opened, strict=True):
            load = f"load_pack<Items>({at})"
            if place in self.names:
                load = f"Slots > 0 ? {self.names[place]}[slot * {THREADS}] : {load}"
            loading.append(f"{tab}    const {type} {name} = {load};")
        return [*loads, *head, *loading]

    def fold(self, value: str, start: str, join: str) -> str:
        return f"Slots > 0 ? group_fold({value}, {start}, {join}, {self.meeting}, sharers, turn) : block_fold({value}, {start}, {join})"

    def launch(self, kernel: str, items: int, arguments: str) -> list[str]:
        call = f"{kernel}<{items}, {self.slots}>, rows, {self.packs}, {len(self.names) * self.slots * THREADS * PACK_BYTES}, reinterpret_cast<unsigned*>({self.meeting}), stream, {arguments}"
        return [f"    if (aligned && launch_groups<{self.slots}>({call})) return;"]


def group_of(
    packs: dict[int, Packs], items: int, length: int, kinds: set[str], name: Callable[[str], str]
) -> BlockGroup | None:
    """`packs` in all loops over a row of `length`; None where nothing is worth to be kept. `name` makes a new name."""
    loads = [place for one in packs.values() for place in one.loads]
    places = [
        place
        for place in dict.fromkeys(loads)
        if loads.count(place) > 1 and packs[0].variable not in place.base.free_symbols
    ]
    size = sum(place.buffer.dtype.itemsize for place in places)
    if not places or not kinds <= KINDS or not ROW_BYTES <= size * length <= MOST_BYTES:
        return None
    slots = KEPT_PACKS * PACK_BYTES // (size * items)
    return (
        BlockGroup({place: name("kept") for place in places}, slots, length // items, name("meeting"))
        if slots
        else None
    )
