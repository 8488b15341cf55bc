"""Which accesses of a region are the lanes of packs, and what must hold for that."""

from __future__ import annotations

from dataclasses import dataclass, field

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import Code, inside
from nodes.rewrites.analysis.kernels import Access, Kernel
from nodes.rewrites.analysis.launches import Launch, host_text
from nodes.rewrites.analysis.regions import Guard, Region, Stride, accesses_in, carries_state, guards_of
from nodes.rewrites.memory.pack_common import Common, shared_if
from nodes.rewrites.syntax.algebra import Polynomial, Symbol
from nodes.rewrites.syntax.insert import free
from nodes.rewrites.syntax.source import Source, Unsupported
from nodes.rewrites.syntax.tree import enclosing, field_of, same, upward


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

    def stored_alike(self, shared: set[int]) -> bool:
        """Whether all lanes are stored where one is: `shared` are the conditions of whole packs."""
        stores = [access for access in self.accesses if access.writes]
        cases = [
            {tuple(g.key for g in guards) for guards in self.cases([s for s in stores if lane_of(s, self.stride) == r])}
            for r in sorted({lane_of(s, self.stride) for s in stores})
        ]
        return all(other == cases[0] and all(node in shared for keys in other for node, _ in keys) for other in cases)

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
    common: Common
    groups: list[Group]
    multiples: list[Polynomial]
    """Each must be a multiple of the width."""

    @property
    def conditions(self) -> list[Node]:
        """What is asked once a pack, before it is loaded or stored."""
        return [condition for group in self.groups for condition in group.conditions]


def packable(kernel: Kernel, region: Region) -> Packed | None:
    """The region with its packs; None where it has none, or where packs would change what it does."""
    source = kernel.source
    if region.kind == "guard":
        if kernel.synchronises or _asks_more(source, region):
            return None
        kernel = Kernel(Code(source, pinned=frozenset({region.symbol.where})), kernel.node)
    if any(jump for statement in region.body for jump in source.jumps_out_of(statement)):
        return None
    accesses = accesses_in(kernel, region)
    if any(region.holds(call) for call, _ in kernel.escapes) or any(a.root == "?" for a in accesses):
        return None
    if shared_if(region, region.bound) is None:
        return None
    found = _Found(kernel, region)
    for access in accesses:
        found.add(access)
    kept = found.kept()
    if not kept or not _may_move(found.common):
        return None
    if not kernel.launches or all(_is_fallback(kernel.code, launch) for launch in kernel.launches):
        return None
    # A pack that is only read with holes wastes bandwidth as the scalar loads did; a unit stride is what pays.
    if not any(g.stride == 1 or len(g.remainders) == g.stride for g in kept):
        return None
    for launch in kernel.launches:
        host_text(kernel, launch, region.bound_node)
    taken = kernel.identifiers() | kernel.code.names()
    for group in kept:
        group.name = free(f"{array_name(source, group.first)}_pack", taken)
        taken.add(group.name)
    multiples = [*found.multiples, *found.common.multiples, region.bound]
    return Packed(kernel, region, found.common, kept, multiples)


def _asks_more(source: Source, region: Region) -> bool:
    """Whether the guard asks for something else of the element, which each lane would have to ask for itself."""
    named = source.walk(field_of(region.guard, "condition"), "identifier")
    return any(source.of(node) == region.name and not inside(node, region.condition) for node in named)


def _may_move(common: Common) -> bool:
    """Whether it makes no difference which thread has an element."""
    kernel, region = common.kernel, common.region
    if region.kind == "guard" and not counts_elements(kernel, region):
        return False
    # What an element becomes is not to depend on who has it. A team's row is asked for by right, in more ways than can be told.
    stores = any(access.writes for access in accesses_in(kernel, region))
    if stores and region.kind != "team" and any(common.tells_apart(statement) for statement in region.body):
        return False
    if carries_state(kernel, list(region.body)):
        return False
    # A thread's own share, written out, would become another share.
    return not any(
        access.writes and access.root and not region.holds(access.node) and region.tells_apart(access.offset)
        for access in kernel.accesses
    )


