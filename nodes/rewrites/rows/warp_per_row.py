"""The row of a warp stays in registers between its passes, and takes as many lanes as it has packs: short rows share a warp.

Applies to kernels whose warps each take a row (`lane = threadIdx.x % 32`, `for (i = lane; i < n; i += 32)`), reduce it by
shuffles and read it again. A second kernel has teams of TEAM lanes in place of the warps, each lane ITEMS steps of the row in
registers, all loads in flight together, and reduces over the team: a row of 128 16-bit elements is 16 packs of 16 bytes, for
which half of a warp would wait. The host picks both by the length of the row; rows too long for that take the kernel as it
was. The warp's lanes may also lie along `threadIdx.x` of a block of 32 by so many threads.

Blocks keep their number of teams, so what a kernel makes of `blockIdx.x` does not matter; where that only counts teams,
blocks keep their width instead and there are fewer.

Reductions are recognised by what they leave with every lane (see block_values.py), not by their names.
"""

from __future__ import annotations

import re
from itertools import product

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.block_shape import extent_of, value_in, width_of
from nodes.rewrites.analysis.device_code import Code, Definition, code_of, inside
from nodes.rewrites.analysis.insertions import bring, require, without_unused
from nodes.rewrites.analysis.kernels import Access, Kernel, Loop
from nodes.rewrites.analysis.launches import Launch, host_text
from nodes.rewrites.analysis.regions import BLOCK, BLOCK_DIM, THREAD, thread_loops, waiting_return, waits
from nodes.rewrites.reductions.shares import check_share
from nodes.rewrites.reductions.warp_reductions import WARP, reductions, require_team
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.rows.cache_row_in_registers import RowKeeper
from nodes.rewrites.rows.row_kernels import check_own, unless_single
from nodes.rewrites.syntax.algebra import Polynomial, Symbol
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Edits, Lines, Source, Unsupported
from nodes.rewrites.syntax.tree import LOOPS, field_of, same, statements, upward

TUNABLES = """\
#define TEAM_ITEMS {items}  // tune: 1 2 4
"""
LONG_BYTES = 32 * 16 * 4
"""A row is long of which a warp cannot hold all with four loads of 16 bytes a lane."""
_AROUND = {"parenthesized_expression", "cast_expression"}
THREADS = """\
#define TEAM_THREADS 256  // tune: 128 256 512
"""


@rule(
    "cuda",
    expected="a warp's row is read once, all its loads in flight together, and no lane of a short row is idle",
    speedup=1.2,
    helps={"memory", "latency"},
    risks=(Outcome.INCORRECT, Outcome.RUNTIME_ERROR, Outcome.OUT_OF_RESOURCES),
    once="with_team",
)
def rewrite(source: Source, facts: Facts) -> str | None:
    if "__shfl" not in source.text:
        return None
    code, edits = code_of(source), Edits(source)
    kinds, flat, planar = set[str](), False, False
    long_rows = facts.share_of_workloads(lambda _, row_bytes: row_bytes > LONG_BYTES) > 0.5
    for kernel in code.kernels:
        with edits.attempt():
            keeper = TeamKeeper(code, kernel, early=not long_rows)  # a long row takes all registers that there are
            keeper.write(edits)
            kinds |= {reduction.kind for reduction in keeper.reductions}
            flat, planar = flat or keeper.flat, planar or keeper.planar
    bring(edits, code, TUNABLES.format(items=4 if long_rows else 1) + (THREADS if flat else ""))
    require(edits, code, "ceil_div", "with_team")
    require_team(edits, code, kinds, planar=planar)
    require(edits, code, "hold_packed")
    return without_unused(code, edits.apply())


