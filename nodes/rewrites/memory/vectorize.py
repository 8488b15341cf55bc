"""Scalar loads and stores become packs of up to 16 bytes.

Applies to a loop over elements that threads share out (`for (i = threadIdx.x; i < n; i += blockDim.x)`, a grid-stride
loop, or one guarded element a thread) whose body reads or writes neighbouring elements for neighbouring `i`; an element
may be a vector (half2, float2, uint2) that the kernel sees its parameter through, see _vectors.py. The loop
then runs over packs: indices and everything else that is the same for a whole pack are computed once, all loads come
before the arithmetic, all stores after it. Right because no thread may rely on another's elements between two barriers.
Elements that are reached under a condition which is the same for a whole pack, `bias ? bias[i] : 0`, move under it; elements
that each ask for themselves, `mask[i] ? x[i] : y[i]`, are loaded where one of the pack is read, so nothing is touched
that is further from a read element than its own 16 bytes.

The host launches packs only where every row starts on a pack (sizes divide, pointers are aligned to 16 bytes) and falls
back to packs of one element; no tail is needed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis import vectors as _vectors
from nodes.rewrites.analysis.device_code import Code, Definition, code_of, inside
from nodes.rewrites.analysis.indices import COORDINATES, LOADS
from nodes.rewrites.analysis.insertions import require, without_unused
from nodes.rewrites.analysis.kernels import Access, Kernel
from nodes.rewrites.analysis.launches import Launch, host_text
from nodes.rewrites.analysis.regions import (
    Guard,
    Region,
    Stride,
    accesses_in,
    carries_state,
    guards_of,
    regions,
    streams,
)
from nodes.rewrites.prelude.lanes import CEIL_DIV, ELEMENT_BYTES, LANES
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.algebra import Polynomial, Symbol
from nodes.rewrites.syntax.insert import free
from nodes.rewrites.syntax.nodes import declared_name, same
from nodes.rewrites.syntax.source import Edits, Source, Unsupported, lifted
from nodes.rewrites.syntax.tree import field_of, is_integer

PACK_BYTES = """\
#define PACK_BYTES 16  // tune: 8 16
"""
PAIRS = """\
// {pair} copies its halves one by one: many of them move as the words that they are.
template <int N, int A = N>
__device__ __forceinline__ Lanes<{pair}, N, A> load_lanes(const {pair}* from) {{
  const auto words = *reinterpret_cast<const Lanes<unsigned, N, A>*>(from);
  return reinterpret_cast<const Lanes<{pair}, N, A>&>(words);
}}

template <int N, int A>
__device__ __forceinline__ void store_lanes({pair}* to, const Lanes<{pair}, N, A>& lanes) {{
  *reinterpret_cast<Lanes<unsigned, N, A>*>(to) = reinterpret_cast<const Lanes<unsigned, N, A>&>(lanes);
}}
"""
PAIRED = {
    "__half2": "__half2", "half2": "__half2", "__nv_bfloat162": "__nv_bfloat162", "nv_bfloat162": "__nv_bfloat162",
}  # fmt: skip
ALIGNED = """\
template <typename... P>
inline bool aligned_to_16_bytes(P... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}
"""
WIDEST = 32
"""Elements: a constant index term must be a multiple of this to keep any pack aligned."""


@dataclass
class Group:
    """Accesses that are the lanes of one pack."""

    accesses: list[Access]
    stride: int
    name: str = ""
    remainders: set[int] = field(default_factory=set)
    guards: dict[int, tuple[Guard, ...]] = field(default_factory=dict)
    """By access: the conditions under which it is reached."""
    asked: list[Node] | None = None
    """Declarations that the conditions of a load need for each lane; None where they are the same for the whole pack."""

    @property
    def first(self) -> Access:
        return self.accesses[0]

    @property
    def reads(self) -> bool:
        """Whether an element is read before it is written."""
        seen_write: set[int] = set()
        for access in sorted(self.accesses, key=_moment):
            lane = _remainder(access, self.stride)
            if access.reads and lane not in seen_write:
                return True
            if access.writes and not self.guards.get(access.node.id):
                seen_write.add(lane)
        return False

    def cases(self, accesses: list[Access]) -> list[tuple[Guard, ...]]:
        """The conditions of which one must hold for any of the accesses; [()] where nothing need hold."""
        found = {tuple(g.key for g in guards): guards for guards in (self.guards.get(a.node.id, ()) for a in accesses)}
        while True:
            both = next((k for k in found if k and (*k[:-1], (k[-1][0], not k[-1][1])) in found), None)
            if both is None:
                break
            found[both[:-1]] = found[both][:-1]
            del found[both], found[(*both[:-1], (both[-1][0], not both[-1][1]))]
        return [guards for k, guards in found.items() if not any(k[:n] in found for n in range(len(k)))]

    def check_stores(self, shared: set[int]) -> None:
        """Raises Unsupported where some lanes may be stored and others not: `shared` are the conditions of whole packs."""
        stores = [access for access in self.accesses if access.writes]
        cases = [
            {
                tuple(g.key for g in guards)
                for guards in self.cases([s for s in stores if _remainder(s, self.stride) == r])
            }
            for r in sorted({_remainder(s, self.stride) for s in stores})
        ]
        if any(other != cases[0] or any(node not in shared for keys in other for node, _ in keys) for other in cases):
            raise Unsupported("lanes of one pack that are stored under different conditions")

    @property
    def writes(self) -> bool:
        return any(access.writes for access in self.accesses)

    @property
    def conditions(self) -> list[Node]:
        """What is asked before the pack is loaded or stored."""
        reading, writing = ([a for a in self.accesses if getattr(a, effect)] for effect in ("reads", "writes"))
        cases = [*(self.cases(reading) if self.reads else ()), *self.cases(writing)]
        return [guard.condition for guards in cases for guard in guards]


@dataclass
class Packed:
    """One region that can be packed, and what must hold for it."""

    kernel: Kernel
    region: Region
    groups: list[Group]
    multiples: list[tuple[Polynomial, int]]
    """Each polynomial must be a multiple of (width * the integer)."""
    shared: list[Node]
    """Reads of an element that a whole pack has in common, `scale[i / columns]`."""


@rule(
    "cuda",
    expected="16 bytes instead of one element a load: fewer instructions, more bytes in flight",
    speedup=2.0,
    helps={"memory", "latency", "compute"},
    after=("vectorize_short_loops",),
    risks=(Outcome.INCORRECT, Outcome.RUNTIME_ERROR),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    plain = _vectors.written_out(source)
    if plain != source.text and (packed := _packed(source.reparsed(plain))) is not None:
        return packed
    return _packed(source)


def _packed(source: Source) -> str | None:
    code = code_of(source)
    edits = Edits(source)
    changed = False
    pairs: set[str] = set()
    for kernel in code.kernels:
        try:
            found = [
                packed for region in regions(kernel, True) if (packed := _packable(code, kernel, region)) is not None
            ]
            while parted := next((packed for packed in found if _parted(kernel, packed, found)), None):
                found = [packed for packed in found if packed is not parted]
            if found:
                attempt = Edits(source)
                _rewrite_kernel(attempt, code, kernel, found)
                edits.changes += attempt.changes
                changed = True
                pairs |= _pairs(kernel, found)
        except Unsupported:
            continue
    if not changed:
        return None
    try:
        require(edits, code, PACK_BYTES, "PACK_BYTES", includes=("cstdint", "type_traits"))
        require(edits, code, LANES, "Lanes", "load_lanes", "store_lanes")
        for pair in sorted(pairs):
            require(edits, code, PAIRS.format(pair=pair))
        require(edits, code, ALIGNED, "aligned_to_16_bytes")
        if any("ceil_div(" in change[2] for change in edits.changes):
            require(edits, code, CEIL_DIV, "ceil_div")
        return without_unused(code, edits.apply())
    except Unsupported:
        return None


def _pairs(kernel: Kernel, found: list[Packed]) -> set[str]:
    """The types of two halves that the packs are made of, whatever the launches' template arguments are."""
    elements = {group.first.element for packed in found for group in packed.groups}
    for element in list(elements):
        elements |= {_vectors.spelt_out(kernel, element), *_vectors.trait_types(kernel, element)}
        if element in kernel.template_names:
            at = kernel.template_names.index(element)
            elements |= {argument for launch in kernel.launches for argument in launch.template_arguments[at : at + 1]}
    return {PAIRED[plain] for element in elements if (plain := kernel.code.plain_type(element)) in PAIRED}


