"""The threads of a block exchange a row's maximum and the sum of exponentials below it together, instead of one after the other.

    const float shift = block_max<0>(largest);             for (...) sum += expf(v - largest);  // each below its own
    for (...) sum += expf(v - shift);                 ->   const auto of_block = block_shifted_sum<0>(largest, sum, ...);
    const float total = block_sum<1>(sum);                 const float shift = of_block.shift, total = of_block.sum;

Each thread sums below the largest value that it has seen itself, and the sums are brought below the row's largest as they
meet: exp(v - a) * exp(a - b) = exp(v - b), and a is no smaller than any v, so that nothing overflows that did not. A later
pass over the same elements takes the thread's own exponential times one factor, which lets cache_values_in_registers keep it. Threads whose
elements are all -inf subtract the lowest finite number.

Applies to neighbouring loops over the same elements (see _folds.py), in a loop over rows only where a barrier comes before the next
exchange. Whether the pair of an online recurrence may meet so, online_reduction decides, which knows what its sums come to.
"""

from __future__ import annotations

from itertools import pairwise

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.block_shape import is_barrier
from nodes.rewrites.analysis.device_code import Code, Definition, code_of, inside
from nodes.rewrites.analysis.insertions import require
from nodes.rewrites.analysis.kernels import Kernel, Loop
from nodes.rewrites.analysis.regions import thread_loops
from nodes.rewrites.prelude.block_reductions import brought
from nodes.rewrites.reductions.folds import Passes, below_maximum, mentions, reduction_of, two_passes
from nodes.rewrites.reductions.warp_shuffle_reduction import next_site
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.source import Edits, Source, Unsupported, only_argument
from nodes.rewrites.syntax.tree import enclosing, field_of, one_variable, same

SPEEDUP = 1.0
LONG_BYTES = 16 << 10
"""Of a row. Measured on an H200: rows of 16 KB and more took 1 to 16 % less, shorter ones up to 12 % more, since blocks are narrow
there, and every thread has an exponential more."""

_WHOLE = {"identifier", "call_expression", "cast_expression", "subscript_expression", "number_literal", "field_expression",
          "parenthesized_expression"}  # fmt: skip
"""What needs no parentheses wherever it stands."""
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
            return _Exchange(code, kernel, two_passes(code, kernel, first, second)).text()
        except Unsupported:
            continue
    return None


def _is_over(source: Source, kernel: Kernel, last: Node) -> bool:
    """Whether an exchange at the statement is read before the next begins: it is not in a loop, or a barrier comes behind
    it in the loop's body."""
    body = last.parent
    if body is None or same(body, kernel.body):
        return True
    return any(is_barrier(source, node) for node in body.named_children if node.start_byte > last.end_byte)


