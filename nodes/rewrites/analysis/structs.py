"""The structs of a file: what their members are, and what an object of one was made from."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import Code, Definition
from nodes.rewrites.analysis.kernels import template_name
from nodes.rewrites.syntax.insert import substituted
from nodes.rewrites.syntax.source import Source
from nodes.rewrites.syntax.tree import children_of, field_of, template_of

_UNREAD = ("access_specifier", "base_class_clause", "virtual", "static_assert_declaration")


@dataclass(frozen=True)
class Struct:
    """One that is defined once, whose members all may name, and that is copied by copying them."""

    name: str
    node: Node
    parameters: tuple[str, ...]
    """Of its template."""
    members: dict[str, Node] = field(default_factory=dict)
    """Declarators by name, in order; no arrays and references among them."""
    methods: dict[str, Node] = field(default_factory=dict)
    """`operator()` among them; none of them is a template or has a namesake. The constructor is called as the struct is."""

    def types(self, given: list[str]) -> dict[str, str] | None:
        """What its template's parameters are in `Name<given...>`; None where an argument is left out."""
        return dict(zip(self.parameters, given, strict=True)) if len(given) == len(self.parameters) else None


@lru_cache(maxsize=16)
def structs(code: Code) -> dict[str, Struct]:
    """Those of the file, by name."""
    source, found = code.source, dict[str, Struct | None]()
    for node in source.walk(None, "struct_specifier"):
        name = source.of(node, "name").partition("<")[0]
        if field_of(node, "body") is None:
            continue
        template = template_of(node)
        top = (template or node).parent
        outside = top is not None and top.type in {"translation_unit", "declaration_list"}
        struct = Struct(name, node, tuple(template_name(source, p) for p in children_of(template, "parameters")))
        parts = [*node.children, *node.child_by_field_name("body").children]
        plain = outside and not node.has_error and not any(part.type in _UNREAD for part in parts)
        once = name not in found and "<" not in source.of(node, "name")
        found[name] = struct if plain and once and _read(source, struct) else None
    return {name: struct for name, struct in found.items() if struct is not None}


def _read(source: Source, struct: Struct) -> bool:
    """Fills in what a struct has; whether that is all understood."""
    for inner in children_of(struct.node, "body"):
        if inner.type == "field_declaration" and not source.says(inner, "static", "mutable"):
            held = {declared_member(d): d for d in inner.children_by_field_name("declarator")}
            if None in held:
                return False
            struct.members.update((source.of(member), declarator) for member, declarator in held.items())
            continue
        declarator = next(source.walk(inner, "function_declarator"), None)
        name = source.of(declarator, "declarator").replace(" ", "")
        special = name.startswith("~") or name == "operator="
        if inner.type != "function_definition" or special or name in struct.methods:
            return False
        struct.methods[name] = inner
    return True


def declared_member(declarator: Node) -> Node | None:
    """The name in `*x` or `x`; None for arrays, references and functions."""
    if declarator.type == "pointer_declarator":
        declarator = field_of(declarator, "declarator") or declarator
    return declarator if declarator.type == "field_identifier" else None


@dataclass(frozen=True)
class Object:
    """A variable or parameter that is a struct of the file."""

    struct: Struct
    types: dict[str, str]
    """What the struct's template parameters are."""
    made: dict[str, str]
    """Members by what was written for them, where that is a number or a variable which keeps its value."""


def object_of(code: Code, known: dict[str, Struct], found: Definition | None) -> Object | None:
    """What a definition says that its name is; None for anything but an object of a known struct."""
    if found is None or found.kind not in {"local", "parameter"} or found.declarator is None:
        return None
    kind, declarator = field_of(found.declaration, "type"), found.declarator
    if declarator.type == "reference_declarator" and found.kind == "local":
        return None
    if any(c.type in {"pointer_declarator", "array_declarator"} for c in (declarator, *declarator.children)):
        return None
    name, given = read_type(code, kind)
    struct = known.get(name)
    types = struct.types(given) if struct is not None else None
    return Object(struct, types, _made(code, struct, types, found)) if types is not None else None


