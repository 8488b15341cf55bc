"""Reductions down the columns of a matrix go along its rows, a block of columns at a time.

    for (c ...) { float s = 0; for (r ...) { s += x[r * columns + c]; } y[c] = s; }      sums column by column
    for (r ...) { for (c ...) { y[c] += x[r * columns + c]; } }                          cannot share out its rows

The first uses 4 of the 64 bytes of every line that it fetches, the second runs on one core. Both become loops over blocks of
COLUMNS columns; in a block, every row's piece is read along the row, and what a column keeps stands in an array.

Measured on one Zen 4 core with other work beside it, sums in double and maxima of 2048 x 4096 float32: 115 to 143 ms as it
was, 19.6 in blocks of 64 columns, 11.7 of 256, 7.0 of 1024.
"""

from __future__ import annotations

from collections.abc import Callable

from tree_sitter import Node

from nodes.rewrites.analysis.host_dependence import unordered
from nodes.rewrites.analysis.host_loops import canonical, counts_from_zero, has_pragma, header, loop_at, loops
from nodes.rewrites.analysis.host_source import declared_names, enclosing_function, host_code, identifiers
from nodes.rewrites.analysis.kernels import Loop
from nodes.rewrites.cpu.omp_parallel import PARALLEL_FROM, factor, may_fork
from nodes.rewrites.registry import rule
from nodes.rewrites.syntax.insert import define, free, include
from nodes.rewrites.syntax.source import Edits, Source, Unsupported, lifted, one_by_one
from nodes.rewrites.syntax.tree import LOOPS, children_of

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
    forms = (_column_by_column, _row_by_row)
    return one_by_one(source, _turned, lambda left: ((left, loop, form) for loop in loops(left) for form in forms), 16)


def _turned(edits: Edits, source: Source, loop: Loop, form: Callable[[Source, Loop, Edits], None]) -> None:
    form(source, loop, edits)
    include(source, edits, "algorithm")
    define(source, edits, "COLUMNS", _DEFINE)
    if form is _row_by_row:
        define(source, edits, "PARALLEL_FROM", PARALLEL_FROM)


def _inner(source: Source, outer: Loop) -> tuple[Loop, list[Node], list[Node]]:
    """The one loop in a loop, and what stands in front of it and behind. Raises Unsupported where there is none, or one that depends
    on the loop around it."""
    body, found = children_of(outer.body), list(source.walk(outer.body, *LOOPS))
    inner = canonical(source, found[0]) if len(found) == 1 and found[0] in body else None
    if inner is None or inner.step_node is not None or has_pragma(source, inner):
        raise Unsupported("not one loop in it")
    if source.has(outer.body, "break_statement", "continue_statement", "return_statement", "preproc_call"):
        raise Unsupported("an iteration that may end early")
    if outer.name in identifiers(source, inner.bound_node) | identifiers(source, inner.start_node):
        raise Unsupported("a loop that depends on the one around it")
    return inner, body[: body.index(inner.node)], body[body.index(inner.node) + 1 :]


def _column_by_column(source: Source, outer: Loop, edits: Edits) -> None:
    """A loop over columns that keeps something of each, over all rows."""
    inner, first, last = _inner(source, outer)
    whole, carried = unordered(source, outer)
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
    kept = _kept(source, first)
    others = set().union(*(declared_names(source, node) for node in (inner.node, *last)))
    if kept.keys() & (others | identifiers(source, inner.bound_node) | identifiers(source, inner.start_node)):
        raise Unsupported("a name for two things")
    edits.write(outer.node, _blocks(source, outer, inner, inner.body, kept, first, last))


def _kept(source: Source, first: list[Node]) -> dict[str, tuple[str, Node | None]]:
    """name -> (type, first value) of the variables that each column has."""
    found: dict[str, tuple[str, Node | None]] = {}
    for node in first:
        kind = source.of(node, "type") if node.type == "declaration" else ""
        if kind not in _SCALARS and node.type != "expression_statement":
            raise Unsupported("something else before the loop over rows")
        for variable in host_code(source).declared(node):
            if variable.form.type != "identifier":
                raise Unsupported("not a plain variable")
            found[variable.name] = (kind, variable.value)
    return found


