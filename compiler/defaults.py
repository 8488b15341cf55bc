"""The first schedule of a program, and those beside it, in the order in which they are worth measuring."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from compiler.codegen import columns, ragged
from compiler.codegen.reads import own_bytes, widest_read
from compiler.codegen.row_tiles import longest_row
from compiler.draft.expressions import loads_of, walk
from compiler.draft.partition import FLAT, ROW
from compiler.frontend import NoProgram
from compiler.lookups import FETCH_THREADS, FETCHED, GATHER_THREADS, fetches, gathers, lookups_of, seeks
from compiler.phases import PhasesKernel, divides
from compiler.products import ProductKernel
from compiler.program import KernelProgram, PackedKernel
from compiler.schedule import (
    MOST_SINGLE,
    WARP,
    Columns,
    Elements,
    KernelPlan,
    Phases,
    Rows,
    RowTiles,
    Schedule,
    ScheduleVersion,
    Sketch,
    Steps,
    Stream,
    Tiles,
    Turned,
    row_team,
)
from compiler.steps import StepsKernel
from compiler.streams import StreamKernel
from compiler.strides import LEAST_EXTENT
from compiler.turned import TurnedKernel
from kernels.spec import DTYPE_BYTES, Frozen, Workload

PACK_BYTES = 16
BUSY_ROWS = 264
"""Rows from which on every multiprocessor of an H100 has two."""
SCALAR_ITEMS = 4
"""Elements that count as a pack where packs are of one."""


class ScheduleDefaults(Frozen):
    """The numbers that one schedule has for all sizes; the bands by size follow from them."""

    bytes: int = PACK_BYTES
    """Of a pack, of the dtype of the kernel."""
    items: int = 0
    """Packs of a row for a thread to keep; 0: as the length says."""
    threads: int = 128
    """Of a block of short rows."""
    element_threads: int = 256
    lanes: int = 0
    """Packs of columns of a block; 0: as the size says."""
    column_threads: int = 512
    unroll: int = 8
    each: int = 1
    """Packs of elements a thread."""
    along: int = 64
    """Elements of a tile along what is written."""
    tile_threads: int = 128
    held: bool = True
    """Whether rows keep what a later pass would compute again for much."""
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
    return Schedule(versions={
        d: _in_phases(programs(d, 1), workloads.get(d, []), choice.clusters) or tuple(_versions(programs, d, workloads.get(d, []), choice, lean)) for d in dtypes
    })  # fmt: skip


def _versions(
    programs, dtype: str, workloads: list[Workload], choice: ScheduleDefaults, lean: bool
) -> Iterator[ScheduleVersion]:
    vector = max(1, choice.bytes // DTYPE_BYTES[dtype])
    alone = programs(dtype, 1).kernels
    if all(isinstance(kernel, ProductKernel | StepsKernel) for kernel in alone) or any(map(seeks, alone)):
        vector = 1  # what lies side by side a product finds out itself
    widest = max(
        (widest_read(programs(dtype, vector), kernel) for kernel in programs(dtype, vector).kernels), default=0
    )
    packs = max(min(vector, LEAST_PACK), vector * READ_BYTES // max(widest, READ_BYTES))
    if any(kernel.turned or kernel.tiled for kernel in programs(dtype, packs).kernels):
        packs = _that_fits(programs, dtype, max(packs, _as_written(programs(dtype, packs), choice)), workloads)
    elif packs > 1 and all(k.layout == ROW and getattr(k, "width", 0) == 1 for k in programs(dtype, packs).kernels):
        packs = _that_fits(programs, dtype, packs, workloads, rows=True)
    wider = _of_narrow_rows(programs, dtype, packs, workloads, choice)
    packs, by_warps = wider, wider > packs
    for width in dict.fromkeys((packs,) if lean else (packs, 1)):
        program = programs(dtype, width)
        apart = _ragged(program, vector) if width == 1 else frozenset()
        kernels = [(kernel, vector if at in apart else 0) for at, kernel in enumerate(program.kernels)]
        by_tiles = {kernel for kernel in program.kernels if _turns(program, kernel, workloads, choice)}
        held = [longest_row(kernel.tiled) // kernel.width for kernel in by_tiles if kernel.tiled is not None]
        for band, most_rows in (
            ()
            if held
            or (by_warps and width == packs)  # kept for short rows they took 11.2 us where warps take 9.5 (H200)
            else _bands(program, workloads, choice, max((by for k, by in kernels if k.layout == ROW), default=0))
        ):
            plans = tuple(
                _plan(kernel, width, longest, most_rows, choice, ragged=by, turned=kernel in by_tiles)
                for (kernel, by), longest in zip(kernels, band, strict=True)
            )
            most = max(longest for longest in band if longest is not None)
            yield ScheduleVersion(vector=width, longest=most, most_rows=most_rows, kernels=plans)
        loop = tuple(
            _plan(kernel, width, None, None, choice, ragged=by, turned=kernel in by_tiles) for kernel, by in kernels
        )
        yield ScheduleVersion(vector=width, longest=min(held, default=None), kernels=loop)
    last = tuple(_plan(kernel, 1, None, None, choice, loops=True) for kernel in programs(dtype, 1).kernels)
    yield ScheduleVersion(vector=1, narrow=False, kernels=last)


def _as_written(program: KernelProgram, choice: ScheduleDefaults) -> int:
    """Elements of a pack of what is written, where tiles write it and nothing is reduced: bytes that come of floats go 16 at a time."""
    plain = all(isinstance(k, PackedKernel) and k.layout == FLAT and not k.inner for k in program.kernels)
    turned = [kernel for kernel in program.kernels if kernel.turned is not None]
    least = min((buffer.dtype.itemsize for kernel in turned for buffer in program.stored(kernel)), default=choice.bytes)
    return max(1, choice.bytes // least) if plain else 1


def _that_fits(programs, dtype: str, packs: int, workloads: list[Workload], rows: bool = False) -> int:
    """Elements of the widest packs that some size is whole ones of; those of before where there are no such: rows of 196 are packs of four.
    `rows`: and that some rows go in, as those of a group's ten channels in packs of two."""
    for width in (packs >> shift for shift in range(packs.bit_length() - 1)):
        program = programs(dtype, width)
        packed = not rows or any(kernel.width == width for kernel in _row_kernels(program))
        if packed and any(program.fits(workload.axes) for workload in workloads):
            return width
    return packs


