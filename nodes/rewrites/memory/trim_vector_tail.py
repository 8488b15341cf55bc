"""A scalar tail loop no longer repeats what the loop over packs has already written.

Where a block writes `out[row][0 .. packs * lanes)` in packs and then elements from some earlier index on one by one, with
no barrier between, both threads that write an element must agree on it, or the kernel would be a race. Where the host launches
the kernel for rows of whole packs only, nothing is left for the tail and it goes: an empty loop still costs each thread its
bounds, in float32 a division of 64-bit integers.
"""

from __future__ import annotations

import itertools

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import Code, code_of, inside
from nodes.rewrites.analysis.kernels import Access, Kernel, Loop
from nodes.rewrites.analysis.launches import host_text
from nodes.rewrites.analysis.regions import BLOCK_DIM, THREAD, thread_loops
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.algebra import Polynomial
from nodes.rewrites.syntax.match import bare, match
from nodes.rewrites.syntax.source import Edits, Source, Unsupported, operands
from nodes.rewrites.syntax.tree import children_of, conditions_of, enclosing, field_of, names_declared, same

_CASTS = {"static_cast", "reinterpret_cast", "const_cast"}
_CHANGES = ("assignment_expression", "update_expression")


@rule(
    "cuda",
    expected="no element is computed twice: fewer bytes and no scalar pass where rows divide into packs",
    speedup=1.3,
    helps={"memory", "latency", "compute"},
    after=("block_per_row",),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    code = code_of(source)
    edits = Edits(source)
    for kernel in code.kernels:
        loops = [loop for loop in thread_loops(kernel) if loop.step.only == BLOCK_DIM]
        for packs, tail in itertools.pairwise(loops):
            with edits.attempt():
                _check(kernel, packs, tail)
                _drop(edits, kernel, packs.node, tail.node)
    return edits.apply()


def _check(kernel: Kernel, packs: Loop, tail: Loop) -> None:
    """Raises Unsupported unless the packs are all of what the tail writes, which is the only other thing that the kernel does."""
    code = kernel.code
    if kernel.synchronises or kernel.escapes or not kernel.launches or packs.start.only != THREAD:
        raise Unsupported("threads that talk, or packs that begin elsewhere")
    whole, single = _written(kernel, packs), _written(kernel, tail)
    written = [a.node for a in kernel.accesses if a.writes and a.root]
    if len(written) != 2 or whole.root != single.root or whole.element == single.element:
        raise Unsupported("other elements")
    seen = children_of(whole.base.node, "arguments")
    if whole.offset.only != packs.symbol or len(seen) != 1:
        raise Unsupported("packs of unknown places")
    if code.polynomial(seen[0]) + Polynomial.symbol(tail.symbol) != Polynomial.symbol(single.base) + single.offset:
        raise Unsupported("a tail of another row")
    if not _whole_packs_only(code, kernel, packs, tail, whole):
        raise Unsupported("rows that may have more than packs")


def _drop(edits: Edits, kernel: Kernel, packs: Node, tail: Node) -> None:
    """Remove the tail and the declarations and comments in front of it, which are for nothing else."""
    source, first, gone = kernel.source, tail, set[str]()
    while (before := first.prev_named_sibling) is not None and not same(before, packs):
        called = {source.called(call) for call in source.walk(before, "call_expression")}
        if before.type not in {"declaration", "comment"} or not called <= _CASTS or source.has(before, *_CHANGES):
            raise Unsupported("something else in between")
        first = before
        gone |= {source.of(name) for name in names_declared(before)}
    used = {source.of(n) for n in source.walk(kernel.body, "identifier") if n.start_byte > tail.end_byte}
    if not same(first.prev_named_sibling, packs) or used & gone:
        raise Unsupported("names that are for more than the tail")
    edits.span(first, tail, "")
    edits.changes[-1] = (source.line_start(first), source.line_end(tail), "")


def _whole_packs_only(code: Code, kernel: Kernel, packs: Loop, tail: Loop, whole: Access) -> bool:
    """Whether `packs` loops over n / lanes packs of so many lanes, `tail` ends at n, and every launch has checked n."""
    count = match(code.source, code.settled(packs.bound_node), "$length / $lanes")
    if count is None or code.polynomial(count["length"]) != tail.bound:
        return False
    length, lanes = count["length"], count["lanes"]
    extent = _extent(code, whole.element)
    if extent is None or _bare(code, extent) != _bare(code, code.settled(lanes)):
        return False
    return all(
        (host_text(kernel, launch, length), host_text(kernel, launch, lanes).strip("()").replace(" ", ""))
        in _divided(code, launch.statement)
        for launch in kernel.launches
    )


def _extent(code: Code, element: str) -> Node | None:
    """The length of the one array that `Name<T>` consists of, written for T."""
    source, (name, _, argument) = code.source, element.removesuffix(">").partition("<")
    for struct in source.walk(None, "struct_specifier"):
        body, template = field_of(struct, "body"), struct.parent
        if source.of(struct, "name") != name or body is None or template is None:
            continue
        parameters = [source.of(n) for n in source.walk(template, "type_parameter_declaration")]
        fields = children_of(body)
        array = field_of(fields[0], "declarator") if [source.of(f, "type") for f in fields] == [argument] else None
        whole = parameters == [f"typename {argument}"] and array is not None and array.type == "array_declarator"
        return field_of(array, "size") if whole else None
    return None


def _divided(code: Code, node: Node) -> set[tuple[str, str]]:
    """(n, lanes) of every `n % lanes == 0` that holds where the node stands, by the ifs around it."""
    settled = (code.settled(bare(condition)) for condition in conditions_of(node))
    parts = (part for condition in settled for part in operands(code.source, condition, "&&"))
    forms = (match(code.source, part, "$n % $lanes == 0") for part in parts)
    return {(code.source.of(f["n"]), _bare(code, code.settled(f["lanes"]))) for f in forms if f is not None}


def _bare(code: Code, node: Node) -> str:
    return code.source.of(node).strip("()").replace(" ", "")


def _written(kernel: Kernel, loop: Loop) -> Access:
    """The one array access that the loop writes, in every round. Raises Unsupported where it is not the only one."""
    writes = [a for a in kernel.accesses if a.writes and a.root and inside(a.node, loop.node)]
    if len(writes) != 1 or writes[0].root == "?" or writes[0].reads:
        raise Unsupported("no write, several, or anywhere")
    branches = ("if_statement", "for_statement", "while_statement", "lambda_expression")
    if enclosing(writes[0].node, *branches, until=loop.body) is not None:
        raise Unsupported("an element that is not always written")
    return writes[0]
