"""What one iteration of a C++ loop reads, writes and carries: its body is read once, and so is every function of the file that it
calls (each overload of that name), with the caller's values for its parameters.

Raises Unsupported at the first thing that is not understood.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tree_sitter import Node

from nodes.rewrites.analysis.host_loops import canonical
from nodes.rewrites.analysis.host_source import (
    PURE,
    Function,
    arguments,
    enclosing_function,
    function_of,
    functions,
    host_code,
    is_known,
    may_be_one,
    vector_of,
)
from nodes.rewrites.analysis.kernels import Loop, use_of
from nodes.rewrites.syntax.algebra import Polynomial, Symbol
from nodes.rewrites.syntax.source import Source, Unsupported, inside
from nodes.rewrites.syntax.tree import children_of, field_of

SIZE = -2
"""Where parameters of the analysed function are said to be defined: those that are integers are sizes."""
_CASTS = frozenset({
    "static_cast", "reinterpret_cast", "const_cast", "int64_t", "int32_t", "int16_t", "int8_t", "uint64_t", "uint32_t", "uint16_t", "uint8_t", "int",
    "size_t", "long", "float", "double", "ptrdiff_t", "_Float16", "numeric_limits",
})  # fmt: skip
_WITHOUT_EFFECT = frozenset({
    "comment", "string_literal", "char_literal", "true", "false", "sizeof_expression", "type_descriptor", "qualified_identifier",
    "template_function", "static_assert_declaration", "type_definition", "alias_declaration", "number_literal", "identifier",
    "field_identifier", "continue_statement", "primitive_type", "type_identifier",
})  # fmt: skip
_ALL_PARTS = frozenset({
    "initializer_list", "argument_list", "condition_clause", "comma_expression", "expression_statement", "compound_statement",
    "if_statement", "else_clause", "parenthesized_expression", "cast_expression", "unary_expression", "binary_expression",
    "conditional_expression", "subscript_argument_list", "return_statement", "subscript_expression", "pointer_expression",
    "field_expression", "assignment_expression", "update_expression",
})  # fmt: skip
"""What has no effect but its parts', and perhaps one of its own behind them."""


@dataclass(frozen=True)
class Iteration:
    """A loop variable with its first and last value, None where that is not known."""

    symbol: Symbol
    low: Polynomial | None
    high: Polynomial | None
    step: int = 1
    """How far apart two values of it are at least."""


class Pointer(NamedTuple):
    """`offset` elements from the start of an array; None where the offset is not known."""

    root: str
    """The array's name, "" for what an iteration has of its own."""
    offset: Polynomial | None


@dataclass(frozen=True)
class Access:
    """One place that an iteration touches, as in a kernel (kernels.py), in words of the loop's function."""

    root: str
    offset: Polynomial | None
    writes: bool
    inner: tuple[Iteration, ...]
    """The loops around it inside the analysed one, outermost first."""
    node: Node
    call: Node | None
    """The outermost call inside the loop through which it happens."""


@dataclass(frozen=True)
class Carried:
    """An assignment, inside the loop, to a variable that lives outside of it."""

    name: str
    node: Node


@dataclass
class Effects:
    loop: Loop
    iteration: Iteration
    accesses: list[Access] = field(default_factory=list)
    carried: list[Carried] = field(default_factory=list)
    calls: set[str] = field(default_factory=set)
    inner_loops: list[Loop] = field(default_factory=list)
    """Loops of the same function inside this one."""
    called_loops: list[Node | None] = field(default_factory=list)
    """Loops in functions that it calls: the argument that is the loop's bound, None where it is no argument."""

    @property
    def written(self) -> set[str]:
        return {access.root for access in self.accesses if access.writes}


def effects(source: Source, loop: Loop) -> Effects:
    """What one iteration of `loop` does. Raises Unsupported naming the first thing that is not understood."""
    definition = enclosing_function(loop.node)
    function = function_of(source, definition) if definition is not None else None
    if function is None:
        raise Unsupported("the loop is in no function")
    found = _Reader(source, loop, function).effects
    touched = {access.root for access in found.accesses}
    for written in found.written:
        for other in touched - {written}:
            if may_be_one(source, function, written, other):
                raise Unsupported(f"a caller passes one array as {written} and as {other}")
    return found