def _parted(kernel: Kernel, packed: Packed, found: list[Packed]) -> bool:
    """Whether a thread would meet elsewhere, with no barrier in between, elements that another thread now has.

    Loops over packs of the same range give a thread the same elements.
    """
    region = packed.region
    for mine in kernel.accesses:
        if not region.holds(mine.node) or not mine.offset.depends_on(region.symbol):
            continue
        for call, root in kernel.escapes:
            if mine.root and root in {mine.root, "?"} and not _barrier_between(kernel, mine.node, call):
                return True
        for other in kernel.accesses:
            shared = mine.root == other.root if mine.root else mine.base == other.base and not other.root
            if not shared or not (mine.writes or other.writes) or region.holds(other.node):
                continue
            if region.otherwise is not None and inside(other.node, region.otherwise):
                continue  # of a thread that has no elements
            fellow = next((p for p in found if p.region.holds(other.node)), None)
            if fellow is not None and fellow.region.bound == region.bound and fellow.region.kind == region.kind:
                continue
            if mine.base.node is not None and _own(kernel, mine):
                continue
            if not _barrier_between(kernel, mine.node, other.node):
                return True
    return False


def _barrier_between(kernel: Kernel, one: Node, other: Node) -> bool:
    first, last = sorted((one.start_byte, other.start_byte))
    return any(first < at < last for at in kernel.barriers)


def _own(kernel: Kernel, access: Access) -> bool:
    """Whether it is memory of the thread itself."""
    found = kernel.code.definition(access.base.node) if access.base.node is not None else None
    return not access.root and found is not None and "__shared__" not in kernel.source.of(found.declaration)


