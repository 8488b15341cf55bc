"""What two passes over a row in registers both compute of an element, an exponential say, is computed once and kept.

Applies between passes that keep_row made, where an expensive expression of a row's element stands in an earlier and in a
later one and nothing that it is made of changes in between. The value takes a register of its own, or that of the element
where nothing else wants this any more (a float32's place is as large). 16-bit elements lie two to a register, so that their
values take more than they did: each instance of the kernel tells from its steps a thread whether a block as wide as before
has registers for that; where it has not (eight steps of eight 16-bit elements), the value is computed again as it was. No
row becomes too long for registers by this.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tree_sitter import Node

from nodes.rewrites import Facts
from nodes.rewrites.device_code import (
    COORDINATES,
    Code,
    Definition,
    Kernel,
    Loop,
    code_of,
    declared_name,
    inside,
    same,
    statements,
)
from nodes.rewrites.fast_math import kind
from nodes.rewrites.keep_row import HOLD, ITEMS
from nodes.rewrites.source import Edits, Source, Unsupported
from nodes.roles import Bound

LANGUAGES = frozenset({"cuda"})
HELPS: frozenset[Bound] = frozenset({"compute", "latency", "memory"})
EXPECTED = "one exponential an element instead of two, where the row and its values fit the registers"
SPEEDUP = 1.1
ORDER = 41

ROOM = """