def _of_narrow_rows(programs, dtype: str, packs: int, workloads: list[Workload], choice: ScheduleDefaults) -> int:
    """Elements of a pack where rows of few bits are multiplied by one that all share: as many as a row has to itself in 16 bytes, since what
    is done for a pack is as much for many (4-bit weights of 65,536 rows: 205 us with packs of 8, 183 of 16; H100)."""
    kernels = programs(dtype, packs).kernels
    own = own_bytes(programs(dtype, packs), kernels[0]) if len(kernels) == 1 and type(kernels[0]) is PackedKernel else 0
    wider = packs * choice.bytes // own if 0 < own < choice.bytes else packs
    program = programs(dtype, wider)
    return (
        wider
        if all(k.width == wider for k in program.kernels) and all(program.fits(w.axes) for w in workloads)
        else packs
    )


READ_BYTES, LEAST_PACK = 32, 2
"""What a thread reads side by side at most where its elements have several neighbours each: as far apart as its neighbours' begin, each of a
warp's loads takes a line of its own. Fewer elements a pack than that, and what is written is in pieces."""


def _turns(program: KernelProgram, kernel: PackedKernel, workloads: list[Workload], choice: ScheduleDefaults) -> bool:
    """Whether a kernel reads and writes along two axes, neither of them short at any of the sizes; of rows, whether a block of sm_90 holds some."""
    turned, tiled = kernel.turned, kernel.tiled
    if tiled is not None:
        return choice.clusters and all(
            _value(program, kernel.length, workload) <= longest_row(tiled) for workload in workloads
        )
    return turned is not None and all(
        min(_value(program, extent, workload) for extent in (turned.along_extent, turned.across_extent)) >= LEAST_EXTENT
        for workload in workloads
        if program.fits(workload.axes)
    )