def _refused(node: Node, why: str) -> Unsupported:
    return Unsupported(f"line {node.start_point[0] + 1}: {why}")


@dataclass
class _Frame:
    """A function whose statements are read."""

    own: Node
    """Where an iteration's own variables are declared: the loop's body, or the function that it calls."""
    given: dict[Symbol, Pointer | Polynomial | None]
    """What its parameters are."""
    changing: set[int] = field(default_factory=set)
    """Where variables are defined that change while it runs."""


class _Reader:
    def __init__(self, source: Source, loop: Loop, function: Function) -> None:
        self.source, self.code, self.functions = source, host_code(source), functions(source)
        self.inner: list[Iteration] = []
        self.frames = [_Frame(loop.body, {})]
        self.call: Node | None = None
        for each in function.parameters:
            size = Polynomial.symbol(Symbol(each.name, SIZE))
            self.frames[0].given[each.symbol] = Pointer(each.name, Polynomial()) if each.pointer else size
        self.frames[0].changing = self._changing(loop.body)
        self.effects = Effects(loop, self._iteration(loop))
        self.read(loop.body)

    @property
    def frame(self) -> _Frame:
        return self.frames[-1]

    # values

    def _changing(self, body: Node) -> set[int]:
        """Where the variables are defined that a body changes, but for counters of its loops."""
        found = set()
        for target in self.code.assigned(body):
            owner, definition = target.parent.parent, self.code.definition(target)
            counts = owner.type == "for_statement" and canonical(self.source, owner) is not None
            if definition is not None and not counts:
                found.add(definition.where)
        return found

    def settled(self, value: Polynomial) -> Polynomial | None:
        """In words of the analysed function: parameters of those that it calls are what they are given. None where the value is
        not known, or may change within an iteration."""
        return value.replaced(self._factor)

    def _factor(self, symbol: Symbol) -> Polynomial | None:
        if symbol in self.frame.given:
            known = self.frame.given[symbol]
            return known if isinstance(known, Polynomial) and symbol.where not in self.frame.changing else None
        if symbol.operator:
            operands = [self.settled(operand) for operand in symbol.operands]
            return None if None in operands else self.code.divided(None, symbol.operator, *operands)
        counts, own = any(symbol == iteration.symbol for iteration in self.inner), self.frame.own
        local = len(self.frames) > 1 and own.start_byte <= symbol.where < own.end_byte and not counts
        if local or symbol.where in self.frame.changing or not is_known(symbol):
            return None
        return Polynomial.symbol(symbol)

    def pointer(self, node: Node, value: Polynomial) -> Pointer:
        """Where an address is. Raises Unsupported where it is not known which array it is in."""
        base = self.code.pointer_base(value)
        if base is not None:
            start, offset = self._start(node, base), self.settled(value - Polynomial.symbol(base))
            known = start.offset is not None and offset is not None
            return start._replace(offset=start.offset + offset if known else None)
        place = value.only.node if value.only is not None else None
        target = field_of(place, "argument") if place is not None and is_address(self.source, place) else None
        own = self.code.variable(target)
        if (
            own is None
            or own.declarator is None
            or own.kind == "global"
            or self.code.element_of(Symbol("", node=target))
        ):
            raise _refused(node, f"{self.source.of(node)} is not a pointer to an array that is known")
        return self._array(own.name, own.declaration)

    def _start(self, node: Node, base: Symbol) -> Pointer:
        """What the pointer is that an address counts from."""
        if base in self.frame.given:
            given = self.frame.given[base]
            if not isinstance(given, Pointer) or base.where in self.frame.changing:
                raise _refused(node, f"{base.text} is no pointer that stays where it is")
            return given
        found = self.code.variable(base.node)
        if found is None or found.form.type == "pointer_declarator" or found.kind == "parameter":
            raise _refused(node, f"{base.text} is no pointer that stays where it is")
        return self._array(found.name, found.declaration)

    def _array(self, name: str, declaration: Node) -> Pointer:
        """An array, or a variable, which is an array of one."""
        own = len(self.frames) > 1 or inside(declaration, self.frame.own)
        return Pointer("" if own else name, None if own else Polynomial())

    def touch(self, node: Node, pointer: Pointer, *writes: bool) -> None:
        if pointer.root:
            around = tuple(self.inner)
            self.effects.accesses += [
                Access(pointer.root, pointer.offset, each, around, node, self.call) for each in writes
            ]

    # statements and expressions

    def read(self, node: Node) -> None:
        if node.type in _WITHOUT_EFFECT:
            return
        own = getattr(self, f"_{node.type}", None)
        if node.type in _ALL_PARTS:
            for child in node.named_children:
                self.read(child)
        elif own is None:
            raise _refused(node, f"a {node.type.replace('_', ' ')} is not understood")
        if own is not None:
            own(node)

    def _preproc_call(self, node: Node) -> None:
        if "#pragma" not in self.source.of(node):
            raise _refused(node, "a preprocessor line inside a loop")

    def _declaration(self, node: Node) -> None:
        if self.source.says(node, "static", "thread_local"):
            raise _refused(node, "a static variable")
        vector = vector_of(self.source.of(node, "type")) != ""
        for declarator in node.children_by_field_name("declarator"):
            value = field_of(declarator, "value")
            if value is not None:
                self.read(value)
                declarator = field_of(declarator, "declarator")
            for given in (value, *value.named_children) if vector and value is not None else ():
                if self.code.pointer_base(self.code.polynomial(given)) is not None:
                    raise _refused(node, "a vector of another array's elements")
            if vector and declarator.type == "function_declarator":  # `std::vector<float> v(n);` reads like one
                continue
            while declarator.type in {"array_declarator", "pointer_declarator"}:
                declarator = field_of(declarator, "declarator")
            if declarator.type != "identifier":
                raise _refused(node, f"a {declarator.type.replace('_', ' ')}")

    def _return_statement(self, node: Node) -> None:
        if len(self.frames) == 1:
            raise _refused(node, "leaves the loop")

    def _for_statement(self, node: Node) -> None:
        loop = canonical(self.source, node)
        if loop is None:
            raise _refused(node, "not a loop that counts upwards")
        for part in (loop.start_node, loop.bound_node, loop.step_node):
            if part is not None:
                self.read(part)
        if len(self.frames) == 1:
            self.effects.inner_loops.append(loop)
        else:
            bound = self.code.definition(loop.bound_node) if loop.bound_node.type == "identifier" else None
            given = bound is not None and bound.kind == "parameter" and len(self.frames) == 2
            self.effects.called_loops.append(self._argument(bound.declaration) if given else None)
        self.inner.append(self._iteration(loop))
        self.read(loop.body)
        self.inner.pop()

    def _argument(self, parameter: Node) -> Node | None:
        """What the outermost call gives for a parameter."""
        return dict(zip((n.id for n in children_of(parameter.parent)), arguments(self.call), strict=True))[parameter.id]

    def _iteration(self, loop: Loop) -> Iteration:
        low, end, step = map(self.settled, (loop.start, loop.bound, loop.step))
        size = step.value if step is not None else None
        # It stops a whole step before its end, where whole steps lead from 0 to the end.
        whole = low is not None and low.value == 0 and size is not None and size > 0
        whole = whole and end is not None and all(c % size == 0 for _, c in end.terms)
        before = 0 if loop.inclusive else size if whole else 1
        high = end - Polynomial.constant(before) if end is not None else None
        return Iteration(Symbol(loop.name, loop.symbol.where), low, high, max(1, size or 1))

    def _subscript_expression(self, node: Node) -> None:
        """`p[i]` or `*p`."""
        place, use = self.code.place_of(node), use_of(self.code, node)
        if place is None and is_address(self.source, node):
            return
        if place is None:
            raise _refused(node, "a subscript of several")
        pointer = self.pointer(node, place)
        if use is not None:
            reads, writes, _ = use
            self.touch(node, pointer, *[False] * reads, *[True] * writes)

    _pointer_expression = _subscript_expression

    def _field_expression(self, node: Node) -> None:
        holder = field_of(node, "argument")
        written = self.source.set_by(node) != ""
        if node.children[1].type == "->":
            self.touch(node, self.pointer(holder, self.code.polynomial(holder)), False, *[True] * written)
        elif holder.type == "identifier" and written:
            self._assigned(holder, node.parent)

    def _assignment_expression(self, node: Node) -> None:
        """`v = e`, or `++v`."""
        target = field_of(node, "left") or field_of(node, "argument")
        if target.type == "identifier":
            self._assigned(target, node)

    _update_expression = _assignment_expression

    def _assigned(self, name: Node, node: Node) -> None:
        text, found = self.source.of(name), self.code.definition(name)
        if found is None or found.kind in {"global", "macro", "template"}:
            raise _refused(node, f"writes {text}, a global")
        declarator = field_of(found.declarator, "declarator") or found.declarator
        if declarator.type == "array_declarator" or vector_of(self.source.of(found.declaration, "type")):
            raise _refused(node, f"writes {text} as a whole")
        if len(self.frames) == 1 and not inside(found.declaration, self.frame.own):
            self.effects.carried.append(Carried(text, node))

    # calls

    def _call_expression(self, node: Node) -> None:
        function, given = field_of(node, "function"), arguments(node)
        if function.type == "field_expression":
            raise _refused(function, f"calls {self.source.of(function)}, whose effects are unknown")
        name = self.source.of(function).partition("<")[0].removeprefix("::").removeprefix("std::")
        for argument in given:
            self.read(argument)
            if argument.type == "identifier" and self.code.lends(node, argument)[0]:
                self._assigned(argument, node)
        own = [f for f in self.functions.get(name, ()) if len(f.parameters) == len(given)]
        if own:
            self.effects.calls.add(name)
            self._enter(own, given, node)
        elif function.type != "parenthesized_expression" and name not in _CASTS:  # `(float)(x)` reads like a call
            self._library(name, given, node)

    def _enter(self, own: list[Function], given: list[Node], node: Node) -> None:
        if len(self.frames) > 8:
            raise _refused(node, "calls are nested too deeply, or recursive")
        self.call = node if len(self.frames) == 1 else self.call
        for function in own:
            values = {
                each.symbol: self._value(argument) for each, argument in zip(function.parameters, given, strict=True)
            }
            self.frames.append(_Frame(function.node, values, self._changing(function.body)))
            self.read(function.body)
            self.frames.pop()
        self.call = None if len(self.frames) == 1 else self.call

    def _value(self, argument: Node) -> Pointer | Polynomial | None:
        """What a parameter is given: an address, a number, or what is not known."""
        value = self.code.polynomial(argument)
        if self.code.pointer_base(value) is None and not is_address(self.source, argument):
            return self.settled(value)
        return self.pointer(argument, value)

    def _library(self, name: str, given: list[Node], node: Node) -> None:
        values = [self._value(argument) for argument in given]
        pointers = [value for value in values if isinstance(value, Pointer)]
        if name in {"memcpy", "__builtin_memcpy", "memmove"} and len(given) == 3:
            if len(pointers) != 2:
                raise _refused(node, f"memcpy of {self.source.of(node)}")
            for pointer, writes in zip(pointers, (True, False), strict=True):
                self.touch(node, pointer._replace(offset=None), writes)
            return
        self.effects.calls.add(name)
        if name.startswith("_mm"):
            self._intrinsic(name, pointers, node)
        elif name not in PURE:
            raise _refused(node, f"calls {name}, whose effects are unknown")
        elif pointers:
            raise _refused(node, f"{name} takes a pointer")

    def _intrinsic(self, name: str, pointers: list[Pointer], node: Node) -> None:
        """A vector instruction: those on memory touch up to as many elements of the pointer's type as their vector has."""
        words = name.strip("_").split("_")
        writes = bool({"store", "storeu", "stream", "maskstore"} & set(words))
        reads = bool({"load", "loadu", "lddqu", "maskload", "broadcast", "i32gather"} & set(words))
        if not pointers or name == "_mm_prefetch":
            return
        if len(pointers) != 1 or reads == writes:
            raise _refused(node, f"calls {name}, whose effects are unknown")
        self.touch(node, pointers[0]._replace(offset=None), writes)


def is_address(source: Source, node: Node | None) -> bool:
    """Whether it is `&v`."""
    return node is not None and node.type == "pointer_expression" and source.of(node.children[0]) == "&"
