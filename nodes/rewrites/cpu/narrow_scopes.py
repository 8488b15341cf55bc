"""Counters and scratch variables that a function declares at its top move to the loops that use them.

C as it was before 1999, and much C++ since, has `int i, j; float d;` above all loops. Every iteration then writes what the
whole function shares, so that no other step takes the iterations for independent of each other.

    int i;  for (i = 0; i < n; ++i)                 becomes   for (int i = 0; i < n; ++i)
    int i = 0;  for (; i < n; ++i)                  the same
    float d;  for (...) { d = x[i] - m; s += d * d; }   becomes   for (...) { float d = x[i] - m; s += d * d; }

Only where no value passes from one iteration or loop to the next through the variable. Changes nothing by itself.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

from nodes.rewrites.analysis.host_source import (
    INTEGERS,
    enclosing_function,
    escapes,
    fields,
    functions,
    identifiers,
    operator,
)
from nodes.rewrites.registry import rule
from nodes.rewrites.syntax.source import Edits, Source, Unsupported, inside

_WORD = re.compile(r"\w+")
"""Of a pragma or a macro's body, which the grammar leaves as text."""
_SCALARS = INTEGERS | {"float", "double", "bool", "char", "signed", "int8_t", "uint8_t", "_Float16"}


@dataclass(frozen=True)
class _Declared:
    """One variable of a declaration that is a statement of a block."""

    name: str
    kind: str
    statement: Node
    declarator: Node
    start: Node | None
    """What it is initialised with."""
    uses: tuple[Node, ...]
    """Every other mention in the function, in order."""


@rule(
    "cpu",
    expected="nothing by itself: later steps see that iterations share no variable",
    normalizes=True,
    after=("specialize_functors",),
)
def rewrite(source: Source, facts: object) -> str | None:
    """One variable of each function at a time: loops nest, and each moved declaration makes room for the next."""
    text = source.text
    for _ in range(256):
        current = Source(text, source.language)
        edits, done = Edits(current), set[int]()
        for variable in _variables(current):
            function = enclosing_function(variable.statement).start_byte
            if function not in done and (changes := _moved(current, variable)):
                edits.changes.extend(changes)
                done.add(function)
        if not done:
            break
        text = edits.apply()
    return text if text != source.text else None


def _variables(source: Source) -> Iterator[_Declared]:
    macros = source.walk(None, "preproc_def", "preproc_function_def", "preproc_call")
    in_text = {word for node in macros for word in _WORD.findall(source.of(node))}
    for group in functions(source).values():
        for function in group:
            # A jump may pass by a declaration; what a lambda names may be used whenever it is called.
            if any(source.walk(function.body, "goto_statement", "labeled_statement", "lambda_expression")):
                continue
            for statement in source.walk(function.body, "declaration"):
                if statement.parent.type == "compound_statement" and not statement.has_error:
                    found = _of(source, statement, function.body)
                    yield from (variable for variable in found if variable.name not in in_text)


def _of(source: Source, statement: Node, body: Node) -> Iterator[_Declared]:
    kind = source.of(statement, "type")
    plain = set(kind.replace("std::", "").split()) <= _SCALARS and kind != "auto"
    words = [child for child in statement.named_children if child.type in {"type_qualifier", "storage_class_specifier"}]
    if not plain or words:
        return
    for declarator in statement.children_by_field_name("declarator"):
        start = None
        name = declarator
        if declarator.type == "init_declarator":
            name, start = fields(declarator, "declarator", "value")
        if name.type != "identifier" or (
            start is not None and start.type not in {"number_literal", "unary_expression"}
        ):
            continue
        text = source.of(name)
        if text in {s for n in source.walk(body, "declaration") if n != statement for s in _names(source, n)}:
            continue  # two of one name: which one is meant is not worked out here
        uses = tuple(n for n in source.walk(body, "identifier") if source.of(n) == text and n != name)
        if uses and not any(_escapes(source, use) for use in uses):
            yield _Declared(text, kind, statement, declarator, start, uses)


def _names(source: Source, declaration: Node) -> set[str]:
    found = set()
    for declarator in declaration.children_by_field_name("declarator"):
        inner = declarator.child_by_field_name("declarator") if declarator.type == "init_declarator" else declarator
        found |= identifiers(source, inner)
    return found