def _ragged(program: KernelProgram, vector: int) -> frozenset[int]:
    """Kernels of a program of packs of one element whose threads take `vector` elements together; of rows all or none, and none that seek:
    49 elements with a bias each by a table were 6 packs and an edge, 8 lookups a thread one behind the other, 0.36x of torch.compile (H200)."""
    found = {n for n, k in enumerate(program.kernels) if not lookups_of(k) and ragged.takes(program, k, vector)}
    rows = {at for at, kernel in enumerate(program.kernels) if kernel.layout == ROW}
    return frozenset(found if rows <= found else found - rows)


STEPS_A_SECOND = 3e10
"""Of one block, at most: a step is a load or two, a few instructions and, of a fold, an addition; a multiprocessor issues some 128 a cycle."""
LONGEST_PHASES_S = 0.1
"""A call whose blocks would work longer than this, by STEPS_A_SECOND, is not offered: one of an attention, which was nothing but products, had not
ended after 20 s where the baseline took half a millisecond (H200)."""


FEW_UNITS = 64
"""Units of phases that clusters share: more of them keep half of an H200's multiprocessors busy."""


def _in_phases(
    program: KernelProgram, on_a_gpu: Sequence[Workload] = (), clusters: bool = False
) -> tuple[ScheduleVersion, ...]:
    """The one version of a program whose definitions hand on in memory what they made; none of any other. Raises NoProgram where one
    block of a GPU would have too much to do at some of these workloads."""
    kernel = program.kernels[0]
    if len(program.kernels) > 1 or not isinstance(kernel, PhasesKernel):
        return ()
    for workload in on_a_gpu:
        seconds = _value(program, kernel.work, workload) / _value(program, kernel.units, workload) / STEPS_A_SECOND
        if seconds > LONGEST_PHASES_S:
            raise NoProgram(
                f"its definitions would follow each other in one block, for {seconds:.2g} s or more at {workload.label}: split the "
                "kernel, or give what it computes a leading axis in common"
            )
    few = any(_value(program, kernel.units, workload) <= FEW_UNITS for workload in on_a_gpu)
    sketch = Phases(clusters=clusters and few and kernel.holds_little)
    plans = (KernelPlan(members=kernel.origins, sketch=sketch),)
    widths = (True, False) if on_a_gpu and (kernel.units != 1 or divides(kernel)) else (False,)
    return tuple(ScheduleVersion(narrow=narrow, kernels=plans) for narrow in widths)


CPU_LANES = 16
"""Of a pack for a CPU: two registers of AVX2, one of AVX-512."""
CPU_TILE = 16
"""Packs of columns that are reduced side by side, so that a row's bytes lie in a line."""


def cpu_schedule(programs, dtypes: tuple[str, ...], workloads: dict[str, list[Workload]]) -> Schedule:
    """Versions for every dtype: packs where every workload's sizes are multiples of them, and one without."""
    return Schedule(versions={
        d: _in_phases(programs(d, 1)) or tuple(_cpu_versions(programs, d, workloads.get(d, []))) for d in dtypes
    }, device="cpu")  # fmt: skip


def _cpu_versions(programs, dtype: str, workloads: list[Workload]) -> Iterator[ScheduleVersion]:
    for width in (CPU_LANES, CPU_LANES // 2, 1):
        program = programs(dtype, width)
        if width > 1 and not any(program.fits(w.axes) for w in workloads):
            continue
        if width == CPU_LANES // 2 and all(
            all(w.axes[axis] % (2 * by) == 0 for axis, by in program.packs.items()) for w in workloads
        ):
            continue
        yield ScheduleVersion(
            vector=width, narrow=False, kernels=tuple(_cpu_plan(kernel, width) for kernel in program.kernels)
        )


def _cpu_plan(kernel: PackedKernel, width: int) -> KernelPlan:
    members = kernel.origins
    if isinstance(kernel, ProductKernel):
        return KernelPlan(members=members, sketch=Tiles())
    if isinstance(kernel, StreamKernel):
        return KernelPlan(members=members, sketch=Stream(vector=width))
    if isinstance(kernel, StepsKernel):
        return KernelPlan(members=members, sketch=Steps())
    if kernel.layout == ROW:
        return KernelPlan(members=members, sketch=Rows(vector=width))
    # Rows that lie anywhere are read whole, each at once.
    named = any(expr.op == "load_at" for expr in walk(kernel.roots))
    if columns.takes(kernel) and not kernel.inner[0][1].is_Integer and not named:
        return KernelPlan(members=members, sketch=Columns(vector=width, lanes=CPU_TILE))
    return KernelPlan(members=members, sketch=Elements(vector=width))