def called_object(code: Code, call: Node) -> Definition | None:
    """The variable or parameter that is called, or whose method is; None for any other call."""
    function = field_of(call, "function")
    if function is not None and function.type == "field_expression" and function.children[1].type == ".":
        function = field_of(function, "argument")
    found = code.variable(function)
    known = found is not None and found.kind in {"local", "parameter"} and found.name not in code.words_of_macros
    return found if known else None


def is_made(code: Code, argument: Node) -> bool:
    """Whether an argument is a struct of the file that is made where it stands, `Max<float>()`."""
    made = argument.type in {"call_expression", "compound_literal_expression"}
    return made and read_type(code, passed_type(code, argument))[0] in structs(code)


def read_type(code: Code, kind: Node | None) -> tuple[str, list[str]]:
    """`Name` and the texts of its arguments, of `Name<arguments...>`."""
    source = code.source
    if kind is not None and kind.type in {"template_type", "template_function"}:
        return source.of(kind, "name"), [source.of(c) for c in children_of(kind, "arguments")]
    return source.of(kind), []


def passed_type(code: Code, argument: Node) -> Node | None:
    """The type that an argument is written or declared to have, None where that is to be deduced."""
    if argument.type in {"call_expression", "compound_literal_expression"}:
        return field_of(argument, "function") or field_of(argument, "type")
    found = code.variable(argument)
    if found is None or found.kind not in {"local", "parameter"}:
        return None
    kind = field_of(found.declaration, "type")
    return None if kind is not None and kind.type == "placeholder_type_specifier" else kind


def _made(code: Code, struct: Struct, types: dict[str, str], found: Definition) -> dict[str, str]:
    """What a local variable's members were set to by its constructor, and are for ever."""
    source, methods = code.source, dict(struct.methods)
    constructor = methods.pop(struct.name, None)
    constant = all(source.says(field_of(method, "declarator"), "const") for method in methods.values())
    if found.kind != "local" or constructor is None or children_of(constructor, "body") or not constant:
        return {}
    given, made = dict[str, tuple[str, Node]](), dict[str, str]()
    taken = children_of(constructor, "declarator", "parameters")
    for parameter, node in zip(taken, _passed(code, struct, found), strict=False):
        name = source.name(parameter)
        given[name] = source.of(parameter, "type"), node
    for one in children_of(next(source.walk(constructor, "field_initializer_list"), None)):
        member, value = source.of(one.named_children[0]), source.of(one.named_children[-1])[1:-1]
        kind, node = given.get(value, ("", constructor))
        plain = struct.members[member].type == "field_identifier"
        if plain and source.of(struct.members[member].parent, "type") == kind:
            made |= {member: source.of(node)} if _keeps(code, node, substituted(kind, types)) else {}
    return {} if code.mutated(found) else made


def _passed(code: Code, struct: Struct, found: Definition) -> list[Node]:
    """What stands in the parentheses behind the name, or behind the type's name on the right."""
    declarator, value = found.declarator, found.value
    if declarator.type == "function_declarator":  # `Name object(a, b);` reads as a function
        return [field_of(p, "type") or p for p in children_of(declarator, "parameters")]
    named = read_type(code, field_of(value, "function"))[0] == struct.name
    return children_of(value, "arguments") if named else []


def _keeps(code: Code, node: Node, kind: str) -> bool:
    """Whether an argument is a variable of this type that keeps its value."""
    found = code.definition(node) if node.type in {"identifier", "type_identifier"} else None
    if found is None or found.kind not in {"local", "parameter"} or code.mutated(found):
        return False
    own = found.form.type == "identifier" and not code.source.says(found.declaration, "__shared__")
    return own and code.source.of(found.declaration, "type") == kind
