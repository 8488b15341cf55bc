"""A pointer parameter that is moved once, to the block's part, becomes a variable of its own.

`x += blockIdx.x * n;` turns into `const T* x = x_all + blockIdx.x * n;`. Changes nothing by itself, but other steps follow
only pointers that keep their value.
"""

from __future__ import annotations

from nodes.rewrites import Facts
from nodes.rewrites.device_code import Code, Kernel, statements
from nodes.rewrites.source import Edits, Source, Unsupported
from nodes.roles import Bound

LANGUAGES = frozenset({"cuda"})
HELPS: frozenset[Bound] = frozenset({"memory", "latency", "compute", "launch"})
EXPECTED = "nothing by itself: later steps can follow the pointer"
SPEEDUP = 1.0001
ORDER = 3


def rewrite(source: Source, facts: Facts) -> str | None:
    code = Code(source)
    edits = Edits(source)
    for kernel in code.kernels:
        attempt = Edits(source)
        try:
            _settle(attempt, code, kernel)
        except Unsupported:
            continue
        edits.changes += attempt.changes
    return edits.apply() if edits.changes else None


def _settle(edits: Edits, code: Code, kernel: Kernel) -> None:
    text = code.source.of
    for parameter in kernel.parameters:
        declarator = parameter.node.child_by_field_name("declarator")
        name = declarator.child_by_field_name("declarator") if declarator is not None else None
        if not parameter.pointer or name is None or name.type != "identifier":
            continue
        uses = [n for n in code.source.walk(kernel.body, "identifier") if text(n) == parameter.name]
        targets = [n for n in code.assigned(kernel.body) if text(n) == parameter.name]
        if len(targets) != 1 or not uses or uses[0].start_byte != targets[0].start_byte:
            continue  # not moved, moved again, or read before it is moved
        assignment = targets[0].parent
        statement = assignment.parent if assignment is not None else None
        if assignment is None or statement is None or not any(s.id == statement.id for s in statements(kernel.body)):
            continue
        if assignment.type != "assignment_expression" or text(assignment.child_by_field_name("operator")) != "+=":
            continue
        whole = code.fresh(f"{parameter.name}_all")
        before = text(parameter.node)[: name.start_byte - parameter.node.start_byte]
        edits.replace(name, whole)
        edits.replace(
            statement, f"{before}{parameter.name} = {whole} + {text(assignment.child_by_field_name('right'))};"
        )
