"""What kernels of all sketches share: parameters, places of a function, and how a launch is written."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sympy
import torch

from compiler.codegen.levels import (
    StoreStatement,
    hoist,
    windows_within,
)
from compiler.codegen.printer import Printer
from compiler.codegen.ragged import RaggedText
from compiler.codegen.text import Text, Window, _factor
from compiler.draft.expressions import Expr, indices_of, loads_of, walk
from compiler.draft.index import Index, estimate, index_is_divided
from compiler.draft.partition import Member
from compiler.draft.printing import Scope, _bare, index_text
from compiler.draft.tensors import Buffer
from compiler.program import KernelProgram, PackedKernel
from compiler.schedule import KernelPlan

if TYPE_CHECKING:
    from compiler.codegen.host import HostFile


@dataclass(frozen=True)
class KernelFunction:
    """A kernel's text and what it is called with."""

    name: str
    text: str
    parameters: tuple[str, ...]
    arguments: tuple[str, ...]
    """Text of each, in the entry's names."""
    packed: tuple[Buffer, ...]
    """What must be aligned."""
    kernel: PackedKernel
    kept: int = 0
    """Bytes of registers that a pack of a row takes which stays there; of columns, what a thread loads of a row."""
    waits: bool = False
    """Of columns: whether a row is loaded as the one before it is done, not ahead."""
    ring: int = 0
    """Of streams: bytes of a block for what is on its way."""
    ring_of_tiles: int = 0
    """The same where tensor cores multiply; 0: they never do."""
    staged: bool = False
    """Whether a block begins with a table in shared memory."""
    online: int = 0
    """Of rows: whether one pass over memory makes several stages' reductions (1), and nothing is left to do for an element (2)."""


@dataclass(frozen=True)
class Launch:
    """Of one kernel, or of several of elements that stand side by side, in an entry of `file`."""

    file: HostFile
    program: KernelProgram
    at: int
    """Of the kernel in its program."""
    together: list[tuple[KernelFunction, KernelPlan]]
    narrow: bool

    @property
    def function(self) -> KernelFunction:
        return self.together[0][0]

    @property
    def plan(self) -> KernelPlan:
        return self.together[0][1]

    @property
    def searched(self) -> bool:
        """Whether numbers are the search's."""
        return bool(self.file.open)

    def by(self, call: str, grid: str, threads: str, arguments: Iterable[str], cluster: str = "1") -> str:
        """The statement that launches a kernel; attributes of a launch need the longer form."""
        given, pdl = ", ".join(arguments), self.plan.pdl
        if cluster == "1" and not pdl:
            return f"{call}<<<{grid}, {threads}, 0, stream>>>({given});"
        self.file.clusters |= cluster != "1"
        return f"launch_with<{str(pdl).lower()}>({call}, {grid}, {cluster}, {threads}, stream, {given});"


def open_text(program: KernelProgram, kernel: PackedKernel, narrow: bool, ragged: int = 0, edges: bool = False) -> Text:
    """`ragged`: elements of a pack of rows that packs do not divide; 0: packs are the program's. `edges`: see ragged.py."""
    whole = may_approximate(program)
    fast = whole or _sums_halves(program)
    text = (
        RaggedText(program, kernel, fast, ragged, edges)
        if ragged
        else Text(program, kernel, "int" if narrow else "int64_t", fast)
    )
    text.staged, text.exact_rows = {}, not whole
    return text


def may_approximate(program: KernelProgram) -> bool:
    """Whether exact functions may be the device's fast ones; not where whole numbers wider than a byte are all that comes out, which they decide."""
    if program.exact:
        return False
    large = _large(program)
    if not large:
        return all(b.dtype.itemsize == 1 for b in program.outputs.values())
    return all(b.dtype not in (torch.float32, torch.float64) for b in large)


def _sums_halves(program: KernelProgram) -> bool:
    """Whether outputs of floats are of many 16-bit elements each, as a row's loss: what is an element's may be approximate then, what is a row's not."""
    count = lambda size: estimate(size, program.lowered.hints)  # noqa: E731
    made = {out: kernel for kernel in program.kernels for out in kernel.made}
    return program.rounds_to_halves and all(
        b.dtype not in (torch.float32, torch.float64)
        or (b in made and SMALL_SHARE * count(b.elements) <= count(made[b].rows) * count(made[b].length))
        for b in _large(program)
    )


