"""Algorithms of the standard library become the loops that they are, and lambdas become functions or part of their caller.

    std::transform(x, x + n, y, [](float v) { return v * v; });    for (i ...) { const float v = x[i]; y[i] = v * v; }
    const float s = std::accumulate(x, x + n, 0.0f);               float s = 0.0f; for (i ...) { s += x[i]; }
    std::memset(y, 0, n * sizeof(float));                          for (i ...) { y[i] = 0; }
    auto f = [](float v) { return v * v; };                        static inline float f(float v) { return v * v; }
    auto work = [&](int64_t row) { ... };  work(r);                { const int64_t row = r; ... }

Only over pointers and vectors whose declarations are in sight. Changes nothing by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tree_sitter import Node

from nodes.rewrites.analysis.host_source import (
    aliases,
    assignments,
    declared_names,
    declared_type,
    enclosing_function,
    functions,
    identifiers,
    is_float,
    vector_of,
)
from nodes.rewrites.registry import rule
from nodes.rewrites.syntax.insert import free, remove
from nodes.rewrites.syntax.source import Edits, Source, Unsupported, inside

_PLAIN = frozenset(
    {
        "float",
        "double",
        "int",
        "int8_t",
        "uint8_t",
        "int16_t",
        "uint16_t",
        "int32_t",
        "uint32_t",
        "int64_t",
        "size_t",
        "_Float16",
    }
)


@dataclass(frozen=True)
class _Array:
    """Elements from `start` on, `base[start + i]`."""

    base: str
    start: str
    """"" for 0."""
    kind: str
    """Type of an element."""
    node: Node

    def at(self, index: str) -> str:
        return f"{self.base}[{self.start} + {index}]" if self.start else f"{self.base}[{index}]"


@rule(
    "cpu",
    expected="nothing by itself: later steps see the loops that library calls and lambdas are",
    normalizes=True,
)
def rewrite(source: Source, facts: object) -> str | None:
    text = source.text
    for _ in range(64):
        current = Source(text, source.language)
        new = next(_steps(current), None)
        if new is None:
            break
        text = new
    return text if text != source.text else None


def _steps(source: Source) -> Iterator[str]:
    for node in source.walk(None, "call_expression"):
        name = source.of(node.child_by_field_name("function")).removeprefix("std::")
        # Innermost first would take a lambda's own calls apart before the call that the lambda belongs to.
        form = _ALGORITHMS.get(name)
        if form is not None and not node.has_error and enclosing_function(node) is not None:
            yield from _try(source, lambda edits, node=node, form=form: form(source, node, edits))
    for node in source.walk(None, "declaration"):
        declarator = node.child_by_field_name("declarator")
        value = declarator.child_by_field_name("value") if declarator is not None else None
        if value is not None and value.type == "lambda_expression" and not node.has_error:
            yield from _try(source, lambda edits, node=node: _named_lambda(source, node, edits))


def _try(source: Source, form: Callable[[Edits], None]) -> Iterator[str]:
    edits = Edits(source)
    try:
        form(edits)
        yield edits.apply()
    except Unsupported:
        return


# --- algorithms ----------------------------------------------------------------------------------------------------


def _transform(source: Source, node: Node, edits: Edits) -> None:
    arguments = _arguments(node)
    if len(arguments) not in {4, 5}:
        raise Unsupported("not the form of one or two ranges")
    first, count = _counted(source, node, arguments[0], arguments[1])
    inputs = [first, *(_array(source, argument) for argument in arguments[2:-2])]
    output = _array(source, arguments[-2])
    loop = _Loop(source, node, count)
    lines, value = _applied(source, arguments[-1], [each.at(loop.counter) for each in inputs], inputs, loop.taken)
    loop.replace(edits, [*lines, f"{output.at(loop.counter)} = {value};"])


def _for_each(source: Source, node: Node, edits: Edits) -> None:
    arguments = _arguments(node)
    if len(arguments) != 3:
        raise Unsupported("another form")
    array, count = _counted(source, node, arguments[0], arguments[1])
    loop = _Loop(source, node, count)
    lambda_ = _Lambda(source, arguments[2])
    if len(lambda_.parameters) != 1 or lambda_.returned is not None:
        raise Unsupported("a function of another form")
    lines = lambda_.body({lambda_.parameters[0][0]: array.at(loop.counter)})
    loop.replace(edits, lines)


def _fill(source: Source, node: Node, edits: Edits) -> None:
    first, second, value = _arguments(node)
    if source.of(node.child_by_field_name("function")).endswith("_n"):
        array, count = _array(source, first), source.of(second)
    else:
        array, count = _counted(source, node, first, second)
    _invariant(source, value)
    loop = _Loop(source, node, count)
    loop.replace(edits, [f"{array.at(loop.counter)} = {source.of(value)};"])


def _copy(source: Source, node: Node, edits: Edits) -> None:
    first, second, third = _arguments(node)
    if source.of(node.child_by_field_name("function")).endswith("_n"):
        array, count = _array(source, first), source.of(second)
    else:
        array, count = _counted(source, node, first, second)
    output = _array(source, third)
    if output.base == array.base:
        raise Unsupported("within one array, where the order matters")
    loop = _Loop(source, node, count)
    loop.replace(edits, [f"{output.at(loop.counter)} = {array.at(loop.counter)};"])


def _memory(source: Source, node: Node, edits: Edits) -> None:
    """`memset(p, 0, n * sizeof(T))` and `memcpy(to, from, n * sizeof(T))`."""
    to, second, size = _arguments(node)
    array = _array(source, to)
    sets = source.of(node.child_by_field_name("function")).endswith("memset")
    if array.kind not in _PLAIN:
        raise Unsupported("elements of another kind")
    if sets and source.of(second) != "0":
        raise Unsupported("bytes of another value")
    value = "0" if sets else None
    other = None if sets else _array(source, second)
    if other is not None and (other.kind != array.kind or other.base == array.base):
        raise Unsupported("arrays of two types, or one")
    sides = [size.child_by_field_name(side) for side in ("left", "right")] if size.type == "binary_expression" else []
    if not sides or source.of(size.child_by_field_name("operator")) != "*":
        raise Unsupported("a size of another form")
    sizes = [side for side in sides if side.type == "sizeof_expression"]
    if len(sizes) != 1 or _sizeof(source, sizes[0], array) != array.kind:
        raise Unsupported("a size of another form")
    count = _operand(source, next(side for side in sides if side != sizes[0]))
    loop = _Loop(source, node, count)
    loop.replace(edits, [f"{array.at(loop.counter)} = {value or other.at(loop.counter)};"])


def _sizeof(source: Source, node: Node, array: _Array) -> str:
    text = source.of(node).removeprefix("sizeof").strip("() ").removeprefix("std::")
    return array.kind if text in {f"*{array.base}", f"{array.base}[0"} else aliases(source).get(text, text)


def _accumulate(source: Source, node: Node, edits: Edits) -> None:
    """`T s = std::accumulate(first, last, start[, f])` and `std::inner_product(first, last, second, start)`."""
    arguments = _arguments(node)
    products = source.of(node.child_by_field_name("function")).endswith("inner_product")
    if len(arguments) not in ({4, 6} if products else {3, 4}):
        raise Unsupported("another form")
    if len(arguments) == 6 and not source.of(arguments[4]).startswith(("std::plus<>", "std::plus<float>")):
        raise Unsupported("added up in another way")
    array, count = _counted(source, node, arguments[0], arguments[1])
    start = arguments[3] if products else arguments[2]
    statement, name, kind = _initialised(source, node)
    exact = is_float(source, start) if kind == "float" else kind == "double" and "." in source.of(start)
    if not exact or (kind == "double" and is_float(source, start)):
        raise Unsupported("summed in another type than it is kept in")
    loop = _Loop(source, node, count, statement)
    element = array.at(loop.counter)
    if len(arguments) == 6:
        arrays = [array, _array(source, arguments[2])]
        lines, value = _applied(source, arguments[5], [each.at(loop.counter) for each in arrays], arrays, loop.taken)
        lines.append(f"{name} += {value};")
    elif products:
        lines = [f"{name} += {element} * {_array(source, arguments[2]).at(loop.counter)};"]
    elif len(arguments) == 3:
        lines = [f"{name} += {element};"]
    else:
        lambda_ = _Lambda(source, arguments[3])
        if len(lambda_.parameters) != 2 or lambda_.parameters[0][0] in lambda_.assigned:
            raise Unsupported("a function of another form")
        total, value = lambda_.parameters[0][0], lambda_.parameters[1][0]
        lines = [*_bound(source, lambda_, 1, element, array, loop.taken), *lambda_.body({total: name}, skip=1)]
        returned = lambda_.value({total: name})
        sides = f"{name} + "
        plus = lambda_.returned is not None and lambda_.returned.type == "binary_expression"
        plus = plus and source.of(lambda_.returned.child_by_field_name("operator")) == "+"
        plus = plus and source.of(lambda_.returned.child_by_field_name("left")) == total
        if plus and total not in identifiers(source, lambda_.returned.child_by_field_name("right")):
            lines.append(f"{name} += {returned.removeprefix(sides)};")
        else:
            lines.append(f"{name} = {returned};")
        if value == name:
            raise Unsupported("one name for two things")
    loop.replace(edits, lines, before=f"{kind} {name} = {source.of(start)};")


def _running(source: Source, node: Node, edits: Edits) -> None:
    """`std::partial_sum(first, last, to)`"""
    arguments = _arguments(node)
    if len(arguments) != 3:
        raise Unsupported("another form")
    array, count = _counted(source, node, arguments[0], arguments[1])
    output = _array(source, arguments[2])
    if array.kind not in {"float", "double", "int32_t", "int64_t", "int"} or array.kind != output.kind:
        raise Unsupported("elements of another kind")
    if array.base == output.base and array.start != output.start:
        raise Unsupported("within one array, where the order matters")
    loop = _Loop(source, node, count)
    total = free("running", loop.taken)
    body = [f"{total} += {array.at(loop.counter)};", f"{output.at(loop.counter)} = {total};"]
    zero = {"float": "-0.0f", "double": "-0.0"}.get(
        array.kind, "0"
    )  # of the two, the one that changes no first element
    loop.replace(edits, body, before=f"{array.kind} {total} = {zero};")


def _extreme(source: Source, node: Node, edits: Edits) -> None:
    """`T m = *std::max_element(first, last)`."""
    first, last = _arguments(node)
    array, count = _counted(source, node, first, last)
    if node.parent.type != "pointer_expression" or not source.of(node.parent).startswith("*"):
        raise Unsupported("the place, not the value")
    statement, name, kind = _initialised(source, node.parent)
    if kind != array.kind:
        raise Unsupported("kept in another type")
    function = source.of(node.child_by_field_name("function")).removeprefix("std::").partition("_")[0]
    loop = _Loop(source, node, count, statement)
    element = array.at(loop.counter)
    loop.replace(edits, [f"{name} = std::{function}({name}, {element});"], before=f"{kind} {name} = {array.at('0')};")


def _extremes(source: Source, node: Node, edits: Edits) -> None:
    """`auto at = std::max_element(first, last)` and `auto [low, high] = std::minmax_element(first, last)`, if only the values
    are ever used."""
    array, count = _counted(source, node, *_arguments(node))
    declarator = node.parent
    declaration = declarator.parent
    if declarator.type != "init_declarator" or len(declaration.children_by_field_name("declarator")) != 1:
        raise Unsupported("not what a variable starts with")
    function = source.of(node.child_by_field_name("function")).removeprefix("std::").partition("_")[0]
    kinds = ["min", "max"] if function == "minmax" else [function]
    inner = declarator.child_by_field_name("declarator")
    named = [inner] if inner.type == "identifier" else [n for n in inner.named_children if n.type == "identifier"]
    if len(named) != len(kinds) or inner.type not in {"identifier", "structured_binding_declarator"}:
        raise Unsupported("a variable of another form")
    if source.of(declaration.child_by_field_name("type")) != "auto" or "&" in source.of(inner):
        raise Unsupported("a variable of another form")
    loop = _Loop(source, node, count, declaration)
    names = []
    for each in named:
        name = source.of(each)
        uses = [n for n in source.walk(enclosing_function(node), "identifier") if source.of(n) == name and n != each]
        values = [n.parent for n in uses]
        if any(v.type != "pointer_expression" or not source.of(v).startswith("*") for v in values):
            raise Unsupported("the place, not the value")
        names.append(free(f"{name}_value", loop.taken))
        loop.taken.add(names[-1])
        for value in values:
            edits.replace(value, names[-1])
    element = array.at(loop.counter)
    if array.kind not in _PLAIN:
        raise Unsupported("elements of another kind")
    before = f"\n{source.indent(declaration)}".join(f"{array.kind} {name} = {array.at('0')};" for name in names)
    body = [f"{name} = std::{kind}({name}, {element});" for name, kind in zip(names, kinds, strict=True)]
    loop.replace(edits, body, before=before)


def _element(source: Source, node: Node, edits: Edits) -> None:
    form = _extreme if node.parent.type == "pointer_expression" else _extremes
    form(source, node, edits)


_ALGORITHMS = {
    "transform": _transform, "for_each": _for_each, "fill": _fill, "fill_n": _fill, "copy": _copy, "copy_n": _copy,
    "memset": _memory, "memcpy": _memory, "accumulate": _accumulate, "inner_product": _accumulate, "partial_sum": _running,
    "max_element": _element, "min_element": _element, "minmax_element": _extremes,
}  # fmt: skip


class _Loop:
    """What a call becomes: the loop stands where the call's statement stood."""

    def __init__(self, source: Source, call: Node, count: str, statement: Node | None = None) -> None:
        self.source, self.count = source, count
        self.statement = statement or call.parent
        if statement is None and call.parent.type != "expression_statement":
            raise Unsupported("a call whose result is used")
        if self.statement.parent.type != "compound_statement":
            raise Unsupported("no block around it")
        self.taken = {source.of(n) for n in source.walk(enclosing_function(call), "identifier")}
        self.counter = next(n for n in ("i", "j", "k", *(f"i_{n}" for n in range(2, 99))) if n not in self.taken)

    def replace(self, edits: Edits, body: list[str], before: str = "") -> None:
        indent, unit = self.source.indent(self.statement), self.source.unit(self.statement)
        lines = [*([before] if before else [])]
        lines.append(f"for (int64_t {self.counter} = 0; {self.counter} < {self.count}; ++{self.counter}) {{")
        lines += [unit + line if line else line for line in body]
        edits.replace(self.statement, f"\n{indent}".join([*lines, "}"]))


