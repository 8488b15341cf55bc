"""What a C++ candidate declares: functions, the types of names; what its names and indices come to, as in a kernel (device_code.py,
indices.py) but for what is only known when it runs; its loops that count; and questions to single nodes of its tree.

The order of the CPU rewrites: other people's forms come first (what is called is in the text, a flat loop becomes rows), what does
not change leaves its loop or goes into a table, calls into libm get their vector forms, rows are shared out while the loops are
still plain, columns are turned into blocks, what is left is marked for the compiler's vectoriser, and vectors are written out by
hand with their stores. Any other order gives right code, if less of it.

Taken for granted, as the contract between spec and candidate says so: two pointer parameters of an entry point never
overlap, and sizes are at least 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import Code
from nodes.rewrites.analysis.kernels import Kernel, Loop, counting_loop
from nodes.rewrites.syntax.algebra import Polynomial, Symbol
from nodes.rewrites.syntax.insert import free
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import LOOPS, children_of, enclosing, is_integer, names_declared, pragma_of, upward

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


# --- nodes ---------------------------------------------------------------------------------------------------------


def arguments(call: Node) -> list[Node]:
    return children_of(call, "arguments")


def identifiers(source: Source, *nodes: Node | None) -> set[str]:
    return {source.of(here) for node in nodes if node is not None for here in source.walk(node, "identifier")}


def enclosing_function(node: Node) -> Node | None:
    return enclosing(node.parent, "function_definition")


def fresh(source: Source, node: Node, name: str) -> str:
    """The name, or one like it that nothing in the function around a node has."""
    return free(name, identifiers(source, enclosing_function(node)))


def declared_names(source: Source, *nodes: Node) -> set[str]:
    """Variables that are declared anywhere below."""
    declarations = (here for node in nodes for here in source.walk(node, "declaration"))
    return {source.of(name) for here in declarations for name in names_declared(here)}


def changed_names(source: Source, node: Node) -> set[str]:
    """Variables that are assigned, or whose address is taken, anywhere below. Raises Unsupported as Code does."""
    return {source.of(name) for name in host_code(source).assigned(node)}


def check_alone(source: Source, node: Node) -> None:
    """Raises Unsupported where something else stands before the node on its line."""
    if source.line_start(node) + len(source.indent(node)) < node.start_byte:
        raise Unsupported(f"line {node.start_point[0] + 1} has something before the statement")


# --- what the file declares ----------------------------------------------------------------------------------------


@lru_cache(maxsize=16)
def functions(source: Source) -> dict[str, list[Kernel]]:
    """The functions that the file defines, by name, several for overloads; as kernels are read, which they are not."""
    found = {}
    for name, group in host_code(source).overloads.items():
        with suppress(Unsupported):
            found[name] = [Kernel(host_code(source), node) for node in group if not node.has_error]
    return found


def function_around(source: Source, node: Node) -> Kernel:
    """The function that a node is in. Raises Unsupported where it is in none."""
    definition = enclosing_function(node)
    if definition is None:
        raise Unsupported("in no function")
    return Kernel(host_code(source), definition)


# --- values --------------------------------------------------------------------------------------------------------


class HostCode(Code):
    """C++ with names resolved. A value that is read from memory is not known where it is read, and fixed where a variable that
    never changes has it."""

    def _variable(self, node: Node, depth: int) -> Polynomial:
        found, value = self.definition(node), super()._variable(node, depth)
        if found is not None and self.source.says(found.declaration, "static", "thread_local"):
            value = Polynomial.symbol(Symbol(found.name, found.where, node=node))  # of the first call
        unknown = [s for s in value.symbols if not is_known(s) and not self.element_of(s)]
        if found is None or not unknown:
            return value
        around = (canonical(self.source, n) for n in upward(found.declaration))
        varies = frozenset(loop.symbol for loop in around if loop is not None)
        for symbol in unknown:
            fixed = Symbol(f"{found.name}: {symbol.text}", found.where, varies)
            value = value.substitute(symbol, Polynomial.symbol(fixed))
        return value

    def element_of(self, symbol: Symbol) -> str:
        found = self.variable(symbol.node)
        vector = vector_of(self.source.of(found.declaration, "type")) if found is not None else ""
        return vector or super().element_of(symbol)

    def assigned(self, node: Node) -> Iterator[Node]:
        """Also what a function of the file takes by reference and may change."""
        yield from super().assigned(node)
        for call in self.source.walk(node, "call_expression"):
            given = (argument for argument in arguments(call) if argument.type == "identifier")
            yield from (argument for argument in given if self.lends(call, argument)[0])


def is_known(symbol: Symbol) -> bool:
    """Whether a symbol stands for one value: it is a variable, or made of such. What is read from memory is not."""
    if symbol.operator:
        return all(is_known(part) for operand in symbol.operands for part in operand.symbols)
    return symbol.where >= 0 or not symbol.parts


@lru_cache(maxsize=4)
def host_code(source: Source) -> HostCode:
    """One for all that is asked of a source. Raises Unsupported as Code does."""
    return HostCode(source)


def root_name(source: Source, address: Node) -> str:
    """The array that an address is in: a parameter of its function or an array of its own, "?" where that is not known."""
    code = host_code(source)
    base = code.pointer_base(code.polynomial(address))
    return "?" if base is None else code.root_of(base) or base.text


def may_be_one(source: Source, function: Kernel, first: str, second: str, depth: int = 0) -> bool:
    """Whether some call in the file hands the same array to two pointer parameters of a function."""
    places = [at for at, each in enumerate(function.parameters) if each.behind and each.name in {first, second}]
    if len(places) < 2 or depth > 4:
        return depth > 4
    for call in source.walk(None, "call_expression"):
        given = arguments(call)
        if source.called(call) != function.name or len(given) != len(function.parameters):
            continue
        roots = [root_name(source, given[place]) for place in places]
        if roots[0] == roots[1] or may_be_one(source, function_around(source, call), *roots, depth + 1):
            return True
    return False


# --- types ---------------------------------------------------------------------------------------------------------


def declared_type(source: Source, node: Node | None) -> str:
    """The type, without pointers, of the variable that an identifier names, "" for anything else."""
    code = host_code(source)
    found = code.variable(node)
    return code.plain_type(source.of(found.declaration, "type")) if found is not None else ""


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


def element_type(source: Source, node: Node) -> str:
    """The type of what `p[i]` or `*p` reads, "" where that is not known."""
    code = host_code(source)
    base = code.pointer_base(code.place_of(node) or Polynomial())
    return code.plain_type(code.element_of(base)) if base is not None else ""


def is_float(source: Source, node: Node) -> bool:
    """Whether an expression has the type float for certain: made of float variables, float literals and integers' literals."""
    match node.type:
        case "number_literal":
            return source.of(node)[-1] in "fF" and not source.of(node).startswith("0x")
        case "identifier":
            return declared_type(source, node) == "float"
        case "subscript_expression":
            return element_type(source, node) == "float"
        case "cast_expression":
            return source.of(node, "type") == "float"
        case "call_expression":
            name = source.of(node, "function")
            group = functions(source).get(name.partition("<")[0], [])
            if overloaded(source, name) and not group:
                return all(is_float(source, argument) for argument in arguments(node))
            return name in _FLOAT_CALLS or {source.of(f.node, "type") for f in group} == {"float"}
        case "parenthesized_expression" | "unary_expression" | "binary_expression" | "conditional_expression":
            parts = children_of(node)[-2:]
            floats = [part for part in parts if is_float(source, part)]
            return bool(floats) and all(part in floats or source.of(part).isdigit() for part in parts)
    return False


