"""The width of a block is left open for the search, where the kernel works with any.

A constant that is the block's width in a launch, and from which the launch's grid is computed, becomes a `#define` with
choices. Kernels that read their width from `blockDim.x`, or from that very constant, stay right for each of them.
"""

from __future__ import annotations

from contextlib import suppress

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import Code, code_of
from nodes.rewrites.analysis.insertions import bring
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.analysis.launches import Launch
from nodes.rewrites.analysis.regions import BLOCK, BLOCK_DIM, carries_state, sums_up, thread_loops
from nodes.rewrites.launch.grid_stride import check_threads
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.match import bare
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import field_of, statements

CHOICES = (64, 128, 256, 512)
LANES_AT_MOST = 16
"""Smaller numbers in a grid are elements of a pack; a larger one may be a multiple of the width."""
DEFINE = "#define {name} {value}  // tune: {choices}\n"


@rule(
    "cuda",
    expected="the width that fits the device and the size of the tensor, found by measuring",
    speedup=1.03,
    helps={"memory", "latency", "compute"},
)
def rewrite(source: Source, facts: Facts) -> str | None:
    code, edits, name = code_of(source), Edits(source), code_of(source).fresh("BLOCK_THREADS")
    value, found = 0, dict[int, tuple[Node, str]]()
    for kernel in code.kernels:
        for launch in kernel.launches:
            with suppress(Unsupported):
                nodes, width = _width_nodes(code, kernel, launch)
                if value in {0, width}:
                    value = width
                    found |= nodes
    if not found:
        return None
    for node, text in found.values():
        edits.replace(node, text.format(name=name))
    choices = " ".join(str(n) for n in sorted({*CHOICES, value}))
    bring(edits, code, DEFINE.format(name=name, value=value, choices=choices))
    return edits.apply()


def _check_free(code: Code, kernel: Kernel, launch: Launch, width: int) -> None:
    """Raises Unsupported where the kernel may not work with any width: its own memory has it for a size, a bound forbids a wider
    block, an element has to be a certain thread's, or it says the width."""
    text, source = kernel.source.of, kernel.source
    if kernel.launch_bounds is not None or any("__shared__" in text(f) for f in (kernel.node, *kernel.helpers)):
        raise Unsupported("a width that is said elsewhere, or memory for so many warps")
    if kernel.synchronises and not any("__syncthreads" in text(f) for f in (kernel.node, *kernel.helpers)):
        raise Unsupported("warps that talk")
    if any(carries_state(kernel, statements(loop.body)) and not sums_up(kernel, loop) for loop in thread_loops(kernel)):
        raise Unsupported("elements that depend on each other")
    if any(loop.start.depends_on(BLOCK) and not loop.step.depends_on(BLOCK_DIM) for loop in thread_loops(kernel)):
        raise Unsupported("rows that a number of warps shares out")
    if any(text(n) in {"threadIdx.y", "blockDim.y"} for n in source.walk(kernel.body, "field_expression")):
        raise Unsupported("a block of two dimensions")
    passed = zip(kernel.template_names, launch.template_arguments, strict=False)
    named = {name for name, argument in passed if argument == str(width)} | {str(width)}
    if any(text(n) in named for n in source.walk(kernel.node, "identifier", "type_identifier", "number_literal")):
        raise Unsupported("a kernel that names the width of its block")


def _width_nodes(code: Code, kernel: Kernel, launch: Launch) -> tuple[dict[int, tuple[Node, str]], int]:
    """The numbers that are the width, by their place, with what takes theirs. Raises Unsupported where one may be hidden."""
    constant = code.settled(bare(launch.along_x(launch.block)))
    if constant.type != "number_literal" or launch.extents(launch.block)[1:] != ("1", "1"):
        raise Unsupported("a width that is computed")
    width = int(code.source.of(constant))
    if not 32 <= width <= 1024 or width % 32:
        raise Unsupported("no whole warps")
    _check_free(code, kernel, launch, width)
    found = {constant.start_byte: (constant, "{name}")}
    reached = _reached(code, launch.grid)
    for node in (n for n in reached if n.type != "identifier"):
        text = code.source.of(node)
        if text in {str(width), str(width - 1)}:
            found[node.start_byte] = (node, "{name}" if text == str(width) else "({name} - 1)")
        elif not text.isdigit() or (int(text) > LANES_AT_MOST and not _is_cap(node)):
            raise Unsupported("a grid with a number of unknown meaning")
    says = {code.source.of(n) for n in code.source.walk(launch.block, "identifier")} - {"dim3"} | {str(width)}
    if says.isdisjoint(map(code.source.of, reached)):  # else grid and block together cover what they covered
        check_threads(code, kernel, thread_loops(kernel))
    return found, width


def _is_cap(node: Node) -> bool:
    """A number that bounds the grid, as in `min(n, 1024)`, `n < 1024 ? n : 1024` or `if (n > 1024) n = 1024`."""
    if node.parent.type == "binary_expression":
        return field_of(node.parent, "operator").text in {b"<", b">", b"<=", b">="}
    return node.parent.type in {"argument_list", "conditional_expression", "assignment_expression"}


def _reached(code: Code, node: Node) -> list[Node]:
    """The numbers and names of an expression and of all that is ever assigned to the function's variables in it."""
    found, seen, stack = list[Node](), set[int](), [node]
    while stack:
        parts = list(code.source.walk(stack.pop(), "number_literal", "identifier"))
        found += parts
        for name in parts:
            known = code.variable(name)
            if known is None or known.kind != "local" or known.where in seen:
                continue
            seen.add(known.where)
            shape = known.declarator is not None and known.declarator.type == "function_declarator"  # `dim3 grid(n)`
            stack += [known.declarator] if shape else [known.value] if known.value is not None else []
            for assignment in code.source.walk(known.declaration.parent, "assignment_expression"):
                if code.source.of(assignment, "left") == known.name:
                    stack.append(field_of(assignment, "right"))
    return found
