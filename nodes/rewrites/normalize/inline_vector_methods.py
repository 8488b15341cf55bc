"""Loads and stores of a vector type's own methods are written out as the accesses that they are.

    template <typename T, int N> struct alignas(sizeof(T) * N) vec_t {
      T data[N];
      __device__ void load(const T* ptr) { *this = *reinterpret_cast<const vec_t*>(ptr); }
    };
    vec_t<T, 8> v;                                     vec_t<T, 8> v = *reinterpret_cast<const vec_t<T, 8>*>(x + i * 8);
    v.load(x + i * 8);                           ->

Changes nothing by itself, but behind a pointer that is handed to a method anything may happen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.device_code import Code, one_by_one
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.source import Edits, Source, Unsupported, only_argument
from nodes.rewrites.syntax.tree import declared_name, field_of, same, statements

MOST = 32


@dataclass(frozen=True)
class _Method:
    loads: bool


@rule(
    "cuda",
    expected="nothing by itself: later steps see the loads and stores",
    normalizes=True,
    after=("resolve_kernel_variables",),
    risks=(Outcome.INCORRECT,),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    return one_by_one(source, _write_out, _calls, MOST)


def _calls(code: Code) -> Iterator[tuple[Kernel, Node, dict[str, dict[str, _Method]]]]:
    if types := _types(code):
        yield from ((k, call, types) for k in code.kernels for call in code.source.walk(k.body, "call_expression"))


def _types(code: Code) -> dict[str, dict[str, _Method]]:
    """Such methods by type and name, of types that are defined once; a type with methods of one name has neither."""
    source, found = code.source, dict[str, dict[str, _Method]]()
    defined = [s for s in source.walk(None, "struct_specifier", "class_specifier") if field_of(s, "body")]
    names = [source.of(s, "name").partition("<")[0] for s in defined]
    for name, struct in zip(names, defined, strict=True):
        if names.count(name) != 1:
            continue
        methods = list(source.walk(field_of(struct, "body"), "function_definition"))
        called = [_name(source, method) for method in methods]
        for method_name, method in zip(called, methods, strict=True):
            if called.count(method_name) == 1 and (meaning := _meaning(source, name, method)) is not None:
                found.setdefault(name, {})[method_name] = meaning
    return found


def _name(source: Source, function: Node) -> str:
    name = declared_name(field_of(function, "declarator"))
    return source.of(name)


def _meaning(source: Source, name: str, method: Node) -> _Method | None:
    """`*this = *reinterpret_cast<const name*>(ptr);` or the same the other way round, alone."""
    body, listed = field_of(method, "body"), next(source.walk(method, "parameter_list"), None)
    inner = statements(body)
    if listed is None or listed.named_child_count != 1 or len(inner) != 1 or not inner[0].named_children:
        return None
    parameter = declared_name(field_of(listed.named_children[0], "declarator") or listed)
    assignment = inner[0].named_children[0]
    if parameter is None or assignment.type != "assignment_expression" or source.of(assignment.children[1]) != "=":
        return None
    sides = [source.of(field_of(assignment, f)).replace(" ", "") for f in ("left", "right")]
    pointer = source.of(parameter)
    if sides == ["*this", f"*reinterpret_cast<const{name}*>({pointer})"]:
        return _Method(loads=True)
    return _Method(loads=False) if sides == [f"*reinterpret_cast<{name}*>({pointer})", "*this"] else None


def _write_out(edits: Edits, code: Code, kernel: Kernel, call: Node, types: dict[str, dict[str, _Method]]) -> None:
    source, function, statement = code.source, field_of(call, "function"), call.parent
    if function is None or function.type != "field_expression" or statement is None:
        raise Unsupported("no method")
    holder = field_of(function, "argument")
    found = code.variable(holder)
    if found is None or found.kind != "local" or statement.type != "expression_statement" or call.has_error:
        raise Unsupported("no method of a variable")
    written = source.of(found.declaration, "type")
    method = types.get(_spelt(code, kernel, written).partition("<")[0], {}).get(source.of(function, "field"))
    if method is None or found.declarator is None or found.declarator.type != "identifier":
        raise Unsupported("a method that does more")
    pointer, name = source.of(only_argument(call)), source.of(holder)
    if not method.loads:
        edits.replace(call, f"*reinterpret_cast<{written}*>({pointer}) = {name}")
        return
    value = f"*reinterpret_cast<const {written}*>({pointer})"
    before = statement.prev_named_sibling
    alone = len(found.declaration.children_by_field_name("declarator")) == 1
    if alone and same(before, found.declaration):
        edits.replace(call, f"{written} {name} = {value}")
        edits.remove(found.declaration)
    else:
        edits.replace(call, f"{name} = {value}")


def _spelt(code: Code, kernel: Kernel, name: str) -> str:
    """A type by its own name, where the kernel has a short one for it."""
    for alias in code.source.walk(kernel.body, "alias_declaration"):
        if code.source.of(alias, "name") == name:
            return code.source.of(alias, "type")
    return name