class TileText(Text):
    """Of a kernel that reads some buffers from tiles in shared memory, never through windows of their own."""

    def __init__(self, program: KernelProgram, kernel: PackedKernel, wide: str, tiles: Collection[Buffer]) -> None:
        super().__init__(program, kernel, wide, may_approximate(program))
        self.tiles, self.staged = tiles, {}

    def window(self, buffer: Buffer, place: Index, by=None, lanes=None) -> tuple[Window, Index] | None:
        return None if buffer in self.tiles else super().window(buffer, place, by, lanes)


SMALL_SHARE = 16
"""A float for that many others: a group's scale beside its elements."""


def _large(program: KernelProgram) -> list[Buffer]:
    """Outputs of floats that are not reductions' small ones: they say how exact functions must be."""
    floats = [b for b in program.outputs.values() if b.dtype.is_floating_point]
    rank = max((len(b.shape) for b in floats), default=0)
    count = {b: estimate(b.elements, program.lowered.hints) for b in floats}
    large = [b for b in floats if len(b.shape) == rank and b.shape[-1] != 1]
    return [b for b in large if SMALL_SHARE * count[b] > max(count.values())] or floats


def signature(
    text: Text,
    stores: list[StoreStatement],
    roots: list[Expr],
    counts: list[Index],
    plain: bool = False,
    leaves: Collection[str] = (),
) -> tuple[list[str], list[str]]:
    """Parameters and arguments: pointers in the spec's order, sizes, scalars. `plain`: sizes are numbers, no divisors. `leaves`: scalars that the
    kernel makes itself."""
    program = text.program
    indices = indices_of(roots)
    indices += [store.place for store in stores] + [store.by[1] for store in stores if store.by] + counts
    if isinstance(text, RaggedText):
        indices += [window.buffer.elements for window in text.windows(roots) if not window.aligned]
    elif text.width > 1 and not plain:
        indices += [window.buffer.elements for window in text.windows(roots) if window.edged]
    known = set(program.lowered.hints)
    sizes = sorted({s for index in indices for s in index.free_symbols & known}, key=str)
    read = {e.args[0].text: e.args[0] for e in walk(roots) if e.op in ("load", "load_at")}
    written = {store.buffer.text: store.buffer for store in stores}
    parameters, arguments = [], []
    for name in (*(tensor.name for tensor in program.spec.tensors), *(buffer.text for buffer in program.scratch)):
        buffer = written.get(name) or read.get(name)
        if buffer is None:
            continue
        const = "" if name in written else "const "
        restrict = "" if name in written and name in read else "__restrict__ "
        parameters.append(f"{const}{text.element(buffer.dtype)}* {restrict}{name}")
        arguments.append(name)
    divisors = set() if plain else text.take_divisors(indices, known)
    for size in sizes:
        given, divides = _size_text(program, size), size in divisors
        parameters.append(f"{'Divisor' if divides else text.wide} {size}")
        arguments.append(f"Divisor({given})" if divides else f"static_cast<{text.wide}>({given})")
    for product, name in text.index_names.items():
        parameters.append(f"Divisor {name}")
        arguments.append(f"Divisor({in_axes(program, product)})")
    scalars = dict.fromkeys((e.args[0], e.type) for e in walk(roots) if e.op == "scalar" and e.args[0] not in leaves)
    parameters += [f"{type} {name}" for name, type in scalars]
    arguments += [name for name, _ in scalars]
    return parameters, arguments


def _size_text(program: KernelProgram, size: sympy.Symbol) -> str:
    """A size symbol by the entry's axes: cols_8 is cols / 8."""
    if size in program.quotients:
        return in_axes(program, size)
    axis, by = program.symbols[size]
    return axis if by == 1 else f"{axis} / {by}"


