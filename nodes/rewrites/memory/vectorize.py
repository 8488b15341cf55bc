"""Scalar loads and stores become packs of up to 16 bytes.

Applies to a loop over elements that threads share out (`for (i = threadIdx.x; i < n; i += blockDim.x)`, a grid-stride
loop, or one guarded element a thread) whose body reads or writes neighbouring elements for neighbouring `i`. The loop
then runs over packs: indices and everything else that is the same for a whole pack are computed once, all loads come
before the arithmetic, all stores after it. Right because no thread may rely on another's elements between two barriers.
Elements that are reached under a condition which is the same for a whole pack, `bias ? bias[i] : 0`, move under it; elements
that each ask for themselves, `mask[i] ? x[i] : y[i]`, are loaded where one of the pack is read, so nothing is touched
that is further from a read element than its own 16 bytes.

The host launches packs only where every row starts on a pack (sizes divide, pointers are aligned to 16 bytes) and falls
back to packs of one element; no tail is needed.
"""

from __future__ import annotations

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.device_code import code_of, inside
from nodes.rewrites.analysis.insertions import bring, require, without_unused
from nodes.rewrites.analysis.kernels import Access, Kernel
from nodes.rewrites.analysis.launches import Launch, host_text
from nodes.rewrites.analysis.numbers import ELEMENT_BYTES
from nodes.rewrites.analysis.regions import Guard, Region, regions
from nodes.rewrites.memory.pack_bodies import address_of_pack, places_of_indices, split_body
from nodes.rewrites.memory.packs import Group, Packed, counts_elements, packable
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.insert import as_factor, free
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import field_of

PACK_BYTES = """\
#define PACK_BYTES 16  // tune: 8 16
"""


