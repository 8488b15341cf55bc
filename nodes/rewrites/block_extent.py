"""A kernel reads its block's width from `blockDim.x` instead of a constant that every launch repeats.

Changes nothing by itself, but steps that choose the width need it: `i += BLOCK` with `kernel<T, BLOCK><<<n, BLOCK>>>`,
`i += 256` with `<<<n, 256>>>`.
"""

from __future__ import annotations

from tree_sitter import Node

from nodes.rewrites import Facts
from nodes.rewrites.device_code import Code, Kernel, inside
from nodes.rewrites.source import Edits, Source, Unsupported
from nodes.roles import Bound

LANGUAGES = frozenset({"cuda"})
HELPS: frozenset[Bound] = frozenset({"latency", "memory", "compute", "launch"})
EXPECTED = "nothing by itself: later steps may then choose the width of a block"
SPEEDUP = 1.0001
ORDER = 5


def rewrite(source: Source, facts: Facts) -> str | None:
    code = Code(source)
    edits = Edits(source)
    for kernel in code.kernels:
        try:
            for node in _constants(code, kernel):
                edits.replace(node, "blockDim.x")
        except Unsupported:
            continue
    return edits.apply() if edits.changes else None


def _constants(code: Code, kernel: Kernel) -> list[Node]:
    """Where the kernel names the width: in steps and starts of loops, and beside blockIdx.x."""
    source = kernel.source
    names, literals = _widths(code, kernel)
    found = []
    for node in source.walk(kernel.body, "identifier", "number_literal"):
        text = source.of(node)
        if text not in names and text not in literals:
            continue
        named = node.type == "identifier" and text in names and not _is_type_level(node)
        if named or (node.type == "number_literal" and (_is_step(node) or _scales_block(source, node))):
            found.append(node)
    return found


def _widths(code: Code, kernel: Kernel) -> tuple[set[str], set[str]]:
    """Names and numbers that are the block's width in every launch."""
    names: set[str] | None = None
    literals: set[str] | None = None
    for launch in kernel.launches:
        x, y, z = launch.extents(launch.block)
        if (y, z) != ("1", "1"):
            return set(), set()
        pairs = zip(kernel.template_names, launch.template_arguments, strict=False)
        mine = {name for name, argument in pairs if argument == x}
        if x in code.macros or _is_global(code, launch.block, x):
            mine.add(x)
        names = mine if names is None else names & mine
        literals = {x} if x.isdigit() and literals is None else (literals or set()) & {x}
    return names or set(), literals or set()


def _is_global(code: Code, node: Node, name: str) -> bool:
    for identifier in code.source.walk(node, "identifier"):
        if code.source.of(identifier) == name:
            found = code.definition(identifier)
            return found is not None and found.kind == "global"
    return False


def _is_type_level(node: Node) -> bool:
    """In an array's size, a template's argument or a constant that must be known when the kernel is compiled."""
    here: Node | None = node
    while here is not None and not here.type.endswith("statement"):
        if here.type in {"template_argument_list", "launch_bounds", "alignas_qualifier", "static_assert_declaration"}:
            return True
        if here.type == "array_declarator":
            size = here.child_by_field_name("size")
            if size is not None and inside(node, size):
                return True
        if here.type == "declaration" and any(
            c.type == "type_qualifier" and c.text == b"constexpr" for c in here.children
        ):
            return True
        here = here.parent
    return False


def _is_step(node: Node) -> bool:
    parent = node.parent
    while parent is not None and parent.type in {"binary_expression", "parenthesized_expression"}:
        node, parent = parent, parent.parent
    if parent is None or parent.type != "assignment_expression" or parent.parent is None:
        return False
    return parent.parent.type == "for_statement" and parent.child_by_field_name("right") == node


def _scales_block(source: Source, node: Node) -> bool:
    parent = node.parent
    if parent is None or parent.type != "binary_expression" or source.of(parent.child_by_field_name("operator")) != "*":
        return False
    return "blockIdx.x" in (
        source.of(parent.child_by_field_name("left")),
        source.of(parent.child_by_field_name("right")),
    )
