"""OpenMP over the outermost loop whose iterations are provably independent.

A parallel region costs about 2 us when the threads are awake, so small calls stay on one thread: the `if` clause
compares the number of elements with PARALLEL_FROM, which is left open.
"""

from __future__ import annotations

from tree_sitter import Node

from nodes.rewrites.analysis.host_dependence import reduction_clauses, unordered
from nodes.rewrites.analysis.host_effects import Effects
from nodes.rewrites.analysis.host_source import (
    canonical,
    declared_type,
    fresh,
    function_around,
    identifiers,
    loops,
    put_in_front,
    runs_again,
    varying,
)
from nodes.rewrites.analysis.kernels import Loop
from nodes.rewrites.registry import rule
from nodes.rewrites.syntax.insert import as_factor, define
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Edits, Source, Unsupported, inside
from nodes.rewrites.syntax.tree import children_of, pragma_of

_MEMSET = ("std::memset($y, 0, $n * $size);", "memset($y, 0, $n * $size);")
_CHANGES = ("subscript_expression", "pointer_expression", "assignment_expression", "update_expression")
PARALLEL_FROM = "#define PARALLEL_FROM 16384  // tune: 4096 16384 65536"


@rule(
    "cpu",
    expected="time falls towards 1 / cores on all but the smallest workloads",
    speedup=1.9,
    helps={"memory", "latency", "compute"},
    after=("vector_math",),
)
def rewrite(source: Source, facts: object) -> str | None:
    edits = Edits(source)
    for loop in loops(source):
        # What does not begin at a number is the remainder of a loop before it: a few elements.
        if loop.step_node is not None or pragma_of(loop.node) or loop.start_node.type != "number_literal":
            continue
        with edits.attempt():
            found, carried = unordered(source, loop)
            if not runs_again(source, loop.node):
                clauses = (" collapse(2)" if _collapses(source, loop) else "") + reduction_clauses(carried)
                condition = _condition(source, loop, found)
                put_in_front(edits, loop, [f"#pragma omp parallel for schedule(static) if ({condition}){clauses}"])
    for statement in source.walk(None, "expression_statement"):
        with edits.attempt():
            _share_memset(edits, source, statement)
    if not edits.changes:
        return None
    define(source, edits, "PARALLEL_FROM", PARALLEL_FROM)
    return edits.apply()


def _share_memset(edits: Edits, source: Source, statement: Node) -> None:
    """`std::memset(y, 0, n * sizeof(float));` as the loop that it is, which threads share out."""
    found = match(source, statement, *_MEMSET)
    if found is None or runs_again(source, statement) or statement.parent.type != "compound_statement":
        return
    array, count = source.of(found["y"]), as_factor(source.of(found["n"]))
    pointers = {each.name for each in function_around(source, statement).parameters if each.pointer}
    floats = declared_type(source, found["y"]) == "float" and source.of(found["size"]) == "sizeof(float)"
    called = {source.called(call) for call in source.walk(found["n"], "call_expression")}
    if not floats or array not in pointers or source.has(found["n"], *_CHANGES) or not called <= {"static_cast"}:
        raise Unsupported("something else than the floats of a parameter, or a length that may change on the way")
    counter = fresh(source, statement, "k")
    edits.write(statement, [
        f"#pragma omp parallel for schedule(static) if ({count} >= PARALLEL_FROM)",
        f"for (int64_t {counter} = 0; {counter} < {count}; ++{counter}) {{",
        [f"{array}[{counter}] = 0;"],
        "}",
    ])  # fmt: skip


def _collapses(source: Source, loop: Loop) -> bool:
    """Whether the loop holds one other loop of rows and nothing else, so that both can be shared out together.

    The outer one alone may be too short: a batch of one with many heads. A loop over single elements stays whole, so
    that it can be vectorised.
    """
    body = children_of(loop.body)
    inner = canonical(source, body[0]) if len(body) == 1 else None
    if inner is None or inner.step_node is not None or not source.has(inner.body, "for_statement"):
        return False
    try:
        return (
            loop.name not in identifiers(source, inner.bound_node, inner.start_node) and not unordered(source, inner)[1]
        )
    except Unsupported:
        return False


def _condition(source: Source, loop: Loop, found: Effects) -> str:
    """Whether sharing out pays, written before the loop: the elements of the whole nest, or of its largest part."""
    changing, outer = varying(source, loop), as_factor(source.of(loop.bound_node))
    chains = [[o.bound_node for o in found.inner_loops if inside(inner.node, o.node)] for inner in found.inner_loops]
    chains += [[bound] for bound in found.called_loops if bound is not None]
    products = [
        " * ".join([outer, *(as_factor(source.of(bound)) for bound in nest)])
        for nest in chains if not identifiers(source, *nest) & changing
    ]  # fmt: skip
    if not products and (found.inner_loops or found.called_loops):
        return f"{outer} > 1"  # how long an iteration is cannot be said here
    work = max(products, key=lambda text: (text.count("*"), len(text)), default=outer)
    if "int" in loop.type.split():  # a product of int may overflow
        work = f"(int64_t)1 * {work}"
    return f"{work} >= PARALLEL_FROM"
