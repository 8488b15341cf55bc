"""Pointer parameters of kernels say that they do not overlap: `__restrict__`.

The compiler may then move loads over stores, and read what is const through the read-only path. Only where every launch
passes different buffers, and no pointer goes to where we cannot follow it.
"""

from __future__ import annotations

from nodes.rewrites.analysis.device_code import Code, code_of
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.source import Edits, Source
from nodes.rewrites.syntax.tree import field_of


@rule(
    "cuda",
    expected="loads move over stores and go through the read-only path",
    speedup=1.02,
    helps={"memory", "latency"},
    after=("trim_vector_tail",),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    code = code_of(source)
    edits = Edits(source)
    for kernel in code.kernels:
        with edits.attempt():
            _rewrite_kernel(edits, code, kernel)
    return edits.apply()


def _rewrite_kernel(edits: Edits, code: Code, kernel: Kernel) -> None:
    pointers = [(at, p) for at, p in enumerate(kernel.parameters) if p.pointer]
    if not kernel.launches or any(access.writes and access.root == "?" for access in kernel.accesses):
        return  # to what may be any of the parameters
    for launch in kernel.launches:
        passed = [code.source.of(launch.arguments[at]) for at, _ in pointers]
        if len(set(passed)) != len(passed) or any(not text.replace("_", "a").isalnum() for text in passed):
            return  # the same buffer twice, or parts of one
    for _, parameter in pointers:
        if parameter.restrict or any(name in {parameter.name, "?"} for _, name in kernel.escapes):
            continue
        declarator = field_of(parameter.node, "declarator")
        star = declarator.children[0] if declarator is not None and declarator.type == "pointer_declarator" else None
        if star is None or kernel.source.of(star) != "*" or field_of(declarator, "declarator").type != "identifier":
            continue
        name = field_of(declarator, "declarator")
        gap = "" if name.start_byte > star.end_byte else " "
        edits.changes.append((star.start_byte, star.end_byte, f"* __restrict__{gap}"))
