"""Loops that pass over the same rows or elements one after the other become one: what a pass wrote is still in the cache.

Each pass over a tensor larger than the caches moves all of it. Loops with the same bounds are joined, outermost first,
where iteration i of a later one only meets what iteration i of an earlier one did: rows are then worked on block by
block, one row a block, and loops over the elements of a row are joined in turn.
"""

from __future__ import annotations

from harness.records import Outcome
from nodes.rewrites.analysis.host_dependence import unordered
from nodes.rewrites.analysis.host_loops import Loop, canonical, loop_at
from nodes.rewrites.analysis.host_source import declared_names, identifiers, pragma_node
from nodes.rewrites.registry import rule
from nodes.rewrites.syntax.source import Edits, Source, Unsupported, repeated


@rule(
    "cpu",
    expected="bytes moved fall with the number of passes on workloads beyond the caches",
    speedup=1.3,
    helps={"memory", "latency"},
    after=("unflatten_loop",),
    risks=(Outcome.INCORRECT,),
)
def rewrite(source: Source, facts: object) -> str | None:
    return repeated(source, lambda text: next(filter(None, (_joined(text, *pair) for pair in _pairs(text))), None), 32)


def _pairs(source: Source) -> list[tuple[Loop, Loop]]:
    """Loops that follow each other with nothing between them, and count the same."""
    found = []
    for node in source.walk(None, "for_statement"):
        after = node.next_named_sibling
        while after is not None and after.type == "comment":
            after = after.next_named_sibling
        if after is None or after.type != "for_statement" or pragma_node(source, node) is not None:
            continue
        first, second = canonical(source, node), canonical(source, after)
        if first is None or second is None or first.step is not None or second.step is not None:
            continue
        bounds = [(each.kind, source.of(each.start), source.of(each.bound), each.inclusive) for each in (first, second)]
        if bounds[0] == bounds[1]:
            found.append((first, second))
    return found


def _joined(source: Source, first: Loop, second: Loop) -> str | None:
    """The text with both as one loop, None where its iterations would not be independent."""
    if "compound_statement" not in {first.body.type} & {second.body.type}:
        return None
    if any(source.walk(first.body, "continue_statement", "goto_statement")):
        return None  # an element that the first leaves early would miss the second
    if first.variable != second.variable and first.variable in identifiers(source, second.body):
        return None
    own = {
        name
        for node in first.body.named_children
        if node.type == "declaration"
        for name in declared_names(source, node)
    }
    if own & identifiers(source, second.body):
        return None
    renamed = [
        (node, first.variable) for node in source.walk(second.body, "identifier") if source.of(node) == second.variable
    ]
    inner = source.render(second.body, renamed)[1:-1].strip("\n").rstrip()
    between = source.data[first.node.end_byte : second.node.start_byte].decode()
    notes = [line.strip() for line in between.split("\n") if line.strip()]
    indent = source.indent(second.node)
    lines = [f"{indent}{source.unit(second.node)}{line}" for line in notes] + [inner]
    edits = Edits(source)
    brace = first.body.end_byte - 1
    start = source.data.rfind(b"\n", 0, brace) + 1
    if source.data[start:brace].strip():
        return None  # a loop on one line
    edits.changes.append((start, second.node.end_byte, "\n".join(lines) + f"\n{indent}}}"))
    text = edits.apply()
    merged = Source(text, source.language)
    loop = loop_at(merged, first.node.start_byte)
    try:
        return text if loop is not None and unordered(merged, loop)[1] == {} else None
    except Unsupported:
        return None
