"""Passes over a row in registers, as cache_row_in_registers writes them, and the values that expressions in them have.

The kernel's statements are gone through in order, as one thread does them, and every expression gets a value: two of one value
are the same number. What is not understood, a load from memory say, gets a value that nothing else has.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import Code, Definition
from nodes.rewrites.analysis.indices import COORDINATES
from nodes.rewrites.analysis.kernels import Kernel, Loop
from nodes.rewrites.arithmetic.fast_math import kind
from nodes.rewrites.prelude import text_of
from nodes.rewrites.syntax.match import bare
from nodes.rewrites.syntax.source import Source, Unsupported
from nodes.rewrites.syntax.tree import LOOPS, children_of, declared_name, field_of, same

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
_JUMPS = ("break_statement", "continue_statement", "return_statement")
_FOREIGN = {"static", "extern", "volatile", "__shared__", "__device__"}
"""Others may change such variables, too."""
_SCALARS = {".x", ".y", ".z", ".w"}
"""Fields that are no arrays."""
ITEM = "@item"


@dataclass(frozen=True)
class Value:
    """Of an expression. Two are equal where they are the same number at the same turns of the loops around."""

    text: str
    origins: frozenset[str] = field(default=frozenset(), compare=False)
    """The counters of the loops from turn to turn of which it differs, and the arrays that it was read from."""
    type: str = field(default="", compare=False)
    """`float` where it is one, or the type of an element of an array; "" where that is not known."""

    @property
    def by_item(self) -> bool:
        """Whether it differs from step to step of the row."""
        return ITEM in self.origins


@dataclass(frozen=True)
class Others:
    """Any index but this one."""

    index: Value


Place = tuple["str | Value | Others", ...]
"""A variable, and the way to a part of it: `x@12`, an index, `.at`, an index."""


@dataclass(frozen=True)
class Computed:
    """An expression as the kernel computes it."""

    node: Node
    value: Value
    under: frozenset[str]
    """The conditions that hold and the loops that turn where it is computed."""
    lanes: dict[str, Loop]
    """The loops within the pass, outer ones first, by their counters, that its value differs by."""

    def serves(self, later: Computed) -> bool:
        """Whether it has been computed, of the same value, wherever a later expression is."""
        return self.value == later.value and self.under <= later.under


@dataclass(frozen=True)
class _Write:
    place: Place
    value: Value
    under: frozenset[str]
    number: int


class Passes:
    """The passes of one kernel over rows in registers. Raises Unsupported where there are none, or nothing can be said."""

    def __init__(self, code: Code, kernel: Kernel) -> None:
        self.code, self.kernel, self.source = code, kernel, code.source
        self.items, self.bytes = self._bounds()
        loops = [loop for loop in kernel.loops if self._counts(loop, self.items)]
        self.loops = [loop for loop in loops if same(loop.node.parent, loops[0].node.parent)]
        if self.source.has(kernel.body, *_LEAPS):
            raise Unsupported("a kernel that does more than one thing after another")
        self.computed: dict[int, Computed] = {}
        """By the id of their nodes."""
        self.variables: dict[str, Definition] = {}
        """By what places call them."""
        self._names: dict[str, Value] = {}
        self._references: dict[int, Place | None] = {}
        self._escaped: set[str] = set()
        self._writes: list[_Write] = []
        self._under: tuple[str, ...] = ()
        self._turning: dict[str, Loop] = {}
        self._numbers = 0
        self._run(kernel.body)

    def _bounds(self) -> tuple[str, str]:
        """How many steps a thread keeps, and the bytes of one, as cache_row_in_registers wrote them into the kernel's launch bounds."""
        bounds = self.kernel.launch_bounds
        for call in self.source.walk(bounds, "call_expression") if bounds is not None else ():
            if called(self.source, call) == "row_width":
                items, size = (self.source.of(argument) for argument in arguments(call))
                return items, size
        raise Unsupported("no rows in registers")

    def _counts(self, loop: Loop, bound: str) -> bool:
        """Whether it is `for (i = 0; i < bound; ++i)`."""
        return loop.start.value == 0 and loop.step.value == 1 and self.source.of(loop.bound_node) == bound

    # Statements.

    def _run(self, node: Node | None) -> None:
        if node is None:
            return
        if node.type == "declaration":
            self._declare(node)
        elif node.type == "if_statement":
            condition = self.value(field_of(node, "condition", "value"))
            for holds, branch in (("", "consequence"), ("!", "alternative")):
                with self._where(holds + condition.text):
                    self._run(field_of(node, branch))
        elif node.type in LOOPS | {"switch_statement"}:
            self._loop(node)
        elif node.type.endswith(("statement", "clause")):
            for child in children_of(node):
                self._run(child)
        else:
            self.value(node)

    def _declare(self, node: Node) -> None:
        qualifiers = {self.source.of(c) for c in node.children}
        for declarator in node.children_by_field_name("declarator"):
            value = field_of(declarator, "value")
            found = Definition(self.source.of(declared_name(declarator)), "local", node, declarator, value)
            if is_reference(found):
                self._refer(found)
                continue
            name = f"{found.name}@{found.where}"
            self.variables[name] = found
            if qualifiers & _FOREIGN:
                self._escaped.add(name)
            given = self.value(value) if value is not None else self._new()
            listed = value is None or value.type in {"initializer_list", "argument_list"}
            self._store((name,), self._new() if listed else self._cast(self.source.of(node, "type"), given))

    def _refer(self, found: Definition) -> None:
        """Another name for a place. Where it is not known for which, anything may happen to what it is made of."""
        place = self._place(found.value) if found.value is not None else None
        self._references[found.where] = place
        for name in self.source.walk(found.value, "identifier") if place is None else ():
            self._escape(self._place(name))

    def _loop(self, node: Node) -> None:
        """What changes from turn to turn is found by a first turn, and not known at the beginning of any other."""
        loop, body = next((o for o in self.kernel.loops if same(o.node, node)), None), field_of(node, "body")
        counter = self._counter(loop) if loop is not None and not self.source.has(body, *_JUMPS) else None
        parts = [body]
        if counter is not None:
            self._store((f"{loop.name}@{loop.symbol.where}",), counter)
        elif node.type == "for_statement":
            self._run(field_of(node, "initializer"))
            parts += [field_of(node, "condition"), field_of(node, "update")]
        else:
            parts = children_of(node)
        around, before = self._turning, len(self._writes)
        self._turning = around | ({counter.text: loop} if counter is not None else {})
        with self._where(counter.text if counter is not None else self._new().text):
            self._turn(parts)
            written = dict.fromkeys(write.place for write in self._writes[before:])
            del self._writes[before:]
            for place in written:
                others = tuple(Others(step) if step == counter else step for step in place)
                self._store(others, self._new())
            self._turn(parts)
        self._turning = around
        for place in written:
            if counter not in place:
                self._store(place, self._new())

    def _turn(self, parts: list[Node | None]) -> None:
        for part in parts:
            self._run(part)

    def _counter(self, loop: Loop) -> Value | None:
        """Of a pass, or of a loop within one that turns the same number of times wherever it says so; None for another one."""
        bound = self.source.of(loop.bound_node)
        if not self._counts(loop, bound):
            return None
        name = ITEM if any(loop is o for o in self.loops) else f"@lane<{bound}>"
        if name != ITEM and not (ITEM in self._turning and self.code.is_constant(loop.bound_node, self.loops[0].node)):
            return None
        while name in self._turning:
            name += "'"
        return Value(name, frozenset({name}), "int")

    @contextmanager
    def _where(self, *conditions: str) -> Iterator[None]:
        around, self._under = self._under, (*self._under, *conditions)
        yield
        self._under = around

    # Variables.

    def _store(self, place: Place | None, value: Value) -> None:
        if place is not None:
            self._numbers += 1
            self._writes.append(_Write(place, value, frozenset(self._under), self._numbers))

    def _read(self, place: Place) -> Value:
        """What was written there last, or a part of it; what may have been written by several is one by the last of these."""
        root, rest = str(place[0]), self._type_of(place)
        origins = frozenset({root}).union(*(step.origins for step in place if isinstance(step, Value)))
        if root in self._escaped:
            return replace(self._new(), type=rest)
        for write in reversed(self._writes):
            if _differ(write.place, place):
                continue
            if place[: len(write.place)] == write.place and write.under <= set(self._under):
                found, steps = write.value, place[len(write.place) :]
                found = self._made(found.text + _text(steps), found, type_=rest) if steps else found
                return replace(found, origins=found.origins | origins)
            return replace(self._made(f"{_text(place)}#{write.number}"), origins=origins, type=rest)
        return replace(self._made(_text(place)), origins=origins, type=rest)

    def _escape(self, place: Place | None) -> None:
        """Somebody may change it at any time."""
        if place is not None:
            self._escaped.add(str(place[0]))

    def _place(self, node: Node) -> Place | None:
        """None for what lies in memory, or is no variable."""
        node = bare(node)
        if node.type == "field_expression":
            inner = self._place(field_of(node, "argument")) if self.source.of(node.children[1]) == "." else None
            return inner and (*inner, "." + self.source.of(node, "field"))
        if node.type == "subscript_expression":
            inner, (index, *others) = self._place(field_of(node, "argument")), children_of(node, "indices")
            at = self.value(index)
            return inner and (*inner, at) if not others else None
        found = self.code.variable(node)
        if found is None or found.kind not in {"local", "loop", "parameter"}:
            return None
        if is_reference(found):
            return self._references.get(found.where)
        declarator = _declarator(found)
        if declarator is not None and declarator.type == "pointer_declarator":
            return None
        name = f"{found.name}@{found.where}"
        self.variables.setdefault(name, found)
        return (name,)

    def _is_array(self, place: Place) -> bool:
        """Whether a place is an array, or may be one, and so its name a pointer."""
        found, last = self.variables[str(place[0])], place[-1]
        field_ = len(place) > 1 and isinstance(last, str) and last not in _SCALARS
        return field_ or len(place) - 1 < _dimensions(found)

    def _type_of(self, place: Place) -> str:
        found = self.variables[str(place[0])]
        within, whole = place[1 + _dimensions(found) :], self.source.of(found.declaration, "type")
        return self._type_in(whole, len(within)) if within else whole

    def _type_in(self, pack: str, steps: int) -> str:
        """The type of `.at[k]` of a struct of the file that has a template's first parameter for all its fields' type."""
        name, _, given = pack.partition("<")
        for struct in self.source.walk(None, "struct_specifier"):
            listed = children_of(struct.parent, "parameters")
            members = [c for c in children_of(struct, "body") if c.type == "field_declaration"]
            types = {self.source.of(member, "type") for member in members}
            if self.source.of(struct, "name") == name and steps == 2 and listed:
                own = types == {self.source.of(listed[0].named_children[-1])}
                return given.removesuffix(">").split(",")[0].strip() if own else ""
        return ""

    # Expressions.

    def _made(self, text: str, *parts: Value, type_: str = "") -> Value:
        """The value that is computed so, by a short name: values of values would soon be long."""
        whole = f"{text} {' '.join(part.text for part in parts)}"
        name = self._names.setdefault(whole, Value(f"%{len(self._names)}")).text
        return Value(name, frozenset().union(*(part.origins for part in parts)), type_)

    def _new(self) -> Value:
        """One that nothing else has, at this turn of the loops."""
        self._numbers += 1
        return Value(f"?{self._numbers}", frozenset(self._turning))

    def value(self, node: Node | None) -> Value:
        if node is None:
            return self._new()
        found = self._value(node)
        type_ = kind(self.code, node)
        found = replace(found, type=type_) if type_ in {"float", "int"} else found
        lanes = {name: loop for name, loop in self._turning.items() if name in found.origins - {ITEM}}
        self.computed[node.id] = Computed(node, found, frozenset(self._under), lanes)
        return found

    def _value(self, node: Node) -> Value:
        of, parts = self.source.of, children_of(node)
        operator = of(node, "operator")
        match node.type:
            case "parenthesized_expression" if len(parts) == 1:
                return self.value(parts[0])
            case "number_literal" | "true" | "false":
                return self._made(of(node))
            case "identifier":
                return self._name(node)
            case "unary_expression":
                return self._made(of(node.children[0]), self.value(node.children[-1]))
            case "cast_expression":
                return self._cast(of(node, "type"), self.value(field_of(node, "value")))
            case "call_expression":
                return self._call(node)
            case "field_expression" | "subscript_expression":
                return self._part(node)
            case "pointer_expression" if of(node.children[0]) == "&":
                self._escape(self._place(field_of(node, "argument")))
            case "binary_expression":
                left = self.value(field_of(node, "left"))
                short = {"&&": (left.text,), "||": ("!" + left.text,)}.get(operator, ())
                with self._where(*short):
                    right = self.value(field_of(node, "right"))
                types = {left.type, right.type}
                is_float = operator in {*"+-*/"} and "float" in types and types <= {"float", "int"}
                return self._made(operator, left, right, type_="float" if is_float else "")
            case "conditional_expression":
                asked, chosen = self.value(field_of(node, "condition")), []
                for holds, branch in (("", "consequence"), ("!", "alternative")):
                    with self._where(holds + asked.text):
                        chosen.append(self.value(field_of(node, branch)))
                return self._made("?", asked, *chosen)
            case "assignment_expression":
                left, value = field_of(node, "left"), self.value(field_of(node, "right"))
                value = value if operator == "=" else self._made(operator, self.value(left), value)
                self._store(self._place(left), value)
                return value
            case "update_expression":
                argument = field_of(node, "argument")
                self._store(self._place(argument), self._made(operator, self.value(argument)))
            case _:
                for part in parts:
                    self.value(part)
        return self._new()

    def _name(self, node: Node) -> Value:
        found, name = self.code.definition(node), self.source.of(node)
        if found is None:  # INFINITY and its like
            return self._made(name) if name.isupper() else self._new()
        if found.kind == "macro":
            return self._made(name) if _is_number(self.source.of(found.declaration, "value")) else self._new()
        if found.kind in {"template", "global"}:
            return self._made(name) if found.kind == "template" or is_fixed(self.source, found) else self._new()
        place = self._place(node)
        return self._part(node) if place is not None else self._new()

    def _part(self, node: Node) -> Value:
        """What a variable, or a part of one, holds."""
        argument = field_of(node, "argument")
        if self.source.of(argument) in COORDINATES:
            return self._made(self.source.of(node))
        place = self._place(node)
        if place is None:
            inner = self.value(argument)
            of_value = node.type == "field_expression" and self.source.of(node.children[1]) == "."
            return self._made("." + self.source.of(node, "field"), inner) if of_value else self._new()
        if self._is_array(place):
            self._escape(place)
        return self._read(place)

    def _cast(self, type_: str, value: Value) -> Value:
        type_ = type_.removeprefix("const ").strip()
        if "*" in type_ or "&" in type_:
            return self._new()
        return value if type_ in {"auto", value.type} else self._made(f"<{type_}>", value, type_=type_)

    def _call(self, node: Node) -> Value:
        """A function that is not known to leave its arguments alone may change those that it gets by reference."""
        name, given = called(self.source, node), arguments(node)
        to = cast_to(self.code, node)
        if to is not None and len(given) == 1:
            return self._cast(to, self.value(given[0]))
        macro = name in self.code.macros
        pure = not macro and (self.is_pure(name, set()) if name in self.code.overloads else name in _PURE)
        held = name == "hold_packed" and text_of("hold_packed") in self.source.text
        effects = self.code.pointer_effects(name, len(given))
        with self._where(*([self._new().text] if macro else [])):
            parts = [self._argument(argument, effect) for argument, effect in zip(given, effects, strict=True)]
        for argument in given:
            if not pure and not held and self.code.lends(node, argument)[0]:
                self._store(self._place(argument), self._new())
        function = field_of(node, "function")
        if function is not None and function.type == "field_expression":  # an object's
            self._store(self._place(field_of(function, "argument")), self._new())
        return self._made(self.source.of(function).removeprefix("std::"), *parts) if pure else self._new()

    def _argument(self, argument: Node, effect: str | None) -> Value:
        address = argument.type == "pointer_expression" and self.source.of(argument.children[0]) == "&"
        read = address and effect == "r"
        return self._made("&", self.value(field_of(argument, "argument"))) if read else self.value(argument)

    # What a function does.

    def is_pure(self, name: str, seen: set[str]) -> bool:
        """Whether a function of the file only computes: what it assigns to is its own, what it reads never changes."""
        seen.add(name)
        return all(self._only_computes(function, seen) for function in self.code.overloads[name])

    def _only_computes(self, function: Node, seen: set[str]) -> bool:
        source, code, body = self.source, self.code, field_of(function, "body")
        if body is None or source.has(body, "asm_statement", "lambda_expression"):
            return False
        for node in source.walk(body, "gnu_asm_expression"):
            if {c.type for c in node.children} & {"gnu_asm_qualifier", "gnu_asm_clobber_list"}:
                return False
        for declaration in source.walk(body, "declaration"):
            pointers = source.has(declaration, "pointer_declarator", "reference_declarator")
            if pointers or _FOREIGN & {source.of(c) for c in declaration.children}:
                return False
        changes = list(source.walk(body, "assignment_expression", "update_expression"))
        changed = [code.definition(target) for target in code.assigned(body)]
        if len(changed) < len(changes) or any(d is None or d.kind not in {"local", "loop"} for d in changed):
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


def _text(steps: Place) -> str:
    return "".join(
        step if isinstance(step, str) else f"[{step.text}]" for step in steps if not isinstance(step, Others)
    )


def _differ(place: Place, other: Place) -> bool:
    """Whether two places part at different fields, at an index and another one, or are in different variables."""
    a, b = next(((a, b) for a, b in zip(place, other, strict=False) if a != b), ("", None))
    return (isinstance(a, str) and isinstance(b, str)) or a == Others(b) or b == Others(a)


def _is_number(text: str) -> bool:
    try:
        float(text.strip().strip("()").rstrip("fFuUlL"))
    except ValueError:
        return False
    return True
