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
import re
from dataclasses import dataclass

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.block_shape import extent_of
from nodes.rewrites.analysis.device_code import Code, Definition, one_by_one
from nodes.rewrites.analysis.kernels import TALKS, Access, Kernel
from nodes.rewrites.analysis.numbers import base_of
from nodes.rewrites.analysis.regions import BLOCK_DIM, THREAD
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.algebra import Polynomial, Symbol
from nodes.rewrites.syntax.insert import as_factor, free
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Edits, Source, Unsupported, inside, lifted, operands
from nodes.rewrites.syntax.tree import (
    field_of,
    is_zero,
    names_declared,
    one_variable,
    pragma_of,
    same,
    statement_around,
    statements,
)

MOST = 8
_FORS = ("for ($T $k = 0; $place < $length; ++$k) $body;", "for ($T $k = 0; $place < $length; $k++) $body;")
_ASKED = ("if ($place < $length) $then;", "$array[$k] = $place < $length ? $value : $other;")
_SUMS = ("$state += $array[$k];", "$state = $state + $array[$k];")
_MOST = ("$state = fmaxf($state, $array[$k]);", "$state = fmaxf($array[$k], $state);", "$state = max($state, $array[$k]);",
         "$state = max($array[$k], $state);", "$state = $state > $array[$k] ? $state : $array[$k];")  # fmt: skip
_LOW = {"-INFINITY", "-CUDART_INF_F", "-HUGE_VALF", "-std::numeric_limits<float>::infinity()"}


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
    """A loop over a thread's part of a row: element `place`, which is `first + k * step`, of `length`, at most `most` of them."""

    node: Node
    counter: Node
    inner: list[Node]
    """Its statements, less the index's declaration."""
    index: Node | None
    """The variable that is the element's place, where there is one."""
    most: Node | None
    """None where the array alone says it."""
    place: Node | None
    """None where a loop asks of no place."""
    length: Node | None

    @property
    def symbol(self) -> Symbol:
        return Symbol(self.counter.text.decode(), self.counter.parent.start_byte, node=self.counter)


def _share(code: Code, node: Node) -> _Share | None:
    """The loop as one over a thread's part of a row, None where it is none."""
    source, found = code.source, match(code.source, node, *_FORS)
    if found is None or source.of(found["k"]) in map(source.of, code.assigned(found["body"])):
        return None
    inner, counter = statements(found["body"]), found["k"]
    if source.of(found["place"]) != source.of(counter):
        share = _Share(node, counter, inner, None, None, found["place"], found["length"])
    else:
        share = _Share(node, counter, inner, None, found["length"], None, None)
        declared = one_variable(inner[0]) if inner else None
        if declared is not None and code.polynomial(declared[1]).depends_on(share.symbol):
            (share.index, share.place), share.inner = declared, inner[1:]
            asked = (match(source, statement, *_ASKED) for statement in share.inner)
            share.length = next((a["length"] for a in asked if a is not None and _asks(code, share, a)), None)
    return share


def _asks(code: Code, share: _Share, asked: dict[str, Node]) -> bool:
    """Whether `$place < $length` is about the loop's element, and the row."""
    source, length = code.source, share.length or asked["length"]
    return all(source.of(asked[k]) == source.of(v) for k, v in {"place": share.index, "length": length}.items())


