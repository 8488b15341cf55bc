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

import re
from collections.abc import Iterator

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import Code, one_by_one
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Edits, Source, Unsupported, inside

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
    """Raises Unsupported where it is no variable for one kernel."""
    source, found = code.source, code.definition(name)
    declared = (
        match(source, found.declaration, "auto $name = $kernel;", "auto* $name = $kernel;")
        if found is not None
        else None
    )
    kernel = source.of(declared["kernel"]).removeprefix("&") if declared is not None else ""
    named = re.fullmatch(r"(?:\w+::)*(\w+)(<.*>)?", kernel, re.DOTALL)
    if named is None or named[1] not in {k.name for k in code.kernels} or found.kind != "local" or code.mutated(found):
        raise Unsupported("no variable that stands for one kernel")
    for use in code.uses(found, source.root):
        if not inside(use, found.declaration):
            edits.replace(use, kernel)
    edits.remove(found.declaration)
