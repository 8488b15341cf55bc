"""The row of a warp stays in registers between its passes, and takes as many lanes as it has packs: short rows share a warp.

Applies to kernels whose warps each take a row (`lane = threadIdx.x % 32`, `for (i = lane; i < n; i += 32)`), reduce it by
shuffles and read it again. A second kernel has teams of TEAM lanes in place of the warps, each lane ITEMS steps of the row in
registers, all loads in flight together, and reduces over the team: a row of 128 16-bit elements is 16 packs of 16 bytes, for
which half of a warp would wait. The host picks both by the length of the row; rows too long for that take the kernel as it
was.

Warps count over all blocks, `blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32`: blocks keep their width and there are fewer. Or
a warp's lanes lie along `threadIdx.x` of a block of 32 by so many threads: blocks keep their number of rows.

Reductions are recognised by what they leave with every lane (see block_values.py), not by their names.
"""

from __future__ import annotations

import re

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.block_shape import extent_of, value_in, width_of
from nodes.rewrites.analysis.device_code import Code, code_of, inside
from nodes.rewrites.analysis.insertions import bring, require, without_unused
from nodes.rewrites.analysis.kernels import Access, Kernel, Loop
from nodes.rewrites.analysis.launches import Launch, host_text
from nodes.rewrites.analysis.regions import (
    BLOCK,
    BLOCK_DIM,
    GRID_DIM,
    THREAD,
    check_coordinates,
    guard_text,
    thread_loops,
)
from nodes.rewrites.reductions.shares import check_share
from nodes.rewrites.reductions.warp_reductions import WARP, reductions, require_team
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.rows.cache_row_in_registers import RowKeeper
from nodes.rewrites.rows.row_kernels import check_own, unless_single
from nodes.rewrites.syntax.algebra import Polynomial, Symbol
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Edits, Lines, Source, Unsupported
from nodes.rewrites.syntax.tree import field_of, same, statements, upward

TUNABLES = "#define TEAM_ITEMS {items}  // tune: 1 2 4\n"
LONG_BYTES = 32 * 16 * 4
"""A row is long of which a warp cannot hold all with four loads of 16 bytes a lane."""
THREADS = "#define TEAM_THREADS 256  // tune: 128 256 512\n"
LANE, NUMBER, COUNT = (
    Polynomial.symbol(Symbol(f"the {name}")) for name in ("lane", "warp in its block", "block's warps")
)
SLOT = Polynomial.symbol(BLOCK) * COUNT + NUMBER


