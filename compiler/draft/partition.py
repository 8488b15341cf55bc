"""Which definitions share a kernel, and how a kernel's loops lie over the threads.

A kernel has a space: the ranges of its first fold (or of its map) with the folded axes. A definition joins a kernel if,
written in the kernel's own loop variables, it reads of what the kernel makes only the element or the row at hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import sympy

from .expressions import Expr, indices_of, loads_of
from .index import Index, flatten, joined, product, unflatten
from .tensors import Buffer, Definition, Library, Program

ROW, FLAT, TILE, STEPS, PLANES = "row", "flat", "tile", "steps", "planes"
"""ROW: a block or a warp to a row, its threads along the folded axes. FLAT: a thread to each kept element, folding alone. TILE: see tiles.py.
STEPS: see recurrences.py. PLANES: see planes.py; maps of its elements join it."""
ALONE = {"product": TILE, "recurrence": STEPS}
"""Definitions that share a kernel with nothing."""

SPLIT_BELOW = 256
"""Rows below which a device's multiprocessors are not busy with a block to a row."""
SPLIT_BLOCKS = 1024
"""Blocks to split a few long rows into."""
CHUNK = 2048
"""Elements that a block folds at least."""
FEW_COLUMNS, LONG_COLUMN = 1024, 256
"""Fewer columns and longer ones than these take a block each, though its threads then read apart: with a thread to a column, 48 columns of 2,731
parts of a batch norm took 1.5 ms on an H200, as long as all else of NetVLAD."""
SMALL_WINDOW = 32
"""Folded elements up to which one thread does them alone, wherever they lie."""
FEW_ROWS, LEAST_ROW, LEAST_JOINED = 4096, 16, 8
"""Fewer rows than that with as many elements take a warp each: one thread's steps wait for one another. 20 channels that joined 32 parts of a batch norm
took 17.6 us on an H200 and 320 rows of 30 for softmax 10.9 us, where eager's batch norm takes 10 in all."""
LARGEST_WINDOW, MANY_WINDOWS = 512, 1 << 17
"""Elements of a window up to which one thread folds it where there are so many of them: a warp to each spent its time on places and idle lanes,
and took 2.7 times as long as eager's thread to each for windows of 11 x 11 on an H200."""


@dataclass(eq=False)
class Member:
    """A definition in a kernel: its value at the kernel's loop variables, the stage whose loop computes it, where it goes."""

    definition: Definition
    value: Expr
    stage: int
    places: list[Index]
    """The element of each out that this step of the loops writes."""
    per_row: bool
    """A map over the kept axes only: once a row, after the stage's loop."""
    by: tuple[Expr, Index] | None = None
    """See Definition."""
    when: Expr | None = None

    @property
    def roots(self) -> list[Expr]:
        return [self.value, *([self.by[0]] if self.by else []), *([self.when] if self.when else [])]


@dataclass(eq=False)
class Kernel:
    """A group of definitions with one loop nest. `row` counts kept elements, `inner` the folded axes of one of them."""

    ranges: tuple[Index, ...]
    reduced: frozenset[int]
    row: Index
    """Counts the kept elements; zero where there is one only."""
    axes: list[Index]
    """The loop expression of each of the ranges' axes."""
    inner: list[tuple[Index, Index]] = field(default_factory=list)
    """(variable, end) of the folding loops, outermost first: one in ROW, one an axis in FLAT."""
    layout: str = FLAT
    members: list[Member] = field(default_factory=list)
    row_name: str = ""
    order: int = 0
    name: str = ""
    scan: Definition | None = None

    @property
    def rows(self) -> Index:
        return product(size for axis, size in enumerate(self.ranges) if axis not in self.reduced)

    @property
    def length(self) -> Index:
        return product(size for axis, size in enumerate(self.ranges) if axis in self.reduced)

    @property
    def made(self) -> dict[Buffer, Member]:
        return {out: member for member in self.members for out in member.definition.outs}

    @property
    def roots(self) -> list[Expr]:
        return [root for member in self.members for root in member.roots]

    @property
    def origins(self) -> tuple[str, ...]:
        """The operators of its members, in their order."""
        return tuple(dict.fromkeys(member.definition.origin for member in self.members))