def _packable(code: Code, kernel: Kernel, region: Region) -> Packed | None:
    if region.kind == "guard":
        if kernel.synchronises:
            return None
        code = Code(code.source, pinned=frozenset({region.symbol.where}))
        kernel = next(k for k in code.kernels if k.name == kernel.name and k.node.start_byte == kernel.node.start_byte)
    jumps = ("continue_statement", "return_statement", "break_statement", "goto_statement")
    if any(_leaves(jump, region) for statement in region.body for jump in code.source.walk(statement, *jumps)):
        return None
    groups: dict[tuple[object, ...], Group] = {}
    multiples: list[tuple[Polynomial, int]] = []
    scalar_writes: set[str] = set()
    if any(region.holds(call) for call, _ in kernel.escapes) or any(a.root == "?" for a in accesses_in(kernel, region)):
        return None
    try:
        bound_stride = Stride(region.symbol)
        if bound_stride.of(region.bound) != 0:
            return None
    except Unsupported:
        return None
    stored = {
        name for access in accesses_in(kernel, region) if access.writes for name in (access.root, access.base.text)
    }
    varied: list[tuple[Access, tuple[Guard, ...], tuple[object, ...]]] = []
    shared: list[Node] = []
    shared_conditions: set[int] = set()
    seen_as: dict[str, set[Symbol]] = {}
    for access in accesses_in(kernel, region):
        seen_as.setdefault(access.root, set()).add(access.base)
    in_two_sizes = {
        root for root, bases in seen_as.items()
        if len(bases) > 1 and any(base.node is not None and base.node.type != "identifier" for base in bases)
    }  # fmt: skip
    for access in accesses_in(kernel, region):
        stride = Stride(region.symbol)
        try:
            if access.root in in_two_sizes & stored:
                raise Unsupported("elements that are written in one size and met in another")
            access, pointer, size = _in_parameter(code, access)
            step, uneven = divmod(stride.of(access.offset), size)
            if access.wide:
                raise Unsupported("packed already")
            if kernel.changes_within(Polynomial.symbol(pointer), [kernel.body]):
                raise Unsupported("a pointer that moves, from an address that the host cannot check")
            if kernel.changes_within(access.offset, list(region.body)):
                raise Unsupported("an index that the body changes")
            if any(_looked_up(code, symbol) & stored for symbol in access.offset.symbols):
                raise Unsupported("an index out of memory that the body changes")
            if step == 0 and not uneven and stride.multiples and not access.writes and access.root not in stored:
                for launch in kernel.launches:
                    for polynomial in stride.multiples:
                        _conditions(kernel, launch, region, polynomial, 1)
                shared.append(access.node)
                multiples += [(polynomial, 1) for polynomial in stride.multiples]
                continue
            guards = guards_of(access.node, region, kernel)
            if uneven or not 1 <= step <= (4 if size == 1 else 1) or guards is None:
                raise Unsupported("not lanes of a pack")
            remainder = _remainder(access, step)
            aligned = access.offset - Polynomial.constant(remainder)
            needed = [(m, 1) for m in stride.multiples] + [(aligned, size)]
            for launch in kernel.launches:
                for polynomial, times in needed:
                    _conditions(kernel, launch, region, polynomial, times)
            if guards:
                _check_in_front(code, region, access.node)
                if not _is_sized(kernel, access.element):
                    raise Unsupported("elements of unknown size")
                of_pack = _asked_once(code, kernel, region, stored, guards)
                needed += [(m, 1) for _, multiples_of in of_pack for m in multiples_of]
                shared_conditions |= {guard.condition.id for guard, _ in of_pack}
                if len(of_pack) < len(guards) and (access.reads or not access.writes):
                    if access.writes or step != 1:
                        raise Unsupported("an element that is changed where it asks for that itself")
                    varied.append((access, guards, (access.base, aligned, step)))
                    multiples += needed
                    continue
        except Unsupported:
            if access.writes:
                scalar_writes.add(access.root)
            continue
        group = groups.setdefault((access.base, aligned, step), Group([], step))
        group.accesses.append(access)
        group.remainders.add(remainder)
        group.guards[access.node.id] = guards
        multiples += needed
    multiples += _divided_whole(code, kernel, region)
    for group in groups.values():
        try:
            group.check_stores(shared_conditions)
        except Unsupported:
            scalar_writes.add(group.first.root)
    kept = []
    for group in groups.values():
        whole = group.remainders == set(range(group.stride))
        if group.first.root in scalar_writes and not group.writes:
            return None  # elements of one array through packs and past them
        if whole or (group.stride > 1 and not group.writes and 0 in group.remainders):
            kept.append(group)
        elif group.writes:
            scalar_writes.add(group.first.root)
    kept = [g for g in kept if g.first.root not in scalar_writes]
    if any(access.root in scalar_writes for access, _, _ in varied):
        varied = [v for v in varied if v[0].root not in scalar_writes]
    _add_varied(code, kernel, region, stored, kept, groups, varied)
    if region.kind == "guard" and not _only_block_index(kernel, region):
        return None
    stores = any(access.writes for access in accesses_in(kernel, region))
    if _tell_apart(code, region, [*(region.body if stores else ()), *([region.otherwise] if region.otherwise else ())]):
        return None  # what an element becomes is not to depend on who has it
    if region.otherwise is not None and any(
        not inside(a.node, region.guard) and region.holds(a.node) for a in kernel.accesses
    ):
        return None  # loads in front of a guard that both of its branches use
    if carries_state(kernel, list(region.body)) and not streams(kernel, region):
        return None
    for access in kernel.accesses:  # a thread's own share, written out, would become another share
        if access.writes and access.root and not region.holds(access.node) and region.tells_apart(access.offset):
            return None
    if not kept or not kernel.launches or all(_is_fallback(code, launch) for launch in kernel.launches):
        return None
    # A pack that is only read with holes wastes bandwidth as the scalar loads did; a unit stride is what pays.
    if not any(g.stride == 1 or len(g.remainders) == g.stride for g in kept):
        return None
    multiples.append((region.bound, 1))
    for launch in kernel.launches:
        host_text(kernel, launch, region.bound_node)
    taken = kernel.identifiers() | code.names()
    for group in kept:
        group.name = free(f"{_called(code.source, group.first)}_pack", taken)
        taken.add(group.name)
    return Packed(kernel, region, kept, multiples, shared)


def _asked_once(
    code: Code, kernel: Kernel, region: Region, stored: set[str], guards: tuple[Guard, ...]
) -> list[tuple[Guard, list[Polynomial]]]:
    """The conditions that a whole pack shares, with what must be a multiple of its width for that."""
    found = []
    for guard in guards:
        try:
            found.append((guard, _Condition(code, kernel, region, stored).checked(guard.condition)))
        except Unsupported:
            continue
    return found


def _add_varied(
    code: Code,
    kernel: Kernel,
    region: Region,
    stored: set[str],
    kept: list[Group],
    groups: dict[tuple[object, ...], Group],
    varied: list[tuple[Access, tuple[Guard, ...], tuple[object, ...]]],
) -> None:
    """Reads that each element asks for itself join the packs, where what they ask can be told from packs that are loaded
    in any case. The others stay reads of single elements."""
    told = [g for g in kept if g.reads and not g.writes and not any(g.guards.values())]
    for access, guards, key in varied:
        group = groups.get(key) or Group([], 1)
        if group.accesses and not any(group is g for g in kept):
            continue
        condition = _Condition(code, kernel, region, stored, told)
        try:
            for guard in guards:
                condition.checked(guard.condition)
        except Unsupported:
            continue
        group.asked = [*(group.asked or ()), *condition.per_lane]
        if not group.accesses:
            groups[key] = group
            kept.append(group)
        group.accesses.append(access)
        group.remainders.add(0)
        group.guards[access.node.id] = guards


_TALKS = re.compile(
    r"atomic|sync|shfl|vote|ballot|match|any|all|reduce|clock|rand|asm|^__st|^__ld|mem|printf|assert|trap"
)


