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
from nodes.rewrites.syntax.tree import same, statements

_FORMS = (
    "while ($check) $body;", "for (; $check; $update) $body;", "for ($i = $start; $check; $update) $body;",
)  # fmt: skip
_STEPS = ("++$i", "$i++", "$i += $step", "$i = $i + $step", "$i = $step + $i")


@rule(
    "cuda",
    expected="nothing by itself: later steps can follow the loop",
    normalizes=True,
    after=("single_assignment",),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    return one_by_one(source, _outside, _loops, 32)


def _loops(code: Code) -> Iterator[tuple[Kernel, Node]]:
    for kernel in code.kernels:
        known = {loop.node.id for loop in kernel.loops}
        for node in code.source.walk(kernel.body, "for_statement", "while_statement"):
            if node.id not in known:
                yield kernel, node


def _outside(edits: Edits, code: Code, kernel: Kernel, node: Node) -> bool:
    """A variable that is declared above the loop, and no longer used below it."""
    source, form = code.source, match(code.source, node, *_FORMS)
    sides = match(source, form["check"], "$less < $more", "$more > $less") if form is not None else None
    found = code.variable(sides["less"]) if sides is not None else None
    if found is None or found.kind != "local":
        return False
    body, own, inner = form["body"], found.declaration, statements(form["body"])
    last = inner[-1] if "update" not in form and inner and inner[-1].type == "expression_statement" else None
    step = match(source, form.get("update") or (last and last.named_children[0]), *_STEPS)
    start = form.get("start", found.value)
    if start is None or step is None or {source.of(step["i"]), source.of(form.get("i", step["i"]))} != {found.name}:
        return False
    jumps = last is not None and any(j.type == "continue_statement" for j in source.jumps_out_of(body))
    apart = len(own.children_by_field_name("declarator")) != 1 or not same(own.parent, node.parent)
    elsewhere = any(not inside(use, node) and not inside(use, own) for use in code.uses(found, kernel.body))
    if jumps or apart or elsewhere or len(code.set_at(found, body)) != (last is not None):
        return False
    between = [s for s in statements(node.parent) if own.end_byte <= s.start_byte and s.end_byte <= node.start_byte]
    place = code.polynomial(start)
    if not place.depends_on(THREAD) or kernel.changes_within(place, between):
        return False
    by = source.of(step["step"]) if "step" in step else "1"
    names = f"{source.of(own, 'type')} {found.name} = {source.of(start)}; {found.name} < {source.of(sides['more'])}"
    edits.changes.append((node.start_byte, body.start_byte, f"for ({names}; {found.name} += {by}) "))
    for gone in [own] if last is None else [own, last]:
        edits.remove(gone, blank=True)
    return True
