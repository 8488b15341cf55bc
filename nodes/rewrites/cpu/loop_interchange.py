"""Reductions down the columns of a matrix go along its rows, a block of columns at a time.

    for (c ...) { float s = 0; for (r ...) { s += x[r * columns + c]; } y[c] = s; }      sums column by column
    for (r ...) { for (c ...) { y[c] += x[r * columns + c]; } }                          cannot share out its rows

The first uses 4 of the 64 bytes of every line that it fetches, the second runs on one core. Both become loops over blocks of
COLUMNS columns; in a block, every row's piece is read along the row, and what a column keeps stands in an array.

Measured on one Zen 4 core with other work beside it, sums in double and maxima of 2048 x 4096 float32: 115 to 143 ms as it
was, 19.6 in blocks of 64 columns, 11.7 of 256, 7.0 of 1024.
"""

from __future__ import annotations

from tree_sitter import Node

from nodes.rewrites.analysis.host_dependence import unordered
from nodes.rewrites.analysis.host_source import (
    canonical,
    counts_from_zero,
    declared_names,
    fresh,
    header,
    identifiers,
    loops,
    runs_again,
)
from nodes.rewrites.analysis.kernels import Loop
from nodes.rewrites.cpu.omp_parallel import PARALLEL_FROM
from nodes.rewrites.registry import rule
from nodes.rewrites.syntax.insert import as_factor, define, include
from nodes.rewrites.syntax.source import Edits, Source, Unsupported, lifted, one_by_one
from nodes.rewrites.syntax.tree import JUMPS, LOOPS, children_of, one_variable, pragma_of, statements

_DEFINE = "#define COLUMNS 1024  // tune: 64 256 1024"
_SCALARS = frozenset({"float", "double", "int", "int32_t", "int64_t"})


@rule(
    "cpu",
    expected="every line that is fetched is used whole, vectors run along the rows, and blocks of columns are shared out",
    speedup=3.0,
    helps={"memory", "latency"},
    after=("omp_parallel",),
)
def rewrite(source: Source, facts: object) -> str | None:
    if "COLUMNS" in identifiers(source, source.root) and _DEFINE not in source.text:
        return None
    return one_by_one(source, _turned, lambda left: ((left, loop) for loop in loops(left)), 16)


def _turned(edits: Edits, source: Source, loop: Loop) -> None:
    include(source, edits, "algorithm")
    define(source, edits, "COLUMNS", _DEFINE)
    try:
        edits.write(loop.node, _column_by_column(source, loop))
    except Unsupported:
        edits.write(loop.node, _row_by_row(source, loop))
        define(source, edits, "PARALLEL_FROM", PARALLEL_FROM)


def _inner(source: Source, outer: Loop) -> tuple[Loop, list[Node], list[Node]]:
    """The one loop in a loop, and what stands in front of it and behind. Raises Unsupported where there is none, or one that depends
    on the loop around it."""
    body, found = children_of(outer.body), list(source.walk(outer.body, *LOOPS))
    inner = canonical(source, found[0]) if len(found) == 1 and found[0] in body else None
    if inner is None or inner.step_node is not None or pragma_of(inner.node):
        raise Unsupported("not one loop in it")
    if source.has(outer.body, "preproc_call", *JUMPS) or outer.name in identifiers(
        source, inner.bound_node, inner.start_node
    ):
        raise Unsupported("an iteration that may end early, or a loop that depends on the one around it")
    return inner, body[: body.index(inner.node)], body[body.index(inner.node) + 1 :]