class _Found:
    """Accesses of a region, one after another, and the packs that they come to."""

    def __init__(self, kernel: Kernel, region: Region) -> None:
        self.kernel, self.code, self.region, self.common = kernel, kernel.code, region, Common(kernel, region)
        self.groups: dict[tuple[object, ...], Group] = {}
        self.multiples: list[Polynomial] = []
        self.shared_conditions: set[int] = set()
        self.varied: list[tuple[Access, tuple[object, ...]]] = []
        """Reads that each element asks for itself."""
        self.alone: set[str] = set()
        """Arrays of which elements move by themselves."""
        self.many_alone = False
        """Whether such are read in a loop: a thread's lanes would then read far apart, one after another, for a store that is wide."""

    def add(self, access: Access) -> None:
        try:
            self._add(access)
        except Unsupported:
            self.alone.add(access.root)
            self.many_alone |= access.reads and self._moves_in_a_loop(access)

    def _moves_in_a_loop(self, access: Access) -> bool:
        """Whether a loop in the region's body goes through what each of its elements reads there."""
        loop = enclosing(access.node, "for_statement", "while_statement", "do_statement")
        return loop is not None and self.region.holds(loop) and self.region.symbol in access.offset.symbols

    def _add(self, access: Access) -> None:
        stride = Stride(self.region.symbol)
        step = stride.of(access.offset)
        if access.wide or access.base.node is None or access.base.node.type != "identifier":
            raise Unsupported("packed already, or seen as another type than the parameter's")
        self._check_steady(access)
        guards = guards_of(access.node, self.region, self.kernel)
        if not 1 <= step <= 4 or guards is None:
            raise Unsupported("not lanes of a pack")
        self.common.check_known(access.node)
        remainder = lane_of(access, step)
        aligned = access.offset - Polynomial.constant(remainder)
        needed = [*stride.multiples, aligned]
        self.common.check_host(needed)
        of_pack = {guard.condition.id for guard in guards if self.common.is_asked_once(guard.condition)}
        self.shared_conditions |= of_pack
        self.multiples += needed
        key = (access.base, aligned, step)
        if len(of_pack) < len(guards) and access.reads:
            if access.writes or step != 1:
                raise Unsupported("an element that is changed where it asks for that itself")
            self.varied.append((access, key))
            return
        group = self.groups.setdefault(key, Group([], step))
        group.accesses.append(access)
        group.remainders.add(remainder)
        group.guards[access.node.id] = guards

    def _check_steady(self, access: Access) -> None:
        if self.kernel.changes_within(Polynomial.symbol(access.base), [self.kernel.body]):
            raise Unsupported("a pointer that moves, from an address that the host cannot check")
        if self.kernel.changes_within(access.offset, list(self.region.body)):
            raise Unsupported("an index that the body changes")
        if any(_looked_up(self.code, symbol) & self.common.stored for symbol in access.offset.symbols):
            raise Unsupported("an index out of memory that the body changes")

    def kept(self) -> list[Group]:
        """The packs; none where elements of one array would be reached through packs and past them."""
        for key, group in list(self.groups.items()):
            whole = group.remainders == set(range(group.stride))
            loaded = group.stride > 1 and not group.writes and 0 in group.remainders
            if not (whole or loaded) or not group.stored_alike(self.shared_conditions):
                self.alone.add(group.first.root)
                del self.groups[key]
        for access, key in self.varied:
            group = self.groups.get(key)
            if group is not None and group.cases([a for a in group.accesses if a.reads]) == [()]:
                group.accesses.append(access)  # loaded in any case
            else:
                self.alone.add(access.root)
        if self.many_alone and not any(group.reads for group in self.groups.values()):
            return []
        past = self.alone & self.common.stored
        kept = [group for group in self.groups.values() if group.first.root not in past]
        return [] if any(g.first.root in past and not g.writes for g in self.groups.values()) else kept


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


def _moment(access: Access) -> int:
    """Where in the source an access takes effect: `y[i] = f(y[i])` writes once its right side has been read."""
    if access.reads:
        return access.node.start_byte
    statement = enclosing(access.node, "expression_statement")
    return statement.end_byte if statement is not None else access.node.end_byte


def lane_of(access: Access, stride: int) -> int:
    constant = next((c for m, c in access.offset.terms if not m), 0)
    return constant % stride