def _initialised(source: Source, value: Node) -> tuple[Node, str, str]:
    """(declaration, name, type) of the one variable that a declaration initialises with `value`."""
    declarator = value.parent
    declaration = declarator.parent
    if declarator.type != "init_declarator" or declaration.type != "declaration":
        raise Unsupported("not what a variable starts with")
    name, kind = declarator.child_by_field_name("declarator"), declaration.child_by_field_name("type")
    if name.type != "identifier" or len(declaration.children_by_field_name("declarator")) != 1:
        raise Unsupported("not one plain variable")
    text = aliases(source).get(source.of(kind), source.of(kind))
    if text == "auto" or source.of(declaration).startswith(("static", "constexpr")):
        raise Unsupported("a type that is not said")
    return declaration, source.of(name), text


def _arguments(node: Node) -> list[Node]:
    found = [a for a in node.child_by_field_name("arguments").named_children if a.type != "comment"]
    if not 2 <= len(found) <= 6:
        raise Unsupported("another form")
    return found


def _counted(source: Source, call: Node, first: Node, last: Node) -> tuple[_Array, str]:
    """The array of a range and how many elements it has."""
    array = _array(source, first)
    last = _resolved(source, last)
    begin, end = source.of(first), source.of(last)
    if first.type == "call_expression":
        if end != f"{array.base}.end()" and end != f"{array.base}.cend()":
            raise Unsupported("a range of another end")
        return array, f"static_cast<int64_t>({array.base}.size())"
    if any(source.walk(last, "call_expression", "update_expression", "assignment_expression")):
        raise Unsupported("a range of another end")
    if end.startswith(f"{begin} + "):
        rest = last.child_by_field_name("right")
        if f"{begin} + {source.of(rest)}" == end:
            return array, _operand(source, rest)
    left, right = (_split(source, node) for node in (first, last))
    if left[0] != right[0]:
        raise Unsupported("a range of another end")
    return array, f"({right[1] or '0'}) - ({left[1]})" if left[1] else f"{right[1]}"


