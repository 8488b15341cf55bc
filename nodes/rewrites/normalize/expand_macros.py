"""Macros that hide a launch or a loop's header become the text that they stand for.

`#define LAUNCH(TYPE) kernel<TYPE><<<grid, block>>>(...)` and `CUDA_KERNEL_LOOP(i, n)` are everywhere in other people's
files, and no other step looks into a macro. Changes nothing by itself.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.source import Edits, Source, Unsupported, one_by_one
from nodes.rewrites.syntax.tree import children_of, enclosing, field_of

CONDITIONALS = ("preproc_if", "preproc_ifdef", "preproc_else", "preproc_elif")
_REST = "__VA_ARGS__"
LONGEST = 200_000
"""Characters: what expands to more is no source that a person would read."""
_PIECE = re.compile(
    r"""\s+|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\])*"|\d(?:[\w.]|'\w)*|\w+|'(?:\\.|[^'\\])*'|\#\#|.""", re.DOTALL
)


@dataclass(frozen=True)
class Macro:
    """`#define name(parameters) body`."""

    parameters: tuple[str, ...]
    body: str
    """Without the backslashes and what is behind `//`, its lines moved left as far as the leftmost one."""
    is_variadic: bool = False

    def expanded(self, arguments: list[str]) -> str:
        """Raises Unsupported where the numbers of parameters and arguments differ, or an argument becomes a string."""
        names, body = list(self.parameters), self.body
        if self.is_variadic and len(arguments) >= len(names):
            names, rest = [*names, _REST], ", ".join(arguments[len(names) :])
            arguments = [*arguments[: len(names) - 1], rest]
            body = re.sub(rf",\s*##\s*{_REST}", f", {_REST}" if rest else "", body)
        if len(names) != len(arguments) or {"#", "__VA_OPT__"}.intersection(pieces(body)):
            raise Unsupported("another number of arguments, or an argument as a string")
        values = {**dict(zip(names, arguments, strict=True)), "##": "\0"}
        return re.sub(r"\s*\0\s*", "", "".join(values.get(piece, piece) for piece in pieces(body)))


def pieces(text: str) -> Iterator[str]:
    """What the preprocessor sees: words, numbers, strings, comments, `##`, white space, and single characters."""
    return (found[0] for found in _PIECE.finditer(text))


@rule(
    "cuda",
    expected="nothing by itself: later steps see launches and loops that macros had hidden",
    normalizes=True,
)
def rewrite(source: Source, facts: Facts) -> str | None:
    return expanded(source)


def expanded(source: Source) -> str:
    """The source with every such macro expanded, and its definition gone where nothing names it any more."""
    names: set[str] = set()
    for _ in range(16):  # a macro's text may use another macro
        macros = hiding(source)
        names |= macros.keys()
        edits, at = Edits(source), 0
        for node in source.walk(None, "identifier", "type_identifier"):
            if node.start_byte < at or source.of(node) not in macros or node.parent.type.startswith("preproc_"):
                continue
            arguments, at = _call(source, node)
            text = macros[source.of(node)].expanded(arguments)
            if text.endswith((";", "}")) and source.data[at : at + 1] == b";":
                at += 1  # the text brings its own
            edits.changes.append((node.start_byte, at, text.replace("\n", f"\n{source.indent(node)}")))
        if not edits.changes or len(source.text) > LONGEST:
            break
        source = source.reparsed(edits.apply())
    if edits.changes:
        raise Unsupported("macros that expand to each other, or grow without end")
    return one_by_one(source, _drop, lambda left: ((left, name) for name in names), len(names)) or source.text


def hiding(source: Source) -> dict[str, Macro]:
    """Macros with arguments whose text holds a launch or begins a loop, itself or through another macro."""
    found, unknown = dict[str, Macro](), set[str]()
    for node in source.walk(None, "preproc_function_def"):
        name, listed, value = source.of(node, "name"), field_of(node, "parameters"), source.of(node, "value")
        variadic = re.search(r"(^\(|,)\s*\.\.\.\s*\)$", source.of(listed)) is not None
        if (
            name in found
            or ("..." in source.of(listed) and not variadic)
            or node.has_error
            or enclosing(node.parent, *CONDITIONALS)
        ):
            unknown.add(name)  # an error: the grammar ends a text at a comment within it
        first, _, rest = re.sub(r"[ \t]*\\?$", "", value, flags=re.MULTILINE).partition("\n")
        body = (piece for piece in pieces(f"{first}\n{textwrap.dedent(rest)}") if not piece.startswith("//"))
        parameters = tuple(text for text in map(source.of, children_of(listed)) if text != "...")
        found[name] = Macro(parameters, "".join(body).strip(), variadic)
    words = {name: list(pieces(macro.body)) for name, macro in found.items()}
    chosen = {name for name, macro in found.items() if "<<<" in macro.body or words[name][:1] in (["for"], ["while"])}
    while more := {name for name in found.keys() - chosen if chosen.intersection(words[name])}:
        chosen |= more
    return {name: found[name] for name in chosen - unknown if name not in words[name]}


def _call(source: Source, name: Node) -> tuple[list[str], int]:
    """The arguments behind a macro's name, and where they end. Raises Unsupported where there are none."""
    arguments, depth, end = [""], 0, name.end_byte
    for piece in pieces(source.data[name.end_byte :].decode()):
        end += len(piece.encode())
        if piece.startswith(("//", "/*")) or (depth == 0 and piece.isspace()):
            continue  # what stands behind a comment of an argument may be on its line
        depth += (piece == "(") - (piece == ")")
        if depth <= 0:
            break
        arguments = [*arguments, ""] if depth == 1 and piece == "," else [*arguments[:-1], arguments[-1] + piece]
    if depth or not arguments[0]:
        raise Unsupported(f"{source.of(name)} without its arguments")
    listed = [argument.strip() for argument in (arguments[0][1:], *arguments[1:])]
    return ([] if listed == [""] else listed), end


def _drop(edits: Edits, source: Source, name: str) -> bool:
    """Deletes a macro's definition where nothing uses it any more, and what takes it back."""
    kinds = ("preproc_function_def", "preproc_call")
    own = [n for n in source.walk(None, *kinds) if name in {source.of(n, "name"), source.of(n, "argument").strip()}]
    for node in own:
        start, end = source.line_start(node), node.end_byte
        blank = source.data[:start].endswith(b"\n\n") and source.data[end : end + 1] == b"\n"
        edits.changes.append((start, end + blank, ""))
    rest = edits.apply()
    return bool(own) and name not in pieces(rest)
