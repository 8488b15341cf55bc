"""What a loop of a C++ candidate reads, writes and carries, read from the syntax tree, and what follows from it.

`effects(source, loop)` interprets one pass through a loop's body with symbolic values. It follows pointer arithmetic
(`const T* row = input + token * hidden`), looks into functions of the same file (every overload of that name), and
raises Unsupported at the first thing that it does not understand. `independent` then decides whether two different
iterations can ever touch the same element where one of them writes.

The canonical order of the CPU rewrites, which their ORDER says: other people's forms come first (macros 1, calls 2, scope 3,
walks 4, reroll 5, inline 6, bytes 7), then nest (10) makes rows of a flat loop, fuse (15) joins passes, accumulate (18)
keeps sums in variables, hoist (20), places (21) and tables (22) take out of loops what they do anew, vector_math (30)
removes the calls that keep them scalar, parallel (35) shares rows out while the loops are still plain, tile (37) cuts
transposed ones into tiles, simd (40) marks what is left for the compiler's vectoriser, reciprocal (45), lanes (60) writes
the vectors out by hand, stream (70) changes their stores. Any other order gives right code, if less of it.

Taken for granted, as the contract between spec and candidate says so: two pointer parameters of an entry point never
overlap, and sizes are at least 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from tree_sitter import Node

from nodes.rewrites.syntax.algebra import Polynomial, Symbol
from nodes.rewrites.syntax.source import Source, Unsupported

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
_LVALUES = frozenset({"identifier", "subscript_expression", "pointer_expression", "field_expression"})
_CASTS = frozenset({
    "static_cast", "reinterpret_cast", "const_cast", "int64_t", "int32_t", "int16_t", "int8_t", "uint64_t", "uint32_t", "uint16_t", "uint8_t", "int",
    "size_t", "long", "float", "double", "ptrdiff_t", "_Float16",
})  # fmt: skip
INTEGERS = frozenset({
    "int", "long", "short", "unsigned", "size_t", "ssize_t", "ptrdiff_t", "auto", "int64_t", "int32_t", "int16_t",
    "uint64_t", "uint32_t", "uint16_t",
})  # fmt: skip


@dataclass(frozen=True)
class Function:
    """A function definition with a body."""

    name: str
    node: Node
    """The function_definition."""
    parameters: tuple[tuple[str, str, bool], ...]
    """(name, type without qualifiers, is a pointer or a reference), in order."""
    references: frozenset[str]
    """Names of the parameters that are references."""
    body: Node


@dataclass(frozen=True)
class Loop:
    """`for (T i = start; i < bound; ++i) body`."""

    node: Node
    variable: str
    start: Node
    bound: Node
    body: Node
    step: Node | None = None
    """What is added per iteration, None for 1."""
    inclusive: bool = False
    """`<=` rather than `<`."""

    @property
    def header_end(self) -> int:
        return self.body.start_byte


@dataclass(frozen=True)
class Iteration:
    """A loop variable as the interpreter sees it, with its first and last value."""

    symbol: Symbol
    low: Polynomial | None
    high: Polynomial | None
    step: int = 1
    """How far apart two values of it are at least."""


@dataclass(frozen=True)
class Pointer:
    """`offset` elements from the start of `root`; None where the offset is not known."""

    root: Symbol
    offset: Polynomial | None
    unit: str = ""
    """The type that the start was cast to, whose size an offset counts; "" for the declared one."""


@dataclass(frozen=True)
class Access:
    root: Symbol
    offset: Polynomial | None
    writes: bool
    inner: tuple[Iteration, ...]
    """The loops around it inside the analysed one, outermost first."""
    node: Node
    call: Node | None = None
    """The outermost call inside the loop through which it happens."""
    certain: bool = True
    """Whether every iteration of the loops around it gets there."""
    unit: str = ""
    """As in Pointer: offsets of two units cannot be compared."""


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


@dataclass
class _Variable:
    symbol: Symbol
    value: Polynomial | Pointer | None
    private: bool
    """Declared inside the analysed loop, so every iteration has its own."""
    array: bool = False
    reference: bool = False
    """Stands for the element that `value` points to."""
    size: Polynomial | None = None
    """Of a vector, where that is known."""


# --- finding things ------------------------------------------------------------------------------------------------


def functions(source: Source) -> dict[str, list[Function]]:
    """The functions that the file defines, by name; several for overloads."""
    # Kept beside the tree of this very object: nodes of another tree of the same text are other nodes.
    if "functions" not in source.__dict__:
        source.__dict__["functions"] = _functions(source)
    return source.__dict__["functions"]


def _functions(source: Source) -> dict[str, list[Function]]:
    found: dict[str, list[Function]] = {}
    for node in source.walk(None, "function_definition"):
        declarator, body = node.child_by_field_name("declarator"), node.child_by_field_name("body")
        while declarator is not None and declarator.type != "function_declarator":
            declarator = declarator.child_by_field_name("declarator") or _only_named(declarator)
        if declarator is None or body is None or body.type != "compound_statement" or node.has_error:
            continue
        # `load<float>`, a specialisation, is one more `load`.
        name = source.of(declarator.child_by_field_name("declarator")).partition("<")[0].strip()
        parameters = tuple(
            _parameter(source, parameter)
            for parameter in declarator.child_by_field_name("parameters").named_children
            if parameter.type in {"parameter_declaration", "optional_parameter_declaration"}
        )
        references = frozenset(
            source.of(next(source.walk(declared, "identifier")))
            for declared in source.walk(declarator.child_by_field_name("parameters"), "reference_declarator")
            if any(source.walk(declared, "identifier"))
        )
        found.setdefault(name, []).append(Function(name, node, parameters, references, body))
    return found


def aliases(source: Source) -> dict[str, str]:
    """What `typedef uint16_t half_t;` and `using half_t = uint16_t;` name, followed to the end."""
    if "aliases" not in source.__dict__:
        found: dict[str, str] = {}
        for node in source.walk(None, "type_definition", "alias_declaration"):
            name = node.child_by_field_name("declarator" if node.type == "type_definition" else "name")
            kind = node.child_by_field_name("type")
            if name is not None and name.type == "type_identifier" and not any(source.walk(kind, "struct_specifier")):
                plain = not any(source.walk(node, "abstract_pointer_declarator", "template_type", "union_specifier"))
                found[source.of(name)] = source.of(kind).removeprefix("std::") if plain else ""
        for name in found:
            for _ in range(len(found)):
                found[name] = found.get(found[name], found[name])
        source.__dict__["aliases"] = {name: kind for name, kind in found.items() if kind}
    return source.__dict__["aliases"]


def constants(source: Source) -> dict[str, int]:
    """Integers that the file names once: `#define N 32`, `constexpr int N = 32;` outside of functions. No tunables."""
    if "constants" not in source.__dict__:
        found: dict[str, list[str]] = {}
        for node in source.walk(None, "preproc_def"):
            found.setdefault(source.of(node.child_by_field_name("name")), []).append(
                source.of(node.child_by_field_name("value")).strip()
            )
        for node in source.walk(None, "declaration"):
            fixed = {"const", "constexpr"} & set(source.of(node).split("=")[0].split())
            for declarator in node.children_by_field_name("declarator"):
                if declarator.type == "init_declarator" and fixed and enclosing_function(node) is None:
                    name, value = (declarator.child_by_field_name(field) for field in ("declarator", "value"))
                    found.setdefault(source.of(name), []).append(source.of(value))
        source.__dict__["constants"] = {
            name: int(values[0].rstrip("uUlL"))
            for name, values in found.items()
            if len(values) == 1 and values[0].rstrip("uUlL").isdigit()
        }
    return source.__dict__["constants"]


def calls(source: Source) -> dict[str, list[Node]]:
    """Every call of the file by the name that is called, template arguments left away."""
    if "calls" not in source.__dict__:
        found: dict[str, list[Node]] = {}
        for node in source.walk(None, "call_expression"):
            found.setdefault(source.of(node.child_by_field_name("function")).partition("<")[0], []).append(node)
        source.__dict__["calls"] = found
    return source.__dict__["calls"]


def _only_named(node: Node) -> Node | None:
    named = [child for child in node.named_children if child.type.endswith("declarator")]
    return named[0] if len(named) == 1 else None


def _parameter(source: Source, node: Node) -> tuple[str, str, bool]:
    declarator, pointer = node.child_by_field_name("declarator"), False
    while declarator is not None and declarator.type != "identifier":
        pointer = pointer or declarator.type in {"pointer_declarator", "array_declarator", "reference_declarator"}
        inner = declarator.child_by_field_name("declarator")
        declarator = inner if inner is not None else next(iter(reversed(declarator.named_children)), None)
    return source.of(declarator), source.of(node.child_by_field_name("type")), pointer


def enclosing_function(node: Node) -> Node | None:
    here = node.parent
    while here is not None and here.type != "function_definition":
        here = here.parent
    return here


def canonical(source: Source, node: Node) -> Loop | None:
    """The loop, if it counts one integer of its own upwards by a fixed step and its body does not assign it."""
    initializer, condition = node.child_by_field_name("initializer"), node.child_by_field_name("condition")
    update, body = node.child_by_field_name("update"), node.child_by_field_name("body")
    if node.has_error or None in (initializer, condition, update, body):
        return None
    declared = initializer.child_by_field_name("declarator") if initializer.type == "declaration" else None
    if declared is None or declared.type != "init_declarator":
        return None
    if len(initializer.children_by_field_name("declarator")) != 1:
        return None
    kind = source.of(initializer.child_by_field_name("type"))
    kind = aliases(source).get(kind, kind).replace("std::", "")
    name = declared.child_by_field_name("declarator")
    if name.type != "identifier" or not set(kind.split()) <= INTEGERS:
        return None
    variable = source.of(name)
    if condition.type != "binary_expression" or source.of(condition.child_by_field_name("left")) != variable:
        return None
    compare = source.of(condition.child_by_field_name("operator"))
    if compare not in {"<", "<=", "!="}:
        return None
    step: Node | None = None
    if update.type == "update_expression":
        if "++" not in source.of(update) or source.of(update.child_by_field_name("argument")) != variable:
            return None
    elif update.type == "assignment_expression" and source.of(update.child_by_field_name("operator")) == "+=":
        if source.of(update.child_by_field_name("left")) != variable:
            return None
        step = update.child_by_field_name("right")
        step = None if source.of(step) == "1" else step
    else:
        return None
    if compare == "!=" and step is not None:
        return None
    if any(target == variable for target, _ in assignments(source, body)):
        return None
    start, bound = declared.child_by_field_name("value"), condition.child_by_field_name("right")
    changed = {target for target, _ in assignments(source, body)}
    if changed & identifiers(source, bound) or (step is not None and changed & identifiers(source, step)):
        return None
    return Loop(node, variable, start, bound, body, step, compare == "<=")


def loops(source: Source, node: Node | None = None) -> list[Loop]:
    """Every canonical loop under `node`, in source order."""
    found = [canonical(source, here) for here in source.walk(node, "for_statement")]
    return [loop for loop in found if loop is not None]


def over_lanes(source: Source, node: Node) -> bool:
    """Whether a node belongs to a function that takes or returns lanes already (see explicit_simd)."""
    definition = enclosing_function(node)
    return definition is not None and any(
        source.of(here) == "lanes"
        for part in (definition.child_by_field_name("type"), definition.child_by_field_name("declarator"))
        for here in source.walk(part, "type_identifier")
    )


def identifiers(source: Source, node: Node | None) -> set[str]:
    return set() if node is None else {source.of(here) for here in source.walk(node, "identifier")}


def assignments(source: Source, node: Node) -> Iterator[tuple[str, Node]]:
    """(variable, node) of every assignment, increment and address taken below `node`."""
    for here in source.walk(node, "assignment_expression", "update_expression", "pointer_expression"):
        if here.type == "pointer_expression" and not source.of(here).startswith("&"):
            continue
        target = here.child_by_field_name("left" if here.type == "assignment_expression" else "argument")
        if target is not None and target.type == "identifier":
            yield source.of(target), here


def escapes(source: Source, use: Node) -> bool:
    """Whether a mention of a variable takes its address, or hands it to a function of the file by reference."""
    parent = use.parent
    if parent.type == "pointer_expression" and source.of(parent.child_by_field_name("operator")) == "&":
        return True
    if parent.type == "argument_list" and parent.parent.type == "call_expression":
        called = source.of(parent.parent.child_by_field_name("function")).partition("<")[0]
        place = [child for child in parent.named_children if child.type != "comment"].index(use)
        for function in functions(source).get(called, ()):
            if place < len(function.parameters) and function.parameters[place][0] in function.references:
                return True
    return False


def pragma_before(source: Source, node: Node) -> str:
    """The text of the pragma that applies to this statement, "" for none."""
    return source.of(pragma_node(source, node)).strip()


def pragma_node(source: Source, node: Node) -> Node | None:
    """The pragma that applies to this statement."""
    before = node.prev_named_sibling
    while before is not None and before.type == "comment":
        before = before.prev_named_sibling
    return before if before is not None and before.type == "preproc_call" else None


def indentation(source: Source, node: Node) -> str:
    """The white space before the node on its line; raises Unsupported where something else stands there."""
    start = source.data.rfind(b"\n", 0, node.start_byte) + 1
    before = source.data[start : node.start_byte].decode()
    if before.strip():
        raise Unsupported(f"line {node.start_point[0] + 1} has something before the statement")
    return before


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
            return all(is_float(source, node.child_by_field_name(side)) for side in ("consequence", "alternative"))
        case "parenthesized_expression":
            return is_float(source, node.named_children[0])
        case "unary_expression":
            return is_float(source, node.child_by_field_name("argument"))
        case "binary_expression":
            sides = [node.child_by_field_name("left"), node.child_by_field_name("right")]
            floats = [is_float(source, side) for side in sides]
            return all(floats) or (
                any(floats) and any(s.type == "number_literal" and "." not in source.of(s) for s in sides)
            )
        case "call_expression":
            called = source.of(node.child_by_field_name("function"))
            group = functions(source).get(called.partition("<")[0], [])
            returns = {source.of(function.node.child_by_field_name("type")) for function in group}
            if overloaded(source, called) and not group:
                return all(is_float(source, a) for a in node.child_by_field_name("arguments").named_children)
            return called in {
                "static_cast<float>",
                "float",
                "simd_exp",
                "simd_log",
                "simd_log1p",
                "simd_tanh",
                "simd_erf",
                "simd_max",
                "simd_min",
                *(f"{name}f" for name in _MATH),
            } or returns == {"float"}
        case "cast_expression":
            return source.of(node.child_by_field_name("type")) == "float"
    return False


def initial_value(source: Source, node: Node) -> Node | None:
    """What the one local constant of an identifier's name is initialised with."""
    found = []
    for here in source.walk(enclosing_function(node), "declaration"):
        for declarator in here.children_by_field_name("declarator"):
            if source.of(node) in identifiers(source, declarator.child_by_field_name("declarator") or declarator):
                fixed = {"const", "constexpr"} & set(source.of(here).split())
                found.append(declarator.child_by_field_name("value") if fixed else None)
    return found[0] if len(found) == 1 else None