def _resolved(source: Source, node: Node) -> Node:
    """What a local pointer that never changes was set to: `const float* end = row + n;`."""
    function = enclosing_function(node)
    if node.type != "identifier" or source.of(node) in {target for target, _ in assignments(source, function)}:
        return node
    declared = [n for n in source.walk(function, "declaration") if source.of(node) in declared_names(source, n)]
    declarator = declared[0].child_by_field_name("declarator") if len(declared) == 1 else None
    value = declarator.child_by_field_name("value") if declarator is not None else None
    if value is None or value.type != "binary_expression" or not inside(node, declared[0].parent):
        return node
    names = identifiers(source, value)
    later = {target for target, where in assignments(source, function) if where.start_byte > declared[0].start_byte}
    shadowed = names & _between(source, function, declared[0], node)
    return node if names & later or shadowed or len(declared[0].children_by_field_name("declarator")) != 1 else value


def _between(source: Source, function: Node, first: Node, last: Node) -> set[str]:
    """Names declared between two places of a function."""
    declared = (n for n in source.walk(function, "declaration") if first.end_byte < n.start_byte < last.start_byte)
    return {name for node in declared for name in declared_names(source, node)}


def _split(source: Source, node: Node) -> tuple[str, str]:
    """The pointer and what is added to it."""
    if node.type == "identifier":
        return source.of(node), ""
    if node.type == "binary_expression" and source.of(node.child_by_field_name("operator")) == "+":
        base, offset = _split(source, node.child_by_field_name("left"))
        right = source.of(node.child_by_field_name("right"))
        return base, f"{offset} + {right}" if offset else right
    raise Unsupported("not a pointer and what is added to it")