// Whether blocks of the width that `BYTES` a step allow have registers for `MORE` a step as well, once `FREED` of those are
// not needed any more.
template <int ITEMS, int BYTES, int FREED, int MORE>
constexpr bool row_has_room = ITEMS * (BYTES - FREED + MORE) / 4 + 32 <= 65536 / row_width(ITEMS, BYTES);"""

_DIVISIONS = {"__fdividef", "fdividef"}
"""The compiler takes the reciprocal of a divisor that all elements share once."""
_EXPENSIVE = _DIVISIONS | {
    "exp", "expf", "__expf", "exp2", "exp2f", "exp10f", "__exp10f", "expm1f", "log", "logf", "__logf", "log2f", "__log2f",
    "log10f", "__log10f", "log1pf", "pow", "powf", "__powf", "tanh", "tanhf", "sinhf", "coshf", "erf", "erff", "erfcf",
    "normcdff", "sinf", "cosf", "tanf", "__sinf", "__cosf", "__tanf", "atanf", "asinf", "acosf", "sqrt", "sqrtf", "rsqrt",
    "rsqrtf", "cbrtf", "__frcp_rn", "__fdiv_rn", "__fsqrt_rn", "__frsqrt_rn",
}  # fmt: skip
_PURE = _EXPENSIVE | {
    "max", "min", "fmax", "fmin", "fmaxf", "fminf", "abs", "fabs", "fabsf", "fma", "fmaf", "__fmaf_rn", "__fmul_rn",
    "__fadd_rn", "__fsub_rn", "floorf", "ceilf", "rintf", "roundf", "truncf", "copysignf", "__half2float", "__float2half",
    "__bfloat162float", "__float2bfloat16", "__int2float_rn", "__saturatef",
}  # fmt: skip
_STRAIGHT = {"compound_statement", "expression_statement", "declaration", "init_declarator", "argument_list",
             "call_expression", "parenthesized_expression", "unary_expression", "cast_expression", "comma_expression",
             "assignment_expression", "binary_expression"}  # fmt: skip
"""What does all that stands in it, but for the right side of `&&` and `||`."""
_LEAPS = ("lambda_expression", "goto_statement", "labeled_statement", "asm_statement", "gnu_asm_expression")
_QUALIFIERS = {"static", "extern", "volatile", "__shared__", "__device__"}


def rewrite(source: Source, facts: Facts) -> str | None:
    if ITEMS not in source.text or "row_has_room" in source.text:
        return None
    code, edits = code_of(source), Edits(source)
    for kernel in code.kernels:
        attempt = Edits(source)
        try:
            _Passes(code, kernel).write(attempt)
        except Unsupported:
            continue
        edits.changes += attempt.changes
    if not edits.changes:
        return None
    edits.insert(code.functions["row_width"].end_byte, ROOM)
    try:
        return edits.apply()
    except Unsupported:
        return None


@dataclass
class _Reading:
    """What an expression of one pass means: the text with its names seen through, and what these come from in the end."""

    text: str
    arrays: dict[int, Definition]
    """By where they are defined; rows in registers among them."""
    outside: set[int]
    """Where variables from outside of the pass are defined."""
    lanes: list[Loop]
    """The loops within the pass that it runs with."""
    elements: set[str]
    """The places in arrays that it reads."""


@dataclass
class _Value:
    first: Node
    """Where it is computed."""
    loop: Loop
    """The pass around that."""
    reading: _Reading
    again: list[tuple[Node, Loop, _Reading]] = field(default_factory=list)
    """Where it is computed once more."""
    name: str = ""


class _Passes:
    """The passes of one kernel over rows in registers. Raises Unsupported where there are none, or nothing can be said."""

    def __init__(self, code: Code, kernel: Kernel) -> None:
        self.code, self.kernel, self.source = code, kernel, code.source
        self.items, self.bytes = self._bounds()
        loops = [
            loop for loop in kernel.loops
            if loop.start.value == 0 and loop.step.value == 1 and self.source.of(loop.bound_node) == self.items
        ]  # fmt: skip
        self.loops = [loop for loop in loops if same(loop.node.parent, loops[0].node.parent)]
        busy = [loop for loop in self.loops if any(self._is_expensive(n) for n in self._computations(loop))]
        if len(busy) < 2 or any(True for _ in self.source.walk(kernel.body, *_LEAPS)):
            raise Unsupported("nothing expensive in two passes")
        self.changes = [(n, found.where) for n in self._lvalues(kernel.body) if (found := self._root(n)) is not None]
        """Everything that is assigned to, or may be, with where what it is part of is defined."""
        self.values: list[_Value] = []
        for number, loop in enumerate(self.loops):
            self._find(loop, self.loops[:number])
        if not self.values:
            raise Unsupported("nothing is computed twice")

    def _bounds(self) -> tuple[str, str]:
        """How many steps a thread keeps, and the bytes of one, as keep_row wrote them into the kernel's launch bounds."""
        bounds = next((c for c in self.kernel.node.children if c.type == "launch_bounds"), None)
        for call in self.source.walk(bounds, "call_expression") if bounds is not None else ():
            listed = call.child_by_field_name("arguments")
            if self.source.of(call.child_by_field_name("function")) == "row_width" and listed is not None:
                items, size = (self.source.of(c) for c in listed.named_children)
                return items, size
        raise Unsupported("no rows in registers")

    def _guarded(self, loop: Loop) -> tuple[Node, Node]:
        """The condition under which a pass has an element, and what it does then."""
        *before, last = statements(loop.body)
        condition, consequence = last.child_by_field_name("condition"), last.child_by_field_name("consequence")
        plain = last.type == "if_statement" and last.child_by_field_name("alternative") is None
        if not plain or condition is None or consequence is None or any(s.type != "declaration" for s in before):
            raise Unsupported("another pass")
        return condition.child_by_field_name("value") or condition, consequence

    # What is computed.

    def _computations(self, loop: Loop) -> Iterator[Node]:
        return self.source.walk(loop.body, "call_expression", "binary_expression")

    def _is_expensive(self, node: Node) -> bool:
        """By itself, whatever its operands are."""
        if node.type == "binary_expression":
            divisor = node.child_by_field_name("right")
            slash = self.source.of(node.child_by_field_name("operator")) == "/"
            return (
                slash and divisor is not None and divisor.type != "number_literal" and kind(self.code, node) == "float"
            )
        name = _called(self.source, node)
        return name in _EXPENSIVE if name not in self.code.overloads else self._helper_is_expensive(name, set())

    def _helper_is_expensive(self, name: str, seen: set[str]) -> bool:
        seen.add(name)
        for function in self.code.overloads[name]:
            for call in self.source.walk(function, "call_expression", "gnu_asm_expression"):
                inner = _called(self.source, call)
                if call.type != "call_expression" or (inner in _EXPENSIVE and inner not in self.code.overloads):
                    return True
                if inner in self.code.overloads and inner not in seen and self._helper_is_expensive(inner, seen):
                    return True
        return False

    def _is_worth_it(self, node: Node, loop: Loop) -> bool:
        """Whether something expensive in it differs from element to element."""
        for inner in self.source.walk(node, "call_expression", "binary_expression"):
            if not self._is_expensive(inner):
                continue
            listed = inner.child_by_field_name("arguments")
            divides = listed is not None and _called(self.source, inner) in _DIVISIONS
            part = listed.named_children[-1] if divides and listed is not None else inner
            if "@item" in _Reader(self, loop).read(part).text:
                return True
        return False

    def _find(self, loop: Loop, before: list[Loop]) -> None:
        """Add what the pass computes, of expressions within each other the outer one, that one of those before has."""
        taken: Node | None = None
        for node in self._computations(loop):
            if taken is not None and inside(node, taken):
                continue
            reading = self._reading(node, loop)
            if reading is None:
                continue
            for earlier in before:
                first = self._computed(reading, earlier) if self._holds(earlier, loop, node, reading) else None
                value = self._value(first, earlier) if first is not None else None
                if value is not None:
                    value.again.append((node, loop, reading))
                    taken = node
                    break

    def _reading(self, node: Node, loop: Loop) -> _Reading | None:
        """None for what is not worth a register, or not understood."""
        if kind(self.code, node) != "float":
            return None
        try:
            return _Reader(self, loop).read(node) if self._is_worth_it(node, loop) else None
        except Unsupported:
            return None

    def _computed(self, reading: _Reading, loop: Loop) -> Node | None:
        """Where a pass computes the same for all of its elements."""
        for node in self._computations(loop):
            mine = self._reading(node, loop)
            if mine is not None and mine.text == reading.text and self._always(node, loop, mine):
                return node
        return None

    def _value(self, first: Node, loop: Loop) -> _Value | None:
        for value in self.values:
            if same(value.first, first):
                return value
            if inside(value.first, first) or inside(first, value.first):
                return None  # a part of another value
        reading = self._reading(first, loop)
        assert reading is not None
        self.values.append(_Value(first, loop, reading))
        return self.values[-1]

    def _always(self, node: Node, loop: Loop, reading: _Reading) -> bool:
        """Whether the pass does it for every one of its elements, once for each turn of the reading's lanes."""
        _, consequence = self._guarded(loop)
        if any(True for _ in self.source.walk(loop.node, "break_statement", "continue_statement", "return_statement")):
            return False
        here = node
        while not same(here, consequence):
            parent = here.parent
            if parent is None:
                return False
            if parent.type == "for_statement":
                lane = same(parent.child_by_field_name("body"), here)
                if not lane or not any(same(parent, o.node) for o in reading.lanes):
                    return False
            elif (
                (parent.type == "call_expression" and _called(self.source, parent) in self.code.macros)
                or parent.type not in _STRAIGHT
                or self.source.of(parent.child_by_field_name("operator")) in {"&&", "||"}
            ):
                return False
            here = parent
        return True

    # What may have changed.

    def _holds(self, earlier: Loop, later: Loop, node: Node, reading: _Reading) -> bool:
        """Whether an expression of the later pass means what it would have meant in the earlier one."""
        conditions = [_Reader(self, loop).read(self._guarded(loop)[0]) for loop in (earlier, later)]
        if conditions[0].text != conditions[1].text:
            return False
        made_of = reading.outside | set(reading.arrays) | conditions[1].outside | set(conditions[1].arrays)
        for lvalue, where in self.changes:
            between = earlier.node.start_byte <= lvalue.start_byte < later.node.end_byte
            if between and where in made_of and not self._is_done_with(lvalue, later, node, reading):
                return False
        return True

    def _is_done_with(self, lvalue: Node, loop: Loop, node: Node, reading: _Reading) -> bool:
        """Whether the pass assigns to the very element of which the expression was before that."""
        if not inside(lvalue, loop.node):
            return False
        parent = lvalue.parent
        right = parent.child_by_field_name("right") if parent is not None else None
        plain = parent is not None and parent.type == "assignment_expression" and len(reading.elements) == 1
        if not plain or right is None or (lvalue.start_byte < node.end_byte and not inside(node, right)):
            return False
        mine = _Reader(self, loop).read(lvalue)
        own = ["@item", *(f"@lane{n}<" for n in range(len(reading.lanes)))]
        return reading.elements == {mine.text} and all(part in mine.text for part in own)

    def _lvalues(self, node: Node) -> Iterator[Node]:
        """What is assigned to, or lent to somebody who may do so."""
        kinds = (
            "assignment_expression",
            "update_expression",
            "pointer_expression",
            "call_expression",
            "init_declarator",
        )
        for here in self.source.walk(node, *kinds):
            if here.type == "call_expression":
                yield from self._lent(here)
            elif here.type == "init_declarator":
                declarator, value = here.child_by_field_name("declarator"), here.child_by_field_name("value")
                if declarator is not None and declarator.type == "pointer_declarator" and value is not None:
                    yield value  # an array may have become a pointer
            elif here.type != "pointer_expression" or (
                self.source.of(here.children[0]) == "&" and not self._is_read(here)
            ):
                target = here.child_by_field_name("left" if here.type == "assignment_expression" else "argument")
                if target is not None:
                    yield target

    def _is_read(self, address: Node) -> bool:
        """Whether all that happens to `&x` is that a helper reads there."""
        listed = address.parent
        call = listed.parent if listed is not None and listed.type == "argument_list" else None
        if call is None or call.type != "call_expression":
            return False
        arguments = [c for c in listed.named_children if c.type != "comment"] if listed is not None else []
        effects = self.code.pointer_effects(_called(self.source, call), len(arguments))
        return any(same(a, address) and e == "r" for a, e in zip(arguments, effects, strict=True))

    def _lent(self, call: Node) -> Iterator[Node]:
        """Arguments that a function may change: references, and arrays, which it gets as pointers."""
        name, listed = _called(self.source, call), call.child_by_field_name("arguments")
        held = name == "hold_packed" and HOLD in self.source.text
        if held or (name in _PURE and name not in self.code.overloads) or _cast_to(self.code, call) is not None:
            return
        for argument in listed.named_children if listed is not None else []:
            if self.code.lends(call, argument)[0] or self._may_be_array(argument):
                yield argument

    def _may_be_array(self, node: Node) -> bool:
        """Whether it is an array, one of an array of arrays, or a field of an array's element."""
        steps, here = 0, node
        while here.type == "subscript_expression" and (argument := here.child_by_field_name("argument")) is not None:
            steps, here = steps + 1, argument
        if here.type == "field_expression":
            found = self._root(here) if steps == 0 else None
            return found is not None and _is_array(found)
        found = self.code.definition(here) if here.type == "identifier" else None
        return found is not None and steps < _dimensions(found)

    def _root(self, lvalue: Node) -> Definition | None:
        """The variable that it is a part of, references seen through."""
        here: Node | None = lvalue
        while here is not None and here.type != "identifier":
            if here.type == "parenthesized_expression":
                here = here.named_children[0]
            elif here.type in {"subscript_expression", "field_expression", "pointer_expression"}:
                here = here.child_by_field_name("argument")
            else:
                return None
        found = self.code.definition(here) if here is not None else None
        if found is not None and found.value is not None and _is_reference(found):
            return self._root(found.value)
        return found

    def is_constant(self, found: Definition) -> bool:
        return all(where != found.where for _, where in self.changes)

    # What is written.

    def write(self, edits: Edits) -> None:
        source = self.source
        kept = self.code.fresh("kKept", "kValuesKept")
        self._name_values()
        top = min((value.loop for value in self.values), key=lambda loop: loop.node.start_byte)
        indent = source.indent(top.node)
        lines, freed = [], self._freed()
        for value in self.values:
            edits_of = "".join(f"[{source.of(lane.bound_node)}]" for lane in value.reading.lanes)
            lines.append(f"float {value.name}[{self.items}]{edits_of};")
            self._write_first(edits, value)
            for node, loop, reading in value.again:
                again = f"{kept} ? {_slot(value, loop, reading)} : {source.of(node)}"
                edits.replace(node, again if _stands_alone(node) else f"({again})")
        sizes = [
            " + ".join(f"sizeof({n}[0])" for n in names) or "0" for names in (freed, [v.name for v in self.values])
        ]
        lines.append(f"constexpr bool {kept} = row_has_room<{self.items}, {', '.join([self.bytes, *sizes])}>;")
        pragma = top.node.prev_named_sibling
        at = pragma if pragma is not None and pragma.type == "preproc_call" else top.node
        start = source.data.rfind(b"\n", 0, at.start_byte) + 1
        edits.insert(start, "".join(f"{indent}{line}\n" for line in lines))
        for hold in (hold for holds in freed.values() for hold in holds):
            edits.insert(hold.start_byte, f"if constexpr (!{kept}) ")

    def _name_values(self) -> None:
        taken = self.code.names()
        for value in self.values:
            declared = self._declared(value)
            function = _called(self.source, value.first) if value.first.type == "call_expression" else ""
            stem = declared or function.split("::")[-1].strip("_") or "value"
            value.name = next(n for n in (f"{stem}_row", *(f"{stem}_row_{i}" for i in range(2, 99))) if n not in taken)
            taken.add(value.name)

    def _declared(self, value: _Value) -> str:
        """The variable that the value is when it is first computed, "" for none."""
        parent = value.first.parent
        if parent is None or parent.type != "init_declarator" or parent.parent is None:
            return ""
        name, declaration = parent.child_by_field_name("declarator"), parent.parent
        alone = declaration.type == "declaration" and len(declaration.children_by_field_name("declarator")) == 1
        is_float = self.source.of(declaration.child_by_field_name("type")) in {"float", "auto"}
        return self.source.of(name) if alone and is_float and name is not None and name.type == "identifier" else ""

    def _write_first(self, edits: Edits, value: _Value) -> None:
        source, first = self.source, value.first
        statement = _statement(first)
        slot, declared, indent = (
            _slot(value, value.loop, value.reading),
            self._declared(value),
            source.indent(statement),
        )
        if declared:
            edits.insert(statement.end_byte, f"\n{indent}{slot} = {declared};")
            return
        parent, line = statement.parent, f"{slot} = {source.of(first)};"
        if parent is None or (statement.type != "expression_statement" and parent.type != "compound_statement"):
            raise Unsupported("a value without a statement of its own")
        edits.replace(first, slot)
        if parent.type == "compound_statement":
            edits.insert(statement.start_byte, f"{line}\n{indent}")
            return
        outer, unit = source.indent(parent), source.unit(parent)
        edits.insert(statement.start_byte, f"{{\n{outer}{unit}{line}\n{outer}{unit}")
        edits.insert(statement.end_byte, f"\n{outer}}}")

    def _freed(self) -> dict[str, list[Node]]:
        """Rows that nobody wants any more where the values are kept, with what holds them in registers nonetheless."""
        freed: dict[str, list[Node]] = {}
        replaced = [node for value in self.values for node, *_ in value.again]
        rows = {where: row for value in self.values for where, row in value.reading.arrays.items()}
        for where, row in rows.items():
            behind = max(v.loop.node.end_byte for v in self.values if where in v.reading.arrays)
            uses = [use for use in self._uses(row) if use.start_byte > behind]
            if self._is_row(row) and all(self._is_spent(use, replaced) for use in uses):
                held = [_statement(use) for use in uses]
                freed[row.name] = [s for s in held if s.type == "expression_statement" and self._is_hold(s)]
        return freed

    def _is_row(self, found: Definition) -> bool:
        size = found.declarator.child_by_field_name("size") if found.declarator is not None else None
        return self.source.of(size) == self.items

    def _uses(self, found: Definition) -> list[Node]:
        named = [n for n in self.source.walk(self.kernel.body, "identifier") if self.source.of(n) == found.name]
        return [n for n in named if (d := self.code.definition(n)) is not None and d.where == found.where]

    def _is_hold(self, statement: Node) -> bool:
        call = statement.named_children[0] if statement.named_children else statement
        return call.type == "call_expression" and _called(self.source, call) == "hold_packed"

    def _is_spent(self, use: Node, replaced: list[Node]) -> bool:
        """Whether a name only stands where a value that is kept is computed again, in the end."""
        if any(inside(use, node) for node in replaced):
            return True
        statement = _statement(use)
        if statement.type == "expression_statement":
            return self._is_hold(statement)
        declarators = statement.children_by_field_name("declarator")
        name = declared_name(declarators[0]) if statement.type == "declaration" and len(declarators) == 1 else None
        if name is None or inside(use, name):
            return False
        found = self._uses(Definition(self.source.of(name), "local", statement, declarators[0], None))
        return bool(found) and all(self._is_spent(n, replaced) for n in found)


