"""A native source: the prelude, one kernel after another, each with its C entry point."""

from __future__ import annotations

from dataclasses import dataclass

from .convolving import PlanesEmitter
from .cpp import CppEmitter
from .emit import SPLIT, Emitter
from .half_tiles import HalvesEmitter
from .index import index_is_divided
from .packing import PACK_BYTES
from .partition import PLANES, ROW, STEPS, TILE, Kernel, Partition
from .prelude import prelude
from .printing import branch, indent, index_text
from .recurrences import RecurrenceEmitter
from .thin_tiles import ThinEmitter
from .tiles import TileEmitter

FLAT_THREADS = 256
"""Threads of a block that has no packs, each with one element or column."""
PACK_THREADS = 128
"""Threads of a block, each with one pack: the less memory the blocks at work lie across, the faster it goes. On an H200, float32 over 6 GB,
beside eager (128 threads, two packs each): 1.012x with 128 threads and a pack each, 0.977x with 256 and four, 0.92x to 0.95x with loops."""


@dataclass(frozen=True)
class Native:
    """One kernel of a candidate: its C entry point, what it is called with, its text."""

    name: str
    arguments: list[str]
    text: str
    summary: str
    scalars: list[str]
    """Those arguments that are numbers of the call, passed as double."""
    meeting: str = ""
    """That argument that is memory where blocks meet, MEETING_WORDS integers."""


def natives(partition: Partition, device: str) -> list[Native]:
    return [native(step, partition, device) for step in partition.steps if isinstance(step, Kernel)]


def source(kernels: list[Native], device: str) -> str:
    body = "\n".join(kernel.text for kernel in kernels)
    return prelude(device, body) + "\n" + body


def native(kernel: Kernel, partition: Partition, device: str) -> Native:
    summary = _summary(kernel)
    if kernel.layout == STEPS:
        steps = RecurrenceEmitter(kernel, partition, device)
        return Native(kernel.name, steps.arguments(), steps.text(), steps.summary(), [])
    if kernel.layout == PLANES:
        planes = PlanesEmitter(kernel, partition, device)
        scalars = [name for name, _ in planes.scalars()]
        return Native(kernel.name, planes.arguments(), planes.text(summary), summary, scalars)
    if kernel.layout == TILE:
        tiles = _tile_emitter(kernel, partition, device)
        return Native(kernel.name, tiles.arguments(), _tiles(kernel, tiles, summary), summary, [])
    if device == "cpu":
        cpp = CppEmitter(kernel, partition, device)
        return Native(kernel.name, cpp.arguments(), cpp.text(summary), summary, [name for name, _ in cpp.scalars()])
    emitter = Emitter(kernel, partition, device)
    text = _cuda(kernel, emitter, summary)
    scalars = [name for name, _ in emitter.scalars()]
    meeting = emitter.resident.meeting if emitter.resident is not None else ""
    arguments = [*emitter.arguments(), *([meeting] if meeting else [])]
    return Native(kernel.name, arguments, text, summary, scalars, meeting)


def _tile_emitter(kernel: Kernel, partition: Partition, device: str) -> TileEmitter:
    if kernel.members[0].definition.tiling.halves is not None:
        return HalvesEmitter(kernel, partition, device)
    thin = ThinEmitter(kernel, partition, device)
    return thin if thin.suits else TileEmitter(kernel, partition, device)


def _summary(kernel: Kernel) -> str:
    """Its operators in order and the space of its loops."""
    inner = " x ".join(index_text(end) for _, end in kernel.inner)
    space = f"{index_text(kernel.rows)} rows of {inner}" if inner else f"{index_text(kernel.rows)} elements"
    return f"{', '.join(kernel.origins)}: {space}"


def _tiles(kernel: Kernel, tiles: TileEmitter, summary: str) -> str:
    parameters = tiles.parameters()
    if tiles.device == "cpu":
        head = [f"// {summary}", f'extern "C" void {kernel.name}(', f"    {', '.join(parameters)}) {{"]
        return "\n".join([*head, *tiles.cpp(), "}", ""])
    return "\n".join(
        [
            f"// {summary}",
            *tiles.kernels(kernel.name, tiles.parameters(restricted=True)),
            f'extern "C" void {kernel.name}(',
            f"    {', '.join([*parameters, 'cudaStream_t stream'])}) {{",
            *tiles.cuda_launch(f"{kernel.name}_kernel", ", ".join(tiles.arguments())),
            "}",
            "",
        ]
    )


def _cuda(kernel: Kernel, emitter: Emitter, summary: str) -> str:
    narrow = kernel.layout != ROW and index_is_divided(emitter.indices())
    emitter.wide = "Index" if narrow else "int64_t"
    rows = index_text(kernel.rows)
    lines = _over_rows(kernel, emitter, rows)
    names = ", ".join(emitter.arguments())
    resident = emitter.resident
    more = resident.parameters if resident is not None else ()
    meeting = [f"int32_t* {resident.meeting}"] if resident is not None and resident.meeting else []
    if resident is not None:
        templates = [*resident.templates]
    else:
        templates = [*(["int Items"] if emitter.items > 1 else []), *(["typename Index"] if narrow else [])]
    return "\n".join(
        [
            f"// {summary}",
            *([f"template <{', '.join(templates)}>"] if templates else []),
            f"__global__ void {_bound(emitter)}{kernel.name}_kernel(",
            f"    {', '.join([*emitter.parameters(restricted=True), *more])}) {{",
            *lines,
            "}",
            "",
            f'extern "C" void {kernel.name}(',
            f"    {', '.join([*emitter.parameters(), *meeting, 'cudaStream_t stream'])}) {{",
            *_launch(kernel, emitter, rows, names, narrow),
            "}",
            "",
        ]
    )


