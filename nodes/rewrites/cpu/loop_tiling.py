"""A pair of loops of which one walks down a column is cut into square tiles.

Walking down a column of a row-major matrix uses 4 of the 64 bytes of every line that it fetches, and the line is gone
before its neighbours are wanted. In a tile of TILE by TILE elements they still are in the first cache. What is stored down
columns goes through a buffer of one tile, so that both sides of a transposition walk along rows.

Measured on one Zen 4 core (processor time, other work beside it), 2048 x 4096 float32: 57.8 ms as it was, 12.6 ms with
tiles of 32, 13.1 with 64, 21.9 with 16.
"""

from __future__ import annotations

from harness.records import Outcome
from nodes.rewrites.analysis.host_dependence import unordered
from nodes.rewrites.analysis.host_loops import Access, Loop, canonical, counts_from_zero, loops
from nodes.rewrites.analysis.host_source import declared_names, fields, identifiers, operator
from nodes.rewrites.registry import rule
from nodes.rewrites.syntax.algebra import Symbol
from nodes.rewrites.syntax.insert import define, free, include
from nodes.rewrites.syntax.source import Edits, Lines, Source, Unsupported
from nodes.rewrites.syntax.tree import children_of

_DEFINE = "#define TILE 32  // tune: 16 32 64"


@rule(
    "cpu",
    expected="every line that is fetched is used whole: bytes moved fall by up to sixteen where an index is transposed",
    speedup=2.0,
    helps={"memory", "latency"},
    after=("omp_parallel",),
    risks=(Outcome.INCORRECT,),
)
def rewrite(source: Source, facts: object) -> str | None:
    if "TILE" in identifiers(source, source.root):
        return None
    edits = Edits(source)
    for outer in loops(source):
        with edits.attempt():
            _tile(source, outer, edits)
    if not edits.changes:
        return None
    for header in ("algorithm", "type_traits"):
        include(source, edits, header)
    define(source, edits, "TILE", _DEFINE)
    return edits.apply()


def _tile(source: Source, outer: Loop, edits: Edits) -> None:
    body = children_of(outer.body)
    inner = canonical(source, body[0]) if len(body) == 1 and body[0].type == "for_statement" else None
    if inner is None or outer.body.type != "compound_statement" or any(source.walk(inner.body, "for_statement")):
        raise Unsupported("not two loops and nothing between them")
    if not all(counts_from_zero(source, loop) and _is_plain(source, loop) for loop in (outer, inner)):
        raise Unsupported("a loop that does not count from 0, or to something else than sizes")
    if outer.variable in identifiers(source, inner.bound):
        raise Unsupported("a bound that moves")
    _, carried = unordered(source, inner)
    whole, also = unordered(source, outer)
    if carried or also or whole.called_loops:
        raise Unsupported("a reduction")
    down = [access for access in whole.accesses if _down(access, whole.iteration.symbol)]
    if not down:
        raise Unsupported("every access walks along rows")
    taken = identifiers(source, source.root)
    tiles = {loop: free(f"{loop.variable}_tile", taken) for loop in (outer, inner)}
    depth = source.indent(inner.node)
    statements = [f"{depth}{source.of(inner.body)}"]
    if inner.body.type == "compound_statement":
        depth += source.unit(outer.node)
        statements = source.of(inner.body)[1:-1].strip("\n").rstrip().split("\n")
    statements = [line.removeprefix(depth) for line in statements]
    writes = [access for access in whole.accesses if access.writes]
    stored = _stored(source, inner) if len(writes) == 1 and writes[0] in down else None
    if stored is not None and sum(line.count(" = ".join(stored)) for line in statements) != 1:
        raise Unsupported("an assignment over several lines")
    if stored is None:
        tile = _within(source, (outer, inner), tiles, statements)
    else:
        # Lines that are a power of two apart share a place in the cache, so a column of them does not stay there either.
        target, value = stored
        buffer = free("tile", taken)
        across, along = (f"({loop.variable} - {tiles[loop]})" for loop in (inner, outer))
        kept = f"{buffer}[{across} * TILE + {along}]"
        statements = [line.replace(f"{target} = {value}", f"{kept} = {value}") for line in statements]
        tile = [f"std::remove_reference_t<decltype({_element(source, inner)})> {buffer}[TILE * TILE];"]
        tile += _within(source, (outer, inner), tiles, statements)
        tile += _within(source, (inner, outer), tiles, [f"{target} = {kept};"])
    for loop in (inner, outer):
        kind, start, bound = loop.kind, tiles[loop], source.of(loop.bound)
        tile = [f"for ({kind} {start} = 0; {start} < {bound}; {start} += TILE) {{", tile, "}"]
    edits.write(outer.node, tile)


def _within(source: Source, order: tuple[Loop, Loop], tiles: dict[Loop, str], body: Lines) -> list:
    """Two loops over the elements of a tile."""
    lines = body
    for loop in reversed(order):
        kind, start, bound = loop.kind, tiles[loop], source.of(loop.bound)
        name, end = loop.variable, f"std::min<{kind}>({start} + TILE, {bound})"
        lines = [f"for ({kind} {name} = {start}; {name} < {end}; ++{name}) {{", lines, "}"]
    return lines


def _stored(source: Source, inner: Loop) -> tuple[str, str] | None:
    """(left, right) of the one assignment to memory, where all that stands before it is declarations."""
    body = children_of(inner.body)
    if not body or any(node.type != "declaration" for node in body[:-1]) or body[-1].type != "expression_statement":
        return None
    assignment = body[-1].named_children[0]
    left, right = fields(assignment, "left", "right")
    if assignment.type != "assignment_expression" or operator(source, assignment) != "=":
        return None
    declared = {name for node in body[:-1] for name in declared_names(source, node)}
    if left is None or left.type != "subscript_expression" or declared & identifiers(source, left):
        return None
    return source.of(left), source.of(right)


def _element(source: Source, inner: Loop) -> str:
    """An expression of the stored element's type that needs no loop variable."""
    body = children_of(inner.body)
    left = body[-1].named_children[0].child_by_field_name("left")
    return f"*{source.of(left.child_by_field_name('argument'))}"


def _down(access: Access, row: Symbol) -> bool:
    """Whether the innermost loop moves the index by a whole row of something, and the outer one by one element or few."""
    if access.offset is None or len(access.inner) != 1:
        return False
    by_inner, by_outer = access.offset.coefficient(access.inner[0].symbol), access.offset.coefficient(row)
    return by_inner.value is None and by_outer.value is not None and by_outer.value > 0


def _is_plain(source: Source, loop: Loop) -> bool:
    return loop.bound.type in {"identifier", "number_literal", "binary_expression", "parenthesized_expression"}
