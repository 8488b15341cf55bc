"""What one iteration of a C++ loop reads, writes and carries: its body is read once, and so is every function of the file that it
calls (each overload of that name), with the caller's values for its parameters.

Raises Unsupported at the first thing that is not understood.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import Definition
from nodes.rewrites.analysis.host_source import (
    PURE,
    arguments,
    canonical,
    function_around,
    functions,
    host_code,
    is_known,
    may_be_one,
    vector_of,
)
from nodes.rewrites.analysis.kernels import Loop, use_of
from nodes.rewrites.syntax.algebra import Polynomial, Symbol
from nodes.rewrites.syntax.source import Source, Unsupported, inside
from nodes.rewrites.syntax.tree import declared_name, field_of

SIZE = -2
"""Where parameters of the analysed function are said to be defined: those that are integers are sizes."""
_CASTS = frozenset({
    "static_cast", "reinterpret_cast", "const_cast", "int64_t", "int32_t", "int16_t", "int8_t", "uint64_t", "uint32_t", "uint16_t", "uint8_t", "int",
    "size_t", "long", "float", "double", "ptrdiff_t", "_Float16", "numeric_limits",
})  # fmt: skip
_WITHOUT_EFFECT = frozenset({
    "comment", "true", "false", "sizeof_expression", "type_descriptor", "qualified_identifier", "template_function", "type_definition",
    "alias_declaration", "number_literal", "identifier", "field_identifier", "continue_statement", "primitive_type", "type_identifier", "preproc_call",
})  # fmt: skip
_ALL_PARTS = frozenset({
    "initializer_list", "argument_list", "condition_clause", "comma_expression", "expression_statement", "compound_statement",
    "if_statement", "else_clause", "parenthesized_expression", "cast_expression", "unary_expression", "binary_expression",
    "conditional_expression", "subscript_argument_list", "return_statement", "subscript_expression", "pointer_expression",
    "field_expression", "assignment_expression", "update_expression",
})  # fmt: skip
"""What has no effect but its parts', and perhaps one of its own behind them."""


class Iteration(NamedTuple):
    """A loop variable with its first and last value, None where that is not known."""

    symbol: Symbol
    low: Polynomial | None
    high: Polynomial | None


class Pointer(NamedTuple):
    """`offset` elements from the start of an array; None where the offset is not known."""

    root: str
    """The array's name, "" for what an iteration has of its own."""
    offset: Polynomial | None


class Access(NamedTuple):
    """One place that an iteration touches, as in a kernel (kernels.py), in words of the loop's function."""

    root: str
    offset: Polynomial | None
    writes: bool
    inner: tuple[Iteration, ...]
    """The loops around it inside the analysed one, outermost first."""
    node: Node
    call: Node | None
    """The outermost call inside the loop through which it happens."""


class Carried(NamedTuple):
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
    found, function = _Reader(source, loop).effects, function_around(source, loop.node)
    touched = {access.root for access in found.accesses}
    for written in found.written:
        for other in touched - {written}:
            if may_be_one(source, function, written, other):
                raise Unsupported(f"a caller passes one array as {written} and as {other}")
    return found


def refused(node: Node, why: str) -> Unsupported:
    return Unsupported(f"line {node.start_point[0] + 1}: {why}")