def _bound(emitter: Emitter) -> str:
    """What the compiler may reckon with; without it a long row's block may take registers of which there is room for one block only."""
    if emitter.resident is not None:
        return emitter.resident.bound(emitter.threads_of_row)
    return f"__launch_bounds__({emitter.threads_of_row}) " if emitter.folds_by_block else ""


def _over_rows(kernel: Kernel, emitter: Emitter, rows: str) -> list[str]:
    """The kernel's body: for one element or column, so that the blocks at work lie side by side in memory, or in a loop over rows."""
    wide, row = emitter.wide, kernel.row_name
    block = f"static_cast<{wide}>(blockIdx.x)"
    number = f"{block} * blockDim.x + threadIdx.x"
    if emitter.in_packs:
        return [f"    const {wide} first = ({number}) * Items;", f"    if (first >= {rows}) return;", *emitter.body(1)]
    if (
        emitter.is_split
    ):  # the block goes through its folds together: what lies beyond the last column does that one again
        last = f"static_cast<{wide}>({index_text(kernel.rows - 1)})"
        mine = [f"    const {wide} mine = {number};", f"    const {wide} {row} = mine < {rows} ? mine : {last};"]
        return [*mine, *emitter.body(1)]
    if kernel.layout != ROW:
        return [f"    const {wide} {row} = {number};", f"    if ({row} >= {rows}) return;", *emitter.body(1)]
    first, step, before = "blockIdx.x", "gridDim.x", []
    if emitter.is_short and kernel.scan is None:
        first, step = f"{block} * blockDim.y + threadIdx.y", f"static_cast<{wide}>(gridDim.x) * blockDim.y"
    elif emitter.resident is not None:
        before = emitter.resident.before(index_text(kernel.length), emitter.element_type)
        first, step = emitter.resident.rows(first, step)
    loop = f"    for ({wide} {row} = {first}; {row} < {rows}; {row} += {step}) {{"
    return [*before, loop, *emitter.body(2), "    }"]


def _launch(kernel: Kernel, emitter: Emitter, rows: str, names: str, narrow: bool) -> list[str]:
    """The grid, and a launch of the variant that fits the call: packs where pointers are aligned, narrow indices where they suffice."""
    items, lines = emitter.items, [f"    const int64_t rows = {rows};"]
    if kernel.rows.free_symbols & emitter.partition.program.hidden:
        lines.append("    if (rows == 0) return;")
    if items > 1:
        addresses = " | ".join(f"reinterpret_cast<uintptr_t>({name})" for name in emitter.packed_buffers())
        lines.append(f"    const bool aligned = (({addresses}) & {PACK_BYTES - 1}) == 0;")
    if emitter.resident is not None:
        lines += emitter.resident.launch(f"{kernel.name}_kernel", items, names)
    if emitter.in_packs:
        lines.append(f"    const int threads = {PACK_THREADS};")
        lines.append(f"    const int64_t each = {PACK_THREADS} * (aligned ? {items} : 1);")
        lines.append("    const int blocks = static_cast<int>((rows + each - 1) / each);")
    elif kernel.layout != ROW:
        columns = FLAT_THREADS // SPLIT if emitter.is_split else FLAT_THREADS
        lines.append(
            f"    const {f'dim3 threads({columns}, {SPLIT})' if emitter.is_split else f'int threads = {FLAT_THREADS}'};"
        )
        lines.append(f"    const int blocks = static_cast<int>((rows + {columns - 1}) / {columns});")
    elif emitter.is_short and kernel.scan is None:
        lines.append("    const dim3 threads(32, 8);")
        lines.append("    const int64_t wanted = (rows + 7) / 8;")
    else:
        lines.append(f"    const int threads = {emitter.threads_of_row};")
        lines.append("    const int64_t wanted = rows;")
    if kernel.layout == ROW:
        lines.append("    const int blocks = static_cast<int>(wanted < (1 << 20) ? wanted : 1 << 20);")
    variants = [("aligned", [str(items)]), ("", ["1"])] if items > 1 else [("", [])]
    if narrow:
        stride = PACK_THREADS * items if emitter.in_packs else FLAT_THREADS
        small = " && ".join(f"{index_text(size)} < INT32_MAX - {stride}" for size in emitter.largest())
        lines.append(f"    // Divisions of 32 bits are several times cheaper; {stride} is as far as a thread looks.")
        lines.append(f"    const bool narrow = {small};")
        variants = [
            (" && ".join(filter(None, (when, also))), [*given, index])
            for also, index in (("narrow", "int"), ("", "int64_t"))
            for when, given in variants
        ]
    if emitter.resident is not None:
        names += emitter.resident.otherwise
        variants = [(when, [*given, "0"]) for when, given in variants]
    return [*lines, *_chosen(f"{kernel.name}_kernel", names, variants)]


def _chosen(name: str, names: str, variants: list[tuple[str, list[str]]]) -> list[str]:
    """A launch of the first variant (condition, template arguments) whose condition holds; the last has none."""
    template = lambda given: f"<{', '.join(given)}>" if given else ""  # noqa: E731
    arms = [(when, [f"{name}{template(given)}<<<blocks, threads, 0, stream>>>({names});"]) for when, given in variants]
    return indent(branch(arms) if len(arms) > 1 else arms[0][1])
