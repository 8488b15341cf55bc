"""A kernel that takes a struct of any type names the one that every launch passes.

    template <typename LOAD, typename C> __global__ void norm(LOAD load, ...) { ... load.at(row, i) ... }
    DirectLoad<T> load(x, columns);
    norm<DirectLoad<T>, float><<<rows, 256>>>(load, ...);
                                                   ->
    template <typename T, typename C> __global__ void norm(DirectLoad<T> load, ...) { ... load.at(row, i) ... }
    norm<T, float><<<rows, 256>>>(load, ...);

Changes nothing by itself, but what a method does can be read only where the struct is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import Code, one_by_one
from nodes.rewrites.analysis.kernels import Kernel, template_name
from nodes.rewrites.analysis.launches import Launch
from nodes.rewrites.analysis.structs import passed_type, read_type, structs
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.insert import substituted
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import children_of, enclosing, field_of, names_declared, template_of

MOST = 16


@rule(
    "cuda",
    expected="nothing by itself: later steps see which methods a kernel calls",
    normalizes=True,
    after=("resolve_kernel_variables",),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    return one_by_one(source, _resolve, _parameters, MOST)


def _parameters(code: Code) -> Iterator[tuple[Kernel, int]]:
    return ((kernel, at) for kernel in code.kernels for at in range(len(kernel.template_names)))


def _resolve(edits: Edits, code: Code, kernel: Kernel, at: int) -> None:
    """Raises Unsupported where launches pass different types, or one that the kernel has no words for."""
    source, name = code.source, kernel.template_names[at]
    taking = [n for n, p in enumerate(kernel.parameters) if p.element == name and _by_value(p.node)]
    explicit = all(len(launch.template_arguments) == len(kernel.template_names) for launch in kernel.launches)
    if not taking or not explicit or kernel.template_parameters[at].type != "type_parameter_declaration":
        raise Unsupported("a template parameter for something else")
    kinds = [passed_type(code, launch.arguments[taking[0]]) for launch in kernel.launches]
    texts = {source.of(kind) for kind in kinds}
    struct = structs(code).get(read_type(code, kinds[0])[0])
    if len(texts) != 1 or struct is None or not struct.in_sight(kernel.node) or name in code.words_of_macros:
        raise Unsupported("different structs, or none of the file")
    words = set(re.findall(r"[A-Za-z_]\w*", texts.pop()))
    types, added = dict[str, str](), dict[str, str]()
    for word in sorted(set().union(*(words & _of_host(source, launch) for launch in kernel.launches))):
        places = [{n for n, given in enumerate(x.template_arguments) if given == word} for x in kernel.launches]
        if shared := set.intersection(*places):
            types[word] = kernel.template_names[min(shared)]
        else:
            types[word] = added[word] = word if word not in kernel.identifiers() else code.fresh(word)
    kind = substituted(source.of(kinds[0]), types)
    _put(edits, kernel.template, field_of(kernel.template, "parameters"), at, [f"typename {t}" for t in added.values()])
    for launch in kernel.launches:
        _put(edits, None, launch.template_list, at, list(added))
    for use in source.walk(kernel.node, "type_identifier", "identifier", "namespace_identifier"):
        if source.of(use) == name:
            edits.replace(use, kind)


def _by_value(parameter: Node) -> bool:
    return (field_of(parameter, "declarator") or parameter).type == "identifier"


def _of_host(source: Source, launch: Launch) -> set[str]:
    """The template parameters of the function with the launch. Raises Unsupported where it has types of its own, or other templates
    than of types."""
    function = enclosing(launch.node, "function_definition")
    if function is None or source.has(function, "alias_declaration", "type_definition", "lambda_expression"):
        raise Unsupported("a launch among types of its own")
    own = {source.of(name) for node in source.walk(function, "declaration") for name in names_declared(node)}
    listed = children_of(template_of(function), "parameters")
    words = {template_name(source, p) for p in listed}
    given = {w for a in launch.template_arguments for w in re.findall(r"[A-Za-z_]\w*", a)}
    if given & own or any(p.type != "type_parameter_declaration" for p in listed if template_name(source, p) in given):
        raise Unsupported("a template argument that the kernel cannot name")
    return words


def _put(edits: Edits, template: Node | None, listed: Node | None, at: int, instead: list[str]) -> None:
    """The items in place of one in a list of a template's; without any, no list and no template."""
    source = edits.source
    parts = [source.of(c) for c in children_of(listed)]
    parts[at : at + 1] = instead
    if parts:
        edits.replace(listed, f"<{', '.join(parts)}>")
    elif template is not None:
        edits.changes.append((template.start_byte, template.named_children[-1].start_byte, ""))
    else:
        edits.replace(listed, "")
