"""`h < height && w >= 0` gets parentheses: the grammar takes `height && w` in it for a template's arguments.

Every kernel over images that checks its borders has such a condition. Changes nothing but what the parser understands.
"""

from __future__ import annotations

from nodes.rewrites._loops import enclosing_function
from nodes.rewrites.source import Edits, Source

LANGUAGES = frozenset({"cpu"})
HELPS = frozenset({"compute", "latency", "memory", "unknown"})
EXPECTED = "nothing by itself: later steps see a condition where the parser saw a template"
SPEEDUP = 1.0001
ORDER = 0


def rewrite(source: Source, facts: object) -> str | None:
    text = source.text
    for _ in range(64):  # each pair of parentheses lets the parser see the next condition
        new = _compared(Source(text, source.language))
        if new is None:
            break
        text = new
    return text if text != source.text else None


def _compared(source: Source) -> str | None:
    for node in source.walk(None, "template_function"):
        name, arguments = node.child_by_field_name("name"), node.child_by_field_name("arguments")
        inside = arguments.named_children
        if name.type != "identifier" or len(inside) != 1 or inside[0].type != "binary_expression":
            continue
        logical = inside[0].child_by_field_name("operator")
        # `>=` and not the end of a template's arguments; and it is a whole side of an && or ||, not the end of a sum.
        if source.of(logical) != "&&" or source.data[node.end_byte : node.end_byte + 1] != b"=":
            continue
        parent = node.parent
        whole = parent.type == "binary_expression" and source.of(parent.child_by_field_name("operator")) in {"&&", "||"}
        first = parent.type == "assignment_expression" and parent.child_by_field_name("left") == node
        if enclosing_function(node) is None or not (whole or first):
            continue
        edits = Edits(source)
        edits.insert(node.start_byte, "(")
        edits.insert(inside[0].child_by_field_name("left").end_byte, ")")
        return edits.apply()
    return None
