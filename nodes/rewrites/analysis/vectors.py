"""How kernels see their parameters through vector types, in the forms that pack.py knows.

Out of access macros, `#define HALF2(value) (reinterpret_cast<half2*>(&(value))[0])`, become the accesses that they stand
for, and an index that counts by twos, `int i = 2 * (blockIdx.x * blockDim.x + threadIdx.x); if (i < n)` or
`for (int i = 2 * threadIdx.x; i < n; i += 2 * blockDim.x)`, becomes one that counts the twos.
"""

from __future__ import annotations

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import Code, one_after_another
from nodes.rewrites.analysis.indices import COORDINATES
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.syntax.algebra import Polynomial, Symbol
from nodes.rewrites.syntax.match import bare, match
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import children_of, field_of, one_variable, statements

MOST_INDICES = 8
ELEMENT_BYTES = {
    "float": 4, "__half": 2, "half": 2, "__nv_bfloat16": 2, "nv_bfloat16": 2, "int8_t": 1, "uint8_t": 1, "char": 1,
    "signed char": 1, "unsigned char": 1, "bool": 1, "__nv_fp8_e4m3": 1, "__nv_fp8_storage_t": 1, "int": 4, "int32_t": 4, "uint32_t": 4,
    "double": 8, "int64_t": 8, "int16_t": 2, "uint16_t": 2, "short": 2, "unsigned": 4,
    "__half2": 4, "half2": 4, "__nv_bfloat162": 4, "nv_bfloat162": 4, "float2": 8, "int2": 8, "uint2": 8,
    "char2": 2, "uchar2": 2, "char4": 4, "uchar4": 4, "short2": 4, "ushort2": 4, "short4": 8, "ushort4": 8, "uint": 4,
    "unsigned int": 4, "uint64_t": 8, "float4": 16, "int4": 16, "uint4": 16, "double2": 16,
}  # fmt: skip
"""What an element takes, by its type."""


def written_out(source: Source) -> str:
    """The source with access macros and indices by twos written out; as it was where there are none."""
    try:
        text = _without_macros(source)
        here = source if text == source.text else source.reparsed(text)
        return one_after_another(here, _counted, MOST_INDICES) or text
    except Unsupported:
        return source.text


def seen_through(cast: Node) -> Node:
    """The pointer that a cast makes another of."""
    value = field_of(cast, "value")
    listed = field_of(cast, "arguments")
    if value is None and listed is not None and listed.named_child_count == 1:
        value = listed.named_children[0]
    if value is None:
        raise Unsupported("a cast of several values")
    return value


def spelt_out(kernel: Kernel, name: str) -> str:
    """A type as the kernel's head could write it: the kernel's own aliases mean nothing there."""
    code = kernel.code
    for node in code.source.walk(kernel.body, "alias_declaration", "type_definition"):
        called = field_of(node, "name") or field_of(node, "declarator")
        if code.source.of(called) == name:
            return code.source.of(node, "type")
    return name


def trait_types(kernel: Kernel, name: str) -> list[str]:
    """Every type that a kernel's `using name = typename Trait<T>::member;` may be, by the trait's specialisations; empty
    where there may be others."""
    source = kernel.source
    for node in source.walk(kernel.body, "alias_declaration"):
        held = field_of(node, "type")
        member = next(source.walk(held, "qualified_identifier"), None) if held is not None else None
        scope = field_of(member, "scope")
        if source.of(node, "name") != name or member is None or scope is None:
            continue
        listed = field_of(scope, "arguments")
        if source.of(held) != f"typename {source.of(member)}" or scope.type != "template_type" or listed is None:
            return []
        if [source.of(c) in kernel.template_names for c in listed.named_children] != [True]:
            return []
        trait, called = source.of(scope, "name"), source.of(member, "name")
        return _members(source, trait, called)
    return []


def _members(source: Source, trait: str, called: str) -> list[str]:
    found = []
    for node in source.walk(None, "struct_specifier", "class_specifier"):
        name, body = field_of(node, "name"), field_of(node, "body")
        if name is None or trait != source.of(field_of(name, "name") or name):
            continue
        if name.type != "template_type":
            if body is not None:
                return []  # what the trait is of any other type
            continue
        types = [
            source.of(member, "type")
            for member in (children_of(body))
            if called == source.of(field_of(member, "name") or field_of(member, "declarator"))
            and member.type in {"alias_declaration", "type_definition"}
        ]
        if len(types) != 1:
            return []
        found += types
    return found


def _without_macros(source: Source) -> str:
    """`HALF2(x[i])` becomes `reinterpret_cast<half2*>(&x[i])[0]`."""
    edits = Edits(source)
    types = _access_macros(source)
    if not types:
        return source.text
    for call in source.walk(None, "call_expression"):
        function, listed = field_of(call, "function"), field_of(call, "arguments")
        kind = types.get(source.of(function))
        if kind is None or listed is None or listed.named_child_count != 1:
            continue
        (value,) = listed.named_children
        if value.type == "subscript_expression":
            edits.replace(call, f"reinterpret_cast<{kind}>(&{source.of(value)})[0]")
    return edits.apply()


def _access_macros(source: Source) -> dict[str, str]:
    """Macros that read or write at their argument's address, by name, with the pointer type that they do it through."""
    found: dict[str, str] = {}
    twice: set[str] = set()
    for node in source.walk(None, "preproc_def", "preproc_function_def"):
        name = source.of(node, "name")
        if name in found:
            twice.add(name)
        found[name] = ""
        listed, value = field_of(node, "parameters"), field_of(node, "value")
        if listed is None or value is None or listed.named_child_count != 1 or "\\" in source.of(value):
            continue
        parsed = source.reparsed(f"auto value = {source.of(value).strip()};")
        if parsed.root.has_error or parsed.root.named_child_count != 1:
            continue
        held = field_of(parsed.root.named_children[0], "declarator", "value")
        found[name] = _pointer(parsed, held, source.of(listed.named_children[0])) if held is not None else ""
    return {name: kind for name, kind in found.items() if kind and name not in twice}


