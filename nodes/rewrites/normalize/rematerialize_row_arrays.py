"""A thread's share of a row that is kept in an array is read again wherever it is needed.

    float kept[4];                                                     const int held = n < 4 * 32 ? n : 4 * 32;
    for (int k = 0; k < 4; ++k) {                                      for (int i = lane; i < held; i += 32) {
      const int i = k * 32 + lane;                                       const float kept_at = x[i];
      if (i < n) { kept[k] = x[i]; sum += kept[k]; }          ->         sum += kept_at;
    }                                                                  }
    ...                                                                ...
    for (int k = 0; k < 4; ++k) { ... y[i] = kept[k] * scale; }        for (...) { const float kept_at = x[i]; y[i] = kept_at * scale; }

Changes nothing by itself (that it would read memory more than once is no matter: what a row's loops read, other steps keep in
registers, by packs), but they know a row by loops over its elements only. Applies where what was kept can be read and computed
again: nothing that it is made of has changed in between.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.block_shape import extent_of
from nodes.rewrites.analysis.device_code import Code, Definition, one_by_one
from nodes.rewrites.analysis.kernels import TALKS, Access, Kernel
from nodes.rewrites.analysis.numbers import base_of
from nodes.rewrites.analysis.regions import BLOCK_DIM, THREAD
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.algebra import Polynomial, Symbol
from nodes.rewrites.syntax.insert import free
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Edits, Source, Unsupported, inside, lifted, operands
from nodes.rewrites.syntax.tree import (
    field_of,
    is_zero,
    one_variable,
    pragma_of,
    same,
    statement_around,
    statements,
    upward,
)

MOST = 8
_CHECK = "$place < $length"
_CHOICE = f"{_CHECK} ? $value : $other"
_SUMS = ("$state += $value;", "$state = $state + $value;")
_MOST = ("$state = fmaxf($state, $value);", "$state = fmaxf($value, $state);", "$state = max($state, $value);",
         "$state = max($value, $state);", "$state = $state > $value ? $state : $value;")  # fmt: skip
_LOW = {"-INFINITY", "-CUDART_INF_F", "-HUGE_VALF", "-std::numeric_limits<float>::infinity()"}
_FORS = ("for ($T $k = $start; $check; ++$k) $body;", "for ($T $k = $start; $check; $k++) $body;")


@rule(
    "cuda",
    expected="nothing by itself: later steps know the row by its loops",
    normalizes=True,
    after=("fold_branches",),
    risks=(Outcome.INCORRECT,),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    return one_by_one(source, _reread, lambda code: ((kernel,) for kernel in code.kernels), MOST)


@dataclass
class _Share:
    """A loop over a thread's part of a row, element `first + k * step` of `length`, at most `most` of them."""

    code: Code
    node: Node
    counter: Node
    symbol: Symbol
    most: Node | None
    """None where the array alone says it."""
    index: tuple[Node, Node] | None = None
    """The variable that holds an element's index, and its value."""
    place: Node | None = None
    """The index as the loop computes it; None where a loop never asks whether there is such an element."""
    length: Node | None = None
    body: list[tuple[bool, Node]] = field(default_factory=list)
    """Statements, and whether they are for elements of the row only, or for every place."""

    def asks(self, compared: dict[str, Node] | None) -> bool:
        """Whether `$place < $length` is the question whether there is such an element."""
        if compared is None:
            return False
        polynomial, place, length = self.code.polynomial, compared["place"], compared["length"]
        if self.place is None and polynomial(place).depends_on(self.symbol) and polynomial(place).depends_on(THREAD):
            named = self.index is not None and self.code.source.of(self.index[0]) == self.code.source.of(place)
            self.place, self.length = self.index[1] if named else place, length
        if self.place is None:
            return False
        return polynomial(place) == polynomial(self.place) and polynomial(length) == polynomial(self.length)

    @property
    def step(self) -> Polynomial:
        return self.code.polynomial(self.place).coefficient(self.symbol)

    @property
    def first(self) -> Polynomial:
        return self.code.polynomial(self.place).without(self.symbol)

    @property
    def key(self) -> tuple[Polynomial, ...]:
        """What must agree of loops that share a row out alike."""
        return self.step, self.first, self.code.polynomial(self.length)

    def split(self, index: Node) -> tuple[list[Node], list[Node], list[Node]]:
        """Of a sum that counts this loop's rounds: what makes the steps, what makes the start, all else. Raises Unsupported where
        its parts are others than those of the element's index."""
        polynomial, steps, starts, rest = self.code.polynomial, list[Node](), list[Node](), list[Node]()
        for part in operands(self.code.source, index, "+"):
            terms = polynomial(part).terms
            counts = polynomial(part).depends_on(self.symbol)
            (steps if counts else starts if terms and terms <= self.first.terms else rest).append(part)
        made = [sum(map(polynomial, parts), Polynomial()) for parts in (steps, starts)]
        if made != [self.step * Polynomial.symbol(self.symbol), self.first]:
            raise Unsupported("an index that begins elsewhere, or goes by other steps")
        return steps, starts, rest

    def texts(self) -> tuple[str, str]:
        """What the loop begins with and by what it steps."""
        source, (steps, starts, rest) = self.code.source, self.split(self.place)
        found = match(source, steps[0], "$k * $step", "$step * $k") if len(steps) == 1 else None
        if found is not None and source.of(found["k"]) != source.of(self.counter):
            found = match(source, steps[0], "$step * $k")
        if found is None or source.of(found["k"]) != source.of(self.counter) or rest or not starts:
            raise Unsupported("an index of another form")
        return " + ".join(_part(source, s) for s in starts), _part(source, found["step"])

    def starts_within_a_step(self, kernel: Kernel) -> bool:
        """Whether no thread begins where another one makes its second step."""
        first = self.first
        if first.only == THREAD:
            widths = {extent_of(self.code, kernel, launch.along_x(launch.block)) for launch in kernel.launches}
            return self.step.only == BLOCK_DIM or (len(widths) == 1 and widths == {self.step.value})
        place = next((symbol for symbol in first.symbols if first == Polynomial.symbol(symbol)), THREAD)
        return place.operator == "%" and place.operands[1] == self.step