def _row_kernels(program: KernelProgram) -> list[PackedKernel]:
    return [kernel for kernel in program.kernels if kernel.layout == ROW]


Longest = tuple[int | None, ...]
"""Packs of a row at most, by kernel; None where a team would not do for it, and where there are no rows."""


def _bands(
    program: KernelProgram, workloads: list[Workload], choice: ScheduleDefaults, ragged: int
) -> list[tuple[Longest, int | None]]:
    """(packs of a row at most, rows below) of the sizes that are known, shortest first, few rows first."""
    found: set[tuple[Longest, int | None]] = set()

    def longest(kernel: PackedKernel, workload: Workload, few: bool) -> int | None:
        if kernel.layout != ROW:
            return None
        length = _value(program, kernel.length, workload)
        packs = length // ragged if ragged else -(-length // kernel.width)
        most = _longest(packs, single=not ragged and kernel.width == 1)
        return most if _team(ragged or kernel.width, most, choice, few).team else None

    for workload in (one for one in workloads if program.fits(one.axes)):
        short = [kernel for kernel in program.kernels if longest(kernel, workload, False) is not None]
        few = max((_value(program, kernel.rows, workload) for kernel in short), default=0) < BUSY_ROWS
        band = tuple(longest(kernel, workload, few) for kernel in program.kernels)
        if any(band):
            found.add((band, BUSY_ROWS if few else None))
    return sorted(found, key=lambda band: ([one or 0 for one in band[0]], band[1] is None))