def overloaded(source: Source, called: str) -> bool:
    """Whether a call by this name is to a function of <cmath> or <algorithm> that returns the type of its arguments.

    Without `std::` the name means the C function of doubles, unless <math.h> of the C++ library has brought the others.
    """
    plain = called.removeprefix("std::")
    if plain not in _MATH | {"abs", "max", "min"} or plain in {"llrint", "llround", "lrint", "lround"}:
        return False
    return called != plain or "<math.h>" in {
        source.of(n.child_by_field_name("path")) for n in source.walk(None, "preproc_include")
    }


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


def declared_type(source: Source, node: Node) -> str:
    """The type, without pointers, that the nearest declaration before an identifier gives its name, "" for none."""
    function, name, found = enclosing_function(node), source.of(node), ""
    if function is None:
        return ""
    for here in source.walk(function, "declaration", "parameter_declaration"):
        if here.start_byte > node.start_byte:
            break
        for declarator in here.children_by_field_name("declarator"):
            while declarator is not None and declarator.type != "identifier":
                inner = declarator.child_by_field_name("declarator")
                declarator = inner or next(iter(reversed(declarator.named_children)), None)
            if source.of(declarator) == name:
                found = source.of(here.child_by_field_name("type"))
    return aliases(source).get(found, found)


# --- interpreting a body -------------------------------------------------------------------------------------------


