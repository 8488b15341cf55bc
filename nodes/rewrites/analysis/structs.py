"""The structs of a file: what their members are, and what an object of one was made from."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import Code, Definition
from nodes.rewrites.analysis.kernels import template_name
from nodes.rewrites.syntax.source import Source, Unsupported
from nodes.rewrites.syntax.tree import children_of, declared_name, field_of, same

_UNREAD = ("access_specifier", "base_class_clause", "virtual", "static_assert_declaration")


@dataclass(frozen=True)
class Struct:
    """One that is defined once, whose members all may name."""

    name: str
    parameters: tuple[str, ...]
    """Of its template."""
    members: dict[str, Node] = field(default_factory=dict)
    """Declarators by name, in order; no arrays and references among them."""
    methods: dict[str, Node] = field(default_factory=dict)
    """`operator()` among them; none that has a namesake. Constructors are called as the struct is."""

    def named(self, given: list[str]) -> dict[str, str]:
        """Its template's parameters by what they are in `Name<given...>`. Raises Unsupported where some are left out."""
        if len(given) != len(self.parameters):
            raise Unsupported(f"{self.name} with other template arguments")
        return dict(zip(self.parameters, given, strict=True))


def structs(code: Code) -> dict[str, Struct]:
    """Those of the file's outer level that nothing is derived from and that hold no member twice, by name."""
    source, found, twice = code.source, dict[str, Struct](), set[str]()
    for node in source.walk(None, "struct_specifier"):
        body, outer = field_of(node, "body"), node.parent
        name = source.of(node, "name").partition("<")[0]
        if body is None:
            continue
        if name in found or "<" in source.of(node, "name"):
            twice.add(name)
        template = outer if outer is not None and outer.type == "template_declaration" else None
        top = template.parent if template is not None else outer
        if top is None or top.type not in {"translation_unit", "declaration_list"} or node.has_error:
            continue
        if any(c.type in _UNREAD for c in [*node.children, *body.children]):
            continue
        parameters = tuple(template_name(source, p) for p in children_of(template, "parameters"))
        made = found[name] = Struct(name, parameters)
        called: list[str] = []
        for inner in children_of(body):
            if inner.type == "field_declaration" and not source.says(inner, "static"):
                held = {declared_member(d): d for d in inner.children_by_field_name("declarator")}
                if None not in held:
                    made.members.update((source.of(member), declarator) for member, declarator in held.items())
                    continue
            if inner.type != "function_definition":
                twice.add(name)  # an array, a type of its own, a template
                break
            declarator = field_of(inner, "declarator")
            while declarator is not None and declarator.type in {"pointer_declarator", "reference_declarator"}:
                declarator = field_of(declarator, "declarator") or declarator.named_children[-1]
            method = source.of(declarator, "declarator").replace(" ", "")
            called.append(method)
            made.methods[method] = inner
        for method in {m for m in called if called.count(m) > 1}:
            del made.methods[method]
    return {name: struct for name, struct in found.items() if name not in twice}


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
    read = read_type(code, kind)
    struct = known.get(read[0])
    if struct is None:
        return None
    try:
        types = struct.named(read[1])
    except Unsupported:
        return None
    return Object(struct, types, _made(code, struct, found))


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
    if kind is not None and kind.type == "placeholder_type_specifier":
        return passed_type(code, found.value) if found.value is not None and found.value.type != "identifier" else None
    return kind


def substituted(text: str, names: dict[str, str]) -> str:
    """The text with whole words replaced."""
    return re.sub(r"[A-Za-z_]\w*", lambda word: names.get(word[0], word[0]), text)


def _made(code: Code, struct: Struct, found: Definition) -> dict[str, str]:
    """What a local variable's members were set to where it was declared, and are for ever."""
    source, constructor = code.source, struct.methods.get(struct.name)
    around = found.declaration.parent
    if found.kind != "local" or around is None or code.mutated(found):
        return {}
    for use in code.uses(found, around):
        owner, member = use.parent, source.of(use.parent, "field") if use.parent is not None else ""
        calls = owner is not None and owner.type == "call_expression"
        method = struct.methods.get("operator()" if calls else member)
        handed_on = owner is None or (not calls and owner.type != "field_expression") or owner.parent.type == "argument_list"
        if not same(use, declared_name(found.declarator)) and (handed_on and not calls or not _changes_nothing(source, method)):
            return {}
    passed = _passed(code, struct, found)
    if constructor is None:
        given = dict(zip(struct.members, passed, strict=False))
    else:
        names = [source.of(declared_name(field_of(p, "declarator")))
                 for p in children_of(constructor, "declarator", "parameters")]  # fmt: skip
        by_name = dict(zip(names, passed, strict=False))
        initialisers = next(source.walk(constructor, "field_initializer_list"), None)
        pairs = ((i.named_children[0], children_of(i.named_children[-1])) for i in children_of(initialisers))
        given = {source.of(m): by_name[source.of(v[0])] for m, v in pairs if len(v) == 1 and source.of(v[0]) in by_name}
    return {member: source.of(node) for member, node in given.items() if _keeps(code, node)}


def _changes_nothing(source: Source, method: Node | None) -> bool:
    """Whether a use is no method, or one that is const."""
    declarator = field_of(method, "declarator")
    return method is None or any(source.of(c) == "const" for c in children_of(declarator) if c.type == "type_qualifier")


def _passed(code: Code, struct: Struct, found: Definition) -> list[Node]:
    """What stands in the parentheses or braces behind the name, or behind the type's name on the right."""
    declarator, value = found.declarator, found.value
    if declarator is not None and declarator.type == "function_declarator":  # `Name object(a, b);` reads as a function
        return [field_of(p, "type") or p for p in children_of(declarator, "parameters")]
    if value is not None and value.type in {"argument_list", "initializer_list"}:
        return children_of(value)
    called = field_of(value, "function") or field_of(value, "type")
    if called is not None and read_type(code, called)[0] == struct.name:
        return children_of(field_of(value, "arguments") or field_of(value, "value"))
    return []


def _keeps(code: Code, node: Node) -> bool:
    if node.type == "number_literal":
        return True
    found = code.definition(node) if node.type in {"identifier", "type_identifier"} else None
    return found is not None and found.kind in {"local", "parameter"} and not code.mutated(found)
