"""New functions and headers in a CUDA source, once each, and what is left unused without its host variables."""

from __future__ import annotations

import re
from functools import cache

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import Code
from nodes.rewrites.prelude import needs_of, text_of
from nodes.rewrites.syntax.insert import include
from nodes.rewrites.syntax.source import Edits, Source, Unsupported, inside
from nodes.rewrites.syntax.tree import declared_name, field_of, same


def insertion_point(source: Source) -> int:
    """Behind the last #include of the file."""
    includes = [n for n in source.root.children if n.type == "preproc_include"]
    return includes[-1].end_byte if includes else 0


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
    source, at = edits.source, at or insertion_point(edits.source)
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
            found.add(source.of(declared_name(field_of(node, "declarator"))))
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
    """The text without local declarations of the names, and of what only they used, that nothing reads any more."""
    for _ in range(64):
        here = source.reparsed(text)
        dropped = _unused(here, names)
        if dropped is None:
            break
        names |= {here.of(n) for n in here.walk(dropped, "identifier")}
        data = here.data
        if dropped.type == "declaration":
            line = here.line_start(dropped)
            start = dropped.start_byte if data[line : dropped.start_byte].strip() else line
            data = data[:start] + data[dropped.end_byte :].lstrip(b" ").removeprefix(b"\n")
        else:  # one of several
            before, after = dropped.prev_named_sibling, dropped.next_named_sibling
            first = before is None or before.start_byte < field_of(dropped.parent, "declarator").start_byte
            start = dropped.start_byte if first or before is None else before.end_byte
            end = after.start_byte if first and after is not None else dropped.end_byte
            data = data[:start] + data[end:]
        text = data.decode()
    return text


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