def _longest(packs: int, single: bool) -> int:
    """Packs up to which the numbers of such a row serve; `single`: of one element each."""
    by = WARP if packs <= 16 * WARP else 2 * WARP
    return -(-packs // by) * by if single and 2 * WARP < packs <= MOST_SINGLE else _next_power(packs)


def _value(program: KernelProgram, index, workload: Workload) -> int:
    return int(index.subs(program.values(workload.axes)))


STEP_THREADS = 64
"""Of a block whose threads each go a long way alone: a few heads' states then go to as many multiprocessors as there are."""


def _next_power(count: int) -> int:
    return 1 << max(0, count - 1).bit_length()


def _plan(
    kernel: PackedKernel,
    width: int,
    longest: int | None,
    most_rows: int | None,
    choice: ScheduleDefaults,
    loops: bool = False,
    ragged: int = 0,
    turned: bool = False,
) -> KernelPlan:
    """`turned`: by tiles. `loops`: rows are read again in each pass whatever their length, one kernel for all of them. `ragged`: elements that a thread
    takes together of packs of one."""
    members = kernel.origins
    pdl = choice.pdl and choice.clusters
    if isinstance(kernel, ProductKernel):
        return KernelPlan(members=members, pdl=pdl, sketch=Tiles())
    if isinstance(kernel, StepsKernel):
        return KernelPlan(members=members, sketch=Steps())
    if isinstance(kernel, PhasesKernel):
        return KernelPlan(members=members, sketch=Phases())
    if isinstance(kernel, StreamKernel):
        return KernelPlan(members=members, pdl=pdl, sketch=Stream(vector=width))
    if kernel.layout != ROW:
        if _is_columns(kernel):
            return KernelPlan(members=members, pdl=pdl, sketch=_columns(kernel, width, choice))
        if turned:
            assert kernel.turned is not None
            return KernelPlan(members=members, pdl=pdl, sketch=_turned(kernel.turned, width, choice))
        each, threads = (FETCHED, FETCH_THREADS) if fetches(kernel) else (choice.each, choice.element_threads)
        threads = min(threads, STEP_THREADS) if kernel.writes_steps else threads
        sketch = Elements(vector=ragged or width, items=each, threads=threads, ragged=bool(ragged))
        return KernelPlan(members=members, pdl=pdl, sketch=sketch)
    if turned:
        return KernelPlan(members=members, pdl=pdl, sketch=RowTiles(vector=width))
    if longest is None and kernel.length.is_Integer:
        length = int(kernel.length)
        longest = _next_power(length // (ragged or kernel.width))
    by, width = bool(ragged), ragged or width
    if gathers(kernel) and choice.threads == ScheduleDefaults().threads:
        choice = choice.model_copy(update={"threads": GATHER_THREADS})
    team = _team(width, longest, choice, most_rows is not None, by) if longest is not None else None
    if team is not None and team.team:
        return KernelPlan(members=members, pdl=pdl, sketch=team)
    if loops:
        return KernelPlan(members=members, pdl=pdl, sketch=Rows(vector=width, threads=512))
    unit, clusters = (1, choice.clusters) if width > 1 else (SCALAR_ITEMS, False)
    by_size = Rows(
        vector=width, threads=512, items=unit, unit=unit, by_size=True, clusters=clusters, ragged=by, held=choice.held
    )
    return KernelPlan(members=members, pdl=pdl, sketch=by_size)


def _team(width: int, longest: int, choice: ScheduleDefaults, few: bool, ragged: bool = False) -> Rows:
    """Several rows to a block where they are short enough for that; no team where they are longer."""
    unit = 1 if width > 1 else SCALAR_ITEMS
    least = 2 * width if ragged else 1  # the elements beside a row's whole packs
    items, team, threads = row_team(longest, 1 if few else choice.items, unit, choice.threads, least)
    return Rows(
        vector=width, threads=threads, team=team, items=items, unit=unit, longest=longest, few=few, held=choice.held,
        ragged=ragged,
    )  # fmt: skip


LINE_BYTES = 128
"""Of a tile's rows at least: what memory hands out at once."""


def _turned(kernel: TurnedKernel, width: int, choice: ScheduleDefaults) -> Turned:
    across = LINE_BYTES // min(tile.dtype.itemsize for tile in kernel.tiles)
    while tile_bytes(kernel, choice.along, across) > SHARED_BYTES:
        across //= 2
    return Turned(vector=width, along=choice.along, across=across, threads=choice.tile_threads)


def _holds(kernel: TurnedKernel, along: int) -> bool:
    """Whether shared memory has room for tiles so long where they are as wide as a schedule has them first."""
    return tile_bytes(kernel, along, _turned(kernel, 1, ScheduleDefaults()).across) <= SHARED_BYTES


def tile_bytes(kernel: TurnedKernel, along: int, across: int) -> int:
    """Of shared memory, nearly."""
    return sum(along * (across + PADDED) * tile.dtype.itemsize for tile in kernel.tiles)


PADDED = 8
"""Elements between a tile's rows at most."""


def _is_columns(kernel: PackedKernel) -> bool:
    return columns.takes(kernel) and not kernel.inner[0][1].is_Integer


def _columns(kernel: PackedKernel, width: int, choice: ScheduleDefaults) -> Columns:
    most = min(choice.column_threads, SHARED_BYTES // _column_bytes(kernel, width))
    threads = max(t for t in (64, 128, 256, 512, 1024) if t <= max(most, 64))
    split = 0 if choice.clusters else 1
    lanes = choice.lanes if width > 1 else 0
    return Columns(vector=width, lanes=lanes, threads=threads, split=split, unroll=_unroll(kernel, choice.unroll))


def _unroll(kernel: PackedKernel, wanted: int) -> int:
    """Rows whose loads are in flight at once: half as many where a row has several."""
    places = {(load.args[0], load.args[1]) for load in loads_of(kernel.roots)}
    return wanted if len(places) == 1 or kernel.width == 1 else max(1, wanted // 2)


def _column_bytes(kernel: PackedKernel, width: int) -> int:
    """What a thread brings to a block's reductions."""
    folds = [member.definition.type for member in kernel.members if member.definition.reduced]
    return width * sum(8 if type in ("double", "int64_t") else 4 for type in folds)


WIDEST = 8
"""Elements of a pack."""
SHARED_BYTES = 48 << 10
"""Of a block, without asking for more."""
SPLIT_FROM = 512
"""Packs of a row from which on it may be worth sharing by blocks."""


def with_numbers(first: Schedule, numbers: dict[str, int]) -> Schedule:
    """The schedule in which the numbers that a search has chosen stand: of one that `schedule` made, left open."""

    def changed(sketch: Sketch, banded: bool) -> Sketch:
        if isinstance(sketch, Rows) and not sketch.by_size:
            if not sketch.team or sketch.few or not banded or not sketch.longest:
                return sketch
            threads = numbers.get("THREADS", 0) or sketch.threads
            choice = ScheduleDefaults(items=numbers.get("ITEMS", 0), threads=threads, held=sketch.held)
            return _team(sketch.vector, sketch.longest, choice, False, sketch.ragged)
        found = {own: numbers.get(name, 0) or getattr(sketch, own) for own, name in sketch.names.items()}
        return sketch.model_copy(update=found)

    def version(one: ScheduleVersion) -> ScheduleVersion:
        kernels = (k.model_copy(update={"sketch": changed(k.sketch, one.longest is not None)}) for k in one.kernels)
        return one.model_copy(update={"kernels": tuple(kernels)})

    versions = {dtype: tuple(map(version, found)) for dtype, found in first.versions.items()}
    apart = {name: value for name, value in numbers.items() if name in APART}
    return first.model_copy(update={"versions": versions, "numbers": first.numbers | apart})


APART = ("TRIGGER_WHEN", "PARALLEL_FROM", "STREAM")
"""Numbers that concern no kernel by itself."""


def open_numbers(
    program: KernelProgram, workloads: list[Workload], clusters: bool = True
) -> dict[str, tuple[int, ...]]:
    """Name -> choices, the default first, of what the tune gate may search for these sizes. `program`: without packs."""
    numbers: dict[str, tuple[int, ...]] = {
        "ITEMS": (0, 1, 2, 4, 8), "THREADS": (256, 128, 512), "EACH": (1, 2, 4), "LANES": (0,), "SPLIT": (0,), "UNROLL": (8, 4, 16),
        "RESIDENT": (0, 1, 2), "TRIGGER_WHEN": (1, 0, 2),
    }  # fmt: skip
    tiled = [kernel.turned for kernel in program.kernels if kernel.turned is not None]
    if tiled:
        fitting = (along for along in (64, 32, 128) if all(_holds(turned, along) for turned in tiled))
        numbers["ALONG"], numbers["THREADS"] = tuple(fitting), (128, 256, 512)
    if program.kernels and all(isinstance(kernel, PackedKernel) and fetches(kernel) for kernel in program.kernels):
        numbers["EACH"], numbers["THREADS"] = (FETCHED, 1, 2), (FETCH_THREADS, 256, 512)
    if program.kernels and all(kernel.writes_steps for kernel in program.kernels):
        numbers["THREADS"] = (STEP_THREADS, 128, 256)
    if _row_kernels(program):
        numbers["THREADS"] = (256, 128, 512) if any(map(gathers, _row_kernels(program))) else (128, 256, 512)
    tall = [kernel for kernel in program.kernels if _is_columns(kernel)]
    if tall:
        unroll = min(_unroll(kernel, 8) for kernel in tall)
        numbers["UNROLL"] = (unroll, *(rows for rows in (4, 8, 16) if rows != unroll))
        most = SHARED_BYTES // max(_column_bytes(kernel, WIDEST) for kernel in tall)
        numbers["THREADS"] = tuple(threads for threads in (512, 256, 1024, 128) if threads <= most)
    if any(_is_few_and_long(kernel, program, workload) for kernel in _row_kernels(program) for workload in workloads):
        numbers["SPLIT"] = (0, 1, 4)
    return numbers if clusters else {**numbers, "SPLIT": (1,), "TRIGGER_WHEN": (1,)}


def _is_few_and_long(kernel: PackedKernel, program: KernelProgram, workload: Workload) -> bool:
    rows, length = (_value(program, index, workload) for index in (kernel.rows, kernel.length))
    return rows < BUSY_ROWS and length * DTYPE_BYTES[workload.dtype] >= SPLIT_FROM * PACK_BYTES
