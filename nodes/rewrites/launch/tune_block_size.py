"""The width of a block is left open for the search, where the kernel works with any.

A constant that is the block's width in a launch, and from which the launch's grid is computed, becomes a `#define` with
choices. Kernels that read their width from `blockDim.x`, or from that very constant, stay right for each of them.
"""

from __future__ import annotations

from functools import partial

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import Code, code_of
from nodes.rewrites.analysis.insertions import insertion_point
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.analysis.launches import Launch
from nodes.rewrites.analysis.regions import carries_state, sums_up, thread_loops
from nodes.rewrites.launch.grid_stride import check_threads, headers, leaders
from nodes.rewrites.prelude.block_reductions import brought
from nodes.rewrites.reductions.shares import check_block_shares
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
    after=("neighbouring_rows_per_block",),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    code = code_of(source)
    edits = Edits(source)
    value = 0
    name = code.fresh("BLOCK_THREADS")
    done: set[int] = set()
    for kernel in code.kernels:
        for launch in kernel.launches:
            try:
                if not _is_free(code, kernel):
                    continue
                check_block_shares(code, kernel)
                nodes, width = _width_nodes(code, launch)
                if value not in {0, width} or not 32 <= width <= 1024 or width % 32:
                    continue
                if _names_width(code, kernel, launch, width):
                    continue
            except Unsupported:
                continue
            value = width
            for node, text in nodes:
                if node.start_byte not in done:
                    done.add(node.start_byte)
                    edits.replace(node, text.format(name=name))
    if not edits.changes:
        return None
    rows = brought(source) and facts.spec.inputs
    widest = {1024} if rows and facts.share_of_workloads(partial(_is_few, facts.device.units)) else set()
    choices = " ".join(str(n) for n in sorted({*CHOICES, *widest, value}))
    edits.insert(insertion_point(source), "\n" + DEFINE.format(name=name, value=value, choices=choices))
    return edits.apply()


def _is_few(units: int, rows: int, row_bytes: int) -> bool:
    """Whether rows leave most of the device idle unless many threads take each, and are long enough for these."""
    return rows <= 4 * units and row_bytes >= 1024 * 16


def _is_free(code: Code, kernel: Kernel) -> bool:
    """No memory of the block's own has the width for a size, and no launch bound forbids a wider block."""
    if kernel.launch_bounds is not None or (kernel.synchronises and not kernel.has_barrier):
        return False
    if kernel.shared:
        return False
    if f"{kernel.name}_in_registers" in code.functions:
        return False  # it only serves rows that are too long for registers
    if any(carries_state(kernel, statements(loop.body)) and not sums_up(kernel, loop) for loop in thread_loops(kernel)):
        return False
    if kernel.counts_warps:
        return False
    names = ("threadIdx.y", "blockDim.y")
    return not any(kernel.source.of(n) in names for n in kernel.source.walk(kernel.body, "field_expression"))


def _names_width(code: Code, kernel: Kernel, launch: Launch, width: int) -> bool:
    """Whether a template argument tells the kernel its width."""
    passed = zip(kernel.template_names, launch.template_arguments, strict=False)
    named = {name for name, argument in passed if argument == str(width)}
    return any(code.source.of(n) in named for n in code.source.walk(kernel.node, "identifier", "type_identifier"))


def _width_nodes(code: Code, launch: Launch) -> tuple[list[tuple[Node, str]], int]:
    """The numbers that are the width, with what takes their place. Raises Unsupported where one may be hidden."""
    constant = _constant(code, launch)
    if constant is None:
        raise Unsupported("a width that is computed")
    width = int(code.source.of(constant))
    found = {constant.start_byte: (constant, "{name}")}
    kernel = next(k for k in code.kernels if k.name == launch.kernel_name)
    if str(width) in {code.source.of(n) for n in code.source.walk(kernel.node, "number_literal")}:
        raise Unsupported("a kernel that names the width of its block")
    reached = _reached(code, launch.grid)
    for node in reached:
        text = code.source.of(node)
        if node.type == "identifier":
            continue
        if text == str(width):
            found[node.start_byte] = (node, "{name}")
        elif text == str(width - 1):
            found[node.start_byte] = (node, "({name} - 1)")
        elif not text.isdigit() or (int(text) > LANES_AT_MOST and not _is_cap(node)):
            raise Unsupported("a grid with a number of unknown meaning")
    says = {code.source.of(n) for n in code.source.walk(launch.block, "identifier")} - {"dim3"} | {str(width)}
    if says.isdisjoint(map(code.source.of, reached)):  # else grid and block together cover what they covered
        loops = thread_loops(kernel)
        check_threads(code, kernel, [*headers(loops), *leaders(code, kernel, loops)])
    return list(found.values()), width


def _is_cap(node: Node) -> bool:
    """A number that bounds the grid, as in `min(n, 1024)`, `n < 1024 ? n : 1024` or `if (n > 1024) n = 1024`."""
    parent = node.parent
    if parent is None:
        return False
    if parent.type == "binary_expression":
        operator = field_of(parent, "operator")
        return operator is not None and operator.text in {b"<", b">", b"<=", b">="}
    return parent.type in {"argument_list", "conditional_expression", "assignment_expression"}


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


def _constant(code: Code, launch: Launch) -> Node | None:
    """The number behind a block expression: a literal, `dim3(256)`, or a constant that holds one."""
    if launch.extents(launch.block)[1:] != ("1", "1"):
        return None
    node: Node | None = launch.along_x(launch.block)
    while node is not None and node.type != "number_literal":
        found = code.variable(bare(node))
        settled = found is not None and found.kind in {"local", "global"} and not code.mutated(found)
        node = found.value if settled else None
    return node
