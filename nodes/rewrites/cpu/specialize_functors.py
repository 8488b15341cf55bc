"""A template that is given a function object to apply is written out for it: `map(x, y, n, Silu{})` gets a `map` that calls silu_value.

What a template parameter does cannot be seen in the template, so its loop stayed as it was. The object's call operator becomes a
function of the file, which other steps look into. Only objects without a state, and templates that are called once. Changes
nothing by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from tree_sitter import Node

from nodes.rewrites.analysis.host_source import arguments, declared_names, functions, host_code
from nodes.rewrites.analysis.kernels import template_name
from nodes.rewrites.analysis.structs import structs
from nodes.rewrites.registry import rule
from nodes.rewrites.syntax.insert import free
from nodes.rewrites.syntax.source import Edits, Source, Unsupported, lifted, one_by_one
from nodes.rewrites.syntax.tree import children_of, declared_name, field_of, same


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
    parameter, argument, uses = _given_a_function(source, template, function)
    types, kind = children_of(template, "parameters"), source.of(parameter, "type")
    type_ = next(t for t in types if template_name(source, t) == kind)
    if len([n for n in source.walk(template, "type_identifier") if source.of(n) == kind]) != 2:
        raise Unsupported("another use of the parameter's type")
    applied, text = _function_of(source, argument)
    for use in uses:
        edits.replace(use, applied)
    for entry in (parameter, argument, *([type_] if len(types) > 1 else [])):
        edits.take_out(entry)
    if len(types) == 1:
        static = "" if source.of(function).startswith("static") else "static "
        edits.changes.append((template.start_byte, function.start_byte, text + static))
    else:
        edits.insert(template.start_byte, text)


def _given_a_function(source: Source, template: Node, function: Node) -> tuple[Node, Node, list[Node]]:
    """(parameter, argument, its uses) of the one that the template only applies, in its only call."""
    declarator, body = field_of(function, "declarator"), field_of(function, "body")
    name = source.of(declarator, "declarator")
    named = [n for n in source.walk(None, "identifier") if source.of(n) == name]
    call = named[-1].parent if named else None
    called = call is not None and same(field_of(call, "function"), named[-1])
    if (
        declarator.type != "function_declarator"
        or len(named) != 2
        or not called
        or len(functions(source).get(name, ())) != 1
    ):
        raise Unsupported("a function of another form, or not called once by its name")
    parameters, given = children_of(declarator, "parameters"), arguments(call)
    if len(parameters) != len(given):
        raise Unsupported("another number of arguments")
    types = {template_name(source, t) for t in children_of(template, "parameters") if t.type.startswith("type_")}
    for parameter, argument in zip(parameters, given, strict=True):
        declared = field_of(parameter, "declarator")
        name = source.of(declared_name(declared))
        uses = [n for n in source.walk(body, "identifier") if source.of(n) == name]
        applied = uses and all(same(field_of(use.parent, "function"), use) for use in uses)
        plain = declared is not None and declared.type in {"identifier", "reference_declarator"}
        if source.of(parameter, "type") in types and applied and plain and name not in declared_names(source, body):
            return parameter, argument, uses
    raise Unsupported("it is given no function")


def _function_of(source: Source, argument: Node) -> tuple[str, str]:
    """(name, text) of the function that an object without a state, `Silu{}` or `Silu()`, becomes."""
    literal = argument.type == "compound_literal_expression"
    kind, given = ("type", "value") if literal else ("function", "arguments")
    struct = structs(host_code(source)).get(source.of(argument, kind))
    if struct is None or struct.parameters or struct.members or list(struct.methods) != ["operator()"]:
        raise Unsupported("not one struct of the file with nothing but a call operator")
    if children_of(argument, given):
        raise Unsupported("an object with a state")
    method = struct.methods["operator()"]
    if source.has(method, "this"):
        raise Unsupported("an object that knows itself")
    words = "".join(f"_{c.lower()}" if c.isupper() else c for c in struct.name).lstrip("_").replace("__", "_")
    name = free(f"{words}_value", host_code(source).names())
    head = f"static inline {source.of(method, 'type')} {name}{source.of(next(source.walk(method, 'parameter_list')))}"
    return name, f"{head} {lifted(source, method, source.of(method, 'body'))}\n\n"
