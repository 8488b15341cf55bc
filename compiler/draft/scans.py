"""A scan's text: along a row with a carry, by one thread or by a block, and what is made of each scanned value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .accumulators import accumulator_type
from .expressions import COMPUTED
from .partition import ROW, Member
from .printing import Scope, Statements, _bare, index_text, number_text

if TYPE_CHECKING:
    from .emit import Emitter

ITEMS = 4
"""Elements of a thread in a row where they are not loaded in packs."""


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
        return Statements(scope, [m.value for m in members], names, emitter.name, emitter.read)

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
        """Each thread scans some neighbours, the block scans the threads' totals, and each adds what stands before its own."""
        top, type, wide, length = self.top, self.type, self.emitter.wide, index_text(self.end)
        packs = self.emitter.packs.get(0)
        inside = f"{self.variable} >= 0" if self.scan.backwards else f"{self.variable} < {length}"
        if packs is None:
            top.line(f"constexpr int Items = {ITEMS};")
        top.line(f"{type} carry = {self.start};")
        top.line(f"for ({wide} base = 0; base < {length}; base += blockDim.x * Items) {{")
        inner = Scope(top.indent + 1)
        inner.line(f"const {wide} first = base + threadIdx.x * Items;")
        loads, stores = self.emitter.open_packs(packs) if packs else ([], [])
        for one in loads:
            inner.line(f"const {one.type} {one.name} = first < {length} ? load_pack<Items>({one.at}) : {one.type}{{}};")
        inner.line(f"{type} values[Items];")
        inner.line(f"{type} mine = {self.start};")
        own = Scope(inner.indent + 2)
        own.line(f"value = {_bare(self._value(own))};")
        kept = ["mine = mine {0} value;", "values[item] = mine;"]
        self._over_items(inner, inside, own.lines, before=[f"{type} value = {self.start};"],
                         after=[line.format(self.plus) for line in (reversed(kept) if self.scan.exclusive else kept)])  # fmt: skip
        inner.line(f"{type} total;")
        join = f"[](auto a, auto b) {{ return a {self.plus} b; }}"
        inner.line(
            f"const {type} before = carry {self.plus} block_scan(mine, {type}({self.start}), &total, {join});"
        )  # fmt: skip
        for one in stores:
            inner.line(f"{one.type} {one.name};")
        tail = Scope(inner.indent + 2)
        tail.line(f"const {type} scanned = before {self.plus} values[item];")
        self._behind(tail)
        self._over_items(inner, inside, tail.lines)
        for one in stores:
            inner.line(f"if (first < {length}) store_pack({one.at}, {one.name});")
        inner.line(f"carry = carry {self.plus} total;")
        self.emitter.packed.clear()
        top.lines += inner.lines
        top.line("}")

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
