"""An element behind one of several pointers that a kernel keeps in a table is written out for each of them.

    T* to[3] = {q, k, v};                  if (part == 0) q[at] = value;
    to[part][at] = value;           ->     else if (part == 1) k[at] = value;
                                           else v[at] = value;

Applies to a local array that is made of the kernel's parameters and does nothing but this, at most MOST pointers long. What
is read becomes `part == 0 ? q[at] : ...`. Changes nothing by itself, but other steps must know which array an element is of.
"""

from __future__ import annotations

from dataclasses import dataclass

from tree_sitter import Node

from nodes.rewrites import Facts
from nodes.rewrites._row_blocks import remove_line
from nodes.rewrites.device_code import Code, Definition, Kernel, declared_name, one_after_another, same
from nodes.rewrites.source import Edits, Source, Unsupported, inside
from nodes.roles import Bound

LANGUAGES = frozenset({"cuda"})
HELPS: frozenset[Bound] = frozenset({"memory", "latency", "compute", "launch"})
EXPECTED = "nothing by itself: later steps see whose elements a thread reads and writes"
SPEEDUP = 1.0001
ORDER = 2.8

MOST = 4


@dataclass
class _Table:
    found: Definition
    pointers: list[str]


def rewrite(source: Source, facts: Facts) -> str | None:
    return one_after_another(source, _next, 8)


def _next(code: Code) -> str | None:
    for kernel in code.kernels:
        for declaration in code.source.walk(kernel.body, "declaration"):
            edits = Edits(code.source)
            try:
                table = _table(code, kernel, declaration)
                for use in _uses(code, kernel, table):
                    _write_out(edits, code, table, use)
                remove_line(edits, code.source, declaration)
                return edits.apply()
            except Unsupported:
                continue
    return None


def _table(code: Code, kernel: Kernel, declaration: Node) -> _Table:
    source = code.source
    declarators = declaration.children_by_field_name("declarator")
    if len(declarators) != 1 or declarators[0].type != "init_declarator":
        raise Unsupported("no table")
    value, pointer = declarators[0].child_by_field_name("value"), declarators[0].child_by_field_name("declarator")
    array = pointer.child_by_field_name("declarator") if pointer.type == "pointer_declarator" else None
    name = array.child_by_field_name("declarator") if array is not None and array.type == "array_declarator" else None
    if name is None or name.type != "identifier" or value is None or value.type != "initializer_list":
        raise Unsupported("no table of pointers")
    given = [c for c in value.named_children if c.type != "comment"]
    parameters = [kernel.parameter(source.of(c)) if c.type == "identifier" else None for c in given]
    if not 2 <= len(given) <= MOST or any(p is None or not p.pointer for p in parameters):
        raise Unsupported("a table of something else")
    kind = source.of(declaration.child_by_field_name("type"))
    if any(p is not None and p.element != kind for p in parameters):
        raise Unsupported("pointers to other types")
    pointers = [source.of(c) for c in given]
    if len(set(pointers)) != len(pointers) or any(source.of(t) in pointers for t in code.assigned(kernel.body)):
        raise Unsupported("pointers that move")
    return _Table(Definition(source.of(name), "local", declaration, declarators[0], value), pointers)


def _uses(code: Code, kernel: Kernel, table: _Table) -> list[Node]:
    """The accesses `table[part][at]`. Raises Unsupported for another use, or where a pointer's name means something else."""
    found = []
    for use in code.uses(table.found, kernel.body):
        if inside(use, table.found.declaration):
            continue
        inner = use.parent
        outer = inner.parent if inner is not None and inner.type == "subscript_expression" else None
        if (
            outer is None
            or outer.type != "subscript_expression"
            or not same(outer.child_by_field_name("argument"), inner)
        ):
            raise Unsupported("another use of the table")
        if not _is_plain(code, _index(inner)):
            raise Unsupported("a place in the table that is computed there and then")
        found.append(outer)
    declared = {
        code.source.of(name)
        for declaration in code.source.walk(kernel.body, "declaration")
        for declarator in declaration.children_by_field_name("declarator")
        if (name := declared_name(declarator)) is not None
    }
    if not found or declared & set(table.pointers):
        raise Unsupported("a table that nobody reads, or a pointer's name that means something else")
    return found


def _index(subscript: Node) -> Node:
    indices = subscript.child_by_field_name("indices")
    if indices is None or indices.named_child_count != 1:
        raise Unsupported("an index of several")
    return indices.named_children[0]


def _is_plain(code: Code, index: Node) -> bool:
    """A variable that keeps its value, or a number."""
    found = code.definition(index) if index.type == "identifier" else None
    return index.type == "number_literal" or (found is not None and not code.mutated(found))


def _write_out(edits: Edits, code: Code, table: _Table, use: Node) -> None:
    source, inner, owner = code.source, use.child_by_field_name("argument"), use.parent
    part = _index(inner)
    if part.type == "number_literal":
        number = source.of(part)
        if not number.isdigit() or int(number) >= len(table.pointers):
            raise Unsupported("a place that the table does not have")
        edits.replace(inner, table.pointers[int(number)])
        return
    stored = (
        owner is not None and owner.type == "assignment_expression" and same(owner.child_by_field_name("left"), use)
    )
    if stored:
        statement = owner.parent
        right = owner.child_by_field_name("right")
        nested = [n for n in source.walk(statement, "identifier") if source.of(n) == table.found.name]
        calls = any(True for _ in source.walk(statement, "update_expression", "lambda_expression"))
        if statement is None or statement.type != "expression_statement" or len(nested) != 1 or calls or right is None:
            raise Unsupported("a store in an unusual place")
        if statement.parent is None or statement.parent.type != "compound_statement":
            raise Unsupported("a store without a block around it")
        indent = source.indent(statement)
        lines = []
        for at, pointer in enumerate(table.pointers):
            asked = f"if ({source.of(part)} == {at}) " if at < len(table.pointers) - 1 else ""
            lines.append(f"{'else ' if at else ''}{asked}{source.render(statement, [(inner, pointer)])}")
        edits.replace(statement, f"\n{indent}".join(lines))
        return
    if owner is None or owner.type in {
        "update_expression",
        "pointer_expression",
        "subscript_expression",
        "field_expression",
    }:
        raise Unsupported("an element that is not only read")
    if owner.type == "init_declarator" and code.binds(owner.parent, owner.child_by_field_name("declarator")):
        raise Unsupported("a reference to an element")
    if owner.type == "argument_list" and code.lends(owner.parent, use) != (False, False):
        raise Unsupported("an element that a function may change")
    read = [source.render(use, [(inner, pointer)]) for pointer in table.pointers]
    text = read[-1]
    for at in range(len(read) - 2, -1, -1):
        text = f"{source.of(part)} == {at} ? {read[at]} : {text}"
    edits.replace(use, f"({text})")