def _part(source: Source, node: Node) -> str:
    """An operand, whose parentheses are gone, of a sum or a product."""
    plain = {"identifier", "number_literal", "field_expression", "subscript_expression", "call_expression"}
    product = node.type == "binary_expression" and source.of(node, "operator") == "*"
    return source.of(node) if node.type in plain or product else f"({source.of(node)})"


def _share(code: Code, node: Node) -> _Share | None:
    """The loop as one over a thread's part of a row, None where it is none."""
    source, found = code.source, match(code.source, node, *_FORS)
    compared = match(source, found["check"], _CHECK) if found is not None else None
    if compared is None or found["k"].type != "identifier" or source.of(found["start"]) != "0":
        return None
    counter, body = found["k"], field_of(node, "body")
    if any(source.of(target) == source.of(counter) for target in code.assigned(body)):
        return None
    share = _Share(code, node, counter, Symbol(source.of(counter), counter.parent.start_byte, node=counter), None)
    inner = statements(body)
    if source.of(compared["place"]) == source.of(counter):
        share.most = compared["length"]
        declared = one_variable(inner[0]) if inner else None
        if declared is not None and code.polynomial(declared[1]).depends_on(share.symbol):
            share.index, inner = declared, inner[1:]
        share.body = [part for statement in inner for part in _parts(share, statement)]
    elif share.asks(compared):
        share.body = [(True, statement) for statement in inner]
    if share.place is None:
        return share
    apart = share.step.terms and not share.step.depends_on(share.symbol) and not share.first.depends_on(share.symbol)
    return share if apart else None


def _parts(share: _Share, statement: Node) -> list[tuple[bool, Node]]:
    """What a loop does in one statement, for elements that there are, or for every place."""
    asked = match(share.code.source, field_of(statement, "condition", "value"), _CHECK)
    if statement.type == "if_statement" and field_of(statement, "alternative") is None and share.asks(asked):
        return [(True, inner) for inner in statements(field_of(statement, "consequence"))]
    share.asks(match(share.code.source, statement, f"$kept = {_CHOICE};"))
    return [(False, statement)]


def _reread(edits: Edits, code: Code, kernel: Kernel) -> None:
    source = code.source
    loops = [share for n in source.walk(kernel.body, "for_statement") if (share := _share(code, n)) is not None]
    declared = [code.declared(n) for n in source.walk(kernel.body, "declaration") if not source.says(n, "__shared__")]
    arrays = [found[0] for found in declared if len(found) == 1 and _is_row(code, kernel, found[0], loops)]
    mine = [loop for loop in loops if any(_indexed(code, loop, array) for array in arrays)]
    asking = [loop for loop in mine if loop.place is not None]
    most = {loop.most and code.polynomial(loop.most) for loop in mine}
    if len({loop.key for loop in asking}) != 1 or len(most) != 1:
        raise Unsupported("no row in arrays, or rows that are shared out in different ways")
    if most != {None} and not asking[0].starts_within_a_step(kernel):
        raise Unsupported("as many elements for each thread, but not the first ones of the row")
    if any(kernel.changes_within(part, [kernel.body]) for part in asking[0].key):
        raise Unsupported("a row whose length or place changes")
    if any(not same(loop.node.parent, mine[0].node.parent) for loop in mine):
        raise Unsupported("loops of which some may be skipped")
    _Rereading(edits, code, kernel, mine, asking[0], arrays).write()


