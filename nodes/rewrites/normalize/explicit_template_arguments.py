"""A launch names the types that the compiler deduced for its kernel's template, so that kernels with more parameters can be launched
and pointed at in its place.

    softmax<<<rows, 256, 0, stream>>>(out, in, n);    ->    softmax<T><<<rows, 256, 0, stream>>>(out, in, n);
"""

from __future__ import annotations

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import Code, code_of
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.analysis.launches import Launch
from nodes.rewrites.analysis.structs import passed_type, read_type, structs
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import field_of


@rule(
    "cuda",
    expected="nothing by itself: later steps can name the kernel",
    normalizes=True,
    after=("inline_vector_methods",),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    code, edits = code_of(source), Edits(source)
    for kernel in code.kernels:
        for launch in kernel.launches:
            if len(launch.template_arguments) < len(kernel.template_names):
                try:
                    edits.replace(launch.function, _named(code, kernel, launch))
                except Unsupported:
                    continue
    return edits.apply()


def _named(code: Code, kernel: Kernel, launch: Launch) -> str:
    """The launched kernel with all template arguments. Raises Unsupported where one is not a type of a parameter's elements."""
    text = code.source.of(launch.function)
    given = launch.template_arguments
    deduced = [_deduced(code, kernel, launch, name) for name in kernel.template_names[len(given) :]]
    return f"{text.partition('<')[0].rstrip()}<{', '.join([*given, *deduced])}>"


def _deduced(code: Code, kernel: Kernel, launch: Launch, name: str) -> str:
    """The type of the elements that an argument points to, as the host function declares it."""
    for at, parameter in enumerate(kernel.parameters):
        argument = launch.arguments[at] if at < len(launch.arguments) else None
        if parameter.element == name and argument is not None and _is_struct(code, parameter.node, argument):
            return code.source.of(passed_type(code, argument))
        found = code.variable(argument)
        if (
            parameter.element != name
            or not parameter.pointer
            or found is None
            or found.kind not in {"parameter", "local"}
        ):
            continue
        declared = found.declarator if found.kind == "parameter" else field_of(found.declaration, "declarator")
        if found.kind == "local" and declared is not None and declared.type == "init_declarator":
            declared = field_of(declared, "declarator")
        plain = declared is not None and declared.type == "pointer_declarator"
        inner = field_of(declared, "declarator") if plain and declared is not None else None
        if inner is not None and inner.type == "identifier":
            return code.source.of(found.declaration, "type")
    raise Unsupported(f"{name} of {kernel.name} is deduced from something else")


def _is_struct(code: Code, parameter: Node, argument: Node) -> bool:
    """Whether what is passed by value is, as it is written, a struct of the file."""
    by_value = field_of(parameter, "declarator").type == "identifier"
    return by_value and read_type(code, passed_type(code, argument))[0] in structs(code)
