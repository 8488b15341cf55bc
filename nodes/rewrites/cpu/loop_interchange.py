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
from nodes.rewrites.analysis.host_source import (
    changed_names,
    declared_names,
    enclosing_function,
    identifiers,
)
from nodes.rewrites.analysis.kernels import Loop
from nodes.rewrites.cpu.omp_parallel import PARALLEL_FROM, factor, may_fork
from nodes.rewrites.registry import rule
from nodes.rewrites.syntax.insert import define, free, include
from nodes.rewrites.syntax.source import Edits, Source, Unsupported, lifted, one_by_one
from nodes.rewrites.syntax.tree import children_of

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


def _plain(source: Source, loop: Loop) -> None:
    if not counts_from_zero(source, loop):
        raise Unsupported("a loop that does not count from 0 by 1")
    if loop.bound_node.type not in {"identifier", "number_literal", "binary_expression", "parenthesized_expression"}:
        raise Unsupported("a bound of another form")


def _column_by_column(source: Source, outer: Loop, edits: Edits) -> None:
    """A loop over columns that keeps something of each, over all rows."""
    _plain(source, outer)
    if outer.body.type != "compound_statement":
        raise Unsupported("no block")
    body = children_of(outer.body)
    at = [place for place, node in enumerate(body) if node.type == "for_statement"]
    inner = canonical(source, body[at[0]]) if len(at) == 1 else None
    if inner is None or inner.step_node is not None or any(source.walk(inner.body, "for_statement", "while_statement")):
        raise Unsupported("not one loop over rows in it")
    if has_pragma(source, inner) or inner.body.type != "compound_statement":
        raise Unsupported("a loop of another form")
    if any(source.walk(outer.body, "break_statement", "continue_statement", "while_statement", "preproc_call")):
        raise Unsupported("an iteration that may end early")
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
    local = declared_names(source, inner.body) | {inner.name}
    if outer.name in identifiers(source, inner.bound_node) | identifiers(source, inner.start_node):
        raise Unsupported("rows that depend on the column")
    first, last = body[: at[0]], body[at[0] + 1 :]
    kept = _kept(source, first)
    behind = {name for node in last for name in declared_names(source, node)}
    if (set(kept) & (behind | local)) or (
        identifiers(source, inner.bound_node) | identifiers(source, inner.start_node)
    ) & set(kept):
        raise Unsupported("a name for two things")
    names = _Names(source, outer)
    starts = [
        f"{names.of(name)} = {names.within(value, kept)};" for name, (_, value) in kept.items() if value is not None
    ]
    starts += [names.within(node, kept) for node in first if node.type != "declaration"]
    rows = names.along([names.within(node, kept) for node in inner.body.named_children])
    lines = [f"const {names.kind} {names.end} = {names.limit};"]
    lines += [f"{kind} {name}[COLUMNS];" for name, (kind, _) in kept.items()]
    lines += names.along(starts)
    lines += [f"{header(source, inner)} {{", rows, "}"]
    lines += names.along([names.within(node, kept) for node in last])
    edits.write(outer.node, [names.header, lines, "}"])


def _kept(source: Source, statements: list[Node]) -> dict[str, tuple[str, Node | None]]:
    """name -> (type, first value) of the variables that each column has."""
    found: dict[str, tuple[str, Node | None]] = {}
    for node in statements:
        if node.type == "expression_statement":
            continue
        kind = source.of(node, "type") if node.type == "declaration" else ""
        if kind not in _SCALARS:
            raise Unsupported("something else before the loop over rows")
        for declarator in node.children_by_field_name("declarator"):
            name = declarator.child_by_field_name("declarator") if declarator.type == "init_declarator" else declarator
            if name.type != "identifier":
                raise Unsupported("not a plain variable")
            found[source.of(name)] = (kind, declarator.child_by_field_name("value"))
    return found


def _row_by_row(source: Source, outer: Loop, edits: Edits) -> None:
    """A loop over rows, not to be shared out, around one over columns, each of which keeps something in memory."""
    if outer.step_node is not None or has_pragma(source, outer):
        raise Unsupported("a loop of another form")
    body = children_of(outer.body)
    inner = canonical(source, body[0]) if len(body) == 1 and body[0].type == "for_statement" else None
    if inner is None or not may_fork(source, outer):
        raise Unsupported("not two loops and nothing between them")
    _plain(source, inner)
    if has_pragma(source, inner) or any(source.walk(inner.body, "for_statement", "while_statement")):
        raise Unsupported("a loop of another form")
    if outer.name in identifiers(source, inner.bound_node) or changed_names(source, outer.body) & (
        identifiers(source, outer.bound_node) | identifiers(source, inner.bound_node)
    ):
        raise Unsupported("columns that depend on the row")
    if any(source.walk(inner.body, "break_statement", "return_statement")):
        raise Unsupported("an iteration that may end early")
    try:
        unordered(source, outer)
    except Unsupported:
        pass
    else:
        raise Unsupported("rows that can be shared out")
    _exchanged(source, outer, inner)
    names = _Names(source, inner)
    own = inner.body.named_children if inner.body.type == "compound_statement" else [inner.body]
    work = f"int64_t{{1}} * {factor(source.of(outer.bound_node))} * {factor(source.of(inner.bound_node))}"
    edits.write(
        outer.node,
        [
            f"#pragma omp parallel for schedule(static) if ({work} >= PARALLEL_FROM)",
            names.header,
            [
                f"const {names.kind} {names.end} = {names.limit};",
                f"{header(source, outer)} {{",
                names.along([names.within(node, {}) for node in own]),
                "}",
            ],
            "}",
        ],
    )


def _exchanged(source: Source, outer: Loop, inner: Loop) -> None:
    """Raises Unsupported unless columns, taken as the outer loop, are independent of each other."""
    text = f"{header(source, inner)} {{ {header(source, outer)} {{ {source.of(inner.body)} }} }}"
    edits = Edits(source)
    edits.replace(outer.node, text)
    turned = Source(edits.apply(), source.language)
    loop = loop_at(turned, outer.node.start_byte)
    if loop is None or unordered(turned, loop)[1]:
        raise Unsupported("columns that depend on each other")


class _Names:
    """The loop over blocks of what was a loop over columns."""

    def __init__(self, source: Source, loop: Loop) -> None:
        self.source, self.variable = source, loop.name
        taken = identifiers(source, enclosing_function(loop.node))
        self.kind = loop.type
        self.begin, self.end = (free(f"{loop.name}_{word}", taken) for word in ("block", "end"))
        bound = source.of(loop.bound_node)
        self.header = f"for ({self.kind} {self.begin} = 0; {self.begin} < {bound}; {self.begin} += COLUMNS) {{"
        # The distance is what is compared: begin + COLUMNS may be more than the type holds.
        self.limit = f"{self.begin} + std::min<{self.kind}>(COLUMNS, {bound} - {self.begin})"

    def of(self, name: str) -> str:
        return f"{name}[{self.variable} - {self.begin}]"

    def within(self, node: Node, kept: dict[str, tuple[str, Node | None]]) -> str:
        uses = [n for n in self.source.walk(node, "identifier") if self.source.of(n) in kept]
        return lifted(
            self.source, node, self.source.render(node, [(use, self.of(self.source.of(use))) for use in uses])
        )

    def along(self, statements: list[str]) -> list:
        """A loop over the columns of a block; nothing around nothing."""
        head = f"for ({self.kind} {self.variable} = {self.begin}; {self.variable} < {self.end}; ++{self.variable}) {{"
        lines = [line for statement in statements for line in statement.split("\n")]
        return [head, lines, "}"] if lines else []
