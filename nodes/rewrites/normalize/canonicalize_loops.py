"""A loop in which a thread takes every so-manieth element is written as one: `for (i = thread; i < n; i += threads)`.

    int i = threadIdx.x; while (i < n) { ...; i += blockDim.x; }                   also as for (; i < n; i += blockDim.x)
    for (i = threadIdx.x; n > i; i = i + blockDim.x) { ... }                       with `int i;` above

Changes nothing by itself, but other steps know loops by this form only.
"""

from __future__ import annotations

from collections.abc import Iterator

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import Code, inside, one_by_one
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.analysis.regions import THREAD
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Edits, Source
from nodes.rewrites.syntax.tree import field_of, left_by, same, statements


@rule(
    "cuda",
    expected="nothing by itself: later steps can follow the loop",
    normalizes=True,
    after=("single_assignment_pointers",),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    return one_by_one(source, _outside, _loops, 32)


def _loops(code: Code) -> Iterator[tuple[Kernel, Node]]:
    for kernel in code.kernels:
        known = {loop.node.id for loop in kernel.loops}
        for node in code.source.walk(kernel.body, "for_statement", "while_statement"):
            if node.id not in known:
                yield kernel, node


def _comparison(code: Code, condition: Node | None) -> tuple[Node, Node] | None:
    """The smaller and the larger side of `a < b` or `b > a`."""
    found = match(code.source, condition, "$less < $more", "$more > $less")
    return (found["less"], found["more"]) if found is not None else None


def _step(code: Code, update: Node | None, name: str) -> Node | str | None:
    """What `i += step`, `i = i + step` or `++i` adds to the variable."""
    found = match(code.source, update, "++$i", "$i++", "$i += $step", "$i = $i + $step", "$i = $step + $i")
    return found.get("step", "1") if found is not None and code.source.of(found["i"]) == name else None


def _text(code: Code, node: Node | str) -> str:
    return node if isinstance(node, str) else code.source.of(node)


def _outside(edits: Edits, code: Code, kernel: Kernel, node: Node) -> bool:
    """A variable that is declared above the loop, and no longer used below it."""
    source = code.source
    body, sides = field_of(node, "body"), _comparison(code, field_of(node, "condition"))
    if body is None or sides is None or sides[0].type != "identifier":
        return False
    found = code.definition(sides[0])
    if found is None or found.kind != "local" or found.declarator is None:
        return False
    inner = statements(body)
    start: Node | None = found.value
    if node.type == "while_statement":
        last = inner[-1] if inner and body.type == "compound_statement" else None
        update = last.named_children[0] if last is not None and last.type == "expression_statement" else None
        jumps = any(same(left_by(j), node) for j in source.walk(body, "continue_statement"))
        if last is None or jumps:
            return False
    else:
        last, update, first = None, field_of(node, "update"), field_of(node, "initializer")
        if first is not None and first.type == "assignment_expression":
            if source.of(first, "left") != found.name:
                return False
            start = field_of(first, "right")
        elif first is not None:
            return False
    step = _step(code, update, found.name)
    uses = code.uses(found, kernel.body)
    own = found.declaration
    alone = len(own.children_by_field_name("declarator")) == 1 and same(own.parent, node.parent)
    if start is None or step is None or update is None or not alone:
        return False
    if any(not inside(use, node) and not inside(use, own) for use in uses) or not code.polynomial(start).depends_on(
        THREAD
    ):
        return False
    if sum(inside(t, body) for t in code.assigned(kernel.body) if t in uses) != (1 if last is not None else 0):
        return False
    between = [s for s in statements(node.parent) if own.end_byte <= s.start_byte and s.end_byte <= node.start_byte]
    if kernel.changes_within(code.polynomial(start), between):
        return False
    kind = source.of(own, "type")
    header = f"for ({kind} {found.name} = {source.of(start)}; {source.of(sides[0])} < {source.of(sides[1])}; "
    edits.remove(own, blank=True)
    edits.changes.append((node.start_byte, body.start_byte, f"{header}{found.name} += {_text(code, step)}) "))
    if last is not None:
        edits.remove(last, blank=True)
    return True
