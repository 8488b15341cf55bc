"""A kernel reads its block's width from `blockDim.x` instead of a constant that every launch repeats.

Changes nothing by itself, but steps that choose the width need it: `i += BLOCK` with `kernel<T, BLOCK><<<n, BLOCK>>>`,
`i += 256` with `<<<n, 256>>>`, a parameter `block_size` that is passed the width.
"""

from __future__ import annotations

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import Code, code_of
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.analysis.regions import THREAD
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.source import Edits, Source, inside
from nodes.rewrites.syntax.tree import enclosing, field_of, same, upward


@rule(
    "cuda",
    expected="nothing by itself: later steps may then choose the width of a block",
    normalizes=True,
    after=("canonicalize_loops",),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    code = code_of(source)
    edits = Edits(source)
    for kernel in code.kernels:
        with edits.attempt():
            for node in _constants(code, kernel):
                edits.replace(node, "blockDim.x")
    return edits.apply()


def _constants(code: Code, kernel: Kernel) -> list[Node]:
    """Where the kernel names the width: in steps and starts of loops, and beside blockIdx.x."""
    source = kernel.source
    names, literals = _widths(code, kernel)
    planar = any(launch.extents(launch.block)[1:] != ("1", "1") for launch in kernel.launches)
    found = []
    for node in source.walk(kernel.body, "identifier", "number_literal"):
        text = source.of(node)
        if text not in names and text not in literals:
            continue
        if planar:  # there the number may be a warp's as well, of which later steps make no block's
            found += [node] if _is_step(node) and _starts_with_thread(kernel, node) else []
            continue
        named = node.type == "identifier" and text in names and not _is_constant(code, kernel, node)
        if named or (node.type == "number_literal" and (_is_step(node) or _scales_block(source, node))):
            found.append(node)
    return found


def _widths(code: Code, kernel: Kernel) -> tuple[set[str], set[str]]:
    """Names and numbers that are the block's width in every launch; of a block of two dimensions the one along x."""
    found: list[set[str]] = []
    for launch in kernel.launches:
        x, _, z = launch.extents(launch.block)
        if z != "1":
            return set(), set()
        pairs = zip(kernel.template_names, launch.template_arguments, strict=False)
        passed = zip([p.name for p in kernel.parameters], launch.arguments, strict=False)
        mine = {name for name, argument in pairs if argument == x}
        mine |= {name for name, argument in passed if _is_width(code, kernel, name, argument, x)}
        if x.isdigit() or x in code.macros or _is_global(code, enclosing(launch.node, "function_definition"), x):
            mine.add(x)
        found.append(mine)
    names = set.intersection(*found) if found else set()
    literals = {name for name in names if name.isdigit()}
    return names - literals, literals


def _is_width(code: Code, kernel: Kernel, name: str, argument: Node, width: str) -> bool:
    """Whether a parameter keeps for ever what the launch passes, which is the width."""
    if code.source.of(argument) != width or any(code.source.of(n) == name for n in code.assigned(kernel.body)):
        return False
    found = code.variable(argument)
    return width.isdigit() or (found is not None and not code.mutated(found))


def _is_global(code: Code, node: Node | None, name: str) -> bool:
    for identifier in code.source.walk(node, "identifier", "type_identifier"):
        if code.source.of(identifier) == name:
            found = code.definition(identifier)
            return found is not None and found.kind == "global"
    return False


def _is_constant(code: Code, kernel: Kernel, node: Node, depth: int = 0) -> bool:
    """Whether the compiler must know the value here, or where a variable is used that is made of it."""
    if _is_type_level(node):
        return True
    here = next((n for n in upward(node) if n.type == "init_declarator" or n.type.endswith("statement")), None)
    name = field_of(here, "declarator")
    if here is None or here.type != "init_declarator" or name.type != "identifier" or depth > 4:
        return False
    made = next((d for d in code.declared(here.parent) if d.where == here.start_byte), None)
    return made is not None and any(
        _is_constant(code, kernel, use, depth + 1) for use in code.uses(made, kernel.body) if not same(use, name)
    )


def _is_type_level(node: Node) -> bool:
    """In an array's size, a template's argument, `if constexpr`, or a constant that the compiler must know."""
    for here in upward(node):
        holder = here.parent
        if holder is None or here.type.endswith("statement"):
            return False
        if here.type in {"template_argument_list", "launch_bounds", "alignas_qualifier", "static_assert_declaration"}:
            return True
        if holder.type == "case_statement" and same(field_of(holder, "value"), here):
            return True
        if holder.type == "array_declarator" and same(field_of(holder, "size"), here):
            return True
        words = holder if here.type == "condition_clause" else here if here.type == "declaration" else None
        if words is not None and any(c.text == b"constexpr" for c in words.children):
            return True
    return False


def _is_step(node: Node) -> bool:
    around = (here for here in upward(node) if here.type not in {"binary_expression", "parenthesized_expression"})
    step = next((here for here in around if not same(here, node)), None)
    loop = step.parent if step is not None and step.type == "assignment_expression" else None
    return loop is not None and loop.type == "for_statement" and inside(node, field_of(step, "right"))


def _starts_with_thread(kernel: Kernel, step: Node) -> bool:
    """Whether the loop with this step begins with the thread's own place along x."""
    return any(
        loop.step_node is not None and inside(step, loop.step_node) and loop.start.only == THREAD
        for loop in kernel.loops
    )


def _scales_block(source: Source, node: Node) -> bool:
    parent = node.parent
    if parent is None or parent.type != "binary_expression" or source.of(parent, "operator") != "*":
        return False
    return "blockIdx.x" in (source.of(parent, "left"), source.of(parent, "right"))
