"""A scalar tail loop no longer repeats what the loop over packs has already written.

Where a block writes `out[row][0 .. packs * lanes)` in packs and then elements from some earlier index on one by one, with
no barrier between, both threads that write an element must agree on it, or the kernel would be a race. The tail may then
begin behind the last pack. Where the host launches the kernel for rows of whole packs only, nothing is left there and the
tail goes: an empty loop still costs each thread its bounds, in float32 a division of 64-bit integers.
"""

from __future__ import annotations

import itertools

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import Code, code_of, inside
from nodes.rewrites.analysis.insertions import drop_unused
from nodes.rewrites.analysis.kernels import Access, Kernel, Loop
from nodes.rewrites.analysis.launches import host_text
from nodes.rewrites.analysis.regions import BLOCK_DIM, THREAD, thread_loops
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.algebra import Polynomial
from nodes.rewrites.syntax.match import bare, match
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import children_of, conditions_of, declared_name, enclosing, field_of, same

_CASTS = {"static_cast", "reinterpret_cast", "const_cast"}


@rule(
    "cuda",
    expected="no element is computed twice: fewer bytes and no scalar pass where rows divide into packs",
    speedup=1.3,
    helps={"memory", "latency", "compute"},
    after=("block_per_row",),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    code = code_of(source)
    edits, names = Edits(source), set()
    for kernel in code.kernels:
        with edits.attempt():
            names |= _rewrite_kernel(edits, code, kernel)
    if not edits.changes:
        return None
    return drop_unused(source, edits.apply(), names)


def _rewrite_kernel(edits: Edits, code: Code, kernel: Kernel) -> set[str]:
    if kernel.synchronises or kernel.escapes:
        return set()
    loops = [loop for loop in thread_loops(kernel) if loop.step == Polynomial.symbol(BLOCK_DIM)]
    names: set[str] = set()
    for packs, tail in itertools.pairwise(loops):
        if not same(packs.node.parent, tail.node.parent) or packs.start != Polynomial.symbol(THREAD):
            continue
        whole = _written(kernel, packs)
        single = _written(kernel, tail)
        written = (a.node for a in kernel.accesses if a.writes and a.root)
        others = [n for n in written if not inside(n, packs.node) and not inside(n, tail.node)]
        if whole is None or single is None or others or whole.root != single.root or whole.element == single.element:
            continue
        seen = children_of(whole.base.node, "arguments")
        if whole.offset != Polynomial.symbol(packs.symbol) or len(seen) != 1:
            continue
        row = code.polynomial(seen[0]) + Polynomial.symbol(tail.symbol)
        if row != Polynomial.symbol(single.base) + single.offset:
            continue
        if _whole_packs_only(code, kernel, packs, tail, whole):
            _drop(edits, code.source, tail.node)
            continue
        bound = code.source.of(packs.bound_node)
        lanes = f"(sizeof({whole.element}) / sizeof({single.element}))"
        names |= {code.source.of(n) for n in code.source.walk(tail.start_node, "identifier")}
        edits.replace(tail.start_node, f"{bound if bound.isidentifier() else f'({bound})'} * {lanes} + threadIdx.x")
    return names


def _drop(edits: Edits, source: Source, loop: Node) -> None:
    """Remove a loop, the declarations right above that only it uses, and the comments on them."""
    first: Node = loop
    before = loop.prev_sibling
    while before is not None and (before.type in {"comment", "preproc_call"} or _only_for(source, before, first, loop)):
        first, before = before, before.prev_sibling
    edits.span(first, loop, "")
    edits.changes[-1] = (source.line_start(first), source.line_end(loop), "")


def _only_for(source: Source, node: Node, first: Node, last: Node) -> bool:
    """Whether a declaration without effects names something that only the statements from first to last use."""
    declarators = node.children_by_field_name("declarator") if node.type == "declaration" else []
    called = [source.of(call, "function") for call in source.walk(node, "call_expression")]
    if len(declarators) != 1 or not all(name.partition("<")[0] in _CASTS for name in called):
        return False
    if source.has(node, "assignment_expression", "update_expression"):
        return False
    name = declared_name(declarators[0])
    if name is None or node.parent is None:
        return False
    uses = [n for n in source.walk(node.parent, "identifier") if source.of(n) == source.of(name) and not same(n, name)]
    return all(first.start_byte <= use.start_byte < last.end_byte for use in uses)


def _whole_packs_only(code: Code, kernel: Kernel, packs: Loop, tail: Loop, whole: Access) -> bool:
    """Whether `packs` loops over n / lanes packs of so many lanes, `tail` ends at n, and every launch has checked n."""
    count = match(code.source, _settled(code, packs.bound_node), "$length / $lanes")
    if count is None or code.polynomial(count["length"]) != tail.bound or not kernel.launches:
        return False
    length, lanes = count["length"], count["lanes"]
    extent = _extent(code, whole.element)
    if extent is None or _bare(code, extent) != _bare(code, _settled(code, lanes)):
        return False
    try:
        return all(
            (host_text(kernel, launch, length), host_text(kernel, launch, lanes).strip("()").replace(" ", ""))
            in _divided(code, launch.statement)
            for launch in kernel.launches
        )
    except Unsupported:
        return False


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
    parts = (part for condition in conditions_of(node) for part in _conjuncts(code, condition))
    forms = (match(code.source, part, "$n % $lanes == 0") for part in parts)
    return {(code.source.of(f["n"]), _bare(code, _settled(code, f["lanes"]))) for f in forms if f is not None}


def _conjuncts(code: Code, node: Node) -> list[Node]:
    node = bare(_settled(code, bare(node)))
    both = match(code.source, node, "$a && $b")
    return [node] if both is None else [*_conjuncts(code, both["a"]), *_conjuncts(code, both["b"])]


def _settled(code: Code, node: Node) -> Node:
    """What a name stands for, where it never changes."""
    for _ in range(8):
        found = code.variable(node)
        if found is None or found.value is None or found.kind not in {"local", "global"} or code.mutated(found):
            break
        node = found.value
    return node


def _bare(code: Code, node: Node) -> str:
    return code.source.of(node).strip("()").replace(" ", "")


def _written(kernel: Kernel, loop: Loop) -> Access | None:
    """The one array access that the loop writes, in every round."""
    writes = [a for a in kernel.accesses if a.writes and a.root and inside(a.node, loop.node)]
    if len(writes) != 1 or writes[0].root == "?" or writes[0].reads:
        return None
    branches = ("if_statement", "for_statement", "while_statement", "lambda_expression")
    if enclosing(writes[0].node, *branches, until=loop.body) is not None:
        return None
    return writes[0]
