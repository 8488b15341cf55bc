"""A template that is given a function to apply is written out for it: `map(x, y, n, Silu{})` gets a `map` that calls silu_value.

What a template parameter does cannot be seen in the template, so its loop stayed as it was. The function object's call
operator, or the lambda, becomes a function of the file, which other steps look into. Only objects without a state. Changes
nothing by itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tree_sitter import Node

from nodes.rewrites.analysis.host_source import declared_names, enclosing_function, functions, is_float
from nodes.rewrites.registry import rule
from nodes.rewrites.syntax.source import Edits, Source, Unsupported


@dataclass
class _Written:
    """Functions that objects became, by the object's type; their texts in the order in which they need each other."""

    names: dict[str, str] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)


@rule(
    "cpu",
    expected="nothing by itself: later steps see what a template is asked to apply",
    normalizes=True,
)
def rewrite(source: Source, facts: object) -> str | None:
    text = source.text
    for _ in range(64):
        current = Source(text, source.language)
        new = _next(current)
        if new is None:
            break
        text = new
    return text if text != source.text else None


def _next(source: Source) -> str | None:
    for template in source.walk(None, "template_declaration"):
        function = next((n for n in template.named_children if n.type == "function_definition"), None)
        if (
            function is None
            or template.has_error
            or template.parent.type not in {"translation_unit", "declaration_list"}
        ):
            continue
        for call in source.walk(None, "call_expression"):
            edits = Edits(source)
            try:
                _instance(source, template, function, call, edits)
                return edits.apply()
            except Unsupported:
                continue
    return None


def _instance(source: Source, template: Node, function: Node, call: Node, edits: Edits) -> None:
    declarator = function.child_by_field_name("declarator")
    if declarator.type != "function_declarator" or declarator.child_by_field_name("declarator").type != "identifier":
        raise Unsupported("a function of another form")
    name = source.of(declarator.child_by_field_name("declarator"))
    named = [n for n in source.walk(None, "identifier") if source.of(n) == name]
    own = [n for n in named if n.parent.type == "call_expression" and n.parent.child_by_field_name("function") == n]
    if call not in [n.parent for n in own] or len(functions(source).get(name, ())) != 1:
        raise Unsupported("not a call of it")
    parameters = [n for n in declarator.child_by_field_name("parameters").named_children if n.type != "comment"]
    arguments = [n for n in call.child_by_field_name("arguments").named_children if n.type != "comment"]
    types = {
        source.of(n.named_children[0]) for n in source.walk(template, "type_parameter_declaration") if n.named_children
    }
    if len(parameters) != len(arguments) or any(n.type != "parameter_declaration" for n in parameters):
        raise Unsupported("another number of arguments")
    for parameter, argument in zip(parameters, arguments, strict=True):
        kind = source.of(parameter.child_by_field_name("type"))
        if kind in types and _applied_only(source, function, parameter):
            written = _Written()
            value = _function_of(source, argument, name, written)
            _write(source, template, function, (parameter, argument), (value, written), len(named) == 2, edits)
            return
    raise Unsupported("it is given no function")


def _name(source: Source, parameter: Node) -> str:
    return source.of(next(source.walk(parameter.child_by_field_name("declarator"), "identifier")))


def _applied_only(source: Source, function: Node, parameter: Node) -> bool:
    """Whether the body does nothing with a parameter but call it."""
    declarator = parameter.child_by_field_name("declarator")
    if declarator is None or declarator.type not in {"identifier", "reference_declarator"}:
        return False
    name, body = _name(source, parameter), function.child_by_field_name("body")
    uses = [n for n in source.walk(body, "identifier") if source.of(n) == name]
    calls = [n for n in uses if n.parent.type == "call_expression" and n.parent.child_by_field_name("function") == n]
    return bool(uses) and len(uses) == len(calls) and name not in declared_names(source, body)


