"""Where the lanes of a warp reduce a value by shuffles, recognised by what every lane is left with (see block_values.py),
and the reductions over parts of a warp that take their place."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

from tree_sitter import Node

from nodes.rewrites.analysis.block_arithmetic import UNKNOWN
from nodes.rewrites.analysis.block_values import WARP
from nodes.rewrites.analysis.device_code import Code, Definition, inside
from nodes.rewrites.analysis.insertions import bring
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.analysis.numbers import close
from nodes.rewrites.prelude import text_of
from nodes.rewrites.reductions.runs import Run, slots_of
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import children_of, field_of, pragma_of, same, statements, upward

ORDERED = frozenset({
    "float", "double", "int", "int32_t", "int64_t", "long", "long long", "unsigned", "unsigned int", "uint32_t", "uint64_t",
    "size_t",
})  # fmt: skip
"""Types that CUDA's own max() and min() take."""
_TALKS = re.compile(r"__(sync|shfl|ballot|any|all|reduce|match|activemask|nanosleep)|^atomic|^sync|^reduce$|^shfl")


@dataclass(frozen=True)
class Reduction:
    """A call, or statements in a row, after which every lane has what the lanes of its part of the warp had."""

    kind: str
    """sum, max or min"""
    nodes: tuple[Node, ...]
    value: str
    """What is reduced, as it is written."""
    element: str
    """Its type."""
    argument: Node
    """Where it is named."""

    def over(self, team: str) -> str:
        """What stands in their place, for teams of so many lanes."""
        call = f"team_{self.kind}<{team}>({self.value})"
        return call if self.nodes[0].type == "call_expression" else f"{self.value} = {call};"

    def sets(self, source: Source) -> str:
        """The variable that the result replaces, "" where it goes elsewhere."""
        first = self.nodes[0]
        if first.type != "call_expression":
            return self.value
        form = match(source, first.parent, "$variable = $call")
        return source.of(form["variable"]) if form is not None and same(form["call"], first) else ""


def require_team(edits: Edits, code: Code, kinds: set[str], *, planar: bool) -> None:
    """The reductions over teams; `planar` where threads of one warp may differ in `threadIdx.y`."""
    place = "(threadIdx.y * blockDim.x + threadIdx.x)" if planar else "threadIdx.x"
    for kind in sorted(kinds):
        bring(edits, code, text_of(f"team_{kind}").replace("threadIdx.x", place))


def reductions(code: Code, kernel: Kernel, size: int) -> list[Reduction]:
    """Every place where lanes talk, in source order, for parts of a warp of `size` lanes. Raises Unsupported where that is
    anything but a reduction that leaves every lane with the result."""
    found: list[Reduction] = []
    for call in code.source.walk(kernel.body, "call_expression"):
        if not any(inside(call, node) for r in found for node in r.nodes) and _talks(code, call):
            found.append(_reduction(code, kernel, size, call))
    if not found:
        raise Unsupported("no reduction")
    return found


def called(source: Source, call: Node) -> str:
    """The last part of a called function's name."""
    function = field_of(call, "function")
    if function is not None and function.type == "field_expression":
        return source.of(function, "field")
    return source.of(function).split("<")[0].split("::")[-1]


def _talks(code: Code, call: Node) -> bool:
    name, functions = called(code.source, call), code.reached(called(code.source, call))
    inner = (called(code.source, c) for function in functions for c in code.source.walk(function, "call_expression"))
    return any(_TALKS.search(each) for each in (name, *inner))


def _reduction(code: Code, kernel: Kernel, size: int, call: Node) -> Reduction:
    """`f(v)`, or `for (offset = 16; ...) v += __shfl_xor_sync(~0u, v, offset);` and the same in several statements."""
    source, arguments, pragmas = code.source, children_of(call, "arguments"), list[Node]()
    nodes, argument = [call], arguments[0] if len(arguments) == 1 else None
    if argument is None or len(code.overloads.get(called(source, call), [])) != 1:
        first = next(here for here in upward(call) if here.parent is None or here.parent.type == "compound_statement")
        argument = next(_outer_targets(code, first), None)
        behind = [s for s in statements(first.parent) if s.start_byte >= first.start_byte and s.type != "preproc_call"]
        nodes = list(takewhile(lambda s: _is_about(code, s, source.of(argument)), behind))
        pragmas = [pragma for pragma in map(pragma_of, nodes) if pragma is not None]
    held = code.variable(argument)
    if held is None or held.kind != "local" or slots_of(code, held) or not nodes:
        raise Unsupported("a reduction of something that has no name")
    kind = _kind(code, kernel, size, held, nodes)
    return Reduction(kind, (*nodes, *pragmas), held.name, source.of(held.declaration, "type"), argument)


def _is_about(code: Code, statement: Node, name: str) -> bool:
    """Whether lanes talk in a statement, and nothing but this variable changes."""
    talks = any(_talks(code, call) for call in code.source.walk(statement, "call_expression"))
    plain = statement.type in {"for_statement", "expression_statement"}
    return talks and plain and {code.source.of(target) for target in _outer_targets(code, statement)} == {name}


def _outer_targets(code: Code, statement: Node) -> Iterator[Node]:
    """What a statement assigns to, but for variables of its own."""
    for target in code.assigned(statement):
        found = code.definition(target)
        if found is None or not inside(found.declaration, statement):
            yield target


def _kind(code: Code, kernel: Kernel, size: int, held: Definition, nodes: list[Node]) -> str:
    """The kind of reduction of a variable, by what lanes are left with. Raises Unsupported where a lane does not end with all of
    its part of the warp, and no more."""
    element, numbers = code.source.of(held.declaration, "type"), random.Random(size)
    shares = [numbers.gauss(0.0, 2.0) for _ in range(WARP)]
    parts = [shares[lane // size * size :][:size] for lane in range(WARP)]
    kinds = {"sum": math.fsum, "max": max, "min": min} if element in ORDERED else {"sum": math.fsum}
    for launch in kernel.launches:
        run = Run(code, kernel, launch, WARP, {held.name: shares})
        for node in nodes:
            left = run.block.value(node, run.frame, run.active) if node.type == "call_expression" else run.step(node)
        lanes = run.block.merged(UNKNOWN, left or run.frame.scopes[0][held.name], run.active)
        kinds = {kind: of for kind, of in kinds.items() if all(map(close, lanes, map(of, parts)))}
    if not kinds or not kernel.launches:
        raise Unsupported("no reduction for every lane")
    return next(iter(kinds))
