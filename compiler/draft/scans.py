"""A scan's text: along a row with a carry, by one thread or by a block, and what is made of each scanned value."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .accumulators import accumulator_type
from .expressions import COMPUTED
from .partition import ROW, Member
from .printing import Scope, Statements, _bare, index_text, number_text

if TYPE_CHECKING:
    from .emit import Emitter, Opened

ITEMS = 4
"""Elements of a thread in a row where they are not loaded in packs."""
PARTS = 4
"""Places of a long row at which a thread has such elements, or a pack: so many loads are in flight, and two barriers serve all of them."""


def scan(emitter: Emitter, top: Scope) -> None:
    """The members behind it take the scanned value of their element."""
    of = _Scan(emitter, top)
    if emitter.device == "cuda" and emitter.kernel.layout == ROW:
        of.by_block()
    else:
        of.by_thread()


class _Scan:
    def __init__(self, emitter: Emitter, top: Scope) -> None:
        self.emitter, self.top, self.kernel = emitter, top, emitter.kernel
        assert self.kernel.scan is not None
        self.scan = self.kernel.scan
        self.plus = "+" if self.scan.kind == "scan_sum" else "*"
        self.type = accumulator_type(emitter.device, self.scan)
        self.start = number_text(0 if self.plus == "+" else 1, self.type)
        self.member = next(m for m in self.kernel.members if m.definition is self.scan)
        self.variable, self.end = self.kernel.inner[0]
        wanted = COMPUTED[self.scan.outs[0].dtype]
        self.scanned = "scanned" if wanted == self.type else f"static_cast<{wanted}>(scanned)"

    def _place(self, step: str) -> str:
        place = f"{index_text(self.end - 1)} - ({step})" if self.scan.backwards else step
        return f"const {self.emitter.wide} {self.variable} = {place};"

    def _value(self, scope: Scope) -> str:
        """The element that is scanned."""
        return self._statements(scope, [self.member]).text(self.member.value)

    def _statements(self, scope: Scope, members: list[Member]) -> Statements:
        emitter = self.emitter
        names = emitter.name_indices(scope, self.top, members)
        return emitter.statements(scope, [m.value for m in members], names, emitter.name, emitter.read)

    def _behind(self, scope: Scope) -> None:
        """What is made of `scanned`."""
        out = self.scan.outs[0]
        self.emitter.registers[out] = self.scanned
        statements = self._statements(scope, self.kernel.members)
        for member in self.kernel.members:
            if member is not self.member:
                self.emitter.keep(scope, statements, member, statements.text(member.value))
            elif out in self.emitter.stored:
                scope.line(self.emitter.element(statements, out, member.places[0], self.scanned))

    def by_thread(self) -> None:
        top, type, wide = self.top, self.type, self.emitter.wide
        top.line(f"{type} carry = {self.start};")
        top.line(f"for ({wide} step = 0; step < {index_text(self.end)}; ++step) {{")
        inner = Scope(top.indent + 1)
        inner.line(self._place("step"))
        text = self._value(inner)
        carried = [f"carry = carry {self.plus} {text};", f"const {type} scanned = carry;"]
        for line in reversed(carried) if self.scan.exclusive else carried:
            inner.line(line)
        self._behind(inner)
        top.lines += inner.lines
        top.line("}")

    def by_block(self) -> None:
        """Each thread scans some neighbours in each of some parts of the row, the block scans the threads' totals of all parts at once,
        and each thread adds what stands before its own. What is loaded in packs is loaded a step ahead, while this one is scanned."""
        top, type, wide, length = self.top, self.type, self.emitter.wide, index_text(self.end)
        packs, threads = self.emitter.packs.get(0), self.emitter.threads_of_row
        inside = f"{self.variable} >= 0" if self.scan.backwards else f"{self.variable} < {length}"
        if packs is None:
            top.line(f"constexpr int Items = {ITEMS};")
        most = self.emitter.partition.program.estimate(self.end)
        top.line(
            f"constexpr int Parts = {most} > {threads * (PARTS - 1)} * Items ? {PARTS} : {most} / ({threads} * Items) + 1;"
        )
        loads, stores = self.emitter.open_packs(packs) if packs else ([], [])
        top.line(f"{type} carry = {self.start};")
        for one in loads:
            top.line(f"Word<{one.type}> {one.name}_ahead[Parts];")
        self._load(top, loads, "0", length)
        step = "blockDim.x * (Parts * Items)"
        top.line(f"for ({wide} base = 0; base < {length}; base += {step}) {{")
        inner = Scope(top.indent + 1)
        for one in loads:
            inner.line(f"Word<{one.type}> {one.name}_now[Parts];")
        if loads:
            inner.line("#pragma unroll")
            inner.line("for (int part = 0; part < Parts; ++part) {")
            inner.lines += [
                "    " * (inner.indent + 1) + f"{one.name}_now[part] = {one.name}_ahead[part];" for one in loads
            ]
            inner.line("}")
        self._load(inner, loads, f"base + {step}", length)
        inner.line(f"{type} values[Parts][Items];")
        inner.line(f"{type} before[Parts];")
        own = Scope(inner.indent + 3)
        own.line(f"value = {_bare(self._value(own))};")
        kept = ["mine = mine {0} value;", "values[part][item] = mine;"]
        with self._parts(inner, loads) as each:
            each.line(f"{type} mine = {self.start};")
            self._over_items(each, inside, own.lines, before=[f"{type} value = {self.start};"],
                             after=[line.format(self.plus) for line in (reversed(kept) if self.scan.exclusive else kept)])  # fmt: skip
            each.line("before[part] = mine;")
        inner.line(f"{type} total;")
        join = f"[](auto a, auto b) {{ return a {self.plus} b; }}"
        inner.line(f"block_scan(before, {type}({self.start}), &total, {join});")
        tail = Scope(inner.indent + 3)
        tail.line(f"const {type} scanned = carry {self.plus} before[part] {self.plus} values[part][item];")
        self._behind(tail)
        with self._parts(inner, loads) as each:
            for one in stores:
                each.line(f"{one.type} {one.name};")
            self._over_items(each, inside, tail.lines)
            for one in stores:
                each.line(f"if (first < {length}) store_pack({one.at}, {one.name});")
        inner.line(f"carry = carry {self.plus} total;")
        self.emitter.packed.clear()
        top.lines += inner.lines
        top.line("}")

    @contextmanager
    def _parts(self, scope: Scope, loads: list[Opened]) -> Iterator[Scope]:
        """The body of a loop over the thread's places, each with its packs."""
        scope.line("#pragma unroll")
        scope.line("for (int part = 0; part < Parts; ++part) {")
        each = Scope(scope.indent + 1)
        each.line(f"const {self.emitter.wide} first = base + (part * blockDim.x + threadIdx.x) * Items;")
        for one in loads:
            each.line(f"const {one.type} {one.name} = as_pack<{one.type}>({one.name}_now[part]);")
        yield each
        scope.lines += each.lines
        scope.line("}")

    def _load(self, scope: Scope, loads: list[Opened], base: str, length: str) -> None:
        """All packs of the places from `base` on."""
        if not loads:
            return
        scope.line("#pragma unroll")
        scope.line("for (int part = 0; part < Parts; ++part) {")
        each = Scope(scope.indent + 1)
        each.line(f"const {self.emitter.wide} first = {base} + (part * blockDim.x + threadIdx.x) * Items;")
        for one in loads:
            each.line(
                f"{one.name}_ahead[part] = first < {length} ? load_word<{one.type}>({one.at}) : Word<{one.type}>{{}};"
            )
        scope.lines += each.lines
        scope.line("}")

    def _over_items(
        self, scope: Scope, inside: str, guarded: list[str], before: list[str] | None = None, after: list[str] | None = None
    ) -> None:  # fmt: skip
        scope.line("#pragma unroll")
        scope.line("for (int item = 0; item < Items; ++item) {")
        within = Scope(scope.indent + 1)
        for line in [self._place("first + item"), *(before or [])]:
            within.line(line)
        within.line(f"if ({inside}) {{")
        within.lines += guarded
        within.line("}")
        for line in after or []:
            within.line(line)
        scope.lines += within.lines
        scope.line("}")
