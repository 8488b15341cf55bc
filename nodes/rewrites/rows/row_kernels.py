"""Kernels whose blocks each take one row and whose threads could be any number: what cluster_split works on.

Such a kernel strides over a row by `blockDim.x`, or keeps steps of it in registers as cache_row_in_registers writes them, reduces through
`block_sum` and its siblings (canonicalize_reductions's), and has no other way for its threads to talk to each other.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from tree_sitter import Node

from nodes.rewrites.analysis.block_shape import is_barrier
from nodes.rewrites.analysis.device_code import Code, inside
from nodes.rewrites.analysis.indices import COORDINATES
from nodes.rewrites.analysis.kernels import TALKS, Access, Kernel
from nodes.rewrites.analysis.launches import Launch, host_text
from nodes.rewrites.analysis.regions import BLOCK_DIM, THREAD, row_loop, thread_loops
from nodes.rewrites.launch.grid_stride import check_blocks, check_threads
from nodes.rewrites.prelude import NAMES, brought
from nodes.rewrites.reductions.shares import check_block_shares
from nodes.rewrites.syntax.algebra import Polynomial, Symbol
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Edits, Lines, Unsupported
from nodes.rewrites.syntax.tree import children_of, enclosing, field_of, names_declared

ELEMENT = Symbol("element of the row")


@dataclass(frozen=True)
class RowLaunch:
    """One place where the host launches such a kernel; `rows`, `steps` and `size` are host expressions."""

    launch: Launch
    statement: Node
    """What a launch of another shape takes the place of: the launch, or cache_row_in_registers's switch over the steps a thread keeps."""
    rows: str
    steps: str
    items: str = ""
    """The parameter of cache_row_in_registers's lambda around the launch, "" where there is none."""
    size: str = ""
    """There: the bytes of a step in registers."""


class RowKernel:
    """Raises Unsupported for a kernel of any other kind."""

    def __init__(self, code: Code, kernel: Kernel, unused: list[Node] | None = None) -> None:
        """`unused`: declarations in shared memory, and pointers there, that go."""
        self.code, self.kernel, self.source = code, kernel, code.source
        self.rows = row_loop(kernel)
        self.loops = thread_loops(kernel)
        if any(o.start.only != THREAD or o.step.only != BLOCK_DIM for o in self.loops):
            raise Unsupported("a loop that does not stride by the block")
        self.reductions = kernel.calls(*NAMES)
        if not self.reductions or not {f"block_{self.kind(call)}" for call in self.reductions} <= brought(self.source):
            raise Unsupported("no reduction over the block, or somebody else's")
        self.barriers = [s for s in self.source.walk(kernel.body, "expression_statement") if is_barrier(self.source, s)]
        self._check_talk(unused or [])
        # threadIdx.x and blockDim.x only say which elements of the row are whose, and who does what is done once.
        check_threads(code, kernel, self.loops, self._by_element)
        check_block_shares(code, kernel)

    def _check_talk(self, unused: list[Node]) -> None:
        source, taken = self.source, [f"{where}.{axis}" for where in ("threadIdx", "blockDim") for axis in "yz"]
        mine = map(source.called, source.walk(self.kernel.node, "call_expression"))
        helpers = self.code.reached(*mine, beside=NAMES)
        for function in (self.kernel.node, *helpers):
            for node in source.walk(function, "type_qualifier", "call_expression"):
                word = source.called(node) or source.of(node)
                talks = word not in NAMES and (word == "__shared__" or TALKS.fullmatch(word.split(".")[-1]))
                if talks and not any(inside(node, part) for part in [*unused, *self.barriers]):
                    raise Unsupported(f"threads talk through {word}")
        asked = [source.of(n) for helper in helpers for n in source.walk(helper, "field_expression")]
        if any(name.startswith(COORDINATES) for name in asked) or any(map(self.uses, taken)):
            raise Unsupported("a helper that asks which thread it is, or a block of two dimensions")

    def kind(self, reduction: Node) -> str:
        """sum, max or min"""
        return self.source.of(reduction, "function").split("<")[0].removeprefix("block_")

    def uses(self, name: str) -> list[Node]:
        return [n for n in self.source.walk(self.kernel.body, "field_expression") if self.source.of(n) == name]

    def _by_element(self, node: Node, polynomial: Polynomial) -> Polynomial:
        """With the row's element in place of a loop's variable, or of `threadIdx.x + item * blockDim.x`."""
        thread, width = Polynomial.symbol(THREAD), Polynomial.symbol(BLOCK_DIM)
        for loop in self.kernel.loops:
            if not inside(node, loop.node):
                continue
            if loop in self.loops:
                polynomial = polynomial.substitute(loop.symbol, Polynomial.symbol(ELEMENT))
                continue
            factor, item = polynomial.coefficient(THREAD), Polynomial.symbol(loop.symbol)
            if factor.terms and loop.start.value == 0 and polynomial.coefficient(BLOCK_DIM) == factor * item:
                polynomial = polynomial - factor * (thread + item * width) + factor * Polynomial.symbol(ELEMENT)
        return polynomial

    def _place(self, access: Access) -> Polynomial:
        return self._by_element(access.node, access.offset + Polynomial.symbol(access.base))

    # Where it is launched.

    def launches(self) -> list[RowLaunch]:
        """Every launch whose shape may be chosen anew; those of rows too long for registers are left out."""
        found, kernel, source = [], self.kernel, self.source
        check_own(kernel, self._place)
        check_blocks(kernel, self.rows)
        for launch in kernel.launches:
            wide = any(launch.extents(node)[1:] != ("1", "1") for node in (launch.grid, launch.block))
            if wide or launch.shared_text != "0" or any(map(kernel.block_indices, "yz")):
                raise Unsupported("a launch of more than one dimension, or with dynamic shared memory")
            if source.of(launch.block, "function") == "row_threads":
                found.append(self._kept(launch))
            elif "row_items(" not in source.of(enclosing(launch.node, "switch_statement"), "condition") and self.loops:
                count = launch.extents(launch.grid)[0]
                count = count if self.rows is None else host_text(kernel, launch, self.rows.bound_node)
                steps = host_text(kernel, launch, self.loops[0].bound_node)
                found.append(RowLaunch(launch, launch.statement, _plain(count), steps))
        if not found:
            raise Unsupported("no launch to choose a shape for")
        return found

    def _kept(self, launch: Launch) -> RowLaunch:
        """Of cache_row_in_registers: in a lambda, behind whose declaration a switch asks `row_items` how many items there are."""
        run = enclosing(launch.node, "lambda_expression")
        choice = enclosing(run, "declaration").next_named_sibling if run is not None else None
        asked = match(self.source, field_of(choice, "condition", "value"), "row_items($rows, $steps, $size, $ask)")
        items = [name for p in children_of(run, "declarator", "parameters") for name in names_declared(p)]
        if asked is None or len(items) != 1:
            raise Unsupported("no choice of items behind the launch")
        rows, steps, size = (self.source.of(asked[part]) for part in ("rows", "steps", "size"))
        return RowLaunch(launch, choice, _plain(rows), steps, self.source.of(items[0]), size)