def _array(source: Source, node: Node) -> _Array:
    if node.type == "call_expression":
        method = node.child_by_field_name("function")
        base = method.child_by_field_name("argument") if method.type == "field_expression" else None
        if (
            base is None
            or base.type != "identifier"
            or source.of(node) not in {f"{source.of(base)}{end}" for end in (".begin()", ".cbegin()", ".data()")}
        ):
            raise Unsupported("not the start of a vector")
        kind = vector_of(declared_type(source, base))
        if not kind:
            raise Unsupported("not the start of a vector")
        return _Array(source.of(base), "", kind, node)
    base, start = _split(source, node)
    first = next(source.walk(node, "identifier"))
    kind = declared_type(source, first)
    if not _is_pointer(source, first) or any(source.walk(node, "call_expression", "update_expression")):
        raise Unsupported("not a pointer")
    return _Array(base, start, kind, node)


def _is_pointer(source: Source, node: Node) -> bool:
    """Whether the name's declaration before it makes it a pointer to one element after another."""
    found = False
    for here in source.walk(enclosing_function(node), "declaration", "parameter_declaration"):
        if here.start_byte > node.start_byte:
            break
        for declarator in here.children_by_field_name("declarator"):
            inner = declarator.child_by_field_name("declarator") if declarator.type == "init_declarator" else declarator
            if inner is not None and source.of(node) in identifiers(source, inner):
                depth = sum(1 for _ in source.walk(inner, "pointer_declarator"))
                found = inner.type in {"pointer_declarator", "array_declarator"} and depth <= 1
    return found