def _row_by_row(source: Source, outer: Loop) -> list:
    """A loop over rows, not to be shared out, around one over columns, each of which keeps something in memory: as column by column."""
    inner, first, last = _inner(source, outer)
    if first or last or outer.step_node is not None or pragma_of(outer.node) or runs_again(source, outer.node):
        raise Unsupported("not two loops and nothing between them")
    try:
        unordered(source, outer)
    except Unsupported:
        work = f"(int64_t)1 * {as_factor(source.of(outer.bound_node))} * {as_factor(source.of(inner.bound_node))}"
        edits = Edits(source)
        edits.replace(outer.node, f"{header(source, inner)} {{ {header(source, outer)} {source.of(inner.body)} }}")
        turned = Source(edits.apply(), source.language)
        columns = next((loop for loop in loops(turned) if loop.node.start_byte == outer.node.start_byte), None)
        if columns is None:
            raise
        pragma = f"#pragma omp parallel for schedule(static) if ({work} >= PARALLEL_FROM)"
        return [pragma, *_column_by_column(turned, columns)]
    raise Unsupported("rows that can be shared out")


def _column_by_column(source: Source, columns: Loop) -> list:
    """The loop over blocks of what is a loop over columns that keeps something of each, over all rows, in an array. Raises
    Unsupported for columns that are not counted from 0 by 1."""
    rows, first, last = _inner(source, columns)
    _check_walks(source, columns)
    kept = {name: (kind, value) for name, kind, value in (_kept(source, node) for node in first)}
    if kept.keys() & (declared_names(source, rows.node, *last) | identifiers(source, rows.bound_node, rows.start_node)):
        raise Unsupported("a name for two things")
    name, kind, bound = columns.name, columns.type, source.of(columns.bound_node)
    begin, end = (fresh(source, columns.node, f"{name}_{word}") for word in ("block", "end"))
    plain = {"identifier", "number_literal", "binary_expression", "parenthesized_expression"}
    if not counts_from_zero(source, columns) or columns.bound_node.type not in plain:
        raise Unsupported("a loop that does not count from 0 by 1, or a bound of another form")

    def within(node: Node) -> str:
        uses = [n for n in source.walk(node, "identifier") if source.of(n) in kept]
        return lifted(source, node, source.render(node, [(n, f"{source.of(n)}[{name} - {begin}]") for n in uses]))

    def along(texts: list[str]) -> list:
        """A loop over the columns of a block; nothing around nothing."""
        lines = [line for text in texts for line in text.split("\n")]
        return [f"for ({kind} {name} = {begin}; {name} < {end}; ++{name}) {{", lines, "}"] if lines else []

    # The distance is what is compared: begin + COLUMNS may be more than the type holds.
    lines = [f"const {kind} {end} = {begin} + std::min<{kind}>(COLUMNS, {bound} - {begin});"]
    lines += [f"{type_} {each}[COLUMNS];" for each, (type_, _) in kept.items()]
    lines += along([f"{each}[{name} - {begin}] = {within(value)};" for each, (_, value) in kept.items()])
    lines += [f"{header(source, rows)} {{", along([within(node) for node in statements(rows.body)]), "}"]
    lines += along([within(node) for node in last])
    return [f"for ({kind} {begin} = 0; {begin} < {bound}; {begin} += COLUMNS) {{", lines, "}"]


def _check_walks(source: Source, columns: Loop) -> None:
    """Raises Unsupported unless columns are independent of each other, and the loop in them walks down."""
    whole, carried = unordered(source, columns)
    if carried or whole.called_loops:
        raise Unsupported("a reduction over the columns")
    inside = [access for access in whole.accesses if access.inner]
    if not inside or any(access.offset is None for access in inside):
        raise Unsupported("elements that are not known")
    row, column = inside[0].inner[0].symbol, whole.iteration.symbol
    steps = [(access.offset.coefficient(row), access.offset.coefficient(column)) for access in inside]
    # Down a column, and nothing that goes along a row already: that would be torn apart.
    if not any(down.terms and down.value is None and along.value == 1 for down, along in steps):
        raise Unsupported("nothing walks down a column")
    if any(down.value == 1 and along.value not in {0, 1} for down, along in steps):
        raise Unsupported("something walks along a row")


def _kept(source: Source, node: Node) -> tuple[str, str, Node]:
    """Name, type and first value of a variable that each column has."""
    variable = one_variable(node) if node.type == "declaration" else None
    if variable is None or source.of(node, "type") not in _SCALARS:
        raise Unsupported("something else before the loop over rows")
    return source.of(variable[0]), source.of(node, "type"), variable[1]
