"""Macros that hide a launch or a loop's header become the text that they stand for.

`#define LAUNCH(TYPE) kernel<TYPE><<<grid, block>>>(...)` and `CUDA_KERNEL_LOOP(i, n)` are everywhere in other people's
files, and no other step looks into a macro. Changes nothing by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import field_of, upward

LONGEST = 200_000
"""Characters: what expands to more is no source that a person would read."""
CONDITIONALS = {"preproc_if", "preproc_ifdef", "preproc_else", "preproc_elif"}


@dataclass(frozen=True)
class Macro:
    """`#define name(parameters) body`."""

    name: str
    node: Node
    parameters: tuple[str, ...]
    body: str
    """Without the backslashes and what is behind `//`, its lines moved left as far as the first one."""
    macros: frozenset[str] = frozenset()
    """Names that stand for more than they seem to."""

    def expanded(self, arguments: list[str]) -> str:
        """Raises Unsupported where the numbers of parameters and arguments differ, or an argument becomes a string."""
        names = list(self.parameters)
        if names and names[-1] == "...":
            names[-1] = "__VA_ARGS__"
            arguments = [*arguments[: len(names) - 1], ", ".join(arguments[len(names) - 1 :])]
        if len(names) != len(arguments):
            raise Unsupported(f"{self.name} with {len(arguments)} arguments")
        values, out, glued = dict(zip(names, arguments, strict=True)), [], False
        for piece in pieces(self.body):
            if piece == "#":
                raise Unsupported("an argument as a string")
            if piece == "##":
                while out and out[-1].isspace():
                    out.pop()
                glued = True
                continue
            if glued and piece.isspace():
                continue
            glued = False
            out.append(values.get(piece, piece))
        return "".join(_bare(out, set(arguments) - self.macros))


def _bare(words: list[str], arguments: set[str]) -> list[str]:
    """`i < (n);` without the parentheses, where n is a plain name; those of a cast or a call stay."""
    solid = [at for at, word in enumerate(words) if not word.isspace()]
    dropped: set[int] = set()
    for before, opening, name, closing, behind in zip(solid, solid[1:], solid[2:], solid[3:], solid[4:], strict=False):
        plain = (
            words[opening] == "(" and words[closing] == ")" and words[name] in arguments and words[name].isidentifier()
        )
        if plain and words[before] in {"=", "<", "+", "*", "/"} and words[behind] in {";", ")", ","}:
            dropped |= {opening, closing}
    return [word for at, word in enumerate(words) if at not in dropped]


def pieces(text: str) -> Iterator[str]:
    """What the preprocessor sees: words, numbers, strings, comments, `##`, white space, and single characters."""
    at = 0
    while at < len(text):
        end, here = at + 1, text[at]
        if here in "\"'":
            while end < len(text) and text[end] != here:
                end += 2 if text[end] == "\\" else 1
            end += 1
        elif here.isspace():
            while end < len(text) and text[end].isspace():
                end += 1
        elif here.isalnum() or here == "_":
            while end < len(text) and (
                text[end].isalnum() or text[end] == "_" or (here.isdigit() and _in_number(text, end))
            ):
                end += 1
        elif text.startswith("##", at):
            end += 1
        elif text.startswith("//", at):
            end = text.find("\n", at) if "\n" in text[at:] else len(text)
        elif text.startswith("/*", at):
            end = text.find("*/", at) + 2 if "*/" in text[at:] else len(text)
        yield text[at:end]
        at = end


def _in_number(text: str, at: int) -> bool:
    """`1.5` and `1'024`."""
    return text[at] == "." or (text[at] == "'" and text[at + 1 : at + 2].isalnum())


@rule(
    "cuda",
    expected="nothing by itself: later steps see launches and loops that macros had hidden",
    normalizes=True,
    after=("standard_alignas",),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    new = expanded(source)
    return new if new != source.text else None


def expanded(source: Source) -> str:
    """The source with every such macro expanded, and its definition gone where nothing names it any more."""
    names: set[str] = set()
    for _ in range(16):  # a macro's text may use another macro
        macros = hiding(source)
        names |= macros.keys()
        edits = Edits(source)
        at = 0
        for node in source.walk(None, "identifier", "type_identifier"):
            if node.start_byte < at or source.of(node) not in macros or _defines(node):
                continue
            call = _call(source, node)
            if call is None:
                raise Unsupported(f"{source.of(node)} without its arguments")
            arguments, at = call
            text = macros[source.of(node)].expanded(arguments)
            if text.endswith((";", "}")) and source.data[at : at + 1] == b";":
                at += 1  # the text brings its own
            edits.changes.append((node.start_byte, at, text.replace("\n", f"\n{source.indent(node)}")))
        if not edits.changes:
            break
        source = source.reparsed(edits.apply())
        if len(source.text) > LONGEST:
            raise Unsupported("macros that grow without end")
    else:
        raise Unsupported("macros that expand to each other")
    return _without(source, names)


def hiding(source: Source) -> dict[str, Macro]:
    """Macros with arguments whose text holds a launch or begins a loop, itself or through another macro."""
    found: dict[str, Macro] = {}
    twice: set[str] = set()
    plain = frozenset(source.of(node, "name") for node in source.walk(None, "preproc_def"))
    for node in source.walk(None, "preproc_function_def"):
        name, listed = source.of(node, "name"), field_of(node, "parameters")
        if name in found or conditional(node) or node.has_error:
            twice.add(name)  # an error: the grammar ends a text at a comment within it
        parameters = (
            tuple(source.of(c) for c in listed.children if source.of(c) not in {"(", ",", ")"}) if listed else ()
        )
        if listed is not None and len(parameters) != sum(source.of(c) == "," for c in listed.children) + bool(
            parameters
        ):
            twice.add(name)  # `arguments...`
        found[name] = Macro(name, node, parameters, _body(source, field_of(node, "value")), plain)
    words = {name: list(pieces(macro.body)) for name, macro in found.items()}
    chosen = {name for name, macro in found.items() if "<<<" in macro.body or words[name][:1] in (["for"], ["while"])}
    while more := {name for name in found.keys() - chosen if chosen.intersection(words[name])}:
        chosen |= more
    return {name: found[name] for name in chosen - twice if name not in words[name]}


def conditional(node: Node) -> bool:
    return any(here.type in CONDITIONALS for here in upward(node.parent))


def _defines(node: Node) -> bool:
    return node.parent is not None and node.parent.type.startswith("preproc_")


def _body(source: Source, value: Node | None) -> str:
    if value is None:
        return ""
    before = source.data[source.line_start(value) : value.start_byte].decode()
    lines = [line.rstrip().removesuffix("\\").rstrip() for line in source.of(value).split("\n")]
    margins = [len(line) - len(line.lstrip()) for line in lines[1:] if line]
    margin = len(before) if not before.strip() else min(margins, default=0)
    whole = "\n".join([lines[0], *(line[min(margin, len(line) - len(line.lstrip())) :] for line in lines[1:])])
    return "".join(piece for piece in pieces(whole) if not piece.startswith("//")).strip()


def _call(source: Source, name: Node) -> tuple[list[str], int] | None:
    """The arguments behind a macro's name, and where they end."""
    text = source.data[name.end_byte :].decode()
    arguments, depth, taken = [""], 0, 0
    for piece in pieces(text):
        taken += len(piece.encode())
        if piece.startswith(("//", "/*")) or (depth == 0 and piece.isspace()):
            continue  # what stands behind a comment of an argument may be on its line
        if depth == 0 and piece != "(":
            return None
        depth += (piece == "(") - (piece == ")")
        if depth == 0:
            listed = [argument.strip() for argument in arguments]
            return ([] if listed == [""] else listed), name.end_byte + taken
        if depth == 1 and piece == ",":
            arguments.append("")
        elif not (depth == 1 and piece == "(" and arguments == [""]):
            arguments[-1] += piece
    return None


