"""A kernel's text: its loops, its folds, what it writes; in CUDA and in C++ from one description."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import sympy

from .accumulators import JOINS, PARTS, UPDATES, accumulator_type, cast_to, identity, is_struct, step
from .block_groups import BlockGroup, group_of
from .expressions import COMPUTED, Expr, loads_of, walk
from .index import Index, divisions_in, flatten
from .interface import HALVES, Interface
from .kept import Kept, kept_of
from .packing import Packs, packs_of
from .partition import ROW, SMALL_WINDOW, Kernel, Member, Partition
from .printing import Scope, Statements, _bare, index_text
from .scans import scan
from .tensors import Buffer, Definition

SHORT_ROW = 1024
"""Elements up to which a warp folds a row, and eight rows share a block."""


SPLIT = 4
"""Threads that share the fold of a column where it is long: with one each the last columns keep few of them busy."""
SPLIT_LENGTH = 256


@dataclass(frozen=True)
class Opened:
    """A pack as a kernel names it."""

    type: str
    name: str
    at: str
    """Its first element's address."""


class Emitter(Interface):
    """Prints one kernel, of CUDA; C++'s loops are in cpp.py."""

    statements = Statements

    def __init__(self, kernel: Kernel, partition: Partition, device: str) -> None:
        super().__init__(kernel, partition, device)
        self.across = self._across_stages()
        self.stored |= self.across
        self.registers: dict[Buffer, str] = {}
        self._count = 0
        self.row_names: dict[Index, str] = {}
        self.wide = "int64_t"
        self.resident: Kept | BlockGroup | None = None
        self.packs = self._packs() if device == "cuda" else {}
        self.packed: dict[tuple[Buffer, Index], str] = {}
        """What the loop that is being printed has in packs."""

    # ------------------------------------------------------------------------------------------ what it takes

    def _across_stages(self) -> set[Buffer]:
        """Elements that a later loop of the kernel reads again: they go through memory."""
        kernel, made = self.kernel, self.kernel.made
        found = set()
        for member in kernel.members:
            for load in loads_of([member.value]):
                maker = made.get(load.args[0])
                if maker and not maker.per_row and not is_fold(maker, kernel) and maker.stage != member.stage:
                    found.add(load.args[0])
        return found

    def _stages(self) -> list[list[Member]]:
        members = self.kernel.members
        return [[m for m in members if m.stage == at] for at in range(max((m.stage for m in members), default=0) + 1)]

    def _packs(self) -> dict[int, Packs]:
        """By stage, as many elements at a time in each."""
        kernel = self.kernel
        loops = {at: [m for m in stage if not m.per_row] for at, stage in enumerate(self._stages())}
        loops = {at: members for at, members in loops.items() if members}
        found = {at: packs_of(kernel, members, self.stored, set(kernel.made)) for at, members in loops.items()}
        packs = {at: one for at, one in found.items() if one is not None}
        if any(place.buffer.text in self.aliased for one in packs.values() for place in (*one.loads, *one.stores)):
            return {}
        if len(packs) < len(loops) and self.across:
            return {}  # who reads an element in a later loop must be who wrote it
        if not packs and self.folds_by_block and kernel.length.is_Integer and not self.across and not self.aliased:
            singles = {}
            for at, members in loops.items():
                one = packs_of(kernel, members, self.stored, set(kernel.made), True)
                if one is None:
                    return {}
                singles[at] = one
            self.resident = kept_of(singles, int(kernel.length), self.name)
            return singles if self.resident is not None else {}
        items = min((one.items for one in packs.values()), default=1)
        packs = {at: replace(one, items=items) for at, one in packs.items()}
        whole = self.folds_by_block and kernel.length.is_Integer and len(packs) == len(loops)
        if packs and whole and not self.across and not self.aliased:
            kinds = {m.definition.kind for m in kernel.members if is_fold(m, kernel)}
            self.resident = group_of(packs, items, int(kernel.length), kinds, self.name)
        return packs

    @property
    def items(self) -> int:
        """Elements of a pack; 1 where it has none."""
        return next((one.items for one in self.packs.values()), 1)

    def packed_buffers(self) -> list[str]:
        found = [place.buffer.name for one in self.packs.values() for place in (*one.loads, *one.stores)]
        return list(dict.fromkeys(found))

    # ------------------------------------------------------------------------------------------ body

    def name(self, prefix: str) -> str:
        """A name that no tensor has."""
        while True:
            self._count += 1
            if f"{prefix}{self._count}" not in self.partition.program.names:
                return f"{prefix}{self._count}"

    def body(self, indent: int) -> list[str]:
        """What happens for one row, as lines."""
        if self.in_packs:
            return self._pack(self.packs[0], indent)
        top = Scope(indent)
        if self.kernel.scan is not None:
            scan(self, top)
        else:
            for at, members in enumerate(self._stages()):
                self._stage(top, members, self.packs.get(at))
        return top.lines

    @property
    def in_packs(self) -> bool:
        """Whether each thread does one pack of the kernel's elements."""
        return bool(self.packs) and self.kernel.layout != ROW

    def open_packs(self, packs: Packs) -> tuple[list[Opened], list[Opened]]:
        """Names for what is loaded and what is stored, which members' elements are from now on."""
        opened: list[Opened] = []
        for place in (*packs.loads, *packs.stores):
            of_first = place.base.subs(packs.variable, sympy.Symbol("first", integer=True, nonnegative=True))
            buffer, base = place.buffer, index_text(of_first, self.row_names)
            at = f"{buffer.name} + first" if base == "0" else f"{buffer.name} + {base} + first"
            name = self.name(f"{buffer.name}_")
            self.packed[buffer, place.index] = f"{name}.at[item]"
            opened.append(Opened(f"Pack<{self.element_type(buffer.dtype)}, Items>", name, at))
        return opened[: len(packs.loads)], opened[len(packs.loads) :]

    def _items(self, packs: Packs, tab: str, stores: list[Opened], body: list[str]) -> list[str]:
        """The body for each element of a pack, and what it made stored."""
        return [
            *(f"{tab}{one.type} {one.name};" for one in stores),
            f"{tab}#pragma unroll",
            f"{tab}for (int item = 0; item < Items; ++item) {{",
            f"{tab}    const {self.wide} {packs.variable} = first + item;",
            *body,
            f"{tab}}}",
            *(f"{tab}store_pack({one.at}, {one.name});" for one in stores),
        ]

    def _pack(self, packs: Packs, indent: int) -> list[str]:
        """Elements of a kernel without folds, a pack of them."""
        tab = "    " * indent
        loads, stores = self.open_packs(packs)
        inner = Scope(indent + 1)
        self._stage(inner, self.kernel.members, None)
        self.packed.clear()
        loading = [f"{tab}const {one.type} {one.name} = load_pack<Items>({one.at});" for one in loads]
        return [*loading, *self._items(packs, tab, stores, inner.lines)]

    def _stage(self, top: Scope, members: list[Member], packs: Packs | None) -> None:
        folds = [m for m in members if is_fold(m, self.kernel)]
        looped = [m for m in members if not m.per_row]
        accumulators = {}
        for member in folds:
            accumulators[member] = name = self.name(member.definition.kind.removeprefix("join_") + "_")
            type = accumulator_type(self.device, member.definition)
            top.line(f"{type} {name} = {identity(self.device, member.definition)};")
        if looped and self.kernel.inner and packs is not None:
            self._stage_of_packs(top, looped, accumulators, packs)
        elif looped and self.kernel.inner:
            self.loops(top, looped, accumulators)
        elif looped:
            self._elements(top, top, looped, accumulators)
        if self.kernel.inner:  # what was named in the loop is gone with it
            for member in looped:
                self.registers.pop(member.definition.outs[0], None)
        for member in folds:
            self._finish(top, member, accumulators[member])
        self._per_row(top, [m for m in members if m.per_row])

    def _stage_of_packs(self, top: Scope, members: list[Member], accumulators, packs: Packs) -> None:
        self.name_indices(Scope(0), top, members)  # those of the row, which the packs' places may name
        tab, width = "    " * top.indent, 32 if self.is_short else self.threads_of_row
        loads, stores = self.open_packs(packs)
        inner = Scope(top.indent + 2)
        self._elements(inner, top, members, accumulators)
        self.packed.clear()
        first, end = f"static_cast<{self.wide}>(threadIdx.x) * Items", index_text(packs.end)
        head = [
            f"{tab}#pragma unroll 2",
            f"{tab}for ({self.wide} first = {first}; first < {end}; first += {width} * Items) {{",
        ]
        loading = [f"const {one.type} {one.name} = load_pack<Items>({one.at});" for one in loads]
        opened = [(one.type, one.name, one.at) for one in loads]
        if self.resident is not None:
            head, loading = self.resident.loops(packs, opened, tab, self.wide, end, width), []
        top.lines += [
            *head,
            *(f"{tab}    {line}" for line in loading),
            *self._items(packs, tab + "    ", stores, inner.lines),
            f"{tab}}}",
        ]  # fmt: skip

    def _elements(self, scope: Scope, top: Scope, members: list[Member], accumulators) -> None:
        """One step of the innermost loop: every member's value, folded or written."""
        names = self.name_indices(scope, top, members)
        values = [m.value for m in members]
        statements = self.statements(scope, values, names, self.name, self.read)
        self.before_elements(scope, statements)
        for member in members:
            if member in accumulators:
                self.accumulate(scope, statements, member, accumulators[member])
                continue
            text = statements.text(member.value)
            self.keep(scope, statements, member, text)

    def before_elements(self, scope: Scope, statements: Statements) -> None:
        """What an element begins with."""

    def keep(self, scope: Scope, statements: Statements, member: Member, text: str) -> None:
        """A map's value: a register for the members behind it, and memory where somebody else reads it."""
        out = member.definition.outs[0]
        needed = any(
            load.args[0] is out and other.stage >= member.stage
            for other in self.kernel.members
            for load in loads_of([other.value])
        )
        if needed:
            self.registers[out] = text = self._named(scope, member.value, text)
        if out in self.stored:
            scope.line(self.element(statements, out, member.places[0], text))

    def _named(self, scope: Scope, value: Expr, text: str) -> str:
        if text.isidentifier():
            return text
        name = self.name("v")
        scope.line(f"const {value.type} {name} = {_bare(text)};")
        return name

    def element(self, statements: Statements, out: Buffer, index: Index, text: str) -> str:
        """Where that element goes: into memory, or the pack that will."""
        place = self.packed.get((out, index)) or f"{out.name}[{statements.index(index)}]"
        return self.assign(out, place, text)

    def store(self, out: Buffer, place: str, text: str) -> str:
        return self.assign(out, f"{out.name}[{place}]", text)

    def assign(self, out: Buffer, element: str, text: str) -> str:
        if out.dtype in HALVES[self.device]:
            return f"store(&{element}, {_bare(text)});"
        return f"{element} = {_bare(text)};"

    def read(self, buffer: Buffer, index, statements: Statements) -> str:
        if buffer in self.registers:
            return self.registers[buffer]
        place = index if isinstance(index, str) else statements.index(index)
        text = self.packed.get((buffer, index), f"{buffer.name}[{place}]")
        return f"to_float({text})" if buffer.dtype in HALVES[self.device] else text

    def name_indices(self, scope: Scope, top: Scope, members: list[Member]) -> dict[Index, str]:
        return self._name_indices(scope, top, _of_members(members, self.packed))

    def divisions(self, indices: Iterable[Index], names: dict[Index, str]) -> list[str]:
        """Lines that name the quotients and remainders in indices, which are put into `names`."""
        lines = []
        for atom in dict.fromkeys(atom for index in indices for atom in divisions_in(index)):
            if atom not in names:
                name = self.name("i")
                lines.append(f"const {self.wide} {name} = {_bare(index_text(atom, names))};")
                names[atom] = name
        return lines

    def _name_indices(self, scope: Scope, top: Scope, indices: list[Index]) -> dict[Index, str]:
        """Quotients and remainders get names: those of the row before the loop, the others in it."""
        loop = {variable for variable, _ in self.kernel.inner}
        names = dict(self.row_names)
        for atom in dict.fromkeys(atom for index in indices for atom in divisions_in(index)):
            if atom in names:
                continue
            of_row = not atom.free_symbols & loop
            name = self.name("i")
            target = top if of_row else scope
            target.line(f"const {self.wide} {name} = {_bare(index_text(atom, {**names, **self._narrow(atom)}))};")
            names[atom] = name
            if of_row:
                self.row_names[atom] = name
        return names

    def _narrow(self, atom: Index) -> dict[Index, str]:
        """A row's column as 32 bits where it fits: divisions of 64 are several times dearer."""
        value, divisor = atom.args
        end = dict(self.kernel.inner).get(value)
        fits = end is not None and end.is_Integer and end < 2**31 and divisor.is_Integer
        return {value: f"static_cast<int>({value})"} if fits and self.kernel.layout == ROW else {}

    def accumulate(self, scope: Scope, statements: Statements, member: Member, name: str) -> None:
        definition, expr = member.definition, member.value
        guard = ""
        if expr.op == "only_if":
            guard = f"if ({_bare(statements.text(expr.args[0]))}) "
            inner = Scope(scope.indent + 1, scope)
            text = statements.text(expr.args[1], inner)
            if inner.lines:
                scope.line(guard + "{")
                scope.lines += inner.lines
                scope.line(f"    {name} = with({name}, {cast_to(_bare(text), definition, self.device)});")
                scope.line("}")
                return
        elif expr.op == "parts":
            parts = ", ".join(_bare(statements.text(part)) for part in expr.args)
            type = accumulator_type(self.device, definition)
            scope.line(f"{name} = joined({name}, {type}{{{parts}}});")
            return
        else:
            text = statements.text(expr)
        scope.line(guard + self._fold_step(statements, definition, name, text))

    def _fold_step(self, statements: Statements, definition: Definition, name: str, text: str) -> str:
        kind = definition.kind
        if kind in UPDATES:
            return step(kind, name, text)
        if kind in ("argmax", "argmin"):
            place = statements.index(self._folded_place())
            join = "larger" if kind == "argmax" else "smaller"
            return f"{name} = {join}_behind({name}, {_bare(text)}, {place});"
        return f"{name} = with({name}, {cast_to(_bare(text), definition, self.device)});"

    def _folded_place(self) -> Index:
        """The element's number among the folded ones."""
        return flatten([variable for variable, _ in self.kernel.inner], [end for _, end in self.kernel.inner])

    def _finish(self, top: Scope, member: Member, name: str) -> None:
        """The fold over the whole row, known to every thread of it; written by the first."""
        definition, kernel = member.definition, self.kernel
        join = f"[](auto a, auto b) {{ return {JOINS[definition.kind]}; }}"
        if self.is_split:
            top.line(f"{name} = column_fold({name}, {join});")
        if self.device == "cuda" and kernel.layout == ROW:
            if self.is_short:
                top.line(f"{name} = warp_fold({name}, {join});")
            else:
                type, first = accumulator_type(self.device, definition), identity(self.device, definition)
                start = f"{type}{first}" if is_struct(definition) else f"{type}({first})"
                plain = f"block_fold({name}, {start}, {join})"
                top.line(f"{name} = {self.resident.fold(name, start, join) if self.resident else plain};")
        parts = PARTS.get(definition.kind)
        texts = [f"{name}.{part}" for part in parts] if parts else [name]
        for out, text in zip(definition.outs, texts, strict=False):
            wanted = COMPUTED[out.dtype]
            held = accumulator_type(self.device, definition)
            self.registers[out] = text if parts is None and held == wanted else f"static_cast<{wanted}>({text})"
        self._store_row(top, member)

    def _per_row(self, top: Scope, members: list[Member]) -> None:
        if not members:
            return
        names = self.name_indices(top, top, members)
        statements = self.statements(top, [m.value for m in members], names, self.name, self.read)
        for member in members:
            text = statements.text(member.value)
            out = member.definition.outs[0]
            self.registers[out] = self._named(top, member.value, text)
            self._store_row(top, member)

    def _store_row(self, top: Scope, member: Member) -> None:
        names = self._name_indices(top, top, member.places)
        lines = [
            self.store(out, index_text(member.places[0], names), self.registers[out])
            for out in member.definition.outs
            if out in self.stored
        ]
        if not lines:
            return
        alone = (
            "threadIdx.y == 0"
            if self.is_split
            else "threadIdx.x == 0" + (" && sharer == 0" if self.resident else "")
            if self.device == "cuda" and self.kernel.layout == ROW
            else ""
        )
        if alone:
            top.line(f"if ({alone}) {{")
        for line in lines:
            top.line(("    " if alone else "") + line)
        if alone:
            top.line("}")

    # ------------------------------------------------------------------------------------------ loops

    @cached_property
    def is_split(self) -> bool:
        """Whether the threads of a block's columns share their folds; threadIdx.y is the sharer's number."""
        kernel, estimate = self.kernel, self.partition.program.estimate
        if self.device != "cuda" or kernel.layout == ROW or kernel.scan is not None or not kernel.inner or self.aliased:
            return False
        return estimate(kernel.length) >= SPLIT_LENGTH and estimate(kernel.inner[0][1]) >= 16 * SPLIT

    @property
    def is_short(self) -> bool:
        return self.partition.program.estimate(self.kernel.length) <= SHORT_ROW

    @property
    def folds_by_block(self) -> bool:
        """Whether a row is a block's, whose number of threads the text then names."""
        return self.device == "cuda" and self.kernel.layout == ROW and self.kernel.scan is None and not self.is_short

    @property
    def threads_of_row(self) -> int:
        """Threads of the block that a row has."""
        length = self.partition.program.estimate(self.kernel.length)
        return 256 if self.kernel.scan is not None else 1024 if length >= 16384 else 512 if length >= 4096 else 256

    def loops(self, top: Scope, looped: list[Member], accumulators: dict[Member, str]) -> None:
        """The folding loops around the members that they compute."""
        inner = Scope(top.indent + len(self.kernel.inner), None)
        self._elements(inner, top, looped, accumulators)
        self._open_loops(top)
        top.lines += inner.lines
        for depth in reversed(range(len(self.kernel.inner))):
            top.lines.append("    " * (top.indent + depth) + "}")

    def _open_loops(self, top: Scope) -> None:
        kernel = self.kernel
        for depth, (variable, end) in enumerate(kernel.inner):
            indent = "    " * (top.indent + depth)
            text = index_text(end)
            if kernel.layout == ROW:
                width = 32 if self.is_short else self.threads_of_row
                top.lines.append(f"{indent}#pragma unroll 4")
                top.lines.append(
                    f"{indent}for ({self.wide} {variable} = threadIdx.x; {variable} < {text}; {variable} += {width}) {{"
                )
                continue
            innermost = depth == len(kernel.inner) - 1
            if innermost and self.partition.program.estimate(end) > SMALL_WINDOW:
                ahead = 4 if self.is_split else 8
                top.lines.append(f"{indent}#pragma unroll {ahead}")  # loads in flight
            first, step = (
                ("threadIdx.y", f"{variable} += {SPLIT}") if self.is_split and not depth else ("0", f"++{variable}")
            )
            top.lines.append(f"{indent}for ({self.wide} {variable} = {first}; {variable} < {text}; {step}) {{")


def _of_members(members: list[Member], packed) -> list[Index]:
    """The indices of maps, with where they are written; a fold is written after its loop, and what is `packed` when its pack is."""
    read = [e for e in walk([m.value for m in members]) if e.op != "load" or e.args[:2] not in packed]
    maps = [m for m in members if not m.definition.reduced or m.definition.kind.startswith("scan")]
    written = [m.places[0] for m in maps if (m.definition.outs[0], m.places[0]) not in packed]
    return [*(arg for expr in read for arg in expr.args if isinstance(arg, sympy.Expr)), *written]


def is_fold(member: Member, kernel: Kernel) -> bool:
    return bool(member.definition.reduced) and member.definition is not kernel.scan