def _reread(edits: Edits, code: Code, kernel: Kernel) -> None:
    source, polynomial = code.source, code.polynomial
    loops = [share for n in source.walk(kernel.body, "for_statement") if (share := _share(code, n)) is not None]
    declared = [code.declared(n) for n in source.walk(kernel.body, "declaration") if not source.says(n, "__shared__")]
    arrays = [found[0] for found in declared if len(found) == 1 and _is_row(code, kernel, found[0], loops)]
    mine = [loop for loop in loops if any(_indexed(code, loop, array) for array in arrays)]
    asking = [loop for loop in mine if loop.length is not None]
    rows = {(p.coefficient(loop.symbol), p.without(loop.symbol), polynomial(loop.length))
            for loop in asking for p in [polynomial(loop.place)]}  # fmt: skip
    most = {loop.most and polynomial(loop.most) for loop in mine}
    if len(rows) != 1 or len(most) != 1 or any((loop.place is None) != (loop.length is None) for loop in mine):
        raise Unsupported("no row in arrays, or rows that are shared out in different ways")
    (row,) = rows
    if any(part.depends_on(loop.symbol) for part in row[:2] for loop in mine) or not row[0].terms:
        raise Unsupported("an index of another form")
    if most != {None} and not _starts_within_a_step(code, kernel, *row[:2]):
        raise Unsupported("as many elements for each thread, but not the first ones of the row")
    if any(kernel.changes_within(part, [kernel.body]) for part in row):
        raise Unsupported("a row whose length or place changes")
    if any(not same(loop.node.parent, mine[0].node.parent) for loop in mine):
        raise Unsupported("loops of which some may be skipped")
    if any(_hides(source, loop) for loop in mine):
        raise Unsupported("a name that is another variable's within a loop")
    _Rereading(edits, code, kernel, mine, asking[0], arrays).write()


def _hides(source: Source, loop: _Share) -> bool:
    """Whether the loop declares again what says which elements there are: these parts are compared and replaced as written."""
    said = [part for part in (loop.index, loop.place, loop.length) if part is not None]
    named = {source.of(name) for part in said for name in source.walk(part, "identifier")}
    return any(
        source.of(name) in named
        for statement in loop.inner
        for declaration in source.walk(statement, "declaration")
        for name in names_declared(declaration)
    )


