"""Passes over a row in registers, as cache_row_in_registers writes them, and what expressions in them mean.

Two expressions of two passes compute the same where their readings have the same text and nothing that they are made of
changes in between, see `Passes.holds`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import Code, Definition, inside
from nodes.rewrites.analysis.indices import COORDINATES
from nodes.rewrites.analysis.kernels import Kernel, Loop
from nodes.rewrites.arithmetic.fast_math import kind
from nodes.rewrites.prelude import text_of
from nodes.rewrites.syntax.source import Source, Unsupported
from nodes.rewrites.syntax.tree import children_of, field_of, same, statements

DIVISIONS = {"__fdividef", "fdividef"}
EXPENSIVE = DIVISIONS | {
    "exp", "expf", "__expf", "exp2", "exp2f", "exp10f", "__exp10f", "expm1f", "log", "logf", "__logf", "log2f", "__log2f",
    "log10f", "__log10f", "log1pf", "pow", "powf", "__powf", "tanh", "tanhf", "sinhf", "coshf", "erf", "erff", "erfcf",
    "normcdff", "sinf", "cosf", "tanf", "__sinf", "__cosf", "__tanf", "atanf", "asinf", "acosf", "sqrt", "sqrtf", "rsqrt",
    "rsqrtf", "cbrtf", "__frcp_rn", "__fdiv_rn", "__fsqrt_rn", "__frsqrt_rn",
}  # fmt: skip
_PURE = EXPENSIVE | {
    "max", "min", "fmax", "fmin", "fmaxf", "fminf", "abs", "fabs", "fabsf", "fma", "fmaf", "__fmaf_rn", "__fmul_rn",
    "__fadd_rn", "__fsub_rn", "floorf", "ceilf", "rintf", "roundf", "truncf", "copysignf", "__half2float", "__float2half",
    "__bfloat162float", "__float2bfloat16", "__int2float_rn", "__saturatef",
}  # fmt: skip
"""CUDA's functions that only compute."""
_LEAPS = ("lambda_expression", "goto_statement", "labeled_statement", "asm_statement", "gnu_asm_expression")
_FOREIGN = {"static", "extern", "volatile", "__shared__", "__device__"}
_SCALARS = {"x", "y", "z", "w"}
"""Fields that are no arrays."""


@dataclass
class Reading:
    """What an expression of one pass means: its text with names seen through, and what these come from in the end."""

    text: str = ""
    arrays: dict[int, Definition] = field(default_factory=dict)
    """By where they are defined; rows in registers among them."""
    outside: set[int] = field(default_factory=set)
    """Where variables from outside of the pass are defined."""
    lanes: list[Loop] = field(default_factory=list)
    """The loops within the pass that it runs with."""
    places: set[tuple[str, ...]] = field(default_factory=set)
    """What it reads of arrays: the array, then index after index and field after field."""

    @property
    def by_item(self) -> bool:
        """Whether it differs from step to step of the row."""
        return "@item" in self.text


