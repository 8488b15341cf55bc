"""New functions and headers in a CUDA source, once each, and what is left unused without its host variables."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import Code
from nodes.rewrites.prelude import needs_of, text_of
from nodes.rewrites.syntax.insert import behind_includes, include
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Edits, Source, Unsupported, inside
from nodes.rewrites.syntax.tree import declared_name, enclosing, field_of, same, template_of


def require(edits: Edits, code: Code, *files: str) -> None:
    """Bring, of files of prelude/, named without their ending, those of which the changes name something, and what these build on."""
    for file in files:
        if any(defined(text_of(file)) & set(re.findall(r"\w+", text)) for _, _, text in edits.changes):
            _require(edits, code, file)


def _require(edits: Edits, code: Code, file: str) -> int:
    """Brings a file and says from which byte on it is there."""
    headers, files = needs_of(file)
    at = bring(edits, code, "", headers)
    return bring(edits, code, text_of(file), at=max([at, *(_require(edits, code, needed) for needed in files)]))


def bring(edits: Edits, code: Code, text: str, includes: tuple[str, ...] = (), at: int = 0) -> int:
    """Put definitions behind the includes, or at a byte, unless they are there, and say from which byte on they are; nothing where
    nothing changes. Raises Unsupported where their names mean something else."""
    source, at = edits.source, at or behind_includes(edits.source)
    if not edits.changes:
        return at
    for header in includes:
        include(source, edits, header)
    if text and text in source.text:
        return source.data.index(text.encode()) + len(text.encode())
    if any(text in change[2] for change in edits.changes):
        return at
    if taken := sorted(defined(text) & code.names()):
        raise Unsupported(f"the source already has a {', '.join(taken)}")
    edits.insert(at, "\n" + text)
    return at


@cache
def defined(text: str) -> frozenset[str]:
    """Names that definitions at the outer level of a text have: functions, structs, macros, variables."""
    source, found, stack = Source(text, "cuda"), set[str](), []
    stack.append(source.root)
    while stack:
        node = stack.pop()
        if node.type in {"translation_unit", "linkage_specification", "declaration_list", "template_declaration"}:
            stack += node.named_children
        elif node.type in {"preproc_def", "struct_specifier"}:
            found.add(source.of(node, "name"))
        elif node.type == "function_definition" or source.has(node, "init_declarator"):
            found.add(source.name(node))
    return frozenset(found)


def without_unused(before: Code, text: str) -> str:
    """The text without the host variables that shaped a launch before and that nothing reads any more; itself where it is the same."""
    if text == before.source.text:
        return text
    names = set()
    for launch in before.launches:
        for node in launch.config_nodes[:3]:
            names |= {before.source.of(n) for n in before.source.walk(node, "identifier")}
    return drop_unused(before.source, text, names)


def drop_unused(source: Source, text: str, names: set[str]) -> str:
    """The text without the functions, types and local variables of these names that nothing reads any more, nor of what only these
    variables used."""
    while (node := next(_leftovers(here := source.reparsed(text), names), None)) is not None:
        edits = Edits(here)
        edits.remove(node, comment=True, blank=node.type in {"function_definition", "template_declaration"})
        text = edits.apply()
    names = set(names)
    for _ in range(64):
        here = source.reparsed(text)
        dropped, edits = _unused(here, names), Edits(here)
        if dropped is None:
            break
        names |= {here.of(n) for n in here.walk(dropped, "identifier")}
        if dropped.type == "declaration":
            edits.remove(dropped)
        else:
            edits.take_out(dropped)
        text = edits.apply()
    return text


def _leftovers(source: Source, names: set[str]) -> Iterator[Node]:
    """Definitions of functions and types, and what is declared in shared memory of such types, that nothing mentions."""
    words = ("identifier", "type_identifier", "namespace_identifier")
    said = Counter(source.of(node) for node in source.walk(None, *words))
    said.update(re.findall(r"\w+", " ".join(source.of(node) for node in source.walk(None, "preproc_arg"))))
    for node in source.walk(None, "function_definition"):
        name, spaces = declared_name(field_of(node, "declarator")), {c.type for c in node.children}
        device = "__device__" in spaces and "__global__" not in spaces
        if name is not None and device and source.of(name) in names and said[source.of(name)] == 1:
            yield template_of(node) or node
    for node in source.walk(None, "declaration", "alias_declaration", "type_definition"):
        around = enclosing(node, "function_definition")
        name = field_of(node, "name") or declared_name(field_of(node, "declarator"))
        if node.type == "declaration":
            alone = len(node.children_by_field_name("declarator")) == 1
            shared = source.says(node, "__shared__") and not source.says(node, "extern")
            slots = match(source, node, "$T* $pointer = $memory;", "$T* $pointer = &$memory[$at];") is not None
            slots = slots and not source.has(node, "call_expression")
            name = name if alone and (shared or slots) else None
        if around is None or name is None or source.of(name) not in names:
            continue
        if not any(source.of(n) == source.of(name) and not inside(n, node) for n in source.walk(around, *words)):
            yield node


def _unused(source: Source, names: set[str]) -> Node | None:
    """The last local declaration, or one of several declarators, of names that nothing else mentions."""
    mentioned: dict[str, list[Node]] = {}
    for node in source.walk(None, "identifier", "type_identifier"):
        mentioned.setdefault(source.of(node), []).append(node)
    for declaration in reversed(list(source.walk(None, "declaration"))):
        block, declarators = declaration.parent, declaration.children_by_field_name("declarator")
        changes = source.has(declaration, "assignment_expression", "update_expression")
        for declarator in declarators if block.type == "compound_statement" else ():
            name, value = field_of(declarator, "declarator"), field_of(declarator, "value")
            if declarator.type not in {"init_declarator", "function_declarator"} or source.of(name) not in names:
                continue
            if changes and not (value is not None and value.type == "lambda_expression"):
                continue  # a lambda only says what is to happen
            others = (n for n in mentioned.get(source.of(name), ()) if inside(n, block) and not same(n, name))
            if name.type == "identifier" and next(others, None) is None:
                return declaration if len(declarators) == 1 else declarator
    return None
