"""One row over several blocks where rows are few and long: a thread-block cluster that reduces through distributed shared
memory (Hopper and later).

Applies to kernels whose blocks each take one row and reduce it through `block_sum` and its siblings. In a second kernel the
threads of neighbouring blocks count as one row's threads, and each reduction over the block is followed by one over the
cluster. The host launches it while rows are too few for every multiprocessor.

Measured on an H200: float32 [32, 32000] softmax, eight blocks of 256 threads a row, 3.7 us against 5.7 with one block; the
norm of float16 [64, 16384] and [32, 5120] 0.1 to 0.3 us slower, since a grid of clusters starts later.
"""

from __future__ import annotations

from harness.records import Outcome
from nodes.rewrites.analysis.device_code import code_of, inside
from nodes.rewrites.analysis.insertions import bring, require
from nodes.rewrites.launch.programmatic_dependent_launch import IN_CLUSTERS, TRIGGER_WHEN
from nodes.rewrites.prelude import brought
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.rows.row_kernels import RowKernel, RowLaunch, either, with_second_form
from nodes.rewrites.syntax.insert import renamed
from nodes.rewrites.syntax.source import Edits, Lines, Source, Unsupported
from nodes.rewrites.syntax.tree import field_of, statements

SPEEDUP = 0.97
LONG_STEPS = 4096
"""Of 16 bytes, in a row: shorter ones are over before a cluster has begun."""

NUMBERS = f"""\
#define CLUSTER_BLOCKS {{blocks}}  // tune: {{fewer}} {{blocks}}
#define CLUSTER_STEPS {LONG_STEPS}  // tune: 1024 {LONG_STEPS}
"""


def speedup(facts: Facts) -> float:
    """Worth a first plan where rows are few and long."""
    units = facts.device.units
    return SPEEDUP + 0.5 * facts.share_of_workloads(
        lambda rows, row_bytes: 2 * rows <= units and row_bytes >= 16 * LONG_STEPS
    )


@rule(
    "cuda",
    expected="every multiprocessor has a share of a row where there are fewer rows than multiprocessors",
    speedup=speedup,
    helps={"memory", "latency"},
    after=("neighbouring_rows_per_block",),
    risks=(Outcome.INCORRECT, Outcome.RUNTIME_ERROR, Outcome.OUT_OF_RESOURCES),
    once="launch_cluster",
)
def rewrite(source: Source, facts: Facts) -> str | None:
    if facts.compute_capability < 90 or not brought(source):
        return None
    code = code_of(source)
    edits = with_second_form(code, "over_cluster", _rewrite_kernel, _launched)
    units = facts.device.units
    bring(edits, code, NUMBERS.format(blocks=2 * units, fewer=units))
    require(edits, code, "ceil_div", "launch_cluster", "cluster_items")
    require(edits, code, "cluster_max", "cluster_min", "cluster_sum")
    return edits.apply().replace(TRIGGER_WHEN, IN_CLUSTERS) if edits.changes else None


def _rewrite_kernel(edits: Edits, found: RowKernel) -> None:
    kernel, source, code = found.kernel, found.source, found.code
    if source.has(kernel.body, "return_statement"):
        raise Unsupported("blocks that may end before their cluster has met")
    taken = kernel.identifiers()
    row, blocks, thread, threads = (
        n if n not in taken else code.fresh(f"{n}_in_cluster")
        for n in ("row", "row_blocks", "thread_of_row", "threads_of_row")
    )
    for call in found.reductions:
        function = field_of(call, "function")
        edits.replace(function, source.of(function).replace("block_", "cluster_"))
    places = {"threadIdx.x": thread, "blockDim.x": threads, "blockIdx.x": row, "gridDim.x": f"gridDim.x / {blocks}"}
    for old, new in places.items():
        for use in found.uses(old):
            edits.replace(use, new)
    cluster = "cooperative_groups::this_cluster()"
    edits.in_front(
        statements(kernel.body)[0],
        f"const unsigned {blocks} = {cluster}.num_blocks(), {row} = blockIdx.x / {blocks};",
        f"const unsigned {thread} = blockIdx.x % {blocks} * blockDim.x + threadIdx.x, {threads} = {blocks} * blockDim.x;",
        f"{cluster}.barrier_arrive();",
    )
    body = statements(kernel.body if found.rows is None else found.rows.body)
    meets, *_, last = (s for call in (*found.reductions, found.reductions[-1]) for s in body if inside(call, s))
    edits.in_front(meets, f"{cluster}.barrier_wait();  // all of its blocks are there")
    if found.rows is not None:
        edits.behind(last, f"{cluster}.barrier_arrive();  // this one's parts are read")
        edits.behind(found.rows.node, f"{cluster}.barrier_wait();")


def _launched(found: RowKernel, place: RowLaunch, name: str) -> Lines:
    source, code, launch = found.source, found.code, place.launch
    blocks, run = code.fresh("row_cluster"), code.fresh("launch_shared_row")
    width = f"row_threads(ceil_div({place.steps}, {blocks}), decltype({place.items})::value)"
    given = [
        renamed(launch.with_arguments(), found.kernel.name, name),
        blocks,
        "true" if launch.dependent else "false",
        f"static_cast<unsigned>({place.rows} * {blocks})",
        width if place.items else source.of(launch.block),
        launch.stream_text,
        *map(source.of, launch.arguments),
    ]
    items = f"{blocks} > 1 ? cluster_items(ceil_div({place.steps}, {blocks}), {place.size}) : 0"
    asked = f"const unsigned {blocks} = cluster_blocks({place.rows}, {place.steps});"
    return [asked, *either(place, run, [f"launch_cluster({', '.join(given)});"], items, f"{blocks} > 1")]
