"""Two passes over a row become one where the second only waits for a number that can be mended afterwards.

- The largest value, then the sum of exponentials below it: the sum is kept relative to the largest value so far, and scaled
  whenever that grows.
- The mean, then the squares of what differs from it: each step's squares are taken about the step's own mean, and what the
  means differ by is added (Chan, Golub and LeVeque's pairwise update). No difference of large squares is ever taken.

Applies between two neighbouring loops over the same elements whose results are reduced by `block_max` and `block_sum`
(warp_reduce's). Rows that keep_row holds in registers stay as they are: their second pass costs no memory.
"""

from __future__ import annotations

from itertools import pairwise

from tree_sitter import Node

from nodes.rewrites import Facts
from nodes.rewrites._folds import Fold, Passes, below_maximum, mentions, reduction_of, same_words, two_passes
from nodes.rewrites.device_code import Code, Kernel, Loop, code_of, inside, same, statements
from nodes.rewrites.regions import thread_loops
from nodes.rewrites.source import Edits, Source, Unsupported
from nodes.rewrites.warp_reduce import HELPERS
from nodes.roles import Bound

LANGUAGES = frozenset({"cuda"})
HELPS: frozenset[Bound] = frozenset({"memory", "latency"})
EXPECTED = "rows that do not stay on the chip are read once less"
SPEEDUP = 1.0
ORDER = 42


def rewrite(source: Source, facts: Facts) -> str | None:
    if HELPERS["sum"] not in source.text:
        return None
    text, changed = source.text, False
    for number in range(len(code_of(source).kernels)):
        for _ in range(4):
            new = _merged_once(source.reparsed(text), number)
            if new is None:
                break
            text, changed = new, True
    return text if changed else None


def _merged_once(source: Source, number: int) -> str | None:
    code = code_of(source)
    kernel = code.kernels[number]
    loops = thread_loops(kernel)
    for first, second in pairwise(loops):
        try:
            return _merged(code, kernel, first, second)
        except Unsupported:
            continue
    return None


def _merged(code: Code, kernel: Kernel, first: Loop, second: Loop) -> str:
    source, passes = code.source, two_passes(code, kernel, first, second)
    a, b = passes.a, passes.b
    edits = Edits(source)
    if a.kind == "max":
        body, mended = _exponentials(code, kernel, passes)
    else:
        body, mended = _squares(code, kernel, passes, edits)
    reduction = reduction_of(code, kernel, b, "sum")
    if reduction.start_byte < second.node.end_byte:
        raise Unsupported("a total that is reduced before it is there")
    edits.replace(reduction, mended)
    indent = source.indent(first.node)
    inner = indent + source.unit(first.node)
    edits.replace(first.body, "{\n" + "\n".join(_indented(line, inner) for line in body) + f"\n{indent}}}")
    edits.remove(second.node)
    if b.declaration.start_byte > first.node.start_byte:
        edits.insert(_line_start(source, first.node), f"{indent}{source.of(b.declaration)}\n")
        edits.remove(b.declaration)
    return edits.apply()


def _exponentials(code: Code, kernel: Kernel, passes: Passes) -> tuple[list[str], str]:
    source, a, b = code.source, passes.a, passes.b
    function, value, shift = below_maximum(code, kernel, passes)
    if not same_words(code, value, a.value):
        raise Unsupported("an exponential of something else")
    named = source.of(shift)
    before, so_far = code.fresh(f"{a.total}_before"), code.fresh(f"{named}_in_thread")
    lines = _until(source, passes.first, a, [f"const float {before} = {a.total};"])
    lines += [
        f"const float {so_far} = {a.total} > -INFINITY ? {a.total} : 0.0f;",
        f"{b.total} *= {function}({before} - {so_far});",
        *_rest(source, passes.first, passes.second, [(shift, so_far)]),
    ]
    return lines, f"{b.total} * {function}({a.total} - {named})"


