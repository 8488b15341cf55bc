"""While a thread works on one step of its loop, `cp.async` brings the next step's element into shared memory (Ampere and later).

    for (int i = threadIdx.x; i < n; i += blockDim.x) {
      const float4 v = row[i];
      ...
                                      ->
    if (start < n) copy_ahead(&v_ahead[0][threadIdx.x], &row[start]);
    __pipeline_commit();
    for (int i = threadIdx.x; i < n; i += blockDim.x, turn ^= 1) {
      if (next < n) copy_ahead(&v_ahead[turn ^ 1][threadIdx.x], &row[next]);
      __pipeline_commit();
      __pipeline_wait_prior(1);
      const float4 v = v_ahead[turn][threadIdx.x];
      ...

Each thread reads what it copied itself, so nobody waits at a barrier.
"""

from __future__ import annotations

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.block_shape import width_of
from nodes.rewrites.analysis.device_code import Code, code_of, inside
from nodes.rewrites.analysis.insertions import require
from nodes.rewrites.analysis.kernels import Kernel, Loop
from nodes.rewrites.analysis.regions import thread_loops
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.insert import free
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import JUMPS, children_of, field_of, pragma_of, same, statements

MOST_BYTES = 16 << 10
"""Of shared memory for one loop, if its elements are of 16 bytes."""


@rule(
    "cuda",
    expected="the next step's bytes are on their way while a step is worked on, and no register waits for them",
    speedup=0.99,
    helps={"memory", "latency"},
    after=("tune_block_size",),
    risks=(Outcome.INCORRECT, Outcome.OUT_OF_RESOURCES),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    if facts.compute_capability < 80 or any(word in source.text for word in ("pipeline", "cp.async")):
        return None
    code, edits = code_of(source), Edits(source)
    taken = code.names()
    for kernel in code.kernels:
        for loop in thread_loops(kernel):
            with edits.attempt():
                _buffer(edits, code, kernel, loop, taken)
    require(edits, code, "copy_ahead")
    return edits.apply()


def _buffer(edits: Edits, code: Code, kernel: Kernel, loop: Loop, taken: set[str]) -> None:
    source, text = code.source, code.source.of
    loads = [load for s in statements(loop.body) if (load := _load(code, kernel, loop, s)) is not None]
    widths = {width_of(code, kernel, launch) or MOST_BYTES for launch in kernel.launches}
    if not loads or len(widths) != 1 or 2 * 16 * max(widths) * len(loads) > MOST_BYTES:
        raise Unsupported("nothing to copy, or too much")
    if source.has(loop.body, *JUMPS):
        raise Unsupported("a step that ends early")
    plain = loop.step_node is not None and pragma_of(loop.node) is None
    if not plain or {loop.node.parent.type, loop.body.type} != {"compound_statement"}:
        raise Unsupported("a loop of another form")

    def name(wanted: str) -> str:
        taken.add(found := free(wanted, taken))
        return found

    turn, start, following = name("turn"), name("start"), name("next")
    front = [f"unsigned {turn} = 0;", f"const {loop.type} {start} = {text(loop.start_node)};"]
    inner = [f"const {loop.type} {following} = {loop.name} + {text(loop.step_node)};"]
    for variable, element, value, address in loads:
        buffer = name(f"{variable}_ahead")
        front.insert(0, f"__shared__ {element} {buffer}[2][{max(widths)}];")
        for lines, at, slot in ((front, start, "0"), (inner, following, f"{turn} ^ 1")):
            uses = [n for n in source.walk(address, "identifier") if text(n) == loop.name]
            place = source.render(address, [(use, at) for use in uses])
            pointer = f"&{place}" if address.type == "subscript_expression" else place
            lines.append(f"if ({at} < {text(loop.bound_node)}) copy_ahead(&{buffer}[{slot}][threadIdx.x], {pointer});")
        edits.replace(value, f"{buffer}[{turn}][threadIdx.x]")
    front.append("__pipeline_commit();")
    inner += ["__pipeline_commit();", "__pipeline_wait_prior(1);"]
    for lines, statement in ((front, loop.node), (inner, statements(loop.body)[0])):
        edits.in_front(statement, *lines)
    edits.insert(field_of(loop.node, "update").end_byte, f", {turn} ^= 1")


def _load(code: Code, kernel: Kernel, loop: Loop, statement: Node) -> tuple[str, str, Node, Node] | None:
    """Variable, element, value and address of `const T v = row[i];`, or of `__ldg(row + i)`, from an array that nobody writes,
    at a place that only the loop moves."""
    source, text = code.source, code.source.of
    found = match(source, statement, "$T $v = $value;", "const $T $v = $value;")
    access = next((a for a in kernel.accesses if found is not None and same(a.node, found["value"])), None)
    if found is None or access is None or text(found["T"]) not in {access.element, "auto"}:
        return None
    value = found["value"]
    address = value if value.type == "subscript_expression" else children_of(value, "arguments")[0]
    written = {a.root for a in kernel.accesses if a.writes} | {root for _, root in kernel.escapes}
    if "?" in written or any(a.root in {"", "?", *written} for a in kernel.accesses if inside(a.node, value)):
        return None
    moving = {text(target) for target in code.assigned(loop.body)}
    for name in (n for n in source.walk(address, "identifier") if text(n) != loop.name):
        held = code.definition(name)
        if text(name) in moving or (held is not None and inside(held.declaration, loop.body)):
            return None
    return text(found["v"]), access.element, value, address
