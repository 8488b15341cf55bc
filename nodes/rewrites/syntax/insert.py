"""Where a C++ candidate takes new definitions."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from nodes.rewrites.syntax.source import Edits, Source
from nodes.rewrites.syntax.tree import field_of


def behind_includes(source: Source) -> int:
    """Behind the last #include of the file."""
    includes = [n for n in source.root.children if n.type == "preproc_include"]
    return includes[-1].end_byte if includes else 0


def after_definitions(source: Source, type_name: str) -> int:
    """The byte after what new inline functions build on: the includes, the definition of a type, simd_ functions."""
    end = behind_includes(source)
    for node in source.root.named_children:
        field = {"struct_specifier": "name", "type_definition": "declarator"}.get(node.type)
        if field is not None and source.of(field_of(node, field)) == type_name:
            end = max(end, source.line_end(node))
        if node.type == "function_definition":
            declared = source.of(node, "declarator").partition("(")[0]
            if declared.startswith(("simd_", "bits_of", "float_of", "is_nan")):
                end = max(end, source.line_end(node))
    return end


def behind_stores(source: Source) -> int:
    """The byte behind the last definition of store_lanes."""
    stores = [
        n for n in source.walk(None, "function_definition") if source.of(n, "declarator").startswith("store_lanes(")
    ]
    return source.line_end(stores[-1]) if stores else after_definitions(source, "")


def define(source: Source, edits: Edits, name: str, line: str) -> None:
    """Adds a `#define` once."""
    if any(source.of(node, "name") == name for node in source.walk(None, "preproc_def")):
        return
    edits.insert(behind_includes(source), f"\n{line}\n")


def include(source: Source, edits: Edits, header: str) -> None:
    """Adds `#include <header>` unless it is there, after the last include."""
    path = f"<{header}>"
    includes = list(source.walk(None, "preproc_include"))
    if any(source.of(node, "path") == path for node in includes) or any(path in text for _, _, text in edits.changes):
        return
    top = [node for node in includes if node.parent == source.root]
    at = top[-1].end_byte if top else 0
    edits.insert(at, f"#include {path}\n" if not top or source.data[at - 1 : at] == b"\n" else f"\n#include {path}")


def free(name: str, taken: Collection[str]) -> str:
    """The name, or one like it that nothing has."""
    return next(free for free in (name, *(f"{name}_{n}" for n in range(2, 1000))) if free not in taken)


def substituted(text: str, names: Mapping[str, str]) -> str:
    """The text with whole words replaced."""
    return re.sub(r"[A-Za-z_]\w*", lambda word: names.get(word[0], word[0]), text)


def renamed(function: str, old: str, new: str) -> str:
    """`old<arguments>` as `new<arguments>`."""
    head, bracket, rest = function.partition("<")
    return head.replace(old, new) + bracket + rest


def as_factor(text: str) -> str:
    """An expression as it may stand beside any operator."""
    return text if re.fullmatch(r"[\w.]+", text) else f"({text})"