def _invariant(source: Source, node: Node) -> None:
    if any(source.walk(node, "call_expression", "update_expression", "assignment_expression", "subscript_expression")):
        raise Unsupported("a value that may change")


def _operand(source: Source, node: Node) -> str:
    plain = node.type in {"identifier", "number_literal", "parenthesized_expression"}
    return source.of(node) if plain else f"({source.of(node)})"


# --- lambdas -------------------------------------------------------------------------------------------------------


class _Lambda:
    """`[...](float a, float b) { statements; return value; }`. Raises Unsupported at any other form."""

    def __init__(self, source: Source, node: Node) -> None:
        if node.type != "lambda_expression" or node.has_error:
            raise Unsupported("no lambda")
        self.source, self.node = source, node
        captures = node.child_by_field_name("captures")
        if any(source.walk(captures, "lambda_capture_initializer")) or "=" in source.of(captures)[2:]:
            raise Unsupported("a capture that is a variable of its own")
        declarator = node.child_by_field_name("declarator")
        if declarator is not None and "mutable" in source.of(declarator).rpartition(")")[2]:
            raise Unsupported("a lambda with a state")
        self.block = node.child_by_field_name("body")
        self.parameters = (
            [self._parameter(p) for p in source.walk(declarator, "parameter_declaration")] if declarator else []
        )
        if declarator is not None and any(source.walk(declarator, "optional_parameter_declaration")):
            raise Unsupported("a default argument")
        self.statements = [child for child in self.block.named_children if child.type != "comment"]
        returns = list(source.walk(self.block, "return_statement"))
        if len(returns) > 1 or (returns and (not self.statements or returns[0] != self.statements[-1])):
            raise Unsupported("it returns early")
        values = returns[0].named_children if returns else []
        self.returned = values[0] if values else None
        if returns:
            self.statements = self.statements[:-1]
        self.assigned = {target for target, _ in assignments(source, self.block)}
        self.own = declared_names(source, self.block)
        if any(source.walk(self.block, "lambda_expression", "goto_statement")):
            raise Unsupported("a lambda in a lambda")

    def _parameter(self, node: Node) -> tuple[str, str, bool]:
        """(name, type, whether what it is bound to may be changed through it)"""
        declarator = node.child_by_field_name("declarator")
        (name,) = identifiers(self.source, declarator)
        if declarator.type not in {"identifier", "reference_declarator", "pointer_declarator"}:
            raise Unsupported("a parameter of another form")
        text = self.source.of(node)
        written = declarator.type == "reference_declarator" and not text.startswith("const ")
        kind = self.source.of(node.child_by_field_name("type"))
        if declarator.type == "pointer_declarator":
            kind = text[: text.rindex(name)].rstrip()
        return name, kind, written

    def body(self, names: dict[str, str], skip: int = 0) -> list[str]:
        """The lines of all but the return, with names replaced."""
        lines: list[str] = []
        for statement in self.statements:
            uses = [
                (n, names[self.source.of(n)])
                for n in self.source.walk(statement, "identifier")
                if self.source.of(n) in names
            ]
            width = len(self.source.indent(statement))
            text = self.source.render(statement, uses).split("\n")
            lines += [text[0], *(line[width:] if not line[:width].strip() else line for line in text[1:])]
        return lines

    def value(self, names: dict[str, str]) -> str:
        if self.returned is None:
            raise Unsupported("it returns nothing")
        uses = [
            (n, names[self.source.of(n)])
            for n in self.source.walk(self.returned, "identifier")
            if self.source.of(n) in names
        ]
        return self.source.render(self.returned, uses)


