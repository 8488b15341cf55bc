"""Which schedules a program may have: what is wrong with one, in a sentence that says which number would do."""

from __future__ import annotations

from collections.abc import Callable

from compiler.codegen import columns, ragged
from compiler.codegen.row_tiles import longest_row
from compiler.defaults import APART, CPU_LANES, SHARED_BYTES, _column_bytes, tile_bytes
from compiler.draft.partition import ROW
from compiler.phases import PhasesKernel
from compiler.products import ProductKernel
from compiler.program import KernelProgram, PackedKernel
from compiler.schedule import (
    ALONE,
    TILES,
    Columns,
    Elements,
    KernelPlan,
    Phases,
    Rows,
    RowTiles,
    Schedule,
    ScheduleVersion,
    Steps,
    Tiles,
    Turned,
)
from compiler.steps import StepsKernel
from compiler.streams import StreamKernel
from kernels.spec import DTYPE_BYTES

PACK_BYTES, MOST_ITEMS, MOST_TEAM = 16, 32, 64
LANES, SPLITS = (0, *TILES), (0, 1, 2, 4, 8)
TILE_SIDES = (16, 32, 64, 128)
OF_THEIR_OWN = (
    (PhasesKernel, Phases, "definitions go through memory"), (ProductKernel, Tiles, "matrices are multiplied"),
    (StepsKernel, Steps, "a loop carries something"),
)  # fmt: skip
"""Kernels that have one sketch, which no other has."""
NUMBERS = {"TRIGGER_WHEN": (0, 1, 2), "STREAM": (0, 1)}


class IllegalSchedule(ValueError):
    """One sentence: where, what is wrong, what would do."""


def check_schedule(schedule: Schedule, first: Schedule, programs: Callable[[str, int], KernelProgram]) -> None:
    """`first` is the compiler's own of the same kernel. Raises IllegalSchedule, or NoProgram for a pack width without one."""
    _require(schedule.device == first.device, "device", f"must be {first.device}")
    _require(
        schedule.versions.keys() == first.versions.keys(),
        "versions",
        f"must name {', '.join(first.versions)}, each once",
    )
    for name, number in schedule.numbers.items():
        _require(name in APART, f"numbers.{name}", f"is none of {', '.join(APART)}")
        choices = NUMBERS.get(name)
        _require(number in choices if choices else 0 <= number < 2**31, f"numbers.{name}", f"must be one of {choices}")
    for dtype, versions in schedule.versions.items():
        _require(bool(versions), dtype, "must have a version")
        last, at = versions[-1], f"{dtype}.{len(versions) - 1}"
        total = (last.vector, last.narrow, last.longest, last.most_rows) == (1, False, None, None)
        _require(total, at, "must be total, as the last version: vector 1, narrow false, longest and most_rows null")
        widest = max(version.vector for version in first.versions[dtype])
        for number, version in enumerate(versions):
            _check_version(f"{dtype}.{number}", dtype, version, schedule.device, programs, widest)


def _require(holds: bool, where: str, what: str) -> None:
    if not holds:
        raise IllegalSchedule(f"{where} {what}")


