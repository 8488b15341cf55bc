"""A pointer that is moved once, to the block's part or to another buffer, becomes a variable for each place.

`x += blockIdx.x * n;` of a parameter turns into `const T* x = x_all + blockIdx.x * n;`, and `x = out + row * n;` of a
variable into `const T* x_out = out + row * n;`. Changes nothing by itself, but other steps follow only pointers that keep
their value.
"""

from __future__ import annotations

from collections.abc import Iterator

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import Code, Definition, one_by_one
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.source import Edits, Source
from nodes.rewrites.syntax.tree import field_of, statements


@rule(
    "cuda",
    expected="nothing by itself: later steps can follow the pointer",
    normalizes=True,
    after=("declare_at_first_value",),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    return one_by_one(source, _settle, _targets, 32)  # one pointer at a time: the next one may be set from it


def _targets(code: Code) -> Iterator[tuple[Kernel, Node]]:
    return ((kernel, node) for kernel in code.kernels for node in code.assigned(kernel.body))


def _settle(edits: Edits, code: Code, kernel: Kernel, target: Node) -> bool:
    source, text = code.source, code.source.of
    assignment, found = target.parent, code.definition(target)
    statement = assignment.parent if assignment is not None else None
    if assignment is None or found is None or not any(s == statement for s in statements(kernel.body)):
        return False
    operator, right = text(field_of(assignment, "operator")), field_of(assignment, "right")
    if assignment.type != "assignment_expression" or operator not in {"=", "+="} or right is None:
        return False
    declared, name = _declared(code, found)
    if name is None:
        return False
    uses = code.uses(found, kernel.body)
    before = [n for n in uses if n.end_byte <= assignment.start_byte]
    inner = [n for n in uses if right.start_byte <= n.start_byte < right.end_byte]
    if found.kind == "parameter" and not before:
        old = code.fresh(f"{found.name}_all")
        edits.replace(name, old)
        new, renamed = found.name, inner
    elif found.kind == "local":
        base = code.pointer_base(code.polynomial(right))
        stem = f"{found.name}_{base.text}" if base is not None and base.text.isidentifier() else f"{found.name}_next"
        old, new = found.name, code.fresh(stem if base is None or base.text != found.name else f"{found.name}_next")
        renamed = []
        for use in uses:
            if use.start_byte >= assignment.end_byte:
                edits.replace(use, new)
    else:
        return False
    value = source.render(right, [(n, old) for n in renamed])
    edits.replace(
        assignment, f"{declared}{new} = {f'{old} + {_bracketed(right, value)}' if operator == '+=' else value}"
    )
    return True


def _bracketed(node: Node, text: str) -> str:
    return f"({text})" if node.type in {"conditional_expression", "assignment_expression", "comma_expression"} else text


def _declared(code: Code, found: Definition) -> tuple[str, Node | None]:
    """What stands before the name in the declaration of one pointer, and the name."""
    declarator = found.form
    if found.kind == "local" and len(found.declaration.children_by_field_name("declarator")) != 1:
        return "", None
    name = field_of(declarator, "declarator")
    if declarator is None or declarator.type != "pointer_declarator" or name is None or name.type != "identifier":
        return "", None
    before = code.source.data[found.declaration.start_byte : name.start_byte].decode()
    return before, None if "static" in before.split() or "__shared__" in before.split() else name
