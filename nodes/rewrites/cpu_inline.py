"""Functions that are one pass over the data each, called one after the other, become part of their caller.

A layer as `normalize(x, ...); scale(x, ...); add_bias(x, ...);` moves the tensor through the memory once for each of them.
As loops behind each other in one function, cpu_fuse can make one pass of them. Only functions that return nothing, hold
nothing but loops, and are called in this one place. Changes nothing by itself.
"""

from __future__ import annotations

from tree_sitter import Node

from nodes.rewrites._loops import (
    INTEGERS,
    Function,
    aliases,
    assignments,
    calls,
    declared_names,
    declared_type,
    enclosing_function,
    functions,
    identifiers,
)
from nodes.rewrites.source import Edits, Source, Unsupported

LANGUAGES = frozenset({"cpu"})
HELPS = frozenset({"memory", "latency", "unknown"})
EXPECTED = "nothing by itself: passes that stand in functions of their own can become one"
SPEEDUP = 1.0001
ORDER = 6


def rewrite(source: Source, facts: object) -> str | None:
    text = source.text
    for _ in range(64):
        current = Source(text, source.language)
        new = next(filter(None, (_inlined(current, block) for block in current.walk(None, "compound_statement"))), None)
        if new is None:
            break
        text = new
    return text if text != source.text else None


def _inlined(source: Source, block: Node) -> str | None:
    """The text with the passes of the first row of calls in a block put there; None where there is no such row."""
    row: list[tuple[Node, Function, list[Node]]] = []
    statements = [node for node in block.named_children if node.type != "comment"]
    for statement in [*statements, None]:
        try:
            if statement is not None:
                row.append((statement, *_pass(source, statement)))
                continue
        except Unsupported:
            pass
        # A loop on either side is a pass that stands here already.
        beside = [statements[at] for at in _beside(statements, row)]
        if len(row) > 1 or (row and any(node.type == "for_statement" for node in beside)):
            edits = Edits(source)
            for call, function, arguments in row:
                _put(source, call, function, arguments, edits)
            return edits.apply()
        row = []
    return None


def _beside(statements: list[Node], row: list[tuple[Node, Function, list[Node]]]) -> list[int]:
    if not row:
        return []
    first, last = (statements.index(row[end][0]) for end in (0, -1))
    return [at for at in (first - 1, last + 1) if 0 <= at < len(statements)]


def _pass(source: Source, statement: Node) -> tuple[Function, list[Node]]:
    """The function that a statement calls, and the arguments. Raises Unsupported unless it can be put in its place."""
    call = (
        statement.named_children[0] if statement.type == "expression_statement" and statement.named_children else None
    )
    if call is None or call.type != "call_expression" or statement.has_error:
        raise Unsupported("no call")
    name = source.of(call.child_by_field_name("function"))
    group = functions(source).get(name, [])
    arguments = [a for a in call.child_by_field_name("arguments").named_children if a.type != "comment"]
    if len(group) != 1 or len(calls(source).get(name, ())) != 1 or len(group[0].parameters) != len(arguments):
        raise Unsupported("not a function of the file that is called here alone")
    (function,) = group
    caller = enclosing_function(statement)
    plain = function.node.parent.type in {"translation_unit", "declaration_list"}
    if source.of(function.node.child_by_field_name("type")) != "void" or not plain or function.node == caller:
        raise Unsupported("not a plain function that returns nothing")
    if (
        source.of(function.node).startswith("extern")
        or function.references
        or function.node.parent.type != "translation_unit"
    ):
        raise Unsupported("called from elsewhere, or by reference")
    named = [n for n in source.walk(None, "identifier") if source.of(n) == name]
    if len(named) != 2:
        raise Unsupported("it is named elsewhere")
    inside = [node for node in function.body.named_children if node.type != "comment"]
    if not inside or any(node.type != "for_statement" for node in inside):
        raise Unsupported("more than loops")
    if any(source.walk(function.body, "return_statement", "preproc_call", "lambda_expression", "goto_statement")):
        raise Unsupported("a body of another form")
    own = declared_names(source, function.body)
    parameters = {parameter for parameter, _, _ in function.parameters}
    if {target for target, _ in assignments(source, function.body)} & parameters or own & parameters:
        raise Unsupported("a parameter that changes")
    around = declared_names(source, caller) | {p for f in _of(source, caller) for p, _, _ in f.parameters}
    others = {source.of(n) for n in source.walk(function.body, "identifier")} - own - parameters
    if others & around:
        raise Unsupported("a name that means something else here")
    for (_, kind, pointer), argument in zip(function.parameters, arguments, strict=True):
        _fits(source, kind, pointer, argument)
        if identifiers(source, argument) & own:
            raise Unsupported("one name for two things")
    return function, arguments


def _of(source: Source, node: Node) -> list[Function]:
    return [function for group in functions(source).values() for function in group if function.node == node]


def _fits(source: Source, kind: str, pointer: bool, argument: Node) -> None:
    """Raises Unsupported unless the argument in the parameter's place computes the same."""
    known = aliases(source)
    kind = known.get(kind, kind).removeprefix("std::")
    nodes = list(source.walk(argument))
    if {node.type for node in nodes if node.is_named} - {
        "identifier",
        "number_literal",
        "binary_expression",
        "parenthesized_expression",
    }:
        raise Unsupported("an argument of another form")
    kinds = {declared_type(source, node).removeprefix("std::") for node in nodes if node.type == "identifier"}
    if pointer:
        fits = argument.type == "identifier" and kinds == {kind}
    elif set(kind.split()) <= INTEGERS - {"auto", "unsigned", "size_t", "uint32_t", "uint64_t", "uint16_t"}:
        operators = {
            source.of(node.child_by_field_name("operator")) for node in nodes if node.type == "binary_expression"
        }
        whole = all(set(each.split()) <= INTEGERS and each != "auto" for each in kinds)
        fits = (
            whole
            and operators <= {"*", "+"}
            and all("." not in source.of(n) for n in nodes if n.type == "number_literal")
        )
    else:
        fits = argument.type == "identifier" and kinds == {kind}
    if not fits:
        raise Unsupported("an argument of another type")


def _put(source: Source, statement: Node, function: Function, arguments: list[Node], edits: Edits) -> None:
    texts = {
        parameter: source.of(argument)
        if argument.type in {"identifier", "number_literal"}
        else f"({source.of(argument)})"
        for (parameter, _, _), argument in zip(function.parameters, arguments, strict=True)
    }
    replaced = [(n, texts[source.of(n)]) for n in source.walk(function.body, "identifier") if source.of(n) in texts]
    inside = [node for node in function.body.named_children if node.type != "preproc_call"]
    width, indent = len(source.indent(inside[0])), source.indent(statement)
    lines: list[str] = []
    for node in inside:
        first, *rest = source.render(node, replaced).split("\n")
        lines += [first, *(line[width:] if not line[:width].strip() else line for line in rest)]
    edits.replace(statement, "\n".join([lines[0], *(indent + line if line else line for line in lines[1:])]))
    start = source.data.rfind(b"\n", 0, function.node.start_byte) + 1
    end = source.data.find(b"\n", function.node.end_byte) + 1
    if source.data[start : function.node.start_byte].strip() or source.data[function.node.end_byte : end].strip():
        raise Unsupported("something else stands on the line")
    while source.data[end : end + 1] == b"\n":
        end += 1
    edits.changes.append((start, end, ""))
