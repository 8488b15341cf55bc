"""OpenMP over the outermost loop whose iterations are provably independent.

A parallel region costs about 2 us when the threads are awake, so small calls stay on one thread: the `if` clause
compares the number of elements with PARALLEL_FROM, which is left open.
"""

from __future__ import annotations

from nodes.rewrites._insert import define
from nodes.rewrites._loops import (
    Effects,
    Loop,
    Unsupported,
    assignments,
    effects,
    functions,
    identifiers,
    indentation,
    independent,
    loops,
    pragma_before,
    pragma_node,
    reductions,
)
from nodes.rewrites.source import Edits, Source

LANGUAGES = frozenset({"cpu"})
HELPS = frozenset({"compute", "latency", "memory", "unknown"})
EXPECTED = "time falls towards 1 / cores on all but the smallest workloads"
SPEEDUP = 1.9
ORDER = 35

_DEFINE = "#define PARALLEL_FROM 16384  // tune: 4096 16384 65536"


def rewrite(source: Source, facts: object) -> str | None:
    if "omp parallel" in source.text:
        return None
    edits = Edits(source)
    repeated = _called_in_loops(source)
    done: list[Loop] = []
    for loop in loops(source):
        inside = any(other.node.start_byte <= loop.node.start_byte < other.node.end_byte for other in done)
        pragma = pragma_before(source, loop.node)
        if inside or loop.step is not None or (pragma and not pragma.startswith("#pragma omp simd")):
            continue
        done.append(loop)  # what is inside a loop that cannot be shared out would fork once per iteration
        try:
            found = effects(source, loop)
            carried = reductions(source, found)
            if carried is None or independent(found) or any(loop.node in _nodes(source, name) for name in repeated):
                continue
            clauses = "".join(f" reduction({operator}:{name})" for name, operator in carried.items())
            indent = indentation(source, loop.node)
            work = _work(source, loop, found)
            counter = source.of(loop.node.child_by_field_name("initializer").child_by_field_name("type"))
            if "int" in counter.split():  # a product of int may overflow
                work = f"int64_t{{1}} * {work}"
        except Unsupported:
            continue
        if pragma:
            line = f"#pragma omp parallel for simd schedule(static) if (parallel: {work} >= PARALLEL_FROM){clauses}\n"
            edits.replace(pragma_node(source, loop.node), line)
            continue
        line = f"#pragma omp parallel for schedule(static) if ({work} >= PARALLEL_FROM){clauses}\n{indent}"
        edits.insert(loop.node.start_byte, line)
    if not edits.changes:
        return None
    define(source, edits, "PARALLEL_FROM", _DEFINE)
    return edits.apply()


def _called_in_loops(source: Source) -> set[str]:
    """Functions that run once per iteration of something: a fork in there would be repeated."""
    own, names = functions(source), set()
    for node in source.walk(None, "for_statement", "while_statement", "do_statement"):
        for call in source.walk(node, "call_expression"):
            name = source.of(call.child_by_field_name("function")).partition("<")[0]
            if name in own:
                names.add(name)
    return names


def _nodes(source: Source, name: str) -> set:
    return {loop.node for function in functions(source)[name] for loop in loops(source, function.body)}


def _work(source: Source, loop: Loop, found: Effects) -> str:
    """Elements of the whole nest as an expression that can be written before the loop: the largest of its products."""
    inside = {name for name, _ in assignments(source, loop.body)} | _declared(source, loop)
    products: list[str] = []
    for inner in found.inner_loops:
        chain = [inner]
        chain += [o for o in found.inner_loops if o.node.start_byte < inner.node.start_byte < o.node.end_byte]
        bounds = [source.of(each.bound) for each in sorted(chain, key=lambda each: each.node.start_byte)]
        if all(not identifiers(source, each.bound) & inside for each in chain):
            products.append(" * ".join([_factor(source.of(loop.bound)), *map(_factor, bounds)]))
    return max(products, key=lambda text: (text.count("*"), len(text)), default=_factor(source.of(loop.bound)))


def _factor(text: str) -> str:
    return text if text.replace("_", "").isalnum() else f"({text})"


def _declared(source: Source, loop: Loop) -> set[str]:
    names = {loop.variable}
    for node in source.walk(loop.body, "declaration"):
        for declarator in node.children_by_field_name("declarator"):
            here = declarator
            while here is not None and here.type != "identifier":
                here = here.child_by_field_name("declarator") or next(iter(reversed(here.named_children)), None)
            names.add(source.of(here))
    return names
