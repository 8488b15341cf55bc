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
from nodes.rewrites.syntax.tree import children_of, enclosing, field_of, names_declared

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
    if (
        not kernel.launches
        or not taking
        or not explicit
        or kernel.template_parameters[at].type != "type_parameter_declaration"
    ):
        raise Unsupported("a template parameter for something else")
    kinds = [passed_type(code, launch.arguments[taking[0]]) for launch in kernel.launches]
    texts = {source.of(kind) for kind in kinds}
    struct = structs(code).get(read_type(code, kinds[0])[0])
    if len(texts) != 1 or struct is None or not struct.in_sight(kernel.node) or name in code.words_of_macros:
        raise Unsupported("different structs, or none of the file")
    words = set(re.findall(r"[A-Za-z_]\w*", texts.pop()))
    types, added = dict[str, str](), dict[str, str]()
    for word in sorted(set().union(*(_of_host(source, launch, words) for launch in kernel.launches))):
        places = [{n for n, given in enumerate(x.template_arguments) if given == word} for x in kernel.launches]
        if shared := set.intersection(*places):
            types[word] = kernel.template_names[min(shared)]
        else:
            types[word] = added[word] = word if word not in kernel.identifiers() else code.fresh(word)
    listed = field_of(kernel.template, "parameters")
    if head := _listed(source, listed, at, [f"typename {t}" for t in added.values()]):
        edits.replace(listed, head)
    else:
        edits.changes.append((kernel.template.start_byte, kernel.node.start_byte, ""))
    for launch in kernel.launches:
        edits.replace(launch.template_list, _listed(source, launch.template_list, at, list(added)))
    for use in source.walk(kernel.node, "type_identifier", "identifier", "namespace_identifier"):
        if source.of(use) == name:
            edits.replace(use, substituted(source.of(kinds[0]), types))


def _by_value(parameter: Node) -> bool:
    return (field_of(parameter, "declarator") or parameter).type == "identifier"


def _of_host(source: Source, launch: Launch, words: set[str]) -> set[str]:
    """Which of a type's words are template parameters of the function with the launch. Raises Unsupported where one is something else
    of that function."""
    function = enclosing(launch.node, "function_definition")
    template = enclosing(function, "template_declaration")
    own = {source.of(name) for node in source.walk(function, "declaration") for name in names_declared(node)}
    own |= {source.of(node, "name") for node in source.walk(function, "alias_declaration")}
    listed = {template_name(source, p): p.type for p in children_of(template, "parameters")}
    if words & own or any(listed.get(w, "type_parameter_declaration") != "type_parameter_declaration" for w in words):
        raise Unsupported("a template argument that the kernel cannot name")
    return words & listed.keys()


def _listed(source: Source, listed: Node, at: int, instead: list[str]) -> str:
    """A template's list with items in place of one; nothing for a list without any."""
    parts = [source.of(c) for c in children_of(listed)]
    parts[at : at + 1] = instead
    return f"<{', '.join(parts)}>" if parts else ""
