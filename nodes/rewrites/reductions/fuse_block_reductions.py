"""The threads of a block exchange a row's maximum and the sum of exponentials below it together, instead of one after the other.

    const float shift = block_max<0>(largest);             for (...) sum += expf(v - largest);  // each below its own
    for (...) sum += expf(v - shift);                 ->   const auto of_block = block_shifted_sum<0>(largest, sum, ...);
    const float total = block_sum<1>(sum);                 const float shift = of_block.shift, total = of_block.sum;

Each thread sums below the largest value that it has seen itself, and the sums are brought below the row's largest as they
meet: exp(v - a) * exp(a - b) = exp(v - b), and a is no smaller than any v, so that nothing overflows that did not. A later
pass over the same elements takes the thread's own exponential times one factor, which could be kept. Threads whose
elements are all -inf subtract the lowest finite number.

Applies to neighbouring loops over the same elements, in a loop over rows only where a barrier comes before the next
exchange. Whether the pair of an online recurrence may meet so, online_reduction decides, which knows what its sums come to.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.block_shape import is_barrier
from nodes.rewrites.analysis.device_code import Code, Definition, code_of, inside
from nodes.rewrites.analysis.insertions import require
from nodes.rewrites.analysis.kernels import Kernel, Loop
from nodes.rewrites.analysis.numbers import ONE_MEANING
from nodes.rewrites.analysis.regions import thread_loops
from nodes.rewrites.prelude.block_reductions import brought
from nodes.rewrites.reductions.warp_shuffle_reduction import next_site
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import enclosing, field_of, is_zero, one_variable, same, upward

SPEEDUP = 1.0
LONG_BYTES = 16 << 10
"""Of a row. Measured on an H200: rows of 16 KB and more took 1 to 16 % less, shorter ones up to 12 % more, since blocks are narrow
there, and every thread has an exponential more."""

_WHOLE = {"identifier", "call_expression", "cast_expression", "subscript_expression", "number_literal", "field_expression",
          "parenthesized_expression"}  # fmt: skip
"""What needs no parentheses wherever it stands."""
_BELOW = "$f($value - $shift)"
_FOLDS = {"sum": ("$total += $value",), "max": ("$total = $f($total, $value)", "$total = $f($value, $total)")}
_MAXIMA = {"fmaxf", "max", "fmax"}
LOWEST = "-3.402823466e+38f"


def speedup(facts: Facts) -> float:
    """Worth a first plan where most rows are long."""
    return 0.95 * SPEEDUP + 0.15 * facts.share_of_workloads(lambda _, row_bytes: row_bytes >= LONG_BYTES)


@rule(
    "cuda",
    expected="one exchange over the block a row instead of two, and nobody waits for the maximum to begin the sum",
    speedup=speedup,
    helps={"memory", "latency"},
    after=("redundant_broadcast",),
    risks=(Outcome.INCORRECT,),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    if not {"block_sum", "block_max"} <= brought(source):
        return None
    text = source.text
    for number in range(len(code_of(source).kernels)):
        text = _once(source.reparsed(text), number) or text
    return text if text != source.text else None


def _once(source: Source, number: int) -> str | None:
    code = code_of(source)
    kernel = code.kernels[number]
    for first, second in pairwise(thread_loops(kernel)):
        try:
            return _Exchange(code, kernel, first, second).text()
        except Unsupported:
            continue
    return None


@dataclass(frozen=True)
class _Total:
    """All that a loop leaves behind, and where that is reduced over the block, the one place where it is read."""

    found: Definition
    value: Node
    """What each element adds, or is compared."""
    call: Node
    """`block_sum<0>(total)`"""


def _total(code: Code, kernel: Kernel, loop: Loop, kind: str) -> _Total:
    """Raises Unsupported for a loop that leaves anything else behind than one sum, or maximum, of all its elements."""
    source, outer = code.source, list[tuple[Node, Definition]]()
    for node in source.walk(loop.body, "assignment_expression", "update_expression"):
        found = code.variable(field_of(node, "left") or field_of(node, "argument"))
        if found is None:
            raise Unsupported("an assignment to something that is no variable")
        if not inside(found.declaration, loop.body):
            outer.append((node, found))
    if len(outer) != 1:
        raise Unsupported("a loop with more than one result, or none")
    ((node, found),) = outer
    form = match(source, node, *_FOLDS[kind])
    if form is None or ("f" in form and source.of(form["f"]).removeprefix("std::") not in _MAXIMA):
        raise Unsupported("no sum and no maximum")
    if source.of(found.declaration, "type") != "float" or found.kind != "local":
        raise Unsupported("a total of another type")
    if len(found.declaration.children_by_field_name("declarator")) != 1:
        raise Unsupported("a total that is declared among others")
    if mentions(source, loop.body, found.name) != len(form.every["total"]):
        raise Unsupported("a total that is read on the way")
    around = {here.type for here in upward(node.parent, loop.body)}
    if not around <= {"compound_statement", "expression_statement"}:
        raise Unsupported("a fold that some elements skip")
    reads = [use for use in code.uses(found, kernel.body) if not inside(use, loop.body)]
    call = enclosing(reads[0], "call_expression") if len(reads) == 1 else None
    if call not in kernel.calls(f"block_{kind}") or [n.id for n in field_of(call, "arguments").named_children] != [
        reads[0].id
    ]:
        raise Unsupported("a total that is not reduced, or read elsewhere too")
    return _Total(found, form["value"], call)


def mentions(source: Source, node: Node, name: str) -> int:
    return sum(source.of(n) == name for n in source.walk(node, "identifier"))


class _Exchange:
    """Raises Unsupported where the two passes are not a maximum and the sum of exponentials below it."""

    def __init__(self, code: Code, kernel: Kernel, first: Loop, second: Loop) -> None:
        self.code, self.kernel, self.source, self.second = code, kernel, code.source, second
        if not _alike(first, second) or first.name != second.name or not same(first.node.parent, second.node.parent):
            raise Unsupported("loops over different elements")
        written = (a.node for a in kernel.accesses if a.root and a.writes)
        if kernel.escapes or any(inside(n, first.node) or inside(n, second.node) for n in written):
            raise Unsupported("a pass that writes")
        self.largest, self.sum = _total(code, kernel, first, "max"), _total(code, kernel, second, "sum")
        self.between = self._between(first)
        below = match(self.source, self.sum.value, _BELOW)
        shift = code.variable(below["shift"]) if below is not None else None
        if below is None or shift is None or self.source.of(below["f"]) not in ONE_MEANING:
            raise Unsupported("no sum of exponentials")
        self.function, self.value, self.shift = self.source.of(below["f"]), below["value"], below["shift"]
        self.defined = shift
        if not self._is_over():
            raise Unsupported("an exchange that begins before the last one was read")
        if _spelled(code, self.value, second) != _spelled(code, self.largest.value, first):
            raise Unsupported("an exponential of something else")
        if self.sum.call.start_byte < second.node.end_byte:
            raise Unsupported("a total that is reduced before it is there")
        self.moved = self._moved()

    def _between(self, first: Loop) -> list[Node]:
        """The statements between the loops: declarations that read no memory, and barriers. The sum begins with 0."""
        source, found = self.source, []
        for node in first.node.parent.named_children:
            if not first.node.end_byte <= node.start_byte < self.second.node.start_byte or node.type == "comment":
                continue
            reads = any(inside(a.node, node) for a in self.kernel.accesses)
            changes = source.has(node, "assignment_expression", "update_expression")
            if not is_barrier(source, node) and (node.type != "declaration" or reads or changes):
                raise Unsupported("something else happens between the passes")
            found.append(node)
        start = self.sum.found.value
        if start is None or not is_zero(source.of(start)):
            raise Unsupported("a total that does not start from zero")
        return found

    def _is_over(self) -> bool:
        """Whether an exchange behind the second pass is read before the next begins: it is not in a loop, or a barrier comes
        behind it in the loop's body."""
        body, last = self.second.node.parent, self.second.node
        behind = [node for node in body.named_children if node.start_byte > last.end_byte]
        return same(body, self.kernel.body) or any(is_barrier(self.source, node) for node in behind)

    def _moved(self) -> list[Node]:
        """The declarations between the passes that have the maximum in them, in a straight line: the shift's is one."""
        source, names, moved = self.source, set[str](), list[Node]()
        for node in self.between:
            words = {source.of(n) for n in source.walk(node, "identifier")}
            if inside(self.largest.call, node) or words & names:
                variable = one_variable(node)
                if variable is None:
                    raise Unsupported("a maximum among other declarations")
                moved.append(node)
                names.add(source.of(variable[0]))
        here: Node | None = self.shift
        while (found := self.code.variable(here)) is not None and not self.code.mutated(found):
            if not any(same(found.declaration, node) for node in moved):
                break
            here = found.value
        if not same(here, self.largest.call):
            raise Unsupported("an exponential below something else than the maximum")
        if any(mentions(source, self.second.body, n) != (n == self.defined.name) for n in names):
            raise Unsupported("a maximum that the second pass wants for something else")
        return moved

    def text(self) -> str:
        source, code, second = self.source, self.code, self.second.node
        indent, edits = source.indent(second), Edits(source)
        own, of_block, largest = code.fresh("own_shift"), code.fresh("of_block"), self.largest.found.name
        start = largest if self._starts_finite() else f"fmaxf({largest}, {LOWEST})"
        edits.insert(source.line_start(self.between[0]), f"{indent}const float {own} = {start};\n")
        edits.replace(self.shift, own)
        for node in self.moved:
            edits.remove(node)
        call = f"block_shifted_sum<{next_site(code)}>({own}, {self.sum.found.name}, {self.function})"
        lines = [f"const ShiftedSum<float> {of_block} = {call};"]
        lines += [source.render(node, [(self.largest.call, f"{of_block}.shift")]).strip() for node in self.moved]
        again = self._again()
        if again:
            factor = code.fresh("to_block")
            lines.append(f"const float {factor} = {self.function}({own} - {self.defined.name});")
            for node, value in again:
                text = f"{self.function}({source.of(value)} - {own}) * {factor}"
                edits.replace(node, text if _stands_alone(node) else f"({text})")
        edits.insert(second.end_byte, "".join(f"\n{indent}{line}" for line in lines))
        edits.replace(self.sum.call, f"{of_block}.sum")
        require(edits, code, "block_shifted_sum")
        return edits.apply()

    def _starts_finite(self) -> bool:
        """Whether the maximum is finite before the first element, by its words."""
        value = self.largest.found.value
        return value is not None and self.source.of(value).replace(" ", "") in {"-FLT_MAX", LOWEST}

    def _again(self) -> list[tuple[Node, Node]]:
        """The same exponentials in later passes of the same threads over the same elements, which nobody wrote meanwhile, and
        what they are of."""
        code, kernel, second, found = self.code, self.kernel, self.second, list[tuple[Node, Node]]()
        inputs = {a.root for a in kernel.accesses if inside(a.node, second.node)}
        spelled = _spelled(code, self.value, second)
        for loop in thread_loops(kernel):
            if loop.node.start_byte < second.node.end_byte or not _alike(loop, second):
                continue
            meanwhile = range(second.node.end_byte, loop.node.start_byte)
            writes = {a.root for a in kernel.accesses if a.writes and a.node.start_byte in meanwhile}
            if writes & inputs or "?" in writes:
                break
            written = [a.node for a in kernel.accesses if a.writes and a.root in inputs and inside(a.node, loop.node)]
            for call in self.source.walk(loop.body, "call_expression"):
                value = self._value_in(call)
                if value is None or any(node.end_byte <= call.start_byte for node in written):
                    continue
                try:
                    if _spelled(code, value, loop) == spelled:
                        found.append((call, value))
                except Unsupported:
                    continue
        return found

    def _value_in(self, call: Node) -> Node | None:
        """`v` of `exp(v - shift)`; None for anything else."""
        below = match(self.source, call, _BELOW)
        shift = self.code.variable(below["shift"]) if below is not None else None
        if below is None or shift is None or shift.where != self.defined.where:
            return None
        return below["value"] if self.source.of(below["f"]) == self.function else None


def _alike(loop: Loop, other: Loop) -> bool:
    """Whether they give each thread the same elements."""
    return (loop.start, loop.step, loop.bound) == (other.start, other.step, other.bound)


def _spelled(code: Code, node: Node, loop: Loop) -> str:
    """An expression's words, with the values of what the loop's body declares in place of its names, and `element` for the
    loop's variable."""
    if node.type == "identifier":
        found = code.definition(node)
        if code.source.of(node) == loop.name:
            return "element"
        if found is not None and inside(found.declaration, loop.body):
            if found.value is None or code.mutated(found):
                raise Unsupported("a value that changes")
            spelled = _spelled(code, found.value, loop)
            return spelled if found.value.type in _WHOLE else f"( {spelled} )"
    if node.named_child_count == 0 or node.type in {"template_function", "qualified_identifier"}:
        return " ".join(code.source.of(node).split())
    return " ".join(_spelled(code, child, loop) for child in node.children if child.type != "comment")


def _stands_alone(node: Node) -> bool:
    """Whether a product may take its place as it is."""
    parent = node.parent
    return parent is not None and parent.type in {"argument_list", "parenthesized_expression", "init_declarator"}