class _Reader:
    """Reads an expression of a pass: the same text for whatever is the same in another pass, wherever its names lead."""

    def __init__(self, passes: _Passes, loop: Loop) -> None:
        self.passes, self.loop, self.code, self.source = passes, loop, passes.code, passes.source
        self.found = _Reading("", {}, set(), [], set())

    def read(self, node: Node) -> _Reading:
        self.found.text = self._text(node)
        return self.found

    def _text(self, node: Node) -> str:
        of, part = self.source.of, node.child_by_field_name
        match node.type:
            case "parenthesized_expression" if node.named_child_count == 1:
                return self._text(node.named_children[0])
            case "number_literal" | "true" | "false":
                return of(node)
            case "identifier":
                return self._name(node)
            case "unary_expression" if of(node.children[0]) in {"-", "+", "!", "~"}:
                return f"{of(node.children[0])}({self._text(node.children[-1])})"
            case "cast_expression" if (value := part("value")) is not None:
                return self._cast(of(part("type")), value)
            case "call_expression":
                return self._call(node)
            case "field_expression" | "subscript_expression" if (argument := part("argument")) is not None:
                if of(argument) in COORDINATES:
                    return of(node)
                if (place := self._place(node)) is not None:
                    self.found.elements.add(place)
                    return place
                if node.type == "field_expression" and of(node.children[1]) == ".":
                    return f"{self._text(argument)}.{of(part('field'))}"
            case "binary_expression" | "conditional_expression":
                operands = [self._text(c) for c in node.named_children if c.type != "comment"]
                return f"({of(part('operator')) or '?'} {', '.join(operands)})"
        raise Unsupported(f"a {node.type}")

    def _place(self, node: Node) -> str | None:
        """`array[i].field[k]`, None for a part of something else."""
        here: Node | None = node
        steps = []
        while here is not None and here.type in {
            "subscript_expression",
            "field_expression",
            "parenthesized_expression",
        }:
            if here.type == "parenthesized_expression":
                here = here.named_children[0]
                continue
            if here.type == "field_expression":
                if self.source.of(here.children[1]) != ".":
                    return None
                steps.append("." + self.source.of(here.child_by_field_name("field")))
            else:
                indices = here.child_by_field_name("indices")
                if indices is None or indices.named_child_count != 1:
                    return None
                steps.append(f"[{self._text(indices.named_children[0])}]")
            here = here.child_by_field_name("argument")
        found = self.code.definition(here) if here is not None and here.type == "identifier" else None
        if found is None or found.kind != "local":
            return None
        behind = "".join(reversed(steps))
        if _is_reference(found) and found.value is not None and inside(found.declaration, self.loop.node):
            inner = self._place(found.value) or self._array(found.value)
            return None if inner is None else inner + behind
        array = self._array(here) if here is not None else None
        return None if array is None else array + behind

    def _array(self, node: Node) -> str | None:
        """The name of an array of the thread or block that is only ever used by its elements, and has these inside."""
        found = self.code.definition(node) if node.type == "identifier" else None
        if found is None or found.kind != "local" or not _is_array(found) or inside(found.declaration, self.loop.node):
            return None
        words = {self.source.of(c) for c in found.declaration.children}
        if words & {"static", "extern", "volatile"} or self._has_pointers(found):
            return None
        for use in self.passes._uses(found):
            parent = use.parent
            if parent is None or parent.type not in {
                "array_declarator", "subscript_expression", "argument_list", "sizeof_expression",
            }:  # fmt: skip
                return None
        self.found.arrays[found.where] = found
        return f"{found.name}@{found.where}"

    def _has_pointers(self, found: Definition) -> bool:
        """Whether the elements are structs of the file that lead elsewhere."""
        name = self.source.of(found.declaration.child_by_field_name("type")).split("<")[0]
        return any(
            member.type == "pointer_declarator"
            for struct in self.source.walk(None, "struct_specifier", "class_specifier")
            if self.source.of(struct.child_by_field_name("name")) == name
            for member in self.source.walk(struct, "pointer_declarator")
        )

    def _cast(self, type_: str, value: Node) -> str:
        if "*" in type_ or "&" in type_:
            raise Unsupported("a pointer")
        type_ = type_.removeprefix("const ").strip()
        if type_ == "auto" or (type_ == "float" and kind(self.code, value) == "float"):
            return self._text(value)
        return f"<{type_}>({self._text(value)})"

    def _call(self, node: Node) -> str:
        listed, name = node.child_by_field_name("arguments"), _called(self.source, node)
        arguments = [c for c in listed.named_children if c.type != "comment"] if listed is not None else []
        to = _cast_to(self.code, node)
        if to is not None and len(arguments) == 1:
            return self._cast(to, arguments[0])
        known = self._is_pure(name, set()) if name in self.code.overloads else name in _PURE
        if not known or name in self.code.macros:
            raise Unsupported(f"{name} is called")
        parts = []
        for argument in arguments:
            address = argument.type == "pointer_expression" and self.source.of(argument.children[0]) == "&"
            target = argument.child_by_field_name("argument") if address and self.passes._is_read(argument) else None
            parts.append(self._text(argument) if target is None else "&" + self._text(target))
        whole = self.source.of(node.child_by_field_name("function")).removeprefix("std::")
        return f"{whole}({', '.join(parts)})"

    def _is_pure(self, name: str, seen: set[str]) -> bool:
        """Whether a function of the file only computes: what it assigns to is its own, and nothing else can change it."""
        seen.add(name)
        for function in self.code.overloads[name]:
            for node in self.source.walk(function, "asm_statement", "gnu_asm_expression", "lambda_expression"):
                parts = {c.type for c in node.children}
                if node.type != "gnu_asm_expression" or parts & {"gnu_asm_qualifier", "gnu_asm_clobber_list"}:
                    return False
            body = function.child_by_field_name("body")
            if body is None or _QUALIFIERS & {
                self.source.of(c) for d in self.source.walk(body, "declaration") for c in d.children
            }:
                return False
            for lvalue in self.passes._lvalues(body):
                found = self.passes._root(lvalue) if lvalue.type in {"identifier", "field_expression"} else None
                if found is None or found.kind not in {"local", "loop"} or _is_reference(found):
                    return False
            for node in self.source.walk(body, "identifier"):
                found = self.code.definition(node)
                if found is not None and found.kind == "global" and not _is_fixed(self.source, found):
                    return False
            for call in self.source.walk(body, "call_expression"):
                inner = _called(self.source, call)
                ours = inner in self.code.overloads
                if ours and inner not in seen and not self._is_pure(inner, seen):
                    return False
                if not ours and inner not in _PURE and _cast_to(self.code, call) is None:
                    return False
        return True

    def _name(self, node: Node) -> str:
        found, name = self.code.definition(node), self.source.of(node)
        if found is None and name.isupper():  # INFINITY and its like
            return name
        if found is None or (
            found.kind == "macro" and not _is_number(self.source.of(found.declaration.child_by_field_name("value")))
        ):
            raise Unsupported(f"{name} is not known")
        if found.kind in {"macro", "template"}:
            return name
        if found.kind == "global":
            if not _is_fixed(self.source, found):
                raise Unsupported(f"{name} may change")
            return name
        if found.kind == "loop":
            return self._counter(found)
        if inside(found.declaration, self.loop.node):
            return self._own(found)
        if _is_array(found) or _is_reference(found) or "volatile" in self.source.of(found.declaration).split():
            raise Unsupported(f"{name} is more than a number")
        self.found.outside.add(found.where)
        return f"{name}@{found.where}"

    def _counter(self, found: Definition) -> str:
        if found.where == self.loop.symbol.where:
            return "@item"
        lane = next((o for o in self.passes.kernel.loops if o.symbol.where == found.where), None)
        if lane is None or lane.start.value != 0 or lane.step.value != 1 or not inside(lane.node, self.loop.node):
            raise Unsupported("another loop")
        if not self._is_constant(lane.bound_node):
            raise Unsupported("a number of lanes that is only known at run time")
        if all(lane is not o for o in self.found.lanes):
            self.found.lanes.append(lane)
        at = next(n for n, o in enumerate(self.found.lanes) if o is lane)
        return f"@lane{at}<{self.source.of(lane.bound_node)}>"

    def _is_constant(self, bound: Node) -> bool:
        """Whether an array in front of the passes may be of that size."""
        for name in self.source.walk(bound, "identifier"):
            found = self.code.definition(name)
            if found is None or found.kind not in {"template", "macro", "global", "local"}:
                return False
            if found.kind in {"global", "local"}:
                words = {self.source.of(c) for c in found.declaration.children}
                if "constexpr" not in words or found.declaration.end_byte > self.passes.loops[0].node.start_byte:
                    return False
        return True

    def _own(self, found: Definition) -> str:
        """A variable of the pass: what it is set to."""
        if found.value is None or _is_array(found) or found.value.type in {"initializer_list", "argument_list"}:
            raise Unsupported(f"{found.name} has no value to begin with")
        kind_of = self.source.of(found.declaration.child_by_field_name("type"))
        if _is_reference(found) or (kind_of == self._element(found.value) and self.passes.is_constant(found)):
            return self._text(found.value)
        if found.declarator is not None and declared_name(found.declarator) is not None:
            plain = found.declarator.child_by_field_name("declarator")
            if plain is not None and plain.type == "identifier" and self.passes.is_constant(found):
                return self._cast(kind_of, found.value)
        raise Unsupported(f"{found.name} changes")

    def _element(self, node: Node) -> str:
        """The type of `array[i]`, "" for anything else."""
        argument = node.child_by_field_name("argument") if node.type == "subscript_expression" else None
        found = self.code.definition(argument) if argument is not None and argument.type == "identifier" else None
        one = found is not None and _dimensions(found) == 1
        return self.source.of(found.declaration.child_by_field_name("type")) if found is not None and one else ""


