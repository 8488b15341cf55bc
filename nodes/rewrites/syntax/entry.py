"""Entry points of a candidate: which they are, what their parameters are called, how large a launch is in their words."""

from __future__ import annotations

from tree_sitter import Node

from harness.bands import Measure
from kernels.spec import Spec
from nodes.rewrites.syntax.source import Source, Unsupported


def has_c_linkage(node: Node) -> bool:
    here: Node | None = node
    while here is not None and here.type != "linkage_specification":
        here = here.parent
    return here is not None


def parameters(source: Source, definition: Node) -> list[str]:
    """Names of a function's parameters, in order. Raises Unsupported where one has none."""
    declarator = definition.child_by_field_name("declarator")
    listed = declarator.child_by_field_name("parameters") if declarator is not None else None
    names = []
    for parameter in listed.named_children if listed is not None else []:
        here = parameter.child_by_field_name("declarator")
        while here is not None and here.type != "identifier":
            here = here.child_by_field_name("declarator") or next(iter(reversed(here.named_children)), None)
        if here is None:
            raise Unsupported("an entry point with a parameter that has no name")
        names.append(source.of(here))
    return names


def measured(source: Source, spec: Spec, definition: Node, measure: Measure) -> str:
    """The measure as an expression within an entry point. Raises Unsupported where it lacks one of the sizes."""
    names = dict(zip([a.name for a in spec.arguments], parameters(source, definition), strict=False))
    if not {*measure.sizes, *([measure.tensor] if measure.tensor else [])} <= names.keys():
        raise Unsupported("an entry point that lacks a size")
    return measure.words(names)