def _squares(code: Code, kernel: Kernel, passes: Passes, edits: Edits) -> tuple[list[str], str]:
    source, first, second, a, b = code.source, passes.first, passes.second, passes.a, passes.b
    sides = _difference(code, b, second)
    mean = sides[0].child_by_field_name("right")
    if mean is None or mean.type != "identifier":
        raise Unsupported("a difference from something that has no name")
    named = source.of(mean)
    for side in sides:
        value, other = side.child_by_field_name("left"), side.child_by_field_name("right")
        if value is None or other is None or source.of(other) != named or not same_words(code, value, a.value):
            raise Unsupported("squares of something else")
    found = code.definition(mean)
    if found is None or not any(inside(found.declaration, node) for node in passes.between):
        raise Unsupported("a mean that was there before")
    if mentions(source, second.body, named) != len(sides):
        raise Unsupported("a mean that is used in another way too")
    reduction_of(code, kernel, a, "sum")
    step, center, count, away = (
        code.fresh(stem)
        for stem in (f"{a.total}_of_step", f"{named}_in_thread", f"{named}_count", f"{named}_difference")
    )
    of_step = code.fresh(f"{named}_of_step")
    size = " * ".join(a.times) if len(a.times) == 1 else " * ".join(f"({t})" for t in a.times)
    size = f"static_cast<float>({size})" if size else "1.0f"
    target = next(
        n for n in source.walk(a.statement, "identifier") if source.of(n) == a.total and not inside(n, a.value)
    )
    lines = _until(source, first, a, [f"float {step} = 0.0f;"], [(target, step)])
    lines += [
        f"{a.total} += {step};",
        f"const float {of_step} = {step} / {size}, {away} = {of_step} - {center};",
        f"{count} += {size};",
        f"{center} += {away} * ({size} / {count});",
        f"{b.total} += {away} * {away} * ({size} * (({count} - {size}) / {count}));",
        *_rest(source, first, second, [(n, of_step) for side in sides if (n := side.child_by_field_name("right"))]),
    ]
    indent = source.indent(first.node)
    edits.insert(_line_start(source, first.node), f"{indent}float {center} = 0.0f, {count} = 0.0f;\n")
    return lines, f"{b.total} + {count} * ({center} - {named}) * ({center} - {named})"


def _difference(code: Code, fold: Fold, loop: Loop) -> list[Node]:
    """The `value - mean` of `d * d` with `d = value - mean`, or both of `(value - mean) * (value - mean)`."""
    source = code.source
    if fold.value.type != "binary_expression" or source.of(fold.value.child_by_field_name("operator")) != "*":
        raise Unsupported("no squares")
    sides = [fold.value.child_by_field_name(f) for f in ("left", "right")]
    if any(side is None for side in sides) or source.of(sides[0]).split() != source.of(sides[1]).split():
        raise Unsupported("no squares")
    found = []
    for side in sides:
        assert side is not None
        if side.type == "identifier":
            definition = code.definition(side)
            if definition is None or definition.value is None or code.mutated(definition):
                raise Unsupported("a difference that changes")
            if not inside(definition.declaration, loop.body):
                raise Unsupported("a difference from elsewhere")
            side = definition.value
        while side.type == "parenthesized_expression" and side.named_child_count == 1:
            side = side.named_children[0]
        if side.type != "binary_expression" or source.of(side.child_by_field_name("operator")) != "-":
            raise Unsupported("no difference")
        if not any(same(side, other) for other in found):
            found.append(side)
    return found


def _until(
    source: Source, loop: Loop, fold: Fold, in_front: list[str], replaced: list[tuple[Node, str]] | None = None
) -> list[str]:
    """The first pass's statements, with lines of our own in front of the fold."""
    body = statements(loop.body)
    at = next(n for n, s in enumerate(body) if same(s, fold.statement))
    if at != len(body) - 1:
        raise Unsupported("something happens after the fold")
    while at > 0 and body[at - 1].type == "preproc_call":
        at -= 1
    texts = [_dedented(source, s, source.render(s, replaced or [])) for s in body]
    return [*texts[:at], *in_front, *texts[at:]]


def _rest(source: Source, first: Loop, second: Loop, replaced: list[tuple[Node, str]]) -> list[str]:
    """The second pass's statements without the declarations that the first has already made."""
    made = {" ".join(source.of(s).split()) for s in statements(first.body) if s.type == "declaration"}
    names = _declared(source, first)
    texts = []
    for statement in statements(second.body):
        if statement.type == "declaration" and " ".join(source.of(statement).split()) in made:
            continue
        if statement.type == "declaration" and names & {source.of(n) for n in _declarators(source, statement)}:
            raise Unsupported("one name for different things")
        texts.append(_dedented(source, statement, source.render(statement, replaced)))
    return texts


def _declarators(source: Source, declaration: Node) -> list[Node]:
    return [
        n
        for d in declaration.children_by_field_name("declarator")
        for n in [d.child_by_field_name("declarator") or d]
        if n.type == "identifier"
    ]


def _declared(source: Source, loop: Loop) -> set[str]:
    return {source.of(n) for s in statements(loop.body) if s.type == "declaration" for n in _declarators(source, s)}


def _dedented(source: Source, statement: Node, text: str) -> str:
    indent = source.indent(statement)
    return "\n".join(line.removeprefix(indent) for line in text.rstrip("\n").split("\n"))


def _indented(text: str, indent: str) -> str:
    return "\n".join(line if line.startswith("#") or not line else indent + line for line in text.split("\n"))


def _line_start(source: Source, node: Node) -> int:
    return source.data.rfind(b"\n", 0, node.start_byte) + 1
