"""Two passes over a row become one where the second only waits for a number that can be mended afterwards.

- The largest value, then the sum of exponentials below it: the sum is kept relative to the largest value so far, and scaled
  whenever that grows.
- The mean, then the squares of what differs from it: each step's squares are taken about the step's own mean, and what the
  means differ by is added (Chan, Golub and LeVeque's pairwise update). No difference of large squares is ever taken.

Applies between two neighbouring loops over the same elements whose results are reduced by `block_max` and `block_sum`
(warp_reduce's). Rows that keep_row holds in registers stay as they are: their second pass costs no memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from tree_sitter import Node

from nodes.rewrites import Facts
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

EXPONENTIALS = {"expf", "__expf", "exp", "exp2f"}
MAXIMA = {"fmaxf", "max", "fmax"}


@dataclass(frozen=True)
class Fold:
    """`total += value` or `total = max(total, value)`: all that a loop leaves behind."""

    kind: str
    total: str
    type: str
    where: int
    """Byte offset of the total's definition."""
    declaration: Node
    value: Node
    statement: Node
    """The statement of the loop's body that has the fold inside."""
    times: tuple[str, ...]
    """Bounds of the loops around the fold within the body."""


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
    source = code.source
    alike = (first.start, first.step, first.bound, first.name) == (second.start, second.step, second.bound, second.name)
    if not alike or not same(first.node.parent, second.node.parent) or first.node.parent is None:
        raise Unsupported("loops over different elements")
    if kernel.escapes or any(
        a.root and a.writes and (inside(a.node, first.node) or inside(a.node, second.node)) for a in kernel.accesses
    ):
        raise Unsupported("a pass that writes")
    a, b = _fold(code, first), _fold(code, second)
    if a.where == b.where or b.kind != "sum" or a.times != b.times:
        raise Unsupported("totals that do not go together")
    between = _between(code, kernel, first, second, b)
    edits = Edits(source)
    if a.kind == "max":
        body, mended = _exponentials(code, kernel, first, second, a, b, between, edits)
    else:
        body, mended = _squares(code, kernel, first, second, a, b, between, edits)
    reduction = _reduction(code, kernel, b, "sum")
    if reduction.start_byte < second.node.end_byte:
        raise Unsupported("a total that is reduced before it is there")
    edits.replace(reduction, mended)
    indent = source.indent(first.node)
    inner = indent + source.unit(first.node)
    edits.replace(first.body, "{\n" + "\n".join(_indented(line, inner) for line in body) + f"\n{indent}}}")
    _remove(edits, source, second.node)
    if b.declaration.start_byte > first.node.start_byte:
        edits.insert(_line_start(source, first.node), f"{indent}{source.of(b.declaration)}\n")
        _remove(edits, source, b.declaration)
    return edits.apply()


