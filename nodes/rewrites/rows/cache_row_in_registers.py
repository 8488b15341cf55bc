"""A block's row stays in registers between its passes, instead of being read again or kept in shared memory.

Applies where several loops of a block visit the same range, the same thread the same elements: what a later loop loads and
an earlier one loaded or stored, and rows in shared memory that each thread only reads where it wrote itself, become small
arrays that unrolled loops index. All loads stand in front, those of later loops' constant operands too, so that they are
in flight together. How many items a thread keeps, and with it the block's width, the host works out from the number and
the length of the rows, the kernel's registers and the device: the fewest waves of blocks; rows too long for registers
(more than 4096 steps of 48 bytes, 8192 of 16) take the kernel as it was.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.device_code import Code, code_of, inside
from nodes.rewrites.analysis.insertions import require, without_unused
from nodes.rewrites.analysis.kernels import Access, Kernel, Loop
from nodes.rewrites.analysis.launches import Launch, host_text
from nodes.rewrites.analysis.regions import BLOCK_DIM, THREAD, carries_state, row_loop, sums_up, thread_loops
from nodes.rewrites.analysis.vectors import seen_through, spelt_out
from nodes.rewrites.prelude.lanes import CEIL_DIV, ELEMENT_BYTES
from nodes.rewrites.reductions.shares import check_block_shares
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.rows.row_kernels import by_items, unless_single
from nodes.rewrites.syntax.algebra import Polynomial, Symbol
from nodes.rewrites.syntax.nodes import declared_name, same, statements
from nodes.rewrites.syntax.source import Edits, Source, Unsupported, lifted
from nodes.rewrites.syntax.tree import field_of

CANONICAL = Symbol("element")
ITEMS = """\
// How wide a block may be that keeps `items` steps of a row in every thread, `bytes` of registers each: what there is of
// them, less some thirty that every thread needs for the rest.
constexpr int row_width(int items, int bytes) {
  const int width = items <= 2 ? 1024 : items <= 4 ? 512 : 65536 / (items * bytes / 4 + 32) / 32 * 32;
  return width < 1024 ? width : 1024;
}

// What blocks share on the current device.
struct Multiprocessors {
  int count = 1, threads = 1024, registers = 65536, blocks = 16;

  Multiprocessors() {
    int device = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
    cudaDeviceGetAttribute(&threads, cudaDevAttrMaxThreadsPerMultiProcessor, device);
    cudaDeviceGetAttribute(&registers, cudaDevAttrMaxRegistersPerMultiprocessor, device);
    cudaDeviceGetAttribute(&blocks, cudaDevAttrMaxBlocksPerMultiprocessor, device);
  }

  // How many blocks of a kernel run at a time.
  int64_t places(int block_threads, int thread_registers) const {
    const int each = std::min({threads / block_threads, registers / (block_threads * thread_registers), blocks});
    return static_cast<int64_t>(count) * std::max(each, 1);
  }
};

// The registers of a thread, which come in eights.
template <int ITEMS, typename Ask>
int row_registers(Ask ask) {
  cudaFuncAttributes kernel = {};
  ask(std::integral_constant<int, ITEMS>{}, &kernel);
  return std::max(kernel.numRegs + 7, 8) / 8 * 8;
}

// How many steps of a row one thread keeps in registers: as many as bring all rows through in the fewest waves of blocks,
// and no more than that takes, since places that narrower blocks leave free are filled unevenly by the next launch; but
// where one wave does, as many as make blocks of up to 512 threads, whose barriers are sooner over. 0 where the row is too
// long. `ask` gets what the driver knows of the kernel for so many steps, once, in the first launch.
template <typename Ask>
int row_items(int64_t rows, int64_t steps, int bytes, Ask ask) {
  static const Multiprocessors device;
  static const int taken[] = {row_registers<1>(ask), row_registers<2>(ask), row_registers<4>(ask), row_registers<8>(ask)};
  int best = 0;
  int64_t fewest = 0, width = 0;
  for (int choice = 0; choice < 4; ++choice) {
    const int items = 1 << choice;
    const int64_t threads = ceil_div(ceil_div(steps, items), 32) * 32;
    if (threads == 0 || threads > row_width(items, bytes)) continue;
    const int64_t waves = ceil_div(rows, device.places(threads, taken[choice]));
    const bool narrower = waves == 1 && width > 512;
    if (best == 0 || waves < fewest || narrower) best = items, fewest = waves, width = threads;
  }
  return best;
}

inline unsigned row_threads(int64_t steps, int items) { return ceil_div(ceil_div(steps, items), 32) * 32; }
"""
ITEMS_NAMES = ("row_width", "Multiprocessors", "row_registers", "row_items", "row_threads")
HOLD = """\
// The pack stays in whole registers up to here. Without this the compiler takes it apart as soon as it is loaded and holds
// every 16-bit element in a register of its own.
template <typename P>
__device__ __forceinline__ void hold_packed(P& pack) {
  if constexpr (sizeof(P) % 4 == 0 && alignof(P) >= 4) {
    unsigned* words = reinterpret_cast<unsigned*>(&pack);
#pragma unroll
    for (int word = 0; word < static_cast<int>(sizeof(P) / 4); ++word) asm volatile("" : "+r"(words[word]));
  }
}
"""
ONE_REGISTER_EACH = frozenset(
    {*ELEMENT_BYTES, "float2", "float4", "int2", "int4", "unsigned", "uint2", "uint4", "double2"}
)
"""Types that have a register for every element anyway."""


@dataclass
class Value:
    """A variable of a loop's body that is loaded from, or stored to, one address for each element."""

    loop: int
    variable: str
    type: str
    access: Access
    statement: Node
    loads: bool
    address: tuple[Symbol, Polynomial] = field(init=False)


