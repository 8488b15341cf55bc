"""What a C++ candidate declares: functions, aliases, the types of names; what its names and indices come to, as in a kernel
(device_code.py, indices.py) but for what is only known when it runs; and questions to single nodes of its tree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import Code
from nodes.rewrites.analysis.kernels import Loop, counting_loop
from nodes.rewrites.syntax.algebra import Polynomial, Symbol
from nodes.rewrites.syntax.source import Source, Unsupported
from nodes.rewrites.syntax.tree import (
    children_of,
    declared_name,
    enclosing,
    field_of,
    names_declared,
    pragma_of,
    upward,
)
from nodes.rewrites.syntax.tree import is_integer as is_whole

# Functions of <cmath>, <algorithm> and the compiler that read and write nothing but their arguments.
_MATH = frozenset({
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "copysign", "cos", "cosh", "erf",
    "erfc", "exp", "exp2", "expm1", "fabs", "fdim", "floor", "fma", "fmax", "fmin", "fmod", "hypot", "ldexp",
    "lgamma", "llrint", "llround", "log", "log10", "log1p", "log2", "logb", "lrint", "lround", "nearbyint", "pow",
    "remainder", "rint", "round", "rsqrt", "scalbn", "sin", "sinh", "sqrt", "tan", "tanh", "tgamma", "trunc",
})  # fmt: skip
PURE = (
    _MATH
    | {f"{name}f" for name in _MATH}
    | {f"__builtin_{name}{suffix}" for name in _MATH for suffix in ("", "f")}
    | {"abs", "max", "min", "clamp", "isnan", "isinf", "isfinite", "signbit", "bit_cast", "assert"}
)
_FLOAT_CALLS = {"static_cast<float>", "float", "simd_max", "simd_min", *(f"{name}f" for name in _MATH)}


@dataclass(frozen=True)
class Parameter:
    name: str
    type: str
    """Without qualifiers."""
    pointer: bool
    """Or a reference."""
    reference: bool
    symbol: Symbol
    """What its value is called."""


@dataclass(frozen=True)
class Function:
    """A function definition with a body."""

    name: str
    node: Node
    """The function_definition."""
    parameters: tuple[Parameter, ...]
    body: Node


# --- nodes ---------------------------------------------------------------------------------------------------------


def fields(node: Node, *names: str) -> list[Node | None]:
    """The children of these fields of the grammar."""
    return [node.child_by_field_name(name) for name in names]


def operator(source: Source, node: Node) -> str:
    return source.of(node, "operator")


def arguments(call: Node) -> list[Node]:
    return children_of(call, "arguments")


def called(source: Source, call: Node) -> str:
    """The name that is called, without `std::` and template arguments."""
    return source.of(call, "function").removeprefix("std::").partition("<")[0]


def identifiers(source: Source, node: Node | None) -> set[str]:
    return set() if node is None else {source.of(here) for here in source.walk(node, "identifier")}


def enclosing_function(node: Node) -> Node | None:
    return enclosing(node.parent, "function_definition")


def declared_names(source: Source, node: Node) -> set[str]:
    """Variables that are declared anywhere below."""
    return {source.of(name) for here in source.walk(node, "declaration") for name in names_declared(here)}


def changed_names(source: Source, node: Node) -> set[str]:
    """Variables that are assigned, or whose address is taken, anywhere below. Raises Unsupported as Code does."""
    return {source.of(name) for name in host_code(source).assigned(node)}


def pragma_before(source: Source, node: Node) -> str:
    """The text of the pragma that applies to this statement, "" for none."""
    return source.of(pragma_of(node)).strip()


def indentation(source: Source, node: Node) -> str:
    """The white space before the node on its line; raises Unsupported where something else stands there."""
    before = source.indent(node)
    if source.line_start(node) + len(before) < node.start_byte:
        raise Unsupported(f"line {node.start_point[0] + 1} has something before the statement")
    return before


def over_lanes(source: Source, node: Node) -> bool:
    """Whether a node belongs to a function that takes or returns lanes already (see explicit_simd)."""
    definition = enclosing_function(node)
    return definition is not None and any(
        source.of(here) == "lanes"
        for part in fields(definition, "type", "declarator")
        for here in source.walk(part, "type_identifier")
    )


# --- what the file declares ----------------------------------------------------------------------------------------


@lru_cache(maxsize=16)
def functions(source: Source) -> dict[str, list[Function]]:
    """The functions that the file defines, by name; several for overloads."""
    found: dict[str, list[Function]] = {}
    for node in source.walk(None, "function_definition"):
        declarator = next(source.walk(field_of(node, "declarator"), "function_declarator"), None)
        body = field_of(node, "body")
        if declarator is None or body is None or body.type != "compound_statement" or node.has_error:
            continue
        # `load<float>`, a specialisation, is one more `load`.
        name = source.of(declarator, "declarator").partition("<")[0].strip()
        kinds = {"parameter_declaration", "optional_parameter_declaration"}
        listed = [child for child in children_of(declarator, "parameters") if child.type in kinds]
        parameters = tuple(_parameter(source, child) for child in listed)
        found.setdefault(name, []).append(Function(name, node, parameters, body))
    return found


def _parameter(source: Source, node: Node) -> Parameter:
    declarator = field_of(node, "declarator")
    name = source.of(declared_name(declarator))
    reference = declarator is not None and source.has(declarator, "reference_declarator")
    pointer = declarator is not None and source.has(declarator, "pointer_declarator", "array_declarator")
    symbol = Symbol(name, (declarator or node).start_byte)
    return Parameter(name, source.of(node, "type"), pointer or reference, reference, symbol)


def function_of(source: Source, definition: Node) -> Function | None:
    """The function that a function_definition is."""
    return next((f for group in functions(source).values() for f in group if f.node == definition), None)


@lru_cache(maxsize=16)
def aliases(source: Source) -> dict[str, str]:
    """What `typedef uint16_t half_t;` and `using half_t = uint16_t;` name, followed to the end."""
    found: dict[str, str] = {}
    for node in source.walk(None, "type_definition", "alias_declaration"):
        name, kind = fields(node, "declarator" if node.type == "type_definition" else "name", "type")
        if name is not None and name.type == "type_identifier" and not source.has(kind, "struct_specifier"):
            plain = not source.has(node, "abstract_pointer_declarator", "template_type", "union_specifier")
            found[source.of(name)] = source.of(kind).removeprefix("std::") if plain else ""
    for name in found:
        for _ in range(len(found)):
            found[name] = found.get(found[name], found[name])
    return {name: kind for name, kind in found.items() if kind}


def calls_below(source: Source, node: Node) -> Iterator[Node]:
    """Calls below a node, and in the functions of the file that these lead to. Raises Unsupported as Code does."""
    names = (source.called(call) for call in source.walk(node, "call_expression"))
    for body in (node, *host_code(source).reached(*names)):
        yield from source.walk(body, "call_expression")


# --- values --------------------------------------------------------------------------------------------------------


class HostCode(Code):
    """C++ with names resolved. A value that is read from memory is not known where it is read, and fixed where a variable that
    never changes has it."""

    def __init__(self, source: Source) -> None:
        super().__init__(source, integers=frozenset(name for name in aliases(source) if is_integer(source, name)))
        self._loops: dict[int, Loop | None] = {}
        self._polynomials: dict[int, Polynomial] = {}

    def polynomial(self, node: Node, depth: int = 0) -> Polynomial:
        """Kept, as every loop around a place asks for it again."""
        if node.id not in self._polynomials:
            self._polynomials[node.id] = super().polynomial(node, depth)
        return self._polynomials[node.id]

    def _variable(self, node: Node, depth: int) -> Polynomial:
        found, value = self.definition(node), super()._variable(node, depth)
        if found is not None and self.source.says(found.declaration, "static", "thread_local"):
            value = Polynomial.symbol(Symbol(found.name, found.where, node=node))  # of the first call
        unknown = [s for s in value.symbols if not is_known(s) and not self.element_of(s)]
        if found is None or not unknown:
            return value
        around = (self.loop(n) for n in upward(found.declaration) if n.type == "for_statement")
        varies = frozenset(loop.symbol for loop in around if loop is not None)
        for symbol in unknown:
            fixed = Symbol(f"{found.name}: {symbol.text}", found.where, varies)
            value = value.substitute(symbol, Polynomial.symbol(fixed))
        return value

    def _opaque(self, node: Node, depth: int) -> Polynomial:
        given = children_of(node, "arguments")
        if self.source.called(node) in {"min", "max"} and len(given) == 2:
            return self.divided(node, self.source.called(node), *(self.polynomial(n, depth + 1) for n in given))
        returned = self._returned(node, given, depth) if node.type == "call_expression" and depth < 24 else None
        return super()._opaque(node, depth) if returned is None else returned

    def _returned(self, call: Node, given: list[Node], depth: int) -> Polynomial | None:
        """What a function of the file makes of its arguments, where all it does is return a polynomial of them."""
        own = functions(self.source).get(self.source.called(call), [])
        function = own[0] if len(own) == 1 and len(own[0].parameters) == len(given) else None
        lines = children_of(function.body) if function is not None else []
        if not lines or lines[-1].type != "return_statement" or any(n.type != "declaration" for n in lines[:-1]):
            return None
        value = self.polynomial(lines[-1].named_children[0], depth + 1) if lines[-1].named_child_count else Polynomial()
        for parameter, argument in zip(function.parameters, given, strict=True):
            value = value.substitute(parameter.symbol, self.polynomial(argument, depth + 1))
        start, end = function.node.start_byte, function.node.end_byte
        return None if any(start <= part.where < end for part in value.variables()) else value

    def element_of(self, symbol: Symbol) -> str:
        found = self.variable(symbol.node)
        vector = vector_of(self.source.of(found.declaration, "type")) if found is not None else ""
        return vector or super().element_of(symbol)

    def assigned(self, node: Node) -> Iterator[Node]:
        """Also what a function of the file takes by reference and may change."""
        yield from super().assigned(node)
        for call in self.source.walk(node, "call_expression"):
            given = (argument for argument in children_of(call, "arguments") if argument.type == "identifier")
            yield from (argument for argument in given if self.lends(call, argument)[0])

    def loop(self, node: Node) -> Loop | None:
        if node.id not in self._loops:
            self._loops[node.id] = self._loop(node)
        return self._loops[node.id]

    def _loop(self, node: Node) -> Loop | None:
        source, sign = self.source, self.source.of(node, "condition", "operator")
        found = counting_loop(self, node, sign) if sign in {"<", "<=", "!="} and not node.has_error else None
        if found is None or not is_integer(source, found.type):
            return None
        step = None if source.of(found.step_node) == "1" else found.step_node
        found = replace(found, bound_node=field_of(node, "condition", "right"), step_node=step)  # as it is written
        if step is not None and sign == "!=":
            return None
        fixed = identifiers(source, found.bound_node) | identifiers(source, found.step_node)
        return found if not fixed & {source.of(n) for n in self.assigned(found.body)} else None


def is_known(symbol: Symbol) -> bool:
    """Whether a symbol stands for one value: it is a variable, or made of such. What is read from memory is not."""
    if symbol.operator:
        return all(is_known(part) for operand in symbol.operands for part in operand.symbols)
    return symbol.where >= 0 or not symbol.parts


@lru_cache(maxsize=4)
def host_code(source: Source) -> HostCode:
    """One for all that is asked of a source. Raises Unsupported as Code does."""
    return HostCode(source)


def is_integer(source: Source, kind: str) -> bool:
    kind = aliases(source).get(kind, kind)
    return kind == "auto" or is_whole(kind)


def root_name(source: Source, address: Node) -> str:
    """The array that an address is in: a parameter of its function or an array of its own, "?" where that is not known."""
    code = host_code(source)
    base = code.pointer_base(code.polynomial(address))
    return "?" if base is None else code.root_of(base) or base.text


def may_be_one(source: Source, function: Function, first: str, second: str, depth: int = 0) -> bool:
    """Whether some call in the file hands the same array to two pointer parameters of a function."""
    places = [at for at, each in enumerate(function.parameters) if each.pointer and each.name in {first, second}]
    if len(places) < 2 or depth > 4:
        return depth > 4
    for call in source.walk(None, "call_expression"):
        if source.called(call) != function.name:
            continue
        given, caller = arguments(call), enclosing_function(call)
        if len(given) != len(function.parameters) or caller is None:
            continue
        roots = [root_name(source, given[place]) for place in places]
        if roots[0] == roots[1]:
            return True
        outer = function_of(source, caller)
        if outer is not None and may_be_one(source, outer, roots[0], roots[1], depth + 1):
            return True
    return False


# --- types ---------------------------------------------------------------------------------------------------------


def declared_type(source: Source, node: Node) -> str:
    """The type, without pointers, of the variable that an identifier names, "" for none."""
    found = host_code(source).definition(node)
    kind = source.of(found.declaration, "type") if found is not None else ""
    return aliases(source).get(kind, kind)


def element_type(source: Source, node: Node) -> str:
    """The type of `p[i]`, "" where p is not declared plainly as a pointer, an array or a vector."""
    base = node.child_by_field_name("argument")
    kind = declared_type(source, base) if base is not None and base.type == "identifier" else ""
    return vector_of(kind) or kind


def vector_of(kind: str) -> str:
    """T of `std::vector<T>`, "" for any other type."""
    plain = kind.removeprefix("const ").removeprefix("std::")
    kind = plain[len("vector<") : -1].strip() if plain.startswith("vector<") and plain.endswith(">") else ""
    return "" if kind == "bool" else kind  # which packs eight elements into a byte


def overloaded(source: Source, name: str) -> bool:
    """Whether a call by this name is to a function of <cmath> or <algorithm> that returns the type of its arguments.

    Without `std::` the name means the C function of doubles, unless <math.h> of the C++ library has brought the others.
    """
    plain = name.removeprefix("std::")
    if plain not in _MATH | {"abs", "max", "min"} or plain in {"llrint", "llround", "lrint", "lround"}:
        return False
    included = {source.of(n, "path") for n in source.walk(None, "preproc_include")}
    return name != plain or "<math.h>" in included


def is_float(source: Source, node: Node) -> bool:
    """Whether an expression is certainly a float: built of float variables, float literals and integers' literals."""
    match node.type:
        case "number_literal":
            return source.of(node)[-1] in "fF" and not source.of(node).startswith("0x")
        case "identifier":
            return declared_type(source, node) == "float"
        case "subscript_expression":
            return element_type(source, node) == "float"
        case "conditional_expression":
            return all(is_float(source, side) for side in fields(node, "consequence", "alternative"))
        case "parenthesized_expression":
            return is_float(source, node.named_children[0])
        case "unary_expression":
            return is_float(source, node.child_by_field_name("argument"))
        case "binary_expression":
            sides = fields(node, "left", "right")
            floats = [is_float(source, side) for side in sides]
            whole = any(side.type == "number_literal" and "." not in source.of(side) for side in sides)
            return all(floats) or (any(floats) and whole)
        case "call_expression":
            name = source.of(node, "function")
            group = functions(source).get(name.partition("<")[0], [])
            if overloaded(source, name) and not group:
                return all(is_float(source, argument) for argument in arguments(node))
            return name in _FLOAT_CALLS or {source.of(f.node, "type") for f in group} == {"float"}
        case "cast_expression":
            return source.of(node, "type") == "float"
    return False
