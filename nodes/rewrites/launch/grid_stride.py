"""One row a block becomes a grid that fills the device: long rows are cut over blocks, short rows share a block.

Applies to kernels whose threads do not talk to each other and whose blocks each take one row (`blockIdx.x`, or a loop of
rows from it) that their threads stride over. The shape is chosen on the host from the number and the length of the rows.
Blocks that begin one after another lie side by side in memory, in a row first and then in the next: on an H200 that is
worth 3 to 6 % of what is many times the L2.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.block_shape import is_first_thread
from nodes.rewrites.analysis.device_code import Code, code_of, inside
from nodes.rewrites.analysis.insertions import bring, require, without_unused
from nodes.rewrites.analysis.kernels import Kernel, Loop
from nodes.rewrites.analysis.launches import Launch, host_text
from nodes.rewrites.analysis.regions import BLOCK, BLOCK_DIM, THREAD, carries_state, guard_text, row_loop, thread_loops
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.algebra import Polynomial
from nodes.rewrites.syntax.source import Edits, Lines, Source, Unsupported
from nodes.rewrites.syntax.tree import (
    children_of,
    enclosing,
    field_of,
    is_integer,
    pragma_of,
    same,
    statement_around,
    statements,
)

TUNABLES = """\
#define ROW_THREADS 256  // tune: 128 256 512
#define ROW_BLOCKS {few}  // tune: {fewer} {few} {many} {more}
"""


ROW_BLOCK, ROW_BLOCKS = "(blockIdx.z * gridDim.y + blockIdx.y)", "(gridDim.z * gridDim.y)"
"""The number of a block's place in the order of rows, from 0, and how many such places there are: y ends at 65535. Long rows
are cut along x, for blocks begin along x first."""


@rule(
    "cuda",
    expected="enough blocks for every multiprocessor when rows are few, full blocks when rows are short",
    speedup=1.4,
    helps={"memory", "latency", "launch"},
    risks=(Outcome.INCORRECT, Outcome.RUNTIME_ERROR, Outcome.OUT_OF_RESOURCES),
    once="row_shape",
)
def rewrite(source: Source, facts: Facts) -> str | None:
    code = code_of(source)
    edits = Edits(source)
    for kernel in code.kernels:
        with edits.attempt():
            _rewrite_kernel(edits, code, kernel)
    units = facts.device.units
    blocks = {"fewer": units // 2, "few": units * 3 // 4, "many": units * 3 // 2, "more": units * 3}
    bring(edits, code, TUNABLES.format(**blocks))
    require(edits, code, "row_shape")
    return without_unused(code, edits.apply())


def _uses(kernel: Kernel, name: str) -> list[Node]:
    return [n for n in kernel.source.walk(kernel.body, "field_expression") if kernel.source.of(n) == name]


def check_blocks(kernel: Kernel, rows: Loop | None) -> None:
    """blockIdx.x is the row; gridDim.x only strides over rows. Raises Unsupported where they say anything else."""
    uses = kernel.block_indices()
    if rows is not None and not all(any(inside(use, part) for part in headers([rows])) for use in uses):
        raise Unsupported("blockIdx.x beside the loop over rows")
    if rows is None and (not uses or _uses(kernel, "gridDim.x")):
        raise Unsupported("no row a block")


def share_blocks(
    edits: Edits, code: Code, kernel: Kernel, rows: Loop | None, block: str = "blockIdx.x", blocks: str = "gridDim.x"
) -> str:
    """Let a block have a row for each of its threads along y, the block being one of so many. The new parameter for the number
    of rows; "" where the kernel's loop over rows knows it."""
    if rows is not None:
        edits.replace(rows.start_node, f"{block} * blockDim.y + threadIdx.y")
        edits.replace(rows.step_node, f"{blocks} * blockDim.y")
        return ""
    taken = kernel.identifiers()
    row = code.fresh("row_of_thread") if "row" in taken else "row"
    total = code.fresh("row_count") if "rows" in taken else "rows"
    for use in _uses(kernel, "blockIdx.x"):
        edits.replace(use, row)
    declared = f"const unsigned {row} = {block} * blockDim.y + threadIdx.y;"
    edits.in_front(statements(kernel.body)[0], declared, guard_text(kernel, f"{row} >= {total}"))
    edits.insert(kernel.parameter_list.end_byte - 1, f", const unsigned {total}")
    return total


def with_rows(launch: Launch, count: str, total: str) -> list[str]:
    """A launch's arguments, and one for the parameter of `share_blocks` where it has made one."""
    plain = re.fullmatch(r"\d+|static_cast<unsigned( int)?>\(.*\)", count)
    number = count if plain else f"static_cast<unsigned>({count})"
    return [*map(launch.code.source.of, launch.arguments), *([number] if total else [])]


