"""What launches leave to defaults is written out: `kernel<256>` of `template <int threads, bool biased = false>` becomes
`kernel<256, false>`, and arguments that a launch leaves out are passed.

Changes nothing by itself, but behind a default no other step can put a parameter of its own.
"""

from __future__ import annotations

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import Code, code_of
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import children_of, field_of

OPTIONAL = {"optional_parameter_declaration", "optional_type_parameter_declaration"}


@rule(
    "cuda",
    expected="nothing by itself: later steps may add parameters",
    normalizes=True,
    after=("inline_device_functions",),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    code, edits = code_of(source), Edits(source)
    for kernel in code.kernels:
        with edits.attempt():
            _write_out(edits, code, kernel)
    return edits.apply()


def _write_out(edits: Edits, code: Code, kernel: Kernel) -> None:
    text = code.source.of
    parameters = kernel.template_parameters
    given = children_of(kernel.parameter_list)
    launches = code.launches_of(kernel.name)
    if not launches or not any(p.type in OPTIONAL for p in [*parameters, *given]):
        return
    explicit = all(launch.template_list is not None for launch in launches)
    for launch in launches:
        missing = parameters[len(launch.template_arguments) :] if explicit else []
        if missing and all(p.type in OPTIONAL for p in missing) and launch.template_list is not None:
            values = [_default(code, kernel, p) for p in missing]
            at = launch.template_list.end_byte - 1
            edits.insert(at, (", " if launch.template_arguments else "") + ", ".join(values))
        elif missing:
            raise Unsupported("template arguments that are deduced")
        passed = [_default(code, kernel, p) for p in given[len(launch.arguments) :]]
        if passed:
            if launch.dependent or not launch.arguments:
                raise Unsupported("a launch through a function")
            edits.insert(launch.arguments[-1].end_byte, "".join(f", {value}" for value in passed))
    for parameter in [*(parameters if explicit else []), *given]:
        if parameter.type in OPTIONAL:
            value = field_of(parameter, "default_value") or field_of(parameter, "default_type")
            before = field_of(parameter, "declarator") or field_of(parameter, "name")
            if value is None or before is None:
                raise Unsupported("a default that is not understood")
            edits.changes.append((before.end_byte, value.end_byte, ""))
    if not edits.changes:
        raise Unsupported(f"{text(kernel.name_node)} has no default that a launch uses")


def _default(code: Code, kernel: Kernel, parameter: Node) -> str:
    value = field_of(parameter, "default_value") or field_of(parameter, "default_type")
    if value is None or parameter.type not in OPTIONAL:
        raise Unsupported("an argument that is left out without a default")
    named = {code.source.of(n) for n in code.source.walk(value, "identifier", "type_identifier")}
    if named & set(kernel.template_names):
        raise Unsupported("a default that is made of another parameter")
    return code.source.of(value)
