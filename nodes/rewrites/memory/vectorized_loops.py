"""Kernels that pack wrote, and what later steps made of them: which statements work on one pack of a row.

A kernel for whole packs becomes one for ragged rows as well (vectorize_unaligned_rows.py) by changes to these statements alone: how many
packs a row has, where a pack begins, which of its lanes there are.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import Code, Definition, inside
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.analysis.launches import Launch
from nodes.rewrites.analysis.numbers import ELEMENT_BYTES
from nodes.rewrites.memory.pack_bodies import summed
from nodes.rewrites.syntax.algebra import Polynomial, Symbol
from nodes.rewrites.syntax.insert import as_factor, free
from nodes.rewrites.syntax.match import bare, match
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import children_of, declared_name, enclosing, field_of, pragma_of, same, upward

Change = tuple[int, int, str]
_LANES = "for (int $lane = 0; $lane < {}; ++$lane) $body;"
_CASTS = {"int", "int64_t", "unsigned", "size_t", "static_cast", "reinterpret_cast", "const_cast"}


def uses_of(source: Source, within: Node, name: str) -> list[Node]:
    """A name's occurrences; among template arguments the parser takes it for a type."""
    return [n for n in source.walk(within, "identifier", "type_identifier") if source.of(n) == name]


def template_argument(use: Node) -> Node | None:
    """The template argument that the name is by itself."""
    argument = use.parent if use.parent is not None and use.parent.type == "type_descriptor" else use
    return argument if argument.parent is not None and argument.parent.type == "template_argument_list" else None


def in_lanes(source: Source, argument: Node | None) -> bool:
    """Whether it is the length of a `Lanes<T, N>`, of elements that begin on a multiple of it."""
    listed = argument.parent if argument is not None else None
    owner = source.of(listed.parent, "name") if listed is not None else ""
    return owner == "Lanes" and [same(c, argument) for c in listed.named_children] == [False, True]


def packs_in(source: Source, length: Node, width: str, ragged: str) -> str:
    """`n / VEC` as the number of packs."""
    return f"packs_in<{width}, {ragged}>({source.of(length)})"


@dataclass
class _Pack:
    """Statements that run for one pack of a row: a loop's body, or what an `if (pack < n / VEC)` guards."""

    pack: str
    condition: Node
    division: Node
    """`n / VEC`"""
    length: Node
    block: Node
    start: int
    """Where in the block the statements begin."""
    items: list[Node] = field(default_factory=list)
    """Loads, stores, loops over lanes, and where it is needed the declaration of the first element, in source order."""

    def holds(self, node: Node) -> bool:
        return inside(node, self.block) and node.start_byte >= self.start