def _rewrite_kernel(edits: Edits, code: Code, kernel: Kernel) -> None:
    source = kernel.source
    if kernel.synchronises or kernel.has_defaults or not kernel.launches:
        raise Unsupported("threads that talk to each other")
    taken = ("threadIdx.y", "threadIdx.z", "blockDim.y", "blockIdx.y", "blockIdx.z", "gridDim.y", "gridDim.z")
    if any(_uses(kernel, name) for name in taken):
        raise Unsupported("another axis in use")
    loops, rows = thread_loops(kernel), row_loop(kernel)
    if not loops or any(inside(loop.node, other.body) for loop in loops for other in loops):
        raise Unsupported("no loop over threads, or one in another")
    for loop in loops:
        apart = loop.start.coefficient(THREAD).value != 1 or loop.start.depends_on(BLOCK)
        if apart or loop.step.only != BLOCK_DIM:
            raise Unsupported("a loop that does not stride by the block")
        if carries_state(kernel, statements(loop.body)):
            raise Unsupported("elements that depend on each other")
    check_threads(code, kernel, loops)
    _check_memory(kernel, loops)
    check_blocks(kernel, rows)
    total = share_blocks(edits, code, kernel, rows, ROW_BLOCK, ROW_BLOCKS)
    for loop in loops:
        start, step = source.of(loop.start_node), source.of(loop.step_node)
        edits.replace(loop.start_node, f"blockIdx.x * {step} + {start}")
        edits.replace(loop.step_node, f"gridDim.x * {step}")
        # One step is all that most threads take; to unroll more, nvcc would divide 64-bit integers in each of them first.
        line = source.line_start(loop.node)
        if not source.data[line : loop.node.start_byte].strip() and pragma_of(loop.node) is None:
            edits.insert(line, "#pragma unroll 1\n")
    for launch in kernel.launches:
        _rewrite_launch(edits, kernel, launch, rows, loops, total)


def headers(loops: list[Loop]) -> list[Node]:
    """Where loops say which elements are a thread's, or a block's: their starts and steps."""
    return [part for loop in loops for part in (loop.start_node, loop.step_node) if part is not None]


def check_threads(
    code: Code, kernel: Kernel, loops: list[Loop], apart: Callable[[Node, Polynomial], Polynomial] | None = None
) -> None:
    """threadIdx.x and blockDim.x may only stand where the loops begin and step, in `if (threadIdx.x == 0)` outside of these, and in
    what `apart` makes of another node's place. Raises Unsupported."""
    first = [n for n in kernel.source.walk(kernel.body, "binary_expression") if is_first_thread(code, n)]
    asked = [n for n in first if statement_around(n).type == "if_statement"]
    allowed = [*headers(loops), *(n for n in asked if not any(inside(n, loop.body) for loop in loops))]
    for node in kernel.source.walk(kernel.body, "identifier", "field_expression"):
        place = code.polynomial(node)
        if not (place.depends_on(THREAD) or place.depends_on(BLOCK_DIM)) or any(inside(node, n) for n in allowed):
            continue
        place = apart(node, place) if apart is not None else place
        if (place.depends_on(THREAD) or place.depends_on(BLOCK_DIM)) and not _names_integer(code, node):
            raise Unsupported("threadIdx.x outside the loops")  # else its own uses are looked at, one by one


def _names_integer(code: Code, node: Node) -> bool:
    """Whether the node is part of what an integer is declared to be, for good."""
    declaration = enclosing(node, "declaration")
    mine = [d for d in code.declared(declaration) if inside(node, d.declarator)] if declaration is not None else []
    kind = code.source.of(declaration, "type")
    return (kind == "auto" or is_integer(kind)) and bool(mine) and not code.mutated(mine[0])


def _check_memory(kernel: Kernel, loops: list[Loop]) -> None:
    """What one thread writes no other may read, and an element is written by its own thread."""
    if kernel.escapes:
        raise Unsupported("a helper that may write anywhere")
    written = {access.root for access in kernel.accesses if access.writes and access.root}
    uniform = len({(loop.start, loop.step) for loop in loops}) == 1
    for access in kernel.accesses:
        if not access.root:
            continue  # an array of the thread's own: there is no shared memory here
        in_loop = any(inside(access.node, loop.node) for loop in loops)
        if access.writes and not in_loop:
            raise Unsupported("a write by every thread of the row")
        shared = access.root in written or "?" in written or (access.root == "?" and bool(written))
        if access.reads and shared and not (in_loop and uniform):
            raise Unsupported("a read of what other threads write")


def _rewrite_launch(
    edits: Edits, kernel: Kernel, launch: Launch, rows: Loop | None, loops: list[Loop], total: str
) -> None:
    x, y, _ = launch.extents(launch.grid)
    if (y, *launch.extents(launch.block)[1:]) != ("1", "1", "1"):
        raise Unsupported("a grid or block with more than one dimension")
    count = x if rows is None else host_text(kernel, launch, rows.bound_node)
    shape, around = kernel.code.fresh("shape"), launch.statement.parent
    lines: Lines = [
        f"const RowShape {shape} = row_shape({count}, {steps_text(kernel, launch, loops)});",
        launch.rendered(grid=f"{shape}.grid", block=f"{shape}.block", arguments=with_rows(launch, count, total)) + ";",
    ]
    alone = sum(same(other.node.parent.parent, around) for other in kernel.code.launches) == 1
    edits.write(launch.statement, lines if alone and around.type == "compound_statement" else ["{", lines, "}"])


def row_shape_of(code: Code, launch: Launch) -> tuple[str, str, str]:
    """The name of the RowShape that a launch takes its grid and block from, and how many rows and steps that was made for."""
    source, holder = code.source, field_of(launch.block, "argument")
    found, name = code.variable(holder), source.of(holder)
    call = found.value if found is not None else None
    said = [source.of(call, "function"), source.of(launch.grid), source.of(launch.block)]
    given = [source.of(node) for node in children_of(call, "arguments")]
    if said != ["row_shape", f"{name}.grid", f"{name}.block"] or len(given) != 2:
        raise Unsupported("a shape of unknown origin")
    return name, *given


def steps_text(kernel: Kernel, launch: Launch, loops: list[Loop]) -> str:
    """How many steps of the block's threads a row takes, as the host writes it."""
    steps = host_text(kernel, launch, loops[0].bound_node)
    for loop in loops[1:]:  # a tail, or all of the row where packs do not fit: at least a share of its threads
        if loop.bound != loops[0].bound:
            steps = f"std::max<int64_t>({steps}, ceil_div({host_text(kernel, launch, loop.bound_node)}, 16))"
    return steps
