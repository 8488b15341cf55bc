"""One element a thread becomes a persistent grid: as many blocks as stay on the device, each of whose threads takes several.

    const int i = blockIdx.x * blockDim.x + threadIdx.x;         for (int64_t at = ...; at < n; at += gridDim.x * blockDim.x) {
    if (i >= n) return;                                  ->        const int i = at;
    ...                                                            ...

Applies to kernels whose threads do not talk to each other. The host caps the grid at RESIDENT_BLOCKS a multiprocessor. Pays
where a block costs more to start than its elements take, or where the last wave of blocks fills a small part of the device.
"""

from __future__ import annotations

from nodes.rewrites import Facts
from nodes.rewrites._row_blocks import remove_line
from nodes.rewrites.device_code import Code, Kernel, Launch, code_of, require, same, statements
from nodes.rewrites.regions import Region, carries_state, is_return, regions
from nodes.rewrites.source import Edits, Source, Unsupported
from nodes.roles import Bound

LANGUAGES = frozenset({"cuda"})
HELPS: frozenset[Bound] = frozenset({"memory", "launch"})
EXPECTED = "no waves of blocks: each thread takes several elements, one behind the other"
SPEEDUP = 0.96
ORDER = 78
JUMPS = ("return_statement", "break_statement", "continue_statement", "goto_statement")
SHAPE = """\
#define RESIDENT_BLOCKS 8  // tune: 4 8 16 32

// So many blocks, or as many as a grid that stays on the device has.
inline unsigned persistent_blocks(int64_t blocks) {
  static const int multiprocessors = [] {
    int device = 0, count = 1;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
    return count;
  }();
  const int64_t most = int64_t{RESIDENT_BLOCKS} * multiprocessors;
  return static_cast<unsigned>(blocks < most ? blocks : most);
}
"""


def rewrite(source: Source, facts: Facts) -> str | None:
    if "cudaGridDependencySynchronize" in source.text:
        return None  # threads wait where they return, which a loop does not do
    code, edits = code_of(source), Edits(source)
    for kernel in code.kernels:
        attempt = Edits(source)
        try:
            _rewrite_kernel(attempt, code, kernel)
            for launch in kernel.launches:
                attempt.replace(launch.node, launch.rendered(grid=_capped(code, launch)))
        except Unsupported:
            continue
        edits.changes += attempt.changes
    if not edits.changes:
        return None
    try:
        require(edits, code, SHAPE, "RESIDENT_BLOCKS", "persistent_blocks", includes=("cstdint", "cuda_runtime.h"))
        return edits.apply()
    except Unsupported:
        return None


def _capped(code: Code, launch: Launch) -> str:
    x, y, z = launch.extents(launch.grid)
    if (y, z) != ("1", "1"):
        raise Unsupported("a grid of several dimensions")
    return f"persistent_blocks({x})"


def _rewrite_kernel(edits: Edits, code: Code, kernel: Kernel) -> None:
    source = code.source
    found = regions(kernel)
    region = found[0] if len(found) == 1 else None
    if region is None or region.kind != "guard" or region.axis != "x" or not kernel.launches:
        raise Unsupported("not one element a thread")
    definition, guard, condition = region.definition, region.guard, region.condition
    assert definition is not None and guard is not None and condition is not None
    holder = guard.child_by_field_name("condition")
    if kernel.synchronises or not same(holder.child_by_field_name("value") if holder else None, condition):
        raise Unsupported("threads that talk, or a guard with more to it")
    if any(source.of(n).startswith("gridDim") for n in source.walk(kernel.body, "field_expression")):
        raise Unsupported("a kernel that asks for the grid's size")
    if not region.body or carries_state(kernel, list(region.body)) or _jumps(source, region):
        raise Unsupported("a body that is left early or carries values along")
    body = statements(kernel.body)
    before = [s for s in body if s.end_byte <= guard.start_byte and s.start_byte > definition.end_byte]
    used = condition.child_by_field_name("left")
    index = code.definition(used) if used is not None and used.type == "identifier" else None
    if before or index is None or code.mutated(index):
        raise Unsupported("something between the index and its guard, or an index that changes")
    indent, unit = source.indent(definition), source.unit(kernel.body)
    at = code.fresh("at", "element")
    value = definition.children_by_field_name("declarator")[0].child_by_field_name("value")
    loop = (
        f"for (int64_t {at} = {source.of(value)}; {at} < {source.of(region.bound_node)}; "
        f"{at} += static_cast<int64_t>(gridDim.x) * blockDim.x) {{"
    )
    taken = f"const {region.type} {region.name} = static_cast<{region.type}>({at});"
    if is_return(source, guard):
        edits.replace(guard, f"{loop}\n{indent}{unit}{taken}")
        end = kernel.body.end_byte - 1
        line = source.data.rfind(b"\n", 0, end) + 1
        _deeper(edits, source, guard.end_byte, line, unit)
        edits.insert(line, f"{indent}}}\n")
    else:
        consequence = guard.child_by_field_name("consequence")
        if consequence is None or consequence.type != "compound_statement":
            raise Unsupported("a guard without braces")
        edits.changes.append((guard.start_byte, consequence.start_byte + 1, f"{loop}\n{indent}{unit}{taken}"))
    remove_line(edits, source, definition)


def _jumps(source: Source, region: Region) -> bool:
    return any(True for statement in region.body for _ in source.walk(statement, *JUMPS))


def _deeper(edits: Edits, source: Source, start: int, end: int, unit: str) -> None:
    """One level more of indentation for whole lines; directives stay at the margin."""
    line = source.data.find(b"\n", start) + 1
    while 0 < line < end:
        if source.data[line : line + 1] not in (b"#", b"\n"):
            edits.insert(line, unit)
        line = source.data.find(b"\n", line) + 1
