"""One row a block becomes a grid that fills the device: long rows are cut over blocks, short rows share a block.

Applies to kernels whose threads do not talk to each other and whose blocks each take one row (`blockIdx.x`, or a loop of
rows from it) that their threads stride over. The shape is chosen on the host from the number and the length of the rows.
Blocks that begin one after another lie side by side in memory, in a row first and then in the next: on an H200 that is
worth 3 to 6 % of what is many times the L2.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.block_shape import is_first_thread
from nodes.rewrites.analysis.device_code import Code, Definition, code_of, inside
from nodes.rewrites.analysis.insertions import bring, require, without_unused
from nodes.rewrites.analysis.kernels import Kernel, Loop
from nodes.rewrites.analysis.launches import Launch, host_text
from nodes.rewrites.analysis.regions import BLOCK_DIM, THREAD, begin_row, carries_state, row_loop, thread_loops
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.algebra import Polynomial, Symbol
from nodes.rewrites.syntax.source import Edits, Lines, Source, Unsupported
from nodes.rewrites.syntax.tree import field_of, is_integer, pragma_of, same, statements, upward

TUNABLES = """\
#define ROW_THREADS 256  // tune: 128 256 512
#define ROW_BLOCKS {few}  // tune: {fewer} {few} {many} {more}
"""


class Layout(NamedTuple):
    """Which of the grid's axes are what."""

    cuts: str
    """The axis along which long rows are cut: blocks begin along x first."""
    block: str
    """The number of a block's place in the order of rows, from 0. y ends at 65535."""
    blocks: str
    """How many such places there are."""


SIDE_BY_SIDE = Layout("x", "(blockIdx.z * gridDim.y + blockIdx.y)", "(gridDim.z * gridDim.y)")