@rule(
    "cuda",
    expected="16 bytes instead of one element a load: fewer instructions, more bytes in flight",
    speedup=2.0,
    helps={"memory", "latency", "compute"},
    after=("vectorize_short_loops",),
    risks=(Outcome.INCORRECT, Outcome.RUNTIME_ERROR),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    code, edits = code_of(source), Edits(source)
    for kernel in code.kernels:
        with edits.attempt():
            found = [packed for region in regions(kernel) if (packed := packable(kernel, region)) is not None]
            while parted := next((packed for packed in found if _parted(kernel, packed, found)), None):
                found = [packed for packed in found if packed is not parted]
            if found:
                _rewrite_kernel(edits, kernel, found)
    bring(edits, code, PACK_BYTES, ("cstdint", "type_traits"))
    require(edits, code, "lanes", "aligned_to_16_bytes", "ceil_div")
    return without_unused(code, edits.apply())


def _parted(kernel: Kernel, packed: Packed, found: list[Packed]) -> bool:
    """Whether a thread would meet elsewhere, with no barrier in between, elements that another thread now has.

    Loops over packs of the same range give a thread the same elements.
    """
    region = packed.region
    alike = [p.region for p in found if (p.region.bound, p.region.kind) == (region.bound, region.kind)]
    for mine in kernel.accesses:
        if not region.holds(mine.node) or not mine.offset.depends_on(region.symbol) or _own(kernel, mine):
            continue
        met = [call for call, root in kernel.escapes if mine.root and root in {mine.root, "?"}]
        for other in kernel.accesses:
            shared = mine.root == other.root and (mine.root or mine.base == other.base)
            if shared and (mine.writes or other.writes) and not any(one.holds(other.node) for one in alike):
                met.append(other.node)
        if not all(_barrier_between(kernel, mine.node, node) for node in met):
            return True
    return False


def _barrier_between(kernel: Kernel, one: Node, other: Node) -> bool:
    first, last = sorted((one.start_byte, other.start_byte))
    return any(first < at < last for at in kernel.barriers)


def _own(kernel: Kernel, access: Access) -> bool:
    """Whether it is memory of the thread itself."""
    found = kernel.code.definition(access.base.node) if access.base.node is not None else None
    return not access.root and found is not None and "__shared__" not in kernel.source.of(found.declaration)


def _rewrite_kernel(edits: Edits, kernel: Kernel, found: list[Packed]) -> None:
    names = kernel.code.names()
    width = "VEC" if "VEC" not in names else free("LANES", names)
    element = _element(kernel, found)
    for packed in found:
        _rewrite_region(edits, packed, width)
    if kernel.template is None:
        first = kernel.node.children[0]  # replaced: without includes, helpers are inserted at the same place
        edits.replace(first, f"template <int {width}>\n{edits.source.of(first)}")
    else:
        edits.insert(field_of(kernel.template, "parameters").end_byte - 1, f", int {width}")
    for launch in kernel.launches:
        _rewrite_launch(edits, kernel, launch, found, element)


def _element(kernel: Kernel, found: list[Packed]) -> str:
    """The type whose packs fill 16 bytes: the template's own, or the narrowest of two bytes and more."""
    elements = {group.first.element for packed in found for group in packed.groups}
    generic = [e for e in elements if e in kernel.template_names]
    if generic:
        return sorted(generic)[0]
    sizes = {e: ELEMENT_BYTES.get(kernel.code.plain_type(e), 0) for e in elements}
    if not all(sizes.values()):
        raise Unsupported(f"elements of unknown size: {', '.join(sorted(e for e in elements if not sizes[e]))}")
    wide = [e for e in elements if sizes[e] >= 2] or sorted(elements)
    narrowest = min(wide, key=lambda e: (sizes[e], e))
    if sizes[narrowest] >= 16:
        raise Unsupported("as wide as a load can be")
    return narrowest


def _rewrite_region(edits: Edits, packed: Packed, width: str) -> None:
    source, region, kernel = edits.source, packed.region, packed.kernel
    taken = kernel.identifiers()
    pack, first, lane = (free(n, taken) for n in ("pack", "first", "k"))
    indices, per_pack, per_lane = split_body(packed, first, lane)
    unit = source.unit(kernel.body)
    inner = source.indent(_header(region)) + ("" if _is_behind_return(region) else unit)
    kind = region.type if region.type != "auto" else "int64_t"
    lines, written = [f"const {kind} {first} = {pack} * {width};"], list[str]()
    lines += indices  # loads come before what is computed once a pack: it may wait for loads of its own
    for group in sorted(packed.groups, key=lambda group: not group.reads):
        size = width if group.stride == 1 else f"{group.stride} * {width}, {width}"
        element = group.first.element
        if group.reads:
            load = f"load_lanes<{size}>({address_of_pack(packed, group, first)})"
            if condition := _when(packed, group, "reads"):
                load = f"{condition} ? {load} : Lanes<{element}, {size}>{{}}"
            lines.append(f"{'' if group.writes else 'const '}Lanes<{element}, {size}> {group.name} = {load};")
        else:
            written.append(f"Lanes<{element}, {size}> {group.name};")
    lines += [*per_pack, *written]
    body = [
        "#pragma unroll",
        f"for (int {lane} = 0; {lane} < {width}; ++{lane}) {{",
        *(unit + line for line in _flat(per_lane)),
        "}",
    ]
    stores = list[str]()
    for group in packed.groups:
        if group.writes:
            condition = _when(packed, group, "writes")
            store = f"store_lanes({address_of_pack(packed, group, first, stored=True)}, {group.name});"
            stores.append(f"if ({condition}) {store}" if condition else store)
    text = "\n".join(
        inner + line if line and not line.startswith("#") else line for line in _flat([*lines, *body, *stores])
    )
    _put(edits, region, text, pack, width)


def _put(edits: Edits, region: Region, text: str, pack: str, width: str) -> None:
    """The text in place of the region's body, and packs in place of elements in its header."""
    source = edits.source
    edits.replace(region.bound_node, f"{as_factor(source.of(region.bound_node))} / {width}")
    named, body = (
        [field_of(region.definition, "declarator", "declarator"), field_of(region.condition, "left")],
        region.guard,
    )
    if region.loop is not None:
        named, body = region.loop.name_nodes, region.loop.body
    elif _is_behind_return(region):
        body = region.body[-1]
    else:
        body = field_of(region.guard, "consequence")
    for node in named:
        edits.replace(node, pack)
    for statement in region.body:
        if not inside(statement, body):
            edits.remove(statement)
    block = "{\n" + text + "\n" + source.indent(_header(region)) + "}"
    edits.replace(body, text.lstrip() if _is_behind_return(region) else block)


def _header(region: Region) -> Node:
    return region.loop.node if region.loop else region.guard


def _is_behind_return(region: Region) -> bool:
    """`if (i >= n) return;`, with the elements' statements behind it."""
    return region.guard is not None and not any(inside(s, region.guard) for s in region.body)


def _when(packed: Packed, group: Group, effect: str) -> str:
    """The condition under which a pack is loaded or stored; "" for always."""
    source, first = packed.kernel.source, free("first", packed.kernel.identifiers())
    replaced = places_of_indices(packed, first)
    cases = group.cases([access for access in group.accesses if getattr(access, effect)])
    alone = len(cases) == len(cases[0]) == 1

    def asked(guard: Guard) -> str:
        text, kind = source.render(guard.condition, replaced), guard.condition.type
        compound = kind in {"binary_expression", "conditional_expression", "comma_expression"}
        text = f"({text})" if compound and not (alone and guard.holds) and not text.startswith("(") else text
        return text if guard.holds else f"!{text}"

    said = [" && ".join(map(asked, guards)) for guards in cases]
    return " || ".join(
        f"({part})" if len(cases) > 1 and len(guards) > 1 else part for guards, part in zip(cases, said, strict=True)
    )


def _flat(lines: list[str]) -> list[str]:
    return [part for line in lines for part in line.split("\n")]


def _rewrite_launch(edits: Edits, kernel: Kernel, launch: Launch, found: list[Packed], element: str) -> None:
    source, code = edits.source, kernel.code
    needed = ((packed.common, polynomial) for packed in found for polynomial in packed.multiples)
    required = dict.fromkeys(c for common, p in needed for c in common.multiples_of_width(launch, p))
    # Names of our own must not hide a variable that the launch's arguments or sizes mention.
    count, lanes, pack, run = (code.fresh(name) for name in ("WIDTH", "lanes", "PACK", "launch_packs"))
    conditions = [
        f"{' * '.join(factors)} % {pack} == 0"
        for factors in required
        if not any(set(some) <= set(factors) and len(some) < len(factors) for some in required)  # a part is one already
    ]
    bases = dict.fromkeys(group.first.root for packed in found for group in packed.groups)
    names = [p.name for p in kernel.parameters]
    pointers = [source.of(launch.arguments[names.index(base)]) for base in bases]
    pointers = [pointer for pointer in pointers if pointer not in {"nullptr", "NULL", "0"}]
    conditions.append(f"aligned_to_16_bytes({', '.join(pointers)})")
    named = dict(zip(kernel.template_names, launch.all_template_arguments(), strict=True))
    size = named.get(element, element)
    grid = _grid_of_packs(kernel, launch, found, count)
    function = launch.with_arguments(count)
    chosen = [
        f"constexpr int {pack} = PACK_BYTES / sizeof({size});",
        f"const auto {run} = [&](auto {lanes}) {{",
        [f"constexpr int {count} = decltype({lanes})::value;", f"{launch.rendered(function=function, grid=grid)};"],
        "};",
        f"if ({' && '.join(conditions)}) {{",
        [f"{run}(std::integral_constant<int, {pack}>{{}});"],
        "} else {",
        [f"{run}(std::integral_constant<int, 1>{{}});"],
        "}",
    ]
    edits.write(launch.statement, ["{", chosen, "}"])


def _grid_of_packs(kernel: Kernel, launch: Launch, found: list[Packed], count: str) -> str:
    """As many blocks as packs need, where blocks share the elements out and do nothing else."""
    region = found[0].region
    if region.kind in {"block", "team"} or len(found) > 1 or not counts_elements(kernel, region):
        return kernel.source.of(launch.grid)
    bound = as_factor(host_text(found[0].kernel, launch, region.bound_node))
    width = launch.extents(launch.block)[0]
    extents = dict(zip("xyz", launch.extents(launch.grid), strict=True))
    # One more where the elements are a part of what there is, and may be none: no grid is empty.
    more = any(s.operator == "/" for s in region.bound.symbols)
    packs = f"{bound} / {count} + 1" if more else f"{bound} / {count}"
    extents[region.axis] = along = f"ceil_div({packs}, {width})"
    shape = list(extents.values())
    while shape[-1] == "1":
        shape.pop()
    return along if shape == [along] else f"dim3({', '.join(shape)})"
