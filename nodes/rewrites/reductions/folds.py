"""What a thread's loop over a row leaves behind, a sum or a maximum, and where that is reduced over the block: what fuse_block_reductions
reads."""

from __future__ import annotations

from dataclasses import dataclass

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import Code, inside
from nodes.rewrites.analysis.kernels import Kernel, Loop
from nodes.rewrites.prelude.block_reductions import brought
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Source, Unsupported
from nodes.rewrites.syntax.tree import field_of, same, statements

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


@dataclass(frozen=True)
class Passes:
    """Two neighbouring loops over the same elements, each of which leaves a total behind; the second one a sum."""

    first: Loop
    second: Loop
    a: Fold
    b: Fold
    between: list[Node]


def two_passes(code: Code, kernel: Kernel, first: Loop, second: Loop) -> Passes:
    """Raises Unsupported for other loops, and for those that write to memory."""
    alike = (first.start, first.step, first.bound, first.name) == (second.start, second.step, second.bound, second.name)
    if not alike or not same(first.node.parent, second.node.parent) or first.node.parent is None:
        raise Unsupported("loops over different elements")
    if kernel.escapes or any(
        a.root and a.writes and (inside(a.node, first.node) or inside(a.node, second.node)) for a in kernel.accesses
    ):
        raise Unsupported("a pass that writes")
    a, b = _fold(code, first), _fold(code, second)
    if a.where == b.where or b.kind != "sum":
        raise Unsupported("totals that do not go together")
    return Passes(first, second, a, b, _between(code, kernel, first, second, b))


def below_maximum(code: Code, kernel: Kernel, passes: Passes) -> tuple[str, Node, Node]:
    """Of a maximum and a sum of exponentials below it: the exponential's name, what it takes, and where it names the
    maximum. Whether both passes take the same of an element, the caller asks."""
    source, a, b = code.source, passes.a, passes.b
    function = source.of(b.value, "function") if b.value.type == "call_expression" else ""
    listed = field_of(b.value, "arguments") if function in EXPONENTIALS else None
    below = listed.named_children[0] if listed is not None and listed.named_child_count == 1 else None
    if below is None or below.type != "binary_expression" or source.of(below, "operator") != "-":
        raise Unsupported("no sum of exponentials")
    value, shift = field_of(below, "left"), field_of(below, "right")
    if value is None or shift is None or shift.type != "identifier":
        raise Unsupported("an exponential of something else")
    reduction_of(code, kernel, a, "max")
    if not _is_reduced(code, shift, a, passes.between) or mentions(source, passes.second.body, source.of(shift)) != 1:
        raise Unsupported("an exponential below something else than the maximum")
    return function, value, shift


def _fold(code: Code, loop: Loop) -> Fold:
    source = code.source
    outer = []
    for node in source.walk(loop.body, "assignment_expression", "update_expression"):
        target = field_of(node, "left" if node.type == "assignment_expression" else "argument")
        found = code.variable(target)
        if found is None:
            raise Unsupported("an assignment to something that is no variable")
        if not inside(found.declaration, loop.body):
            outer.append((node, found))
    if len(outer) != 1 or outer[0][0].type != "assignment_expression":
        raise Unsupported("a loop with more than one result, or none")
    node, found = outer[0]
    form = match(source, node, "$v += $e", "$v = $f($v, $e)", "$v = $f($e, $v)")
    kind, value = "", form["e"] if form is not None else None
    if form is not None:
        kind = "sum" if "f" not in form else "max" if source.of(form["f"]).removeprefix("std::") in MAXIMA else ""
    type_ = source.of(found.declaration, "type")
    if not kind or value is None or type_ != "float" or found.kind != "local":
        raise Unsupported("no sum and no maximum")
    if len(found.declaration.children_by_field_name("declarator")) != 1:
        raise Unsupported("a total that is declared among others")
    if any(source.of(n) == found.name for n in source.walk(value, "identifier")):
        raise Unsupported("a total that is read on the way")
    reads = sum(source.of(n) == found.name for n in source.walk(loop.body, "identifier"))
    if reads != (1 if kind == "sum" else 2):
        raise Unsupported("a total that is read on the way")
    statement = node
    while statement.parent is not None and not any(same(statement, s) for s in statements(loop.body)):
        statement = statement.parent
        if statement.type not in {"compound_statement", "expression_statement"}:
            raise Unsupported("a fold that some elements skip")
    return Fold(kind, found.name, type_, found.where, found.declaration, value, statement)


def _between(code: Code, kernel: Kernel, first: Loop, second: Loop, total: Fold) -> list[Node]:
    """The statements between the loops: declarations that read no memory, and barriers."""
    source = code.source
    found = []
    for node in first.node.parent.named_children:
        if not first.node.end_byte <= node.start_byte < second.node.start_byte or node.type == "comment":
            continue
        barrier = source.of(node).replace(" ", "") == "__syncthreads();"
        reads = any(inside(a.node, node) for a in kernel.accesses)
        changes = source.has(node, "assignment_expression", "update_expression")
        if not barrier and (node.type != "declaration" or reads or changes):
            raise Unsupported("something else happens between the passes")
        found.append(node)
    zero = field_of(total.declaration, "declarator")
    value = source.of(zero, "value") if zero is not None and zero.type == "init_declarator" else ""
    if value.rstrip("fF") not in {"0", "0.", "0.0"}:
        raise Unsupported("a total that does not start from zero")
    return found


def reduction_of(code: Code, kernel: Kernel, fold: Fold, kind: str) -> Node:
    """The one place where a total is read: the argument of its reduction over the block."""
    if f"block_{kind}" not in brought(code.source):
        raise Unsupported("a reduction that is somebody else's")
    for call in kernel.calls(f"block_{kind}"):
        listed = field_of(call, "arguments")
        argument = listed.named_children[0] if listed is not None and listed.named_child_count == 1 else None
        if argument is None or argument.type != "identifier" or code.source.of(argument) != fold.total:
            continue
        found = code.definition(argument)
        if found is not None and found.where == fold.where:
            count = 0
            for node in code.source.walk(kernel.body, "identifier"):
                if code.source.of(node) == fold.total:
                    there = code.definition(node)
                    count += there is not None and there.where == fold.where
            # The fold itself, its reduction, and for a maximum the second mention in the fold; the declaration is none.
            if count == (3 if fold.kind == "max" else 2):
                return argument
    raise Unsupported("a total that is not reduced, or read elsewhere too")


def _is_reduced(code: Code, name: Node, fold: Fold, between: list[Node]) -> bool:
    """Whether a name is what the fold's total was reduced to, perhaps under another name."""
    here: Node | None = name
    for _ in range(6):
        if here is None:
            return False
        if here.type == "call_expression":
            listed = field_of(here, "arguments")
            argument = listed.named_children[0] if listed is not None and listed.named_child_count == 1 else None
            called = code.source.of(here, "function").split("<")[0]
            return called == "block_max" and argument is not None and code.source.of(argument) == fold.total
        found = code.variable(here)
        if found is None or code.mutated(found) or not any(inside(found.declaration, n) for n in between):
            return False
        here = found.value
    return False


def mentions(source: Source, node: Node, name: str) -> int:
    return sum(source.of(n) == name for n in source.walk(node, "identifier"))
