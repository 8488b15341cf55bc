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
from nodes.rewrites.syntax.match import bare, match
from nodes.rewrites.syntax.source import Edits, Source, Unsupported, inside, only_argument, operands
from nodes.rewrites.syntax.tree import children_of, field_of, is_zero, one_variable, same, statement_around, statements

MOST = 8
_CHECK = "$place < $length"
_MOST = ("$most = fmaxf($most, $value);", "$most = fmaxf($value, $most);", "$most = max($most, $value);",
         "$most = max($value, $most);", "$most = $most > $value ? $most : $value;")  # fmt: skip
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
    body: list[tuple[str, Node]] = field(default_factory=list)
    """What is done `inside` the row, `beyond` it, and for `every` place, there an element or not."""

    def asks(self, compared: dict[str, Node] | None) -> bool:
        """Whether `$place < $length` is the question whether there is such an element."""
        if compared is None:
            return False
        polynomial, place = self.code.polynomial, compared["place"]
        if self.place is None and polynomial(place).depends_on(self.symbol) and polynomial(place).depends_on(THREAD):
            self.place, self.length = place, compared["length"]
            if self.index is not None and self.code.source.of(self.index[0]) == self.code.source.of(place):
                self.place = self.index[1]
        if self.place is None or self.length is None:
            return False
        alike = polynomial(place) == polynomial(self.place), polynomial(compared["length"]) == polynomial(self.length)
        return all(alike)

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
        polynomial, parts = self.code.polynomial, operands(self.code.source, index, "+")
        steps = [p for p in parts if polynomial(p).depends_on(self.symbol)]
        starts = [p for p in parts if not any(same(p, s) for s in steps)]
        rest = []
        if sum((polynomial(p) for p in steps), Polynomial()) != self.step * Polynomial.symbol(self.symbol):
            raise Unsupported("an index that goes by other steps")
        if sum((polynomial(p) for p in starts), Polynomial()) != self.first:
            rest = [p for p in starts if not self.first.terms >= polynomial(p).terms or not polynomial(p).terms]
            starts = [p for p in starts if not any(same(p, r) for r in rest)]
            if sum((polynomial(p) for p in starts), Polynomial()) != self.first:
                raise Unsupported("an index that begins elsewhere")
        return steps, starts, rest

    def texts(self) -> tuple[str, str]:
        """What the loop begins with and by what it steps."""
        source, (steps, starts, rest) = self.code.source, self.split(self.place)
        if len(steps) != 1 or rest or not starts:
            raise Unsupported("an index of another form")
        factors = operands(source, steps[0], "*")
        others = [f for f in factors if not self.code.polynomial(f).depends_on(self.symbol)]
        if len(others) != len(factors) - 1 or not others:
            raise Unsupported("an index of another form")
        return " + ".join(_part(source, s) for s in starts), " * ".join(_part(source, o) for o in others)

    def starts_within_a_step(self, kernel: Kernel) -> bool:
        """Whether no thread begins where another one makes its second step."""
        if self.first == Polynomial.symbol(THREAD):
            steps = (extent_of(self.code, kernel, launch.along_x(launch.block)) for launch in kernel.launches)
            known = self.step.value is not None and bool(kernel.launches)
            return (known and all(step == self.step.value for step in steps)) or self.step == Polynomial.symbol(
                BLOCK_DIM
            )
        (monomial, times), *more = self.first.terms
        rest = monomial[0] if len(monomial) == 1 and times == 1 and not more else None
        return rest is not None and rest.operator == "%" and rest.operands[1] == self.step


def _part(source: Source, node: Node) -> str:
    """An operand, whose parentheses are gone, of a sum or a product."""
    plain = {"identifier", "number_literal", "field_expression", "subscript_expression", "call_expression"}
    product = node.type == "binary_expression" and source.of(node, "operator") == "*"
    return source.of(node) if node.type in plain or product else f"({source.of(node)})"