def _row_by_row(source: Source, outer: Loop, edits: Edits) -> None:
    """A loop over rows, not to be shared out, around one over columns, each of which keeps something in memory."""
    inner, first, last = _inner(source, outer)
    if first or last or outer.step_node is not None or has_pragma(source, outer) or not may_fork(source, outer):
        raise Unsupported("not two loops and nothing between them")
    try:
        unordered(source, outer)
    except Unsupported:
        pass
    else:
        raise Unsupported("rows that can be shared out")
    _exchanged(source, outer, inner)
    work = f"int64_t{{1}} * {factor(source.of(outer.bound_node))} * {factor(source.of(inner.bound_node))}"
    pragma = f"#pragma omp parallel for schedule(static) if ({work} >= PARALLEL_FROM)"
    edits.write(outer.node, [pragma, *_blocks(source, inner, outer, inner.body, {}, [], [])])


def _exchanged(source: Source, outer: Loop, inner: Loop) -> None:
    """Raises Unsupported unless columns, taken as the outer loop, are independent of each other."""
    text = f"{header(source, inner)} {{ {header(source, outer)} {{ {source.of(inner.body)} }} }}"
    edits = Edits(source)
    edits.replace(outer.node, text)
    turned = Source(edits.apply(), source.language)
    loop = loop_at(turned, outer.node.start_byte)
    if loop is None or unordered(turned, loop)[1]:
        raise Unsupported("columns that depend on each other")


def _blocks(
    source: Source,
    columns: Loop,
    rows: Loop,
    body: Node,
    kept: dict[str, tuple[str, Node | None]],
    first: list[Node],
    last: list[Node],
) -> list:
    """The loop over blocks of what was a loop over columns: what is `kept` of each column stands in an array. Raises Unsupported for
    columns that are not counted from 0 by 1."""
    name, kind, bound = columns.name, columns.type, source.of(columns.bound_node)
    taken = identifiers(source, enclosing_function(columns.node))
    begin, end = (free(f"{name}_{word}", taken) for word in ("block", "end"))
    plain = {"identifier", "number_literal", "binary_expression", "parenthesized_expression"}
    if not counts_from_zero(source, columns) or columns.bound_node.type not in plain:
        raise Unsupported("a loop that does not count from 0 by 1, or a bound of another form")

    def within(node: Node) -> str:
        uses = [n for n in source.walk(node, "identifier") if source.of(n) in kept]
        return lifted(source, node, source.render(node, [(n, f"{source.of(n)}[{name} - {begin}]") for n in uses]))

    def along(statements: list[str]) -> list:
        """A loop over the columns of a block; nothing around nothing."""
        lines = [line for statement in statements for line in statement.split("\n")]
        return [f"for ({kind} {name} = {begin}; {name} < {end}; ++{name}) {{", lines, "}"] if lines else []

    starts = [f"{each}[{name} - {begin}] = {within(value)};" for each, (_, value) in kept.items() if value is not None]
    starts += [within(node) for node in first if node.type != "declaration"]
    # The distance is what is compared: begin + COLUMNS may be more than the type holds.
    lines = [f"const {kind} {end} = {begin} + std::min<{kind}>(COLUMNS, {bound} - {begin});"]
    lines += [f"{type_} {each}[COLUMNS];" for each, (type_, _) in kept.items()] + along(starts)
    own = body.named_children if body.type == "compound_statement" else [body]
    lines += [f"{header(source, rows)} {{", along([within(node) for node in own]), "}"]
    lines += along([within(node) for node in last])
    return [f"for ({kind} {begin} = 0; {begin} < {bound}; {begin} += COLUMNS) {{", lines, "}"]