class Passes:
    """The passes of one kernel over rows in registers. Raises Unsupported where there are none, or nothing can be said."""

    def __init__(self, code: Code, kernel: Kernel) -> None:
        self.code, self.kernel, self.source = code, kernel, code.source
        self.items, self.bytes = self._bounds()
        loops = [
            loop for loop in kernel.loops
            if loop.start.value == 0 and loop.step.value == 1 and self.source.of(loop.bound_node) == self.items
        ]  # fmt: skip
        self.loops = [loop for loop in loops if same(loop.node.parent, loops[0].node.parent)]
        if self.source.has(kernel.body, *_LEAPS):
            raise Unsupported("a kernel that does more than one thing after another")

    def _bounds(self) -> tuple[str, str]:
        """How many steps a thread keeps, and the bytes of one, as cache_row_in_registers wrote them into the kernel's launch bounds."""
        bounds = self.kernel.launch_bounds
        for call in self.source.walk(bounds, "call_expression") if bounds is not None else ():
            if called(self.source, call) == "row_width":
                items, size = (self.source.of(argument) for argument in arguments(call))
                return items, size
        raise Unsupported("no rows in registers")

    def guarded(self, loop: Loop) -> tuple[Node, Node]:
        """The condition under which a pass has an element, and what it does then."""
        *before, last = statements(loop.body)
        condition, consequence = field_of(last, "condition"), field_of(last, "consequence")
        plain = last.type == "if_statement" and field_of(last, "alternative") is None
        if not plain or condition is None or consequence is None or any(s.type != "declaration" for s in before):
            raise Unsupported("another pass")
        return field_of(condition, "value") or condition, consequence

    def read(self, node: Node, loop: Loop) -> Reading:
        """Raises Unsupported for what is not understood, or may be something else when it is computed again."""
        return _Reader(self, loop).read(node)

    def is_float(self, node: Node, loop: Loop) -> bool:
        return _Reader(self, loop).is_float(node)

    # What changes.

    def holds(self, earlier: Loop, later: Loop, node: Node, reading: Reading) -> bool:
        """Whether an expression of the later pass means what it would have meant in the earlier one."""
        conditions = [self.read(self.guarded(loop)[0], loop) for loop in (earlier, later)]
        if conditions[0].text != conditions[1].text:
            return False
        made_of = reading.outside | set(reading.arrays) | conditions[1].outside | set(conditions[1].arrays)
        return not any(
            where in made_of
            and earlier.node.start_byte <= lvalue.start_byte < later.node.end_byte
            and not self._is_elsewhere(lvalue, later, node, reading)
            for lvalue, where in self.changes
        )

    def _is_elsewhere(self, lvalue: Node, loop: Loop, node: Node, reading: Reading) -> bool:
        """Whether a pass assigns to what the expression does not read: another field, or its very element afterwards."""
        parent = lvalue.parent
        around = next((o for o in self.loops if inside(lvalue, o.node)), None)
        if parent is None or parent.type != "assignment_expression" or around is None:
            return False
        places = self.read(lvalue, around).places
        if len(places) != 1:
            return False
        (place,) = places
        touched = {other for other in reading.places if not _differ(place, other)}
        right = field_of(parent, "right")
        later = lvalue.start_byte >= node.end_byte or (right is not None and inside(node, right))
        own = {"[@item]", *(f"[{_lane(self.source, reading.lanes, at)}]" for at in range(len(reading.lanes)))}
        return not touched or (around is loop and later and touched == {place} and own <= set(place))

    def is_constant(self, found: Definition) -> bool:
        return all(where != found.where for _, where in self.changes)

    @cached_property
    def changes(self) -> list[tuple[Node, int]]:
        """Everything that is assigned to, or may be, with where what it is part of is defined."""
        named = [(n, found.where) for n in self.lvalues(self.kernel.body) if (found := self.root(n)) is not None]
        return named + self._whole_arrays[0]

    @cached_property
    def _whole_arrays(self) -> tuple[list[tuple[Node, int]], set[int]]:
        """Where the kernel names an array as a whole, and so by a pointer: what functions get, who may change it, and
        what other pointers there are, by where the arrays are defined."""
        lent: list[tuple[Node, int]] = []
        escaped: set[int] = set()
        for use in self.source.walk(self.kernel.body, "identifier"):
            found, top = self.root(use), use
            if found is None or found.kind != "local" or not is_array(found):
                continue
            while top.parent is not None and top.parent.type in {
                "subscript_expression", "field_expression", "parenthesized_expression",
            } and not (top.parent.type == "subscript_expression" and not same(top.parent.children[0], top)):  # fmt: skip
                top = top.parent
            owner = top.parent
            declares = owner is None or owner.type in {"array_declarator", "reference_declarator", "sizeof_expression"}
            if self._rank(top) == 0 or declares or owner is None or self._binds(owner):
                continue
            call = owner.parent if owner.type == "argument_list" else None
            if call is None or call.type != "call_expression":
                escaped.add(found.where)
            elif not self._is_harmless(call):
                lent.append((top, found.where))
        return lent, escaped

    def _binds(self, owner: Node) -> bool:
        """Whether it is the declaration of a reference."""
        declarator = field_of(owner, "declarator") if owner.type == "init_declarator" else None
        return declarator is not None and declarator.type == "reference_declarator"

    def _rank(self, node: Node) -> int:
        """How many dimensions a part of an array still has; a field may have one."""
        argument = field_of(node, "argument")
        if node.type == "parenthesized_expression":
            return self._rank(node.named_children[0])
        if node.type == "field_expression":
            return 0 if self.source.of(node, "field") in _SCALARS else 1
        if node.type == "subscript_expression" and argument is not None:
            return max(self._rank(argument) - 1, 0)
        found = self.code.variable(node)
        if found is not None and found.value is not None and is_reference(found):
            return self._rank(found.value)
        return _dimensions(found) if found is not None else 0

    def may_escape(self, found: Definition) -> bool:
        return found.where in self._whole_arrays[1]

    def lvalues(self, node: Node) -> Iterator[Node]:
        """What is assigned to, whose address is taken by somebody who may write there, or that a function may change."""
        for here in self.source.walk(
            node, "assignment_expression", "update_expression", "pointer_expression", "call_expression"
        ):
            if here.type == "call_expression":
                if not self._is_harmless(here):
                    yield from (argument for argument in arguments(here) if self.code.lends(here, argument)[0])
                continue
            address = here.type == "pointer_expression"
            if address and (self.source.of(here.children[0]) != "&" or self.is_read(here)):
                continue
            target = field_of(here, "left" if here.type == "assignment_expression" else "argument")
            if target is not None:
                yield target

    def is_read(self, address: Node) -> bool:
        """Whether all that happens to `&x` is that a function of the file reads there."""
        listed = address.parent
        call = listed.parent if listed is not None and listed.type == "argument_list" else None
        if call is None or call.type != "call_expression":
            return False
        given = arguments(call)
        effects = self.code.pointer_effects(called(self.source, call), len(given))
        return any(same(argument, address) and effect == "r" for argument, effect in zip(given, effects, strict=True))

    def _is_harmless(self, call: Node) -> bool:
        """Whether a call leaves its arguments as they are: a conversion, a function that only computes, hold_packed."""
        name = called(self.source, call)
        held = name == "hold_packed" and text_of("hold_packed") in self.source.text
        return held or (name in _PURE and name not in self.code.overloads) or cast_to(self.code, call) is not None

    def root(self, lvalue: Node) -> Definition | None:
        """The variable that it is a part of, references seen through."""
        here: Node | None = lvalue
        while here is not None and here.type != "identifier":
            if here.type == "parenthesized_expression":
                here = here.named_children[0]
            elif here.type in {"subscript_expression", "field_expression", "pointer_expression"}:
                here = field_of(here, "argument")
            else:
                return None
        found = self.code.definition(here) if here is not None else None
        if found is not None and found.value is not None and is_reference(found):
            return self.root(found.value)
        return found

    # What a function does.

    def is_pure(self, name: str, seen: set[str]) -> bool:
        """Whether a function of the file only computes: what it assigns to is its own, what it reads never changes."""
        seen.add(name)
        return all(self._only_computes(function, seen) for function in self.code.overloads[name])

    def _only_computes(self, function: Node, seen: set[str]) -> bool:
        source, code, body = self.source, self.code, field_of(function, "body")
        if body is None:
            return False
        for node in source.walk(body, "asm_statement", "gnu_asm_expression", "lambda_expression"):
            parts = {c.type for c in node.children}
            if node.type != "gnu_asm_expression" or parts & {"gnu_asm_qualifier", "gnu_asm_clobber_list"}:
                return False
        for declaration in source.walk(body, "declaration"):
            pointers = source.has(declaration, "pointer_declarator")
            if pointers or _FOREIGN & {source.of(c) for c in declaration.children}:
                return False
        for lvalue in self.lvalues(body):
            found = self.root(lvalue) if lvalue.type in {"identifier", "field_expression"} else None
            if found is None or found.kind not in {"local", "loop"} or is_reference(found):
                return False
        for node in source.walk(body, "identifier"):
            found = code.definition(node)
            if found is not None and found.kind == "global" and not is_fixed(source, found):
                return False
        for call in source.walk(body, "call_expression"):
            inner = called(source, call)
            if inner in code.overloads:
                if inner not in seen and not self.is_pure(inner, seen):
                    return False
            elif inner not in _PURE and cast_to(code, call) is None:
                return False
        return True


