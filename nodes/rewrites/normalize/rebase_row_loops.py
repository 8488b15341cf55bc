"""A loop over the places of a row in the whole tensor becomes one over the row.

    for (int j = row * n + threadIdx.x; j < (row + 1) * n; j += blockDim.x) s += x[j];
                                                   ->
    const int row_begin = row * n;
    for (int j = threadIdx.x; j < n; j += blockDim.x) s += x[row_begin + j];

Changes nothing by itself, but other steps take a row's elements to be counted from its first. Applies where the row is the same
for all threads of the block, and its length the same for all blocks.
"""

from __future__ import annotations

from collections.abc import Iterator

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.device_code import Code, inside, one_by_one
from nodes.rewrites.analysis.kernels import Kernel, Loop
from nodes.rewrites.analysis.regions import BLOCK, BLOCK_DIM, GRID_DIM, THREAD, thread_loops
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.algebra import Polynomial, Symbol
from nodes.rewrites.syntax.match import bare
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import field_of, same

MOST = 16


@rule(
    "cuda",
    expected="nothing by itself: later steps see rows",
    normalizes=True,
    after=("undo_thread_coarsening",),
    risks=(Outcome.INCORRECT,),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    return one_by_one(source, _count_from_row, _loops, MOST)


def _loops(code: Code) -> Iterator[tuple[Kernel, Loop]]:
    return ((kernel, loop) for kernel in code.kernels for loop in thread_loops(kernel))


def _count_from_row(edits: Edits, code: Code, kernel: Kernel, loop: Loop) -> None:
    source, parent = code.source, loop.node.parent
    begin = loop.start - Polynomial.symbol(THREAD)
    length = loop.bound - begin
    if not begin.terms or begin.depends_on(THREAD) or begin.depends_on(BLOCK_DIM) or begin.depends_on(loop.symbol):
        raise Unsupported("a loop that counts from a row's first element, or over more than a row")
    if any(loop.step.depends_on(s) for s in (GRID_DIM, THREAD, BLOCK)) or parent is None:
        raise Unsupported("a loop over more than a row")
    if parent.type != "compound_statement" or loop.type == "auto" or loop.node.has_error:
        raise Unsupported("a loop of another form")
    count, row = _name(length), _row_of(code, loop.start_node)
    uses = [n for n in source.walk(loop.body, "identifier") if source.of(n) == loop.name]
    uses = [n for n in uses if (found := code.definition(n)) is not None and inside(found.declarator, loop.node)]
    if any(source.of(n) == loop.name for n in code.assigned(loop.body)):
        raise Unsupported("a loop that counts by itself")
    if kernel.changes_within(begin, [loop.node]) or kernel.changes_within(length, [loop.node]):
        raise Unsupported("a row that changes on the way")
    name = code.fresh("row_begin")
    indent = source.indent(loop.node)
    declared = f"const {loop.type} {name} = {source.of(row)};"
    at = loop.node.start_byte
    pragma = loop.node.prev_named_sibling
    if pragma is not None and pragma.type == "preproc_call":
        at = source.line_start(pragma)
        edits.insert(at, f"{indent}{declared}\n")
    else:
        edits.insert(at, f"{declared}\n{indent}")
    edits.replace(loop.start_node, "threadIdx.x")
    edits.replace(loop.bound_node, count)
    for use in uses:
        alone = use.parent is not None and use.parent.type in {
            "subscript_argument_list",
            "argument_list",
            "init_declarator",
        }
        edits.replace(use, f"{name} + {loop.name}" if alone else f"({name} + {loop.name})")


def _name(length: Polynomial) -> str:
    """A number or a variable that all blocks share. Raises Unsupported for anything else."""
    if length.value is not None and length.value > 0:
        return str(length.value)
    (only, *more) = length.symbols or {THREAD}
    shared: Symbol = only
    if more or length != Polynomial.symbol(shared) or shared.parts or shared.operator or shared.where < 0:
        raise Unsupported("a length that is no variable")
    return shared.text


def _row_of(code: Code, start: Node) -> Node:
    """What stands beside `+ threadIdx.x`."""
    found = code.variable(start)
    if found is not None and found.value is not None and not code.mutated(found):
        raise Unsupported("a start that has a name")
    here = bare(start)
    if here.type == "binary_expression" and code.source.of(here, "operator") == "+":
        sides = [field_of(here, f) for f in ("left", "right")]
        places = [side for side in sides if code.polynomial(side) == Polynomial.symbol(THREAD)]
        others = [side for side in sides if not any(same(side, place) for place in places)]
        if len(places) == 1 and len(others) == 1:
            return others[0]
    raise Unsupported("a start of another form")
