"""What a C++ candidate declares: functions, aliases, constants, the types of names; and questions to single nodes of its tree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

from nodes.rewrites.syntax.source import Source, Unsupported
from nodes.rewrites.syntax.tree import children_of

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
INTEGERS = frozenset({
    "int", "long", "short", "unsigned", "size_t", "ssize_t", "ptrdiff_t", "auto", "int64_t", "int32_t", "int16_t",
    "uint64_t", "uint32_t", "uint16_t",
})  # fmt: skip
_FLOAT_CALLS = {"static_cast<float>", "float", "simd_max", "simd_min", *(f"{name}f" for name in _MATH)}


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
    here = node.parent
    while here is not None and here.type != "function_definition":
        here = here.parent
    return here


def name_of(declarator: Node | None) -> Node | None:
    """The identifier that a declarator declares, behind its stars, brackets and initial value."""
    while declarator is not None and declarator.type != "identifier":
        inner = declarator.child_by_field_name("declarator")
        declarator = inner or next(iter(reversed(declarator.named_children)), None)
    return declarator


def declared_names(source: Source, node: Node) -> set[str]:
    """Variables that are declared anywhere below."""
    found = (here.children_by_field_name("declarator") for here in source.walk(node, "declaration"))
    return {source.of(name_of(declarator)) for declarators in found for declarator in declarators}


def assignments(source: Source, node: Node) -> Iterator[tuple[str, Node]]:
    """(variable, node) of every assignment, increment and address taken below `node`."""
    for here in source.walk(node, "assignment_expression", "update_expression", "pointer_expression"):
        if here.type == "pointer_expression" and not source.of(here).startswith("&"):
            continue
        target = here.child_by_field_name("left" if here.type == "assignment_expression" else "argument")
        if target is not None and target.type == "identifier":
            yield source.of(target), here


def changed_names(source: Source, node: Node) -> set[str]:
    """Variables that are assigned, or whose address is taken, anywhere below."""
    return {name for name, _ in assignments(source, node)}


def pragma_node(source: Source, node: Node) -> Node | None:
    """The pragma that applies to this statement."""
    before = node.prev_named_sibling
    while before is not None and before.type == "comment":
        before = before.prev_named_sibling
    return before if before is not None and before.type == "preproc_call" else None


def pragma_before(source: Source, node: Node) -> str:
    """The text of the pragma that applies to this statement, "" for none."""
    return source.of(pragma_node(source, node)).strip()


def indentation(source: Source, node: Node) -> str:
    """The white space before the node on its line; raises Unsupported where something else stands there."""
    start = source.data.rfind(b"\n", 0, node.start_byte) + 1
    before = source.data[start : node.start_byte].decode()
    if before.strip():
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


def functions(source: Source) -> dict[str, list[Function]]:
    """The functions that the file defines, by name; several for overloads."""
    # Kept beside the tree of this very object: nodes of another tree of the same text are other nodes.
    if "functions" not in source.__dict__:
        source.__dict__["functions"] = _functions(source)
    return source.__dict__["functions"]


def _functions(source: Source) -> dict[str, list[Function]]:
    found: dict[str, list[Function]] = {}
    for node in source.walk(None, "function_definition"):
        declarator, body = fields(node, "declarator", "body")
        while declarator is not None and declarator.type != "function_declarator":
            declarator = declarator.child_by_field_name("declarator") or _only_declarator(declarator)
        if declarator is None or body is None or body.type != "compound_statement" or node.has_error:
            continue
        # `load<float>`, a specialisation, is one more `load`.
        inner, listed = fields(declarator, "declarator", "parameters")
        name = source.of(inner).partition("<")[0].strip()
        kinds = {"parameter_declaration", "optional_parameter_declaration"}
        parameters = tuple(_parameter(source, child) for child in listed.named_children if child.type in kinds)
        references = frozenset(
            source.of(next(source.walk(declared, "identifier")))
            for declared in source.walk(listed, "reference_declarator")
            if any(source.walk(declared, "identifier"))
        )
        found.setdefault(name, []).append(Function(name, node, parameters, references, body))
    return found


def _only_declarator(node: Node) -> Node | None:
    named = [child for child in node.named_children if child.type.endswith("declarator")]
    return named[0] if len(named) == 1 else None


def _parameter(source: Source, node: Node) -> tuple[str, str, bool]:
    declarator, pointer = node.child_by_field_name("declarator"), False
    name = name_of(declarator)
    while declarator is not None and declarator != name:
        pointer = pointer or declarator.type in {"pointer_declarator", "array_declarator", "reference_declarator"}
        inner = declarator.child_by_field_name("declarator")
        declarator = inner or next(iter(reversed(declarator.named_children)), None)
    return source.of(name), source.of(node, "type"), pointer


def function_of(source: Source, definition: Node) -> Function | None:
    """The function that a function_definition is."""
    return next((f for group in functions(source).values() for f in group if f.node == definition), None)


def aliases(source: Source) -> dict[str, str]:
    """What `typedef uint16_t half_t;` and `using half_t = uint16_t;` name, followed to the end."""
    if "aliases" not in source.__dict__:
        found: dict[str, str] = {}
        for node in source.walk(None, "type_definition", "alias_declaration"):
            name, kind = fields(node, "declarator" if node.type == "type_definition" else "name", "type")
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
            name, value = map(source.of, fields(node, "name", "value"))
            found.setdefault(name, []).append(value.strip())
        for node in source.walk(None, "declaration"):
            fixed = {"const", "constexpr"} & set(source.of(node).split("=")[0].split())
            for declarator in node.children_by_field_name("declarator"):
                if declarator.type == "init_declarator" and fixed and enclosing_function(node) is None:
                    name, value = map(source.of, fields(declarator, "declarator", "value"))
                    found.setdefault(name, []).append(value)
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
            found.setdefault(source.of(node, "function").partition("<")[0], []).append(node)
        source.__dict__["calls"] = found
    return source.__dict__["calls"]


# --- types ---------------------------------------------------------------------------------------------------------


def declared_type(source: Source, node: Node) -> str:
    """The type, without pointers, that the nearest declaration before an identifier gives its name, "" for none."""
    function, name, found = enclosing_function(node), source.of(node), ""
    if function is None:
        return ""
    for here in source.walk(function, "declaration", "parameter_declaration"):
        if here.start_byte > node.start_byte:
            break
        if any(source.of(name_of(declarator)) == name for declarator in here.children_by_field_name("declarator")):
            found = source.of(here, "type")
    return aliases(source).get(found, found)


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


def initial_value(source: Source, node: Node) -> Node | None:
    """What the one local constant of an identifier's name is initialised with."""
    found = []
    for here in source.walk(enclosing_function(node), "declaration"):
        for declarator in here.children_by_field_name("declarator"):
            if source.of(node) in identifiers(source, declarator.child_by_field_name("declarator") or declarator):
                fixed = {"const", "constexpr"} & set(source.of(here).split())
                found.append(declarator.child_by_field_name("value") if fixed else None)
    return found[0] if len(found) == 1 else None


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
            pointer, value = fields(declarator, "declarator", "value")
            if pointer.type == "pointer_declarator" and identifiers(source, pointer) == {name}:
                return root_name(source, value)
    return name


def may_be_one(source: Source, function: Function, first: str, second: str, depth: int = 0) -> bool:
    """Whether some call in the file hands the same array to two pointer parameters of a function."""
    names = [name for name, _, pointer in function.parameters if pointer]
    if first not in names or second not in names or depth > 4:
        return depth > 4
    places = [[name for name, _, _ in function.parameters].index(name) for name in (first, second)]
    for call in calls(source).get(function.name, ()):
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