class _Reader:
    """Reads one expression of a pass."""

    def __init__(self, passes: Passes, loop: Loop) -> None:
        self.passes, self.loop, self.code, self.source = passes, loop, passes.code, passes.source
        self.found = Reading()

    def read(self, node: Node) -> Reading:
        self.found.text = self._text(node)
        return self.found

    def is_float(self, node: Node) -> bool:
        try:
            return self._type_of(node) == "float"
        except Unsupported:
            return False

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
                place = self._place(node)
                if place:
                    self.found.places.add(place)
                    return "".join(place)
                if node.type == "field_expression" and of(node.children[1]) == ".":
                    return f"{self._text(argument)}.{of(part('field'))}"
            case "binary_expression" | "conditional_expression":
                operands = [self._text(c) for c in node.named_children if c.type != "comment"]
                return f"({of(part('operator')) or '?'} {', '.join(operands)})"
        raise Unsupported(f"a {node.type}")

    def _place(self, node: Node) -> tuple[str, ...]:
        """The steps to `array[i].field[k]`; none for a part of something else."""
        if node.type == "parenthesized_expression":
            return self._place(node.named_children[0])
        argument = field_of(node, "argument")
        if node.type == "field_expression" and argument is not None:
            inner = self._place(argument) if self.source.of(node.children[1]) == "." else ()
            return inner and (*inner, "." + self.source.of(node, "field"))
        if node.type == "subscript_expression" and argument is not None:
            indices = field_of(node, "indices")
            if indices is None or indices.named_child_count != 1:
                return ()
            inner = self._place(argument)
            return inner and (*inner, f"[{self._text(indices.named_children[0])}]")
        found = self.code.variable(node)
        if found is None or found.kind != "local":
            return ()
        if is_reference(found) and found.value is not None and inside(found.declaration, self.loop.node):
            return self._place(found.value)
        return self._array(found)

    def _array(self, found: Definition) -> tuple[str, ...]:
        """An array of the thread or block that is only ever used by its elements, and has these inside."""
        words = {self.source.of(c) for c in found.declaration.children}
        outer = not inside(found.declaration, self.loop.node) and not words & {"static", "extern", "volatile"}
        if not is_array(found) or not outer or self.passes.may_escape(found) or self._has_pointers(found):
            return ()
        self.found.arrays[found.where] = found
        return (f"{found.name}@{found.where}",)

    def _has_pointers(self, found: Definition) -> bool:
        """Whether the elements are structs of the file that lead elsewhere."""
        name = _type(self.source, found).split("<")[0]
        return any(
            True
            for struct in self.source.walk(None, "struct_specifier", "class_specifier")
            if self.source.of(struct, "name") == name
            for _ in self.source.walk(struct, "pointer_declarator", "reference_declarator")
        )

    def _cast(self, type_: str, value: Node) -> str:
        if "*" in type_ or "&" in type_:
            raise Unsupported("a pointer")
        type_ = type_.removeprefix("const ").strip()
        if type_ in {"auto", self._type_of(value)}:
            return self._text(value)
        return f"<{type_}>({self._text(value)})"

    def _type_of(self, node: Node) -> str:
        """`float` where it is one, or the type of an element of an array; "" where that is not known."""
        if kind(self.code, node) == "float":
            return "float"
        if node.type in {"parenthesized_expression", "unary_expression"}:
            return self._type_of(node.named_children[-1])
        if node.type == "binary_expression" and self.source.of(node, "operator") in {*"+-*/"}:
            sides = [side for f in ("left", "right") if (side := field_of(node, f)) is not None]
            types = {"int" if kind(self.code, side) == "int" else self._type_of(side) for side in sides}
            return "float" if types in ({"float"}, {"float", "int"}) else ""
        found = self.passes.root(node) if node.type in {"identifier", "subscript_expression"} else None
        steps = self._place(node) if found is not None else ()
        if found is None or len(steps) < 2:
            return ""
        within, whole = steps[1 + _dimensions(found) :], _type(self.source, found)
        return self._type_in(whole, within) if within else whole

    def _type_in(self, pack: str, steps: tuple[str, ...]) -> str:
        """The type of `.at[k]` of a struct of the file that has a template's first parameter for all its fields' type."""
        name, _, given = pack.partition("<")
        for struct in self.source.walk(None, "struct_specifier"):
            template, members = struct.parent, field_of(struct, "body")
            listed = field_of(template, "parameters")
            if self.source.of(struct, "name") != name or members is None or listed is None:
                continue
            first, fields = (
                listed.named_children[0],
                [c for c in members.named_children if c.type == "field_declaration"],
            )
            types = {self.source.of(member, "type") for member in fields}
            if len(steps) == 2 and types == {self.source.of(first.named_children[-1])}:
                return given.removesuffix(">").split(",")[0].strip()
        return ""

    def _call(self, node: Node) -> str:
        name, given = called(self.source, node), arguments(node)
        to = cast_to(self.code, node)
        if to is not None and len(given) == 1:
            return self._cast(to, given[0])
        known = self.passes.is_pure(name, set()) if name in self.code.overloads else name in _PURE
        if not known or name in self.code.macros:
            raise Unsupported(f"{name} is called")
        parts = []
        for argument in given:
            address = argument.type == "pointer_expression" and self.source.of(argument.children[0]) == "&"
            target = field_of(argument, "argument") if address and self.passes.is_read(argument) else None
            parts.append(self._text(argument) if target is None else "&" + self._text(target))
        whole = self.source.of(node, "function").removeprefix("std::")
        return f"{whole}({', '.join(parts)})"

    def _name(self, node: Node) -> str:
        found, name = self.code.definition(node), self.source.of(node)
        if found is None and name.isupper():  # INFINITY and its like
            return name
        if found is None:
            raise Unsupported(f"{name} is not known")
        if found.kind == "macro" and not _is_number(self.source.of(found.declaration, "value")):
            raise Unsupported(f"{name} is no number")
        if found.kind == "global" and not is_fixed(self.source, found):
            raise Unsupported(f"{name} may change")
        if found.kind in {"macro", "template", "global"}:
            return name
        if found.kind == "loop":
            return self._counter(found)
        if inside(found.declaration, self.loop.node):
            return self._own(found)
        if is_array(found) or is_reference(found) or "volatile" in self.source.of(found.declaration).split():
            raise Unsupported(f"{name} is more than a number")
        self.found.outside.add(found.where)
        return f"{name}@{found.where}"

    def _own(self, found: Definition) -> str:
        """A variable of the pass: what it is set to."""
        if found.value is None or found.value.type in {"initializer_list", "argument_list"}:
            raise Unsupported(f"{found.name} has no value to begin with")
        if is_reference(found):
            return self._text(found.value)
        declarator = _declarator(found)
        if declarator is None or declarator.type != "identifier" or not self.passes.is_constant(found):
            raise Unsupported(f"{found.name} changes")
        return self._cast(_type(self.source, found), found.value)

    def _counter(self, found: Definition) -> str:
        if found.where == self.loop.symbol.where:
            return "@item"
        lane = next((o for o in self.passes.kernel.loops if o.symbol.where == found.where), None)
        if lane is None or lane.start.value != 0 or lane.step.value != 1 or not inside(lane.node, self.loop.node):
            raise Unsupported("another loop")
        if not self.code.is_constant(lane.bound_node, self.passes.loops[0].node):
            raise Unsupported("a number of lanes that is only known at run time")
        if all(lane is not o for o in self.found.lanes):
            self.found.lanes.append(lane)
        return _lane(self.source, self.found.lanes, next(n for n, o in enumerate(self.found.lanes) if o is lane))