def _starts_within_a_step(code: Code, kernel: Kernel, step: Polynomial, first: Polynomial) -> bool:
    """Whether no thread begins where another one makes its second step."""
    if first.only == THREAD:
        widths = {extent_of(code, kernel, launch.along_x(launch.block)) for launch in kernel.launches}
        return step.only == BLOCK_DIM or (len(widths) == 1 and widths == {step.value})
    return first.only is not None and first.only.operator == "%" and first.only.operands[1] == step


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
        self.edits, self.code, self.kernel, self.source = edits, code, kernel, code.source
        self.loops, self.asking, self.arrays, self.taken = loops, asking, arrays, code.names()
        named = {self.source.of(loop.index): self.source.of(statement_around(loop.index), "type")
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
        source, edits, first, asking = self.source, self.edits, self.loops[0].node, self.asking
        start, step = self._place()
        bound = as_factor(source.of(asking.length))
        if asking.most is not None:
            most, length, bound = f"{as_factor(source.of(asking.most))} * {step}", bound, self.code.fresh("held")
            found = self.code.variable(asking.length)
            kind = source.of(found.declaration, "type") if found is not None else "auto"
            edits.in_front(first, f"const {kind} {bound} = {length} < {most} ? {length} : {most};")
        for loop in self.loops:
            head = f"for ({self.kind} {self.column} = {start}; {self.column} < {bound}; {self.column} += {step}) {{"
            lines = [*self.carried, *(line for s in loop.inner for line in self._lines(loop, s))]
            edits.write(loop.node, [head, [part for line in lines for part in line.split("\n")], "}"])
            if (unrolled := pragma_of(loop.node)) is not None and "unroll" in source.of(unrolled):
                edits.remove(unrolled)
        for array in self.arrays:
            edits.remove(array.declaration)

    def _place(self) -> tuple[str, str]:
        """What the loops begin with and by what they step."""
        source, place, counter = self.source, self.asking.place, self.source.of(self.asking.counter)
        parts = operands(source, place, "+")
        moving = [p for p in parts if self.code.polynomial(p).depends_on(self.asking.symbol)]
        found = match(source, moving[0], f"{counter} * $step", f"$step * {counter}")
        if found is None or len(moving) > 1 or len(parts) < 2:
            raise Unsupported("an index of another form")
        start = " + ".join(as_factor(source.of(p)) for p in parts if not same(p, moving[0]))
        return start, as_factor(source.of(found["step"]))

    def _lines(self, loop: _Share, statement: Node) -> list[str]:
        """What a statement is for an element of the row. Raises Unsupported for what counts places behind the row."""
        source, asked = self.source, match(self.source, statement, *_ASKED)
        asked = asked if asked is not None and loop.index is not None and _asks(self.code, loop, asked) else None
        inner = statements(asked["then"]) if asked is not None and "then" in asked else [statement]
        lines = []
        for each in inner:
            found = match(source, each, "$array[$k] = $value;")
            array = self.code.variable(found["array"]) if found is not None else None
            if array in self.arrays:
                value = asked["value"] if asked is not None and "value" in asked else found["value"]
                self.beyond[array] = self._beyond(asked, value)
                lines.append(self._keep(loop, array, value))
            elif loop.most is None or asked is not None or self._does_nothing(each):
                lines.append(self._text(loop, each))
            else:
                raise Unsupported("places behind the row that count")
        return lines

    def _keep(self, loop: _Share, array: Definition, value: Node) -> str:
        self._check_steady(loop, value)
        text = self._text(loop, value)
        self.held[array] = free(f"{array.name}_at", self.taken)
        self.taken.add(self.held[array])
        self.carried.append(f"const {self.source.of(array.declaration, 'type')} {self.held[array]} = {text};")
        return self.carried[-1]

    def _beyond(self, asked: dict[str, Node] | None, value: Node) -> str:
        """What an array holds where there is no element, once it is set."""
        if asked is not None:
            other = self.source.of(asked.get("other")).replace(" ", "")
            return "0" if is_zero(other) else "-INFINITY" if other in _LOW else ""
        found = match(self.source, value, "$function($array[$k] - $high)")
        lowest = found is not None and self.beyond.get(self.code.variable(found["array"])) == "-INFINITY"
        return "0" if lowest and base_of(self.code, self.source.of(found["function"])) else ""

    def _does_nothing(self, statement: Node) -> bool:
        """Whether a statement makes no difference where there is no element."""
        found = match(self.source, statement, *_SUMS, *_MOST)
        if found is None or found["state"].type != "identifier":
            return False
        nothing = "0" if found.pattern in _SUMS else "-INFINITY"
        return self.beyond.get(self.code.variable(found["array"])) == nothing

    def _text(self, loop: _Share, node: Node) -> str:
        """A statement or expression by the element's index and by what its arrays hold."""
        source, replaced = self.source, list[tuple[Node, str]]()
        for array in self.arrays:
            for element in (e for e in _indexed(self.code, loop, array) if inside(e, node)):
                if source.set_by(element) or element.parent.type == "pointer_expression" or array not in self.held:
                    raise Unsupported("an element that is set within something else, or read before it is set")
                replaced.append((element, self.held[array]))
        text = lifted(source, node, source.render(node, replaced))
        if loop.place is not None:
            place = re.escape(source.of(loop.place))
            text = re.sub(rf"([\[(+]\s*){place}(?=\s*[\])])", rf"\g<1>{self.column}", text)
        if re.search(rf"\b{source.of(loop.counter)}\b", text):
            raise Unsupported("a round's number that is used otherwise")
        return text

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
            lent = any("&" in source.of(function, "declarator") for function in code.reached(name))
            if lent or TALKS.fullmatch(name.split(".")[-1]):
                raise Unsupported("a call that may do more")
        held = [e for array in self.arrays for e in _indexed(code, loop, array)]
        accesses = [a for a in self.kernel.accesses if not any(same(a.node, e) for e in held)]
        read = [a for a in accesses if inside(a.node, value)]
        changes = source.has(value, "assignment_expression", "update_expression", "lambda_expression")
        if changes or not all(a.root for a in read) or any(later(call) for call, _ in self.kernel.escapes):
            raise Unsupported("a value that cannot be computed again, or memory that anything may have happened to")
        for access, other in itertools.product(read, (a for a in accesses if a.writes and later(a.node))):
            alike = "?" in {other.root, access.root} or other.root == access.root
            if alike and not self._same_element(loop, access, other):
                raise Unsupported("memory that changes")

    def _same_element(self, loop: _Share, read: Access, written: Access) -> bool:
        """Whether a thread changes the element in the last loop only, where it has read it again."""
        last = self.loops[-1]
        if read.root == "?" or loop is last or not inside(written.node, last.node) or read.base != written.base:
            return False
        parts = (Polynomial.coefficient, Polynomial.without)
        return all(part(read.offset, loop.symbol) == part(written.offset, last.symbol) for part in parts)