def _applied(
    source: Source, function: Node, values: list[str], arrays: list[_Array], taken: set[str]
) -> tuple[list[str], str]:
    """The statements that evaluate a function of one element of each array, and its value."""
    if function.type == "identifier" and source.of(function) in functions(source):
        return [], f"{source.of(function)}({', '.join(values)})"
    lambda_ = _Lambda(source, function)
    if len(lambda_.parameters) != len(values):
        raise Unsupported("another number of arguments")
    lines = []
    for place, (value, array) in enumerate(zip(values, arrays, strict=True)):
        lines += _bound(source, lambda_, place, value, array, taken)
    return [*lines, *lambda_.body({})], lambda_.value({})


def _bound(source: Source, lambda_: _Lambda, place: int, value: str, array: _Array, taken: set[str]) -> list[str]:
    """The declaration of a parameter with its value."""
    name, kind, written = lambda_.parameters[place]
    # The names of its own stand in the caller's block now, where the elements are named too.
    if written or (lambda_.own | {p for p, _, _ in lambda_.parameters}) & identifiers_of(
        source, lambda_.node.parent, lambda_
    ):
        raise Unsupported("a parameter that is written, or one name for two things")
    kind = array.kind if kind == "auto" else kind
    const = "" if name in lambda_.assigned else "const "
    return [f"{const}{kind} {name} = {value};"]


def identifiers_of(source: Source, node: Node, lambda_: _Lambda) -> set[str]:
    """Names in the other arguments of the call that a lambda is given to."""
    return {source.of(n) for n in source.walk(node, "identifier") if not inside(n, lambda_.node)}


