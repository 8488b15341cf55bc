"""A running maximum with its sum takes a pack of elements at once: one maximum over the pack, one rescaling of the sum,
and an exponential an element, where there were two and each waited for the one before.

    for (k < VEC) {                                     float m_new = m;
      const float old = m;                              for (k < VEC) m_new = fmaxf(m_new, x.at[k]);
      m = fmaxf(m, x.at[k]);                            const float m_so_far = m_new > -INFINITY ? m_new : 0.0f;
      s = s * expf(old - m) + expf(x.at[k] - m);  ->    s *= expf(m - m_so_far);
    }                                                   for (k < VEC) s += expf(x.at[k] - m_so_far);
                                                        m = m_new;

Recognised by what it computes (see _online.py). Applies to loops over what a thread holds in registers, as pack and
cache_row_in_registers leave them: over memory, elements would be read twice. A NaN among the elements ends up in the sum as before;
a pack of nothing but -inf adds nothing, where the source may have made a NaN of -inf - -inf. Where the source makes
something else of +inf than exponentials do, packs with one are left to the source's own loop; so are packs of one element,
for which many sources have one exponential already.
"""

from __future__ import annotations

from harness.records import Outcome
from nodes.rewrites.analysis.device_code import Code, code_of, inside
from nodes.rewrites.analysis.kernels import Kernel, Loop
from nodes.rewrites.reductions.online import Online, recurrence
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.insert import free
from nodes.rewrites.syntax.source import Edits, Lines, Source, Unsupported, levelled, lifted
from nodes.rewrites.syntax.tree import pragma_of, statements


@rule(
    "cuda",
    expected="one exponential an element instead of two, and no element waits for the one before",
    speedup=1.1,
    helps={"memory", "latency", "compute"},
    after=("cache_row_in_registers",),
    once="_so_far",
    risks=(Outcome.INCORRECT,),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    if "exp" not in source.text:
        return None
    code, edits = code_of(source), Edits(source)
    for kernel in code.kernels:
        taken = code.names()
        for loop in kernel.loops:
            with edits.attempt():
                _rewrite_loop(edits, code, kernel, loop, taken)
    return edits.apply()


def _rewrite_loop(edits: Edits, code: Code, kernel: Kernel, loop: Loop, taken: set[str]) -> None:
    parent = loop.node.parent
    if parent is None or parent.type != "compound_statement" or loop.bound.value == 1:
        raise Unsupported("a loop of another form")
    if not _stays_in_registers(code, kernel, loop):
        raise Unsupported("elements that would be read twice")
    _write(edits, code, loop, recurrence(code, kernel, statements(loop.body)), taken)


def _stays_in_registers(code: Code, kernel: Kernel, loop: Loop) -> bool:
    """Whether the loop reads arrays of the thread's own, as often as is known when it is compiled."""
    if not code.is_constant(loop.bound_node):
        return False
    if any(inside(call, loop.node) for call, _ in kernel.escapes):
        return False
    for access in kernel.accesses:
        if not inside(access.node, loop.node):
            continue
        found = code.definition(access.base.node) if access.base.node is not None else None
        if access.root or found is None or found.kind != "local" or "__shared__" in code.source.of(found.declaration):
            return False
    return True


def _write(edits: Edits, code: Code, loop: Loop, online: Online, taken: set[str]) -> None:
    source, pragma = code.source, pragma_of(loop.node)
    unrolled = "unroll" in source.of(pragma)
    first = pragma if unrolled else loop.node
    start = source.line_start(first)
    if source.data[start : first.start_byte].strip() or loop.node.has_error:
        raise Unsupported("a loop that shares its line")
    indent, unit = source.indent(loop.node), source.unit(loop.node)
    header = source.data[loop.node.start_byte : loop.body.start_byte].decode().rstrip()
    pragmas = [source.of(pragma).rstrip()] if unrolled else []

    def again(last: list[str]) -> list[Lines]:
        return [*pragmas, f"{header} {{", [*map(source.of, online.free), *last], "}"]

    largest, element, stem = online.maximum, online.element, online.maximum.replace(".", "_")
    new, so_far = (free(f"{stem}_{word}", taken) for word in ("new", "so_far"))
    several = len(online.sums) > 1
    scale, part = (free(f"{stem}_{word}", taken) if several else "" for word in ("scale", "part"))
    taken |= {new, so_far, scale, part}
    below, old_below = online.below(element, so_far), online.below(largest, so_far)
    sums = [f"const float {part} = {below};"] if several else []
    sums += [f"{t} += {f'{weight} * ' if weight else ''}{part or below};" for t, weight in online.sums]
    bound = code.variable(loop.bound_node)
    kept = [f"{bound.name} > 1"] if bound is not None and bound.kind == "template" else []
    kept += [f"{new} < INFINITY"] * online.keeps_largest
    block: list[Lines] = [
        f"const float {so_far} = {new} > -INFINITY ? {new} : 0.0f;  // -inf - -inf is not a number",
        *([f"const float {scale} = {old_below};"] if several else []),
        *(f"{total} *= {scale or old_below};" for total, _ in online.sums),
        *again(sums),
        f"{largest} = {new};",
    ]
    if kept:
        original = lifted(source, loop.node, source.of(loop.node)).split("\n")
        block = [f"if ({' && '.join(kept)}) {{", block, "} else {", [*pragmas, *original], "}"]
    lines = [f"float {new} = {largest};", *again([f"{new} = fmaxf({new}, {element});"]), *block]
    text = "\n".join(line if line.startswith("#") else indent + line for line in levelled(lines, unit))
    edits.changes.append((start, loop.node.end_byte, text))