def _fold(code: Code, loop: Loop) -> Fold:
    source = code.source
    outer = []
    for node in source.walk(loop.body, "assignment_expression", "update_expression"):
        target = node.child_by_field_name("left" if node.type == "assignment_expression" else "argument")
        found = code.definition(target) if target is not None and target.type == "identifier" else None
        if found is None:
            raise Unsupported("an assignment to something that is no variable")
        if not inside(found.declaration, loop.body):
            outer.append((node, found))
    if len(outer) != 1 or outer[0][0].type != "assignment_expression":
        raise Unsupported("a loop with more than one result, or none")
    node, found = outer[0]
    right, operator = node.child_by_field_name("right"), source.of(node.child_by_field_name("operator"))
    kind, value = "", right
    if operator == "+=":
        kind = "sum"
    elif operator == "=" and right is not None and right.type == "call_expression":
        name = source.of(right.child_by_field_name("function")).removeprefix("std::")
        listed = right.child_by_field_name("arguments")
        arguments = [c for c in listed.named_children if c.type != "comment"] if listed is not None else []
        others = [c for c in arguments if source.of(c) != found.name]
        if name in MAXIMA and len(arguments) == 2 and len(others) == 1:
            kind, value = "max", others[0]
    type_ = source.of(found.declaration.child_by_field_name("type"))
    if not kind or value is None or type_ != "float" or found.kind != "local":
        raise Unsupported("no sum and no maximum")
    if len(found.declaration.children_by_field_name("declarator")) != 1:
        raise Unsupported("a total that is declared among others")
    if any(source.of(n) == found.name for n in source.walk(value, "identifier")):
        raise Unsupported("a total that is read on the way")
    reads = sum(source.of(n) == found.name for n in source.walk(loop.body, "identifier"))
    if reads != (1 if kind == "sum" else 2):
        raise Unsupported("a total that is read on the way")
    statement, times = node, []
    while statement.parent is not None and not any(same(statement, s) for s in statements(loop.body)):
        statement = statement.parent
        if statement.type == "for_statement":
            inner = next(iter(_counted(code, statement)), None)
            if inner is None:
                raise Unsupported("a fold in a loop of unknown length")
            times.append(inner)
        elif statement.type not in {"compound_statement", "expression_statement"}:
            raise Unsupported("a fold that some elements skip")
    if statement.type == "for_statement" and not times:
        raise Unsupported("a fold in a loop of unknown length")
    return Fold(kind, found.name, type_, found.where, found.declaration, value, statement, tuple(times))


def _counted(code: Code, loop: Node) -> list[str]:
    """The bound of `for (int k = 0; k < bound; ++k)`."""
    for kernel in code.kernels:
        for found in kernel.loops:
            if same(found.node, loop) and found.start.value == 0 and found.step.value == 1:
                return [code.source.of(found.bound_node)]
    return []


def _between(code: Code, kernel: Kernel, first: Loop, second: Loop, total: Fold) -> list[Node]:
    """The statements between the loops: declarations that read no memory, and barriers."""
    source = code.source
    assert first.node.parent is not None
    found = []
    for node in first.node.parent.named_children:
        if not first.node.end_byte <= node.start_byte < second.node.start_byte or node.type == "comment":
            continue
        barrier = source.of(node).replace(" ", "") == "__syncthreads();"
        reads = any(inside(a.node, node) for a in kernel.accesses)
        changes = any(True for _ in source.walk(node, "assignment_expression", "update_expression"))
        if not barrier and (node.type != "declaration" or reads or changes):
            raise Unsupported("something else happens between the passes")
        found.append(node)
    zero = total.declaration.child_by_field_name("declarator")
    value = source.of(zero.child_by_field_name("value")) if zero is not None and zero.type == "init_declarator" else ""
    if value.rstrip("fF") not in {"0", "0.", "0.0"}:
        raise Unsupported("a total that does not start from zero")
    return found


def _reduction(code: Code, kernel: Kernel, fold: Fold, kind: str) -> Node:
    """The one place where a total is read: the argument of its reduction over the block."""
    if HELPERS[kind] not in code.source.text:
        raise Unsupported("a reduction that is somebody else's")
    for call in kernel.calls(f"block_{kind}"):
        listed = call.child_by_field_name("arguments")
        argument = listed.named_children[0] if listed is not None and listed.named_child_count == 1 else None
        if argument is None or argument.type != "identifier" or code.source.of(argument) != fold.total:
            continue
        found = code.definition(argument)
        if found is not None and found.where == fold.where:
            mentions = 0
            for node in code.source.walk(kernel.body, "identifier"):
                if code.source.of(node) == fold.total:
                    there = code.definition(node)
                    mentions += there is not None and there.where == fold.where
            # The fold itself, its reduction, and for a maximum the second mention in the fold; the declaration is none.
            if mentions == (3 if fold.kind == "max" else 2):
                return argument
    raise Unsupported("a total that is not reduced, or read elsewhere too")