def _escapes(source: Source, use: Node) -> bool:
    """Whether something else may change the variable, or refer to it."""
    return escapes(source, use) or (
        use.parent.type in {"init_declarator", "initializer_list"} and _binds(source, use.parent)
    )


def _binds(source: Source, node: Node) -> bool:
    """Whether a declaration binds a reference to what it is initialised with."""
    return any(source.walk(node.parent if node.type == "initializer_list" else node, "reference_declarator"))


def _moved(source: Source, variable: _Declared) -> list[tuple[int, int, str]]:
    edits = Edits(source)
    try:
        if not (_counter(source, variable, edits) or _scratch(source, variable, edits)):
            return []
        _undeclare(source, variable, edits)
        edits.apply()  # raises where two of them overlap
        return edits.changes
    except Unsupported:
        return []


def _counter(source: Source, variable: _Declared, edits: Edits) -> bool:
    """Whether every mention lies in a loop that starts by setting the variable; gives those loops one of their own."""
    headers: dict[int, Node] = {}
    for use in variable.uses:
        loop = _loop_that_sets(source, use, variable)
        if loop is None:
            return False
        headers[loop.start_byte] = loop
    places = sorted(headers.values(), key=lambda node: node.start_byte)
    if any(outer.end_byte > inner.start_byte for outer, inner in itertools.pairwise(places)):
        return False  # the inner one would change the outer one's
    for loop in places:
        start = loop.child_by_field_name("initializer")
        if start is not None:
            edits.insert(start.start_byte, f"{variable.kind} ")
        else:
            opening = next(child for child in loop.children if child.type == "(")
            edits.insert(opening.end_byte, f"{variable.kind} {variable.name} = {source.of(variable.start)}")
    return True


def _loop_that_sets(source: Source, use: Node, variable: _Declared) -> Node | None:
    here = use.parent
    while here is not None and here.type != "function_definition":
        if here.type == "for_statement":
            start = here.child_by_field_name("initializer")
            if start is not None and start.type == "assignment_expression":
                plain = operator(source, start) == "="
                own = source.of(start, "left") == variable.name
                if own and plain and variable.name not in identifiers(source, start.child_by_field_name("right")):
                    return here
            # `for (; i < n; ++i)` right behind the declaration runs once for it; a second loop would go on from there.
            alone = all(inside(other, here) for other in variable.uses)
            if start is None and variable.start is not None and alone and here.parent == variable.statement.parent:
                return here
        here = here.parent
    return None


def _scratch(source: Source, variable: _Declared, edits: Edits) -> bool:
    """Whether one block inside a loop holds every mention and sets the variable first; declares it there."""
    block = _common_block(variable.uses)
    if block is None or not _repeats(block, variable.statement):
        return False
    first = next(node for node in block.named_children if inside(variable.uses[0], node))
    assignment = first.named_children[0] if first.type == "expression_statement" else None
    if assignment is None or assignment.type != "assignment_expression":
        return False
    if operator(source, assignment) != "=":
        return False
    if source.of(assignment, "left") != variable.name:
        return False
    if variable.name in identifiers(source, assignment.child_by_field_name("right")):
        return False
    edits.insert(first.start_byte, f"{variable.kind} ")
    return True


def _common_block(uses: tuple[Node, ...]) -> Node | None:
    """The innermost block around all of them."""
    here = uses[0].parent
    while here is not None and here.type != "function_definition":
        if here.type == "compound_statement" and all(inside(use, here) for use in uses):
            return here
        here = here.parent
    return None


def _repeats(block: Node, declared: Node) -> bool:
    """Whether the block is inside a loop that the declaration is outside of."""
    here: Node | None = block
    while here is not None and here != declared.parent:
        if here.type in {"for_statement", "while_statement", "do_statement"}:
            return True
        here = here.parent
    return False


def _undeclare(source: Source, variable: _Declared, edits: Edits) -> None:
    declarators = variable.statement.children_by_field_name("declarator")
    if len(declarators) == 1:
        edits.remove(variable.statement)
        return
    at = declarators.index(variable.declarator)
    if at:
        edits.changes.append((declarators[at - 1].end_byte, variable.declarator.end_byte, ""))
    else:
        edits.changes.append((variable.declarator.start_byte, declarators[1].start_byte, ""))