class _Interpreter:
    def __init__(self, source: Source, loop: Loop) -> None:
        self.source = source
        self.functions = functions(source)
        self.scopes: list[dict[str, _Variable]] = [{}]
        self.inner: list[Iteration] = []
        self.depth = 0
        self.inside = False
        self.calling: Node | None = None
        self.arguments: dict[str, Node] = {}
        """The arguments of the outermost call, by parameter."""
        self.returned: list[Polynomial | Pointer | None] = []
        self.branches = 0
        """How many branches are around what is interpreted now; a `continue` counts as one to the end."""
        self.fields: frozenset[str] = frozenset()
        """The members of the object whose method is about to be interpreted."""
        self.whole_steps: list[tuple[Node, int]] | None = None
        """(bound, step) of loops from 0 of which it is taken for granted that whole steps lead to their end; None: nothing is."""
        self.effects = Effects(loop, Iteration(Symbol(loop.variable), None, None))

    # variables

    def declare(self, name: str, where: int, value: Polynomial | Pointer | None, *, array: bool = False) -> None:
        # A variable of a callee is private whenever the callee runs inside the loop.
        self.scopes[-1][name] = _Variable(Symbol(name, where), value, self.inside, array)

    def lookup(self, name: str) -> _Variable | None:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return None

    def forget(self, node: Node) -> None:
        """Variables that `node` may assign have no known value around it."""
        for name, where in assignments(self.source, node):
            variable = self.lookup(name)
            if variable is not None and not variable.array:
                variable.value = (
                    None
                    if isinstance(variable.value, Pointer) or variable.value is None
                    else Polynomial.symbol(Symbol(f"{name}@{where.start_byte}", where.start_byte))
                )

    # statements

    def statement(self, node: Node) -> None:
        handler = getattr(self, f"_{node.type}", None)
        if handler is None:
            raise Unsupported(f"line {node.start_point[0] + 1}: a {node.type.replace('_', ' ')} is not understood")
        handler(node)

    def _comment(self, node: Node) -> None: ...

    def _preproc_call(self, node: Node) -> None:
        if "#pragma" not in self.source.of(node):
            raise Unsupported(f"line {node.start_point[0] + 1}: a preprocessor line inside a loop")

    def _static_assert_declaration(self, node: Node) -> None: ...

    def _compound_statement(self, node: Node) -> None:
        self.scopes.append({})
        for child in node.named_children:
            self.statement(child)
        self.scopes.pop()

    def _declaration(self, node: Node) -> None:
        text = self.source.of(node)
        # What is set when it is first met stays at that; only where that is the same for every call is it a constant.
        fixed = text.startswith(("static const ", "static constexpr ")) and not any(sign in text for sign in "([*&")
        fixed = fixed and identifiers(self.source, node) <= declared_names(self.source, node) | set(
            constants(self.source)
        )
        if text.startswith(("static ", "thread_local ")) and not fixed:
            raise Unsupported(f"line {node.start_point[0] + 1}: a static variable")
        kind = self.source.of(node.child_by_field_name("type"))
        kind = aliases(self.source).get(kind, kind).replace("std::", "")
        for declarator in node.children_by_field_name("declarator"):
            value = size = None
            if declarator.type == "init_declarator":
                initial = declarator.child_by_field_name("value")
                value = self.expression(initial)
                size = self._filled(initial) if vector_of(kind) else None
                declarator = declarator.child_by_field_name("declarator")
            array = declarator.type == "array_declarator" or vector_of(kind) != ""
            if array and declarator.type == "function_declarator":  # `std::vector<float> v(n);` reads like one
                known = self.lookup(self.source.of(declarator.child_by_field_name("parameters"))[1:-1].strip())
                size = known.value if known is not None and isinstance(known.value, Polynomial) else None
                declarator = declarator.child_by_field_name("declarator")
            pointer = declarator.type == "pointer_declarator"
            while declarator.type in {"array_declarator", "pointer_declarator"}:
                declarator = declarator.child_by_field_name("declarator")
            if declarator.type != "identifier":
                raise Unsupported(f"line {node.start_point[0] + 1}: a {declarator.type.replace('_', ' ')}")
            integer = set(kind.split()) <= INTEGERS
            if not pointer and not array and not integer and not isinstance(value, Pointer):
                value = None
            if integer and value is None and not pointer and not array:
                # Not known, but fixed once it is set: an index read from memory.
                varies = {self.effects.iteration.symbol, *(i.symbol for i in self.inner)} if self.inside else set()
                value = Polynomial.symbol(
                    Symbol(f"{self.source.of(declarator)}@{node.start_byte}", -1, frozenset(varies))
                )
            self.declare(self.source.of(declarator), declarator.start_byte, value, array=array)
            self.scopes[-1][self.source.of(declarator)].size = size

    def _filled(self, initial: Node) -> Polynomial | None:
        """The size of a vector made of `(n)`, `(n, value)`, `(first, last)` or another vector, whose elements it reads."""
        given = initial.named_children if initial.type == "argument_list" else [initial]
        values = [self.expression(each) for each in given]
        for value, node in zip(values, given, strict=True):
            if isinstance(value, Pointer):
                self.record(replace(value, offset=None), node, writes=False)
        if initial.type != "argument_list" or not values:
            return None
        if isinstance(values[0], Polynomial):
            return values[0]
        first, last = values[0], values[1] if len(values) == 2 else None
        known = isinstance(first, Pointer) and isinstance(last, Pointer)
        known = known and (first.root, first.unit) == (last.root, last.unit)
        return last.offset - first.offset if known and None not in (first.offset, last.offset) else None

    def _type_definition(self, node: Node) -> None: ...

    def _alias_declaration(self, node: Node) -> None: ...

    def _expression_statement(self, node: Node) -> None:
        for child in node.named_children:
            self.expression(child)

    def _if_statement(self, node: Node) -> None:
        self.expression(node.child_by_field_name("condition"))
        for branch in ("consequence", "alternative"):
            child = node.child_by_field_name(branch)
            if child is not None:
                self.branches += 1
                self.statement(child)
                self.branches -= 1
                self.forget(child)

    def _else_clause(self, node: Node) -> None:
        for child in node.named_children:
            self.statement(child)

    def _continue_statement(self, node: Node) -> None:
        self.branches += 1

    def _return_statement(self, node: Node) -> None:
        if self.depth == 0:
            raise Unsupported(f"line {node.start_point[0] + 1}: leaves the loop")
        values = [self.expression(child) for child in node.named_children]
        self.returned.append(values[0] if values else None)
        self.branches += self.branches > 0  # what is left of the function is run by some calls only

    def _for_statement(self, node: Node) -> None:
        loop = canonical(self.source, node)
        if loop is None:
            raise Unsupported(f"line {node.start_point[0] + 1}: not a loop that counts upwards")
        if self.inside and self.depth == 0:
            self.effects.inner_loops.append(loop)
        self.run(loop)

    def run(self, loop: Loop) -> Iteration:
        """One symbolic pass through the loop's body."""
        low, high = self.expression(loop.start), self.expression(loop.bound)
        low = low if isinstance(low, Polynomial) else None
        high = high if isinstance(high, Polynomial) else None
        step = self.expression(loop.step) if loop.step is not None else Polynomial.constant(1)
        if high is not None and not loop.inclusive:
            last = _last_step(low, high, step)
            size = step.value if isinstance(step, Polynomial) else None
            if (
                self.whole_steps is not None
                and self.depth == 0
                and last == 1
                and size
                and size > 1
                and low == Polynomial()
            ):
                self.whole_steps.append((loop.bound, size))
                last = size
            high = high - Polynomial.constant(last)
        known = step.value if isinstance(step, Polynomial) else None
        iteration = Iteration(Symbol(loop.variable, loop.node.start_byte), low, high, max(1, known or 1))
        self.forget(loop.body)
        self.scopes.append({})
        analysed = loop.node == self.effects.loop.node and self.depth == 0
        if self.inside and self.depth:
            known = self.depth == 1 and loop.bound.type == "identifier"
            self.effects.called_loops.append(self.arguments.get(self.source.of(loop.bound)) if known else None)
        if analysed:
            self.inside, self.effects.iteration = True, iteration
        elif self.inside:
            self.inner.append(iteration)
        self.scopes[-1][loop.variable] = _Variable(iteration.symbol, Polynomial.symbol(iteration.symbol), True)
        if loop.body.type == "compound_statement":
            self._compound_statement(loop.body)
        else:
            self.statement(loop.body)
        self.scopes.pop()
        if analysed:
            self.inside = False
        elif self.inside:
            self.inner.pop()
        self.forget(loop.body)
        return iteration

    # expressions

    def expression(self, node: Node | None) -> Polynomial | Pointer | None:
        if node is None:
            return None
        handler = getattr(self, f"_e_{node.type}", None)
        if handler is None:
            raise Unsupported(f"line {node.start_point[0] + 1}: a {node.type.replace('_', ' ')} is not understood")
        return handler(node)

    def _e_comment(self, node: Node) -> None: ...

    def _e_string_literal(self, node: Node) -> None: ...

    def _e_char_literal(self, node: Node) -> None: ...

    def _e_true(self, node: Node) -> None: ...

    def _e_false(self, node: Node) -> None: ...

    def _e_sizeof_expression(self, node: Node) -> None: ...

    def _e_type_descriptor(self, node: Node) -> None: ...

    def _e_qualified_identifier(self, node: Node) -> None: ...

    def _e_template_function(self, node: Node) -> None: ...

    def _e_number_literal(self, node: Node) -> Polynomial | None:
        text = self.source.of(node).rstrip("uUlL").replace("'", "")
        try:
            return Polynomial.constant(int(text, 0))
        except ValueError:
            return None

    def _e_identifier(self, node: Node) -> Polynomial | Pointer | None:
        name = self.source.of(node)
        variable = self.lookup(name)
        if variable is None:  # a global, a macro or an enumerator
            number = constants(self.source).get(name)
            return Polynomial.symbol(Symbol(name)) if number is None else Polynomial.constant(number)
        if variable.reference:
            self.record(variable.value, node, writes=False)
            return None
        if variable.array:
            return Pointer(variable.symbol, Polynomial()) if not variable.private else Pointer(_PRIVATE, None)
        return variable.value

    def _children(self, node: Node) -> None:
        for child in node.named_children:
            self.expression(child)

    def _e_initializer_list(self, node: Node) -> None:
        self._children(node)

    def _e_argument_list(self, node: Node) -> None:
        self._children(node)

    def _e_subscript_argument_list(self, node: Node) -> Polynomial | Pointer | None:
        if len(node.named_children) != 1:
            raise Unsupported(f"line {node.start_point[0] + 1}: a subscript of several")
        return self.expression(node.named_children[0])

    def _e_condition_clause(self, node: Node) -> None:
        self._children(node)

    def _e_comma_expression(self, node: Node) -> None:
        self._children(node)

    def _e_parenthesized_expression(self, node: Node) -> Polynomial | Pointer | None:
        inner = [child for child in node.named_children if child.type != "comment"]
        return self.expression(inner[0])

    def _e_cast_expression(self, node: Node) -> Polynomial | Pointer | None:
        value = self.expression(node.child_by_field_name("value"))
        return self._cast(self.source.of(node.child_by_field_name("type")), value)

    def _cast(self, kind: str, value: Polynomial | Pointer | None) -> Polynomial | Pointer | None:
        if isinstance(value, Pointer):
            # The start of an array is its start in any unit; anything behind it would have to be counted anew.
            at_start = value.offset is not None and value.offset.value == 0 and kind.count("*") == 1
            unit = " ".join(word for word in kind.replace("*", " ").split() if word != "const")
            unit = aliases(self.source).get(unit, unit)
            return replace(value, offset=value.offset if at_start else None, unit=unit)
        return value if set(kind.replace("std::", "").split()) <= INTEGERS else None

    def _e_unary_expression(self, node: Node) -> Polynomial | None:
        value = self.expression(node.child_by_field_name("argument"))
        operator = self.source.of(node.child_by_field_name("operator"))
        if isinstance(value, Polynomial) and operator in "+-":
            return -value if operator == "-" else value
        return None

    def _e_conditional_expression(self, node: Node) -> None:
        self.branches += 1
        values = [self.expression(child) for child in node.named_children]
        self.branches -= 1
        if any(isinstance(value, Pointer) for value in values[1:]):
            raise Unsupported(f"line {node.start_point[0] + 1}: a choice between pointers")

    def _e_binary_expression(self, node: Node) -> Polynomial | Pointer | None:
        left = self.expression(node.child_by_field_name("left"))
        right = self.expression(node.child_by_field_name("right"))
        operator = self.source.of(node.child_by_field_name("operator"))
        if isinstance(left, Pointer) or isinstance(right, Pointer):
            if operator == "+":
                pointer, distance = (left, right) if isinstance(left, Pointer) else (right, left)
            elif operator == "-" and not isinstance(right, Pointer):
                pointer, distance = left, -right if isinstance(right, Polynomial) else None
            elif operator == "-" and isinstance(left, Pointer) and left.root == right.root != _PRIVATE:
                known = left.offset is not None and right.offset is not None and left.unit == right.unit
                return left.offset - right.offset if known else None
            else:
                return None
            if not isinstance(distance, Polynomial) or pointer.offset is None:
                return replace(pointer, offset=None)
            return replace(pointer, offset=pointer.offset + distance)
        if not isinstance(left, Polynomial) or not isinstance(right, Polynomial):
            return None
        match operator:
            case "+":
                return left + right
            case "-":
                return left - right
            case "*":
                return left * right
            case "/" | "%":
                if (whole := _quotient(left, right)) is not None:
                    return whole if operator == "/" else Polynomial()
                parts = frozenset(left.variables() | right.variables())
                text = f"{_text(left)}{operator}{_text(right)}"
                return Polynomial.symbol(Symbol(text, -1, parts, (left, right), operator))
        return None

    def _e_subscript_expression(self, node: Node) -> None:
        self.touch(node, writes=False)

    def _e_field_expression(self, node: Node) -> None:
        self.touch(node, writes=False)

    def _e_pointer_expression(self, node: Node) -> Pointer | None:
        if self.source.of(node.child_by_field_name("operator")) == "&":
            return self.address(node.child_by_field_name("argument"))
        self.touch(node, writes=False)
        return None

    def address(self, node: Node) -> Pointer:
        """Where an lvalue lives. A plain variable is an array of one."""
        match node.type:
            case "identifier":
                variable = self.lookup(self.source.of(node))
                if variable is None:
                    raise Unsupported(f"line {node.start_point[0] + 1}: {self.source.of(node)} is a global")
                if variable.reference:
                    return variable.value
                if isinstance(variable.value, Pointer):
                    raise Unsupported(f"line {node.start_point[0] + 1}: the address of a pointer")
                if not variable.array:
                    variable.value = None  # whoever has the address may change it
                return Pointer(_PRIVATE, None) if variable.private else Pointer(variable.symbol, Polynomial())
            case "parenthesized_expression":
                return self.address(node.named_children[0])
            case "subscript_expression":
                base = self.expression(node.child_by_field_name("argument"))
                index = self.expression(node.child_by_field_name("indices"))
                if not isinstance(base, Pointer):
                    raise Unsupported(f"line {node.start_point[0] + 1}: {self.source.of(node)} is not an array")
                known = base.offset is not None and isinstance(index, Polynomial)
                return replace(base, offset=base.offset + index if known else None)
            case "pointer_expression":
                base = self.expression(node.child_by_field_name("argument"))
            case "field_expression":
                argument = node.child_by_field_name("argument")
                if self.source.of(node.child_by_field_name("operator")) == ".":
                    return self.address(argument)
                base = self.expression(argument)
            case _:
                raise Unsupported(f"line {node.start_point[0] + 1}: {self.source.of(node)} is not understood")
        if not isinstance(base, Pointer):
            raise Unsupported(f"line {node.start_point[0] + 1}: {self.source.of(node)} is not a pointer")
        return base

    def referred(self, node: Node) -> Pointer:
        """The address of what a reference is bound to; binding counts as a read, which is at worst one too many."""
        pointer = self.address(node)
        self.record(pointer, node, writes=False)
        return pointer

    def touch(self, node: Node, *, writes: bool) -> None:
        if node.type == "field_expression" and not writes:
            argument = node.child_by_field_name("argument")
            if argument.type == "call_expression":
                self.expression(argument)
                return
            if argument.type == "identifier" and self.source.of(node.child_by_field_name("operator")) == ".":
                return
        self.record(self.address(node), node, writes=writes)

    def record(self, pointer: Pointer, node: Node, *, writes: bool) -> None:
        if self.inside and pointer.root != _PRIVATE:
            around, certain = tuple(self.inner), self.branches == 0
            access = Access(pointer.root, pointer.offset, writes, around, node, self.calling, certain, pointer.unit)
            self.effects.accesses.append(access)

    def _e_assignment_expression(self, node: Node) -> Polynomial | Pointer | None:
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        operator = self.source.of(node.child_by_field_name("operator"))
        value = self.expression(right)
        if left.type == "identifier":
            return self.assign(left, node, value if operator == "=" else None)
        if operator != "=":
            self.touch(left, writes=False)
        self.touch(left, writes=True)
        return value

    def assign(self, name: Node, node: Node, value: Polynomial | Pointer | None) -> Polynomial | Pointer | None:
        text = self.source.of(name)
        variable = self.lookup(text)
        if variable is None:
            raise Unsupported(f"line {node.start_point[0] + 1}: writes {text}, a global")
        if variable.array:
            raise Unsupported(f"line {node.start_point[0] + 1}: writes {text} as a whole")
        if variable.reference:
            self.record(variable.value, node, writes=True)
            return None
        if self.inside and not variable.private:
            self.effects.carried.append(Carried(text, node))
        if isinstance(variable.value, Pointer) and not isinstance(value, Pointer):
            value = replace(variable.value, offset=None)
        variable.value = value
        return value

    def _e_update_expression(self, node: Node) -> None:
        argument = node.child_by_field_name("argument")
        if argument.type == "identifier":
            self.assign(argument, node, None)
        else:
            self.touch(argument, writes=True)

    def _e_call_expression(self, node: Node) -> Polynomial | Pointer | None:
        called = node.child_by_field_name("function")
        arguments = [a for a in node.child_by_field_name("arguments").named_children if a.type != "comment"]
        if called.type == "field_expression":
            return self.method(called, arguments)
        base = called.child_by_field_name("name") if called.type == "template_function" else called
        name = self.source.of(base).removeprefix("::").removeprefix("std::")
        own = [f for f in self.functions.get(name, ()) if len(f.parameters) == len(arguments)]
        values = [
            self.referred(argument)
            if any(f.parameters[place][0] in f.references for f in own) and argument.type in _LVALUES
            else self.expression(argument)
            for place, argument in enumerate(arguments)
        ]
        if called.type == "parenthesized_expression" and len(values) == 1:  # `(float)(x)` reads like a call
            return self._cast(self.source.of(called)[1:-1], values[0])
        if called.type == "qualified_identifier" and called.child_by_field_name("name").type == "template_function":
            name = self.source.of(called.child_by_field_name("name").child_by_field_name("name"))
        if own:
            self.called(name)
            return self.call(own, values, node)
        if name in _CASTS:
            kind = self.source.of(called).partition("<")[2].rpartition(">")[0] or name
            return self._cast(kind, values[0]) if len(values) == 1 else None
        if name in {"memcpy", "__builtin_memcpy", "memmove"} and len(values) == 3:
            for value, writes in ((values[0], True), (values[1], False)):
                if not isinstance(value, Pointer):
                    raise Unsupported(f"line {node.start_point[0] + 1}: memcpy of {self.source.of(node)}")
                self.record(replace(value, offset=None), node, writes=writes)
            return None
        if "numeric_limits" in name:
            return None
        if name.startswith("_mm"):
            self.called(name)
            return self.intrinsic(name, values, node)
        if name not in PURE:
            raise Unsupported(f"line {node.start_point[0] + 1}: calls {name}, whose effects are unknown")
        self.called(name)
        for value in values:
            if isinstance(value, Pointer):
                raise Unsupported(f"line {node.start_point[0] + 1}: {name} takes a pointer")
        known = [value for value in values if isinstance(value, Polynomial)]
        if name in {"min", "max"} and len(known) == 2 == len(values):
            parts = frozenset(known[0].variables() | known[1].variables())
            return Polynomial.symbol(
                Symbol(f"{name}({_text(known[0])},{_text(known[1])})", -1, parts, tuple(known), name)
            )
        return None

    def intrinsic(self, name: str, values: list[Polynomial | Pointer | None], node: Node) -> None:
        """A vector instruction: those on memory touch up to as many elements of the pointer's type as their vector has."""
        pointers = [value for value in values if isinstance(value, Pointer)]
        words = name.strip("_").split("_")
        writes = bool({"store", "storeu", "stream", "maskstore"} & set(words))
        reads = bool({"load", "loadu", "lddqu", "maskload", "broadcast", "i32gather"} & set(words))
        if not pointers or name == "_mm_prefetch":
            return
        if len(pointers) != 1 or reads == writes:
            raise Unsupported(f"line {node.start_point[0] + 1}: calls {name}, whose effects are unknown")
        (pointer,) = pointers
        widths = {"mm": 128, "mm256": 256, "mm512": 512}
        sizes = {"ps": 32, "pd": 64, "ss": 0, "sd": 0}  # of one element
        if pointer.offset is not None and words[-1] in sizes and words[0] in widths and "i32gather" not in words:
            count = widths[words[0]] // sizes[words[-1]] if sizes[words[-1]] else 1
            lane = Iteration(Symbol("lane", node.start_byte), Polynomial(), Polynomial.constant(count - 1))
            self.inner.append(lane)
            moved = replace(pointer, offset=pointer.offset + Polynomial.symbol(lane.symbol))
            self.record(moved, node, writes=writes)
            self.inner.pop()
        else:
            self.record(replace(pointer, offset=None), node, writes=writes)

    def method(self, called: Node, arguments: list[Node]) -> Polynomial | Pointer | None:
        """`v.data()` and `v.size()` of a vector; a method that the file defines, on a variable of the iteration's own."""
        source, owner, name = self.source, called.child_by_field_name("argument"), called.child_by_field_name("field")
        variable = self.lookup(source.of(owner)) if owner.type == "identifier" else None
        if variable is None or source.of(called.child_by_field_name("operator")) != ".":
            raise Unsupported(f"line {called.start_point[0] + 1}: calls {source.of(called)}, whose effects are unknown")
        if variable.array and not arguments and source.of(name) in {"data", "begin"}:
            return self.expression(owner)
        if variable.array and not arguments and source.of(name) == "size":
            return variable.size or Polynomial.symbol(Symbol(f"{source.of(called)}()", variable.symbol.where))
        own = [
            function
            for function in self.functions.get(source.of(name), ())
            if len(function.parameters) == len(arguments)
            and _fields(source, function) is not None
            and source.of(function.node.parent.parent.child_by_field_name("name")) == declared_type(source, owner)
        ]
        if len(own) != 1 or variable.array or isinstance(variable.value, Pointer) or self.depth >= 8:
            raise Unsupported(f"line {called.start_point[0] + 1}: calls {source.of(called)}, whose effects are unknown")
        if self.inside and not variable.private:
            self.effects.carried.append(Carried(source.of(owner), called))
        values = [self.expression(argument) for argument in arguments]
        if any(isinstance(value, Pointer) for value in values):
            raise Unsupported(f"line {called.start_point[0] + 1}: {source.of(called)} takes a pointer")
        self.fields = _fields(source, own[0])
        self.call(own, values, called.parent)
        return None

    def called(self, name: str) -> None:
        if self.inside:
            self.effects.calls.add(name)

    def call(self, own: list[Function], values: list, node: Node) -> Polynomial | Pointer | None:
        if self.depth >= 8:
            raise Unsupported(f"line {node.start_point[0] + 1}: calls are nested too deeply, or recursive")
        saved, kept, results = self.scopes, self.returned, []
        outermost = self.depth == 0
        if outermost:
            self.calling = node
        for function in own:
            self.scopes, self.returned = [{}], []
            if outermost:
                given = [a for a in node.child_by_field_name("arguments").named_children if a.type != "comment"]
                names = [name for name, _, _ in function.parameters]
                self.arguments = dict(zip(names, given, strict=True))
            for name in self.fields:  # of the object, which is the iteration's own
                self.declare(name, function.node.start_byte, None)
                self.scopes[-1][name].private = True
            self.fields = frozenset()
            for (name, _, _), value in zip(function.parameters, values, strict=True):
                self.declare(name, function.node.start_byte, value)
                self.scopes[-1][name].private = True
                self.scopes[-1][name].reference = name in function.references and isinstance(value, Pointer)
            self.depth += 1
            self.statement(function.body)
            self.depth -= 1
            results.extend(self.returned)
        self.scopes, self.returned = saved, kept
        if outermost:
            self.calling = None
        return results[0] if len(results) == 1 and len(own) == 1 else None


