"""What is known of a block's width, and its barriers."""

from __future__ import annotations

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import Code
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.analysis.launch_values import value_in
from nodes.rewrites.analysis.launches import Launch
from nodes.rewrites.analysis.regions import THREAD
from nodes.rewrites.syntax.algebra import Polynomial
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Source, Unsupported
from nodes.rewrites.syntax.tree import field_of


def extent_of(code: Code, kernel: Kernel, node: Node) -> int | None:
    """A number in a launch's shape; None where that is only known when it runs."""
    if node.type == "parameter_declaration":  # `dim3 block(WIDTH)` reads as a function
        node = field_of(node, "type") or node
    found = code.definition(node) if node.type in {"identifier", "type_identifier"} else None
    if found is not None and found.kind != "macro":
        settled = found.kind in {"local", "global"} and found.value is not None and not code.mutated(found)
        node = found.value if settled else node
    value = code.polynomial(node).value
    return value if value is not None else value_in(code, kernel, None, node)


def width_of(code: Code, kernel: Kernel, launch: Launch) -> int | None:
    """The threads of a launch's blocks, None where that is only known when it runs. Raises Unsupported for blocks of more than
    one dimension."""
    if launch.extents(launch.block)[1:] != ("1", "1"):
        raise Unsupported("a block of more than one dimension")
    try:
        return extent_of(code, kernel, launch.along_x(launch.block))
    except Unsupported:  # a shape that is assigned to
        return None


def names_width(code: Code, kernel: Kernel, launch: Launch) -> bool:
    """Whether the width of a launch's blocks is among the words of the kernel or its helpers: as a number, a constant, or what
    the launch passes to the template."""
    text = launch.extents(launch.block)[0].strip("() ")
    words = {text} if text in code.macros else {text, str(width_of(code, kernel, launch))}
    passed = zip(kernel.template_names, launch.template_arguments, strict=False)
    words |= {name for name, argument in passed if argument in words}
    said = (code.source.walk(f, "identifier", "number_literal") for f in (kernel.node, *kernel.helpers))
    return any(code.source.of(word) in words for function in said for word in function)


def whole_warps(code: Code, kernel: Kernel, block: Node) -> bool:
    """Whether the block is known to be a multiple of 32 threads."""
    value = code.polynomial(block).value
    if value is not None:
        return value >= 32 and value % 32 == 0
    if block.type == "identifier":
        found = code.definition(block)
        if found is not None and found.kind == "macro":
            text = code.source.of(found.declaration, "value").split("//")[0].strip(" ()")
            return text.isdigit() and int(text) >= 32 and int(text) % 32 == 0
        if found is not None and found.value is not None and not code.mutated(found):
            return whole_warps(code, kernel, found.value)
    if block.type in {"call_expression", "compound_literal_expression"} and code.source.of(block).startswith("dim3"):
        listed = field_of(block, "arguments") or field_of(block, "value")
        return listed is not None and whole_warps(code, kernel, listed)
    if block.type in {"argument_list", "initializer_list"} and block.named_child_count:
        first, *others = (c for c in block.named_children if c.type != "comment")
        return all(code.source.of(c) == "1" for c in others) and whole_warps(code, kernel, first)
    if block.type == "call_expression":
        name = code.source.of(block, "function").partition("<")[0].removeprefix("std::")
        listed = field_of(block, "arguments")
        if name in {"min", "max"} and listed is not None and listed.named_child_count == 2:
            return all(whole_warps(code, kernel, side) for side in listed.named_children)
    return all(c % 32 == 0 for _, c in code.polynomial(block).terms)


def is_first_thread(code: Code, condition: Node | None) -> bool:
    """`threadIdx.x == 0`, by whatever name."""
    found = match(code.source, condition, "$a == $b")
    return found is not None and {code.polynomial(found["a"]), code.polynomial(found["b"])} == {
        Polynomial.symbol(THREAD), Polynomial.constant(0),
    }  # fmt: skip


def is_barrier(source: Source, node: Node) -> bool:
    return node.type == "expression_statement" and source.of(node).replace(" ", "") == "__syncthreads();"