class _Exchange:
    """Raises Unsupported where the two passes are not a maximum and the sum of exponentials below it."""

    def __init__(self, code: Code, kernel: Kernel, passes: Passes) -> None:
        self.code, self.kernel, self.source, self.passes = code, kernel, code.source, passes
        self.function, self.value, self.shift = below_maximum(code, kernel, passes)
        found = code.definition(self.shift)
        if self.function == "exp":
            raise Unsupported("a function of several types")
        if found is None or not _is_over(self.source, kernel, passes.second.node):
            raise Unsupported("an exchange that begins before the last one was read")
        self.defined: Definition = found
        if _spelled(code, self.value, passes.second) != _spelled(code, passes.a.value, passes.first):
            raise Unsupported("an exponential of something else")
        self.maximum = _call(reduction_of(code, kernel, passes.a, "max"))
        self.total = _call(reduction_of(code, kernel, passes.b, "sum"))
        if self.total.start_byte < passes.second.node.end_byte:
            raise Unsupported("a total that is reduced before it is there")
        self.moved = self._moved()

    def _moved(self) -> list[Node]:
        """The declarations between the passes that have the maximum in them, in a straight line."""
        source, names, moved = self.source, set[str](), list[Node]()
        for node in self.passes.between:
            words = {source.of(n) for n in source.walk(node, "identifier")}
            if inside(self.maximum, node) or words & names:
                variable = one_variable(node)
                if variable is None:
                    raise Unsupported("a maximum among other declarations")
                moved.append(node)
                names.add(source.of(variable[0]))
        if not moved or any(mentions(source, self.passes.second.body, n) != (n == self.defined.name) for n in names):
            raise Unsupported("a maximum that the second pass wants for something else")
        return moved

    def text(self) -> str:
        source, code, second = self.source, self.code, self.passes.second.node
        indent, edits = source.indent(second), Edits(source)
        own, of_block = code.fresh("own_shift"), code.fresh("of_block")
        start = self.passes.a.total if self._starts_finite() else f"fmaxf({self.passes.a.total}, {LOWEST})"
        edits.insert(source.line_start(self.passes.between[0]), f"{indent}const float {own} = {start};\n")
        edits.replace(self.shift, own)
        for node in self.moved:
            edits.remove(node)
        site = next_site(code)
        call = f"block_shifted_sum<{site}>({own}, {self.passes.b.total}, {self.function})"
        lines = [f"const ShiftedSum<float> {of_block} = {call};"]
        lines += [source.render(node, [(self.maximum, f"{of_block}.shift")]).strip() for node in self.moved]
        again = self._again()
        if again:
            factor = code.fresh("to_block")
            lines.append(f"const float {factor} = {self.function}({own} - {self.defined.name});")
            for node in again:
                text = f"{self.function}({source.of(self._value_in(node))} - {own}) * {factor}"
                edits.replace(node, text if _stands_alone(node) else f"({text})")
        edits.insert(second.end_byte, "".join(f"\n{indent}{line}" for line in lines))
        edits.replace(self.total, f"{of_block}.sum")
        require(edits, code, "block_shifted_sum")
        return edits.apply()

    def _starts_finite(self) -> bool:
        """Whether the maximum is finite before the first element, by its words."""
        value = field_of(self.passes.a.declaration, "declarator", "value")
        return self.source.of(value).replace(" ", "") in {"-FLT_MAX", LOWEST} if value is not None else False

    def _value_in(self, call: Node) -> Node:
        """`v` of `exp(v - shift)`"""
        left, right = _difference(self.source, call)
        found = self.code.variable(right)
        if found is None or found.where != self.defined.where:
            raise Unsupported("a difference from something else")
        return left

    def _again(self) -> list[Node]:
        """The same exponentials in later passes of the same threads over the same elements, which nobody wrote meanwhile."""
        code, kernel, second, found = self.code, self.kernel, self.passes.second, list[Node]()
        inputs = {a.root for a in kernel.accesses if inside(a.node, second.node)}

        def written_before(call: Node, loop: Loop) -> bool:
            """Whether the pass has written by then to what the second pass read."""
            written = (a for a in kernel.accesses if a.writes and a.root in inputs and inside(a.node, loop.node))
            return any(a.node.end_byte <= call.start_byte for a in written)

        for loop in thread_loops(kernel):
            alike = (loop.start, loop.step, loop.bound) == (second.start, second.step, second.bound)
            if loop.node.start_byte < second.node.end_byte or not alike:
                continue
            meanwhile = range(second.node.end_byte, loop.node.start_byte)
            writes = {a.root for a in kernel.accesses if a.writes and a.node.start_byte in meanwhile}
            if writes & inputs or "?" in writes:
                break
            spelled = _spelled(code, self.value, second)
            for call in self.source.walk(loop.body, "call_expression"):
                if self.source.of(call, "function") != self.function:
                    continue
                try:
                    if _spelled(code, self._value_in(call), loop) == spelled and not written_before(call, loop):
                        found.append(call)
                except Unsupported:
                    continue
        return found


def _difference(source: Source, call: Node) -> tuple[Node, Node]:
    """a and b of `f(a - b)`"""
    below = only_argument(call)
    sides = [field_of(below, side) for side in ("left", "right")]
    if source.of(below, "operator") != "-" or sides[0] is None or sides[1] is None:
        raise Unsupported("no difference")
    return sides[0], sides[1]


def _call(argument: Node) -> Node:
    """The call that an argument stands in."""
    here = enclosing(argument, "call_expression")
    if here is None:
        raise Unsupported("no call around the argument")
    return here


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