def _called(source: Source, call: Node) -> str:
    return source.of(call.child_by_field_name("function")).split("<")[0].removeprefix("std::")


def _cast_to(code: Code, call: Node) -> str | None:
    """The type of `static_cast<type>(x)`, `float(x)` and, of a template's parameter, `T(x)`."""
    function = call.child_by_field_name("function")
    text = code.source.of(function)
    if text.startswith("static_cast<"):
        return text[len("static_cast<") : -1].strip()
    if function is None or function.type == "primitive_type":
        return text or None
    found = code.definition(function) if function.type == "identifier" else None
    return text if found is not None and found.kind == "template" else None


def _inner(found: Definition) -> Node | None:
    declarator = found.declarator
    wrapped = declarator is not None and declarator.type == "init_declarator"
    return declarator.child_by_field_name("declarator") if wrapped and declarator is not None else declarator


def _dimensions(found: Definition) -> int:
    inner, count = _inner(found), 0
    while inner is not None and inner.type == "array_declarator":
        inner, count = inner.child_by_field_name("declarator"), count + 1
    return count


def _is_array(found: Definition) -> bool:
    return _dimensions(found) > 0


def _is_reference(found: Definition) -> bool:
    inner = _inner(found)
    return inner is not None and inner.type == "reference_declarator"


def _is_fixed(source: Source, found: Definition) -> bool:
    return bool({"const", "constexpr", "__constant__"} & {source.of(c) for c in found.declaration.children})


def _is_number(text: str) -> bool:
    try:
        float(text.strip().strip("()").rstrip("fFuUlL"))
    except ValueError:
        return False
    return True


def _statement(node: Node) -> Node:
    here = node
    while here.parent is not None and not here.type.endswith("_statement") and here.type != "declaration":
        here = here.parent
    return here


def _slot(value: _Value, loop: Loop, reading: _Reading) -> str:
    return f"{value.name}[{loop.name}]" + "".join(f"[{lane.name}]" for lane in reading.lanes)


def _stands_alone(node: Node) -> bool:
    """Whether `a ? b : c` may take its place as it is."""
    parent = node.parent
    if parent is not None and parent.type == "assignment_expression":
        return same(parent.child_by_field_name("right"), node)
    return parent is not None and parent.type in {"argument_list", "parenthesized_expression", "init_declarator"}