def _share(code: Code, node: Node) -> _Share | None:
    """The loop as one over a thread's part of a row, None where it is none."""
    source, found = code.source, match(code.source, node, *_FORS)
    if found is None or found["k"].type != "identifier" or source.of(found["start"]) != "0":
        return None
    counter, inner = found["k"], statements(field_of(node, "body"))
    compared = match(source, found["check"], _CHECK)
    if compared is None or any(source.of(t) == source.of(counter) for t in code.assigned(field_of(node, "body"))):
        return None
    share = _Share(code, node, counter, Symbol(source.of(counter), counter.parent.start_byte, node=counter), None)
    if source.of(compared["place"]) == source.of(counter):
        share.most = compared["length"]
        declared = one_variable(inner[0]) if inner else None
        if declared is not None and code.polynomial(declared[1]).depends_on(share.symbol):
            share.index, inner = declared, inner[1:]
        for statement in inner:
            share.body += _parts(share, statement)
    elif share.asks(compared):
        share.body = [("inside", statement) for statement in inner]
    whole = share.place is None or (share.step.terms and not share.step.depends_on(share.symbol))
    return share if whole and (share.place is None or not share.first.depends_on(share.symbol)) else None


def _parts(share: _Share, statement: Node) -> list[tuple[str, Node]]:
    """What a loop does in one statement, for elements that there are and for places behind the row."""
    source = share.code.source
    if statement.type == "if_statement" and share.asks(
        match(source, field_of(statement, "condition", "value"), _CHECK)
    ):
        beyond = children_of(field_of(statement, "alternative"))
        beyond = [s for part in beyond for s in statements(part)]
        if len(beyond) == 1 and beyond[0].type == "break_statement":  # there are none behind the first
            beyond = []
        inside = statements(field_of(statement, "consequence"))
        return [*(("inside", s) for s in inside), *(("beyond", s) for s in beyond)]
    chosen = match(source, statement, "$kept = $place < $length ? $value : $other;")
    return [("choice" if chosen is not None and share.asks(chosen) else "every", statement)]


def _reread(edits: Edits, code: Code, kernel: Kernel) -> None:
    source = code.source
    loops = [share for n in source.walk(kernel.body, "for_statement") if (share := _share(code, n)) is not None]
    arrays = {}
    for node in source.walk(kernel.body, "declaration"):
        declarators = node.children_by_field_name("declarator")
        if len(declarators) == 1 and declarators[0].type == "array_declarator" and not source.says(node, "__shared__"):
            name = source.of(declarators[0], "declarator")
            arrays[declarators[0].start_byte] = Definition(name, "local", node, declarators[0], None)
    taken = {where: found for where, found in arrays.items() if _is_row(code, kernel, found, loops)}
    mine = [loop for loop in loops if any(_indexed(code, loop, f) for f in taken.values())]
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
    _Rereading(edits, code, kernel, mine, asking[0], list(taken.values())).write()


def _indexed(code: Code, loop: _Share, array: Definition) -> list[Node]:
    """The array's elements in a loop, `array[k]`."""
    found = []
    for use in code.uses(array, loop.node):
        element = use.parent
        index = children_of(element, "indices")
        if element is None or element.type != "subscript_expression" or not same(field_of(element, "argument"), use):
            return []
        if len(index) != 1 or code.source.of(index[0]) != code.source.of(loop.counter):
            return []
        found.append(element)
    return found


