"""What launches leave to defaults is written out: `kernel<256>` of `template <int threads, bool biased = false>` becomes
`kernel<256, false>`, and arguments that a launch leaves out are passed.

Changes nothing by itself, but behind a default no other step can put a parameter of its own.
"""

from __future__ import annotations

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import code_of
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.insert import substituted
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import children_of, field_of


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
            launches, given = code.launches_of(kernel.name), children_of(kernel.parameter_list)
            templates = [(launch.template_list, len(launch.template_arguments)) for launch in launches]
            if all(listed is not None for listed, _ in templates):
                _write_out(edits, kernel, kernel.template_parameters, templates)
            _write_out(edits, kernel, given, [(field_of(x.node, "arguments"), len(x.arguments)) for x in launches])
    return edits.apply()


def _write_out(edits: Edits, kernel: Kernel, parameters: list[Node], launches: list[tuple[Node, int]]) -> None:
    """Ends each launch's list of so many arguments, and takes the defaults from the parameters."""
    for listed, count in launches:
        given = [kernel.source.of(argument) for argument in children_of(listed)]
        of_template = listed.type == "template_argument_list"
        for parameter in parameters[count:]:
            given.append(_default(kernel, parameter, given if of_template else []))
        values = given[count:]
        if values:
            edits.insert(listed.end_byte - 1, ", ".join(["", *values] if count else values))
    for parameter in parameters if launches else ():
        value = field_of(parameter, "default_value") or field_of(parameter, "default_type")
        before = field_of(parameter, "declarator") or field_of(parameter, "name")
        if value is not None and before is not None:
            edits.changes.append((before.end_byte, value.end_byte, ""))


def _default(kernel: Kernel, parameter: Node, given: list[str]) -> str:
    """With the template arguments before it in place of their names."""
    source, value = kernel.source, field_of(parameter, "default_value") or field_of(parameter, "default_type")
    known = dict(zip(kernel.template_names, given, strict=False))
    own = {*kernel.template_names, *(p.name for p in kernel.parameters)} - known.keys()
    if value is None or own & {source.of(n) for n in source.walk(value, "identifier", "type_identifier")}:
        raise Unsupported(
            "an argument that is left out without a default, or with one that is made of another parameter"
        )
    return substituted(source.of(value), known)
