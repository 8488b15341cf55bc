"""A template that is given a function object to apply is written out for it: `map(x, y, n, Silu{})` gets a `map` that calls silu_value.

What a template parameter does cannot be seen in the template, so its loop stayed as it was. The object's call operator becomes a
function of the file, which other steps look into. Only objects without a state, and templates that are called once. Changes
nothing by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from tree_sitter import Node

from nodes.rewrites.analysis.host_source import arguments, declared_names, fields, functions
from nodes.rewrites.registry import rule
from nodes.rewrites.syntax.insert import free
from nodes.rewrites.syntax.source import Edits, Source, Unsupported, lifted, one_by_one
from nodes.rewrites.syntax.tree import children_of, declared_name


@rule("cpu", expected="nothing by itself: later steps see what a template is asked to apply", normalizes=True)
def rewrite(source: Source, facts: object) -> str | None:
    return one_by_one(source, _write_out, _templates, 64)


def _templates(source: Source) -> Iterator[tuple[Source, Node, Node]]:
    for template in source.walk(None, "template_declaration"):
        function = next((n for n in template.named_children if n.type == "function_definition"), None)
        if function is not None and not template.has_error and template.parent.type == "translation_unit":
            yield source, template, function


def _write_out(edits: Edits, source: Source, template: Node, function: Node) -> None:
    """The template without the parameter that it applies, in its own place."""
    parameter, argument = _given_a_function(source, template, function)
    types = next(n for n in template.named_children if n.type == "template_parameter_list")
    kind = source.of(parameter, "type")
    type_ = next((n for n in types.named_children if kind in {source.of(c) for c in n.named_children}), None)
    if len([n for n in source.walk(template, "type_identifier") if source.of(n) == kind]) != 2 or type_ is None:
        raise Unsupported("another use of the parameter's type")
    applied, text = _function_of(source, argument)
    name = source.of(declared_name(parameter.child_by_field_name("declarator")))
    for use in source.walk(function.child_by_field_name("body"), "identifier"):
        if source.of(use) == name:
            edits.replace(use, applied)
    for entry in (parameter, argument, *([type_] if len(types.named_children) > 1 else [])):
        edits.changes.append((*_with_comma(entry), ""))
    if len(types.named_children) == 1:
        static = "" if source.of(function).startswith("static") else "static "
        edits.changes.append((template.start_byte, function.start_byte, text + static))
    else:
        edits.insert(template.start_byte, text)


def _given_a_function(source: Source, template: Node, function: Node) -> tuple[Node, Node]:
    """(parameter, argument) of the one that the template only applies, in its only call."""
    declarator, body = fields(function, "declarator", "body")
    inner = declarator.child_by_field_name("declarator")
    named = [n for n in source.walk(None, "identifier") if source.of(n) == source.of(inner)]
    if (
        declarator.type != "function_declarator"
        or len(named) != 2
        or len(functions(source).get(source.of(inner), ())) != 1
    ):
        raise Unsupported("a function of another form, or not called once")
    call = named[1].parent
    parameters = children_of(declarator, "parameters")
    if call.type != "call_expression" or call.child_by_field_name("function") != named[1]:
        raise Unsupported("not called by its name")
    types = {
        source.of(n.named_children[0]) for n in source.walk(template, "type_parameter_declaration") if n.named_children
    }
    if len(parameters) != len(arguments(call)):
        raise Unsupported("another number of arguments")
    for parameter, argument in zip(parameters, arguments(call), strict=True):
        declared = parameter.child_by_field_name("declarator")
        if source.of(parameter, "type") in types and declared is not None:
            name = source.of(declared_name(declared))
            uses = [n for n in source.walk(body, "identifier") if source.of(n) == name]
            applied = all(
                n.parent.type == "call_expression" and n.parent.child_by_field_name("function") == n for n in uses
            )
            plain = declared.type in {"identifier", "reference_declarator"} and name not in declared_names(source, body)
            if uses and applied and plain:
                return parameter, argument
    raise Unsupported("it is given no function")


def _function_of(source: Source, argument: Node) -> tuple[str, str]:
    """(name, text) of the function that an object without a state, `Silu{}` or `Silu()`, becomes."""
    literal = argument.type == "compound_literal_expression"
    if not literal and argument.type != "call_expression":
        raise Unsupported("no object")
    kind, given = fields(argument, *(("type", "value") if literal else ("function", "arguments")))
    structs = [
        n for n in source.walk(None, "struct_specifier", "class_specifier")
        if source.of(n, "name") == source.of(kind) and n.child_by_field_name("body") is not None
    ]  # fmt: skip
    if len(structs) != 1 or given.named_children or structs[0].parent.type == "template_declaration":
        raise Unsupported("not one struct of the file, without a state")
    members = structs[0].child_by_field_name("body").named_children
    members = [n for n in members if n.type not in {"comment", "access_specifier"}]
    if (
        len(members) != 1
        or members[0].type != "function_definition"
        or any(source.walk(structs[0], "this", "base_class_clause"))
    ):
        raise Unsupported("more than a call operator")
    returns, declarator, body = fields(members[0], "type", "declarator", "body")
    if not source.of(declarator).startswith("operator()"):
        raise Unsupported("more than a call operator")
    words = "".join(f"_{c.lower()}" if c.isupper() else c for c in source.of(kind)).lstrip("_").replace("__", "_")
    taken = {source.of(n) for n in source.walk(None, "identifier", "type_identifier", "field_identifier")}
    name = free(f"{words}_value", taken)
    parameters = source.of(next(source.walk(declarator, "parameter_list")))
    return (
        name,
        f"static inline {source.of(returns)} {name}{parameters} {lifted(source, members[0], source.of(body))}\n\n",
    )


def _with_comma(node: Node) -> tuple[int, int]:
    """The bytes of an entry of a list and of one comma beside it."""
    before, after = node.prev_sibling, node.next_sibling
    if before is not None and before.type == ",":
        return before.start_byte, node.end_byte
    if after is not None and after.type == ",":
        return node.start_byte, after.next_sibling.start_byte
    return node.start_byte, node.end_byte