def in_axes(program: KernelProgram, index: Index) -> str:
    """An index of sizes in the entry's names."""
    index = index.xreplace(program.quotients)
    if index_is_divided([index]):
        symbols = sorted(index.free_symbols, key=str)
        return index_text(index, {symbol: f"({_size_text(program, symbol)})" for symbol in symbols})
    named = {axis: sympy.Symbol(axis, integer=True, positive=True) for axis in program.sizes}
    back = {s: named[axis] / (by if isinstance(by, int) else named[by]) for s, (axis, by) in program.symbols.items()}
    expression = sympy.cancel(index.xreplace(back))
    top, bottom = expression.as_numer_denom()
    text = index_text(sympy.expand(top))
    return text if bottom == 1 else f"({text}) / {bottom}"


def last_write(text: Text, stores: list[StoreStatement], folds: list[Member]) -> int:
    """The stage in which elements are written: no reduction may read them after that."""
    written = {store.buffer.text for store in stores}
    reading = [m.stage for m in folds if any(load.args[0].text in written for load in loads_of([text.value(m)]))]
    return max([store.stage for store in stores] + (reading if stores else []), default=-1)


def accumulators(text: Text, folds: list[Member], array: bool) -> list[str]:
    lines = []
    for member in folds:
        name = text.fold_names[member] = text.fresh(f"{member.definition.origin}_{member.definition.kind}")
        start = f"{text.fold_type(member)} {name}"
        if array:
            lines += [
                f"{start}[{text.width}];",
                "#pragma unroll",
                f"for (auto& one : {name}) {{ one = {text.identity(member)}; }}",
            ]
        else:
            lines.append(f"{start} = {text.identity(member)};")
    return lines


def wait(top: Scope, pdl: bool, split: str) -> None:
    """Of a kernel that may be set up early: nothing before it may touch memory, and every thread comes here."""
    if pdl:
        top.line(f"wait_for_predecessor<{split}>();")


def finish_function(
    text: Text, name: str, head: tuple[str, str], parameters: list[str], arguments: list[str], top: Scope, mark: int, roots: list[Expr],
    stores: list[StoreStatement], first: str = "", **said: Any,
) -> KernelFunction:  # fmt: skip
    """The function that holds the lines of `top`, tables fetched in front of line `mark`. `first`: a parameter that the launch has by itself."""
    before, begin = text.tables_text(name)
    given = ", ".join([*([first] if first else []), *parameters])
    template, kind = head
    lines = [*before, template, f"{kind} {name}({given}) {{", *top.lines[:mark], *begin, *top.lines[mark:], "}", ""]
    packed = _packed(text, roots, stores)
    return KernelFunction(
        name, "\n".join(lines), tuple(parameters), tuple(arguments), packed, text.kernel, staged=bool(begin), **said
    )


def row_stores(text: Text, top: Scope, stores: list[StoreStatement], who: str) -> None:
    """What is written once a row, in a block that `who` opens."""
    if not stores:
        return
    roots = [root for store in stores for root in store.roots]
    hoist(text, roots, 0, top, {})
    top.line(who)
    inner = Scope(top.indent + 1, top)
    printer = Printer(text, inner, roots, {})
    for store in stores:
        value = text.stored_text(store.buffer, printer.text(store.value, inner))
        stored = f"{text.place(store, inner, printer)} = {value};"
        inner.line(stored if store.when is None else f"if ({_bare(printer.text(store.when, inner))}) {{ {stored} }}")
    top.lines += inner.lines
    top.line("}")


def _packed(text: Text, roots: list[Expr], stores: list[StoreStatement]) -> tuple[Buffer, ...]:
    """Buffers that are moved by more than an element at a time."""
    windows = [*text.windows(roots), *windows_within(text, roots)]
    windows += [p[0] for s in stores if (p := text.window(s.buffer, s.place, s.by))]
    found = [window.buffer for window in windows if window.width > 1 and window.aligned]
    return tuple(dict.fromkeys(found))


def packs_of_row(program: KernelProgram, kernel: PackedKernel, plan: KernelPlan) -> str:
    """Whole packs of a row at most, in the entry's names."""
    if plan.ragged:
        return f"{_factor(in_axes(program, kernel.length))} / {plan.ragged}"
    return in_axes(program, sympy.expand(kernel.length / kernel.width))