@rule(
    "cuda",
    expected="a warp's row is read once, all its loads in flight together, and no lane of a short row is idle",
    speedup=1.2,
    helps={"memory", "latency"},
    risks=(Outcome.INCORRECT, Outcome.RUNTIME_ERROR, Outcome.OUT_OF_RESOURCES),
    once="with_team",
)
def rewrite(source: Source, facts: Facts) -> str | None:
    code, edits = code_of(source), Edits(source)
    kinds, flat, planar = set[str](), False, False
    long_rows = facts.share_of_workloads(lambda _, row_bytes: row_bytes > LONG_BYTES) > 0.5
    for kernel in code.kernels:
        with edits.attempt():
            keeper = TeamKeeper(code, kernel, early=not long_rows)  # a long row takes all registers that there are
            keeper.write(edits)
            kinds |= {reduction.kind for reduction in keeper.reductions}
            flat, planar = flat or not keeper.planar, planar or keeper.planar
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
        self.code, self.kernel, loops = code, kernel, thread_loops(kernel)
        self.planar = any(loop.start.only == THREAD for loop in loops)
        """Whether blocks are 32 by so many threads."""
        for loop in loops:
            whole = self._is_warp(loop.step) or (self.planar and loop.step.only == BLOCK_DIM)
            if self._named(loop.start) != LANE or not whole:
                raise Unsupported("no loops of a warp")
        super().__init__(code, kernel, loops, early=early)
        if len(self.loops) != len(loops) or not same(loops[0].node.parent, kernel.body):
            raise Unsupported("other loops, too")
        self.team, self.teams = code.fresh("TEAM"), code.fresh("teams", "team_count")
        self.widths = {launch: self._width(launch) for launch in kernel.launches}
        self._check_talk()
        self.reductions = reductions(code, kernel, WARP)
        for reduction in self.reductions:
            if reduction.kind == "sum":
                check_share(code, kernel, reduction.argument, reduction.nodes[0])
        self._check_places()
        self.replaced = [] if self.planar else self._places()
        self._check_loops()

    # What must hold.

    def _named(self, value: Polynomial) -> Polynomial:
        """With the lane, the warp's number in its block and the block's number of warps by these names."""
        if self.planar:
            return value.substitute(THREAD, LANE)
        known = {("%", THREAD): LANE, ("/", THREAD): NUMBER, ("/", BLOCK_DIM): COUNT}

        def name(symbol: Symbol) -> Polynomial:
            of = symbol.operands[0].only if symbol.operator and self._is_warp(symbol.operands[1]) else None
            return known.get((symbol.operator, of), Polynomial.symbol(symbol))

        return value.replaced(name)

    def _is_warp(self, size: Polynomial) -> bool:
        """Whether it is the number of a warp's lanes: 32, or a constant of the file that is."""
        node = size.only.node if size.only is not None else None
        return size.value == WARP or (node is not None and value_in(self.code, self.kernel, None, node) == WARP)

    def _width(self, launch: Launch) -> int:
        """How many warps a launch's blocks have."""
        if self.planar:
            _, y, z = launch.extents(launch.block)
            width = WARP * (
                y != "1" and z == "1" and extent_of(self.code, self.kernel, launch.along_x(launch.block)) == WARP
            )
        else:
            width = (launch.extents(launch.grid)[1:] == ("1", "1") and width_of(self.code, self.kernel, launch)) or 0
        if width % WARP or not WARP <= width <= 1024:
            raise Unsupported("a block that is not whole warps")
        return width // WARP

    def _check_talk(self) -> None:
        for function in [self.kernel.node, *self.kernel.helpers]:
            for node in self.source.walk(function, "type_qualifier", "asm_statement", "gnu_asm_expression"):
                if node.type != "type_qualifier" or self.source.of(node) in {"__shared__", "volatile"}:
                    raise Unsupported("warps that talk to each other")

    def _check_places(self) -> None:
        """A thread's place says which row is its team's, begins a loop over the row's elements, has a name, or says who is the
        first, that writes what is one for the row. Raises Unsupported where it says anything else."""
        code, kernel, source = self.code, self.kernel, self.source
        check_coordinates(kernel, [kernel.body])
        apart = {LANE, *map(Polynomial.symbol, (THREAD, BLOCK_DIM))}
        apart |= set() if self.planar else {NUMBER, COUNT, *map(Polynomial.symbol, (BLOCK, GRID_DIM))}
        headers = [node for loop in self.loops for node in (loop.start_node, loop.step_node)]
        for node in source.walk(kernel.body, "identifier", "field_expression"):
            if self._named(code.polynomial(node)) not in apart or any(inside(node, header) for header in headers):
                continue
            around = [here for here in upward(node, kernel.body) if not here.type.endswith("statement")]
            means = [self._named(code.polynomial(here)) for here in around]
            place = [here for here, value in zip(around, means, strict=True) if value in apart][-1]
            asked = match(source, place.parent, "$lane == 0")
            first = asked is not None and self._named(code.polynomial(asked["lane"])) == LANE
            if SLOT not in means and not first and not self._is_alias(place):
                raise Unsupported("the thread's place in its block")

    def _is_alias(self, place: Node) -> bool:
        """`const int tid = threadIdx.x;`: whether the node only gives the coordinate a name."""
        parent = place.parent
        if parent.type != "init_declarator" or not same(field_of(parent, "value"), place):
            return False
        name = field_of(parent, "declarator")
        changed = {self.source.of(t) for t in self.code.assigned(self.kernel.body)}
        return name.type == "identifier" and self.source.of(name) not in changed

    def _places(self) -> list[tuple[Node, str]]:
        """Where the kernel asks for its lane, its warp and the block's warps, and what it asks for now."""
        found: list[tuple[Node, str]] = []
        texts = {LANE: "threadIdx.x %", NUMBER: "threadIdx.x /", COUNT: "blockDim.x /"}
        for node in self.source.walk(self.kernel.body, "binary_expression"):
            text = texts.get(self._named(self.code.polynomial(node)))
            if text is not None:
                text = f"{text} {self.team}"
                found.append((node, f"({text})" if node.parent.type == "binary_expression" else text))
        return found

    def _check_loops(self) -> None:
        own = [node for node, _ in self.replaced] + [node for r in self.reductions for node in r.nodes]
        for loop in self.loops:
            if any(inside(node, part) for node in own for part in (loop.body, loop.bound_node)):
                raise Unsupported("a team's place within the row's elements")
            for target in self.code.assigned(loop.body):
                self._check_share(target, loop)
        check_own(self.kernel, self._place)

    def _place(self, access: Access) -> Polynomial:
        loop = next((o for o in self.loops if inside(access.node, o.body)), None)
        base, offset = (access.base, access.offset) if loop is None else self._canonical(access, loop)
        return offset + Polynomial.symbol(base)

    def _check_share(self, target: Node, loop: Loop) -> None:
        """What a lane made of its own elements is reduced before anything else asks for it."""
        found = self.code.definition(target)
        if found is None or inside(found.declaration, loop.body):
            return
        if found.kind != "local":
            raise Unsupported("a parameter that a loop changes")
        behind = [r for r in self.reductions if r.nodes[0].start_byte >= loop.node.end_byte]
        whole = min((r.nodes[0].end_byte for r in behind if found.name == r.sets(self.source)), default=None)
        for use in self.code.uses(found, self.kernel.body):
            reduced = any(inside(use, node) for r in self.reductions for node in r.nodes)
            set_again = self.source.set_by(use) == "=" or (whole is not None and use.start_byte >= whole)
            if not (reduced or set_again or use.start_byte < loop.node.end_byte):
                raise Unsupported("a lane's share that is not reduced")

    # What is written.

    def _bounds(self) -> str:
        return self.source.of(self.kernel.launch_bounds) if self.planar else "__launch_bounds__(TEAM_THREADS)"

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
        if not self.planar:
            listed, first = self.kernel.parameter_list, statements(self.kernel.body)[0]
            found.append((listed, f"{self.source.of(listed)[:-1]}, const unsigned {self.teams})"))
            slot = f"blockIdx.x * (blockDim.x / {self.team}) + threadIdx.x / {self.team}"
            guard = guard_text(self.kernel, f"{slot} >= {self.teams}")
            found.append((self.kernel.body.children[0], f"{{\n{self.source.indent(first)}{guard}"))
        return found

    def _write_launch(self, edits: Edits, launch: Launch, name: str) -> None:
        source, kernel, code = self.source, self.kernel, self.code
        steps = host_text(kernel, launch, self.loops[0].bound_node)
        team, items, run = (code.fresh(n) for n in ("team", "items", "launch_teams"))
        of_team, of_items = f"decltype({team})::value", f"decltype({items})::value"
        function = re.sub(rf"\b{re.escape(kernel.name)}\b", name, launch.with_arguments(of_team, of_items), count=1)
        lines: Lines = [f"const auto {run} = [&](auto {team}, auto {items}) {{"]
        if self.planar:
            call = launch.rendered(function=function, block=f"dim3({of_team}, {launch.extents(launch.block)[1]})")
        else:
            count = code.fresh("teams", "team_count")
            grid = f"static_cast<int64_t>({launch.extents(launch.grid)[0]}) * {self.widths[launch]}"
            lines.insert(0, f"const int64_t {count} = {grid};")
            grid = f"static_cast<unsigned>(ceil_div({count}, TEAM_THREADS / {of_team}))"
            arguments = [*(source.of(a) for a in launch.arguments), f"static_cast<unsigned>({count})"]
            call = launch.rendered(function=function, grid=grid, block="TEAM_THREADS", arguments=arguments)
        lines += [
            [f"{call};"],
            "};",
            f"if (!with_team<{self._bytes(launch)}>({steps}, {run})) {{",
            [source.of(launch.statement)],
            "}",
        ]
        edits.write(launch.statement, unless_single(launch, lines))