def _without(source: Source, names: set[str]) -> str:
    """Without the definitions that nothing uses any more."""
    defined = {source.of(n, "name"): n for n in source.walk(None, "preproc_function_def")}
    bodies = {name: set(pieces(source.of(node, "value"))) for name, node in defined.items()}
    undone = [n for n in source.walk(None, "preproc_call") if source.of(n).startswith("#undef")]
    used = {source.of(n) for n in source.walk(None, "identifier", "type_identifier") if not _defines(n)}
    used |= {w for n in source.walk(None, "preproc_arg") if n.parent not in undone and n.parent not in defined.values()
             for w in pieces(source.of(n))}  # fmt: skip
    kept = defined.keys() - names
    while more := {name for name in defined.keys() - kept if name in used or any(name in bodies[k] for k in kept)}:
        kept |= more
    edits = Edits(source)
    for node in (node for name, node in defined.items() if name not in kept):
        edits.changes.append((*_line(source, node), ""))
    for node in undone:
        if source.of(node, "argument").strip() in names - kept:
            edits.changes.append((*_line(source, node), ""))
    return edits.apply()


def _line(source: Source, node: Node) -> tuple[int, int]:
    """The node with its line end, and with the empty line behind it where there is one in front as well."""
    data = source.data
    end = node.end_byte if data[node.end_byte - 1 : node.end_byte] == b"\n" else node.end_byte + 1
    start = data.rfind(b"\n", 0, node.start_byte) + 1
    if data[:start].endswith(b"\n\n") and data[end : end + 1] == b"\n":
        end += 1
    return start, min(end, len(data))