def _free(source: Source, name: str) -> str:
    taken = {source.of(n) for n in source.walk(None, "identifier", "type_identifier", "field_identifier")}
    return next(n for n in (name, *(f"{name}_{number}" for number in range(2, 99))) if n not in taken)


def _function_of(source: Source, argument: Node, template: str, written: _Written) -> str:
    """The name of the function that an object without a state, or a lambda, becomes."""
    if argument.type == "lambda_expression":
        return _of_lambda(source, argument, template, written)
    kind = argument.child_by_field_name("type" if argument.type == "compound_literal_expression" else "function")
    inside = argument.child_by_field_name("value" if argument.type == "compound_literal_expression" else "arguments")
    if (
        kind is None
        or inside is None
        or inside.named_children
        or argument.type not in {"compound_literal_expression", "call_expression"}
    ):
        raise Unsupported("no object without a state")
    return _of_struct(source, source.of(kind), written)


def _of_struct(source: Source, kind: str, written: _Written) -> str:
    if kind in written.names:
        return written.names[kind]
    structs = [
        n for n in source.walk(None, "struct_specifier", "class_specifier")
        if source.of(n.child_by_field_name("name")) == kind and n.child_by_field_name("body") is not None
    ]  # fmt: skip
    if len(structs) != 1 or len(written.names) > 8 or structs[0].parent.type == "template_declaration":
        raise Unsupported("not one struct of the file")
    if any(child.type == "base_class_clause" for child in structs[0].children):
        raise Unsupported("it inherits")
    members: dict[str, str] = {}
    operators: list[Node] = []
    for node in structs[0].child_by_field_name("body").named_children:
        if node.type == "field_declaration" and len(node.children_by_field_name("declarator")) == 1:
            members[source.of(node.child_by_field_name("declarator"))] = source.of(node.child_by_field_name("type"))
        elif node.type == "function_definition":
            operators.append(node)
        elif node.type not in {"comment", "access_specifier"}:
            raise Unsupported("a member of another kind")
    if len(operators) != 1 or not source.of(operators[0].child_by_field_name("declarator")).startswith("operator()"):
        raise Unsupported("more than a call operator")
    body = operators[0].child_by_field_name("body")
    called = {
        n: _of_struct(source, members[source.of(n)], written)
        for n in source.walk(body, "identifier")
        if source.of(n) in members
    }
    if any(source.of(n) == "this" for n in source.walk(body)) or any(source.walk(body, "this")):
        raise Unsupported("it names itself")
    name = _free(source, f"{_snake(kind)}_value")
    _emit(
        source, operators[0], source.of(operators[0].child_by_field_name("type")), name, list(called.items()), written
    )
    written.names[kind] = name
    return name


def _snake(name: str) -> str:
    words = "".join(f"_{c.lower()}" if c.isupper() else c for c in name)
    return words.lstrip("_").replace("__", "_")


def _of_lambda(source: Source, node: Node, template: str, written: _Written) -> str:
    captures, body = node.child_by_field_name("captures"), node.child_by_field_name("body")
    caller, declarator = enclosing_function(node), node.child_by_field_name("declarator")
    if caller is None or declarator is None or any(source.walk(captures, "lambda_capture_initializer")):
        raise Unsupported("a lambda of another form")
    around = declared_names(source, caller) | {
        source.of(n) for p in source.walk(caller.child_by_field_name("declarator"), "parameter_declaration")
        for n in source.walk(p, "identifier")
    }  # fmt: skip
    own = declared_names(source, body) | {source.of(n) for n in source.walk(declarator, "identifier")}
    if ({source.of(n) for n in source.walk(body, "identifier")} - own) & around or source.of(captures).strip("[]&= "):
        raise Unsupported("it needs what is around it")
    kinds = {source.of(p.child_by_field_name("type")) for p in source.walk(declarator, "parameter_declaration")}
    if "auto" in kinds or caller.parent.type == "template_declaration" or any(source.walk(body, "lambda_expression")):
        raise Unsupported("a parameter of any type")
    trailing = next(source.walk(declarator, "trailing_return_type"), None)
    returns = source.of(trailing).removeprefix("->").strip() if trailing is not None else "auto"
    if trailing is None and kinds == {"float"}:
        returns = "float" if _floats(source, node) else returns
    name = _free(source, f"{template}_value")
    _emit(source, node, returns, name, [], written)
    return name


