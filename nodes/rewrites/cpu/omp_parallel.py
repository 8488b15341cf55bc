"""OpenMP over the outermost loop whose iterations are provably independent.

A parallel region costs about 2 us when the threads are awake, so small calls stay on one thread: the `if` clause
compares the number of elements with PARALLEL_FROM, which is left open.
"""

from __future__ import annotations

from nodes.rewrites.analysis.host_dependence import reduction_clauses, unordered
from nodes.rewrites.analysis.host_effects import Effects
from nodes.rewrites.analysis.host_loops import canonical, loops, put_in_front, runs_again, varying
from nodes.rewrites.analysis.host_source import enclosing_function, functions, identifiers, pragma_before
from nodes.rewrites.analysis.kernels import Loop
from nodes.rewrites.registry import rule
from nodes.rewrites.syntax.insert import define
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.source import inside as within
from nodes.rewrites.syntax.tree import children_of, enclosing, pragma_of, upward

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
        pragma = pragma_before(source, loop.node)
        if loop.step_node is not None or (pragma and not pragma.startswith("#pragma omp simd")):
            continue
        if loop.start_node.type != "number_literal":  # the remainder of a loop before it: a few elements
            continue
        with edits.attempt():
            found, carried = unordered(source, loop)
            if not may_fork(source, loop) or _forks(source, found):
                continue
            clauses = (" collapse(2)" if _collapses(source, loop) else "") + reduction_clauses(carried)
            condition = _condition(source, loop, found)
            if pragma:
                line = f"#pragma omp parallel for simd schedule(static) if (parallel: {condition}){clauses}\n"
                edits.replace(pragma_of(loop.node), line)
            else:
                put_in_front(edits, loop, [f"#pragma omp parallel for schedule(static) if ({condition}){clauses}"])
    if not edits.changes:
        return None
    define(source, edits, "PARALLEL_FROM", PARALLEL_FROM)
    return edits.apply()


def may_fork(source: Source, loop: Loop) -> bool:
    """Whether a loop runs once for a call of the kernel, as far as the file shows, and is not shared out already."""
    node = loop.node
    lent = enclosing(node, "lambda_expression") is not None  # it may be called in a loop
    shared = any("omp parallel" in pragma_before(source, here) for here in upward(node, enclosing_function(node)))
    return not lent and not shared and not runs_again(source, node)


def _forks(source: Source, found: Effects) -> bool:
    """Whether a function that the loop calls shares out its own loops: inside another team those would run alone."""
    called = (function.body for name in found.calls for function in functions(source).get(name, ()))
    pragmas = (pragma for body in (found.loop.body, *called) for pragma in source.walk(body, "preproc_call"))
    return any(source.of(pragma).startswith("#pragma omp parallel") for pragma in pragmas)


def _collapses(source: Source, loop: Loop) -> bool:
    """Whether the loop holds one other loop of rows and nothing else, so that both can be shared out together.

    The outer one alone may be too short: a batch of one with many heads. A loop over single elements stays whole, so
    that it can be vectorised.
    """
    body = children_of(loop.body)
    inner = canonical(source, body[0]) if len(body) == 1 and body[0].type == "for_statement" else None
    if inner is None or inner.step_node is not None or loop.name in identifiers(source, inner.bound_node):
        return False
    if loop.name in identifiers(source, inner.start_node) or not any(source.walk(inner.body, "for_statement")):
        return False
    try:
        return unordered(source, inner)[1] == {}
    except Unsupported:
        return False


def _condition(source: Source, loop: Loop, found: Effects) -> str:
    """Whether sharing out pays, written before the loop: the elements of the whole nest, or of its largest part."""
    inside, outer = varying(source, loop), factor(source.of(loop.bound_node))
    chains = [[o for o in found.inner_loops if within(inner.node, o.node)] for inner in found.inner_loops]
    bounds = [[each.bound_node for each in chain] for chain in chains]
    bounds += [[bound] for bound in found.called_loops if bound is not None]
    products = [
        " * ".join([outer, *(factor(source.of(bound)) for bound in nest)])
        for nest in bounds if not any(identifiers(source, bound) & inside for bound in nest)
    ]  # fmt: skip
    if not products and (found.inner_loops or found.called_loops):
        return f"{outer} > 1"  # how long an iteration is cannot be said here
    work = max(products, key=lambda text: (text.count("*"), len(text)), default=outer)
    if "int" in loop.type.split():  # a product of int may overflow
        work = f"int64_t{{1}} * {work}"
    return f"{work} >= PARALLEL_FROM"


def factor(text: str) -> str:
    return text if text.replace("_", "").isalnum() else f"({text})"