class TeamKeeper(RowKeeper):
    """A kernel whose warps take rows, and the same with teams. Raises Unsupported where it is another kind of kernel."""

    suffix = "by_teams"

    def __init__(self, code: Code, kernel: Kernel, *, early: bool) -> None:
        if not kernel.launches or kernel.has_defaults:
            raise Unsupported("a kernel that is not launched here, or leaves no room for a parameter")
        self.warp_loops = [loop for loop in thread_loops(kernel) if _size(code, kernel, loop) is not None]
        sizes = {_size(code, kernel, loop) for loop in self.warp_loops}
        if len(sizes) != 1 or len(self.warp_loops) != len(thread_loops(kernel)):
            raise Unsupported("no loops of a warp")
        (size,) = sizes
        self.size = size
        self.team = code.fresh("TEAM")
        self.planar = self.warp_loops[0].start.only == THREAD
        """Whether blocks are 32 by so many threads."""
        if any((loop.start.only == THREAD) != self.planar for loop in self.warp_loops):
            raise Unsupported("loops of several kinds")
        super().__init__(code, kernel, self.warp_loops, early=early)
        self._check_talk()
        self.widths = [0 if self.planar else self._width(launch) for launch in kernel.launches]
        self.reductions = reductions(code, kernel, self.size)
        for reduction in self.reductions:
            if reduction.kind == "sum":
                check_share(code, kernel, reduction.argument, reduction.nodes[0])
        self.replaced = self._coordinates()
        self.flat = not self.planar and self._counts_teams()
        self._check_loops()
        self.teams = code.fresh("teams", "team_count")

    # What RowKeeper asks.

    def _check_talk(self) -> None:
        for function in [self.kernel.node, *self.kernel.helpers]:
            for node in self.source.walk(function, "type_qualifier", "asm_statement", "gnu_asm_expression"):
                if node.type != "type_qualifier" or self.source.of(node) in {"__shared__", "volatile"}:
                    raise Unsupported("warps that talk to each other")

    def _within(self) -> list[Node]:
        first, last = self.loops[0].node, self.loops[-1].node
        around = [c for c in first.parent.named_children if c.start_byte >= first.start_byte] if first.parent else []
        return [c for c in around if c.end_byte <= last.end_byte]

    def _bounds(self) -> str:
        if self.flat:
            return "__launch_bounds__(TEAM_THREADS)"
        return self.source.of(self.kernel.launch_bounds)

    def _numbers(self) -> str:
        return f"int {self.team}, int {self.count}"

    def _element(self, loop: Loop) -> str:
        start = self.source.render(loop.start_node, self.replaced)
        start = start if re.fullmatch(r"[\w.]+( % \w+)?", start) else f"({start})"
        return f"{start} + {self.item} * {self.team}"

    def _elsewhere(self) -> list[tuple[Node, str]]:
        found = list(self.replaced)
        for reduction in self.reductions:
            found += [(node, reduction.over(self.team) if n == 0 else "") for n, node in enumerate(reduction.nodes)]
        for loop in self.warp_loops:
            if not any(same(loop.node, own.node) for own in self.loops) and loop.step_node is not None:
                found.append((loop.step_node, self.team))
        if self.flat:
            kernel, source = self.kernel, self.source
            listed = kernel.parameter_list
            found.append((listed, f"{source.of(listed)[:-1]}, const unsigned {self.teams})"))
            first = statements(kernel.body)[0]
            if any(same(first, loop.node) for loop in self.warp_loops):
                raise Unsupported("no room for a guard")
            slot = f"blockIdx.x * (blockDim.x / {self.team}) + threadIdx.x / {self.team}"
            guard = f"if ({slot} >= {self.teams}) return;"
            if any(waits(source, statement) for statement in statements(kernel.body)):
                guard = waiting_return(f"({slot} >= {self.teams})", source.indent(first), source.unit(kernel.body))
            inner = [(n, t) for n, t in found if inside(n, first)]
            found = [(n, t) for n, t in found if not inside(n, first)]
            found.append((first, f"{guard}\n{source.indent(first)}{source.render(first, inner)}"))
        return found

    # What must hold.

    def _width(self, launch: Launch) -> int:
        """The threads of a launch's blocks, whole warps along x."""
        width = width_of(self.code, self.kernel, launch)
        if not width or width % WARP or not WARP <= width <= 1024:
            raise Unsupported("a block that is not whole warps")
        return width

    def _is(self, node: Node, operator: str, of: Symbol) -> bool:
        """Whether an expression is the lane, the warp in its block, or how many of these there are."""
        return self._means(self.code.polynomial(node), operator, of)

    def _means(self, value: Polynomial, operator: str, of: Symbol) -> bool:
        only = value.only
        if only is None or only.operator != operator or only.operands[0].only != of:
            return False
        return _number(self.code, self.kernel, only.operands[1]) == self.size

    def _check_helpers(self) -> None:
        source = self.source
        for helper in self.kernel.helpers:
            taken = any(
                inside(call, node) for r in self.reductions for node in r.nodes
                for call in self.kernel.calls(source.of(_function_name(helper)))
            )  # fmt: skip
            if not taken and any(source.of(n) in {"threadIdx", "blockDim"} for n in source.walk(helper, "identifier")):
                raise Unsupported("a helper that asks which thread it is")

    def _coordinates(self) -> list[tuple[Node, str]]:
        """Where the kernel asks for its lane, its warp and the block's warps, and what it asks for now.

        Raises Unsupported where it asks for anything else that differs from thread to thread.
        """
        self._check_helpers()
        code, source, found = self.code, self.source, list[tuple[Node, str]]()
        for node in source.walk(self.kernel.body, "binary_expression") if not self.planar else ():
            if any(inside(node, outer) for outer, _ in found):
                continue
            counted = code.polynomial(field_of(node, "left"))
            for of, operator in product((THREAD, BLOCK_DIM), "/%"):
                if counted.only == of and self._is(node, operator, of):
                    text = f"{of.text} {operator} {self.team}"
                    found.append((node, f"({text})" if node.parent.type == "binary_expression" else text))
        for node in source.walk(self.kernel.body, "identifier", "field_expression", "binary_expression"):
            around = [outer for outer, _ in found if inside(node, outer)]
            value = code.polynomial(node)
            raw = value.only in (THREAD, BLOCK_DIM)
            if self._is_lane(value):
                if all(same(node, outer) for outer in around):
                    self._check_lane(node)
            elif raw and not around and not self._is_alias(node) and not inside_any([node], *self._steps()):
                raise Unsupported("the thread's place in its block")
        return found

    def _is_lane(self, value: Polynomial) -> bool:
        return value.only == THREAD if self.planar else self._means(value, "%", THREAD)

    def _steps(self) -> list[Node]:
        """Where loops ask for the block's width, which is a warp's."""
        return [loop.step_node for loop in self.warp_loops if self.planar and loop.step_node is not None]

    def _is_alias(self, node: Node) -> bool:
        """`const int tid = threadIdx.x;`: whether the node only gives the coordinate a name."""
        node = _outermost(node)
        parent = node.parent
        if parent is None or parent.type != "init_declarator" or not same(field_of(parent, "value"), node):
            return False
        name = field_of(parent, "declarator")
        changed = {self.source.of(t) for t in self.code.assigned(self.kernel.body)}
        return name is not None and name.type == "identifier" and self.source.of(name) not in changed

    def _check_lane(self, place: Node) -> None:
        """A lane may begin a row's loop, have a name, or be the first that writes what is one for the row."""
        if any(inside(place, loop.start_node) for loop in self.warp_loops) or self._is_alias(place):
            return
        asked = match(self.source, _outermost(place).parent, "$a == $b")
        if asked is None or Polynomial() not in (self.code.polynomial(side) for side in asked.values()):
            raise Unsupported("a lane that does more than its share of the row")

    def _counts_teams(self) -> bool:
        """Whether `blockIdx.x` is only used to count teams over all blocks, of which there are one a row."""
        kernel, uses = self.kernel, self.kernel.block_indices()
        if any(launch.extents(launch.grid)[1:] != ("1", "1") for launch in kernel.launches):
            return False
        if any(self.source.of(use) == "gridDim.x" for use in uses):
            return False
        slots = [slot for use in uses if (slot := self._slot_of(use)) is not None]
        inner = [
            node for node in self.source.walk(kernel.body, "identifier", "binary_expression")
            if self._is(node, "/", THREAD) or self._is(node, "/", BLOCK_DIM)
        ]  # fmt: skip
        return bool(uses) and len(slots) == len(uses) and all(
            any(inside(node, slot) for slot in slots) or self._is_alias(node)
            or any(inside(node, other) and not same(node, other) for other in inner)
            for node in inner
        )  # fmt: skip

    def _slot_of(self, use: Node) -> Node | None:
        """The expression around `blockIdx.x` that counts teams over all blocks."""
        here: Node | None = use
        while here is not None and (
            here.type.endswith("expression") or here.type in {"argument_list", "call_expression"}
        ):
            value = self.code.polynomial(here)
            count = value.coefficient(BLOCK)
            warp = value - Polynomial.symbol(BLOCK) * count
            if self._means(warp, "/", THREAD) and self._means(count, "/", BLOCK_DIM):
                return here
            here = here.parent
        return None

    def _check_loops(self) -> None:
        kernel = self.kernel
        own = [node for node, _ in self.replaced] + [node for r in self.reductions for node in r.nodes]
        for loop in self.warp_loops:
            grouped = any(same(loop.node, other.node) for other in self.loops)
            if any(inside(node, loop.body) for node in own) or (grouped and inside_any(own, loop.bound_node)):
                raise Unsupported("a team's place within the row's elements")
        for loop in self.warp_loops:
            for target in self.code.assigned(loop.body):
                self._check_share(target, loop)
        check_own(kernel, self._place)

    def _place(self, access: Access) -> Polynomial:
        loop = next((o for o in self.warp_loops if inside(access.node, o.body)), None)
        base, offset = (access.base, access.offset) if loop is None else self._canonical(access, loop)
        return offset + Polynomial.symbol(base)

    def _check_share(self, target: Node, loop: Loop) -> None:
        """What a lane made of its own elements is reduced before anything else asks for it."""
        found = self.code.definition(target)
        if found is None or inside(found.declaration, loop.body):
            return
        if found.kind != "local":
            raise Unsupported("a parameter that a loop changes")
        whole = [
            r.nodes[0].end_byte for r in self.reductions
            if r.nodes[0].start_byte >= loop.node.end_byte and found.name == r.sets(self.source)
        ]  # fmt: skip
        for use in self.code.uses(found, self.kernel.body):
            named = self.source.set_by(use) == "="
            reduced = any(inside(use, node) for r in self.reductions for node in r.nodes)
            later = any(use.start_byte >= end for end in whole) or self._is_in_front(use, loop, found)
            folded = any(
                inside(use, o.body) and any(self.source.of(t) == found.name for t in self.code.assigned(o.body))
                for o in self.warp_loops
            )
            if not (named or reduced or later or folded):
                raise Unsupported("a lane's share that is not reduced")

    def _is_in_front(self, use: Node, loop: Loop, found: Definition) -> bool:
        """Whether a use of the variable has nothing from the loop: it stands before it, and no round comes back to it."""
        rounds = (
            here for here in upward(loop.node.parent) if here.type in LOOPS and not inside(found.declaration, here)
        )
        return use.end_byte <= loop.node.start_byte and not any(inside(use, around) for around in rounds)

    # What is written.

    def _write_launch(self, edits: Edits, launch: Launch, name: str) -> None:
        source, kernel, code = self.source, self.kernel, self.code
        statement = launch.statement
        steps = host_text(kernel, launch, self.loops[0].bound_node)
        team, items, run = (code.fresh(n) for n in ("team", "items", "launch_teams"))
        of_team, of_items = f"decltype({team})::value", f"decltype({items})::value"
        function = re.sub(rf"\b{re.escape(kernel.name)}\b", name, launch.with_arguments(of_team, of_items), count=1)
        width = self.widths[next(n for n, own in enumerate(kernel.launches) if own is launch)]
        lines: Lines = [f"const auto {run} = [&](auto {team}, auto {items}) {{"]
        if self.flat:
            teams = f"static_cast<int64_t>({launch.extents(launch.grid)[0]}) * {width // self.size}"
            count = code.fresh("teams", "team_count")
            lines.insert(0, f"const int64_t {count} = {teams};")
            grid = f"static_cast<unsigned>(ceil_div({count}, TEAM_THREADS / {of_team}))"
            arguments = [*(source.of(a) for a in launch.arguments), f"static_cast<unsigned>({count})"]
            call = launch.rendered(function=function, grid=grid, block="TEAM_THREADS", arguments=arguments)
        else:
            block = f"{width // self.size} * {of_team}"
            if self.planar:
                block = f"dim3({of_team}, {launch.extents(launch.block)[1]})"
            call = launch.rendered(function=function, block=block)
        lines += [
            [f"{call};"],
            "};",
            f"if (!with_team<{self._bytes(launch)}>({steps}, {run})) {{",
            [source.of(statement)],
            "}",
        ]
        edits.write(statement, unless_single(launch, lines))


