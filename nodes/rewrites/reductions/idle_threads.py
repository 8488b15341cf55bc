"""Shared memory and barriers that nothing needs any more once a kernel reduces through `block_sum` and its siblings."""

from __future__ import annotations

from tree_sitter import Node

from nodes.rewrites.analysis.block_shape import is_barrier
from nodes.rewrites.analysis.device_code import Code, code_of, inside
from nodes.rewrites.analysis.insertions import without_unused
from nodes.rewrites.analysis.kernels import Access, Kernel
from nodes.rewrites.analysis.regions import thread_loops
from nodes.rewrites.prelude import NAMES
from nodes.rewrites.syntax.algebra import Polynomial, Symbol
from nodes.rewrites.syntax.source import Edits, Source
from nodes.rewrites.syntax.tree import LOOPS, enclosing, names_declared, upward

ELEMENT = Symbol("element of the row")


def without_idle(source: Source) -> str:
    """The text without declarations in shared memory that nothing uses, and without the barriers of kernels that have none
    left: where no loop brings the reductions' own memory round again and no thread reads in global memory what another
    wrote."""
    code, edits = code_of(source), Edits(source)
    for kernel in code.kernels:
        if kernel.calls(*NAMES):
            _drop(edits, code, kernel)
    return without_unused(code, edits.apply())


def _drop(edits: Edits, code: Code, kernel: Kernel) -> None:
    """Where shared memory that goes is dynamic, launches ask for none any more."""
    source, used = code.source, [code.source.of(n) for n in code.source.walk(kernel.body, "identifier")]
    idle = [node for node in kernel.shared if [used.count(source.of(name)) for name in names_declared(node)] == [1]]
    idle = [node for node in idle if kernel.launches or not source.says(node, "extern")]
    for node in idle:
        edits.remove(node, comment=True)
    for launch in kernel.launches if any(source.says(node, "extern") for node in idle) else ():
        if launch.shared_text != "0":
            edits.replace(launch.config_nodes[2], "0")
    if len(idle) < len(kernel.shared) or _hides_shared(code, kernel) or _others_share(code, kernel):
        return
    for node in source.walk(kernel.body, "expression_statement") if not _meets_in_memory(kernel) else ():
        if is_barrier(source, node) and _runs_once(kernel, node):
            edits.remove(node, comment=True)


def _hides_shared(code: Code, kernel: Kernel) -> bool:
    """Whether the kernel may use shared memory that is declared in front of it, or by a macro."""
    source = code.source
    declared = (n for n in source.walk(None, "declaration") if source.says(n, "__shared__"))
    outside = (node for node in declared if enclosing(node, "function_definition") is None)
    names = {source.of(name) for node in outside for name in names_declared(node)}
    names |= {name for name, macro in code.macros.items() if "__shared__" in source.of(macro, "value")}
    return any(source.of(node) in names for node in source.walk(kernel.body, "identifier", "type_identifier"))


def _others_share(code: Code, kernel: Kernel) -> bool:
    """Whether a function beside our reductions has shared memory of its own, which a barrier of the kernel's may be for."""
    for function in kernel.helpers:
        name = code.source.name(function)
        if name not in NAMES and any(word in code.source.of(function) for word in ("__shared__", "sync", "asm")):
            return True
    return any("Reduce" in code.source.of(c, "function") for c in kernel.source.walk(kernel.body, "call_expression"))


def _runs_once(kernel: Kernel, node: Node) -> bool:
    return not any(here.type in LOOPS | {"if_statement"} for here in upward(node.parent, kernel.body))


def _meets_in_memory(kernel: Kernel) -> bool:
    """Whether a thread may read in global memory what another wrote, or write there again."""
    written = {a.root for a in kernel.accesses if a.writes and a.root}
    if "?" in written or any(root for _, root in kernel.escapes):
        return True
    if any(a.reads and (a.root in written or (written and a.root == "?")) for a in kernel.accesses):
        return True
    places = {(a.root, _place(kernel, a)) for a in kernel.accesses if a.writes and a.root}
    return len(places) > len(written)


def _place(kernel: Kernel, access: Access) -> tuple[object, ...]:
    """Which elements an access means, and which thread has which: equal where two passes share them out alike."""
    loop = next((o for o in thread_loops(kernel) if inside(access.node, o.body)), None)
    if loop is None:
        return access.base, access.offset
    return access.base, access.offset.substitute(loop.symbol, Polynomial.symbol(ELEMENT)), loop.start, loop.step
