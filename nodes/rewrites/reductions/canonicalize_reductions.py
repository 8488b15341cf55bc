"""Somebody's own reduction over the block becomes `block_sum` or a sibling of that, from which the other steps go on.

    sum = blockReduceSum<float>(sum);                   const float sum_of_block = block_sum<0>(sum);
    if (threadIdx.x == 0) total = sum;           ->     if (threadIdx.x == 0) total = sum_of_block;

Recognised by what it does and not by its name (joined.py): where the statements behind a variable leave the sum of what each thread
had there, or the largest or smallest of that, perhaps with a bound. Forms: a call of a function; the same statements written into
the kernel; a tree in shared memory. What is left of them, helpers, slots and barriers that nothing needs any
more, goes.

Theirs shuffle whole warps only, or their results would be undefined, so blocks are whole warps already; a tree says nothing of the
kind, so its blocks' width must be known.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import suppress

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.block_arithmetic import UNKNOWN
from nodes.rewrites.analysis.device_code import Code, Definition, inside, one_after_another, one_by_one
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.analysis.numbers import close
from nodes.rewrites.analysis.regions import THREAD
from nodes.rewrites.prelude import brought, next_site
from nodes.rewrites.reductions.idle_threads import without_idle
from nodes.rewrites.reductions.joined import End, Joined, Places, shapes_of
from nodes.rewrites.reductions.runs import Run, Threads, slots_of
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import LOOPS, children_of, field_of, one_variable, same, statements, upward

MOST = 32
"""Reductions of one file."""
_SOMETIMES = LOOPS | {"if_statement", "conditional_expression", "lambda_expression"}


@rule(
    "cuda",
    expected="one barrier a reduction, not one for every halving of a tree, and later steps see a reduction that they know",
    speedup=1.15,
    helps={"memory", "latency", "compute"},
    after=("restrict_pointers",),
    risks=(Outcome.INCORRECT, Outcome.RUNTIME_ERROR),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    if "__syncthreads" not in source.text:
        return None
    named = source.reparsed(one_by_one(source, _name_result, _results, MOST) or source.text)
    text = one_after_another(named, _next, MOST)
    return without_idle(source.reparsed(text)) if text is not None else None


def called(source: Source, call: Node) -> str:
    """The last part of a called function's name."""
    function = field_of(call, "function")
    if function is not None and function.type == "field_expression":
        return source.of(function, "field")
    return source.of(function).split("<")[0].split("::")[-1]


def _results(code: Code) -> Iterator[tuple[Node, Definition]]:
    """Calls of functions with barriers, each with the variable that it is given."""
    ours = brought(code.source)
    for kernel in code.kernels:
        for call in code.source.walk(kernel.body, "call_expression"):
            name = code.source.called(call)
            inner = (c for f in code.reached(name) for c in code.source.walk(f, "call_expression"))
            if name not in ours and any(code.source.called(c) == "__syncthreads" for c in inner):
                yield from ((call, found) for found in _given(code, call, call))


def _name_result(edits: Edits, code: Code, call: Node, given: Definition) -> None:
    """`rsqrtf(blockReduceSum(sum) / n)` becomes a statement that makes a variable, and one that reads it."""
    source, statement = code.source, next(here for here in upward(call) if here.parent.type == "compound_statement")
    whole = match(source, statement, "$target = $call;", "$T $target = $call;", "const $T $target = $call;")
    around = {here.type for here in upward(call.parent, statement.parent)}
    changes = list(source.walk(statement, "assignment_expression", "update_expression"))
    if (whole is not None and same(whole["call"], call)) or len(changes) > 1 or around & _SOMETIMES:
        raise Unsupported("a statement of its own, or none")
    element, name = source.of(given.declaration, "type"), code.fresh(f"{given.name}_of_block")
    edits.in_front(statement, f"const {element} {name} = {source.of(call)};")
    edits.replace(call, name)


def _next(code: Code) -> str | None:
    """The text after one reduction, the first that is understood."""
    for kernel in code.kernels:
        for body in map(statements, code.source.walk(kernel.body, "compound_statement")):
            for at, statement in enumerate(body):
                for share, call in _shares(code, statement):
                    with suppress(Unsupported):
                        return _Reduced(code, kernel, body[at:], share, call).text()
    return None