@dataclass
class _Condition:
    """Whether a condition may be asked in front of a pack's loads, once, or once a lane where `told` are the packs that
    it may be told from."""

    code: Code
    kernel: Kernel
    region: Region
    stored: set[str]
    told: list[Group] | None = None
    per_lane: list[Node] = field(default_factory=list)
    """Declarations of the body that it needs for each lane."""

    def checked(self, node: Node, depth: int = 0) -> list[Polynomial]:
        """What must be a multiple of the pack's width so that a pack shares the condition. Raises Unsupported where it
        cannot be asked there."""
        source, code, multiples = self.code.source, self.code, list[Polynomial]()
        lanes = [access.node for group in self.told or () for access in group.accesses]
        lanes = [lane for lane in lanes if inside(lane, node)]
        whole: list[Node] = []
        for here in source.walk(node):
            if any(inside(here, lane) for lane in lanes):
                continue
            if here.type == "binary_expression" and (divided := self._divided(here)) is not None:
                whole.append(here)
                multiples += divided
            if here.type in {"assignment_expression", "update_expression", "lambda_expression", "pointer_expression"}:
                raise Unsupported("a condition that does something")
            if here.type == "call_expression":
                self._check_call(here)
            elif here.type == "subscript_expression":
                base = code.pointer_base(code.polynomial(field_of(here, "argument")))
                root = code.root_of(base) if base is not None else "?"
                if root in self.stored | {"", "?"}:
                    raise Unsupported("a condition on memory that changes")
            elif here.type == "identifier" and not same(field_of(here.parent, "function"), here):
                known = source.of(here) == self.region.name and any(inside(here, part) for part in whole)
                multiples += [] if known else self._checked_name(here, depth)
        return multiples

    def _divided(self, node: Node) -> list[Polynomial] | None:
        """What must be a multiple so that `i / n` is the same for a whole pack; None for anything else."""
        source, stride = self.code.source, Stride(self.region.symbol)
        if source.of(node, "operator") not in {"/", "%", ">>"}:
            return None
        index = self.code.polynomial(node)
        lookups = source.has(node, "subscript_expression", "call_expression")
        try:
            return (
                stride.multiples
                if index.depends_on(self.region.symbol) and not lookups and not stride.of(index)
                else None
            )
        except Unsupported:
            return None

    def _check_call(self, call: Node) -> None:
        function, source = field_of(call, "function"), self.code.source
        name = source.of(function).split("<")[0]
        if name in LOADS or (function is not None and function.type == "primitive_type"):
            return
        mine = name in self.code.overloads or name in self.code.macros
        if mine or function is None or function.type not in {"identifier", "template_function"} or _TALKS.search(name):
            raise Unsupported("a condition that calls a function")

    def _checked_name(self, name: Node, depth: int) -> list[Polynomial]:
        code, region, text = self.code, self.region, self.code.source.of(name)
        found = code.definition(name)
        if text == "threadIdx" or depth > 8:
            raise Unsupported("a condition on the thread")
        if found is None:
            if text in COORDINATES:
                part = code.source.of(name.parent)
                if region.kind in {"grid", "guard"} and part.endswith(f".{region.axis}"):
                    raise Unsupported("a condition on the thread")
            return []
        if found.where == region.symbol.where or found.kind == "macro":
            raise Unsupported("a condition on the element")
        if not region.holds(found.declaration):
            changed = self.kernel.changes_within(Polynomial.symbol(Symbol(text, found.where)), list(region.body))
            if changed or region.tells_apart(code.polynomial(name)):
                raise Unsupported("a condition that the body changes, or on the thread")
            return []
        if not any(same(found.declaration, s) for s in region.body) or found.value is None or code.mutated(found):
            raise Unsupported("a condition on something that is not known in front of the loads")
        try:
            return _Condition(code, self.kernel, region, self.stored).shared(found, depth + 1)
        except Unsupported:
            if self.told is None or len(found.declaration.children_by_field_name("declarator")) != 1:
                raise
        multiples = self.checked(found.value, depth + 1)
        if not any(same(found.declaration, s) for s in self.per_lane):
            self.per_lane.append(found.declaration)
        return multiples

    def shared(self, found: Definition, depth: int) -> list[Polynomial]:
        """What must be a multiple of the pack's width so that a variable of the body is the same for a whole pack."""
        stride = Stride(self.region.symbol)
        lookups = self.code.source.has(found.value, "subscript_expression", "call_expression")
        try:
            if not lookups and stride.of(self.code.polynomial(found.value)) == 0:
                return stride.multiples
        except Unsupported:
            pass
        return self.checked(found.value, depth)


def _check_in_front(code: Code, region: Region, node: Node) -> None:
    """Raises Unsupported where an address names what is declared under a condition."""
    for name in code.source.walk(node, "identifier"):
        found = code.definition(name)
        if found is None or not region.holds(found.declaration) or found.where == region.symbol.where:
            continue
        if not any(same(found.declaration, statement) for statement in region.body):
            raise Unsupported("an address that is only known under the condition")


def _tell_apart(code: Code, region: Region, nodes: list[Node]) -> bool:
    """Whether the nodes ask which of the threads that share the elements out it is. A team's row is asked for by right, in
    more ways than can be told from that."""
    return region.kind != "team" and any(
        region.tells_apart(code.polynomial(name))
        for node in nodes
        for name in code.source.walk(node, "identifier", "field_expression")
        if name.type == "identifier" or code.source.of(name).startswith("threadIdx.")
    )


def _in_parameter(code: Code, access: Access) -> tuple[Access, Symbol, int]:
    """The access, the pointer that its offset counts from, and how many units of the offset an element is long: of a vector
    that the kernel sees somewhere in its parameter, the offset counts the parameter's elements.

    Raises Unsupported where the host cannot say where the vectors begin.
    """
    node = access.base.node
    if access.base.text == access.root or node is None or node.type == "identifier":
        return access, access.base, 1
    held = code.polynomial(_vectors.seen_through(node))
    parameter = code.pointer_base(held)
    if parameter is None or parameter.text != access.root:
        raise Unsupported("elements of another type than the parameter's")
    start = held - Polynomial.symbol(parameter)
    if not start.terms:
        return access, parameter, 1
    own, other = (ELEMENT_BYTES.get(code.plain_type(e), 0) for e in (access.element, code.element_of(parameter)))
    if not other or own % other or not own:
        raise Unsupported("elements of unknown sizes")
    size = own // other
    return replace(access, offset=start + Polynomial.constant(size) * access.offset), parameter, size


def _looked_up(code: Code, symbol: Symbol) -> set[str]:
    """Every name in an element that an index is read from."""
    named = (
        code.source.walk(symbol.node, "identifier") if symbol.address is not None and symbol.node is not None else ()
    )
    roots = (
        {code.root_of(s) for s in symbol.address.symbols if code.element_of(s)} if symbol.address is not None else set()
    )
    return roots | {code.source.of(name) for name in named}


def _divided_whole(code: Code, kernel: Kernel, region: Region) -> list[tuple[Polynomial, int]]:
    """What the host can check so that an index like `i / columns`, once declared, is the same for a whole pack."""
    found: list[tuple[Polynomial, int]] = []
    for declarator in (d for s in region.body for d in s.children_by_field_name("declarator")):
        value, stride = field_of(declarator, "value"), Stride(region.symbol)
        if value is None:
            continue
        try:
            stride.of(code.polynomial(value))
            for launch in kernel.launches:
                for polynomial in stride.multiples:
                    _conditions(kernel, launch, region, polynomial, 1)
        except Unsupported:
            continue
        found += [(polynomial, 1) for polynomial in stride.multiples]
    return found


def _only_block_index(kernel: Kernel, region: Region) -> bool:
    """Whether the number of blocks means nothing to the kernel but the elements of the region."""
    holders = [region.definition] if region.definition is not None else []
    if region.loop is not None:
        holders += [n for n in (region.loop.start_node, region.loop.step_node) if n is not None]
        for identifier in kernel.source.walk(region.loop.start_node, "identifier"):
            found = kernel.code.definition(identifier)
            if found is not None and found.kind == "local":
                holders.append(found.declaration)
    return all(any(inside(use, holder) for holder in holders) for use in kernel.block_indices(region.axis))