@rule(
    "cuda",
    expected="enough blocks for every multiprocessor when rows are few, full blocks when rows are short",
    speedup=1.4,
    helps={"memory", "latency", "launch"},
    after=("cache_row_in_registers",),
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
    begin_row(edits, kernel, row, total, block)
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
    loops = thread_loops(kernel)
    rows = row_loop(kernel)
    outer = [loop for loop in loops if not any(inside(loop.node, o.node) and o is not loop for o in loops)]
    if not outer:
        raise Unsupported("no loop over threads")
    for loop in outer:
        step = loop.start.coefficient(THREAD)
        if loop.step != step * Polynomial.symbol(BLOCK_DIM) or loop.start.depends_on(Symbol("blockIdx.x")):
            raise Unsupported("a loop that does not stride by the block")
        if loop.step_node is None or code.polynomial(loop.start_node) != loop.start:
            raise Unsupported("a loop without a stride")
    if any(carries_state(kernel, statements(loop.body)) for loop in outer):
        raise Unsupported("elements that depend on each other")
    check_threads(code, kernel, [*headers(outer), *leaders(code, kernel, outer)])
    _check_memory(code, kernel, outer)
    check_blocks(kernel, rows)
    total = share_blocks(edits, code, kernel, rows, SIDE_BY_SIDE.block, SIDE_BY_SIDE.blocks)
    for loop in outer:
        start, step = source.of(loop.start_node), source.of(loop.step_node)
        step = step if re.fullmatch(r"[\w.]+", step) else f"({step})"
        edits.replace(loop.start_node, f"blockIdx.{SIDE_BY_SIDE.cuts} * {step} + {start}")
        edits.replace(loop.step_node, f"gridDim.{SIDE_BY_SIDE.cuts} * {step}")
        _keep_rolled(edits, source, loop.node)
    for condition in leaders(code, kernel, outer):
        edits.replace(condition, f"{source.of(condition)} && blockIdx.{SIDE_BY_SIDE.cuts} == 0")
    for launch in kernel.launches:
        _rewrite_launch(edits, kernel, launch, rows, outer, total)


def _keep_rolled(edits: Edits, source: Source, loop: Node) -> None:
    """One step is all that most threads take; to unroll more, nvcc would divide 64-bit integers in each of them first."""
    line = source.line_start(loop)
    if source.data[line : loop.start_byte].strip() or pragma_of(loop) is not None:
        return
    edits.insert(line, "#pragma unroll 1\n")


def leaders(code: Code, kernel: Kernel, outer: list[Loop]) -> list[Node]:
    """Conditions `threadIdx.x == 0` of ifs without an else, outside the loops: what is done once a row."""
    found = []
    for node in kernel.source.walk(kernel.body, "if_statement"):
        condition = field_of(node, "condition", "value")
        alone = field_of(node, "alternative") is None and not any(inside(node, loop.node) for loop in outer)
        if alone and is_first_thread(code, condition):
            found.append(condition)
    return found


def headers(loops: list[Loop]) -> list[Node]:
    """Where loops say which elements are a thread's, or a block's: their starts and steps."""
    return [part for loop in loops for part in (loop.start_node, loop.step_node) if part is not None]


def check_threads(
    code: Code, kernel: Kernel, allowed: list[Node], apart: Callable[[Node, Polynomial], Polynomial] | None = None
) -> None:
    """threadIdx.x and blockDim.x may only stand in these nodes, and in what `apart` makes of another node's place."""
    for node in kernel.source.walk(kernel.body, "identifier", "field_expression"):
        place = code.polynomial(node)
        if not (place.depends_on(THREAD) or place.depends_on(BLOCK_DIM)) or any(inside(node, n) for n in allowed):
            continue
        place = apart(node, place) if apart is not None else place
        if (place.depends_on(THREAD) or place.depends_on(BLOCK_DIM)) and not names_integer(code, node):
            raise Unsupported("threadIdx.x outside the loops")  # else its own uses are looked at, one by one


def names_integer(code: Code, node: Node) -> bool:
    """Whether the node is part of what an integer is declared to be, for good."""
    here = next((n for n in upward(node) if n.type == "init_declarator" or n.type.endswith("statement")), None)
    name = field_of(here, "declarator") if here is not None and here.type == "init_declarator" else None
    if name is None or name.type != "identifier" or here.parent is None:
        return False
    kind = code.source.of(here.parent, "type")
    changes = code.mutated(Definition(code.source.of(name), "local", here.parent, here, None))
    return (kind == "auto" or is_integer(kind)) and not changes


def _check_memory(code: Code, kernel: Kernel, outer: list[Loop]) -> None:
    """What one thread writes no other may read, and what is written outside the loops is the first thread's."""
    once = leaders(code, kernel, outer)
    if kernel.escapes:
        raise Unsupported("a helper that may write anywhere")
    written = {access.root for access in kernel.accesses if access.writes and access.root}
    uniform = len({(loop.start, loop.step) for loop in outer}) == 1
    for access in kernel.accesses:
        if not access.root:
            continue  # an array of the thread's own: there is no shared memory here
        in_loop = any(inside(access.node, loop.node) for loop in outer)
        guarded = any(
            c.parent is not None and c.parent.parent is not None and inside(access.node, c.parent.parent) for c in once
        )
        if access.writes and not in_loop and not guarded:
            raise Unsupported("a write by every thread of the row")
        shared = access.root in written or "?" in written or (access.root == "?" and bool(written))
        if access.reads and shared and (not in_loop or (not uniform and len(outer) > 1)):
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


def row_shape_of(code: Code, launch: Launch) -> tuple[str, Node]:
    """The name of the RowShape that a launch takes its block from, and the call that made it."""
    source, block = code.source, launch.block
    holder = field_of(block, "argument") if block.type == "field_expression" else None
    found = code.variable(holder)
    call = found.value if found is not None else None
    if call is None or call.type != "call_expression" or source.of(call, "function") != "row_shape":
        raise Unsupported("a shape of unknown origin")
    return source.of(holder), call


def steps_text(kernel: Kernel, launch: Launch, loops: list[Loop]) -> str:
    """How many steps of the block's threads a row takes, as the host writes it."""
    first = loops[0]
    steps = host_text(kernel, launch, first.bound_node)
    width = first.start.coefficient(THREAD)
    if width.value is None:
        raise Unsupported("a stride that the host cannot know")
    if width.value != 1:
        steps = f"ceil_div({steps}, {width.value})"
    for loop in loops[1:]:  # a tail, or all of the row where packs do not fit: at least a share of its threads
        if loop.bound != first.bound:
            steps = f"std::max<int64_t>({steps}, ceil_div({host_text(kernel, launch, loop.bound_node)}, 16))"
    return steps