# --- loops ---------------------------------------------------------------------------------------------------------


def canonical(source: Source, node: Node) -> Loop | None:
    """The loop, if it counts one integer of its own upwards by a fixed step and its body does not assign it, or what it ends at."""
    found = counting_loop(host_code(source), node) if node.type == "for_statement" and not node.has_error else None
    if found is None or not (found.type == "auto" or is_integer(found.type)):
        return None
    step = None if source.of(found.step_node) == "1" else found.step_node
    fixed = identifiers(source, found.bound_node, step)
    return replace(found, step_node=step) if not fixed & changed_names(source, found.body) else None


def loops(source: Source) -> list[Loop]:
    """Every canonical loop, in source order."""
    found = (canonical(source, here) for here in source.walk(None, "for_statement"))
    return [loop for loop in found if loop is not None]


@lru_cache(maxsize=4)
def _called_in_loops(source: Source) -> set[Node]:
    """Functions of the file that run once per iteration of something, by way of others too."""
    names = {source.called(c) for loop in source.walk(None, *LOOPS) for c in source.walk(loop, "call_expression")}
    return host_code(source).reached(*names)


def runs_again(source: Source, node: Node) -> bool:
    """Whether what stands there may run more than once for a call of the kernel, as far as the file shows."""
    return enclosing(node.parent, *LOOPS) is not None or enclosing_function(node) in _called_in_loops(source)


def header(source: Source, loop: Loop) -> str:
    """`for (...)`."""
    return source.data[loop.node.start_byte : loop.body.start_byte].decode().strip()


def counts_from_zero(source: Source, loop: Loop) -> bool:
    """Whether it counts 0, 1, 2 and stops before its bound."""
    return loop.step_node is None and source.of(loop.start_node) == "0"


def varying(source: Source, loop: Loop) -> set[str]:
    """What may differ from one iteration to another: the counter, what the body declares, what it changes."""
    return {loop.name} | declared_names(source, loop.body) | changed_names(source, loop.body)


def put_in_front(edits: Edits, loop: Loop, lines: Iterable[str]) -> None:
    """Lines in front of a loop and its pragma. Raises Unsupported where something else stands on the loop's line."""
    check_alone(edits.source, loop.node)
    place, indent = pragma_of(loop.node) or loop.node, edits.source.indent(loop.node)
    edits.insert(place.start_byte, "".join(f"{line}\n{indent}" for line in lines))
