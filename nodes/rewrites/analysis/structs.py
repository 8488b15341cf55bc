"""The structs of a file, their members and methods."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import Code
from nodes.rewrites.analysis.kernels import template_name
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


def read_type(code: Code, kind: Node | None) -> tuple[str, list[str]]:
    """`Name` and the texts of its arguments, of `Name<arguments...>`."""
    source = code.source
    if kind is not None and kind.type in {"template_type", "template_function"}:
        return source.of(kind, "name"), [source.of(c) for c in children_of(kind, "arguments")]
    return source.of(kind), []