def _pointer(source: Source, value: Node, parameter: str) -> str:
    """`half2*` of `reinterpret_cast<half2*>(&(value))[0]` or `*(half2*)&value`, "" of anything else."""
    casts = [cast % kind for kind in ("$T*", "const $T*") for cast in ("reinterpret_cast<%s>(&$v)", "((%s)&$v)")]
    found = match(source, value, *(form % cast for cast in casts for form in ("%s[0]", "*%s")))
    return source.of(found["T"].parent) if found is not None and source.of(found["v"]) == parameter else ""


def _counted(code: Code) -> str | None:
    for kernel in code.kernels:
        for change in (_counted_guard, _counted_loop):
            edits = Edits(code.source)
            try:
                if change(edits, code, kernel):
                    return edits.apply()
            except Unsupported:
                continue
    return None


def _counted_guard(edits: Edits, code: Code, kernel: Kernel) -> bool:
    source = code.source
    body = statements(kernel.body)
    for at, statement in enumerate(body):
        variable = one_variable(statement) if statement.type == "declaration" else None
        if variable is None:
            continue
        name, value = variable
        step, index = _divided(code.polynomial(value))
        declared = Polynomial.symbol(Symbol(source.of(name), name.start_byte))
        if step < 2 or not index.depends_on(Symbol("blockIdx.x")) or kernel.changes_within(declared, [kernel.body]):
            continue
        guard = next((s for s in body[at + 1 :] if s.type == "if_statement"), None)
        condition = field_of(guard, "condition", "value")
        if condition is None:
            continue
        compared = _compared(code, condition, source.of(name), step)
        if compared is None:
            continue
        comparison, bound = compared
        unit = code.fresh("unit", "place")
        operator = source.of(comparison, "operator")
        kind = source.of(statement, "type")
        edits.replace(value, _text(code, index))
        edits.replace(name, unit)
        edits.insert(
            statement.end_byte, f"\n{source.indent(statement)}const {kind} {source.of(name)} = {step} * {unit};"
        )
        edits.replace(comparison, f"{unit} {operator} {bound}")
        return True
    return False


def _counted_loop(edits: Edits, code: Code, kernel: Kernel) -> bool:
    source = code.source
    for loop in kernel.loops:
        step, index = _divided(loop.start)
        by, width = _divided(loop.step)
        condition = field_of(loop.node, "condition")
        if step < 2 or by % step or condition is None or not index.depends_on(Symbol("threadIdx.x")):
            continue
        width = Polynomial.constant(by // step) * width
        compared = _compared(code, condition, loop.name, step)
        if compared is None or loop.step_node is None or loop.body.type != "compound_statement":
            continue
        unit = code.fresh("unit", "place")
        for name in loop.name_nodes:
            edits.replace(name, unit)
        edits.replace(loop.start_node, _text(code, index))
        edits.replace(loop.step_node, _text(code, width))
        edits.replace(loop.bound_node, compared[1])
        first = statements(loop.body)[0]
        edits.insert(first.start_byte, f"const {loop.type} {loop.name} = {step} * {unit};\n{source.indent(first)}")
        return True
    return False


def _divided(polynomial: Polynomial) -> tuple[int, Polynomial]:
    """The number that divides the share of threads evenly, and what is left: 4 and t + b of 4 * t + 4 * b."""
    step = polynomial.coefficient(Symbol("threadIdx.x")).value or 0
    if not polynomial.depends_on(Symbol("threadIdx.x")):
        step = min((c for _, c in polynomial.terms), default=0)
    if step < 2 or any(c % step for _, c in polynomial.terms):
        return 0, polynomial
    return step, Polynomial.of((m, c // step) for m, c in polynomial.terms)


def _compared(code: Code, condition: Node, name: str, step: int) -> tuple[Node, str] | None:
    """The comparison of the index with its end, and the end in steps: `i < n` as (n + 1) / 2, `i + 1 < n` as n / 2."""
    more = [f"{left} {sign} $end" for sign in ("<", ">=") for left in (f"$i + {step - 1}", f"{step - 1} + $i")]
    found = match(code.source, condition, *more, "$i < $end", "$i >= $end")
    if found is None or code.source.of(found["i"]) != name:
        return None
    right = field_of(bare(condition), "right")
    end = code.source.of(right)
    end = end if right.type in {"identifier", "number_literal", "parenthesized_expression"} else f"({end})"
    return bare(condition), f"{end} / {step}" if found.pattern in more else f"({end} + {step - 1}) / {step}"


def _text(code: Code, polynomial: Polynomial) -> str:
    """A sum of products of coordinates, parameters and numbers. Raises Unsupported for anything else."""
    written = []
    for monomial, coefficient in sorted(polynomial.terms, key=lambda term: (-len(term[0]), [s.text for s in term[0]])):
        for symbol in monomial:
            plain = symbol.text.split(".")[0] in COORDINATES or (
                symbol.node is not None
                and symbol.node.type == "identifier"
                and (found := code.definition(symbol.node)) is not None
                and found.kind in {"parameter", "template"}
            )
            if not plain:
                raise Unsupported(f"{symbol.text} in an index")
        factors = sorted((symbol.text for symbol in monomial), key=lambda text: (not text.startswith("blockIdx"), text))
        factors += [str(coefficient)] if coefficient != 1 or not factors else []
        written.append(" * ".join(factors))
    return " + ".join(written)