def _outermost(node: Node) -> Node:
    """With the parentheses and casts around it."""
    return next(here for here in upward(node) if here.parent is None or here.parent.type not in _AROUND)


def inside_any(nodes: list[Node], *outer: Node) -> bool:
    return any(inside(node, part) for node in nodes for part in outer)


def _function_name(function: Node) -> Node | None:
    here = field_of(function, "declarator")
    while here is not None and here.type not in {"identifier", "template_function"}:
        here = field_of(here, "declarator")
    return here


def _number(code: Code, kernel: Kernel, value: Polynomial) -> int | None:
    """What a divisor is: a number, a constant of the file, `warpSize`."""
    if value.value is not None:
        return value.value
    only = value.only
    if only is None or only.node is None:
        return None
    if only.text == "warpSize":
        return WARP
    found = {value_in(code, kernel, launch, only.node) for launch in kernel.launches}
    return found.pop() if len(found) == 1 else None


def _size(code: Code, kernel: Kernel, loop: Loop) -> int | None:
    """How many lanes stride through a loop: a power of two up to a warp, or None."""
    only = loop.start.only
    if only == THREAD:
        widths = {_along_x(code, kernel, launch) for launch in kernel.launches}
        step = WARP if loop.step.only == BLOCK_DIM else _number(code, kernel, loop.step)
        return WARP if widths == {WARP} and step == WARP else None
    if only is None or only.operator != "%" or only.operands[0].only != THREAD:
        return None
    size, step = (_number(code, kernel, p) for p in (only.operands[1], loop.step))
    return size if size == step and size in {8, 16, 32} else None


def _along_x(code: Code, kernel: Kernel, launch: Launch) -> int | None:
    """How wide a launch's blocks are, where they have a second dimension, no third, and it is known."""
    _, y, z = launch.extents(launch.block)
    if y == "1" or z != "1":
        return None
    return extent_of(code, kernel, launch.along_x(launch.block))
