"""Several short rows a block: a warp, or a part of one, reduces a row by shuffles alone, and nobody waits at a barrier.

Applies to kernels whose blocks each take one row and reduce it through `block_sum` and its siblings. A second kernel takes
rows by `blockIdx.x * blockDim.y + threadIdx.y`, with as many threads a row as it has steps, up to 32; the host launches it
where a row fits (up to 8 steps a thread, as many as cache_row_in_registers keeps) and where there are rows enough for a warp each.
"""

from __future__ import annotations

from harness.records import Outcome
from nodes.rewrites.analysis.device_code import code_of
from nodes.rewrites.analysis.insertions import bring, require
from nodes.rewrites.launch.grid_stride import share_blocks, with_rows
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.rows.row_kernels import RowKernel, RowLaunch, either, with_second_form
from nodes.rewrites.syntax.insert import renamed
from nodes.rewrites.syntax.source import Edits, Lines, Source
from nodes.rewrites.syntax.tree import field_of

SPEEDUP = 1.0

TUNABLES = """\
#define SHORT_ROWS_FROM {rows}  // tune: {fewer} {rows} {more}
#define SHORT_ROW_THREADS 128  // tune: 64 128 256
"""


def speedup(facts: Facts) -> float:
    """Worth a first plan where a row is no more than 16 bytes for every lane of a warp: a block is mostly idle then."""
    units = facts.device.units
    return SPEEDUP + 0.5 * facts.share_of_workloads(lambda rows, row_bytes: rows >= 4 * units and row_bytes <= 32 * 16)


@rule(
    "cuda",
    expected="full blocks and no barrier where a row fits a warp",
    speedup=speedup,
    helps={"memory", "latency"},
    after=("warp_per_row",),
    risks=(Outcome.INCORRECT, Outcome.RUNTIME_ERROR),
    once="short_row_items",
)
def rewrite(source: Source, facts: Facts) -> str | None:
    code = code_of(source)
    edits = with_second_form(code, "short_rows", _rewrite_kernel, _launched)
    units = facts.device.units
    bring(edits, code, TUNABLES.format(fewer=units, rows=4 * units, more=16 * units))
    require(edits, code, "ceil_div", "short_row_items", "row_max", "row_min", "row_sum", "row_shifted_sum")
    return edits.apply()


def _rewrite_kernel(edits: Edits, found: RowKernel) -> None:
    edits.replace(*found.kernel.bounded("__launch_bounds__(SHORT_ROW_THREADS)"))
    for call in found.reductions:
        edits.replace(field_of(call, "function"), f"row_{found.kind(call)}")
    share_blocks(edits, found.code, found.kernel, found.rows)


def _launched(found: RowKernel, place: RowLaunch, name: str) -> Lines:
    code, launch = found.code, place.launch
    threads, run = code.fresh("short_threads"), code.fresh("launch_short")
    call = launch.rendered(
        function=renamed(code.source.of(launch.function), found.kernel.name, name),
        grid=f"static_cast<unsigned>(ceil_div({place.rows}, SHORT_ROW_THREADS / {threads}))",
        block=f"dim3({threads}, SHORT_ROW_THREADS / {threads})",
        arguments=with_rows(launch, place.rows, "" if found.rows is not None else "rows"),
    )
    items, chosen = code.fresh("short_items"), f"short_row_items({place.rows}, {place.steps})"
    kept = f"decltype({place.items})::value" if place.items else items
    width = f"const unsigned {threads} = short_row_threads({place.steps}, {kept});"
    return either(place, run, [width, f"{call};"], chosen, f"const int {items} = {chosen}")