def _quotient(left: Polynomial, right: Polynomial) -> Polynomial | None:
    """left / right where every term of it divides without a rest, by a number or a product; None otherwise."""
    if len(right.terms) != 1:
        return None
    ((monomial, factor),) = right.terms
    terms = []
    for product, coefficient in left.terms:
        if not _multiple(product, coefficient, right):
            return None
        rest = list(product)
        for symbol in monomial:
            rest.remove(symbol)
        terms.append((tuple(rest), coefficient // factor))
    return Polynomial.of(terms)


def _last_step(low: Polynomial | None, end: Polynomial, step: Polynomial | Pointer | None) -> int:
    """How far before its end a loop stops at the latest: a whole step, where whole steps lead from 0 to the end."""
    size = step.value if isinstance(step, Polynomial) else None
    whole = low is not None and low.value == 0 and size is not None and size > 0
    return size if whole and all(c % size == 0 for _, c in end.terms) else 1


def _fields(source: Source, function: Function) -> frozenset[str] | None:
    """The plain members of the struct that a function is a method of; None for any other function."""
    body = function.node.parent
    if (
        body is None
        or body.type != "field_declaration_list"
        or body.parent.type not in {"struct_specifier", "class_specifier"}
    ):
        return None
    names = set()
    for node in body.named_children:
        if node.type == "field_declaration":
            declarators = node.children_by_field_name("declarator")
            if source.of(node).startswith("static") or any(d.type != "field_identifier" for d in declarators):
                return None
            names |= {source.of(declarator) for declarator in declarators}
    return frozenset(names)


_PRIVATE = Symbol("(private)")
_SIZE = -2
"""Where parameters of the analysed function are said to be defined: those that are integers are sizes."""


def _text(value: Polynomial) -> str:
    terms = sorted((" ".join(f"{s.text}#{s.where}" for s in monomial), c) for monomial, c in value.terms)
    return "(" + "+".join(f"{c}*{text}" for text, c in terms) + ")"


def effects(source: Source, loop: Loop, whole_steps: list[tuple[Node, int]] | None = None) -> Effects:
    """What one iteration of `loop` does. Raises Unsupported naming the first thing that is not understood.

    Given a list, loops by several are taken to end after a whole step; the list gets (bound, step) of each such loop.
    """
    definition = enclosing_function(loop.node)
    if definition is None:
        raise Unsupported("the loop is in no function")
    name_of = next(f for group in functions(source).values() for f in group if f.node == definition)
    interpreter = _Interpreter(source, loop)
    interpreter.whole_steps = whole_steps
    for name, _, pointer in name_of.parameters:
        symbol = Symbol(name, _SIZE)
        value = Pointer(symbol, Polynomial()) if pointer else Polynomial.symbol(symbol)
        interpreter.scopes[-1][name] = _Variable(symbol, value, False)
    _run_to(interpreter, name_of.body, loop)
    found = interpreter.effects
    touched = {access.root.text for access in found.accesses}
    for written in {access.root.text for access in found.accesses if access.writes}:
        for other in touched - {written}:
            if _overlap(source, name_of, written, other):
                raise Unsupported(f"a caller passes one array as {written} and as {other}")
    return found


def _overlap(source: Source, function: Function, first: str, second: str, depth: int = 0) -> bool:
    """Whether some call in the file hands the same array to two pointer parameters of a function."""
    names = [name for name, _, pointer in function.parameters if pointer]
    if first not in names or second not in names or depth > 4:
        return depth > 4
    places = [[name for name, _, _ in function.parameters].index(name) for name in (first, second)]
    for call in calls(source).get(function.name, ()):
        arguments = [a for a in call.child_by_field_name("arguments").named_children if a.type != "comment"]
        caller = enclosing_function(call)
        if len(arguments) != len(function.parameters) or caller is None:
            continue
        roots = [root_name(source, arguments[place]) for place in places]
        if roots[0] == roots[1]:
            return True
        outer = next((f for group in functions(source).values() for f in group if f.node == caller), None)
        if outer is not None and _overlap(source, outer, roots[0], roots[1], depth + 1):
            return True
    return False


def root_name(source: Source, node: Node) -> str:
    """The leftmost name of an address, followed through the pointers that its function declares."""
    function = enclosing_function(node)
    while node.type != "identifier":
        inner = node.child_by_field_name("left") or node.child_by_field_name("argument")
        if inner is None and node.type == "call_expression":
            inner = node.child_by_field_name("arguments")
        if inner is None:
            if not node.named_children:
                return source.of(node)
            inner = node.named_children[-1]
        node = inner
    name = source.of(node)
    for declaration in source.walk(function, "declaration") if function is not None else ():
        for declarator in declaration.children_by_field_name("declarator"):
            if declarator.type != "init_declarator" or declaration.end_byte > node.start_byte:
                continue
            pointer = declarator.child_by_field_name("declarator")
            if pointer.type == "pointer_declarator" and identifiers(source, pointer) == {name}:
                return root_name(source, declarator.child_by_field_name("value"))
    return name


def _run_to(interpreter: _Interpreter, node: Node, loop: Loop) -> None:
    """Interprets what stands before `loop` in the enclosing blocks, then the loop itself."""
    for child in node.named_children:
        if child.start_byte <= loop.node.start_byte and loop.node.end_byte <= child.end_byte:
            if child == loop.node:
                interpreter.run(loop)
            elif child.type == "for_statement":
                outer = canonical(interpreter.source, child)
                if outer is None:
                    interpreter.forget(child)
                    _run_to(interpreter, child, loop)
                    return
                interpreter.forget(outer.body)
                symbol = Symbol(outer.variable, child.start_byte)
                interpreter.scopes.append({outer.variable: _Variable(symbol, Polynomial.symbol(symbol), False)})
                if outer.body == loop.node:
                    interpreter.run(loop)
                else:
                    _run_to(interpreter, outer.body, loop)
            else:
                interpreter.forget(child)
                _run_to(interpreter, child, loop)
            return
        # A statement that is not understood makes what it may assign unknown, and nothing else.
        try:
            if child.type == "declaration":
                interpreter.statement(child)
            else:
                interpreter.forget(child)
        except Unsupported:
            for declarator in child.children_by_field_name("declarator"):
                inner = declarator.child_by_field_name("declarator") or declarator
                interpreter.declare(interpreter.source.of(inner), inner.start_byte, None)


# --- conclusions ---------------------------------------------------------------------------------------------------


def _not_negative(value: Polynomial) -> bool:
    """True where the value cannot be negative for sizes >= 1 and loop variables >= 0."""
    if all(c >= 0 for _, c in value.terms):
        return True
    shifted = _without_quotients(value)
    for symbol in value.symbols:
        if symbol.where == _SIZE:
            shifted = shifted.substitute(symbol, Polynomial.symbol(symbol) + Polynomial.constant(1))
    return all(c >= 0 for _, c in shifted.terms)


def _without_quotients(value: Polynomial) -> Polynomial:
    """Not more than the value: where `a / b * b` is taken away, a is, which is no less."""
    total = Polynomial()
    for monomial, coefficient in value.terms:
        quotient = next((s for s in monomial if s.operator == "/"), None) if coefficient < 0 else None
        term = Polynomial.of([(monomial, coefficient)])
        if quotient is not None:
            rest = list(monomial)
            rest.remove(quotient)
            dividend, divisor = quotient.operands
            factor = _quotient(Polynomial.of([(tuple(rest), coefficient)]), divisor)
            term = term if factor is None else factor * dividend
        total = total + term
    return total


def _range(value: Polynomial, inner: tuple[Iteration, ...]) -> tuple[Polynomial, Polynomial] | None:
    """Smallest and largest value over the loops inside, None where that is not known."""
    low = high = value
    for iteration in reversed(inner):
        if not value.depends_on(iteration.symbol):
            continue
        if iteration.low is None or iteration.high is None:
            return None
        for end in (low, high):
            if not _not_negative(end.coefficient(iteration.symbol)):
                return None
        low = low.substitute(iteration.symbol, iteration.low)
        high = high.substitute(iteration.symbol, iteration.high)
    for symbol in value.symbols:
        if symbol.operator == "%" and any(symbol.depends_on(iteration.symbol) for iteration in inner):
            if not all(_not_negative(end.coefficient(symbol)) for end in (low, high)):
                return None
            low = low.substitute(symbol, Polynomial())
            high = high.substitute(symbol, symbol.operands[1] - Polynomial.constant(1))
    if any(end.depends_on(iteration.symbol) for end in (low, high) for iteration in inner):
        return None
    return low, high


def _multiple(monomial: tuple[Symbol, ...], coefficient: int, of: Polynomial) -> bool:
    """Whether a term is a multiple of a single-term polynomial."""
    if len(of.terms) != 1:
        return False
    ((base, factor),) = of.terms
    left = list(monomial)
    for symbol in base:
        if symbol not in left:
            return False
        left.remove(symbol)
    return coefficient % factor == 0


def independent(effects: Effects) -> str:
    """ "" where no two iterations touch one element that either of them writes, or why that is not known.

    With `v` the loop's variable, every access to a root that is written must be `S * v + low + high`: one stride `S`
    for all, `low` inside one window of `S` elements, `high` a multiple of the whole span `S * extent`.
    """
    variable = effects.iteration.symbol
    written = {access.root for access in effects.accesses if access.writes}
    for root in written:
        windows: list[tuple[Polynomial, Polynomial]] = []
        strides: set[Polynomial] = set()
        if len({access.unit for access in effects.accesses if access.root == root}) > 1:
            return f"{root.text} is accessed as two types"
        for access in (a for a in effects.accesses if a.root == root):
            line = access.node.start_point[0] + 1
            if access.offset is None:
                return f"line {line}: which element of {root.text} is meant is not known"
            stride = access.offset.coefficient(variable)
            rest = access.offset.without(variable)
            if rest.depends_on(variable) or stride.depends_on(variable):
                return f"line {line}: the index of {root.text} is not linear in {variable.text}"
            if any(stride.depends_on(iteration.symbol) for iteration in access.inner):
                return f"line {line}: the stride of {root.text} changes"
            if not _not_negative(stride - Polynomial.constant(1)):
                return f"line {line}: {root.text} is indexed without {variable.text}, or backwards"
            strides.add(stride)
            start, last = effects.iteration.low, effects.iteration.high
            if start is not None and last is not None and start.value == 0:
                span = stride * (last + Polynomial.constant(1))
                rest = Polynomial.of((m, c) for m, c in rest.terms if not _multiple(m, c, span))
            found = _range(rest, access.inner)
            if found is None:
                return f"line {line}: the range of {root.text}'s index is not known"
            windows.append(found)
        if len(strides) != 1:
            return f"{root.text} is indexed with several strides"
        (stride,) = strides
        apart = stride * Polynomial.constant(effects.iteration.step)
        for low, _ in windows:
            for _, high in windows:
                if not _not_negative(apart - Polynomial.constant(1) - (high - low)):
                    return f"iterations of {variable.text} overlap in {root.text}"
    return ""


def reductions(source: Source, effects: Effects) -> dict[str, str] | None:
    """OpenMP reduction operator of each variable that the loop carries; None where one is not a reduction."""
    found: dict[str, str] = {}
    for carried in effects.carried:
        operator = _reduction(source, carried)
        if operator is None or found.setdefault(carried.name, operator) != operator:
            return None
    for name in found:
        uses = [n for n in source.walk(effects.loop.body, "identifier") if source.of(n) == name]
        own = [carried.node for carried in effects.carried if carried.name == name]
        statements = [_statement_of(node) for node in own]
        if any(not any(s.start_byte <= use.start_byte < s.end_byte for s in statements) for use in uses):
            return None
    return found


def unordered(
    source: Source,
    loop: Loop,
    private: frozenset[str] = frozenset(),
    whole_steps: list[tuple[Node, int]] | None = None,
) -> tuple[Effects, dict[str, str]]:
    """What an iteration does and what the loop reduces (variable -> operator), where iterations may run in any order.

    `private` names arrays of which every thread gets its own; `whole_steps` as for `effects`. Raises Unsupported where
    iterations may not, or where that is not known.
    """
    found = effects(source, loop, whole_steps)
    carried = reductions(source, found)
    if carried is None:
        raise Unsupported("a variable that an iteration takes from the one before")
    shared = [access for access in found.accesses if access.root.text not in private or access.root.where < 0]
    if why := independent(replace(found, accesses=shared)):
        raise Unsupported(why)
    return found, carried


def scratch_arrays(source: Source, loop: Loop) -> frozenset[str]:
    """Arrays and vectors declared before a loop that every iteration fills before it reads them, and nothing else names."""
    found, names = effects(source, loop), set()
    function = enclosing_function(loop.node)
    for root in {access.root for access in found.accesses if access.root.where >= 0}:
        mentions = [n for n in source.walk(function, "identifier") if source.of(n) == root.text]
        inside = [n for n in mentions if loop.body.start_byte <= n.start_byte < loop.body.end_byte]
        first, *others = (access for access in found.accesses if access.root == root)
        if any(access.unit for access in (first, *others)):
            continue
        if len(mentions) == len(inside) + 1 and _fills(first) and all(_filled_before(first, other) for other in others):
            names.add(root.text)
    return frozenset(names)


def _fills(access: Access) -> bool:
    """Whether an access writes all elements from 0 up to the last that its loop counts."""
    if not (access.writes and access.certain and len(access.inner) == 1 and access.offset is not None):
        return False
    (inner,) = access.inner
    counts = inner.low is not None and inner.low.value == 0 and inner.high is not None
    return counts and access.offset == Polynomial.symbol(inner.symbol)


def _filled_before(first: Access, other: Access) -> bool:
    found = _range(other.offset, other.inner) if other.offset is not None else None
    return found is not None and _not_negative(found[0]) and _not_negative(first.inner[0].high - found[1])


def reduction_clauses(carried: dict[str, str]) -> str:
    """As OpenMP has them, each behind a space."""
    return "".join(f" reduction({operator}:{name})" for name, operator in carried.items())


def declared_names(source: Source, node: Node) -> set[str]:
    """Variables that are declared anywhere below."""
    names = set()
    for declaration in source.walk(node, "declaration"):
        for declarator in declaration.children_by_field_name("declarator"):
            here: Node | None = declarator
            while here is not None and here.type != "identifier":
                here = here.child_by_field_name("declarator") or next(iter(reversed(here.named_children)), None)
            names.add(source.of(here))
    return names


def _statement_of(node: Node) -> Node:
    """The statement of a reduction: the assignment, or the `if (x > m) m = x` around it."""
    here = node.parent
    while here.parent is not None and here.parent.type in {"compound_statement", "if_statement", "else_clause"}:
        if here.parent.type == "compound_statement" and len(here.parent.named_children) > 1:
            break
        if here.parent.type == "compound_statement" and here.parent.parent.type != "if_statement":
            break
        here = here.parent
    return here if here.type == "if_statement" else node


def _plain(node: Node | None) -> Node | None:
    while node is not None and node.type == "parenthesized_expression":
        node = node.named_children[0]
    return node


_EXTREMES = {
    "max": "max", "fmaxf": "max", "fmax": "max", "simd_max": "max",
    "min": "min", "fminf": "min", "fmin": "min", "simd_min": "min",
}  # fmt: skip


def _reduction(source: Source, carried: Carried) -> str | None:
    node, name = carried.node, carried.name
    if node.type != "assignment_expression":
        return "+" if node.type == "update_expression" and "++" in source.of(node) else None
    operator = source.of(node.child_by_field_name("operator"))
    right = _plain(node.child_by_field_name("right"))
    mentions = name in identifiers(source, right)
    if operator in {"+=", "-=", "*="}:
        return None if mentions else {"+=": "+", "-=": "-", "*=": "*"}[operator]
    if operator != "=":
        return None
    if right.type == "binary_expression" and source.of(right.child_by_field_name("operator")) in {"+", "*"}:
        sides = [right.child_by_field_name("left"), right.child_by_field_name("right")]
        others = [side for side in sides if source.of(side) != name]
        if len(others) == 1 and name not in identifiers(source, others[0]):
            return source.of(right.child_by_field_name("operator"))
        return None
    if right.type == "call_expression":
        called = source.of(right.child_by_field_name("function")).removeprefix("std::").partition("<")[0]
        kind = _EXTREMES.get(called)
        arguments = right.child_by_field_name("arguments").named_children
        others = [argument for argument in arguments if source.of(argument) != name]
        if called in {"fma", "fmaf"} and len(arguments) == 3 and source.of(arguments[2]) == name:
            return "+" if not any(name in identifiers(source, factor) for factor in arguments[:2]) else None
        own = len(arguments) == 2 and len(others) == 1 and name not in identifiers(source, others[0])
        return kind if own else None
    if right.type == "conditional_expression":
        condition = _plain(right.child_by_field_name("condition"))
        chosen, other = right.child_by_field_name("consequence"), right.child_by_field_name("alternative")
        return _extreme(source, name, condition, source.of(chosen), source.of(other))
    statement = _statement_of(node)
    if statement.type == "if_statement" and statement.child_by_field_name("alternative") is None:
        clause = statement.child_by_field_name("condition")
        condition = _plain(clause.child_by_field_name("value") or clause)
        return _extreme(source, name, condition, source.of(right), name)
    return None


def _extreme(source: Source, name: str, condition: Node, chosen: str, other: str) -> str | None:
    """`max` or `min` for `chosen > other ? chosen : other`, one of them being the variable."""
    if condition is None or condition.type != "binary_expression" or name not in {chosen, other}:
        return None
    left, right = (source.of(condition.child_by_field_name(side)) for side in ("left", "right"))
    compare = source.of(condition.child_by_field_name("operator"))
    if {left, right} != {chosen, other} or chosen == other or compare not in {">", "<", ">=", "<="}:
        return None
    return "max" if (compare[0] == ">") == (left == chosen) else "min"