def _floats(source: Source, node: Node) -> bool:
    """Whether every value that a lambda of floats returns is a float."""
    parameters = source.of(next(source.walk(node.child_by_field_name("declarator"), "parameter_list")))
    includes = "".join(f"{source.of(n)}\n" for n in source.walk(None, "preproc_include"))
    parsed = Source(f"{includes}\nfloat f{parameters} {source.of(node.child_by_field_name('body'))}", "cpu")
    values = [n.named_children for n in parsed.walk(None, "return_statement")]
    return bool(values) and all(len(v) == 1 and is_float(parsed, v[0]) for v in values)


def _emit(
    source: Source, node: Node, returns: str, name: str, calls: list[tuple[Node, str]], written: _Written
) -> None:
    body, declarator = node.child_by_field_name("body"), node.child_by_field_name("declarator")
    parameters = source.of(next(source.walk(declarator, "parameter_list")))
    width = len(source.indent(node))
    lines = source.render(body, calls).split("\n")
    text = "\n".join([lines[0], *(line[width:] if not line[:width].strip() else line for line in lines[1:])])
    written.texts.append(f"static inline {returns} {name}{parameters} {text}\n\n")


def _write(
    source: Source,
    template: Node,
    function: Node,
    places: tuple[Node, Node],
    value: tuple[str, _Written],
    alone: bool,
    edits: Edits,
) -> None:
    """The template without that parameter, in its place if this is its only call, or beside it under a name of its own."""
    parameter, argument = places
    applied, written = value
    name = source.of(function.child_by_field_name("declarator").child_by_field_name("declarator"))
    kind, called = source.of(parameter.child_by_field_name("type")), _name(source, parameter)
    changes = [
        (n, applied) for n in source.walk(function.child_by_field_name("body"), "identifier") if source.of(n) == called
    ]
    gone = [parameter]
    types = next(n for n in template.named_children if n.type == "template_parameter_list")
    uses = [n for n in source.walk(template, "type_identifier") if source.of(n) == kind]
    if len(uses) == 2:
        gone.append(next(n for n in types.named_children if kind in {source.of(c) for c in n.named_children}))
    elif len(uses) > 2:
        raise Unsupported("another use of the parameter's type")
    fresh = name if alone else _free(source, f"{name}_{applied}")
    if not alone:
        changes.append((function.child_by_field_name("declarator").child_by_field_name("declarator"), fresh))
        edits.replace(next(n for n in source.walk(argument.parent.parent, "identifier")), fresh)
    start, text = template.start_byte, Edits(source.reparsed(source.of(template)))
    for node, new in changes:
        text.changes.append((node.start_byte - start, node.end_byte - start, new))
    for node in gone:
        first, last = _with_comma(node)
        text.changes.append((first - start, last - start, ""))
    if len(gone) == 2 and len(types.named_children) == 1:
        text.changes = [c for c in text.changes if c[0] >= function.start_byte - start]
        text.changes.append(
            (0, function.start_byte - start, "" if source.of(function).startswith("static") else "static ")
        )
    whole = "".join(written.texts) + text.apply()
    if alone:
        edits.replace(template, whole)
    else:
        edits.insert(template.start_byte, f"{whole}\n\n")
    first, last = _with_comma(argument)
    edits.changes.append((first, last, ""))


def _with_comma(node: Node) -> tuple[int, int]:
    """The bytes of an entry of a list and of one comma beside it."""
    before, after = node.prev_sibling, node.next_sibling
    if before is not None and before.type == ",":
        return before.start_byte, node.end_byte
    if after is not None and after.type == ",":
        return node.start_byte, after.next_sibling.start_byte
    return node.start_byte, node.end_byte
