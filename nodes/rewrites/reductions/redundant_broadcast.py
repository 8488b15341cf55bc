"""What the first thread makes of a reduction and tells the others through shared memory, every thread makes for itself.

    const float sum_of_block = block_sum<0>(sum);              const float sum_of_block = block_sum<0>(sum);
    if (threadIdx.x == 0) scale = rsqrtf(sum_of_block / n);    const float scale = rsqrtf(sum_of_block / n);
    __syncthreads();

Applies behind `block_sum` and its siblings (canonicalize_reductions's), after which every thread has the result, to a variable in
shared memory that nothing else sets, that takes an expression of such results, of parameters and of other numbers that the whole
block shares, and that is read behind the barrier. The barrier goes where nothing else could need it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.block_shape import is_barrier, is_first_thread
from nodes.rewrites.analysis.device_code import Code, Definition, inside, one_by_one
from nodes.rewrites.analysis.indices import COORDINATES
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.analysis.numbers import EXTREMES
from nodes.rewrites.prelude import NAMES, brought
from nodes.rewrites.reductions.idle_threads import without_idle
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import same, statements

_MATHS = frozenset({
    "rsqrtf", "sqrtf", "rsqrt", "sqrt", "expf", "exp", "logf", "log", "powf", "pow", "fabsf", "fabs", "abs", "exp2f", "log2f",
    "__expf", "__logf", "__fdividef", "__frcp_rn", "__fsqrt_rn", "__frsqrt_rn", "__fdiv_rn", "__fmaf_rn", "fmaf",
    "static_cast", "__half2float", "__float2half", "__bfloat162float", "__float2bfloat16", *EXTREMES,
})  # fmt: skip
"""Functions whose value is their arguments' alone."""
_TYPES = {"float", "int", "double", "unsigned"}
_CHANGES = (
    "assignment_expression",
    "update_expression",
    "subscript_expression",
    "pointer_expression",
    "lambda_expression",
)


@rule(
    "cuda",
    expected="a barrier less, and later steps see no shared memory beside the reductions",
    normalizes=True,
    after=("canonicalize_reductions",),
    risks=(Outcome.INCORRECT, Outcome.RUNTIME_ERROR),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    if not brought(source):
        return None
    text = one_by_one(source, _spread, _branches, 32)
    return None if text is None else without_idle(source.reparsed(text))


def _branches(code: Code) -> Iterator[tuple[Kernel, Node, Node]]:
    """Branches with a barrier behind them."""
    for kernel in code.kernels:
        for branch in code.source.walk(kernel.body, "if_statement") if kernel.calls(*NAMES) else ():
            behind = [s for s in statements(branch.parent) if s.start_byte >= branch.end_byte]
            if behind and is_barrier(code.source, behind[0]):
                yield kernel, branch, behind[0]


def _spread(edits: Edits, code: Code, kernel: Kernel, branch: Node, barrier: Node) -> None:
    source = code.source
    form = match(source, branch, "if ($first) $memory = $value;", "if ($first) { $memory = $value; }")
    memory = code.variable(form["memory"]) if form is not None and is_first_thread(code, form["first"]) else None
    if memory is None or memory.kind != "local" or not source.says(memory.declaration, "__shared__"):
        raise Unsupported("nothing that the first thread tells")
    if not _is_same(code, form["value"]):
        raise Unsupported("nothing that every thread could make for itself")
    for use in code.uses(memory, kernel.body):
        read = source.set_by(use) == "" and use.parent.type not in {"pointer_expression", "subscript_expression"}
        seen = use.start_byte >= barrier.end_byte and inside(use, branch.parent)
        if not same(use, form["memory"]) and not (read and seen):
            raise Unsupported("memory that is handed on, set by others, or read out of sight")
    _drop_declaration(edits, source, memory)
    element = source.of(memory.declaration, "type")
    edits.replace(branch, f"const {element} {memory.name} = {source.of(form['value'])};")


def _is_same(code: Code, value: Node, depth: int = 0) -> bool:
    """Whether an expression means the same number to every thread of the block, which may compute it."""
    source = code.source
    ours = [c for c in source.walk(value, "call_expression") if source.called(c) in NAMES]
    if depth > 16 or source.has(value, *_CHANGES) or not {source.called(c) for c in ours} <= brought(source):
        return False
    for call in source.walk(value, "call_expression"):
        plain = source.called(call) in _MATHS - code.functions.keys() or source.of(call, "function") in _TYPES
        if call not in ours and not plain:
            return False
    for name in source.walk(value, "identifier"):
        around = name.parent
        called = around.type in {"call_expression", "template_function", "qualified_identifier"}
        if called or any(inside(name, call) for call in ours):
            continue
        if source.of(name) in COORDINATES:
            if source.of(name) == "threadIdx":
                return False
        elif not _is_same_name(code, name, depth):
            return False
    return True


def _is_same_name(code: Code, name: Node, depth: int) -> bool:
    found = code.definition(name)
    if found is None:
        return re.fullmatch(r"INFINITY|[A-Z]+_(MAX|MIN|EPSILON)", code.source.of(name)) is not None
    text = code.source.of(found.declaration)
    if found.kind in {"template", "macro"}:
        return not any(word in text for word in (*COORDINATES, "("))
    if found.kind == "parameter":
        return not code.mutated(found) and "*" not in text
    if found.kind == "global":
        return "const" in text and found.value is not None
    own = found.kind == "local" and not code.source.says(found.declaration, "__shared__", "static", "volatile")
    return own and found.value is not None and not code.mutated(found) and _is_same(code, found.value, depth + 1)


def _drop_declaration(edits: Edits, source: Source, memory: Definition) -> None:
    declarators = memory.declaration.children_by_field_name("declarator")
    if len(declarators) == 1:
        edits.remove(memory.declaration, comment=True)
        return
    kept = [source.of(d) for d in declarators if not same(d, memory.declarator)]
    edits.span(declarators[0], declarators[-1], ", ".join(kept))