def _is_fallback(code: Code, launch: Launch) -> bool:
    """Whether the launch is what is left where a check of sizes or addresses ruled a wider kernel out."""
    node = launch.statement
    while node.parent is not None and node.parent.type != "function_definition":
        parent = node.parent
        otherwise = field_of(parent, "alternative") if parent.type == "if_statement" else None
        condition = field_of(parent, "condition")
        if otherwise is not None and condition is not None and inside(node, otherwise):
            consequence = field_of(parent, "consequence")
            rival = consequence is not None and any(inside(other.node, consequence) for other in code.launches)
            if rival and _divides(code, condition):
                return True
        node = parent
    return False


def _divides(code: Code, node: Node, depth: int = 0) -> bool:
    """Whether a remainder decides the condition, seen through the variables that it names."""
    for here in code.source.walk(node, "binary_expression", "identifier", "assignment_expression"):
        if here.type == "binary_expression" and code.source.of(here, "operator") in {"%", "&"}:
            return True
        if here.type == "identifier" and depth < 4:
            found = code.definition(here)
            if found is not None and found.value is not None and _divides(code, found.value, depth + 1):
                return True
    return False


def _called(source: Source, access: Access) -> str:
    """What the source calls the array there, which may be a pointer into the parameter."""
    if access.address:
        return next((source.of(n) for n in source.walk(access.node, "identifier")), access.root)
    argument = field_of(access.node, "argument")
    plain = argument is not None and argument.type == "identifier" and access.node.type == "subscript_expression"
    return source.of(argument) if plain else access.root


def _leaves(node: Node, region: Region) -> bool:
    """Whether a jump leaves the element's visit, and not only a loop inside of it or a lambda."""
    ends = {"for_statement", "while_statement", "do_statement"}
    if node.type == "return_statement":
        ends = set()
    elif node.type == "break_statement":
        ends |= {"switch_statement"}
    here = node.parent
    while here is not None and region.holds(here):
        if here.type in ends or here.type == "lambda_expression":
            return False
        here = here.parent
    return True


def _moment(access: Access) -> int:
    """Where in the source an access takes effect: `y[i] = f(y[i])` writes once its right side has been read."""
    if access.reads:
        return access.node.start_byte
    here = access.node
    while here.parent is not None and here.type != "expression_statement":
        here = here.parent
    return here.end_byte


def _remainder(access: Access, stride: int) -> int:
    constant = next((c for m, c in access.offset.terms if not m), 0)
    return constant % stride


def _conditions(
    kernel: Kernel, launch: Launch, region: Region, polynomial: Polynomial, times: int
) -> list[tuple[tuple[str, ...], int]]:
    """Products, as their factors, that must be multiples of (width * the integer) so that the polynomial is a multiple of
    (width * times). Raises where the host cannot know."""
    found = []
    # In an order of its own: a set's would differ from one process to the next.
    for monomial, coefficient in sorted(polynomial.terms, key=lambda term: [symbol.text for symbol in term[0]]):
        if any(s == region.symbol or (s.operator == "%" and s.depends_on(region.symbol)) for s in monomial):
            continue  # the element is the first of a pack, and its stride is the pack's
        if coefficient % (WIDEST * times) == 0:
            continue
        factors = []
        for symbol in monomial:
            try:
                if symbol.node is not None and not symbol.depends_on(region.symbol):
                    factors.append(host_text(kernel, launch, symbol.node))
            except Unsupported:
                continue
        if not factors:
            raise Unsupported("an offset whose alignment the host cannot know")
        found.append((tuple(factors), times))
    return found


def _implied(condition: tuple[tuple[str, ...], int], others: list[tuple[tuple[str, ...], int]]) -> bool:
    """Whether a part of the product is a multiple already."""
    factors, times = condition
    return any(len(some) < len(factors) and set(some) <= set(factors) and by % times == 0 for some, by in others)


def _rewrite_kernel(edits: Edits, code: Code, kernel: Kernel, found: list[Packed]) -> None:
    names = code.names()
    width = "VEC" if "VEC" not in names else free("LANES", names)
    element = _element(kernel, found)
    for packed in found:
        _rewrite_region(edits, code, packed, width)
    explicit = bool(kernel.launches[0].template_arguments)
    if any(bool(launch.template_arguments) != explicit for launch in kernel.launches):
        raise Unsupported("launches that name template arguments and launches that do not")
    if explicit and any(len(launch.template_arguments) != len(kernel.template_names) for launch in kernel.launches):
        raise Unsupported("a launch that names some template arguments only")
    if kernel.template is None:
        first = kernel.node.children[
            0
        ]  # replaced, since in a file without includes helpers are inserted at the same place
        edits.replace(first, f"template <int {width}>\n{code.source.of(first)}")
    else:
        listed = field_of(kernel.template, "parameters")
        if explicit:
            edits.insert(listed.end_byte - 1, f", int {width}")
        else:
            edits.insert(listed.start_byte + 1, f"int {width}, ")
    for launch in kernel.launches:
        _rewrite_launch(edits, code, kernel, launch, found, element)


def _element(kernel: Kernel, found: list[Packed]) -> str:
    """The type whose packs fill 16 bytes: the template's own, or the narrowest of two bytes and more."""
    elements = {group.first.element for packed in found for group in packed.groups}
    generic = [e for e in elements if e in kernel.template_names]
    if generic:
        return sorted(generic)[0]
    sizes = {e: ELEMENT_BYTES.get(kernel.code.plain_type(_vectors.spelt_out(kernel, e)), 0) for e in elements}
    for element in elements:
        if not sizes[element]:
            sizes[element] = min(_trait_bytes(kernel, element), default=0)
    if not all(sizes.values()):
        raise Unsupported(f"elements of unknown size: {', '.join(sorted(e for e in elements if not sizes[e]))}")
    wide = [e for e in elements if sizes[e] >= 2] or sorted(elements)
    narrowest = min(wide, key=lambda e: (sizes[e], e))
    if sizes[narrowest] >= 16:
        raise Unsupported("as wide as a load can be")
    return narrowest


def _is_sized(kernel: Kernel, element: str) -> bool:
    plain = kernel.code.plain_type(_vectors.spelt_out(kernel, element))
    return element in kernel.template_names or plain in ELEMENT_BYTES or bool(_trait_bytes(kernel, element))


def _trait_bytes(kernel: Kernel, element: str) -> list[int]:
    """The sizes of `typename Trait<T>::type`, by T; empty where one is not known."""
    found = [ELEMENT_BYTES.get(kernel.code.plain_type(name), 0) for name in _vectors.trait_types(kernel, element)]
    return found if all(0 < size <= 8 for size in found) else []


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