def _indexed(code: Code, loop: _Share, array: Definition) -> list[Node]:
    """The array's elements in a loop, `array[k]`; none where it is used otherwise there."""
    found = [use.parent for use in code.uses(array, loop.node)]
    element = f"{array.name}[{code.source.of(loop.counter)}]"
    return found if all(match(code.source, node, element) is not None for node in found) else []


def _is_row(code: Code, kernel: Kernel, array: Definition, loops: list[_Share]) -> bool:
    """Whether it is an array that is used for nothing but the thread's elements of the row."""
    size = field_of(array.declarator, "size") if array.declarator.type == "array_declarator" else None
    met = [(loop, element) for loop in loops for element in _indexed(code, loop, array)] if size is not None else []
    bounded = all(loop.most is None or code.polynomial(loop.most) == code.polynomial(size) for loop, _ in met)
    return bounded and bool(met) and len(met) == len(code.uses(array, kernel.body))


class _Rereading:
    """What the loops of one kernel become; one of them says where elements are."""

    def __init__(
        self, edits: Edits, code: Code, kernel: Kernel, loops: list[_Share], asking: _Share, arrays: list[Definition]
    ) -> None:
        self.edits, self.code, self.kernel = edits, code, kernel
        self.loops, self.asking, self.arrays = loops, asking, arrays
        self.source, self.taken = code.source, code.names()
        named = {self.source.of(loop.index[0]): self.source.of(statement_around(loop.index[0]), "type")
                 for loop in loops if loop.index is not None}  # fmt: skip
        if len(named) > 1:
            raise Unsupported("different names of an element's index")
        self.column = next(iter(named), code.fresh("column"))
        self.kind = named.get(self.column, self.source.of(loops[0].node, "initializer", "type"))
        self.held: dict[Definition, str] = {}
        """What an array's element is called now."""
        self.beyond: dict[Definition, str] = {}
        """What it is where there is no element, `0` or `-INFINITY`; nothing for anything else."""
        self.carried: list[str] = []
        """Declarations that later loops repeat."""

    def write(self) -> None:
        source, edits, first, asking = self.source, self.edits, self.loops[0], self.asking
        start, step = asking.texts()
        bound = _part(source, asking.length)
        if asking.most is not None:
            most, length, bound = f"{_part(source, asking.most)} * {step}", bound, self.code.fresh("held")
            found = self.code.variable(asking.length)
            kind = source.of(found.declaration, "type") if found is not None else "auto"
            line = f"const {kind} {bound} = {length} < {most} ? {length} : {most};"
            edits.in_front(first.node, line)
        for loop in self.loops:
            head = f"for ({self.kind} {self.column} = {start}; {self.column} < {bound}; {self.column} += {step}) {{"
            edits.write(loop.node, [head, self._body(loop), "}"])
            if (unrolled := pragma_of(loop.node)) is not None and "unroll" in source.of(unrolled):
                edits.remove(unrolled)
        for array in self.arrays:
            edits.remove(array.declaration)

    def _body(self, loop: _Share) -> list[str]:
        """The loop's statements for one element, with what was kept before in front."""
        lines = list(self.carried)
        for of_row, statement in loop.body:
            array, value = self._kept(statement)
            chosen = match(self.source, value, _CHOICE)
            if array is not None and loop.asks(chosen):
                value, self.beyond[array] = chosen["value"], _number(self.source.of(chosen["other"]))
            elif array is not None:
                self.beyond[array] = "" if of_row else self._beyond(value).replace("-INFINITY", "")
            elif not of_row and not self._does_nothing(statement):
                raise Unsupported("places behind the row that count")
            if array is None:
                lines.append(self._text(loop, statement))
                continue
            self._check_steady(loop, value)
            text = self._text(loop, value)
            self.held[array] = free(f"{array.name}_at", self.taken)
            self.taken.add(self.held[array])
            line = f"const {self.source.of(array.declaration, 'type')} {self.held[array]} = {text};"
            lines.append(line)
            self.carried.append(line)
        return [part for line in lines for part in line.split("\n")]

    def _kept(self, statement: Node) -> tuple[Definition | None, Node | None]:
        """The array of which the statement sets the thread's element, and to what; None for any other statement."""
        found = match(self.source, statement, "$array[$k] = $value;")
        array = self.code.variable(found["array"]) if found is not None else None
        return (array, found["value"]) if array in self.arrays else (None, None)

    def _does_nothing(self, statement: Node) -> bool:
        """Whether a statement makes no difference where there is no element."""
        found, nothing = match(self.source, statement, *_SUMS), "0"
        if found is None:
            found, nothing = match(self.source, statement, *_MOST), "-INFINITY"
        return found is not None and found["state"].type == "identifier" and self._beyond(found["value"]) == nothing

    def _beyond(self, value: Node) -> str:
        """What an expression is where there is no element: `0`, `-INFINITY`, or "" for what is not known."""
        element, below = match(self.source, value, "$array[$k]"), match(self.source, value, "$high - $low")
        called = match(self.source, value, "$function($given)")
        if element is not None:
            return self.beyond.get(self.code.variable(element["array"]), "")
        if below is not None:
            return self._beyond(below["high"]).replace("0", "")
        if called is not None and base_of(self.code, self.source.of(called["function"])):
            return "0" if self._beyond(called["given"]) == "-INFINITY" else ""
        return ""

    def _text(self, loop: _Share, node: Node) -> str:
        """A statement or expression by the element's index and by what its arrays hold."""
        source, replaced = self.source, list[tuple[Node, str]]()
        for array in self.arrays:
            for element in (e for e in _indexed(self.code, loop, array) if inside(e, node)):
                if source.set_by(element) or element.parent.type == "pointer_expression" or array not in self.held:
                    raise Unsupported(
                        "an element that is set in the middle of something else, or read before it is set"
                    )
                replaced.append((element, self.held[array]))
        for use in source.walk(node, "identifier"):
            if source.of(use) != source.of(loop.counter) or any(inside(use, e) for e, _ in replaced):
                continue
            index = self._sum(use)
            _, _, rest = (loop if loop.place is not None else self.asking).split(index)
            replaced.append((index, " + ".join([*(_part(source, p) for p in rest), self.column])))
        return lifted(source, node, source.render(node, replaced))

    def _sum(self, use: Node) -> Node:
        """The largest sum that the counter is a part of."""
        within = {"binary_expression", "parenthesized_expression", "cast_expression"}
        *_, here = itertools.takewhile(lambda node: same(node, use) or node.type in within, upward(use))
        if here.type != "binary_expression" or self.source.of(here, "operator") != "+":
            raise Unsupported("a round's number that is used otherwise")
        return here

    def _check_steady(self, loop: _Share, value: Node) -> None:
        """Raises Unsupported where the value would be another one in a later loop."""
        source, code, last = self.source, self.code, self.loops[-1].node

        def later(node: Node) -> bool:
            return loop.node.start_byte <= node.start_byte < last.end_byte

        for name in source.walk(value, "identifier"):
            found = code.definition(name)
            if found is None or found in self.arrays or source.of(name) in {self.column, source.of(loop.counter)}:
                continue
            if inside(found.declaration, loop.node) or any(map(later, code.set_at(found, self.kernel.body))):
                raise Unsupported(f"{found.name}, which changes")
        for call in source.walk(value, "call_expression"):
            name = source.called(call)
            if TALKS.fullmatch(name.split(".")[-1]) or any(
                "&" in source.of(f, "declarator") for f in code.reached(name)
            ):
                raise Unsupported("a call that may do more")
        held = [e for array in self.arrays for e in _indexed(code, loop, array)]
        accesses = [a for a in self.kernel.accesses if not any(same(a.node, e) for e in held)]
        read = [a for a in accesses if inside(a.node, value)]
        changes = source.has(value, "assignment_expression", "update_expression", "lambda_expression")
        if changes or not all(a.root for a in read):
            raise Unsupported("a value that cannot be computed again")
        if any(later(call) for call, _ in self.kernel.escapes):
            raise Unsupported("memory that anything may have happened to")
        for access, other in itertools.product(read, (a for a in accesses if a.writes and later(a.node))):
            alike = "?" in {other.root, access.root} or other.root == access.root
            if alike and not self._same_element(loop, access, other):
                raise Unsupported("memory that changes")

    def _same_element(self, loop: _Share, read: Access, written: Access) -> bool:
        """Whether a thread changes the element in the last loop only, where it has read it again."""
        last = self.loops[-1]
        if read.root == "?" or loop is last or not inside(written.node, last.node) or read.base != written.base:
            return False
        steps = read.offset.coefficient(loop.symbol), written.offset.coefficient(last.symbol)
        starts = read.offset.without(loop.symbol), written.offset.without(last.symbol)
        return steps[0] == steps[1] and starts[0] == starts[1]


def _number(text: str) -> str:
    """`0`, `-INFINITY`, or "" for any other number."""
    return "0" if is_zero(text) else "-INFINITY" if text.replace(" ", "") in _LOW else ""
