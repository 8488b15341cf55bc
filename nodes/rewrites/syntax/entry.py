"""Entry points of a candidate: which they are, what their parameters are called, how large a launch is in their words."""

from __future__ import annotations

from tree_sitter import Node

from kernels.spec import Spec
from nodes.rewrites.syntax.source import Source, Unsupported
from nodes.rewrites.syntax.tree import children_of, enclosing


def has_c_linkage(node: Node) -> bool:
    return enclosing(node, "linkage_specification") is not None


def parameters(source: Source, definition: Node) -> list[str]:
    """Names of a function's parameters, in order. Raises Unsupported where one has none."""
    listed = children_of(definition, "declarator", "parameters")
    names = [source.name(parameter) for parameter in listed]
    if not all(names):
        raise Unsupported("an entry point with a parameter that has no name")
    return names


def named(source: Source, spec: Spec, definition: Node, wanted: set[str]) -> dict[str, str]:
    """What an entry point calls the spec's arguments. Raises Unsupported where it lacks one of those that are wanted."""
    names = dict(zip([a.name for a in spec.arguments], parameters(source, definition), strict=False))
    if not wanted <= names.keys():
        raise Unsupported("an entry point that lacks a size")
    return names