def _rewrite_region(edits: Edits, code: Code, packed: Packed, width: str) -> None:
    source, region, kernel = code.source, packed.region, packed.kernel
    taken = kernel.identifiers()
    pack, first, lane = (free(n, taken) for n in ("pack", "first", "k"))
    indices, per_pack, per_lane = _split(packed, first, lane)
    outer = source.indent(region.loop.node if region.loop else region.guard or region.body[0])
    unit = source.unit(kernel.body)
    behind_return = region.guard is not None and not any(inside(s, region.guard) for s in region.body)
    inner = outer if behind_return else outer + unit
    kind = region.type if region.type != "auto" else "int64_t"
    lines, written = [f"const {kind} {first} = {pack} * {width};"], list[str]()
    lines += indices  # loads come before what is computed once a pack: it may wait for loads of its own

    def comes_first(group: Group) -> tuple[bool, bool]:
        """What is loaded in any case may be asked for what is not."""
        return not group.reads, group.asked is not None and _when(packed, group, "reads", lane) != ""

    for group in sorted(packed.groups, key=comes_first):
        size = width if group.stride == 1 else f"{group.stride} * {width}, {width}"
        element = group.first.element
        if group.reads:
            load = f"load_lanes<{size}>({_address(packed, group, first)})"
            if condition := _when(packed, group, "reads", lane):
                if group.asked is not None:
                    asked = free(f"{_called(source, group.first)}_read", taken)
                    taken.add(asked)
                    lines += _asked_by_lane(packed, group, asked, condition, (width, lane, unit))
                    condition = asked
                load = f"{condition} ? {load} : Lanes<{element}, {size}>{{}}"
            lines.append(f"{'' if group.writes else 'const '}Lanes<{element}, {size}> {group.name} = {load};")
        else:
            written.append(f"Lanes<{element}, {size}> {group.name};")
    lines += [*per_pack, *written]
    body = [
        "#pragma unroll",
        f"for (int {lane} = 0; {lane} < {width}; ++{lane}) {{",
        *(unit + line for line in _flat(per_lane)),
        "}",
    ]
    stores = list[str]()
    for group in packed.groups:
        if group.writes:
            condition = _when(packed, group, "writes", lane)
            store = f"store_lanes({_address(packed, group, first, stored=True)}, {group.name});"
            stores.append(f"if ({condition}) {store}" if condition else store)
    text = "\n".join(
        inner + line if line and not line.startswith("#") else line for line in _flat([*lines, *body, *stores])
    )
    bound = source.of(region.bound_node)
    bound = bound if re.fullmatch(r"[\w.]+", bound) else f"({bound})"
    if region.loop is not None:
        for node in region.loop.name_nodes:
            edits.replace(node, pack)
        edits.replace(region.loop.bound_node, f"{bound} / {width}")
        edits.replace(region.loop.body, "{\n" + text + "\n" + outer + "}")
        return
    name = field_of(region.definition, "declarator", "declarator")
    left = field_of(region.condition, "left")
    edits.replace(name, pack)
    edits.replace(left, pack)
    if region.otherwise is not None:
        definition = region.definition
        edits.insert(
            definition.end_byte, f"\n{source.indent(definition)}const {kind} {region.name} = {pack} * {width};"
        )
    edits.replace(region.bound_node, f"{bound} / {width}")
    consequence = field_of(region.guard, "consequence")
    if behind_return:
        for statement in region.body[:-1]:
            edits.remove(statement)
        edits.replace(region.body[-1], text.lstrip())
    else:
        for statement in region.body:
            if not inside(statement, consequence) and region.otherwise is None:
                edits.remove(statement)
        edits.replace(consequence, "{\n" + text + "\n" + outer + "}")


def _when(packed: Packed, group: Group, effect: str, lane: str) -> str:
    """The condition under which a pack is loaded or stored, or one of its lanes `k` read; "" for always."""
    source, first = packed.kernel.source, free("first", packed.kernel.identifiers())
    replaced = [*_lanes(packed, lane), *_firsts(packed, first)]
    cases = group.cases([access for access in group.accesses if getattr(access, effect)])
    written = []
    for at, guards in enumerate(cases):
        if not guards:
            return ""
        # Of `a || (!a && b)` the `!a` is said already.
        earlier = {tuple(g.key for g in case) for case in cases[:at]}
        keys = [(*(g.key for g in guards[:n]), (guard.key[0], True)) for n, guard in enumerate(guards)]
        said = [not guard.holds and key in earlier for guard, key in zip(guards, keys, strict=True)]
        asked = [guard for guard, known in zip(guards, said, strict=True) if not known] or list(guards)
        parts = []
        for guard in asked:
            text, kind = source.render(guard.condition, replaced), guard.condition.type
            compound = kind in {"binary_expression", "conditional_expression", "comma_expression"}
            alone = len(cases) == len(asked) == 1 and guard.holds and group.asked is None
            text = f"({text})" if compound and not alone and not text.startswith("(") else text
            parts.append(text if guard.holds else f"!{text}")
        written.append(" && ".join(parts) if len(cases) == 1 or len(parts) == 1 else f"({' && '.join(parts)})")
    return " || ".join(dict.fromkeys(written))


def _asked_by_lane(packed: Packed, group: Group, asked: str, condition: str, names: tuple[str, str, str]) -> list[str]:
    """`bool x_read = false; for (k ...) x_read |= mask_pack.at[k] != 0;`"""
    source, (width, lane, unit) = packed.kernel.source, names
    needed = [s for s in packed.region.body if any(same(s, other) for other in group.asked or ())]
    first = free("first", packed.kernel.identifiers())
    replaced = [*_lanes(packed, lane), *_firsts(packed, first)]
    body = [lifted(source, s, source.render(s, replaced)) for s in needed]
    body.append(f"{asked} |= {condition};")
    return [
        f"bool {asked} = false;",
        "#pragma unroll",
        f"for (int {lane} = 0; {lane} < {width}; ++{lane}) {{",
        *(unit + line for line in _flat(body)),
        "}",
    ]


def _firsts(packed: Packed, first: str) -> list[tuple[Node, str]]:
    """The element's index where the pack's first stands for all: in what is read for all of them, and in conditions."""
    conditions = [condition for group in packed.groups for condition in group.conditions]
    asked = [statement for group in packed.groups for statement in group.asked or ()]
    nodes = [*packed.shared, *conditions, *asked]
    return [place for node in nodes for place in _first(packed, node, first)]


