"""Rows that are addressed in bytes are addressed in elements: `(float*)(data + r * step)` with a step of `n * sizeof(float)`.

OpenCV, ggml and numpy hand a row's length in bytes beside its length in elements. That rows do not overlap cannot be seen
where one number has nothing to do with the other, so the step is replaced by what every caller in the file gives for it:

    rows((char*)x, n * sizeof(float), n);   void rows(const char* x, size_t step, int n)
    const float* row = (const float*)(x + r * step);     becomes     const float* row = (const float*)x + r * n;

Changes nothing by itself.
"""

from __future__ import annotations

from tree_sitter import Node

from nodes.rewrites._loops import (
    Function,
    aliases,
    assignments,
    calls,
    declared_type,
    escapes,
    functions,
    identifiers,
)
from nodes.rewrites.source import Edits, Source, Unsupported, operands, repeated

LANGUAGES = frozenset({"cpu"})
HELPS = frozenset({"compute", "latency", "memory", "unknown"})
EXPECTED = "nothing by itself: later steps see that rows which are addressed in bytes do not overlap"
SPEEDUP = 1.0001
ORDER = 7

_BYTES = frozenset({"char", "unsigned char", "signed char", "uint8_t", "int8_t", "std::byte", "byte"})


def rewrite(source: Source, facts: object) -> str | None:
    return repeated(source, _next, 64)


def _next(source: Source) -> str | None:
    for group in functions(source).values():
        for function in group:
            for place, (name, _, pointer) in enumerate(function.parameters):
                edits = Edits(source)
                try:
                    if not pointer and len(group) == 1:
                        _step(source, function, place, name, edits)
                        return edits.apply()
                except Unsupported:
                    continue
    for node in source.walk(None, "cast_expression", "call_expression"):
        edits = Edits(source)
        try:
            _cast(source, node, edits)
            return edits.apply()
        except Unsupported:
            continue
    return None


def _step(source: Source, function: Function, place: int, name: str, edits: Edits) -> None:
    """Replaces a parameter that every call gives as elements times their size. Raises Unsupported where not every one does."""
    uses = [n for n in source.walk(function.body, "identifier") if source.of(n) == name]
    if not uses or not _is_fixed(source, function, name):
        raise Unsupported("not used, or changed")
    given = _given(source, function)
    products = [_bytes_of(source, arguments[place]) for _, arguments in given]
    kind = _one_kind(source, function, given, [size for _, size in products])
    for other, (length, _, pointer) in enumerate(function.parameters):
        if other == place or pointer or not _is_fixed(source, function, length):
            continue
        if all(
            factor is not None and _without_cast(source, arguments[other]) == factor
            for (_, arguments), (factor, _) in zip(given, products, strict=True)
        ):
            text = f"({length} * sizeof({kind}))"
            break
    else:
        if any(factor is not None for factor, _ in products):
            raise Unsupported("a step that has nothing to do with the other sizes")
        text = f"sizeof({kind})"
    for use in uses:
        bare = use.parent.type in {"argument_list", "init_declarator"}
        edits.replace(use, text.strip("()") + ")" if bare and text[0] == "(" else text)


def _is_fixed(source: Source, function: Function, name: str) -> bool:
    uses = [n for n in source.walk(function.body, "identifier") if source.of(n) == name]
    changed = {target for target, _ in assignments(source, function.body)}
    return name not in changed | function.references and not any(escapes(source, use) for use in uses)


def _given(source: Source, function: Function) -> list[tuple[Node, list[Node]]]:
    """(call, arguments) of all calls of a function. Raises Unsupported where something else may call it."""
    found = []
    for called, nodes in calls(source).items():
        if called.rpartition("::")[2] == function.name:
            found += nodes
    named = [n for n in source.walk(None, "identifier") if source.of(n) == function.name]
    if not found or len(named) != len(found) + 1 or source.of(function.node).startswith("extern"):
        raise Unsupported("called from elsewhere")
    parent = function.node.parent
    while parent is not None:
        if parent.type == "linkage_specification":
            raise Unsupported("called from elsewhere")
        parent = parent.parent
    given = [(n, [a for a in n.child_by_field_name("arguments").named_children if a.type != "comment"]) for n in found]
    if any(len(arguments) != len(function.parameters) for _, arguments in given):
        raise Unsupported("another number of arguments")
    return given


def _bytes_of(source: Source, node: Node) -> tuple[str | None, str]:
    """(elements, type) of `n * sizeof(type)`; None elements for the size of one."""
    while node.type == "parenthesized_expression":
        node = node.named_children[0]
    if node.type == "binary_expression" and source.of(node.child_by_field_name("operator")) == "*":
        sides = [node.child_by_field_name(side) for side in ("left", "right")]
        sizes = [side for side in sides if side.type == "sizeof_expression"]
        if len(sizes) == 1:
            (other,) = (side for side in sides if side != sizes[0])
            return _without_cast(source, other), _sized(source, sizes[0])
    if node.type == "sizeof_expression":
        return None, _sized(source, node)
    raise Unsupported("no number of bytes")