@dataclass
class Row:
    """A row in shared memory of which each thread uses only its own elements."""

    name: str
    element: str
    width: str
    """Elements for each step, "" for one."""
    uses: list[tuple[Node, str]]
    """Accesses, each with its index within the step."""
    declaration: Node


@rule(
    "cuda",
    expected="each row is read once, all its loads in flight together; no shared memory between the passes",
    speedup=1.25,
    helps={"memory", "latency"},
    variants=("late",),
    risks=(Outcome.INCORRECT, Outcome.RUNTIME_ERROR, Outcome.OUT_OF_RESOURCES),
)
def rewrite(source: Source, facts: Facts, argument: str = "") -> str | None:
    code = code_of(source)
    if "row_items" in source.text:
        return None
    edits, holds = Edits(source), False
    for kernel in code.kernels:
        with edits.attempt():
            keeper = RowKeeper(code, kernel, early=argument != "late")
            keeper.write(edits)
            holds = holds or keeper.holds
    if not edits.changes:
        return None
    require(edits, code, CEIL_DIV, "ceil_div", includes=("algorithm", "cstdint", "cuda_runtime.h", "type_traits"))
    require(edits, code, ITEMS, *ITEMS_NAMES)
    if holds:
        require(edits, code, HOLD, "hold_packed")
    return without_unused(code, edits.apply())