def _lanes(packed: Packed, lane: str) -> list[tuple[Node, str]]:
    """The packs' accesses, each with the lane that stands for it."""
    return [
        (
            access.node,
            f"{'&' if access.address else ''}{group.name}.at[{_lane(lane, group.stride, _remainder(access, group.stride))}]",
        )
        for group in packed.groups
        for access in group.accesses
    ]


def _flat(lines: list[str]) -> list[str]:
    return [part for line in lines for part in line.split("\n")]


def _address(packed: Packed, group: Group, first: str, stored: bool = False) -> str:
    """The pack's first element, as `&base[index]`; as the kernel writes it where that is `stored`, for what it reads may go
    by another name, that of a pointer to constants."""
    begins = [a for a in group.accesses if _remainder(a, group.stride) == 0]
    access = begins[0]
    if stored and _is_through_constants(packed, access):
        access = next((a for a in begins if a.writes), access)
    source, node = packed.kernel.source, access.node
    if access.address:
        return source.render(node, _first(packed, node, first))
    if node.type == "call_expression":  # __ldg(pointer)
        arguments = field_of(node, "arguments")
        return source.render(arguments.named_children[0], _first(packed, arguments, first))
    if node.type == "pointer_expression":
        argument = field_of(node, "argument")
        return source.render(argument, _first(packed, argument, first))
    return "&" + source.render(node, _first(packed, node, first))


def _is_through_constants(packed: Packed, access: Access) -> bool:
    """`const T* row = x + at;` with `row[i]`"""
    source = packed.kernel.source
    for name in source.walk(access.node, "identifier"):
        found = packed.kernel.code.definition(name)
        if found is not None and found.kind == "local" and found.declaration.type == "declaration":
            pointer = found.value is not None and source.has(found.declaration, "pointer_declarator")
            constants = any(c.type == "type_qualifier" and source.of(c) == "const" for c in found.declaration.children)
            if pointer and constants:
                return True
    return False


def _first(packed: Packed, node: Node, first: str) -> list[tuple[Node, str]]:
    """The element's index below `node`, to be replaced by the pack's first."""
    region, code = packed.region, packed.kernel.code
    found = []
    for identifier in code.source.walk(node, "identifier"):
        if code.source.of(identifier) == region.name:
            definition = code.definition(identifier)
            if definition is not None and definition.where == region.symbol.where:
                found.append((identifier, first))
    return found


def _split(packed: Packed, first: str, lane: str) -> tuple[list[str], list[str], list[str]]:
    """The body in three: indices that the pack's addresses need, what else is the same for a whole pack, and what is done
    for every lane."""
    region, kernel = packed.region, packed.kernel
    source, code = kernel.source, kernel.code
    packed_nodes = [access.node for group in packed.groups for access in group.accesses]
    written = {name for a in accesses_in(kernel, region) if a.writes for name in (a.root, a.base.text)}
    varying = {region.symbol.where}
    for statement in region.body:
        for target in code.assigned(statement):
            found = code.definition(target)
            if found is not None:
                varying.add(found.where)
    hoisted: list[Node] = []
    indices: list[Node] = []
    for statement in region.body:
        if statement.type != "declaration":
            continue
        declared = statement.children_by_field_name("declarator")
        if _is_index(code, region, statement, declared, varying):
            indices.append(statement)
            varying |= {d.start_byte for d in declared if not _is_whole(code, packed, d)}
            continue
        if not _varies(code, statement, varying, written, packed_nodes):
            hoisted.append(statement)
        else:
            varying |= {d.start_byte for d in declared}
    replaced = [*_lanes(packed, lane), *_firsts(packed, first)]
    rest = [s for s in region.body if not any(same(s, h) for h in [*hoisted, *indices])]
    per_lane = [lifted(source, s, source.render(s, replaced)) for s in rest]
    addresses = " ".join(_address(packed, group, first) for group in packed.groups)
    conditions = [condition for group in packed.groups for condition in group.conditions]
    _check_once(code, packed, conditions, [*hoisted, *indices], varying)
    asked = [statement for group in packed.groups for statement in group.asked or ()]
    addresses = " ".join([addresses, *(source.of(node) for node in [*conditions, *asked])])
    needed: list[str] = []
    per_pack: list[str] = []
    kept_lane: list[str] = []
    # Backwards: an index is declared for the pack where addresses use it, and for each lane where the arithmetic does.
    above, below = addresses, " ".join(per_lane)
    for statement in reversed([s for s in region.body if any(same(s, h) for h in [*hoisted, *indices])]):
        names = {_name(code, d) for d in statement.children_by_field_name("declarator")}
        once = source.render(statement, _first(packed, statement, first))
        still = any(d.start_byte in varying for d in statement.children_by_field_name("declarator"))
        used_below = any(_named_in(n, below) for n in names)
        used_above = any(_named_in(n, above) for n in names)
        if used_above:
            needed.insert(0, lifted(source, statement, once))
            above += " " + once
        elif (used_below and not still) or any(_named_in(n, " ".join(per_pack)) for n in names):
            per_pack.insert(0, lifted(source, statement, once))
        if used_below and still:
            each = source.of(statement)
            kept_lane.insert(0, lifted(source, statement, each))
            below += " " + each
    per_lane = kept_lane + per_lane
    if _named_in(region.name, " ".join(per_lane)):
        kind = region.type if region.type != "auto" else "int64_t"
        per_lane.insert(0, f"const {kind} {region.name} = {first} + {lane};")
    return needed, per_pack, per_lane


def _named_in(name: str, text: str) -> bool:
    """Whether a variable is named, and not only a field called alike."""
    return bool(re.search(rf"(?<![\w.]){re.escape(name)}\b", text))


def _check_once(code: Code, packed: Packed, conditions: list[Node], once: list[Node], varying: set[int]) -> None:
    """Raises Unsupported where a condition names what is not declared in front of the loads, for the whole pack."""
    lanes = [access.node for group in packed.groups for access in group.accesses]
    for name in (n for lane in lanes for n in code.source.walk(lane, "identifier")):
        found = code.definition(name)
        known = found is None or not packed.region.holds(found.declaration)
        if not known and not any(same(found.declaration, statement) for statement in once):
            raise Unsupported("an address that is not known in front of the loads")
    asked = [statement for group in packed.groups for statement in group.asked or ()]
    for node in [*conditions, *asked]:
        for name in code.source.walk(node, "identifier"):
            found = code.definition(name)
            if found is None or not packed.region.holds(found.declaration) or any(inside(name, lane) for lane in lanes):
                continue
            if any(same(found.declaration, statement) for statement in asked):
                continue
            if found.where in varying or not any(same(found.declaration, statement) for statement in once):
                raise Unsupported("a condition that is not the same for a whole pack")


