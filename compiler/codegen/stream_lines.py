"""Text that the sketch `stream` prints of expressions, for a GPU and for a CPU."""

from __future__ import annotations

import sympy

from compiler.codegen.levels import StoreStatement
from compiler.codegen.printer import Printer, print_lines
from compiler.codegen.rings import StreamLoad, StreamPacks
from compiler.codegen.text import Text
from compiler.draft.expressions import Expr, by_name, loads_of, make, put, symbols_of, walk
from compiler.draft.packing import _is_multiple
from compiler.draft.partition import Member
from compiler.draft.printing import Scope, index_text
from compiler.draft.tensors import Buffer
from compiler.streams import StreamKernel


class StreamLines:
    """Text of expressions at hand: one scope at a time."""

    def __init__(self, text: Text, kernel: StreamKernel) -> None:
        self.text, self.kernel = text, kernel
        self.known = Scope(1)
        """What is read once, whatever the key and the query."""

    def read_once(self, roots: list[Expr]) -> list[str]:
        kernel = self.kernel
        inner = {kernel.key, kernel.member, kernel.depth, kernel.column}
        found = [
            load
            for load in loads_of(roots)
            if not inner & symbols_of(load) and all(e.op != "scalar" for e in walk([load]))
        ]
        printer = Printer(self.text, self.known, found, {})
        for load in found:
            printer.text(load, self.known)
            if self.known.find(load) is None:
                printer._named(load, printer.text(load, self.known), self.known)
        return self.known.lines

    def printed(self, expr: Expr, depth: int = 0) -> tuple[list[str], str]:
        """(lines before, the value)."""
        return print_lines(self.text, expr, Scope(depth, self.known))

    def pack(self, expr: Expr, variable: sympy.Symbol, how: StreamPacks, word: str) -> tuple[Expr, list[StreamLoad], set[Buffer]]:  # fmt: skip
        """(the expression of lane `lane` of pack `chunk`, the packs that it loads, what is loaded so)."""
        lane, chunk = (sympy.Symbol(name, integer=True, nonnegative=True) for name in ("lane", "chunk"))
        place = how.width * chunk + lane
        loads: dict[tuple, StreamLoad] = {}
        buffers: set[Buffer] = set()

        def other(one: Expr) -> Expr | None:
            if one.op == "index" and variable in one.args[0].free_symbols:
                return make("index", one.args[0].subs(variable, place), type=one.type)
            if one.op not in ("load", "load_at") or variable not in one.args[1].free_symbols:
                return None
            buffer, index, *more = one.args
            index = sympy.expand(index.subs(variable, place))
            base = sympy.expand(index - lane)
            whole = lane not in base.free_symbols and _is_multiple(base, how.width)
            whole = whole and (not more or _is_multiple(more[0], how.width)) and how.width > 1
            if not whole:
                return make(one.op, buffer, index, *more, type=one.type)
            key = (buffer, base, *map(id, more))
            if key not in loads:
                text = self.text.pointer(buffer) + (f" + {index_text(base)}" if base != 0 else "")
                if more:
                    before, by = self.printed(more[1])
                    self.before += before
                    text += f" + static_cast<int64_t>({by}) * ({index_text(more[0])})"
                type, bytes = f"Pack<{self.text.element(buffer.dtype)}, {how.width}>", how.width * buffer.dtype.itemsize
                loads[key] = StreamLoad(f"{word}_{len(loads)}", type, text, bytes)
                buffers.add(buffer)
            name = loads[key].name
            return make("scalar", self.text.loaded_text(buffer, f"{name}_now.at[lane]"), type=one.type)

        self.before: list[str] = []
        return put(expr, other), list(loads.values()), buffers


def store_lines(
    text: Text, kernel: StreamKernel, stores: list[StoreStatement], values: list[Expr]
) -> tuple[list[str], list[str]]:
    """Lines that store an element of each column, and those that store what a row has once."""
    each: list[str] = []
    once: list[str] = []
    for store, value_of, made in zip(stores, values, kernel.stores, strict=True):
        scope = Scope(0)
        printer = Printer(text, scope, [value_of], {})
        stored = text.stored_text(store.buffer, printer.text(value_of, scope))
        target = once if made.per_row else each
        target += [*scope.lines, f"{text.place(store, scope, printer)} = {stored};"]
    return each, once


def express_stores(kernel: StreamKernel, known: dict[Buffer, str]) -> list[Expr]:
    """What is stored, by the names of what is `known`: the weighted sum is `sum`."""
    return [make("scalar", "sum", type="float") if m is kernel.sums else by_name(m.value, known) for m in kernel.stores]


def store_of(member: Member) -> StoreStatement:
    return StoreStatement(member.definition.outs[0], member.places[0], member.value, 0, member.per_row)