class RowKeeper:
    """Works out what of one kernel can stay in registers, and writes the kernel that does so beside it.

    The threads that share a row are those of the block; see warp_per_row.py for those of a warp.
    """

    suffix = "in_registers"

    def __init__(self, code: Code, kernel: Kernel, *, early: bool) -> None:
        self.code, self.kernel, self.source = code, kernel, code.source
        if not kernel.launches:
            raise Unsupported("a kernel that is not launched here")
        self._check_talk()
        self.loops = self._group()
        if any(carries_state(kernel, statements(o.body)) and not sums_up(kernel, o) for o in self.loops):
            raise Unsupported("elements that depend on each other")
        self.values = [v for n, loop in enumerate(self.loops) for v in self._values(n, loop)]
        self.kept = self._kept()
        self.rows = self._rows()
        if not self.kept and not self.rows:
            raise Unsupported("nothing is read twice")
        self._check_block()
        self._check_shares()
        self.moved: list[Node] = []
        """Declarations from between the loops that early loads need: they go in front of these."""
        self.early = self._early() if early else []
        self.names: dict[tuple[Symbol, Polynomial], str] = {}
        taken = code.names()
        for value in [*(v for v in self.values if v.address in self.kept), *self.early, *self._first_loads()]:
            if value.address not in self.names:
                stem = value.variable.removesuffix("_pack")
                name = next(n for n in (f"{stem}_row", *(f"{stem}_row_{i}" for i in range(2, 99))) if n not in taken)
                taken.add(name)
                self.names[value.address] = name
        self.holds = False
        """Whether packs are held in whole registers, see HOLD."""
        self.item = code.fresh("item")
        self.count = code.fresh("ITEMS")

    def _check_shares(self) -> None:
        """There may be more threads a row than the source has, or fewer: what one brings that has no element must be nothing."""
        check_block_shares(self.code, self.kernel)

    def _check_talk(self) -> None:
        if self.kernel.synchronises and not self.kernel.has_barrier:
            raise Unsupported("a kernel whose warps work alone: the block must stay as it is")

    def _shared_out(self) -> list[Loop]:
        """Loops that those who share a row stride through together."""
        return [
            loop for loop in thread_loops(self.kernel)
            if loop.start == Polynomial.symbol(THREAD) and loop.step == Polynomial.symbol(BLOCK_DIM)
        ]  # fmt: skip

    def _group(self) -> list[Loop]:
        """The loops over the same range, neighbours in one list of statements."""
        loops = self._shared_out()
        for first in loops:
            group = [o for o in loops if o.bound == first.bound and same(o.node.parent, first.node.parent)]
            if len(group) >= 2:
                return group
        raise Unsupported("no two loops over the same range")

    def _within(self) -> list[Node]:
        """Where an address must not change."""
        return [self.loops[0].node.parent or self.kernel.body]

    def _canonical(self, access: Access, loop: Loop) -> tuple[Symbol, Polynomial]:
        """Also of `*reinterpret_cast<const uint4*>(x + 8 * i)`, a vector that begins on an element of the parameter's."""
        node = access.base.node
        if node is not None and node.type != "identifier" and access.base.depends_on(loop.symbol):
            held = self.code.polynomial(seen_through(node))
            base = self.code.pointer_base(held)
            if base is None or access.offset.terms:
                raise Unsupported("an address through a cast")
            access = replace(access, base=base, offset=held - Polynomial.symbol(base))
        address = Polynomial.symbol(access.base) + access.offset.without(loop.symbol)
        if self.kernel.changes_within(address, self._within()):
            raise Unsupported("an address that changes on the way")
        # A base that moves with the element (a cast of an address) would hide the element in an opaque term.
        if access.base.depends_on(loop.symbol) or any(
            s.parts and s.depends_on(loop.symbol) for s in access.offset.symbols
        ):
            raise Unsupported("an address through a cast")
        return access.base, access.offset.substitute(loop.symbol, Polynomial.symbol(CANONICAL))

    def _values(self, number: int, loop: Loop) -> list[Value]:
        """Declarations that only load, and statements that only store a variable, directly in the loop's body."""
        found = []
        for statement in statements(loop.body):
            inner = [a for a in self.kernel.accesses if a.root and inside(a.node, statement)]
            if len(inner) != 1:
                continue
            access = inner[0]
            whole = access.node
            if access.address and whole.parent is not None and whole.parent.parent is not None:
                whole = whole.parent.parent  # the call of the helper that loads or stores
            try:
                address = self._canonical(access, loop)
            except Unsupported:
                continue
            value = self._value(number, statement, access, whole)
            if value is not None:
                value.address = address
                found.append(value)
        return found

    def _value(self, number: int, statement: Node, access: Access, whole: Node) -> Value | None:
        text = self.source.of
        if statement.type == "declaration" and access.reads and not access.writes:
            declarators = statement.children_by_field_name("declarator")
            if len(declarators) != 1 or declarators[0].type != "init_declarator":
                return None
            name, value = field_of(declarators[0], "declarator"), field_of(declarators[0], "value")
            kind = text(statement, "type")
            if name is None or name.type != "identifier" or not same(value, whole):
                return None
            kind = access.element if kind == "auto" and not access.address else kind
            return None if kind == "auto" else Value(number, text(name), kind, access, statement, True)
        if statement.type == "expression_statement" and access.writes and not access.reads:
            expression = statement.named_children[0]
            if access.address and same(expression, whole):
                arguments = field_of(expression, "arguments")
                last = arguments.named_children[-1] if arguments is not None else None
            elif expression.type == "assignment_expression" and same(field_of(expression, "left"), whole):
                last = field_of(expression, "right")
            else:
                return None
            declared = self.code.definition(last) if last is not None and last.type == "identifier" else None
            if declared is None or last is None or not inside(declared.declaration, self.loops[number].body):
                return None
            inner = declared.declarator
            plain = inner is not None and inner.type in {"identifier", "init_declarator"}
            kind = text(declared.declaration, "type")
            if (
                not plain
                or kind == "auto"
                or not any(same(declared.declaration, s) for s in statements(self.loops[number].body))
            ):
                return None
            return Value(number, text(last), kind, access, statement, False)
        return None

    def _kept(self) -> set[tuple[Symbol, Polynomial]]:
        """Addresses that a later loop loads and an earlier one has already had in a variable of the same type."""
        kept = set()
        for later in self.values:
            if not later.loads or later.loop == 0:
                continue
            before = [v for v in self.values if v.address == later.address and v.loop < later.loop]
            if not before or len({v.type for v in [*before, later]}) != 1:
                continue
            # Every write to the array must be one of the stores that we follow, and of one variable a loop.
            writes = [a for a in self.kernel.accesses if a.root == later.access.root and a.writes]
            stores = [v for v in self.values if v.address == later.address and not v.loads]
            if len(writes) != len(stores) or any(root in {later.access.root, "?"} for _, root in self.kernel.escapes):
                continue
            if any(a.root == "?" and a.writes for a in self.kernel.accesses):
                continue
            by_loop: dict[int, set[str]] = {}
            for value in self.values:
                if value.address == later.address:
                    by_loop.setdefault(value.loop, set()).add(value.variable)
            if all(len(names) == 1 for names in by_loop.values()):
                kept.add(later.address)
        return kept

    def _rows(self) -> list[Row]:
        found: dict[str, Row] = {}
        refused: set[str] = set()
        shared = self._shared_names()
        for access in self.kernel.accesses:
            argument = field_of(access.node, "argument")
            name = self.source.of(argument) if argument is not None else ""
            if access.root or name not in shared or access.address:
                continue
            loop = next((o for o in self.loops if inside(access.node, o.body)), None)
            try:
                if loop is None:
                    raise Unsupported("a row that is used outside the loops")
                width, index = self._slot(access, loop)
            except Unsupported:
                refused.add(name)
                continue
            row = found.setdefault(name, Row(name, access.element, width, [], shared[name]))
            if row.width != width:
                refused.add(name)
            row.uses.append((access.node, index))
        rows = []
        for name, row in found.items():
            mentions = sum(self.source.of(n) == name for n in self.source.walk(self.kernel.body, "identifier"))
            if name not in refused and mentions == len(row.uses) + 1:
                rows.append(row)
        return rows

    def _shared_names(self) -> dict[str, Node]:
        """Arrays in shared memory and pointers into it, by name, with their declarations."""
        found: dict[str, Node] = {}
        for node in self.source.walk(self.kernel.body, "declaration"):
            declarators = node.children_by_field_name("declarator")
            if len(declarators) != 1:
                continue
            declarator = declarators[0]
            if any(self.source.of(c) == "__shared__" for c in node.children) and declarator.type == "array_declarator":
                name = field_of(declarator, "declarator")
                if name is not None and name.type == "identifier":
                    found[self.source.of(name)] = node
            elif declarator.type == "init_declarator":
                inner = field_of(declarator, "declarator")
                value = field_of(declarator, "value")
                name = (
                    field_of(inner, "declarator") if inner is not None and inner.type == "pointer_declarator" else None
                )
                if name is None or value is None or name.type != "identifier":
                    continue
                inward = {self.source.of(n) for n in self.source.walk(value, "identifier")}
                if inward & set(found):
                    found[self.source.of(name)] = node
        return found

    def _slot(self, access: Access, loop: Loop) -> tuple[str, str]:
        """Elements for each step and the index among them, of `row[i * width + index]`."""
        width = access.offset.coefficient(loop.symbol)
        rest = access.offset.without(loop.symbol)
        if rest.depends_on(loop.symbol) or any(m.count(loop.symbol) > 1 for m, _ in access.offset.terms):
            raise Unsupported("an index that is not linear")
        if width.value == 1 and not rest.terms:
            return "", ""
        if width.value is not None and rest.value is not None and 0 <= rest.value < width.value:
            return str(width.value), str(rest.value)
        if len(rest.terms) == 1 and len(rest.symbols) == 1:
            (symbol,) = rest.symbols
            inner = next((o for o in self.kernel.loops if o.symbol == symbol and inside(o.node, loop.body)), None)
            whole = inner is not None and inner.start.value == 0 and inner.bound == width and inner.step.value == 1
            if inner is not None and whole and rest == Polynomial.symbol(symbol) and self._constant(inner.bound_node):
                return self.source.of(inner.bound_node), symbol.text
        raise Unsupported("an index that other threads may use")

    def _constant(self, node: Node) -> bool:
        """Whether the expression is known when the kernel is compiled, and its names in sight before the loops."""
        for identifier in self.source.walk(node, "identifier"):
            found = self.code.definition(identifier)
            if found is None or found.kind in {"parameter", "loop"}:
                return False
            if found.kind == "local":
                qualifiers = {self.source.of(c) for c in found.declaration.children}
                if "constexpr" not in qualifiers or found.declaration.end_byte > self.loops[0].node.start_byte:
                    return False
        return True

    def _check_block(self) -> None:
        """The block's width must be free: nothing in the kernel or its helpers may count on the launch's number."""
        kernel, code = self.kernel, self.code
        if kernel.counts_warps:
            raise Unsupported("shared memory of which a fixed number of warps is read")
        functions = [kernel.node]
        for call in self.source.walk(kernel.body, "call_expression"):
            name = self.source.of(call, "function").split("<")[0]
            functions += code.overloads.get(name, [])
        used = {self.source.of(n) for f in functions for n in self.source.walk(f, "identifier", "number_literal")}
        for launch in kernel.launches:
            x, y, z = launch.extents(launch.block)
            if (y, z) != ("1", "1") or (self._is_wide(launch) and row_loop(kernel) is not None):
                raise Unsupported("a launch of more than one dimension")
            width = self._width_name(x, launch)
            stands = {
                n for n, a in zip(kernel.template_names, launch.template_arguments, strict=False) if a in {x, width}
            }
            if (width and width in used) or stands & used:
                raise Unsupported("a kernel that names the width of its block")
        for name in ("threadIdx.y", "blockDim.y", "threadIdx.z", "blockDim.z"):
            if any(self.source.of(n) == name for n in self.source.walk(kernel.body, "field_expression")):
                raise Unsupported(f"{name} is in use")
        removed = {row.name for row in self.rows}
        slots: dict[str, int] = {}
        for function in functions:
            for node in self.source.walk(function, "declaration"):
                declarator = field_of(node, "declarator")
                if not any(self.source.of(c) == "__shared__" for c in node.children) or declarator is None:
                    continue
                if declarator.type != "array_declarator" or any(
                    self.source.of(c) == "extern" for c in self.source.walk(node)
                ):
                    continue
                name, size = field_of(declarator, "declarator"), field_of(declarator, "size")
                if name is None or size is None or self.source.of(name) in removed:
                    continue
                slots[self.source.of(name)] = code.polynomial(size).value or 0
                if slots[self.source.of(name)] < 32:
                    raise Unsupported("shared memory for a fixed number of warps")
        for access in kernel.accesses:
            argument = field_of(access.node, "argument")
            name = self.source.of(argument) if argument is not None else ""
            if access.root or name in removed or not access.offset.depends_on(THREAD):
                continue
            if access.base.where >= 0 and not self._is_shared(access.base):
                continue  # the thread's own
            if not self._within_warps(access, slots.get(name, 0)):
                raise Unsupported("shared memory for a fixed number of threads")

    def _is_shared(self, base: Symbol) -> bool:
        found = self.code.definition(base.node) if base.node is not None and base.node.type == "identifier" else None
        return found is None or "__shared__" in self.source.of(found.declaration)

    def _within_warps(self, access: Access, slots: int) -> bool:
        """Whether the index stays below 32 for any block: a warp's or lane's number, or guarded by a comparison."""
        if len(access.offset.terms) == 1 and len(access.offset.symbols) == 1:
            (symbol,) = access.offset.symbols
            if symbol.operator and access.offset == Polynomial.symbol(symbol):
                divisor = symbol.operands[1].value or 0
                return divisor >= 32 if symbol.operator == "/" else divisor <= slots
        here: Node | None = access.node
        while here is not None and here.type != "function_definition":
            parent = here.parent
            if parent is not None and parent.type in {"if_statement", "conditional_expression"}:
                condition = field_of(parent, "condition")
                taken = same(field_of(parent, "consequence"), here)
                if condition is not None and taken and self._below_warps(condition, access.offset):
                    return True
            here = parent
        return False

    def _below_warps(self, condition: Node, index: Polynomial) -> bool:
        if condition.type in {"condition_clause", "parenthesized_expression"} and condition.named_child_count == 1:
            return self._below_warps(condition.named_children[0], index)
        if condition.type != "binary_expression":
            return False
        left, right = field_of(condition, "left"), field_of(condition, "right")
        operator = self.source.of(condition, "operator")
        if left is None or right is None or operator not in {"<", "=="} or self.code.polynomial(left) != index:
            return False
        limit = self.code.polynomial(right)
        if limit.value is not None:
            return limit.value <= 32
        return any(s.operator == "/" and (s.operands[1].value or 0) >= 32 for s in limit.symbols)

    def _width_name(self, text: str, launch: Launch, depth: int = 0) -> str:
        """The number or the global constant that a block's width is; "" where it is computed."""
        text = text.strip("() ")
        if text.isdigit() or text in self.code.macros:
            return text
        if not text.isidentifier() or depth > 4:
            return ""
        here = next(
            (n for n in self.source.walk(launch.statement.parent, "identifier") if self.source.of(n) == text), None
        )
        found = self.code.definition(here) if here is not None else None
        if found is None or found.kind == "global":
            return text
        return self._width_name(self.source.of(found.value), launch, depth + 1) if found.value is not None else ""

    def _first_loads(self) -> list[Value]:
        """Loads of the first loop that stand before anything else happens there: they are taken out in front."""
        found = []
        waiting = self._waiting()
        for statement in statements(self.loops[0].body):
            value = next((v for v in self.values if v.loads and v.loop == 0 and same(v.statement, statement)), None)
            if value is not None and any(same(statement, other) for other in waiting):
                break
            if value is not None:
                # A name of its own is only safe where no store of another variable claims the address.
                same_address = {v.variable for v in self.values if v.address == value.address and v.loop == 0}
                if len(same_address) == 1 or value.address not in self.kept:
                    found.append(value)
            elif statement.type != "declaration" or self._has_access(statement):
                break
        return found

    def _waiting(self) -> list[Node]:
        """Declarations of the first loop that name what it has loaded before."""
        names = {v.variable for v in self.values if v.loads and v.loop == 0}
        found = []
        for statement in statements(self.loops[0].body):
            if statement.type != "declaration":
                continue
            declared = {self.source.of(declared_name(d)) for d in statement.children_by_field_name("declarator")}
            if (names - declared) & {self.source.of(n) for n in self.source.walk(statement, "identifier")}:
                found.append(statement)
                names |= declared
        return found

    def _has_access(self, statement: Node) -> bool:
        return any(inside(a.node, statement) for a in self.kernel.accesses) or any(
            inside(call, statement) for call, _ in self.kernel.escapes
        )

    def _early(self) -> list[Value]:
        """Loads of later loops that depend on nothing computed in between, from arrays that nobody writes."""
        written = {a.root for a in self.kernel.accesses if a.writes} | {root for _, root in self.kernel.escapes}
        if "?" in written:
            return []
        first = self.loops[0]
        found = []
        for value in self.values:
            if value.loop == 0 or not value.loads or value.address in self.kept or value.access.root in written:
                continue
            if any(v.address == value.address for v in found):
                continue
            variables = set()
            for polynomial in (value.access.offset, Polynomial.symbol(value.access.base)):
                variables |= polynomial.variables()
            loop = self.loops[value.loop]
            late = [s for s in variables if s != loop.symbol and s.where >= first.node.start_byte]
            between = self._between(value.statement, loop, written)
            if not late and between is not None and self._spelled_in_first(value):
                found.append(value)
                self.moved += [d for d in between if not any(same(d, other) for other in self.moved)]
        self.moved.sort(key=lambda declaration: declaration.start_byte)
        return found

    def _between(self, node: Node, loop: Loop, written: set[str]) -> list[Node] | None:
        """Declarations between the loops that the node's names need, directly or not; None where they cannot move in front
        of the first loop, as they are computed from what it leaves or from memory that is written."""
        first, found, stack = self.loops[0].node, list[Node](), [node]
        while stack:
            for name in self.source.walk(stack.pop(), "identifier"):
                held = self.code.definition(name)
                if held is None or held.kind != "local" or held.declaration.start_byte < first.start_byte:
                    continue
                declaration = held.declaration
                if inside(declaration, loop.body):
                    if not same(declaration, node) and not inside(name, declaration):
                        stack.append(declaration)
                    continue
                if any(same(declaration, other) for other in found):
                    continue
                if not same(declaration.parent, first.parent) or not self._can_move(declaration, held.name, written):
                    return None
                found.append(declaration)
                stack.append(declaration)
        return found

    def _can_move(self, declaration: Node, name: str, written: set[str]) -> bool:
        source, first = self.source, self.loops[0].node
        declarators = declaration.children_by_field_name("declarator")
        if len(declarators) != 1 or declarators[0].type != "init_declarator":
            return False
        before = [n for n in source.walk(first.parent, "identifier") if source.of(n) == name]
        if any(first.start_byte <= n.start_byte < declaration.start_byte for n in before):
            return False
        if any(source.of(t) == name for t in self.code.assigned(self.kernel.body)):
            return False
        for call in source.walk(declaration, "call_expression", "assignment_expression", "update_expression"):
            called = source.of(call, "function")
            if not self.code.loads(called) and not called.startswith(("static_cast<", "reinterpret_cast<")):
                return False
        if any(n.start_byte > first.start_byte for n in source.walk(self.kernel.body, "return_statement")):
            return False  # which may be there so that nothing behind it is read
        changed = {source.of(t) for t in self.code.assigned(self.kernel.body) if t.start_byte >= first.start_byte}
        names = {source.of(n) for n in source.walk(declaration, "identifier")}
        accesses = [a for a in self.kernel.accesses if inside(a.node, declaration)]
        return not names & changed and all(a.root and a.root not in written for a in accesses)

    def _spelled_in_first(self, value: Value) -> bool:
        """Whether the load's own words mean the same in the first loop."""
        loop, first = self.loops[value.loop], self.loops[0]
        if loop.name != first.name:
            return False
        waiting = self._waiting()
        ready = [s for s in statements(first.body) if not any(same(s, other) for other in waiting)]
        declared = {self.source.of(s).strip() for s in ready if s.type == "declaration"}
        for identifier in self.source.walk(value.statement, "identifier"):
            found = self.code.definition(identifier)
            if found is None or not inside(found.declaration, loop.body) or same(found.declaration, value.statement):
                continue
            if self.source.of(found.declaration).strip() not in declared:
                return False
        return True

    # What is written.

    def write(self, edits: Edits) -> None:
        kernel, source = self.kernel, self.source
        name = self.code.fresh(f"{kernel.name}_{self.suffix}")
        edits.insert(kernel.outer.end_byte, "\n\n" + self._new_kernel(name))
        for launch in kernel.launches:
            self._write_launch(edits, launch, name)
        if not source.of(kernel.node).strip():
            raise Unsupported("an empty kernel")

    def _new_kernel(self, name: str) -> str:
        kernel, source = self.kernel, self.source
        replaced: list[tuple[Node, str]] = [(kernel.name_node, name), *self._elsewhere()]
        bounds = self._bounds()
        present = next((c for c in kernel.node.children if c.type == "launch_bounds"), None)
        kind = field_of(kernel.node, "type")
        if present is not None:
            replaced.append((present, bounds))
        elif kind is not None and bounds:
            replaced.append((kind, f"{source.of(kind)} {bounds}"))
        replaced += [(node, "") for node in [*(row.declaration for row in self.rows), *self.moved]]
        slots = [
            (node, f"{row.name}_kept[{self.item}]" + (f"[{index}]" if index else ""))
            for row in self.rows
            for node, index in row.uses
        ]
        for number, loop in enumerate(self.loops):
            replaced.append((loop.node, self._loop_text(number, loop, slots)))
        for pragma in source.walk(kernel.body, "preproc_call"):
            after = pragma.next_named_sibling
            if after is not None and any(same(after, loop.node) for loop in self.loops):
                replaced.append((pragma, "\n"))
        text = source.render(kernel.node, replaced)
        head = f"template <{self._numbers()}>\n"
        if kernel.template is not None:
            listed = field_of(kernel.template, "parameters")
            head = f"template {source.of(listed)[:-1]}, {self._numbers()}>\n"
        text = re.sub(r"(?m)^[ \t]+(?=#pragma)|^[ \t]+\n", "", text)
        return re.sub(r"\n[ \t]*\n[ \t]*\n", "\n\n", head + text)

    def _bounds(self) -> str:
        return f"__launch_bounds__(row_width({self.count}, {self._bytes()}))"

    def _numbers(self) -> str:
        """The new kernel's own template parameters."""
        return f"int {self.count}"

    def _elsewhere(self) -> list[tuple[Node, str]]:
        """What else of the kernel reads otherwise."""
        return []

    def _element(self, loop: Loop) -> str:
        """Which element of the row a thread's item is."""
        return f"threadIdx.x + {self.item} * blockDim.x"

    def _loop_text(self, number: int, loop: Loop, slots: list[tuple[Node, str]]) -> str:
        source, unit = self.source, self.source.unit(loop.node)
        outer = source.indent(loop.node)
        first = self._first_loads() if number == 0 else []
        in_front = [*first, *self.early] if number == 0 else []
        lines: list[str] = []
        if number == 0:
            lines += [lifted(self.source, declaration, source.of(declaration)) for declaration in self.moved]
            lines += self._arrays()
        if in_front:
            lines += self._around(loop, self._front(loop, first), unit)
        body: list[str] = []
        for statement in statements(loop.body):
            value = next((v for v in self.values if v.loop == number and same(v.statement, statement)), None)
            held = self.names.get(value.address) if value is not None and value.loads else None
            if value is None or held is None:
                body.append(self._declared_in_row(statement, number) or source.render(statement, slots))
            elif value in in_front or value in self.early or (value.address in self.kept and self._had_before(value)):
                constant = "" if self._changes(value, loop) else "const "
                bound = f"{constant}{value.type}& {value.variable} = {held}[{self.item}];"
                body.append(self._held(value, f"{held}[{self.item}]") + bound)
            elif number == 0 or value.address in self.kept:
                body += [
                    f"{value.type}& {value.variable} = {held}[{self.item}];",
                    f"{value.variable} = {self._loaded(statement)};",
                ]
            else:
                body.append(source.render(statement, slots))
        body = [
            lifted(self.source, statement, text)
            for statement, text in zip(self._origins(loop, number, body), body, strict=True)
        ]
        body = self._without_unused(body)
        lines += self._around(loop, body, unit)
        return f"\n{outer}".join(part for line in lines for part in line.split("\n")).replace(
            f"\n{outer}#pragma", "\n#pragma"
        )

    def _had_before(self, value: Value) -> bool:
        """Whether a loop before this one has left the element in its slot."""
        return any(v.address == value.address and v.loop < value.loop for v in self.values)

    def _held(self, value: Value, slot: str) -> str:
        """The line in front of a kept pack's use, "" for what needs none."""
        if value.type in ONE_REGISTER_EACH or value.type in self.kernel.template_names:
            return ""
        self.holds = True
        return f"hold_packed({slot});\n"

    def _bytes(self, launch: Launch | None = None) -> str:
        """What one step takes in registers, as the kernel's template parameters say it, or those of a launch."""
        counts: dict[str, int] = {}
        kept = {self.names[v.address]: v.type for v in [*self.values, *self.early] if v.address in self.names}
        for short in kept.values():
            kind = self._spelled(spelt_out(self.kernel, short))
            counts[f"sizeof({kind})"] = counts.get(f"sizeof({kind})", 0) + 1
        for row in self.rows:
            size = f"sizeof({row.element})"
            if row.width:
                width = self._spelled(row.width)
                whole = re.fullmatch(r"[\w.]+|[(].*[)]", width)
                size = f"{width} * {size}" if whole else f"({width}) * {size}"
            counts[size] = counts.get(size, 0) + 1
        text = " + ".join(size if n == 1 else f"{n} * {size}" for size, n in counts.items())
        if launch is not None:
            for name, argument in zip(self.kernel.template_names, launch.template_arguments, strict=False):
                text = re.sub(rf"\b{re.escape(name)}\b", argument, text)
        return text

    def _spelled(self, width: str) -> str:
        """A constant of the kernel's body in words that are known outside of it."""
        for declaration in reversed(list(self.source.walk(self.kernel.body, "declaration"))):
            declarator = field_of(declaration, "declarator")
            if (
                declarator is None
                or declarator.type != "init_declarator"
                or "constexpr" not in self.source.of(declaration)
            ):
                continue
            name = self.source.of(declarator, "declarator")
            value = self.source.of(declarator, "value")
            width = re.sub(rf"\b{re.escape(name)}\b", value if value.isdigit() else f"({value})", width)
        return width

    def _origins(self, loop: Loop, number: int, body: list[str]) -> list[Node]:
        """For each line of the new body a statement whose indentation it had."""
        origins = []
        texts = list(body)
        for statement in statements(loop.body):
            origins.append(statement)
        while len(origins) < len(texts):
            origins.append(statements(loop.body)[-1])
        return origins

    def _declared_in_row(self, statement: Node, number: int) -> str | None:
        """`Pack out;` whose variable is stored to a kept address: the array's element under the same name."""
        for value in self.values:
            if value.loop != number or value.loads or value.address not in self.kept or statement.type != "declaration":
                continue
            declarators = statement.children_by_field_name("declarator")
            if len(declarators) == 1 and self.source.of(declarators[0]) == value.variable:
                return f"{value.type}& {value.variable} = {self.names[value.address]}[{self.item}];"
        return None

    def _arrays(self) -> list[str]:
        by_type: dict[str, list[str]] = {}
        for value in [*self.values, *self.early]:
            name = self.names.get(value.address)
            if name is not None and f"{name}[{self.count}]" not in by_type.setdefault(value.type, []):
                by_type[value.type].append(f"{name}[{self.count}]")
        lines = [f"{kind} {', '.join(names)};" for kind, names in by_type.items() if names]
        for row in self.rows:
            lines.append(f"{row.element} {row.name}_kept[{self.count}]" + (f"[{row.width}];" if row.width else ";"))
        return lines

    def _front(self, loop: Loop, first: list[Value]) -> list[str]:
        """All loads, with the index declarations that they need."""
        lines = []
        waiting = self._waiting()
        for statement in statements(loop.body):
            value = next((v for v in first if same(v.statement, statement)), None)
            if value is None and any(same(statement, other) for other in waiting):
                continue
            if value is not None:
                lines.append(f"{self.names[value.address]}[{self.item}] = {self._loaded(statement)};")
            elif statement.type == "declaration" and not self._has_access(statement):
                if all(d.type == "init_declarator" for d in statement.children_by_field_name("declarator")):
                    lines.append(lifted(self.source, statement, self.source.of(statement)))
            else:
                break
        lines += [
            f"{self.names[value.address]}[{self.item}] = {self._loaded(value.statement)};" for value in self.early
        ]
        return self._without_unused(lines)

    def _loaded(self, statement: Node) -> str:
        return self.source.of(field_of(statement, "declarator"), "value")

    def _changes(self, value: Value, loop: Loop) -> bool:
        """Whether the loop changes the variable after it was loaded."""
        words = re.compile(rf"(?<![\w.]){re.escape(value.variable)}\b")
        qualifiers = {self.source.of(c) for c in value.statement.children}
        return "const" not in qualifiers and len(words.findall(self.source.of(loop.body))) > 1

    def _without_unused(self, lines: list[str]) -> list[str]:
        """Without declarations of integers that the other lines do not name."""
        kept = list(lines)
        for line in reversed(lines):
            match = re.match(
                r"(?:const )?(?:auto|int|unsigned|int64_t|uint32_t|size_t|int32_t|uint64_t) (\w+) = [^\n]*;$", line
            )
            if match and not any(re.search(rf"\b{match[1]}\b", other) for other in kept if other is not line):
                kept.remove(line)
        return kept

    def _around(self, loop: Loop, body: list[str], unit: str) -> list[str]:
        bound = self.source.of(loop.bound_node)
        kind = loop.type if loop.type != "auto" else "int64_t"
        return [
            "#pragma unroll",
            f"for (int {self.item} = 0; {self.item} < {self.count}; ++{self.item}) {{",
            f"{unit}const {kind} {loop.name} = {self._element(loop)};",
            f"{unit}if ({loop.name} < {bound}) {{",
            *(line if line.startswith("#") else unit * 2 + line for text in body for line in text.split("\n")),
            f"{unit}}}",
            "}",
        ]

    def _write_launch(self, edits: Edits, launch: Launch, name: str) -> None:
        source, kernel = self.source, self.kernel
        statement = launch.statement
        rows = row_loop(kernel)
        count = host_text(kernel, launch, rows.bound_node) if rows is not None else self._blocks(launch)
        steps = host_text(kernel, launch, self.loops[0].bound_node)
        items, run, length = (
            self.code.fresh("items"),
            self.code.fresh("launch_kept"),
            self.code.fresh("steps", "row_steps"),
        )
        ask = self.code.fresh("ask", "ask_kernel")
        inner = f"decltype({items})::value"
        function = re.sub(rf"\b{re.escape(kernel.name)}\b", name, launch.with_arguments(inner), count=1)
        grid = source.of(launch.grid)
        headers = [n for n in (rows.start_node, rows.step_node) if n is not None] if rows is not None else []
        if rows is not None and all(any(inside(use, h) for h in headers) for use in kernel.block_indices()):
            grid = f"static_cast<unsigned>({count})"
        call = launch.rendered(
            function=function, grid=grid, block=f"row_threads({length}, {inner})", shared=self._shared_bytes(launch)
        )
        chosen = f"row_items({count}, {length}, {self._bytes(launch)}, {ask})"
        lines = [
            f"const int64_t {length} = {steps};",
            f"const auto {ask} = [](auto {items}, cudaFuncAttributes* of) {{",
            [f"cudaFuncGetAttributes(of, {function});"],
            "};",
            *by_items(run, items, [f"{call};"], chosen, source.of(statement)),
        ]
        edits.write(statement, unless_single(launch, lines))

    def _is_wide(self, launch: Launch) -> bool:
        """Whether its grid has more than one dimension."""
        return launch.extents(launch.grid)[1:] != ("1", "1")

    def _blocks(self, launch: Launch) -> str:
        """How many blocks there are, and so rows, as an expression of the host's."""
        extents = launch.extents(launch.grid)
        if not self._is_wide(launch):
            return extents[0]
        plain = [e if e.isidentifier() or e.isdigit() else f"({e})" for e in extents if e != "1"]
        return " * ".join(["int64_t{1}", *plain])

    def _shared_bytes(self, launch: Launch) -> str:
        """Dynamic shared memory of the new kernel: what lies before the row that is gone."""
        text = launch.shared_text
        if not self.rows or text == "0":
            return text
        dynamic = [
            n for n in self.source.walk(self.kernel.body, "declaration")
            if any(self.source.of(c) == "extern" for c in self.source.walk(n)) and "__shared__" in self.source.of(n)
        ]  # fmt: skip
        gone = {row.declaration.id for row in self.rows}
        if all(node.id in gone for node in dynamic):
            return "0"
        shared = self._shared_names()
        into = [
            name for name, node in shared.items() if node.id not in gone and not any(same(node, d) for d in dynamic)
        ]
        if len(self.rows) != 1 or len(into) > 1 or len(dynamic) != 1:
            return text
        before = self._bytes_before(launch, self.rows[0].declaration)
        return before if before is not None else text

    def _bytes_before(self, launch: Launch, declaration: Node) -> str | None:
        value = field_of(declaration, "declarator", "value")
        if value is None or value.type != "call_expression":
            return None
        arguments = field_of(value, "arguments")
        inner = arguments.named_children[0] if arguments is not None and arguments.named_child_count else None
        if inner is None or inner.type != "binary_expression" or self.source.of(inner, "operator") != "+":
            return None
        left, right = field_of(inner, "left"), field_of(inner, "right")
        if left is None or right is None or left.type != "identifier":
            return None
        found = self.code.definition(left)
        if found is None or found.value is None:
            return None
        element = self.source.of(found.declaration, "type")
        try:
            return f"{host_text(self.kernel, launch, right)} * sizeof({element})"
        except Unsupported:
            return None
