"""A pointer that is moved, to the block's part or to another buffer, becomes a variable for each place; an index that is declared
first and set once, later, is declared where it is set.

`x += blockIdx.x * n;` of a parameter turns into `const T* x = x_all + blockIdx.x * n;`, `x = out + row * n;` of a variable into
`const T* x_out = out + row * n;`, and `int at, to; ... at = 2 * i;`, as fold_branches leaves such places behind, into
`int at = 2 * i;`. Changes nothing by itself, but other steps follow only variables that keep their value.
"""

from __future__ import annotations

from collections.abc import Iterator

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.device_code import Code, Definition, one_by_one
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Edits, Source, Unsupported, inside
from nodes.rewrites.syntax.tree import declared_name, field_of, is_integer, same


@rule(
    "cuda",
    expected="nothing by itself: later steps can follow the pointer or index",
    normalizes=True,
    after=("fold_branches",),
    risks=(Outcome.INCORRECT,),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    return one_by_one(source, _settle, _targets, 32)  # one at a time: the next one may be set from it


def _targets(code: Code) -> Iterator[tuple[Kernel, Node]]:
    return ((kernel, node) for kernel in code.kernels for node in code.assigned(kernel.body))


def _settle(edits: Edits, code: Code, kernel: Kernel, target: Node) -> bool:
    """Whether the variable lives in the block in which it is set, so that all that names it behind that has this value."""
    source, found, statement = code.source, code.definition(target), target.parent.parent
    form = match(source, statement, "$v = $value;", "$v += $value;")
    if form is None or found is None or found.kind not in {"local", "parameter"}:
        return False
    block = kernel.body if found.kind == "parameter" else found.declaration.parent
    if block.type != "compound_statement" or not same(statement.parent, block) or not same(form["v"], target):
        return False
    adds, value, name = "+=" in form.pattern, form["value"], declared_name(found.declarator)
    uses = [n for n in code.uses(found, block) if not inside(n, found.declaration)]
    used_before = any(n.end_byte <= statement.start_byte for n in uses)
    pointer, old, new = found.form.type == "pointer_declarator", found.name, found.name
    head = _head(source, found, name)
    if found.kind == "parameter" and pointer and not used_before:
        old = code.fresh(f"{found.name}_all")
        edits.replace(name, old)
    elif found.kind == "local" and pointer and not source.says(found.declaration, "static", "__shared__"):
        base = code.pointer_base(code.polynomial(value))
        stem = base.text if base is not None and base.text.isidentifier() and base.text != old else "next"
        new = code.fresh(f"{old}_{stem}")
        for use in (n for n in uses if n.start_byte >= statement.end_byte):
            edits.replace(use, new)
    elif found.form.type == "identifier" and is_integer(head.strip()) and len(code.set_at(found, block)) == 1:
        if used_before or adds or found.value is not None or any(inside(n, value) for n in uses):
            return False
        _take_out(edits, code, found, head)
    else:
        return False
    text = source.render(value, [(n, old) for n in uses if inside(n, value)])
    text = f"({text})" if adds and value.type in {"conditional_expression", "comma_expression"} else text
    edits.replace(statement, f"{head}{new} = {f'{old} + {text}' if adds else text};")
    return True


def _head(source: Source, found: Definition, name: Node) -> str:
    """What stands before the name. Raises Unsupported for pointers that are declared together, and for other forms."""
    inner = field_of(found.form, "declarator") if found.form.type == "pointer_declarator" else found.form
    several = len(found.declaration.children_by_field_name("declarator")) > 1
    if not same(inner, name) or (several and found.form.type != "identifier"):
        raise Unsupported("a declaration of another form")
    first = field_of(found.declaration, "declarator") if several else name
    return source.data[found.declaration.start_byte : first.start_byte].decode()


def _take_out(edits: Edits, code: Code, found: Definition, head: str) -> None:
    """Takes a variable without a value out of its declaration."""
    rest = [d for d in code.declared(found.declaration) if d.where != found.where]
    if any(other.declarator.type != "identifier" for other in rest):
        raise Unsupported("a declaration of another form")
    if rest:
        edits.replace(found.declaration, f"{head}{', '.join(other.name for other in rest)};")
    else:
        edits.remove(found.declaration)