def _check_version(at: str, dtype: str, version: ScheduleVersion, device: str, programs, first: int) -> None:
    """`first`: the widest packs of the compiler's own schedule."""
    widest = max(first, PACK_BYTES // DTYPE_BYTES[dtype]) if device == "cuda" else CPU_LANES
    widths = [1 << power for power in range(widest.bit_length())]
    _require(version.vector in widths, f"{at}.vector", f"must be one of {', '.join(map(str, widths))}")
    if device == "cpu":
        _require(not version.narrow, f"{at}.narrow", "must be false in C++")
        _require(version.longest is None and version.most_rows is None, at, "takes no guard by size in C++")
    program = programs(dtype, version.vector)
    wanted = len(program.kernels)
    _require(len(version.kernels) == wanted, f"{at}.kernels", f"must have {wanted} kernels, as the program has")
    for number, (plan, kernel) in enumerate(zip(version.kernels, program.kernels, strict=True)):
        where = f"{at}.{number}"
        _require(
            plan.members == kernel.origins,
            f"{where}.members",
            f"must be {', '.join(kernel.origins)}: kernels cannot be cut otherwise yet",
        )
        _check_kernel(where, plan, program, kernel, version, device)


def _check_kernel(
    at: str, plan: KernelPlan, program: KernelProgram, kernel: PackedKernel, version: ScheduleVersion, device: str
) -> None:
    sketch = plan.sketch
    for kind, record, where in OF_THEIR_OWN:
        if isinstance(kernel, kind) or isinstance(sketch, record):
            fits, name = isinstance(kernel, kind) and isinstance(sketch, record), record.__name__.lower()
            _require(fits, f"{at}.sketch", f"must be {name} where {where}, and only there")
            if isinstance(kernel, PhasesKernel) and isinstance(sketch, Phases) and sketch.clusters:
                _require(
                    kernel.holds_little and device != "cpu",
                    f"{at}.sketch.clusters",
                    "must be false where more than single numbers are kept of a unit, and on a CPU",
                )
            return
    assert not isinstance(sketch, Phases | Tiles | Steps)
    if isinstance(kernel, StreamKernel):
        _require(sketch.sketch == "stream", f"{at}.sketch", "must be stream for what it computes")
        _require(sketch.vector == version.vector, f"{at}.vector", f"must be the version's {version.vector}")
        _require(device == "cpu" or sketch.threads == 256, f"{at}.threads", "must be 256 where keys stream by")
        return
    fitting = ["rows"] if kernel.layout == ROW else ["elements"]
    if kernel.tiled is not None and device == "cuda":
        fitting.append("row_tiles")
    if kernel.layout != ROW and columns.takes(kernel) and not kernel.inner[0][1].is_Integer:
        fitting.append("columns")
    if kernel.turned is not None and device == "cuda":
        fitting.append("turned")
    _require(sketch.sketch in fitting, f"{at}.sketch", f"must be {' or '.join(fitting)} for what it computes")
    if device == "cpu":
        if isinstance(sketch, Columns):
            _require(1 <= sketch.lanes <= 64, f"{at}.lanes", "must be 1 to 64 packs of a tile")
        return
    threads = sketch.threads
    _require(threads % 32 == 0 and 32 <= threads <= 1024, f"{at}.threads", "must be a multiple of 32 from 32 to 1024")
    if isinstance(sketch, Columns):
        _check_columns(at, sketch, kernel, version)
        return
    if isinstance(sketch, RowTiles):
        assert kernel.tiled is not None
        most = longest_row(kernel.tiled) // kernel.width
        _require(sketch.vector == version.vector, f"{at}.vector", f"must be the version's {version.vector}")
        _require(threads in (256, 512), f"{at}.threads", "must be 256 or 512")
        _require(
            (version.longest or most + 1) <= most, f"{at}.sketch", f"needs a version with longest of {most} at most"
        )
        return
    if isinstance(sketch, Turned):
        _check_turned(at, sketch, kernel, version)
        return
    assert isinstance(sketch, Elements | Rows)
    _check_width(at, sketch, program, kernel, version)
    if isinstance(sketch, Elements):
        _require(1 <= sketch.items <= MOST_ITEMS, f"{at}.items", f"must be 1 to {MOST_ITEMS}")
        return
    _check_rows(at, sketch, kernel, version)


def _check_turned(at: str, sketch: Turned, kernel: PackedKernel, version: ScheduleVersion) -> None:
    _require(sketch.vector == version.vector, f"{at}.vector", f"must be the version's {version.vector}")
    for name, number in (("along", sketch.along), ("across", sketch.across)):
        _require(number in TILE_SIDES, f"{at}.{name}", f"must be one of {TILE_SIDES}")
    assert kernel.turned is not None
    room = tile_bytes(kernel.turned, sketch.along, sketch.across) <= SHARED_BYTES
    _require(room, f"{at}.across", f"must be less: tiles of {sketch.along} by {sketch.across} have no room")


def _check_width(
    at: str, sketch: Elements | Rows, program: KernelProgram, kernel: PackedKernel, version: ScheduleVersion
) -> None:
    if not sketch.ragged:
        _require(
            sketch.vector == version.vector,
            f"{at}.vector",
            f"must be the version's {version.vector} where ragged is false",
        )
        return
    _require(version.vector == 1 and version.narrow, f"{at}.ragged", "needs a version with vector 1 and narrow true")
    takes = sketch.vector in (2, 4, 8, 16) and ragged.takes(program, kernel, sketch.vector)
    _require(takes, f"{at}.ragged", "is for packs of 2 to 16 elements that lie side by side")


def _check_rows(at: str, sketch: Rows, kernel: PackedKernel, version: ScheduleVersion) -> None:
    team, items = sketch.team, sketch.items
    _require(0 <= items <= MOST_ITEMS, f"{at}.items", f"must be 0 to {MOST_ITEMS}")
    _require(
        not team & (team - 1) and 0 <= team <= MOST_TEAM, f"{at}.team", f"must be 0 or a power of two up to {MOST_TEAM}"
    )
    _require(
        not (sketch.ragged and team) or team >= 2 * sketch.vector,
        f"{at}.team",
        f"must be 0 or at least {2 * sketch.vector} where ragged is true",
    )
    _require(not team or sketch.threads % team == 0, f"{at}.team", f"must divide the {sketch.threads} threads")
    _require(sketch.split in SPLITS, f"{at}.split", f"must be one of {SPLITS}")
    _require(sketch.resident in (0, 1, 2), f"{at}.resident", "must be 0, 1 or 2")
    _require(sketch.wanted in (0, 1, 2, 4, 8), f"{at}.wanted", "must be 0, 1, 2, 4 or 8")
    if sketch.by_size:
        one = team == 0 and items == sketch.unit and sketch.unit in (1, 2, 4)
        _require(
            one and version.narrow, f"{at}.by_size", "leaves team 0 and items at unit (1, 2 or 4), in a narrow version"
        )
        return
    _require(items > 0 or team == 0, f"{at}.team", "must be 0 where rows are read again in every pass (items 0)")
    if items == 0:
        return
    known = version.longest if sketch.longest is None else min(sketch.longest, version.longest or sketch.longest)
    if known is None and kernel.length.is_Integer:
        length, by = int(kernel.length), sketch.vector if sketch.ragged else kernel.width
        known = length // by
    _require(known is not None, f"{at}.items", "may be above 0 without by_size only in a version with a longest row")
    reach = items * (team or sketch.threads)
    _require(
        known is not None and known <= reach,
        f"{at}.items",
        f"must be more: {items} packs of {team or sketch.threads} threads hold {reach} of {known}",
    )


def _check_columns(at: str, sketch: Columns, kernel: PackedKernel, version: ScheduleVersion) -> None:
    _require(sketch.vector == version.vector, f"{at}.vector", f"must be the version's {version.vector}")
    _require(sketch.lanes in LANES, f"{at}.lanes", f"must be one of {LANES}")
    _require(sketch.split in SPLITS, f"{at}.split", f"must be one of {SPLITS}")
    alone = sketch.lanes == ALONE
    _require(not alone or sketch.split <= 1, f"{at}.split", f"must be 0 or 1 where lanes is {ALONE}")
    _require(1 <= sketch.unroll <= 32, f"{at}.unroll", "must be 1 to 32")
    most = SHARED_BYTES // max(1, _column_bytes(kernel, kernel.width))
    _require(sketch.threads <= most, f"{at}.threads", f"must be at most {most}, or the block's sums have no room")