def _same_words(code: Code, a: Node, b: Node) -> bool:
    return code.source.of(a).split() == code.source.of(b).split()


def _exponentials(
    code: Code, kernel: Kernel, first: Loop, second: Loop, a: Fold, b: Fold, between: list[Node], edits: Edits
) -> tuple[list[str], str]:
    source = code.source
    function = source.of(b.value.child_by_field_name("function")) if b.value.type == "call_expression" else ""
    listed = b.value.child_by_field_name("arguments") if function in EXPONENTIALS else None
    below = listed.named_children[0] if listed is not None and listed.named_child_count == 1 else None
    if below is None or below.type != "binary_expression" or source.of(below.child_by_field_name("operator")) != "-":
        raise Unsupported("no sum of exponentials")
    value, shift = below.child_by_field_name("left"), below.child_by_field_name("right")
    if value is None or shift is None or shift.type != "identifier" or not _same_words(code, value, a.value):
        raise Unsupported("an exponential of something else")
    _reduction(code, kernel, a, "max")
    named = source.of(shift)
    if not _is_reduced(code, shift, a, between) or _mentions(source, second.body, named) != 1:
        raise Unsupported("an exponential below something else than the maximum")
    before, so_far = code.fresh(f"{a.total}_before"), code.fresh(f"{named}_in_thread")
    lines = _until(source, first, a, [f"const float {before} = {a.total};"])
    lines += [
        f"const float {so_far} = {a.total} > -INFINITY ? {a.total} : 0.0f;",
        f"{b.total} *= {function}({before} - {so_far});",
        *_rest(source, first, second, [(shift, so_far)]),
    ]
    return lines, f"{b.total} * {function}({a.total} - {named})"


def _squares(
    code: Code, kernel: Kernel, first: Loop, second: Loop, a: Fold, b: Fold, between: list[Node], edits: Edits
) -> tuple[list[str], str]:
    source = code.source
    sides = _difference(code, b, second)
    mean = sides[0].child_by_field_name("right")
    if mean is None or mean.type != "identifier":
        raise Unsupported("a difference from something that has no name")
    named = source.of(mean)
    for side in sides:
        value, other = side.child_by_field_name("left"), side.child_by_field_name("right")
        if value is None or other is None or source.of(other) != named or not _same_words(code, value, a.value):
            raise Unsupported("squares of something else")
    found = code.definition(mean)
    if found is None or not any(inside(found.declaration, node) for node in between):
        raise Unsupported("a mean that was there before")
    if _mentions(source, second.body, named) != len(sides):
        raise Unsupported("a mean that is used in another way too")
    _reduction(code, kernel, a, "sum")
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


def _is_reduced(code: Code, name: Node, fold: Fold, between: list[Node]) -> bool:
    """Whether a name is what the fold's total was reduced to, perhaps under another name."""
    here: Node | None = name
    for _ in range(6):
        if here is None:
            return False
        if here.type == "call_expression":
            listed = here.child_by_field_name("arguments")
            argument = listed.named_children[0] if listed is not None and listed.named_child_count == 1 else None
            called = code.source.of(here.child_by_field_name("function")).split("<")[0]
            return called == "block_max" and argument is not None and code.source.of(argument) == fold.total
        found = code.definition(here) if here.type == "identifier" else None
        if found is None or code.mutated(found) or not any(inside(found.declaration, n) for n in between):
            return False
        here = found.value
    return False


def _mentions(source: Source, node: Node, name: str) -> int:
    return sum(source.of(n) == name for n in source.walk(node, "identifier"))


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


def _remove(edits: Edits, source: Source, node: Node) -> None:
    """Deletes a statement with its line."""
    start, end = _line_start(source, node), node.end_byte
    if source.data[start : node.start_byte].strip() or source.data[end : end + 1] != b"\n":
        start = node.start_byte
    else:
        end += 1
    edits.changes.append((start, end, ""))
