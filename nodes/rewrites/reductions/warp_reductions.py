"""Where the lanes of a warp reduce a value by shuffles, recognised by what every lane is left with (see block_values.py),
and the reductions over parts of a warp that take their place."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tree_sitter import Node

from nodes.rewrites.analysis.block_arithmetic import Part
from nodes.rewrites.analysis.block_values import WARP, Block
from nodes.rewrites.analysis.device_code import Code, inside
from nodes.rewrites.analysis.insertions import bring
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.prelude import text_of
from nodes.rewrites.reductions.surroundings import Surroundings
from nodes.rewrites.reductions.uses import slots_of
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import children_of, field_of, same, statements

KINDS = ("sum", "max", "min")
_ORDERED = frozenset({"float", "double", "int", "int32_t", "unsigned", "unsigned int", "uint32_t"})
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
        parent = first.parent
        whole = (
            parent is not None
            and parent.type == "assignment_expression"
            and same(field_of(parent, "right"), first)
            and source.of(parent, "operator") == "="
        )
        return source.of(parent, "left") if whole and parent is not None else ""


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
        if any(inside(call, node) for r in found for node in r.nodes) or not _talks(code, call):
            continue
        try:
            found.append(_of_call(code, kernel, size, call))
        except Unsupported:
            found.append(_written_out(code, kernel, size, call))
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


def _of_call(code: Code, kernel: Kernel, size: int, call: Node) -> Reduction:
    source, name = code.source, called(code.source, call)
    listed, given = field_of(call, "arguments"), field_of(call, "function")
    while given is not None and given.type == "qualified_identifier":
        given = field_of(given, "name")
    arguments = children_of(listed)
    if len(code.overloads.get(name, [])) != 1 or len(arguments) != 1:
        raise Unsupported("a reduction of another form")
    if given is None or given.type not in {"identifier", "template_function"}:
        raise Unsupported("a reduction of another form")
    held = code.variable(arguments[0])
    if held is None or held.kind != "local":
        raise Unsupported("a reduction of something that has no name")
    element, kind = source.of(held.declaration, "type"), ""
    for launch in kernel.launches:
        block = Surroundings(code, kernel, launch, WARP, element).block
        kind = _judged(block, block.call(name, given, [block.singles()], block.frame(), block.everyone), size)
    return Reduction(kind, (call,), source.of(arguments[0]), element, arguments[0])


def _written_out(code: Code, kernel: Kernel, size: int, call: Node) -> Reduction:
    """`for (offset = 16; ...) v += __shfl_xor_sync(~0u, v, offset);` and the same in several statements."""
    source, statement = code.source, call
    while statement.parent is not None and statement.parent.type != "compound_statement":
        statement = statement.parent
    around = statement.parent
    if around is None or statement.type not in {"for_statement", "expression_statement"}:
        raise Unsupported("a reduction of another form")
    target = next((t for t in code.assigned(statement) if not _is_counter(code, t, statement)), None)
    found = code.definition(target) if target is not None else None
    if target is None or found is None or found.kind != "local" or slots_of(code, found):
        raise Unsupported("a reduction of something else")
    run: list[Node] = []
    for here in [s for s in statements(around) if s.start_byte >= statement.start_byte]:
        talks = any(_talks(code, c) for c in source.walk(here, "call_expression"))
        targets = {source.of(t) for t in code.assigned(here) if not _is_counter(code, t, here)}
        if here.type == "preproc_call":
            continue
        if not talks or targets != {found.name} or here.type not in {"for_statement", "expression_statement"}:
            break
        run.append(here)
    element, kind = source.of(found.declaration, "type"), ""
    for launch in kernel.launches:
        block = Surroundings(code, kernel, launch, WARP, element).block
        frame = block.frame()
        frame.scopes[0][found.name], frame.held[found.name] = block.singles(), element
        for here in run:
            block.run(here, frame, block.everyone)
        kind = _judged(block, frame.scopes[0][found.name], size)
    pragmas = [p for p in source.walk(around, "preproc_call") if _in_front(p, run)]
    return Reduction(kind, (*run, *pragmas), found.name, element, target)


def _is_counter(code: Code, target: Node, statement: Node) -> bool:
    found = code.definition(target)
    return found is not None and inside(found.declaration, statement)


def _in_front(pragma: Node, run: list[Node]) -> bool:
    after = pragma.next_named_sibling
    return after is not None and any(same(after, statement) for statement in run)


def _judged(block: Block, value: object, size: int) -> str:
    """The kind of reduction. Raises Unsupported where a lane does not end with all of its part of the warp, and no more."""
    values = value if isinstance(value, list) else [value] * WARP
    for lane, held in enumerate(values):
        first = lane // size * size
        if not isinstance(held, Part) or held.bound is not None or held.threads != ((1 << size) - 1) << first:
            raise Unsupported("no reduction for every lane")
    if block.kind not in KINDS or (block.kind != "sum" and block.element not in _ORDERED):
        raise Unsupported("a reduction of another kind")
    return block.kind