def _sized(source: Source, node: Node) -> str:
    """The type in `sizeof(T)`, which reads like a variable where the grammar has not met T."""
    kind = node.child_by_field_name("type") or node.child_by_field_name("value")
    while kind is not None and kind.type == "parenthesized_expression":
        kind = kind.named_children[0]
    if kind is None or any(source.walk(kind, "abstract_pointer_declarator")):
        raise Unsupported("the size of something else")
    if kind.type not in {"type_descriptor", "primitive_type", "type_identifier"}:
        named = {source.of(n) for n in source.walk(None, "type_identifier")}
        if kind.type != "identifier" or source.of(kind) not in named or declared_type(source, kind):
            raise Unsupported("the size of a value")
    return source.of(kind)


def _without_cast(source: Source, node: Node) -> str:
    """The text of a size, without a cast of it to another integer."""
    while node.type in {"parenthesized_expression", "cast_expression"}:
        node = node.child_by_field_name("value") or node.named_children[0]
    return source.of(node)


def _one_kind(source: Source, function: Function, given: list[tuple[Node, list[Node]]], kinds: list[str]) -> str:
    """What the type is called in the function: the one of all calls, or the template parameter that each names first."""
    if len(set(kinds)) == 1:
        return kinds[0]
    template = function.node.parent
    if template.type != "template_declaration":
        raise Unsupported("elements of several types")
    parameters = [source.of(n.named_children[0]) for n in source.walk(template, "type_parameter_declaration")]
    for (call, _), kind in zip(given, kinds, strict=True):
        called = call.child_by_field_name("function")
        listed = next(source.walk(called, "template_argument_list"), None)
        if listed is None or not parameters or source.of(listed.named_children[0]) != kind:
            raise Unsupported("elements of several types")
    return parameters[0]


def _cast(source: Source, node: Node, edits: Edits) -> None:
    """`(T*)(bytes + n * sizeof(T))` becomes `(T*)bytes + n`."""
    if node.type == "cast_expression":
        kind, value = source.of(node.child_by_field_name("type")), node.child_by_field_name("value")
        opening, closing = f"({kind})", ""
    else:
        called, arguments = source.of(node.child_by_field_name("function")), node.child_by_field_name("arguments")
        if not called.startswith("reinterpret_cast<") or len(arguments.named_children) != 1:
            raise Unsupported("no cast")
        kind, value = called.partition("<")[2].rpartition(">")[0], arguments.named_children[0]
        opening, closing = f"{called}(", ")"
    element = " ".join(word for word in kind.replace("*", " ").split() if word != "const")
    if kind.count("*") != 1 or value is None or node.has_error:
        raise Unsupported("no pointer to elements")
    while value.type == "parenthesized_expression":
        value = value.named_children[0]
    terms = operands(source, value, "+")
    base = terms.pop(0)
    names = aliases(source)
    declared = declared_type(source, base) if base.type == "identifier" else ""
    if not terms or names.get(declared, declared) not in _BYTES:
        raise Unsupported("not bytes and what is added to them")
    factors = [_elements(source, term, names.get(element, element)) for term in terms]
    text = " + ".join([f"{opening}{source.of(base)}{closing}", *factors])
    parent = node.parent
    alone = parent.type in {"init_declarator", "argument_list", "return_statement", "parenthesized_expression"}
    alone = alone or (parent.type == "assignment_expression" and parent.child_by_field_name("right") == node)
    edits.replace(node, text if alone else f"({text})")


def _elements(source: Source, node: Node, element: str) -> str:
    """A product with `sizeof(element)` as a factor, without that factor."""
    factors: list[str] = []
    sizes = 0
    for here in operands(source, node, "*"):
        if here.type == "sizeof_expression" and not sizes:
            kind = _sized(source, here)
            if aliases(source).get(kind, kind) != element:
                raise Unsupported("elements of another size")
            sizes += 1
        elif identifiers(source, here) or here.type == "number_literal":
            factors.append(source.of(here) if here.type in {"identifier", "number_literal"} else f"({source.of(here)})")
        else:
            raise Unsupported("a factor of another form")
    if not sizes:
        raise Unsupported("bytes that may be within an element")
    if not factors:
        return "1"
    # sizeof made 64 bits of the product; some factor has to.
    if any(f.isidentifier() and _is_long(source, node, f) for f in factors[:2]):
        return " * ".join(factors)
    return " * ".join([f"static_cast<int64_t>({factors[0]})", *factors[1:]])


def _is_long(source: Source, node: Node, name: str) -> bool:
    here = next(n for n in source.walk(node, "identifier") if source.of(n) == name)
    return declared_type(source, here).removeprefix("std::") in {"int64_t", "uint64_t", "size_t", "ptrdiff_t", "long"}