def _lane(lane: str, stride: int, remainder: int) -> str:
    return lane if stride == 1 else f"{stride} * {lane} + {remainder}" if remainder else f"{stride} * {lane}"


def _name(code: Code, declarator: Node) -> str:
    name = declared_name(declarator)
    return code.source.of(name) if name is not None else ""


def _stride_or_none(code: Code, region: Region, declarator: Node) -> int | None:
    value = field_of(declarator, "value")
    if value is None:
        return None
    try:
        return Stride(region.symbol).of(code.polynomial(value))
    except Unsupported:
        return None


def _is_whole(code: Code, packed: Packed, declarator: Node) -> bool:
    """Whether an index is the same for all lanes of a pack, given what the host checks."""
    value, stride = field_of(declarator, "value"), Stride(packed.region.symbol)
    checked = {polynomial for polynomial, _ in packed.multiples}
    return value is not None and stride.of(code.polynomial(value)) == 0 and checked >= set(stride.multiples)


def _is_index(code: Code, region: Region, statement: Node, declared: list[Node], varying: set[int]) -> bool:
    """Integers and pointers that move by a constant with the element and come from no memory."""
    for declarator in declared:
        if declarator.type != "init_declarator" or _stride_or_none(code, region, declarator) is None:
            return False
        named = {symbol.where for symbol in code.polynomial(field_of(declarator, "value")).variables()}
        if named & varying - {region.symbol.where}:
            return False  # built on what the body works out
        inner = field_of(declarator, "declarator")
        kind = code.source.of(statement, "type")
        pointer = inner is not None and inner.type == "pointer_declarator"
        if not (pointer or kind == "auto" or is_integer(kind)):
            return False
        if declarator.start_byte in varying:
            return False
        if pointer and any(code.root_of(s) == "" for s in code.polynomial(field_of(declarator, "value")).symbols):
            return False  # to a variable of each element's own
    if code.source.has(statement, "subscript_expression"):
        return False
    return not any(code.source.of(n.children[0]) == "*" for n in code.source.walk(statement, "pointer_expression"))


def _varies(code: Code, statement: Node, varying: set[int], written: set[str], packed_nodes: list[Node]) -> bool:
    source = code.source
    for declarator in statement.children_by_field_name("declarator"):
        if declarator.type != "init_declarator" or declarator.start_byte in varying:
            return True
    for node in source.walk(statement, "identifier", "call_expression", "assignment_expression", "update_expression"):
        if node.type in {"assignment_expression", "update_expression"}:
            return True
        if node.type == "call_expression":
            if re.search(r"atomic|sync|shfl|asm", source.of(node, "function")):
                return True
            continue
        if source.of(node) in written:
            return True
        found = code.definition(node)
        if found is not None and found.where in varying:
            return True
    return any(inside(node, statement) for node in packed_nodes)


def _rewrite_launch(
    edits: Edits, code: Code, kernel: Kernel, launch: Launch, found: list[Packed], element: str
) -> None:
    source = code.source
    statement = launch.statement
    required: list[tuple[tuple[str, ...], int]] = []
    for packed in found:
        for polynomial, times in packed.multiples:
            for condition in _conditions(packed.kernel, launch, packed.region, polynomial, times):
                if condition not in required:
                    required.append(condition)
    # Names of our own must not hide a variable that the launch's arguments or sizes mention.
    count, lanes, pack, run = (code.fresh(name) for name in ("WIDTH", "lanes", "PACK", "launch_packs"))
    conditions = [
        f"{' * '.join(factors)} % {pack if times == 1 else f'({times} * {pack})'} == 0"
        for factors, times in required
        if not _implied((factors, times), required)
    ]
    bases = dict.fromkeys(group.first.root for packed in found for group in packed.groups)
    names = [p.name for p in kernel.parameters]
    pointers = [source.of(launch.arguments[names.index(base)]) for base in bases]
    pointers = [pointer for pointer in pointers if pointer not in {"nullptr", "NULL", "0"}]
    conditions.append(f"aligned_to_16_bytes({', '.join(pointers)})")
    named = dict(zip(kernel.template_names, launch.template_arguments, strict=False))
    spelt = _vectors.spelt_out(kernel, element)
    size = named.get(spelt, spelt)
    if _trait_bytes(kernel, element):
        if not _words(spelt) & set(kernel.template_names) <= set(named):
            raise Unsupported(f"{spelt} of arguments that the launch does not name")
        size = re.sub(r"\w+", lambda word: named.get(word[0], word[0]), spelt)
    if not launch.template_arguments and element in kernel.template_names:  # deduced, so deduce it here too
        typed = [p.name for p in kernel.parameters if p.pointer and p.element == element]
        size = f"std::decay_t<decltype(*{source.of(launch.arguments[names.index(typed[0])])})>"
    grid = source.of(launch.grid)
    regions_ = [packed.region for packed in found]
    if regions_[0].kind not in {"block", "team"} and len(found) == 1 and _only_block_index(kernel, regions_[0]):
        bound = host_text(found[0].kernel, launch, regions_[0].bound_node)
        bound = bound if re.fullmatch(r"[\w.]+", bound) else f"({bound})"
        width = launch.extents(launch.block)[0]
        extents = dict(zip("xyz", launch.extents(launch.grid), strict=True))
        # One more for what is left over; also where the elements are a part of what there is, and may be none: no grid is empty.
        more = regions_[0].otherwise is not None or any(s.operator == "/" for s in regions_[0].bound.symbols)
        packs = f"{bound} / {count} + 1" if more else f"{bound} / {count}"
        extents[regions_[0].axis] = along = f"ceil_div({packs}, {width})"
        shape = list(extents.values())
        while shape[-1] == "1":
            shape.pop()
        grid = along if shape == [along] else f"dim3({', '.join(shape)})"
    explicit = kernel.template is None or launch.template_list is not None
    function = launch.with_arguments(count) if explicit else f"{source.of(launch.function)}<{count}>"
    chosen = [
        f"constexpr int {pack} = PACK_BYTES / sizeof({size});",
        f"const auto {run} = [&](auto {lanes}) {{",
        [f"constexpr int {count} = decltype({lanes})::value;", f"{launch.rendered(function=function, grid=grid)};"],
        "};",
        f"if ({' && '.join(conditions)}) {{",
        [f"{run}(std::integral_constant<int, {pack}>{{}});"],
        "} else {",
        [f"{run}(std::integral_constant<int, 1>{{}});"],
        "}",
    ]
    edits.write(statement, ["{", chosen, "}"])
