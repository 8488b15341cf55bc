"""Which accesses of a region are the lanes of packs, and what must hold for that."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace

from tree_sitter import Node

from nodes.rewrites.analysis import vectors as _vectors
from nodes.rewrites.analysis.device_code import Code, inside
from nodes.rewrites.analysis.kernels import Access, Kernel
from nodes.rewrites.analysis.launches import Launch, host_text
from nodes.rewrites.analysis.regions import Guard, Region, Stride, accesses_in, carries_state, guards_of, streams
from nodes.rewrites.memory.pack_conditions import asked_once, shared_if
from nodes.rewrites.syntax.algebra import Polynomial, Symbol
from nodes.rewrites.syntax.insert import free
from nodes.rewrites.syntax.source import Source, Unsupported
from nodes.rewrites.syntax.tree import JUMPS, enclosing, field_of, left_by, same, upward

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

    @property
    def first(self) -> Access:
        return self.accesses[0]

    @property
    def reads(self) -> bool:
        """Whether an element is read before it is written."""
        seen_write: set[int] = set()
        for access in sorted(self.accesses, key=_moment):
            lane = lane_of(access, self.stride)
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
            {tuple(g.key for g in guards) for guards in self.cases([s for s in stores if lane_of(s, self.stride) == r])}
            for r in sorted({lane_of(s, self.stride) for s in stores})
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

    @property
    def conditions(self) -> list[Node]:
        """What is asked once a pack, before it is loaded or stored."""
        return [condition for group in self.groups for condition in group.conditions]


def packable(code: Code, kernel: Kernel, region: Region) -> Packed | None:
    """The region with its packs; None where it has none, or where packs would change what it does."""
    if region.kind == "guard":
        if kernel.synchronises or _asks_more(code.source, region):
            return None
        code = Code(code.source, pinned=frozenset({region.symbol.where}))
        kernel = Kernel(code, kernel.node)
    if any(_leaves(jump, region) for statement in region.body for jump in code.source.walk(statement, *JUMPS)):
        return None
    if any(region.holds(call) for call, _ in kernel.escapes) or any(a.root == "?" for a in accesses_in(kernel, region)):
        return None
    if shared_if(region, region.bound) is None:
        return None
    found = _Found(code, kernel, region)
    for access in accesses_in(kernel, region):
        found.add(access)
    kept = found.kept()
    if kept is None or not _may_move(code, kernel, region):
        return None
    if not kept or not kernel.launches or all(_is_fallback(code, launch) for launch in kernel.launches):
        return None
    # A pack that is only read with holes wastes bandwidth as the scalar loads did; a unit stride is what pays.
    if not any(g.stride == 1 or len(g.remainders) == g.stride for g in kept):
        return None
    for launch in kernel.launches:
        host_text(kernel, launch, region.bound_node)
    taken = kernel.identifiers() | code.names()
    for group in kept:
        group.name = free(f"{array_name(code.source, group.first)}_pack", taken)
        taken.add(group.name)
    return Packed(kernel, region, kept, [*found.multiples, (region.bound, 1)], found.shared)


def _asks_more(source: Source, region: Region) -> bool:
    """Whether the guard asks for something else of the element, which each lane would have to ask for itself."""
    named = source.walk(field_of(region.guard, "condition"), "identifier")
    return any(source.of(node) == region.name and not inside(node, region.condition) for node in named)


def _may_move(code: Code, kernel: Kernel, region: Region) -> bool:
    """Whether it makes no difference which thread has an element."""
    if region.kind == "guard" and not counts_elements(kernel, region):
        return False
    stores = any(access.writes for access in accesses_in(kernel, region))
    if stores and _tells_apart(code, region):
        return False  # what an element becomes is not to depend on who has it
    if carries_state(kernel, list(region.body)) and not streams(kernel, region):
        return False
    # A thread's own share, written out, would become another share.
    return not any(
        access.writes and access.root and not region.holds(access.node) and region.tells_apart(access.offset)
        for access in kernel.accesses
    )


class _Found:
    """Accesses of a region, one after another, and the packs that they come to."""

    def __init__(self, code: Code, kernel: Kernel, region: Region) -> None:
        self.code, self.kernel, self.region = code, kernel, region
        self.groups: dict[tuple[object, ...], Group] = {}
        self.multiples: list[tuple[Polynomial, int]] = []
        self.shared: list[Node] = []
        self.shared_conditions: set[int] = set()
        self.varied: list[tuple[Access, tuple[Guard, ...], tuple[object, ...]]] = []
        """Reads that each element asks for itself."""
        self.scalar_writes: set[str] = set()
        accesses = accesses_in(kernel, region)
        self.stored = {name for access in accesses if access.writes for name in (access.root, access.base.text)}
        seen_as: dict[str, set[Symbol]] = {}
        for access in accesses:
            seen_as.setdefault(access.root, set()).add(access.base)
        self.in_two_sizes = {
            root for root, bases in seen_as.items()
            if len(bases) > 1 and any(base.node is not None and base.node.type != "identifier" for base in bases)
        }  # fmt: skip

    def add(self, access: Access) -> None:
        try:
            self._add(access)
        except Unsupported:
            if access.writes:
                self.scalar_writes.add(access.root)

    def _add(self, access: Access) -> None:
        stride = Stride(self.region.symbol)
        access, pointer, size = self._checked(access)
        step, uneven = divmod(stride.of(access.offset), size)
        if access.wide:
            raise Unsupported("packed already")
        self._check_steady(access, pointer)
        if step == 0 and not uneven and stride.multiples and not access.writes and access.root not in self.stored:
            self._check_host(needed := [(polynomial, 1) for polynomial in stride.multiples])
            self.shared.append(access.node)
            self.multiples += needed
            return
        guards = guards_of(access.node, self.region, self.kernel)
        if uneven or not 1 <= step <= (4 if size == 1 else 1) or guards is None:
            raise Unsupported("not lanes of a pack")
        remainder = lane_of(access, step)
        aligned = access.offset - Polynomial.constant(remainder)
        self._check_host(needed := [*((m, 1) for m in stride.multiples), (aligned, size)])
        key = (access.base, aligned, step)
        if guards:
            _check_in_front(self.code, self.region, access.node)
            if not _is_sized(self.kernel, access.element):
                raise Unsupported("elements of unknown size")
            of_pack = asked_once(self.code, self.kernel, self.region, self.stored, guards)
            needed += [(m, 1) for _, multiples_of in of_pack for m in multiples_of]
            self.shared_conditions |= {guard.condition.id for guard, _ in of_pack}
            if len(of_pack) < len(guards) and (access.reads or not access.writes):
                if access.writes or step != 1:
                    raise Unsupported("an element that is changed where it asks for that itself")
                self.varied.append((access, guards, key))
                self.multiples += needed
                return
        group = self.groups.setdefault(key, Group([], step))
        group.accesses.append(access)
        group.remainders.add(remainder)
        group.guards[access.node.id] = guards
        self.multiples += needed

    def _checked(self, access: Access) -> tuple[Access, Symbol, int]:
        if access.root in self.in_two_sizes & self.stored:
            raise Unsupported("elements that are written in one size and met in another")
        return _in_parameter(self.code, access)

    def _check_steady(self, access: Access, pointer: Symbol) -> None:
        if self.kernel.changes_within(Polynomial.symbol(pointer), [self.kernel.body]):
            raise Unsupported("a pointer that moves, from an address that the host cannot check")
        if self.kernel.changes_within(access.offset, list(self.region.body)):
            raise Unsupported("an index that the body changes")
        if any(_looked_up(self.code, symbol) & self.stored for symbol in access.offset.symbols):
            raise Unsupported("an index out of memory that the body changes")

    def _check_host(self, needed: list[tuple[Polynomial, int]]) -> None:
        """Raises Unsupported where a host cannot know whether these are multiples."""
        for launch in self.kernel.launches:
            for polynomial, times in needed:
                multiples_of_width(self.kernel, launch, self.region, polynomial, times)

    def _add_divided(self) -> None:
        """What the host can check so that an index like `i / columns`, once declared, is the same for a whole pack."""
        for declarator in (d for s in self.region.body for d in s.children_by_field_name("declarator")):
            value, stride = field_of(declarator, "value"), Stride(self.region.symbol)
            with suppress(Unsupported):
                if value is not None:
                    stride.of(self.code.polynomial(value))
                    self._check_host(needed := [(polynomial, 1) for polynomial in stride.multiples])
                    self.multiples += needed

    def kept(self) -> list[Group] | None:
        """The packs; None where elements of one array would be reached through packs and past them."""
        self._add_divided()
        for group in self.groups.values():
            try:
                group.check_stores(self.shared_conditions)
            except Unsupported:
                self.scalar_writes.add(group.first.root)
        kept = []
        for group in self.groups.values():
            whole = group.remainders == set(range(group.stride))
            if group.first.root in self.scalar_writes and not group.writes:
                return None
            if whole or (group.stride > 1 and not group.writes and 0 in group.remainders):
                kept.append(group)
            elif group.writes:
                self.scalar_writes.add(group.first.root)
        kept = [g for g in kept if g.first.root not in self.scalar_writes]
        past = self._add_varied(kept) & self.stored
        if any(g.first.root in past and not g.writes for g in kept):
            return None
        return [g for g in kept if g.first.root not in past]

    def _add_varied(self, kept: list[Group]) -> set[str]:
        """Reads that each element asks for itself are lanes of packs that are loaded in any case. The others stay reads of single
        elements: of which arrays."""
        past = set()
        for access, guards, key in self.varied:
            group = self.groups.get(key)
            if not any(g is group and g.cases([a for a in g.accesses if a.reads]) == [()] for g in kept):
                past.add(access.root)
                continue
            group.accesses.append(access)
            group.guards[access.node.id] = guards
        return past


def _check_in_front(code: Code, region: Region, node: Node) -> None:
    """Raises Unsupported where an address names what is declared under a condition."""
    for name in code.source.walk(node, "identifier"):
        found = code.definition(name)
        if found is None or not region.holds(found.declaration) or found.where == region.symbol.where:
            continue
        if not any(same(found.declaration, statement) for statement in region.body):
            raise Unsupported("an address that is only known under the condition")


def _tells_apart(code: Code, region: Region) -> bool:
    """Whether the body asks which of the threads that share the elements out it is. A team's row is asked for by right, in
    more ways than can be told from that."""
    names = (n for s in region.body for n in code.source.walk(s, "identifier", "field_expression"))
    asked = (n for n in names if n.type == "identifier" or code.source.of(n).startswith("threadIdx."))
    return region.kind != "team" and any(region.tells_apart(code.polynomial(name)) for name in asked)


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
    own, other = (
        _vectors.ELEMENT_BYTES.get(code.plain_type(e), 0) for e in (access.element, code.element_of(parameter))
    )
    if not other or own % other or not own:
        raise Unsupported("elements of unknown sizes")
    size = own // other
    return replace(access, offset=start + Polynomial.constant(size) * access.offset), parameter, size


def _looked_up(code: Code, symbol: Symbol) -> set[str]:
    """Every name in an element that an index is read from."""
    if symbol.address is None:
        return set()
    named = code.source.walk(symbol.node, "identifier") if symbol.node is not None else ()
    roots = {code.root_of(s) for s in symbol.address.symbols if code.element_of(s)}
    return roots | {code.source.of(name) for name in named}


def counts_elements(kernel: Kernel, region: Region) -> bool:
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
    for here in upward(launch.statement):
        parent = here.parent
        if parent is None or parent.type != "if_statement" or not same(field_of(parent, "alternative"), here):
            continue
        rival = any(inside(other.node, field_of(parent, "consequence")) for other in code.launches)
        if rival and _divides(code, field_of(parent, "condition")):
            return True
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


def array_name(source: Source, access: Access) -> str:
    """What the source calls the array there, which may be a pointer into the parameter."""
    if access.address:
        return next((source.of(n) for n in source.walk(access.node, "identifier")), access.root)
    argument = field_of(access.node, "argument")
    plain = argument is not None and argument.type == "identifier" and access.node.type == "subscript_expression"
    return source.of(argument) if plain else access.root


def _leaves(jump: Node, region: Region) -> bool:
    """Whether a jump leaves the element's visit, and not only a loop inside of it or a lambda."""
    if jump.type in {"break_statement", "continue_statement"}:
        left = left_by(jump)
    else:
        left = enclosing(jump, "lambda_expression")
    return left is None or not region.holds(left)


def _moment(access: Access) -> int:
    """Where in the source an access takes effect: `y[i] = f(y[i])` writes once its right side has been read."""
    if access.reads:
        return access.node.start_byte
    statement = enclosing(access.node, "expression_statement")
    return statement.end_byte if statement is not None else access.node.end_byte


def lane_of(access: Access, stride: int) -> int:
    constant = next((c for m, c in access.offset.terms if not m), 0)
    return constant % stride


def multiples_of_width(
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
                    text, kind = host_text(kernel, launch, symbol.node), symbol.node.type
                    factors.append(f"({text})" if kind == "conditional_expression" else text)
            except Unsupported:
                continue
        if not factors:
            raise Unsupported("an offset whose alignment the host cannot know")
        found.append((tuple(factors), times))
    return found


def _is_sized(kernel: Kernel, element: str) -> bool:
    plain = kernel.code.plain_type(_vectors.spelt_out(kernel, element))
    return element in kernel.template_names or plain in _vectors.ELEMENT_BYTES
