"""A launch names its kernel, where it had a variable for it.

    auto kernel = norm_kernel<T, 8>;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    kernel<<<rows, 256, bytes, stream>>>(out, in, n);
                                                   ->
    cudaFuncSetAttribute(norm_kernel<T, 8>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    norm_kernel<T, 8><<<rows, 256, bytes, stream>>>(out, in, n);

Changes nothing by itself, but a kernel that a variable stands for may be launched anywhere, and is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import ATTRIBUTES, Code, one_by_one
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import field_of, same

MOST = 16


@rule(
    "cuda",
    expected="nothing by itself: later steps see where the kernel is launched",
    normalizes=True,
    after=("standard_alignas",),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    return one_by_one(source, _resolve, _names, MOST)


def _names(code: Code) -> Iterator[tuple[Node]]:
    return ((x.function,) for x in code.launches if x.function.type == "identifier" and x.template_list is None)


def _resolve(edits: Edits, code: Code, name: Node) -> None:
    """Raises Unsupported where it is another variable, or used for anything else."""
    source, found = code.source, code.definition(name)
    value = found.value if found is not None and found.kind == "local" else None
    if found is None or value is None or code.mutated(found):
        raise Unsupported("no variable that stands for one kernel")
    kernel = value.children[-1] if value.type == "pointer_expression" else value
    last = kernel
    while last.type == "qualified_identifier" and (inner := field_of(last, "name")) is not None:
        last = inner
    last = field_of(last, "name") if last.type == "template_function" else last
    if last is None or last.type != "identifier" or source.of(last) not in {k.name for k in code.kernels}:
        raise Unsupported("a variable for something else")
    declaration = found.declaration
    if len(declaration.children_by_field_name("declarator")) != 1 or "auto" not in source.of(declaration).split("=")[0]:
        raise Unsupported("a variable of another form")
    for use in code.uses(found, source.root):
        owner = use.parent
        if same(use, found.declarator) or (owner is not None and owner.start_byte == found.where):
            continue
        if owner is None or not (_launches(owner, use) or _asks(source, owner)):
            raise Unsupported("a kernel that is handed on")
        edits.replace(use, source.of(kernel))
    edits.remove(declaration)


def _launches(owner: Node, use: Node) -> bool:
    chevrons = any(c.type == "kernel_call_syntax" for c in owner.children)
    return owner.type == "call_expression" and chevrons and same(field_of(owner, "function"), use)


def _asks(source: Source, owner: Node) -> bool:
    """`cudaFuncSetAttribute(kernel, ...)` and its like."""
    call = owner.parent if owner.type == "argument_list" else None
    return call is not None and source.of(call, "function") in ATTRIBUTES
