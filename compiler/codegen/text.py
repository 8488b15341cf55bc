"""The text of a kernel's values: what is hoisted out of which loop, what is loaded and stored in packs.

A kernel has levels, outermost first, each with its loop variables: a row, a pack of neighbouring elements, a step of a
fold, a lane of the pack. An expression is printed at the outermost level that knows all its variables.
"""

from __future__ import annotations

import re
from collections.abc import Container

import sympy
import torch

from compiler.codegen import windows
from compiler.codegen.powers import power_of_quarters
from compiler.codegen.small_integers import highest, small_difference
from compiler.codegen.windows import Window
from compiler.draft.accumulators import JOINS, identity, step
from compiler.draft.expressions import COMPUTED, COST, Expr, constant, loads_of, make, replace_indices, walk
from compiler.draft.index import FloorDiv, Index, Modulo
from compiler.draft.packing import _is_multiple
from compiler.draft.partition import ROW, Member
from compiler.draft.printing import STORED, Scope, Statements, _bare, index_text, number_text
from compiler.draft.tensors import Buffer
from compiler.program import KernelProgram, PackedKernel
from compiler.schedule import WARP

HALVES = {torch.float16: "__half", torch.bfloat16: "__nv_bfloat16", torch.float8_e4m3fn: "__nv_fp8_e4m3"}
FOLD_OF = {**JOINS, "log_add": "log_add(a, b)"}

MOST_STAGED = 256
"""Elements of a tensor of which a block keeps a copy."""


def element_type(dtype: torch.dtype) -> str:
    return STORED.get(dtype) or HALVES[dtype]