class PackLoops:
    """A kernel whose template argument in that place is the length of the packs that it works on, for any length of row.

    Raises Unsupported where anything else depends on that length, or where the loops are over different rows.
    """

    def __init__(self, kernel: Kernel, place: int, ragged: str) -> None:
        self.kernel, self.source, self.ragged = kernel, kernel.source, ragged
        if place >= len(kernel.template_names):
            raise Unsupported("a width that is no parameter")
        self.width, self.declared = kernel.template_names[place], kernel.template_parameters[place]
        if self.source.of(self.declared) != f"int {self.width}":
            raise Unsupported("a width that is no plain number")
        self.packs: list[_Pack] = []
        self.begins: list[Node] = []
        self._items: list[Node] = []
        for use in uses_of(self.source, kernel.node, self.width):
            self._note(use)
        stores = [c for c in self.source.walk(kernel.body, "call_expression") if self.source.called(c) == "store_lanes"]
        for item in sorted([*self._items, *stores, *self.begins], key=lambda node: node.start_byte):
            holders = [pack for pack in self.packs if pack.holds(item)]
            if not holders:
                raise Unsupported("a pack that may be behind the row")
            min(holders, key=lambda pack: (pack.block.end_byte - pack.block.start_byte, -pack.start)).items.append(item)
        self.code = Code(self.source, pinned=frozenset(self._declarator(begin).start_byte for begin in self.begins))
        self.length = self._row_length()
        for pack in self.packs:
            self._check(pack)
        self._check_lanes()
        taken = kernel.identifiers() | set(self.code.macros)
        self.skew, self.part = (free(name, taken) for name in ("skew", "part"))
        self.row, self._alike, self._skew_at = self._row()

    def changes(self) -> list[Change]:
        source, edits = self.source, Edits(self.source)
        edits.insert(self.declared.end_byte, f", bool {self.ragged}")
        self._insert_before(
            edits, self._skew_at, f"const int {self.skew} = {self.ragged} ? past_pack<{self.width}>({self.row}) : 0;"
        )
        for pack in self.packs:
            edits.replace(pack.division, packs_in(source, bare(pack.length), self.width, self.ragged))
            if pack.items:
                self._change(edits, pack)
        return edits.changes

    def alike(self, launch: Launch) -> list[str]:
        """The host's check that all rows of the same offset are aligned alike."""
        names = [p.name for p in self.kernel.parameters]
        pointers = [self.source.of(launch.arguments[names.index(root)]) for root, _ in self._alike]
        if len(pointers) < 2:
            return []
        one_size = len({size for _, size in self._alike}) == 1
        return [f"{'aligned_alike' if one_size else 'aligned_to_16_bytes'}({', '.join(pointers)})"]

    def _note(self, use: Node) -> None:
        """What the width means there."""
        source, parent, argument = self.source, use.parent, template_argument(use)
        owner = parent.parent
        divided, lanes = match(source, parent, f"$n / {self.width}"), match(source, owner, _LANES.format(self.width))
        if in_lanes(source, argument):
            return
        call = enclosing(argument, "call_expression")
        if source.of(call, "function") == f"load_lanes<{self.width}>":
            self._items.append(call)
        elif divided is not None:
            self.packs.append(self._pack(parent, divided["n"]))
        elif match(source, parent, f"$n * {self.width}") is not None and same(field_of(owner, "value"), parent):
            self.begins.append(owner.parent)
        elif lanes is not None and lanes["body"].type == "compound_statement" and children_of(lanes["body"]):
            self._items.append(owner)
        elif argument is not None or (
            parent.type != "array_declarator" and match(source, parent, f"{self.width} > 1") is None
        ):
            raise Unsupported(f"a use of {self.width}")  # a part of a pack answers `VEC > 1` as the whole one does

    def _pack(self, division: Node, length: Node) -> _Pack:
        """What the comparison with the number of packs is for."""
        source, bound = self.source, division
        while bound.parent.type in {"argument_list", "call_expression", "parenthesized_expression"}:
            bound = bound.parent
        condition = bound.parent
        compared = match(source, condition, "$pack < $bound", "$pack >= $bound")
        if compared is None or not same(field_of(condition, "right"), bound) or compared["pack"].type != "identifier":
            raise Unsupported("a number of packs that is no bound")
        stays, owner = "<" in compared.pattern, condition.parent
        parentheses = {"condition_clause", "parenthesized_expression"}
        while owner.type in parentheses or source.of(owner, "operator") == ("&&" if stays else "||"):
            owner = owner.parent
        block = field_of(owner, "body") or field_of(owner, "consequence") if stays else owner.parent
        guards = owner.type == "if_statement" or (stays and owner.type == "for_statement")
        if not guards or block.type != "compound_statement" or (stays and field_of(owner, "alternative") is not None):
            raise Unsupported("a bound that does not guard, or something for the thread behind the last pack")
        start = block.start_byte if stays else owner.end_byte
        return _Pack(source.of(compared["pack"]), condition, division, length, block, start)

    def _row_length(self) -> Node:
        lengths = [pack.length for pack in self.packs]
        if not lengths or not self._items:
            raise Unsupported("no packs of a row")
        first, *others = [self.code.polynomial(length) for length in lengths]
        if any(other != first for other in others) or self.kernel.changes_within(first, [self.kernel.body]):
            raise Unsupported("rows of several lengths")
        return lengths[0]

    def _check(self, pack: _Pack) -> None:
        """The pack's number means nothing but its first element, and this nothing but places that move along with it."""
        source = self.source
        begins = [item for item in pack.items if any(same(item, begin) for begin in self.begins)]
        if len(begins) > 1 or any(not same(begin.parent, pack.block) for begin in begins):
            raise Unsupported("packs that begin in several places")
        known = [*self.begins, *(other.condition for other in self.packs)]
        for use in uses_of(source, pack.block, pack.pack):
            if pack.holds(use) and not any(inside(use, node) for node in known):
                raise Unsupported("a pack's number in use")
        if begins:
            self._check_places(pack, begins[0])

    def _check_lanes(self) -> None:
        """Each lane is met in a loop over all of them, whose body can become a function."""
        loops = [item for item in self._items if item.type == "for_statement"]
        for field_ in self.source.walk(self.kernel.body, "field_expression"):
            lane = self.source.of(field_, "field") == "at"
            if lane and not any(inside(field_, loop) for loop in loops):
                raise Unsupported("a lane by itself")
        if any(jump for loop in loops for jump in self.source.jumps_out_of(field_of(loop, "body"))):
            raise Unsupported("lanes that end early")

    @property
    def guards(self) -> bool:
        """Whether the launch's size decides how many packs are worked on."""
        return any(pack.items and pack.condition.parent.type != "for_statement" for pack in self.packs)

    def _check_places(self, pack: _Pack, begin: Node) -> None:
        """All that is made of a pack's first element are places that move along with it, for loads, stores and lanes."""
        source, code, first = self.source, self.code, self._declarator(begin)
        factor = field_of(first, "value", "left")
        while factor is not None and factor.type == "call_expression" and self.source.called(factor) in _CASTS:
            factor = field_of(factor, "arguments").named_children[0]
        if source.of(factor) != pack.pack:
            raise Unsupported("a first element of another pack")
        name = source.of(declared_name(first))
        symbol, made = Symbol(name, first.start_byte), {name: first}

        def moves_along(place: Node) -> bool:
            moving = [(m, c) for m, c in code.polynomial(place).terms if any(s.depends_on(symbol) for s in m)]
            return all(m == (symbol,) and c > 0 for m, c in moving)

        for statement in (s for s in pack.block.named_children if s.type == "declaration" and pack.holds(s)):
            for found in code.declared(statement) if not same(statement, begin) else ():
                value = found.value
                if value is None or any(inside(value, i) or inside(i, value) for i in pack.items):
                    continue
                if not code.polynomial(value).depends_on(symbol):
                    continue
                if not moves_along(value):
                    raise Unsupported("a place that does not move along")
                made[found.name] = found.declarator
        lanes, calls = ([i for i in pack.items if i.type == kind] for kind in ("for_statement", "call_expression"))
        for use in (u for other in made for u in uses_of(source, pack.block, other) if pack.holds(u)):
            if any(inside(use, loop) for loop in lanes):
                if source.of(use) == name and match(source, use.parent, "$a + $b") is None:
                    raise Unsupported(
                        "something that a whole pack has in common, where packs may reach into another row"
                    )
            elif not any(inside(use, declarator) for declarator in made.values()):
                place = next((children_of(call, "arguments")[0] for call in calls if inside(use, call)), None)
                if place is None or not inside(use, place) or not moves_along(place):
                    raise Unsupported("something else that is computed from a pack's first element")

    def _row(self) -> tuple[str, list[tuple[str, int]], Node]:
        """The address at which the row begins that most packs are of, the parameters with such rows and their elements'
        sizes, and the statement in front of which it can be asked for."""
        rows: dict[Polynomial, list[tuple[Node, str, int, bool]]] = {}
        for pack in self.packs:
            for call in (item for item in pack.items if item.type == "call_expression"):
                address = field_of(call, "arguments").named_children[0]
                place = self.code.polynomial(address)
                base = self.code.pointer_base(place)
                root = self.code.root_of(base) if base is not None else "?"
                if base is None or self.kernel.parameter(root) is None:
                    continue
                size = ELEMENT_BYTES.get(self.code.plain_type(self.code.element_of(base)), 2)
                offset = place - Polynomial.symbol(base)
                offset = Polynomial.of(
                    (m, c) for m, c in offset.terms if not any(s.where in self.code.pinned for s in m)
                )
                rows.setdefault(offset, []).append((address, root, size, self.source.called(call) == "store_lanes"))
        ranked = sorted(rows.values(), key=lambda row: (any(r[3] for r in row), len({r[1] for r in row})), reverse=True)
        for row in ranked:
            narrowest = min(size for _, _, size, _ in row)
            alike = list(dict.fromkeys((root, size) for _, root, size, _ in row))
            for address, _, size, _ in row:
                place = self._place(address) if size == narrowest else None
                if place is not None:
                    return (*place[:1], alike, place[1])
        raise Unsupported("rows whose beginnings are not known in front of the loops")

    def _place(self, address: Node) -> tuple[str, Node] | None:
        """The row's address as text, and the first statement of the outermost block in which it means that for all packs."""
        packs = [pack for pack in self.packs if pack.items]
        earliest = min((pack.items[0] for pack in packs), key=lambda item: item.start_byte)
        mentioned: list[Node] = []
        text = self._without_begin(address, mentioned)
        blocks = [b for b in upward(earliest.parent) if b.type == "compound_statement" and inside(b, self.kernel.body)]
        for block in reversed(blocks):
            at = next(child for child in block.named_children if inside(earliest, child))
            found = [self.code.definition(name) for name in mentioned]
            if not all(inside(pack.block, block) or same(pack.block, block) for pack in packs):
                return None
            if all(f is None or f.where < at.start_byte for f in found):
                return None if self.kernel.changes_within(self.code.polynomial(address), [block]) else (text, at)
        return None

    def _without_begin(self, address: Node, mentioned: list[Node]) -> str:
        """An address of which the pack's first element is left away, "" where nothing else is in it."""
        source, code = self.source, self.code

        def part(node: Node) -> str:
            found = code.variable(node)
            if found is not None and found.where in code.pinned:
                return ""
            if found is not None and found.value is not None and self._is_of_pack(found):
                text = self._without_begin(found.value, mentioned)
                return as_factor(text) if text else ""
            if node.type == "identifier":
                mentioned.append(node)
                return source.of(node)
            begins = any(symbol.where in code.pinned for symbol in code.polynomial(node).variables())
            if begins or source.has(node, "subscript_expression", "pointer_expression"):
                raise Unsupported("a row that is looked up there and then, or an address of another form")
            return source.render(node, [(name, part(name)) for name in source.walk(node, "identifier")])

        return summed(source, address, part)

    def _is_of_pack(self, found: Definition) -> bool:
        """Whether the variable is declared for each pack anew, and stays as it is."""
        return not self.code.mutated(found) and any(pack.holds(found.declaration) for pack in self.packs if pack.items)

    def _change(self, edits: Edits, pack: _Pack) -> None:
        source, width, ragged = self.source, self.width, self.ragged
        of_pack = f"pack_part<{width}, {ragged}>({pack.pack}, {self.skew}, {source.of(self.length)})"
        part = f"const PackPart {self.part} = {of_pack};"
        begin = next((item for item in pack.items if item.type == "declaration"), None)
        if begin is not None:
            value = field_of(self._declarator(begin), "value")
            edits.replace(value, f"pack_begin<{width}>({source.of(value, 'left')}, {self.skew})")
            edits.behind(begin, part)
        else:
            first = next(child for child in pack.block.named_children if child.start_byte >= pack.start)
            self._insert_before(edits, first, part)
        for item in pack.items:
            if item.type == "call_expression":
                function, listed = field_of(item, "function"), field_of(item, "arguments")
                load = self.source.called(item) == "load_lanes"
                edits.replace(function, f"load_part<{width}, {ragged}>" if load else f"store_part<{ragged}>")
                edits.insert(listed.end_byte - 1, f", {self.part}")
            elif item.type == "for_statement":
                self._change_lanes(edits, item)

    def _change_lanes(self, edits: Edits, loop: Node) -> None:
        """`for (int k = 0; k < VEC; ++k) {...}`, unrolled, becomes `for_lanes<VEC>(part, [&](int k) {...});`."""
        source, body, directive = self.source, field_of(loop, "body"), pragma_of(loop)
        start, lane = loop.start_byte, source.of(loop, "condition", "left")
        head = f"for_lanes<{self.width}>({self.part}, [&](int {lane}) "
        if directive is not None:
            start, head = directive.start_byte, source.indent(loop) + head
        edits.changes.append((start, body.start_byte, head))
        edits.insert(body.end_byte, ");")

    def _insert_before(self, edits: Edits, statement: Node, text: str) -> None:
        """A line of its own in front of a statement and of the comments and directives on it."""
        source, first = self.source, statement
        while (before := first.prev_named_sibling) is not None:
            if before.type != "preproc_call" and not (before.type == "comment" and source.alone(before)):
                break
            first = before
        start, indent = source.line_start(first), source.indent(statement)
        if source.data[start : first.start_byte].strip():
            edits.insert(first.start_byte, f"{text}\n{indent}")
        else:
            edits.insert(start, f"{indent}{text}\n")

    def _declarator(self, declaration: Node) -> Node:
        declarator = field_of(declaration, "declarator") if declaration.type == "declaration" else None
        if declarator is None or declared_name(declarator) is None:
            raise Unsupported("a first element that is no variable")
        return declarator
