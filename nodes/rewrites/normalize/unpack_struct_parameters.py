"""A struct that a kernel takes by value is taken as the members that it reads.

    template <typename T> __global__ void norm(NormParams<T> params) { ... params.input[i] ... params.eps ... }
    norm<T><<<rows, 256>>>(params);
                                                   ->
    template <typename T> __global__ void norm(const T* params_input, float params_eps) { ... params_input[i] ... }
    norm<T><<<rows, 256>>>(params.input, params.eps);

Changes nothing by itself, but other steps know memory by the kernel's own pointers.
"""

from __future__ import annotations

from collections.abc import Iterator

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.device_code import Code, one_by_one
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.analysis.structs import declared_member, object_of, structs
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.insert import substituted
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import field_of, same

MOST = 32


@rule(
    "cuda",
    expected="nothing by itself: later steps see the pointers and sizes that a struct had hidden",
    normalizes=True,
    after=("inline_device_functions",),
    risks=(Outcome.INCORRECT,),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    return one_by_one(source, _unpack, _parameters, MOST)


def _parameters(code: Code) -> Iterator[tuple[Kernel, int]]:
    return ((kernel, at) for kernel in code.kernels for at in range(len(kernel.parameters)))


def _unpack(edits: Edits, code: Code, kernel: Kernel, at: int) -> None:
    """Raises Unsupported where the parameter is no such struct, or is used for more than its members."""
    source, parameter = code.source, kernel.parameters[at]
    named = (n for n in source.walk(kernel.body, "identifier") if source.of(n) == parameter.name)
    uses = [n for n in named if (d := code.definition(n)) is not None and same(d.declaration, parameter.node)]
    object_ = object_of(code, structs(code), code.definition(uses[0]) if uses else None)
    if object_ is None or not kernel.launches or not object_.struct.in_sight(kernel.node):
        raise Unsupported("no struct by value")
    if parameter.name in code.words_of_macros:
        raise Unsupported("a macro that may name it")
    read: dict[str, str] = {}
    for use in uses:
        owner = use.parent
        member = source.of(owner, "field") if owner is not None and owner.type == "field_expression" else ""
        if owner is None or member not in object_.struct.members:
            raise Unsupported("a struct that is used as a whole, or has such a method")
        read.setdefault(member, code.fresh(f"{parameter.name}_{member}"))
        edits.replace(owner, read[member])
    members = [member for member in object_.struct.members if member in read]
    declared = [_declared(source, object_.struct.members[m], object_.types, read[m]) for m in members]
    edits.replace(parameter.node, ", ".join(declared))
    for argument in (launch.arguments[at] for launch in kernel.launches):
        if argument.type != "identifier":
            raise Unsupported("a struct from somewhere")
        edits.replace(argument, ", ".join(f"{source.of(argument)}.{member}" for member in members))


def _declared(source: Source, declarator: Node, types: dict[str, str], name: str) -> str:
    """A member's declaration as that of a parameter of another name."""
    declaration, member = declarator.parent, declared_member(declarator)
    kind = source.data[declaration.start_byte : field_of(declaration, "declarator").start_byte].decode()
    star = source.data[declarator.start_byte : member.start_byte].decode()
    return f"{substituted(kind, types)}{star}{name}"
