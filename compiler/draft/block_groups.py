"""Long rows that are read more than once stay in the shared memory of a group of blocks, whose grid is launched together (CUDA).

A row of up to a third of what the device's shared memory holds is loaded once: each block of a group keeps a part of it, the blocks meet in
memory at every fold, and go on with what they keep. While one group waits, another one's blocks on the same multiprocessors load or store.
On an H200 (float32, 7.5 GB): a group norm of 8 MB groups took 10.2 ms read twice and takes 6.0 (eager 9.0), an instance norm of 1 MB
5.6 and 4.7 (8.2); a softmax of rows of 1.5 MB took 4.7 read three times and 5.4 in groups, so only means and variances go so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from .packing import PACK_BYTES, Packs, Place

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


PRELUDE = """\
#include <cuda_pipeline.h>
constexpr int kGroupThreads = THREADS, kMostBlocks = 1024, kLine = 32, kPartWords = 8;  // words of a counter's line, of a block's part

template <typename T>
__device__ __forceinline__ void copy_pack(T* to, const void* from) {
    __pipeline_memcpy_async(to, from, sizeof(T));
}

// Every thread of the `sharers` neighbouring blocks of a group gets the fold of all their values. `meeting`: a counter for each group,
// zero at the launch, then two places for each block's part, used in `turn`.
template <typename T, typename Join>
__device__ T group_fold(T value, T identity, Join join, unsigned* meeting, int sharers, unsigned& turn) {
    constexpr int kWords = (sizeof(T) + 3) / 4;
    static_assert(kWords <= kPartWords, "a part is of eight words at most");
    value = block_fold(value, identity, join);
    const int group = blockIdx.x / sharers;
    volatile unsigned* const counter = meeting + group * kLine;
    volatile unsigned* const parts = meeting + kMostBlocks / 2 * kLine + (turn % 2 * kMostBlocks + group * sharers) * kPartWords;
    unsigned words[kWords];
    if (threadIdx.x == 0) {
        memcpy(words, &value, sizeof(T));
        for (int word = 0; word < kWords; ++word) {
            parts[blockIdx.x % sharers * kPartWords + word] = words[word];
        }
        __threadfence();
        atomicAdd(meeting + group * kLine, 1u);
    }
    ++turn;
    if (threadIdx.x < 32) {
        unsigned seen;
        do {
            seen = threadIdx.x == 0 ? *counter : 0u;
            seen = __shfl_sync(0xffffffffu, seen, 0);
        } while (static_cast<int>(seen - turn * sharers) < 0);
        __threadfence();
    }
    __syncthreads();
    value = identity;
    for (int other = threadIdx.x; other < sharers; other += blockDim.x) {
        for (int word = 0; word < kWords; ++word) {
            words[word] = parts[other * kPartWords + word];
        }
        T part;
        memcpy(&part, words, sizeof(T));
        value = join(value, part);
    }
    return block_fold(value, identity, join);
}

// Groups of blocks for rows of `packs`, all of them at once; false where the device has not the room for two of them.
template <int Slots, typename... Parameters, typename... Arguments>
bool launch_groups(void (*kernel)(Parameters...), int64_t rows, int64_t packs, int bytes, unsigned* meeting, cudaStream_t stream, Arguments... arguments) {
    int device = 0, multiprocessors = 0, blocks = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kGroupThreads, bytes);
    blocks = blocks * multiprocessors < kMostBlocks ? blocks * multiprocessors : kMostBlocks;
    const int64_t sharers = (packs + Slots * kGroupThreads - 1) / (Slots * kGroupThreads);
    if (sharers < 2 || 2 * sharers > blocks) {
        return false;
    }
    const int64_t groups = rows < blocks / sharers ? rows : blocks / sharers;
    cudaMemsetAsync(meeting, 0, groups * kLine * sizeof(unsigned), stream);
    cudaLaunchAttribute together = {};
    together.id = cudaLaunchAttributeCooperative;
    together.val.cooperative = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(groups * sharers));
    config.blockDim = dim3(kGroupThreads);
    config.dynamicSmemBytes = bytes;
    config.stream = stream;
    config.attrs = &together;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, arguments..., meeting, static_cast<int>(sharers)) == cudaSuccess;
}
"""


def prelude() -> str:
    return PRELUDE.replace("THREADS", str(THREADS))


@dataclass(frozen=True)
class BlockGroup:
    """What of a row is kept."""

    names: dict[Place, str]
    slots: int
    """Packs of each that a thread keeps."""
    packs: int
    """Of a row."""
    meeting: str
    """The memory where the blocks meet, as the text calls it."""
    in_there: set[Place] = field(default_factory=set, compare=False)
    """What the loops that were printed have put there."""

    templates = ("int Items", "int Slots")

    def bound(self, threads: int) -> str:
        return f"__launch_bounds__(Slots > 0 ? {THREADS} : {threads}, Slots > 0 ? {BLOCKS} : 1) "

    def parameters(self) -> list[str]:
        return [f"unsigned* {self.meeting}", "int sharers"]

    def before(self, type_of: Callable[[torch.dtype], str]) -> list[str]:
        """What the kernel says before its loop over rows."""
        return [
            "    const int sharer = Slots > 0 ? blockIdx.x % sharers : 0;",
            "    unsigned turn = 0;",
            *self._held(type_of),
        ]

    def _held(self, type_of: Callable[[torch.dtype], str]) -> list[str]:
        lines = ["    extern __shared__ float4 kept[];"]
        at = "kept"
        for place, name in self.names.items():
            type = f"Pack<{type_of(place.buffer.dtype)}, Items>"
            lines.append(f"    {type}* const {name} = reinterpret_cast<{type}*>({at}) + threadIdx.x;")
            at = f"{name} - threadIdx.x + Slots * {THREADS}"
        return lines

    def loops(
        self, packs: Packs, opened: list[tuple[str, str, str]], tab: str, wide: str, end: str, threads: int
    ) -> list[str]:
        """Lines that load what is not kept yet, all of it at once, and those that open the loop over packs. `opened`: (type, name, address)."""
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
        """Lines that launch the kernel and return, where the device has the room."""
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