def _named_lambda(source: Source, declaration: Node, edits: Edits) -> None:
    declarator = declaration.child_by_field_name("declarator")
    name = source.of(declarator.child_by_field_name("declarator"))
    function = enclosing_function(declaration)
    lambda_ = declarator.child_by_field_name("value")
    uses = [n for n in source.walk(function, "identifier") if source.of(n) == name and not inside(n, declarator)]
    if declaration.parent.type != "compound_statement" or any(inside(use, lambda_) for use in uses):
        raise Unsupported("it calls itself")
    calls = [use.parent for use in uses]
    if not calls or any(
        c.type != "call_expression" or c.child_by_field_name("function") != u for c, u in zip(calls, uses, strict=True)
    ):
        raise Unsupported("it is used otherwise than called")
    parsed = _Lambda(source, lambda_)
    if parsed.returned is not None:
        _lifted(source, declaration, name, parsed, function, edits)
        return
    if len(calls) > 2 or any(call.parent.type != "expression_statement" for call in calls):
        raise Unsupported("called in too many places")
    # What is captured by value stays as it was where the lambda stands.
    by_value = "&" not in source.of(lambda_.child_by_field_name("captures"))
    if not by_value and any(
        source.of(c).strip() != "&" for c in lambda_.child_by_field_name("captures").named_children
    ):
        raise Unsupported("captures of two kinds")
    if by_value and {t for t, _ in assignments(source, function)} & {
        source.of(n) for n in source.walk(lambda_, "identifier")
    }:
        raise Unsupported("a value that changes")
    for call in calls:
        given = [a for a in call.child_by_field_name("arguments").named_children if a.type != "comment"]
        if len(given) != len(parsed.parameters):
            raise Unsupported("another number of arguments")
        lines, names = [], {p for p, _, _ in parsed.parameters}
        captured = {source.of(n) for n in source.walk(parsed.block, "identifier")} - parsed.own - names
        local = declared_names(source, function)
        before = {n for n in captured & local if not _declared_before(source, function, n, declaration)}
        if before or captured & _shadowing(source, call, declaration):
            raise Unsupported("a name means something else where it is called")
        for (parameter, kind, written), argument in zip(parsed.parameters, given, strict=True):
            if source.of(argument) == parameter and parameter not in parsed.assigned:
                continue
            if written or kind == "auto" or identifiers(source, argument) & names:
                raise Unsupported("an argument of another form")
            lines.append(f"{kind} {parameter} = {source.of(argument)};")
        indent, unit = source.indent(call.parent), source.unit(call.parent)
        lines += parsed.body({})
        if [c for c in call.parent.parent.named_children if c.type != "comment"] == [call.parent]:
            edits.replace(call.parent, f"\n{indent}".join(lines))  # the block around it is block enough
        else:
            text = f"\n{indent}{unit}".join(["{", *lines])
            edits.replace(call.parent, f"{text}\n{indent}}}")
    remove(source, declaration, edits)


def _shadowing(source: Source, call: Node, declaration: Node) -> set[str]:
    """Names declared between the lambda and a call of it."""
    return _between(source, enclosing_function(call), declaration, call)


def _declared_before(source: Source, function: Node, name: str, declaration: Node) -> bool:
    return any(
        name in declared_names(source, node) and node.start_byte < declaration.start_byte
        for node in source.walk(function, "declaration")
    )


def _lifted(source: Source, declaration: Node, name: str, lambda_: _Lambda, function: Node, edits: Edits) -> None:
    """A lambda that needs nothing of its function becomes a function of the file."""
    used = {source.of(n) for n in source.walk(lambda_.block, "identifier")} - lambda_.own
    used -= {parameter for parameter, _, _ in lambda_.parameters}
    around = declared_names(source, function) | {
        p for group in functions(source).values() for f in group if f.node == function for p, _, _ in f.parameters
    }
    if used & around or function.parent.type == "template_declaration" or not lambda_.parameters:
        raise Unsupported("it needs what is around it")
    if any(kind not in _PLAIN for _, kind, _ in lambda_.parameters):
        raise Unsupported("a parameter of another type")
    others = {source.of(n) for n in source.walk(None, "identifier") if not inside(n, function)}
    if name in others or name in functions(source):
        raise Unsupported("the name is taken")
    trailing = next(source.walk(lambda_.node.child_by_field_name("declarator"), "trailing_return_type"), None)
    returns = source.of(trailing).removeprefix("->").strip() if trailing is not None else "auto"
    if trailing is None and all(kind == "float" for _, kind, _ in lambda_.parameters) and _floats(source, lambda_):
        returns = "float"
    parameters = ", ".join(
        source.of(p) for p in source.walk(lambda_.node.child_by_field_name("declarator"), "parameter_declaration")
    )
    width = len(source.indent(declaration))
    body = [line[width:] if not line[:width].strip() else line for line in source.of(lambda_.block).split("\n")]
    place = function.parent if function.parent.type == "linkage_specification" else function
    edits.insert(place.start_byte, f"static inline {returns} {name}({parameters}) " + "\n".join(body) + "\n\n")
    remove(source, declaration, edits)


def _floats(source: Source, lambda_: _Lambda) -> bool:
    """Whether the value is a float, its parameters and variables being floats."""
    parsed = Source(
        f"float f({', '.join(f'float {p}' for p, _, _ in lambda_.parameters)}) {source.of(lambda_.block)}", "cpu"
    )
    returned = next(parsed.walk(None, "return_statement"))
    return is_float(parsed, returned.named_children[0])