class Partition:
    """Steps of a forward pass in order: kernels and calls of torch."""

    def __init__(self, program: Program, outputs: set[Buffer]) -> None:
        self.program, self.outputs = program, outputs
        self.steps: list[Kernel | Library] = []
        self._position: dict[Buffer, int] = {}
        self._touched: dict[Buffer, set[int]] = {}
        self._named: dict[sympy.Symbol, int] = {}
        """Where the sizes that depend on values get their names."""
        everything: list[Definition | Library] = [*program.definitions, *program.libraries]
        for item in sorted(everything, key=lambda item: item.order):
            if isinstance(item, Library):
                self._append(item)
            else:
                self._place(item)
        self._drop_unused()

    def _append(self, step: Kernel | Library) -> None:
        self.steps.append(step)
        if isinstance(step, Library):
            self._named.update(dict.fromkeys(step.names, len(self.steps) - 1))
        outs = step.outs if isinstance(step, Library) else step.made
        for out in outs:
            if out is not None:
                self._position[out] = len(self.steps) - 1

    def _place(self, definition: Definition) -> None:
        """Into the earliest kernel that can take it and shares data with it, or into a new one."""
        reads = definition.reads(self.program.ranges)
        ready = max((self._position.get(b, -1) for b in reads), default=-1)
        ready = max([ready, *(self._named[name] for name in self._sizes(definition))])
        sharing = {at for b in reads for at in self._touched.get(b, ()) if at >= ready}
        kernels = ((at, step) for at in sorted(sharing) if isinstance(step := self.steps[at], Kernel))
        place = next((at for at, kernel in kernels if self._join(kernel, definition, at)), None)
        if place is None:
            self._append(self._begin(definition))
            place = len(self.steps) - 1
        for out in definition.outs:
            self._position[out] = place
        for buffer in [*reads, *definition.outs]:
            self._touched.setdefault(buffer, set()).add(place)

    def _sizes(self, definition: Definition) -> set[sympy.Symbol]:
        """Those of its sizes that depend on values."""
        if not self._named:
            return set()
        indices = indices_of([definition.element(self.program.ranges.probe(definition.ranges))])
        return set().union(*(index.free_symbols for index in (*indices, *definition.ranges))) & self._named.keys()

    # ------------------------------------------------------------------------------------------ a new kernel

    def _begin(self, definition: Definition) -> Kernel:
        if definition.kind == "product":
            return self._begin_product(definition)
        if definition.kind == "convolution":
            return self._begin_convolution(definition)
        kernel = self._space(definition.ranges, definition.reduced, definition)
        kernel.order = definition.order
        kernel.layout = ALONE.get(definition.kind, kernel.layout)
        if definition.kind.startswith("scan"):
            kernel.scan = definition
        member = self._member(kernel, definition, len(self.steps))
        assert member is not None, f"{definition.origin} does not fit its own kernel"
        kernel.members.append(member)
        return kernel

    def _begin_product(self, definition: Definition) -> Kernel:
        """Its loops are batch, row, column, depth."""
        variables, batch = self.program.ranges, definition.ranges[:-3]
        ends = [product(batch), *definition.ranges[-3:]]
        loops = [
            variables.named(self.program.name(word), end)
            for word, end in zip(("batch", "m", "n", "k"), ends, strict=True)
        ]
        kernel = Kernel(
            definition.ranges,
            definition.reduced,
            sympy.Integer(0),
            [*unflatten(loops[0], batch, variables), *loops[1:]],
        )
        kernel.layout, kernel.inner, kernel.order = TILE, list(zip(loops, ends, strict=True)), definition.order
        at, given = kernel.axes[:-1], definition.tiling.place
        place = joined(flatten(at, definition.ranges[:-1]) if given is None else given(at))
        kernel.members.append(Member(definition, definition.element(kernel.axes), 0, [place], False))
        return kernel

    def _begin_convolution(self, definition: Definition) -> Kernel:
        """Its loops are the axes of its result."""
        variables, rank = self.program.ranges, len(definition.ranges) - 2
        words = ["batch", "channel", *(f"place_{axis}" for axis in range(rank))]
        axes = [
            variables.named(self.program.name(word), end) for word, end in zip(words, definition.ranges, strict=True)
        ]
        kernel = Kernel(definition.ranges, frozenset(), sympy.Integer(0), axes, layout=PLANES, order=definition.order)
        place = joined(flatten(axes, definition.ranges))
        places = [place] * len(definition.outs)
        kernel.members.append(Member(definition, definition.element(axes), 0, places, False))
        return kernel

    def _space(self, ranges, reduced, definition: Definition) -> Kernel:
        name, variables = self.program.name, self.program.ranges
        kept = [size for axis, size in enumerate(ranges) if axis not in reduced]
        folded = [size for axis, size in enumerate(ranges) if axis in reduced]
        rows, length = product(kept), product(folded)
        kernel = Kernel(tuple(ranges), frozenset(reduced), variables.variable(name("row"), rows), [])
        kernel.row_name = str(kernel.row) if kernel.row.is_Symbol else name("row")
        kernel.layout = self._layout(kernel, definition)
        outer = iter(unflatten(kernel.row, kept, variables))
        if kernel.layout == ROW:
            along = variables.variable(name("column"), length)
            kernel.inner = [(along, length)]
            inner = iter(unflatten(along, folded, variables))
        else:
            loops = [variables.variable(name(f"step_{axis}"), size) for axis, size in enumerate(folded)]
            kernel.inner = [(loop, end) for loop, end in zip(loops, folded, strict=True) if end != 1]
            inner = iter(loops)
        kernel.axes = [next(inner) if axis in reduced else next(outer) for axis in range(len(ranges))]
        return kernel

    def _layout(self, kernel: Kernel, definition: Definition) -> str:
        """ROW if neighbours in memory lie along the fold, or if there are too few rows for a thread each."""
        estimate = self.program.estimate
        if kernel.reduced and self._waits(kernel, definition):
            return ROW
        if not kernel.reduced or estimate(kernel.length) <= SMALL_WINDOW:
            return FLAT
        last = max(axis for axis, size in enumerate(kernel.ranges) if size != 1)
        if last in kernel.reduced:
            return FLAT if self._is_window(kernel, definition, last) else ROW
        if estimate(kernel.rows) < FEW_COLUMNS and estimate(kernel.length) >= LONG_COLUMN:
            return ROW
        trailing = product(kernel.ranges[max(kernel.reduced) + 1 :])
        return FLAT if estimate(trailing) >= SMALL_WINDOW // 2 else ROW

    def _waits(self, kernel: Kernel, definition: Definition) -> bool:
        """Whether few threads would fold alone, each step of theirs as long as its loads take, what a warp does in a few."""
        length = self.program.estimate(kernel.length)
        if self.program.device != "cuda" or self.program.estimate(kernel.rows) >= FEW_ROWS:
            return False
        if definition.kind.startswith("join"):
            return length >= LEAST_JOINED
        last = max((axis for axis, size in enumerate(kernel.ranges) if size != 1), default=0)
        if not LEAST_ROW <= length <= SMALL_WINDOW or last not in kernel.reduced or definition.kind.startswith("scan"):
            return False
        probe, places = self._places(kernel, definition)
        beside = [probe[axis] for axis in definition.kept]
        return all(
            place.coeff(axis) == 0 or self.program.estimate(place.coeff(axis)) >= length
            for place in places
            for axis in beside
        )

    def _places(self, kernel: Kernel, definition: Definition) -> tuple[list[Index], list[Index]]:
        """Variables for the axes, and where its loads are at those."""
        probe = [self.program.ranges.named(f"at{axis}", size) for axis, size in enumerate(kernel.ranges)]
        loads = [load for load in loads_of([definition.element(probe)]) if load.op == "load"]
        return probe, [sympy.expand(load.args[1]) for load in loads]

    def _is_window(self, kernel: Kernel, definition: Definition, last: int) -> bool:
        """Whether folded neighbours lie in pieces too short for a warp, and there are threads enough for one to an element."""
        estimate, size = self.program.estimate, kernel.ranges[last]
        few, many = estimate(kernel.length) <= LARGEST_WINDOW, estimate(kernel.rows) >= MANY_WINDOWS
        if not few or not many or estimate(size) > SMALL_WINDOW // 2 or definition.kind.startswith("scan"):
            return False
        probe, places = self._places(kernel, definition)
        above = [axis for axis in kernel.reduced if axis != last and kernel.ranges[axis] != 1]
        along = [place for place in places if place.coeff(probe[last]) == 1]
        return bool(above and along) and all(
            sympy.expand(place.coeff(probe[max(above)]) - size) != 0 for place in along
        )

    # ------------------------------------------------------------------------------------------ joining one

    def _join(self, kernel: Kernel, definition: Definition, position: int) -> bool:
        alone = definition.kind in ALONE or definition.kind == "convolution"
        if definition.kind.startswith("scan") or alone or kernel.layout in ALONE.values():
            return False
        ranges, made = self.program.ranges, set(kernel.made)
        if kernel.layout == PLANES and (definition.kind != "map" or not definition.reads(ranges) & made):
            return False
        if not definition.reduced or (kernel.scan is None and self._same_fold(kernel, definition)):
            member = self._member(kernel, definition, position)
        elif not kernel.reduced and kernel.scan is None:
            return self._widen(kernel, definition, position)
        else:
            return False
        if member is not None:
            kernel.members.append(member)
        return member is not None

    def _same_fold(self, kernel: Kernel, definition: Definition) -> bool:
        """Equal after merging neighbouring axes of one kind."""
        return bool(kernel.reduced) and _merged(kernel.ranges, kernel.reduced) == _merged(
            definition.ranges, definition.reduced
        )

    def _widen(self, kernel: Kernel, definition: Definition, position: int) -> bool:
        """A kernel of maps takes a fold over the same elements: its loops become the fold's."""
        if sympy.expand(product(kernel.ranges) - product(definition.ranges)) != 0:
            return False
        wider = self._space(definition.ranges, definition.reduced, definition)
        members: list[Member] = []
        for old in [*(m.definition for m in kernel.members), definition]:
            wider.members = members
            member = self._member(wider, old, position)
            if member is None or member.per_row:
                return False
            members.append(member)
        if wider.layout == FLAT and self.program.estimate(wider.length) <= SMALL_WINDOW:
            return False  # windows: a map would be computed by few threads, each with a walk of its own
        kernel.__dict__.update(wider.__dict__, members=members, order=kernel.order)
        return True

    def _member(self, kernel: Kernel, definition: Definition, position: int) -> Member | None:
        """The definition in the kernel's loop variables; None where it would read what another thread or step makes."""
        at = self._axes(kernel, definition)
        if at is None:
            return None
        axes, per_row = at
        value = definition.element(axes)
        place = definition.place_at(axes)
        by = None if definition.by is None else definition.by(axes)
        when = None if definition.when is None else definition.when(axes)
        member = Member(definition, value, 0, [joined(place)] * len(definition.outs), per_row, by, when)
        made = kernel.made
        for load in loads_of(member.roots):
            maker = made.get(load.args[0])
            if maker is None:
                if self._position.get(load.args[0], -1) >= position:
                    return None
                continue
            if load.op != "load" or joined(load.args[1] - maker.places[0]) != 0:
                return None
            after_loop = maker.per_row or (bool(maker.definition.reduced) and maker.definition is not kernel.scan)
            member.stage = max(member.stage, maker.stage + (after_loop and not per_row))
        return member

    def _axes(self, kernel: Kernel, definition: Definition) -> tuple[list[Index], bool] | None:
        """The definition's position at the kernel's loop variables, and whether it is one of rows only."""
        if definition.ranges == kernel.ranges:
            return list(kernel.axes), False
        elements = product(definition.ranges)
        if sympy.expand(elements - product(kernel.ranges)) == 0 and (kernel.length != 1 or not kernel.reduced):
            element = joined(flatten(kernel.axes, kernel.ranges))
            return self._position_in(kernel, element, definition.ranges), False
        if (
            kernel.reduced
            and not definition.reduced
            and kernel.scan is None
            and sympy.expand(elements - kernel.rows) == 0
        ):
            kept = [axis for axis in range(len(kernel.ranges)) if axis not in kernel.reduced]
            element = joined(flatten([kernel.axes[k] for k in kept], [kernel.ranges[k] for k in kept]))
            return self._position_in(kernel, element, definition.ranges), True
        return None

    def _position_in(self, kernel: Kernel, element: Index, ranges: tuple[Index, ...]) -> list[Index]:
        """Of one of a kernel's elements, the position in other ranges."""
        return unflatten(element, ranges, self.program.ranges)

    # ------------------------------------------------------------------------------------------ what is written

    def _drop_unused(self) -> None:
        """Definitions whose results nobody reads go; `kernel.stored` of the rest is what must reach memory."""
        while True:
            wanted = set(self.outputs)
            for step in self.steps:
                if isinstance(step, Library):
                    wanted.update(step.reads)
                else:
                    wanted.update(load.args[0] for load in loads_of(step.roots))
            dead = [
                (step, member)
                for step in self.steps
                if isinstance(step, Kernel)
                for member in step.members
                if not wanted & set(member.definition.outs)
            ]
            for step, member in dead:
                step.members.remove(member)
            unread = [
                s for s in self.steps if isinstance(s, Library) and not wanted & set(s.outs) and not _random(s) and not s.after
            ]  # fmt: skip
            self.steps = [
                s for s in self.steps if s not in unread and not (isinstance(s, Kernel) and not s.members)
            ]  # fmt: skip
            if not dead and not unread:
                return

    def stored(self, kernel: Kernel) -> set[Buffer]:
        """What a kernel makes that somebody outside of it reads."""
        wanted = set(self.outputs)
        for step in self.steps:
            if isinstance(step, Library):
                wanted.update(step.reads)
            elif step is not kernel:
                wanted.update(load.args[0] for load in loads_of(step.roots))
        return wanted & set(kernel.made)