def _is_row(code: Code, kernel: Kernel, array: Definition, loops: list[_Share]) -> bool:
    """Whether the array is used for nothing but the thread's elements of the row."""
    size, uses = field_of(array.declarator, "size"), code.uses(array, kernel.body)
    met = [(loop, element) for loop in loops for element in _indexed(code, loop, array)]
    bounded = all(loop.most is None or code.polynomial(loop.most) == code.polynomial(size) for loop, _ in met)
    return size is not None and bounded and bool(met) and len(met) == len(uses)


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
        self.held: dict[int, str] = {}
        """What an array's element is called now, by where the array is."""
        self.beyond: dict[int, str] = {}
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
            edits.insert(first.node.start_byte, f"{line}\n{source.indent(first.node)}")
        for loop in self.loops:
            head = f"for ({self.kind} {self.column} = {start}; {self.column} < {bound}; {self.column} += {step}) {{"
            edits.write(loop.node, [head, self._body(loop), "}"])
            unrolled = loop.node.prev_named_sibling
            if unrolled is not None and unrolled.type == "preproc_call" and "unroll" in source.of(unrolled):
                edits.remove(unrolled)
        for array in self.arrays:
            edits.remove(array.declaration)

    def _body(self, loop: _Share) -> list[str]:
        """The loop's statements for one element, with what was kept before in front."""
        lines = list(self.carried)
        for place, statement in loop.body:
            target = self._kept(statement)
            if place == "beyond" or (
                place in {"choice", "every"} and not self._does_nothing(loop, place, statement, target)
            ):
                if place != "beyond" or target is None:
                    raise Unsupported("places behind the row that count")
                self.beyond[target.where] = self._number(field_of(statement.named_children[0], "right"))
                continue
            if target is None:
                lines.append(self._text(loop, statement))
                continue
            assignment = statement.named_children[0]
            value = field_of(assignment, "right")
            if place == "choice":
                chosen = match(self.source, value, "$asked ? $value : $other")
                value, self.beyond[target.where] = chosen["value"], self._number(chosen["other"])
            self._check_steady(loop, value)
            operator, text = self.source.of(assignment, "operator"), self._text(loop, value)
            if operator != "=":
                text = f"{self._element(target)} {operator[:-1]} ({text})"
            name = free(f"{target.name}_at", self.taken)
            self.taken.add(name)
            self.held[target.where] = name
            line = f"const {self.source.of(target.declaration, 'type')} {name} = {text};"
            lines.append(line)
            self.carried.append(line)
        return [part for line in lines for part in line.split("\n")]

    def _number(self, value: Node) -> str:
        text = self.source.of(value).replace(" ", "")
        return "0" if is_zero(text) else "-INFINITY" if text in _LOW else ""

    def _does_nothing(self, loop: _Share, place: str, statement: Node, target: Definition | None) -> bool:
        """Whether a statement makes no difference where there is no element, but for what it leaves in an array."""
        if place == "choice":
            return target is not None
        source, added = self.source, match(self.source, statement, "$sum += $value;", "$sum = $sum + $value;")
        if target is not None:
            self.beyond[target.where] = (
                "0" if self._beyond(field_of(statement.named_children[0], "right")) == "0" else ""
            )
            return source.of(statement.named_children[0], "operator") == "="
        if added is not None:
            return added["sum"].type == "identifier" and self._beyond(added["value"]) == "0"
        most = match(source, statement, *_MOST)
        return most is not None and most["most"].type == "identifier" and self._beyond(most["value"]) == "-INFINITY"

    def _beyond(self, value: Node) -> str:
        """What an expression is where there is no element: `0`, `-INFINITY`, or "" for what is not known."""
        value, source = bare(value), self.source
        if value.type == "subscript_expression":
            found = self.code.variable(field_of(value, "argument"))
            return self.beyond.get(found.where, "") if found is not None else ""
        if value.type == "binary_expression":
            left, right = (self._beyond(field_of(value, side)) for side in ("left", "right"))
            operator = source.of(value, "operator")
            if operator == "*":
                return "0" if left == right == "0" else ""
            return left if operator == "-" and left == "-INFINITY" else ""
        if value.type == "call_expression" and base_of(self.code, source.called(value)):
            return "0" if self._beyond(only_argument(value)) == "-INFINITY" else ""
        return ""

    def _kept(self, statement: Node) -> Definition | None:
        """The array of which the statement sets the thread's element."""
        assignment = statement.named_children[0] if statement.type == "expression_statement" else None
        left = field_of(assignment, "left")
        if assignment is None or assignment.type != "assignment_expression" or left is None:
            return None
        found = self.code.variable(field_of(left, "argument"))
        return next((a for a in self.arrays if found is not None and a.where == found.where), None)

    def _element(self, array: Definition) -> str:
        if array.where not in self.held:
            raise Unsupported("an element that is read before it is set")
        return self.held[array.where]

    def _text(self, loop: _Share, node: Node) -> str:
        """A statement or expression by the element's index and by what its arrays hold."""
        source, replaced = self.source, list[tuple[Node, str]]()
        for array in self.arrays:
            for element in (e for e in _indexed(self.code, loop, array) if inside(e, node)):
                if source.set_by(element) or element.parent.type == "pointer_expression":
                    if not (self._kept(element.parent.parent) and same(field_of(element.parent, "left"), element)):
                        raise Unsupported("an element that is changed under a condition")
                    if same(element.parent.parent, node) or inside(element.parent, node):
                        raise Unsupported("an element that is set in the middle of something else")
                replaced.append((element, self._element(array)))
        for use in source.walk(node, "identifier"):
            if source.of(use) != source.of(loop.counter) or any(inside(use, e) for e, _ in replaced):
                continue
            index = self._sum(use)
            _, _, rest = (loop if loop.place is not None else self.asking).split(index)
            replaced.append((index, " + ".join([*(_part(source, p) for p in rest), self.column])))
        text = source.render(node, replaced)
        indent = source.indent(node)
        return "\n".join(line.removeprefix(indent) if n else line for n, line in enumerate(text.split("\n")))

    def _sum(self, use: Node) -> Node:
        """The largest sum that the counter is a part of."""
        here = use
        while here.parent is not None and here.parent.type in {
            "binary_expression",
            "parenthesized_expression",
            "cast_expression",
        }:
            here = here.parent
        if here.type != "binary_expression" or self.source.of(here, "operator") != "+":
            raise Unsupported("a round's number that is used otherwise")
        return here

    def _check_steady(self, loop: _Share, value: Node) -> None:
        """Raises Unsupported where the value would be another one in a later loop."""
        source, code, last = self.source, self.code, self.loops[-1].node
        after = (loop.node.start_byte, last.end_byte)
        for name in source.walk(value, "identifier"):
            found, text = code.definition(name), source.of(name)
            if (
                found is None
                or any(found.where == a.where for a in self.arrays)
                or text in {self.column, source.of(loop.counter)}
            ):
                continue
            if inside(found.declaration, loop.node):
                raise Unsupported("a value of a variable that the loop declares")
            for target in code.assigned(self.kernel.body):
                here = code.definition(target)
                if here is not None and here.where == found.where and after[0] <= target.start_byte < after[1]:
                    raise Unsupported(f"{text}, which changes")
        for call in source.walk(value, "call_expression"):
            name = source.called(call)
            if TALKS.fullmatch(name.split(".")[-1]) or any(
                "&" in source.of(f, "declarator") for f in code.reached(name)
            ):
                raise Unsupported("a call that may do more")
        read = [a for a in self.kernel.accesses if inside(a.node, value) and not self._of_arrays(a.node)]
        if source.has(value, "assignment_expression", "update_expression", "lambda_expression") or any(
            not a.root for a in read
        ):
            raise Unsupported("a value that cannot be computed again")
        written = [a for a in self.kernel.accesses if a.writes and after[0] <= a.node.start_byte < after[1]]
        if any(after[0] <= call.start_byte < after[1] for call, _ in self.kernel.escapes):
            raise Unsupported("memory that anything may have happened to")
        for access in read:
            for other in (w for w in written if "?" in {w.root, access.root} or w.root == access.root):
                if not self._same_element(loop, access, other):
                    raise Unsupported("memory that changes")

    def _same_element(self, loop: _Share, read: Access, written: Access) -> bool:
        """Whether a thread changes the element in the last loop only, where it has read it again."""
        last, ends = self.loops[-1], []
        if (
            read.root == "?"
            or not inside(written.node, last.node)
            or self._kept(statement_around(written.node)) is not None
        ):
            return False
        for share, access in ((loop, read), (last, written)):
            ends.append((access.offset.coefficient(share.symbol), access.offset.without(share.symbol)))
        return loop is not last and ends[0] == ends[1] and read.base == written.base and last.place is not None

    def _of_arrays(self, node: Node) -> bool:
        found = self.code.variable(field_of(node, "argument"))
        return found is not None and any(found.where == a.where for a in self.arrays)
