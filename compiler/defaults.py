"""The first schedule of a program, and those beside it, in the order in which they are worth measuring."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.codegen import columns
from compiler.draft.expressions import loads_of
from compiler.draft.partition import ROW
from compiler.program import KernelProgram, PackedKernel
from compiler.schedule import Columns, Elements, KernelPlan, Rows, Schedule, ScheduleVersion
from kernels.spec import DTYPE_BYTES, Frozen, Workload

PACK_BYTES = 16
BUSY_ROWS = 264
"""Rows from which on every multiprocessor of an H100 has two."""
TILES = 16
"""Tiles of columns that, with a cluster of eight to each, keep a device busy."""
LONGER = (4096, 8192)
"""Packs of rows longer than those of the workloads that still stay in registers."""
SPLIT_PACKS = 2048
"""Packs of a row from which on few rows are shared by clusters."""
MOST_SPLIT = 8
REGISTERS, OTHER_REGISTERS = 65536, 40
"""32-bit registers of a multiprocessor; what a thread needs beside the row that it keeps."""
LONGEST_KEPT = 8
"""Packs of a row that a thread keeps at most."""


class ScheduleDefaults(Frozen):
    """The numbers that one schedule has for all sizes; the bands by size follow from them."""

    bytes: int = PACK_BYTES
    """Of a pack, of the dtype of the kernel."""
    items: int = 2
    """Packs of a row for a thread to keep."""
    threads: int = 128
    """Of a block of short rows, or of elements."""
    lanes: int = 16
    split: int = 8
    deep: int = 32
    unroll: int = 4
    each: int = 1
    """Packs of elements a thread."""
    clusters: bool = True
    """Whether the device has clusters of blocks."""
    pdl: bool = True
    """Whether kernels may be set up early, where the device can."""


def schedule(
    programs,
    dtypes: tuple[str, ...],
    workloads: dict[str, list[Workload]],
    choice: ScheduleDefaults,
    *,
    lean: bool = False,
) -> Schedule:
    """Versions for every dtype. `programs(dtype, vector)`; `workloads` are those whose sizes get bands of their own.

    `lean`: sizes that packs do not divide have the last version only, which builds sooner.
    """
    return Schedule(versions={d: tuple(_versions(programs, d, workloads.get(d, []), choice, lean)) for d in dtypes})


def _versions(
    programs, dtype: str, workloads: list[Workload], choice: ScheduleDefaults, lean: bool
) -> Iterator[ScheduleVersion]:
    vector = max(1, choice.bytes // DTYPE_BYTES[dtype])
    for width in dict.fromkeys((vector,) if lean else (vector, 1)):
        program = programs(dtype, width)
        for longest, most_rows in _bands(program, workloads, choice):
            plans = tuple(_plan(kernel, width, longest, most_rows, choice) for kernel in program.kernels)
            yield ScheduleVersion(vector=width, longest=longest, most_rows=most_rows, kernels=plans)
        loop = tuple(_plan(kernel, width, None, None, choice) for kernel in program.kernels)
        yield ScheduleVersion(vector=width, kernels=loop)
    last = tuple(_plan(kernel, 1, None, None, choice) for kernel in programs(dtype, 1).kernels)
    yield ScheduleVersion(vector=1, narrow=False, kernels=last)


CPU_LANES = 16
"""Of a pack for a CPU: two registers of AVX2, one of AVX-512."""
CPU_TILE = 16
"""Packs of columns that are reduced side by side, so that a row's bytes lie in a line."""


def cpu_schedule(programs, dtypes: tuple[str, ...], workloads: dict[str, list[Workload]]) -> Schedule:
    """Versions for every dtype: packs where every workload's sizes are multiples of them, and one without."""
    return Schedule(versions={d: tuple(_cpu_versions(programs, d, workloads.get(d, []))) for d in dtypes}, device="cpu")


def _cpu_versions(programs, dtype: str, workloads: list[Workload]) -> Iterator[ScheduleVersion]:
    for width in (CPU_LANES, CPU_LANES // 2, 1):
        program = programs(dtype, width)
        if width > 1 and not any(all(w.axes[axis] % by == 0 for axis, by in program.packs.items()) for w in workloads):
            continue
        if width == CPU_LANES // 2 and all(
            all(w.axes[axis] % (2 * by) == 0 for axis, by in program.packs.items()) for w in workloads
        ):
            continue
        yield ScheduleVersion(
            vector=width, narrow=False, kernels=tuple(_cpu_plan(kernel, width) for kernel in program.kernels)
        )