class Text:
    """Names and expressions of one kernel; of C++ see cpu.py."""

    over_lanes = "#pragma unroll"
    """What stands before a loop over lanes."""
    brief = False
    """Whether exp may be the device's approximate one although results are floats."""
    exact_rows = False  # whether what is not an element's own stays exact where the rest may be approximate
    on_a_gpu = True
    bound = "const auto"  # what a loaded pack is bound to
    guards = True  # whether what a condition of the pack guards is a branch of it, and packs beside each other are one window
    guards_packs = True  # whether packs are loaded together where a condition of the pack says that they are needed

    def __init__(self, program: KernelProgram, kernel: PackedKernel, wide: str, fast: bool) -> None:
        self.program, self.kernel, self.wide, self.fast = program, kernel, wide, fast
        self.lane, self.counter = program.lane, kernel.pack
        self.width = kernel.width
        self.lane_name = str(self.lane) if self.width > 1 else "0"
        """Of an accumulator among the lanes'."""
        self.levels: list[set[sympy.Symbol]] = [set(), {kernel.pack}]
        if kernel.layout == ROW:
            self.levels[0] |= kernel.row.free_symbols
            self.levels[1] |= getattr(kernel, "parts", {}).keys()
        else:
            self.levels.append({loop for loop, _ in kernel.inner})
        self.levels.append({self.lane} if self.width > 1 else set())
        taken = (*(argument.name for argument in program.spec.arguments), *program.spec.axes)
        self.names: dict[str, int] = dict.fromkeys(taken, 1)
        """How many names begin so, the parameters among them."""
        self.fold_names: dict[Member, str] = {}
        self._folds: dict[tuple[str, str, Expr], Member] = {}
        self._resolved: dict[int, Expr] = {}
        self._levels: dict[int, int] = {}
        self.arrays: dict[Window, str] = {}
        """Windows that stay in registers, as arrays over items."""
        self.lines: tuple[Index, Index, Index] | None = None
        """Of a kernel of elements whose packs are told by lines: the line, the place in it, a line's length."""
        self._placed: dict[int, Expr] = {}
        self.tables: dict[tuple[Expr, ...], str] = {}
        """Numbers that a block keeps in shared memory, by what they are."""
        self._needed: dict[int, frozenset[int]] | None = None
        self.index_names: dict[Index, str] = {}
        """Products of sizes that places are divided by: parameters of their own."""
        self.staged: dict[Buffer, str] | None = None
        """Small tensors of which a block keeps a copy in shared memory; None: none is."""
        self.keys: dict[Member, str] = {}
        """Of a fold whose elements are kept as keys: what puts one there."""
        self._shifts: dict[tuple[Buffer, Index], tuple[int, int]] | None = None

    # ------------------------------------------------------------------------------------------ values

    def fresh(self, prefix: str) -> str:
        self.names[prefix] = count = self.names.get(prefix, 0) + 1
        name = f"{prefix}{count}" if prefix == "v" or count > 1 else prefix
        return self.fresh(prefix) if name != prefix and name in self.names else name

    def value(self, member: Member) -> Expr:
        return self.resolve(member.value)

    def resolve(self, expr: Expr) -> Expr:
        """The expression with what the kernel itself makes put in: maps as their formulas, folds as their results."""
        found = self._resolved.get(id(expr))
        if found is not None:
            return found
        made = self.kernel.made
        if expr.op == "load" and expr.args[0] in made:
            maker = made[expr.args[0]]
            if maker.definition.reduced:
                result = self.fold(maker)
            else:
                result = self.resolve(maker.value)
        elif any(isinstance(arg, Expr) for arg in expr.args):
            args = [self.resolve(arg) if isinstance(arg, Expr) else arg for arg in expr.args]
            result = self._made(expr.op, args, expr.type)
        else:
            result = expr
        if result.op == "masked" and self.guards and self.level(result.args[0]) < self.innermost + (self.width == 1):
            result = windows.together(result, {self.lane, self.program.lane})
        result = result if self.lines is None else self.in_lines(result)
        self._resolved[id(expr)] = result
        self._resolved[id(result)] = result
        return result

    def fold(self, member: Member) -> Expr:
        """A reduction's result, of several that are the same the first one's."""
        key = (member.definition.kind, member.definition.type, self.value(member))
        return make("fold", self._folds.setdefault(key, member), type=member.definition.type)

    def in_lines(self, expr: Expr) -> Expr:
        """The expression with its places told by lines."""
        found = replace_indices(expr, self.placed, self._placed)
        self._placed[id(found)] = found
        return found

    def placed(self, index: Index) -> Index:
        """A place that a program names, in this text's variables."""
        return index if self.lines is None else windows.by_lines(index, self.kernel.pack, self.lines)

    def _made(self, op: str, args: list, type: str) -> Expr:
        """The operation; a division by what does not change is done once, as a reciprocal, where numbers may be approximate or it is made good."""
        if op in ("lt", "ge") and (told := self._of_packs(args)) is not None:
            args = told
        cheaper = {"sub": small_difference, "pow": None if self.program.exact else power_of_quarters}.get(op)
        if cheaper and type == "float" and self.on_a_gpu and (found := cheaper(*args)) is not None:
            return found
        if op == "mul" and args[0] is args[1] and args[0].op == "sqrt" and args[0].args[0].op == "fold":
            of = self.value(args[0].args[0].args[0])
            if of.op == "mul" and of.args[0] is of.args[1]:
                return args[0].args[0]  # a norm's square, where a mean of squares is written by it
        if op == "round_to" and args[1] == "uint8" and (most := highest(args[0])) is not None and most <= 255:
            return args[0]
        if op == "div" and type == "float" and self.on_a_gpu and self.level(args[1]) < self.level(args[0]):
            if self.fast:
                return make("mul", args[0], make("div", constant(1, type), args[1], type=type), type=type)
            scale = make("scale_of", args[1], type=type)
            number, by = (make("mul", one, scale, type=type) for one in args)
            return make("divided", number, by, make("div", constant(1, type), by, type=type), type=type)
        return make(op, *args, type=type)

    def _of_packs(self, args: list[Expr]) -> list[Expr] | None:
        """What is compared, without the lane where all lanes of a pack lie on one side of the bound."""
        place, bound = args
        if self.width == 1 or place.op != "index" or bound.op not in ("index", "const"):
            return None
        base = sympy.expand(place.args[0] - self.lane)
        whole = all(_is_multiple(sympy.sympify(one), self.width) for one in (base, bound.args[0]))
        return [make("index", base, type=place.type), bound] if whole else None

    def level(self, expr: Expr) -> int:
        found = self._levels.get(id(expr))
        if found is None:
            found = 0
            if expr.op == "fold":
                found = 0 if self.kernel.layout == ROW else len(self.levels) - 1
            for arg in expr.args:
                if isinstance(arg, Expr):
                    found = max(found, self.level(arg))
                elif isinstance(arg, sympy.Expr):
                    found = max(found, self.level_of_index(arg))
            self._levels[id(expr)] = found
        return found

    @property
    def innermost(self) -> int:
        """The level of what differs from element to element."""
        return max(at for at, known in enumerate(self.levels) if known)

    def cost(self, expr: Expr) -> int:
        """Instructions, roughly, for every element."""
        return sum(COST.get(one.op, 1) for one in walk([expr]) if self.level(one) == self.innermost)

    def level_of_index(self, index: Index) -> int:
        symbols = index.free_symbols
        return max((at for at, known in enumerate(self.levels) if known & symbols), default=0)

    # ------------------------------------------------------------------------------------------ windows

    def window(
        self, buffer: Buffer, place: Index, by=None, lanes: frozenset[int] | None = None
    ) -> tuple[Window, Index] | None:
        """The window that a load or store of all lanes, or of those that are named, lies in, and the lane's element in it."""
        if self.width == 1:
            return (Window(buffer, place, 1, by), sympy.Integer(0)) if self.level_of_index(place) else None
        if self.lane not in place.free_symbols:
            return None
        places = [sympy.expand(place.subs(self.lane, k)) for k in sorted(lanes or range(self.width))]
        first = places[0]
        offsets = [sympy.expand(one - first) for one in places]
        if not all(offset.is_Integer and offset >= 0 for offset in offsets):
            return None
        constant = first.as_coeff_Add()[0]
        if not constant.is_Integer:
            return None
        least = 1 << int(max(offsets)).bit_length()
        for width in (least, 2 * least, *windows.odd_width(first, int(max(offsets)), self.width)):
            within = int(constant) % width
            if (
                within + max(offsets) >= width
                or (constant < 0 and len(offsets) != width)
                or (by is not None and not _is_multiple(by[1], width))
            ):
                continue
            base = sympy.expand(first - within)
            in_packs = width & (width - 1) != 0 and width * buffer.dtype.itemsize % 16 != 0
            if _is_multiple(base, width) and not (in_packs and (by is not None or not self.guards)):
                return Window(buffer, base, width, by, edged=in_packs), sympy.expand(place - base)
        return None

    def load_window(self, expr: Expr) -> tuple[Window, Index] | None:
        if expr.op == "load":
            return self._shifted(*expr.args) or self.window(expr.args[0], expr.args[1], lanes=self._lanes_of(expr))
        if expr.op == "load_at":
            buffer, base, stride, place = expr.args
            if self.level(place) < len(self.levels) - 1 or self.width == 1:
                return self.window(buffer, base, (place, stride), lanes=self._lanes_of(expr))
        return None

    def _shifted(self, buffer: Buffer, place: Index) -> tuple[Window, Index] | None:
        """The window of a load that lies across the edges of packs, and of those beside it."""
        if self.width == 1 or not self.guards:
            return None
        if self._shifts is None:
            self._shifts = windows.shifts_of([self.value(m) for m in self.kernel.members], self.lane, self.width)
        rest, shift = windows.apart(place, self.lane)
        if (buffer, rest) not in self._shifts:
            return None
        first, width = self._shifts[buffer, rest]
        return Window(buffer, sympy.expand(rest + first), width, edged=True), self.lane + shift - first

    def _lanes_of(self, load: Expr) -> frozenset[int] | None:
        """Lanes that need it; None: all of them."""
        if self.width == 1:
            return None
        if self._needed is None:
            every = frozenset(range(self.width))
            values = [self.value(member) for member in self.kernel.members]
            values += [self.resolve(member.by[0]) for member in self.kernel.members if member.by]
            self._needed = {}
            stack = [(value, every) for value in values]
            while stack:
                expr, lanes = stack.pop()
                known = self._needed.get(id(expr), frozenset())
                if lanes <= known:
                    continue
                self._needed[id(expr)] = lanes | known
                holds = self.holding(expr.args[0]) if expr.op == "masked" else None
                if holds is not None:
                    stack += [(expr.args[1], lanes & holds), (expr.args[2], lanes - holds)]
                else:
                    stack += [(arg, lanes) for arg in expr.args if isinstance(arg, Expr)]
        return self._needed.get(id(load))

    def holding(self, condition: Expr) -> frozenset[int] | None:
        """The lanes for which a condition holds; None where more than the lane decides it."""
        return windows.holding(condition, self.lane, self.width) if self.width > 1 else None

    def always(self, roots: list[Expr], known: Container[int] = ()) -> list[Expr]:
        """What is evaluated whatever the conditions are, outermost first; without what only says where a window begins.

        `known`: ids of what needs no evaluation.
        """
        seen: dict[int, Expr] = {}
        stack = list(reversed(roots))
        while stack:
            expr = stack.pop()
            if id(expr) in seen or id(expr) in known:
                continue
            seen[id(expr)] = expr
            apart = expr.op in ("repeated", "halved") or (expr.op == "masked" and self.holding(expr.args[0]) is None)
            arguments = (*expr.args[:1], *windows.sought_of(expr)) if apart else expr.args
            if expr.op == "load_at" and self.load_window(expr):
                continue
            stack.extend(arg for arg in reversed(arguments) if isinstance(arg, Expr))
        return list(seen.values())

    def windows(self, roots: list[Expr], known: Container[int] = ()) -> list[Window]:
        """What all lanes load together, in order."""
        found = [w for e in self.always(roots, known) if e.op in ("load", "load_at") and (w := self.load_window(e))]
        if self.width > 1 and self.guards:  # these may be loaded whatever the conditions are
            found += [w for e in loads_of(roots) if e.op == "load" and (w := self._shifted(*e.args))]
        return list(dict.fromkeys(window for window, _ in found))

    # ------------------------------------------------------------------------------------------ packs and their lanes

    def packs_text(self) -> str:
        """How many a row, or a kernel of elements, has."""
        length = self.kernel.length if self.kernel.layout == ROW else self.kernel.rows
        return index_text(sympy.expand(length / self.width))

    def begin(self, roots: list[Expr]) -> None:
        """Called before anything of `roots` is printed."""

    def inside(self, pack: str, end: str) -> str:
        """Whether an item is one of the row's."""
        return f"{pack} < {end}"

    def opening(self) -> list[str]:
        """What is to be known of a row before its packs."""
        return []

    def pack_opening(self) -> list[str]:
        """What is to be known of a pack."""
        return []

    def load(self, window: Window, address: str) -> str:
        if window.edged:
            first, count = self.index(window.base), self.index(window.buffer.elements)
            return f"load_inside<{window.width}, {self.width}>({self.pointer(window.buffer)}, {first}, {count})"
        return f"load_pack<{window.width}>({address})"

    def store(self, window: Window, address: str, name: str) -> str:
        if window.edged:
            return f"store_{'rounded_' if self.rounds(window) else ''}parts<{self.width}>({address}, {name});"
        return f"{'store_rounded' if self.rounds(window) else 'store_pack'}({address}, {name});"

    def over(self, lines: list[str], alone: bool) -> list[str]:
        """The lines for every lane. `alone`: whether they store elements one by one."""
        return [
            self.over_lanes,
            f"for (int {self.lane} = 0; {self.lane} < {self.width}; ++{self.lane}) {{",
            *lines,
            "}",
        ]

    def within(self, member: Member, value: str) -> str:
        """What a lane adds to a reduction."""
        return value

    # ------------------------------------------------------------------------------------------ text

    def picked(self, numbers: tuple[Expr, ...], place: str) -> str | None:
        """The number at a place; None where comparisons choose it."""
        if numbers not in self.tables:
            self.tables[numbers] = self.fresh("table")
        return f"{self.tables[numbers]}[{_bare(place)}]"

    def tables_text(self, name: str) -> tuple[list[str], list[str]]:
        """(what stands before the function, what every thread comes by before it looks a number up)."""
        before, inside = [], []
        for numbers, table in self.tables.items():
            type, count = numbers[0].type, len(numbers)
            values = ", ".join(number_text(number.args[0], type) for number in numbers)
            before.append(f"__device__ const {type} {name}_{table}[{count}] = {{{values}}};")
            head = (
                f"if (threadIdx.x < {count}) {{"
                if count <= WARP
                else f"for (int at = threadIdx.x; at < {count}; at += blockDim.x) {{"
            )
            at = "threadIdx.x" if count <= WARP else "at"
            inside += [
                f"    __shared__ {type} {table}[{count}];",
                f"    {head}",
                f"        {table}[{at}] = {name}_{table}[{at}];",
                "    }",
            ]
        for buffer, table in (self.staged or {}).items():
            inside += [
                f"    __shared__ {COMPUTED[buffer.dtype]} {table}[{buffer.elements}];",
                f"    for (int at = threadIdx.x; at < {buffer.elements}; at += blockDim.x) {{",
                f"        {table}[at] = {self.loaded_text(buffer, f'{self.pointer(buffer)}[at]')};",
                "    }",
            ]
        return before, [*inside, "    __syncthreads();"] if inside else []

    def table_of(self, load: Expr) -> str | None:
        """The block's copy of the tensor, where every lane looks up a place in one that is small."""
        buffer: Buffer = load.args[0]
        given = self.program.inputs.get(buffer.text) is buffer and buffer.text not in self.program.outputs
        if self.staged is None or not given or self.level(load) < self.innermost:
            return None
        if not buffer.elements.is_Integer or buffer.elements > MOST_STAGED:
            return None
        if buffer not in self.staged:
            self.staged[buffer] = self.fresh(f"{buffer.name}_table")
        return self.staged[buffer]

    def element(self, dtype: torch.dtype) -> str:
        return element_type(dtype)

    def type_of(self, window: Window) -> str:
        return f"Pack<{self.element(window.buffer.dtype)}, {window.width}>"

    def pointer(self, buffer: Buffer) -> str:
        """A buffer's name in the kernel: what is changed in place has one pointer."""
        return buffer.text

    def address(self, window: Window, scope: Scope, printer: Statements | None) -> str:
        base = "" if window.base == 0 else f" + {self.index(window.base)}"
        if window.by is not None:
            place, stride = window.by
            text = printer.text(place, scope) if printer else ""
            base += f" + static_cast<int64_t>({_bare(text)}) * {_factor(self.index(stride))}"
        return f"{self.pointer(window.buffer)}{base}"

    def place(self, store, scope: Scope, printer: Statements) -> str:
        """The element of memory that a store writes."""
        if store.by is None:
            return f"{self.pointer(store.buffer)}[{self.index(store.place)}]"
        return f"*({self.address(Window(store.buffer, store.place, 1, store.by), scope, printer)})"

    def index(self, index: Index) -> str:
        return index_text(index, self.index_names)

    def take_divisors(self, indices: list[Index], sizes: set[sympy.Symbol]) -> set[Index]:
        """What the places are divided by, of sizes alone, so that the host finds its multiplier; products get a name."""
        if self.wide != "int":
            return set()
        found = {atom.args[1] for index in indices for atom in index.atoms(FloorDiv, Modulo)}
        found = {by for by in found if by.free_symbols and by.free_symbols <= sizes and not by.has(FloorDiv, Modulo)}
        for by in sorted(found, key=str):
            if not by.is_Symbol:
                self.index_names[by] = "by_" + re.sub(r"\W+", "_", index_text(by))
        return found

    def identity(self, member: Member) -> str:
        return identity("cuda", member.definition)

    def join(self, member: Member) -> str:
        type = self.fold_type(member)
        return f"[]({type} a, {type} b) {{ return {FOLD_OF[member.definition.kind]}; }}"

    def fold_type(self, member: Member) -> str:
        return "bool" if member.definition.kind in ("any", "all") else member.definition.type

    def step(self, member: Member, name: str, text: str) -> str:
        kind = member.definition.kind
        if member in self.keys:
            return f"{self.keys[member]}({_bare(text)});"
        return step(kind, name, text)

    def stored_text(self, buffer: Buffer, text: str) -> str:
        """A computed value as an element of the buffer."""
        if buffer.dtype in HALVES:
            return f"to<{HALVES[buffer.dtype]}>({_bare(text)})"
        return f"static_cast<{element_type(buffer.dtype)}>({_bare(text)})"

    def loaded_text(self, buffer: Buffer, text: str) -> str:
        return f"to_float({text})" if buffer.dtype in HALVES else text

    def rounds(self, window: Window) -> bool:
        """Whether a pack is gathered as floats and rounded as a whole: the device converts two elements at once."""
        return window.width > 1 and window.buffer.dtype in HALVES

    def pack_declared(self, window: Window, name: str) -> str:
        return f"float {name}[{window.width}];" if self.rounds(window) else f"{self.type_of(window)} {name};"

    def pack_lane(self, window: Window, name: str, lane: str) -> str:
        return f"{name}[{lane}]" if self.rounds(window) else f"{name}.at[{lane}]"

    def lane_stored(self, window: Window, text: str) -> str:
        """A computed value as an element of a pack."""
        return _bare(text) if self.rounds(window) else self.stored_text(window.buffer, text)

    def lane_loaded(self, buffer: Buffer, text: str) -> str:
        """An element of a pack as what is computed with."""
        return self.loaded_text(buffer, text)

    def operation(self, expr: Expr, parts: list[str]) -> str | None:
        """The operation where the device has a better text than C's."""
        op, type = expr.op, expr.type
        if op in ("divided", "raised", "scale_of"):
            return f"{op}({', '.join(map(_bare, parts))})"
        if op == "rsqrt" and type == "float":
            return f"rsqrtf({_bare(parts[0])})"
        fast = self.fast and not (self.exact_rows and self.level(expr) == 0)
        if op == "exp" and type == "float" and (fast or self.brief):
            return f"fast_exp({_bare(parts[0])})"
        if fast and type == "float":
            if op == "sigmoid":
                return f"fast_reciprocal(1.0f + fast_exp(-{parts[0]}))"
            if op in ("expm1", "log1p"):
                return f"fast_{op}({_bare(parts[0])})"
            if op == "log":
                return f"__logf({_bare(parts[0])})"
            if op == "div":
                return f"__fdividef({_bare(parts[0])}, {_bare(parts[1])})"
        return None


def _factor(text: str) -> str:
    return f"({text})" if " + " in text or " - " in text else text