def check_own(kernel: Kernel, place: Callable[[Access], Polynomial]) -> None:
    """What a thread reads or writes of an array that the kernel writes is its own element's, or written by one thread and read by
    none: nothing waits for other threads. `place` names a row's elements ELEMENT. Raises Unsupported."""
    if any(root for _, root in kernel.escapes):
        raise Unsupported("a helper that may write anywhere")
    written = {a.root for a in kernel.accesses if a.writes and a.root}
    if "?" in written or (written and any(a.root == "?" for a in kernel.accesses)):
        raise Unsupported("a pointer of unknown origin")
    for root in written:
        accesses = [a for a in kernel.accesses if a.root == root]
        places = {place(access) for access in accesses}
        own = [p.depends_on(ELEMENT) for p in places]
        held = [kernel.code.variable(variable.node) for p in places for variable in p.variables()]
        moves = any(found is not None and found.kind == "local" and kernel.code.mutated(found) for found in held)
        if len(accesses) > 1 and (moves or (len(own) > 1 if any(own) else any(a.reads for a in accesses))):
            raise Unsupported("a place that moves, or a read or write of what is another thread's")


def edited(kernel: Kernel, edits: Edits) -> str:
    """The kernel's text, template and all, after edits that lie inside of it."""
    data, outer = kernel.source.data, kernel.outer
    changed = edits.apply().encode()
    return changed[outer.start_byte : len(changed) - (len(data) - outer.end_byte)].decode()


def by_items(run: str, items: str, body: Lines, chosen: str, otherwise: str) -> Lines:
    """What a launch becomes where the host chooses how many items a thread has: 1, 2, 4 or 8, or another launch."""
    cases = [f"case {n}: {run}(std::integral_constant<int, {n}>{{}}); break;" for n in (1, 2, 4, 8)]
    last = f"default: {otherwise}"
    return [f"const auto {run} = [&](auto {items}) {{", body, "};", f"switch ({chosen}) {{", [*cases, last], "}"]


def unless_single(launch: Launch, lines: Lines) -> Lines:
    """The lines in place of a launch that stays for packs of one element: these are for odd rows, which take the loop."""
    packs = next((a for a in launch.template_arguments if re.fullmatch(r"WIDTH(_\d+)?", a)), None)
    kept = launch.code.source.of(launch.statement)
    return ["{", lines, "}"] if packs is None else [f"if constexpr ({packs} == 1) {{", [kept], "} else {", lines, "}"]


def with_second_form(
    code: Code,
    suffix: str,
    rewrite: Callable[[Edits, RowKernel], None],
    launched: Callable[[RowKernel, RowLaunch, str], Lines],
) -> Edits:
    """A kernel of the other form behind each one that has it, and lines in place of its launches."""
    edits = Edits(code.source)
    for kernel in code.kernels:
        with edits.attempt():
            found, inner, name = RowKernel(code, kernel), Edits(code.source), code.fresh(f"{kernel.name}_{suffix}")
            inner.replace(kernel.name_node, name)
            for barrier in found.barriers:
                inner.remove(barrier, comment=True)
            rewrite(inner, found)
            edits.insert(kernel.outer.end_byte, "\n\n" + edited(kernel, inner))
            for place in found.launches():
                if place.statement.parent.type != "compound_statement":
                    raise Unsupported("no room for a declaration")
                edits.write(place.statement, launched(found, place, name))
    return edits


def either(place: RowLaunch, run: str, lines: Lines, items: str, condition: str) -> Lines:
    """Lines that launch the other form, in a choice with what was there: by how many items a thread has, or by a condition."""
    source = place.launch.code.source
    original = source.of(place.statement).replace("\n", f"\n{source.unit(place.statement)}")
    if place.items:
        return by_items(run, place.items, lines, items, original)
    return [f"if ({condition}) {{", lines, "} else {", [original], "}"]


def _plain(count: str) -> str:
    """A number of rows without the cast that a grid's size needed."""
    match = re.fullmatch(r"static_cast<unsigned(?: int)?>\(([\w.]+)\)", count)
    return match[1] if match else count