def _random(step: Library) -> bool:
    """Whether leaving a call out would change what later ones draw."""
    return any(word in step.text for word in ("dropout", "rand", "bernoulli", "normal"))


def _merged(ranges, reduced) -> list[tuple[bool, Index]]:
    """The ranges with neighbouring axes of one kind as one."""
    merged: list[tuple[bool, Index]] = []
    for axis, size in enumerate(ranges):
        if size == 1:
            continue
        folds = axis in reduced
        if merged and merged[-1][0] == folds:
            merged[-1] = (folds, sympy.expand(merged[-1][1] * size))
        else:
            merged.append((folds, size))
    return merged


def reads_of(step) -> list[Buffer]:
    return list({load.args[0]: None for load in loads_of(step.roots)}) if isinstance(step, Kernel) else step.reads


def reads_before(kernel: Kernel, buffer: Buffer, target: str) -> bool:
    """Whether each of its threads reads of `target` only the element that it writes, and that before."""
    writer = kernel.made[buffer]
    for member in kernel.members[kernel.members.index(writer) + 1 :]:
        if any(load.args[0].text == target for load in loads_of([member.value])):
            return False
    loads = [load for load in loads_of(kernel.roots) if load.args[0].text == target]
    return all(load.op == "load" and joined(load.args[1] - writer.places[0]) == 0 for load in loads)


def libraries_of(partition: Partition) -> list[str]:
    return [step.origin for step in partition.steps if not isinstance(step, Kernel)]


def kernel_name(kernel: Kernel) -> str:
    return "own_" + "_".join(kernel.origins[:3])
