"""CUB's reductions over a block."""

from __future__ import annotations

from tree_sitter import Node

from nodes.rewrites.analysis.block_shape import whole_warps
from nodes.rewrites.analysis.device_code import Code
from nodes.rewrites.analysis.insertions import require
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.analysis.numbers import EXTREMES
from nodes.rewrites.prelude.block_reductions import NAMES
from nodes.rewrites.reductions.foreign_reductions import (
    Result,
    Step,
    Widths,
    declared_type,
    put_reduction,
    reduction_text,
    statement_of,
)
from nodes.rewrites.reductions.uses import keep_apart
from nodes.rewrites.reductions.whole_warps import round_up
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import children_of, declared_name, field_of, statements

CUB_SCOPES = {"cub", "cuda", "cuda::std", "::cub", "::cuda", "::cuda::std"}
CUB = {"Sum": "sum", "plus": "sum", "Max": "max", "maximum": "max", "Min": "min", "minimum": "min"}


def without_cub(code: Code, kernel: Kernel, widths: Widths, call: Node, site: int) -> Step:
    """`Reduce(temporary).Sum(value)` and `.Reduce(value, cub::Max())`, of `cub::BlockReduce<float, 256>`. Raises Unsupported for
    other calls."""
    source, function = code.source, field_of(call, "function")
    made, method = field_of(function, "argument"), source.of(function, "field")
    if made is None or made.type != "call_expression" or method not in {"Sum", "Reduce"}:
        raise Unsupported("another call")
    held = field_of(made, "arguments").named_children
    kind = source.of(made, "function")
    alias = next((a for a in source.walk(kernel.body, "alias_declaration", "type_definition") if kind in {
        source.of(a, "name"), source.of(a, "declarator")}), None)  # fmt: skip
    words = source.of(alias, "type") if alias is not None else kind
    inside_of = words.removeprefix("cub::BlockReduce<").removesuffix(">").split(",")
    if not words.startswith("cub::BlockReduce<") or len(inside_of) != 2 or len(held) != 1:
        raise Unsupported("another block reduction")
    element = inside_of[0].strip()
    arguments = children_of(call, "arguments")
    operation = _operation(code, arguments[1]) if method == "Reduce" and len(arguments) > 1 else "sum"
    counted = arguments[2:] if method == "Reduce" else arguments[1:]
    if not operation or [source.of(c) for c in counted] not in ([], ["blockDim.x"]):
        raise Unsupported("a reduction of another kind")
    edits = Edits(source)
    if not all(len(sizes) == 1 or whole_warps(code, kernel, launch.block) for launch, sizes in widths):
        reduced = code.variable(arguments[0])
        if reduced is None or reduced.kind != "local" or not counted:
            raise Unsupported("blocks that may not be whole warps")
        round_up(edits, code, kernel, call, reduced, operation)
    if not counted and any([str(s) for s in sizes] != [inside_of[1].strip()] for _, sizes in widths):
        raise Unsupported("fewer threads than CUB counts on")
    temporary = source.of(held[0])
    if any(source.of(n) == temporary and not _is_temporary(source, n) for n in source.walk(kernel.body, "identifier")):
        raise Unsupported("memory that serves more than CUB")
    value = source.of(arguments[0])
    if declared_type(code, arguments[0]) != element:
        value = f"static_cast<{element}>({value})"
    result = Result(operation, False, "", set())
    reduction = reduction_text(result, site, value, element)
    keep_apart(edits, code, kernel, statement_of(call))
    put_reduction(edits, code, kernel, call, arguments[0], reduction, element, everywhere=False)
    require(edits, code, *NAMES)
    return Step(edits.apply(), {temporary, kind})


def _operation(code: Code, node: Node) -> str:
    """sum, max or min: `cub::Max()`, `cuda::std::plus<float>{}`, a functor or a short name of the file's; "" for others."""
    name = code.source.of(node).removesuffix("()").removesuffix("{}").partition("<")[0]
    if name.rpartition("::")[0] in CUB_SCOPES:
        return _of_library(name)
    return _functor(code, name.rpartition("::")[2]) or _short_name(code, name.rpartition("::")[2])


def _short_name(code: Code, name: str) -> str:
    """`using CubAddOp = cuda::std::plus<>;`, of which there may be one for each version of the library."""
    source = code.source
    aliases = (a for a in source.walk(None, "alias_declaration") if source.of(a, "name") == name)
    kinds = {_of_library(source.of(alias, "type")) for alias in aliases}
    return kinds.pop() if len(kinds) == 1 else ""


def _of_library(name: str) -> str:
    scope, _, last = name.partition("<")[0].rpartition("::")
    return CUB.get(last, "") if scope in CUB_SCOPES else ""


def _functor(code: Code, name: str) -> str:
    """Of a struct of the file whose one operator returns `a + b`, or `max(a, b)`."""
    source = code.source
    bodies = [field_of(s, "body") for s in source.walk(None, "struct_specifier") if source.of(s, "name") == name]
    bodies = [body for body in bodies if body is not None]
    functions = [f for body in bodies for f in source.walk(body, "function_definition")]
    if len(bodies) != 1 or len(functions) != 1:
        return ""
    names = [declared_name(field_of(p, "declarator")) for p in children_of(functions[0], "declarator", "parameters")]
    inner = statements(field_of(functions[0], "body"))
    form = match(source, inner[0], "return $a + $b;", "return $f($a, $b);") if len(inner) == 1 else None
    if form is None or sorted(source.of(form[side]) for side in "ab") != sorted(map(source.of, names)):
        return ""
    function = source.of(form.get("f")).removeprefix("::").removeprefix("std::")
    return EXTREMES.get(function, "") if function else "sum"


def _is_temporary(source: Source, name: Node) -> bool:
    parent = name.parent
    if parent is None or parent.type == "declaration":
        return parent is not None
    made = parent.parent if parent.type == "argument_list" else None
    owner = made.parent if made is not None else None
    return owner is not None and owner.type == "field_expression" and source.of(owner, "field") in {"Sum", "Reduce"}