def _cpu_plan(kernel: PackedKernel, width: int) -> KernelPlan:
    members = tuple(dict.fromkeys(m.definition.origin for m in kernel.members))
    if kernel.layout == ROW:
        return KernelPlan(members=members, sketch=Rows(vector=width))
    if columns.takes(kernel) and not kernel.inner[0][1].is_Integer:
        return KernelPlan(members=members, sketch=Columns(vector=width, lanes=CPU_TILE))
    return KernelPlan(members=members, sketch=Elements(vector=width))


def _row_kernels(program: KernelProgram) -> list[PackedKernel]:
    return [kernel for kernel in program.kernels if kernel.layout == ROW]


def _bands(program: KernelProgram, workloads: list[Workload], choice: ScheduleDefaults) -> list[tuple[int, int | None]]:
    """(packs of a row at most, rows below) of the sizes that are known, shortest first, few rows first."""
    rows = _row_kernels(program)
    if not rows:
        column = [kernel for kernel in program.kernels if columns.takes(kernel)]
        if not column:
            return []
        counts = {_next_power(_value(program, kernel.rows, w) // kernel.width) for w in workloads for kernel in column}
        return [(packs, None) for packs in sorted(counts)]
    found: set[tuple[int, int | None]] = set()
    most = 1024 * LONGEST_KEPT * (MOST_SPLIT if choice.clusters else 1)
    for workload in workloads:
        if any(workload.axes[axis] % by for axis, by in program.packs.items()):
            continue
        packs = max(-(-_value(program, kernel.length, workload) // kernel.width) for kernel in rows)
        few = max(_value(program, kernel.rows, workload) for kernel in rows) < BUSY_ROWS
        if packs <= most:
            found.add((_next_power(packs), BUSY_ROWS if few else None))
    longer = [band for band in LONGER if band > max((packs for packs, _ in found), default=0)]
    if found:  # sizes that nobody named
        found |= {(band, None) for band in longer}
    return sorted(found, key=lambda band: (band[0], band[1] is None))


def _value(program: KernelProgram, index, workload: Workload) -> int:
    sizes = {
        s: workload.axes[axis] // int(whole / s) for axis, whole in program.sizes.items() for s in whole.free_symbols
    }
    return int(index.subs(sizes))


def _next_power(count: int) -> int:
    return 1 << max(0, count - 1).bit_length()


def _plan(
    kernel: PackedKernel, width: int, longest: int | None, most_rows: int | None, choice: ScheduleDefaults
) -> KernelPlan:
    members = tuple(dict.fromkeys(m.definition.origin for m in kernel.members))
    if kernel.layout != ROW:
        if columns.takes(kernel) and not kernel.inner[0][1].is_Integer:
            return KernelPlan(
                members=members, pdl=choice.pdl and choice.clusters, sketch=_columns(width, longest, choice)
            )
        return KernelPlan(
            members=members,
            pdl=choice.pdl and choice.clusters,
            sketch=Elements(vector=width, items=choice.each, threads=choice.threads),
        )
    if longest is None and kernel.length.is_Integer:
        longest = _next_power(int(kernel.length) // kernel.width)
        longest = None if longest > 1024 * LONGEST_KEPT * (MOST_SPLIT if choice.clusters else 1) else longest
    if longest is None:
        return KernelPlan(members=members, pdl=choice.pdl and choice.clusters, sketch=Rows(vector=width, threads=512))
    few = most_rows is not None
    items = 1 if few else choice.items
    sketch = _rows(width, longest, items, choice.threads, few)
    if (few and longest >= SPLIT_PACKS) or longest > 1024 * LONGEST_KEPT or not _fits(kernel, sketch):
        shared = [_split_rows(width, longest, split, few) for split in (2, 4, 8) if choice.clusters]
        wide = [one for one in shared if _fits(kernel, one) and (not few or longest // one.split <= SPLIT_PACKS // 2)]
        loop = Rows(vector=width, threads=512)
        sketch = next(iter(wide), next((one for one in reversed(shared) if _fits(kernel, one)), loop))
    return KernelPlan(members=members, pdl=choice.pdl and choice.clusters, sketch=sketch)


def _fits(kernel: PackedKernel, sketch: Rows) -> bool:
    """Whether what a thread keeps of its row leaves registers for the rest."""
    places = {(load.args[0], load.args[1]) for load in loads_of(kernel.roots) if load.op == "load"}
    kept = [buffer for buffer, place in places if kernel.pack in place.free_symbols and buffer not in kernel.made]
    bytes_kept = sketch.items * sum(kernel.width * buffer.dtype.itemsize for buffer in kept)
    return bytes_kept // 4 + OTHER_REGISTERS <= min(255, REGISTERS // sketch.threads)


def _rows(width: int, longest: int, items: int, threads: int, few: bool) -> Rows:
    """As `items_of`, `team_of` and `threads_of` in cuda/prelude.cuh say."""
    items = max(items, -(-longest // 1024))
    wanted = -(-longest // items)
    team = _next_power(wanted) if wanted <= 64 else 0
    threads = threads if team else -(-wanted // 32) * 32
    return Rows(vector=width, threads=threads, team=team, items=items, longest=longest, few=few)


def _split_rows(width: int, longest: int, split: int, few: bool) -> Rows:
    """A cluster to a row that is too long for a block's registers, or of which there are too few."""
    threads = -(-min(1024, max(128, longest // split // 2)) // 32) * 32
    items = -(-longest // (threads * split))
    return Rows(vector=width, threads=threads, items=items, split=split, longest=longest, few=few)


def _columns(width: int, packs: int | None, choice: ScheduleDefaults) -> Columns:
    most = 32 if packs is None else min(32, max(4, packs // TILES))
    lanes = min(choice.lanes, most)
    return Columns(
        vector=width,
        lanes=lanes,
        most_lanes=most,
        deep=choice.deep * choice.lanes // lanes,
        split=choice.split if choice.clusters else 1,
        unroll=choice.unroll,
    )


OPEN = {
    "ITEMS": (2, 1, 4, 8), "THREADS": (128, 256, 512), "EACH": (1, 2, 4), "LANES": (16, 4, 8, 32), "SPLIT": (8, 1, 2, 4),
    "TRIGGER_WHEN": (1, 0, 2),
}  # fmt: skip
"""What the tune gate searches, the default first."""
SHARED_BYTES = 48 << 10
"""Of a block, without asking for more."""


def open_numbers(program: KernelProgram, clusters: bool = True) -> dict[str, tuple[int, ...]]:
    """Name -> choices, the default first, of what the tune gate may search."""
    numbers = _open_numbers(program)
    return numbers if clusters else {**numbers, "SPLIT": (1,), "TRIGGER_WHEN": (1,)}


def _open_numbers(program: KernelProgram) -> dict[str, tuple[int, ...]]:
    folds = [sum(bool(m.definition.reduced) for m in k.members) for k in program.kernels if columns.takes(k)]
    if not folds:
        return {**OPEN, "SPLIT": (4, 1, 2, 8)}
    each = max(folds) * 8 * 4  # bytes that a thread with eight columns brings to a block's reductions
    return {**OPEN, "THREADS": tuple(t for t in (512, 256, 1024, 128) if t * each <= SHARED_BYTES)}


def choices(program: KernelProgram) -> list[ScheduleDefaults]:
    """Choices worth measuring for a program, the most promising first."""
    kernels = program.kernels
    if any(kernel.layout == ROW for kernel in kernels):
        return [
            ScheduleDefaults(items=items, threads=threads) for threads in (128, 256, 512) for items in (2, 1, 4, 8)
        ]  # fmt: skip
    if any(columns.takes(kernel) and not kernel.inner[0][1].is_Integer for kernel in kernels):
        return [
            ScheduleDefaults(lanes=lanes, split=split, deep=deep, unroll=unroll)
            for unroll in (4, 8) for lanes in (16, 8, 32, 4) for split, deep in ((8, 32), (4, 32), (8, 16), (2, 32), (1, 32))
            if lanes * deep <= 1024
        ]  # fmt: skip
    return [
        ScheduleDefaults(threads=threads, each=each, bytes=size) for size in (16, 8, 32) for threads in (256, 128, 512) for each in (1, 2)
    ]  # fmt: skip
