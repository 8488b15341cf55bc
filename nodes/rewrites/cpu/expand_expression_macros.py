"""Macros that stand for an expression become the expression: `#define MAX(a, b) ((a) > (b) ? (a) : (b))`.

No other step looks into a macro, so a loop with one in it stayed as it was. The text is what the preprocessor would have
put there, without the parentheses that plain arguments do not need. Changes nothing by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from tree_sitter import Node

from nodes.rewrites.analysis.host_source import arguments, enclosing_function
from nodes.rewrites.normalize.expand_macros import conditional, pieces
from nodes.rewrites.registry import rule
from nodes.rewrites.syntax.source import Edits, Source, Unsupported

LONGEST = 2000
"""Characters that a call may become: past that nobody would read it."""
_PRIMARY = frozenset({
    "identifier", "number_literal", "subscript_expression", "call_expression", "field_expression", "parenthesized_expression",
})  # fmt: skip


@rule(
    "cpu",
    expected="nothing by itself: later steps see the arithmetic that macros had hidden",
    normalizes=True,
)
def rewrite(source: Source, facts: object) -> str | None:
    text = source.text
    for _ in range(64):  # macros name macros
        current = Source(text, source.language)
        edits = Edits(current)
        for node in _outermost(current):
            _expand(current, node, edits)
        try:
            new = edits.apply()
        except Unsupported:
            break
        if new == text:
            break
        text = new
    return text if text != source.text else None


def _macros(source: Source) -> dict[str, tuple[list[str], str]]:
    """(parameters, body) of the function-like macros that mean one thing throughout the file."""
    found: dict[str, list[tuple[list[str], str] | None]] = {}
    for node in source.walk(None, "preproc_function_def", "preproc_def"):
        name, parameters = (source.of(node.child_by_field_name(field)) for field in ("name", "parameters"))
        body = " ".join(source.of(node, "value").replace("\\\n", " ").split())
        names = [word.strip() for word in parameters.strip("()").split(",") if word.strip()]
        usable = node.type == "preproc_function_def" and not conditional(node) and _is_expression(body)
        found.setdefault(name, []).append((names, body) if usable and "..." not in names else None)
    undefined = {
        source.of(node).split()[1]
        for node in source.walk(None, "preproc_call")
        if source.of(node).startswith("#undef ")
    }
    return {
        name: each[0]
        for name, each in found.items()
        if len(each) == 1 and each[0] is not None and name not in undefined
    }


def _is_expression(body: str) -> bool:
    if not body or "#" in body or "//" in body or '"' in body:
        return False
    parsed = Source(f"void f() {{ (void)({body}); }}", "cpu")
    kinds = {node.type for node in parsed.walk()}
    return not parsed.root.has_error and not kinds & {
        "compound_statement_expression",
        "assignment_expression",
        "update_expression",
        "lambda_expression",
    }


def _outermost(source: Source) -> Iterator[Node]:
    """Calls of macros that are not arguments of other ones."""
    macros, end = _macros(source), 0
    for node in source.walk(None, "call_expression"):
        called = node.child_by_field_name("function")
        if (
            called.type == "identifier"
            and source.of(called) in macros
            and node.start_byte >= end
            and enclosing_function(node)
        ):
            end = node.end_byte
            yield node


def _expand(source: Source, node: Node, edits: Edits) -> None:
    names, body = _macros(source)[source.of(node, "function")]
    given = arguments(node)
    if len(given) != len(names) or node.has_error:
        return
    values = dict(zip(names, given, strict=True))
    words = list(pieces(body))
    solid = [at for at, word in enumerate(words) if not word.isspace()]
    dropped: set[int] = set()
    for place, (opening, name, closing) in enumerate(zip(solid, solid[1:], solid[2:], strict=False)):
        plain = words[name] in values and values[words[name]].type in _PRIMARY
        before = [words[at] for at in solid[max(0, place - 3) : place]]
        # Behind a word or `<float>`, parentheses are a call's or a cast's.
        called = bool(before) and (before[-1].isidentifier() or before[-1] in {")", "]"} or before[::2] == ["<", ">"])
        if plain and words[opening] == "(" and words[closing] == ")" and not called:
            dropped |= {opening, closing}
    text = "".join(
        source.of(values[word]) if word in values else word for at, word in enumerate(words) if at not in dropped
    )
    if len(text) <= LONGEST:
        whole = node.parent.type in {"init_declarator", "assignment_expression"} and _in_parentheses(text)
        edits.replace(node, text[1:-1] if whole else text)


def _in_parentheses(text: str) -> bool:
    """Whether the first parenthesis is closed by the last character."""
    depth = 0
    for at, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return character == ")" and at == len(text) - 1
    return False