def arguments(call: Node) -> list[Node]:
    return children_of(call, "arguments")


def called(source: Source, call: Node) -> str:
    return source.of(call, "function").split("<")[0].removeprefix("std::")


def cast_to(code: Code, call: Node) -> str | None:
    """The type of `static_cast<type>(x)`, `float(x)` and, of a template's parameter, `T(x)`."""
    function = field_of(call, "function")
    text = code.source.of(function)
    if text.startswith("static_cast<"):
        return text[len("static_cast<") : -1].strip()
    if function is None or function.type == "primitive_type":
        return text or None
    found = code.variable(function)
    return text if found is not None and found.kind == "template" else None


def is_array(found: Definition) -> bool:
    return _dimensions(found) > 0


def is_reference(found: Definition) -> bool:
    declarator = _declarator(found)
    return declarator is not None and declarator.type == "reference_declarator"


def is_fixed(source: Source, found: Definition) -> bool:
    return bool({"const", "constexpr", "__constant__"} & {source.of(c) for c in found.declaration.children})


def _declarator(found: Definition) -> Node | None:
    """Without the value."""
    declarator = found.declarator
    wrapped = declarator is not None and declarator.type == "init_declarator"
    return field_of(declarator, "declarator") if wrapped and declarator is not None else declarator


def _dimensions(found: Definition) -> int:
    declarator, count = _declarator(found), 0
    while declarator is not None and declarator.type == "array_declarator":
        declarator, count = field_of(declarator, "declarator"), count + 1
    return count


def _type(source: Source, found: Definition) -> str:
    return source.of(found.declaration, "type")


def _lane(source: Source, lanes: list[Loop], at: int) -> str:
    return f"@lane{at}<{source.of(lanes[at].bound_node)}>"


def _differ(place: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether two places part at different fields, or are in different arrays."""
    for a, b in zip(place, other, strict=False):
        if a != b:
            return not (a.startswith("[") or b.startswith("["))
    return False


def _is_number(text: str) -> bool:
    try:
        float(text.strip().strip("()").rstrip("fFuUlL"))
    except ValueError:
        return False
    return True