class _Reader:
    def __init__(self, source: Source, loop: Loop) -> None:
        self.source, self.code = source, host_code(source)
        self.given: dict[Symbol, Pointer | Polynomial | None] = {}
        """What the parameters are of the functions that are read."""
        self.passed: dict[int, Node] = {}
        """What the outermost call gives for parameters, by where they are defined."""
        for each in function_around(source, loop.node).parameters:
            size = Polynomial.symbol(Symbol(each.name, SIZE))
            self.given[each.symbol] = Pointer(each.name, Polynomial()) if each.behind else size
        self.inner: list[Iteration] = []
        self.own = [loop.body]
        """Where an iteration's own variables are declared: the loop's body, and the functions that it calls."""
        self.changing: set[int] = set()
        """Where variables are defined that change within an iteration."""
        self.call: Node | None = None
        self._changes(loop.body)
        self.effects = Effects(loop, self._iteration(loop))
        self.read(loop.body)

    # values

    def _changes(self, body: Node) -> None:
        found = map(self.code.definition, self.code.assigned(body))
        self.changing |= {definition.where for definition in found if definition is not None}

    def settled(self, value: Polynomial) -> Polynomial | None:
        """In words of the analysed function: parameters of those that it calls are what they are given. None where the value is
        not known, or may change within an iteration."""
        return value.replaced(self._factor)

    def _factor(self, symbol: Symbol) -> Polynomial | None:
        if any(symbol == iteration.symbol for iteration in self.inner):
            return Polynomial.symbol(symbol)
        if symbol in self.given:
            known = self.given[symbol]
            return known if isinstance(known, Polynomial) and symbol.where not in self.changing else None
        if symbol.operator:
            operands = [self.settled(operand) for operand in symbol.operands]
            return None if None in operands else self.code.divided(None, symbol.operator, *operands)
        local = any(body.start_byte <= symbol.where < body.end_byte for body in self.own[1:])
        return None if local or symbol.where in self.changing or not is_known(symbol) else Polynomial.symbol(symbol)

    def pointer(self, node: Node, value: Polynomial) -> Pointer:
        """Where an address is. Raises Unsupported where it is not known which array it is in."""
        base = self.code.pointer_base(value)
        if base is not None:
            start, offset = self._start(node, base), self.settled(value - Polynomial.symbol(base))
            known = start.offset is not None and offset is not None
            return start._replace(offset=start.offset + offset if known else None)
        own = self.code.variable(field_of(node, "argument")) if is_address(self.source, node) else None
        if own is None or own.kind not in {"local", "parameter"} or own.form.type != "identifier":
            raise refused(node, f"{self.source.of(node)} is not a pointer to an array that is known")
        return self._array(own)

    def _start(self, node: Node, base: Symbol) -> Pointer:
        """What the pointer is that an address counts from."""
        given, found = self.given.get(base), self.code.variable(base.node)
        if isinstance(given, Pointer) and base.where not in self.changing:
            return given
        if base in self.given or found is None or found.form.type == "pointer_declarator" or found.kind == "parameter":
            raise refused(node, f"{base.text} is no pointer that stays where it is")
        return self._array(found)

    def _array(self, found: Definition) -> Pointer:
        """An array, or a variable, which is an array of one."""
        own = any(inside(found.declaration, body) for body in self.own)
        return Pointer("" if own else found.name, None if own else Polynomial())

    def touch(self, node: Node, pointer: Pointer, *writes: bool) -> None:
        if pointer.root:
            made = (Access(*pointer, each, tuple(self.inner), node, self.call) for each in writes)
            self.effects.accesses += made

    # statements and expressions

    def read(self, node: Node) -> None:
        if node.type in _WITHOUT_EFFECT:
            return
        own = getattr(self, f"_{node.type}", None)
        if node.type in _ALL_PARTS:
            for child in node.named_children:
                self.read(child)
        elif own is None:
            raise refused(node, f"a {node.type.replace('_', ' ')} is not understood")
        if own is not None:
            own(node)

    def _declaration(self, node: Node) -> None:
        if self.source.says(node, "static", "thread_local"):
            raise refused(node, "a static variable")
        vector = vector_of(self.source.of(node, "type")) != ""
        other = ("reference_declarator", *(["function_declarator"] if not vector else []))  # `std::vector<float> v(n);`
        for declarator in node.children_by_field_name("declarator"):
            value = field_of(declarator, "value")
            if declared_name(declarator) is None or self.source.has(declarator, *other):
                raise refused(node, "a variable of another form")
            if value is not None:
                self.read(value)
            for given in self.source.walk(value, "identifier") if vector and value is not None else ():
                if self.code.pointer_base(self.code.polynomial(given)) is not None:
                    raise refused(node, "a vector of another array's elements")

    def _return_statement(self, node: Node) -> None:
        if len(self.own) == 1:
            raise refused(node, "leaves the loop")

    def _for_statement(self, node: Node) -> None:
        loop = canonical(self.source, node)
        if loop is None:
            raise refused(node, "not a loop that counts upwards")
        for part in (loop.start_node, loop.bound_node, loop.step_node):
            if part is not None:
                self.read(part)
        if len(self.own) == 1:
            self.effects.inner_loops.append(loop)
        else:
            bound = self.code.variable(loop.bound_node)
            self.effects.called_loops.append(self.passed.get(bound.where) if bound is not None else None)
        self.inner.append(self._iteration(loop))
        self.read(loop.body)
        self.inner.pop()

    def _iteration(self, loop: Loop) -> Iteration:
        low, end = self.settled(loop.start), self.settled(loop.bound)
        return Iteration(loop.symbol, low, end - Polynomial.constant(1) if end is not None else None)

    def _subscript_expression(self, node: Node) -> None:
        """`p[i]` or `*p`."""
        place, use = self.code.place_of(node), use_of(self.code, node)
        if place is None and is_address(self.source, node):
            return
        if place is None:
            raise refused(node, "a subscript of several")
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
            raise refused(node, f"writes {text}, a global")
        if vector_of(self.source.of(found.declaration, "type")):
            raise refused(node, f"writes {text} as a whole")
        if len(self.own) == 1 and not inside(found.declaration, self.own[0]):
            self.effects.carried.append(Carried(text, node))

    # calls

    def _call_expression(self, node: Node) -> None:
        function, given = field_of(node, "function"), arguments(node)
        if function.type == "field_expression":
            raise refused(function, f"calls {self.source.of(function)}, whose effects are unknown")
        name = self.source.of(function).partition("<")[0].removeprefix("::").removeprefix("std::")
        for argument in given:
            self.read(argument)
            if argument.type == "identifier" and self.code.lends(node, argument)[0]:
                self._assigned(argument, node)
        if any(len(f.parameters) == len(given) for f in functions(self.source).get(name, ())):
            self.effects.calls.add(name)
            self._enter(name, given, node)
        elif function.type != "parenthesized_expression" and name not in _CASTS:  # `(float)(x)` reads like a call
            self._library(name, given, node)

    def _enter(self, name: str, given: list[Node], node: Node) -> None:
        if len(self.own) > 8:
            raise refused(node, "calls are nested too deeply, or recursive")
        outermost = len(self.own) == 1
        values, self.call = [self._value(argument) for argument in given], node if outermost else self.call
        for function in functions(self.source)[name]:
            if len(function.parameters) != len(given):
                continue
            for each, argument, value in zip(function.parameters, given, values, strict=True):
                self.given[each.symbol] = value
                if outermost:
                    self.passed[each.symbol.where] = argument
            self._changes(function.body)
            self.own.append(function.node)
            self.read(function.body)
            self.own.pop()
        self.call = None if outermost else self.call

    def _value(self, argument: Node) -> Pointer | Polynomial | None:
        """What a parameter is given: an address, a number, or what is not known."""
        value = self.code.polynomial(argument)
        if self.code.pointer_base(value) is None and not is_address(self.source, argument):
            return self.settled(value)
        return self.pointer(argument, value)

    def _library(self, name: str, given: list[Node], node: Node) -> None:
        pointers = [value for value in map(self._value, given) if isinstance(value, Pointer)]
        if name in {"memcpy", "__builtin_memcpy"} and len(pointers) == 2:
            for pointer, writes in zip(pointers, (True, False), strict=True):
                self.touch(node, pointer._replace(offset=None), writes)
            return
        self.effects.calls.add(name)
        if name in self.code.overloads or name not in PURE or pointers:
            raise refused(node, f"calls {name}, whose effects are unknown")


def is_address(source: Source, node: Node | None) -> bool:
    """Whether it is `&v`."""
    return node is not None and node.type == "pointer_expression" and source.of(node.children[0]) == "&"