def _shares(code: Code, statement: Node) -> Iterator[tuple[Definition, Node | None]]:
    """The variables that a statement takes through shuffles, or a function with barriers, each with the call; those that it puts
    into slots, from which a tree may begin."""
    source, ours = code.source, brought(code.source)
    form = match(source, statement, "$slots[$at] = $value;")
    if form is not None and code.polynomial(form["at"]).only == THREAD:
        yield from ((found, None) for found in _variables(code, [form["value"]], statement))
    if statement.type in {"for_statement", "expression_statement", "declaration"}:
        for call in source.walk(statement, "call_expression"):
            name = called(source, call)
            inner = {name} | {called(source, c) for f in code.reached(name) for c in source.walk(f, "call_expression")}
            if name not in ours and any("shfl" in each or each == "__syncthreads" for each in inner):
                yield from ((found, call) for found in _given(code, call, statement))


def _given(code: Code, call: Node, outside: Node) -> Iterator[Definition]:
    return _variables(code, children_of(call, "arguments"), outside)


def _variables(code: Code, nodes: list[Node], outside: Node) -> Iterator[Definition]:
    """The thread's own variables among expressions."""
    for found in map(code.variable, nodes):
        if found is not None and found.kind == "local" and not slots_of(code, found):
            plain = found.form is not None and found.form.type == "identifier"
            if plain and not inside(found.declaration, outside) and code.source.of(found.declaration, "type") != "auto":
                yield found


class _Reduced(Joined):
    """The sum of a variable over the block, or its largest or smallest value."""

    def __init__(self, code: Code, kernel: Kernel, after: list[Node], share: Definition, call: Node | None) -> None:
        shapes = shapes_of(code, kernel, shuffles=call is not None)
        super().__init__(code, kernel, shapes, after, [share.name])
        self.share, self.call = share, call

    def draws(self, width: int) -> Iterator[Threads]:
        """The largest and the smallest are the last thread's, or there are none."""
        numbers = random.Random(width)
        rising = sorted(numbers.gauss(0.0, 2.0) for _ in range(width))
        for shares in (rising, rising[::-1], [-math.inf] * width, [math.inf] * width):
            yield {self.share.name: shares}

    def expected(self, run: Run, threads: Threads) -> dict[str, float]:
        """By `sum`, `max`, or `max -1e20f` where that number takes part, too."""
        shares, bounds = threads[self.share.name], run.block.bounds.items()
        found = {"sum": math.fsum(shares), "max": max(shares), "min": min(shares)}
        named = [(text, number) for number, text in bounds if math.isfinite(number)]
        found |= {f"max {text}": max(found["max"], number) for text, number in named}
        return found | {f"min {text}": min(found["min"], number) for text, number in named}

    def check(self, end: End, results: Places) -> None:
        result, *others = results
        if others:
            raise Unsupported("more than one result")
        _, width = self.shapes[-1]
        run = self.left_by({self.share.name: [math.nan] + [1.0] * (width - 1)}, end)
        value, _ = run.places().get(next(iter(results[result])), (UNKNOWN, False))
        if result == "sum" and not close(value, math.nan):
            raise Unsupported("a NaN that gets lost")

    def lines(self, edits: Edits, taken: list[Node], results: Places) -> tuple[dict[str, str], list[str]]:
        code, source, kernel = self.code, self.source, self.kernel
        ((result, places),) = results.items()
        kind, _, bound = result.partition(" ")
        element = source.of(self.share.declaration, "type")
        passed = (dict(zip(kernel.template_names, x.template_arguments, strict=False)) for x in kernel.launches)
        types = {code.plain_type(arguments.get(element, element)) for arguments in passed}
        if not types <= ({"float"} if bound else {"float", "double"}):
            raise Unsupported("a share of another type, which a function may have widened")
        inner = [*taken, *code.reached(*(source.called(c) for s in taken for c in source.walk(s, "call_expression")))]
        words = {source.of(word) for s in inner for word in source.walk(s, "primitive_type")}
        if "float" in types and "double" in words:
            raise Unsupported("a sum in another type")
        call = f"block_{kind}<{next_site(source)}>({self.share.name})"
        call = f"f{kind}f({call}, {bound})" if bound else call  # of a row that has nothing above it
        made = one_variable(taken[-1])
        if made is not None and source.of(made[0]) in places and same(taken[-1].parent, taken[0].parent):
            return {result: source.of(made[0])}, [source.render(taken[-1], [(made[1], call)])]
        name = code.fresh(f"{self.share.name}_of_block")
        return {result: name}, [f"const {element} {name} = {call};"]
