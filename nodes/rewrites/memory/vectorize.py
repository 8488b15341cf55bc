"""Scalar loads and stores become packs of up to 16 bytes.

Applies to a loop over elements that threads share out (`for (i = threadIdx.x; i < n; i += blockDim.x)`, a grid-stride
loop, or one guarded element a thread) whose body reads or writes neighbouring elements for neighbouring `i`; an element
may be a vector (half2, float2, uint2) that the kernel sees its parameter through, see _vectors.py. The loop
then runs over packs: indices and everything else that is the same for a whole pack are computed once, all loads come
before the arithmetic, all stores after it. Right because no thread may rely on another's elements between two barriers.
Elements that are reached under a condition which is the same for a whole pack, `bias ? bias[i] : 0`, move under it; elements
that each ask for themselves, `mask[i] ? x[i] : y[i]`, are loaded where one of the pack is read, so nothing is touched
that is further from a read element than its own 16 bytes.

The host launches packs only where every row starts on a pack (sizes divide, pointers are aligned to 16 bytes) and falls
back to packs of one element; no tail is needed.
"""

from __future__ import annotations

import re

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis import vectors as _vectors
from nodes.rewrites.analysis.device_code import Code, code_of, inside
from nodes.rewrites.analysis.insertions import require, without_unused
from nodes.rewrites.analysis.kernels import Access, Kernel
from nodes.rewrites.analysis.launches import Launch, host_text
from nodes.rewrites.analysis.regions import (
    Region,
    Stride,
    accesses_in,
    regions,
)
from nodes.rewrites.memory.packs import (
    Group,
    Packed,
    array_name,
    counts_elements,
    lane_of,
    multiples_of_width,
    packable,
    trait_bytes,
)
from nodes.rewrites.prelude.lanes import CEIL_DIV, ELEMENT_BYTES, LANES
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.insert import free
from nodes.rewrites.syntax.nodes import declared_name, same
from nodes.rewrites.syntax.source import Edits, Source, Unsupported, lifted
from nodes.rewrites.syntax.tree import field_of, is_integer

PACK_BYTES = """\
#define PACK_BYTES 16  // tune: 8 16
"""
PAIRS = """\
// {pair} copies its halves one by one: many of them move as the words that they are.
template <int N, int A = N>
__device__ __forceinline__ Lanes<{pair}, N, A> load_lanes(const {pair}* from) {{
  const auto words = *reinterpret_cast<const Lanes<unsigned, N, A>*>(from);
  return reinterpret_cast<const Lanes<{pair}, N, A>&>(words);
}}

template <int N, int A>
__device__ __forceinline__ void store_lanes({pair}* to, const Lanes<{pair}, N, A>& lanes) {{
  *reinterpret_cast<Lanes<unsigned, N, A>*>(to) = reinterpret_cast<const Lanes<unsigned, N, A>&>(lanes);
}}
"""
PAIRED = {
    "__half2": "__half2", "half2": "__half2", "__nv_bfloat162": "__nv_bfloat162", "nv_bfloat162": "__nv_bfloat162",
}  # fmt: skip
ALIGNED = """\
template <typename... P>
inline bool aligned_to_16_bytes(P... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}
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
    plain = _vectors.written_out(source)
    if plain != source.text and (packed := _packed(source.reparsed(plain))) is not None:
        return packed
    return _packed(source)


def _packed(source: Source) -> str | None:
    code = code_of(source)
    edits = Edits(source)
    changed = False
    pairs: set[str] = set()
    for kernel in code.kernels:
        try:
            found = [
                packed for region in regions(kernel, True) if (packed := packable(code, kernel, region)) is not None
            ]
            while parted := next((packed for packed in found if _parted(kernel, packed, found)), None):
                found = [packed for packed in found if packed is not parted]
            if found:
                attempt = Edits(source)
                _rewrite_kernel(attempt, code, kernel, found)
                edits.changes += attempt.changes
                changed = True
                pairs |= _pairs(kernel, found)
        except Unsupported:
            continue
    if not changed:
        return None
    try:
        require(edits, code, PACK_BYTES, "PACK_BYTES", includes=("cstdint", "type_traits"))
        require(edits, code, LANES, "Lanes", "load_lanes", "store_lanes")
        for pair in sorted(pairs):
            require(edits, code, PAIRS.format(pair=pair))
        require(edits, code, ALIGNED, "aligned_to_16_bytes")
        if any("ceil_div(" in change[2] for change in edits.changes):
            require(edits, code, CEIL_DIV, "ceil_div")
        return without_unused(code, edits.apply())
    except Unsupported:
        return None


def _pairs(kernel: Kernel, found: list[Packed]) -> set[str]:
    """The types of two halves that the packs are made of, whatever the launches' template arguments are."""
    elements = {group.first.element for packed in found for group in packed.groups}
    for element in list(elements):
        elements |= {_vectors.spelt_out(kernel, element), *_vectors.trait_types(kernel, element)}
        if element in kernel.template_names:
            at = kernel.template_names.index(element)
            elements |= {argument for launch in kernel.launches for argument in launch.template_arguments[at : at + 1]}
    return {PAIRED[plain] for element in elements if (plain := kernel.code.plain_type(element)) in PAIRED}


def _parted(kernel: Kernel, packed: Packed, found: list[Packed]) -> bool:
    """Whether a thread would meet elsewhere, with no barrier in between, elements that another thread now has.

    Loops over packs of the same range give a thread the same elements.
    """
    region = packed.region
    for mine in kernel.accesses:
        if not region.holds(mine.node) or not mine.offset.depends_on(region.symbol):
            continue
        for call, root in kernel.escapes:
            if mine.root and root in {mine.root, "?"} and not _barrier_between(kernel, mine.node, call):
                return True
        for other in kernel.accesses:
            shared = mine.root == other.root if mine.root else mine.base == other.base and not other.root
            if not shared or not (mine.writes or other.writes) or region.holds(other.node):
                continue
            if region.otherwise is not None and inside(other.node, region.otherwise):
                continue  # of a thread that has no elements
            fellow = next((p for p in found if p.region.holds(other.node)), None)
            if fellow is not None and fellow.region.bound == region.bound and fellow.region.kind == region.kind:
                continue
            if mine.base.node is not None and _own(kernel, mine):
                continue
            if not _barrier_between(kernel, mine.node, other.node):
                return True
    return False


def _barrier_between(kernel: Kernel, one: Node, other: Node) -> bool:
    first, last = sorted((one.start_byte, other.start_byte))
    return any(first < at < last for at in kernel.barriers)


def _own(kernel: Kernel, access: Access) -> bool:
    """Whether it is memory of the thread itself."""
    found = kernel.code.definition(access.base.node) if access.base.node is not None else None
    return not access.root and found is not None and "__shared__" not in kernel.source.of(found.declaration)


def _implied(condition: tuple[tuple[str, ...], int], others: list[tuple[tuple[str, ...], int]]) -> bool:
    """Whether a part of the product is a multiple already."""
    factors, times = condition
    return any(len(some) < len(factors) and set(some) <= set(factors) and by % times == 0 for some, by in others)


def _rewrite_kernel(edits: Edits, code: Code, kernel: Kernel, found: list[Packed]) -> None:
    names = code.names()
    width = "VEC" if "VEC" not in names else free("LANES", names)
    element = _element(kernel, found)
    for packed in found:
        _rewrite_region(edits, code, packed, width)
    explicit = bool(kernel.launches[0].template_arguments)
    if any(bool(launch.template_arguments) != explicit for launch in kernel.launches):
        raise Unsupported("launches that name template arguments and launches that do not")
    if explicit and any(len(launch.template_arguments) != len(kernel.template_names) for launch in kernel.launches):
        raise Unsupported("a launch that names some template arguments only")
    if kernel.template is None:
        first = kernel.node.children[
            0
        ]  # replaced, since in a file without includes helpers are inserted at the same place
        edits.replace(first, f"template <int {width}>\n{code.source.of(first)}")
    else:
        listed = field_of(kernel.template, "parameters")
        if explicit:
            edits.insert(listed.end_byte - 1, f", int {width}")
        else:
            edits.insert(listed.start_byte + 1, f"int {width}, ")
    for launch in kernel.launches:
        _rewrite_launch(edits, code, kernel, launch, found, element)


def _element(kernel: Kernel, found: list[Packed]) -> str:
    """The type whose packs fill 16 bytes: the template's own, or the narrowest of two bytes and more."""
    elements = {group.first.element for packed in found for group in packed.groups}
    generic = [e for e in elements if e in kernel.template_names]
    if generic:
        return sorted(generic)[0]
    sizes = {e: ELEMENT_BYTES.get(kernel.code.plain_type(_vectors.spelt_out(kernel, e)), 0) for e in elements}
    for element in elements:
        if not sizes[element]:
            sizes[element] = min(trait_bytes(kernel, element), default=0)
    if not all(sizes.values()):
        raise Unsupported(f"elements of unknown size: {', '.join(sorted(e for e in elements if not sizes[e]))}")
    wide = [e for e in elements if sizes[e] >= 2] or sorted(elements)
    narrowest = min(wide, key=lambda e: (sizes[e], e))
    if sizes[narrowest] >= 16:
        raise Unsupported("as wide as a load can be")
    return narrowest


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


def _rewrite_region(edits: Edits, code: Code, packed: Packed, width: str) -> None:
    source, region, kernel = code.source, packed.region, packed.kernel
    taken = kernel.identifiers()
    pack, first, lane = (free(n, taken) for n in ("pack", "first", "k"))
    indices, per_pack, per_lane = _split(packed, first, lane)
    outer = source.indent(region.loop.node if region.loop else region.guard or region.body[0])
    unit = source.unit(kernel.body)
    behind_return = region.guard is not None and not any(inside(s, region.guard) for s in region.body)
    inner = outer if behind_return else outer + unit
    kind = region.type if region.type != "auto" else "int64_t"
    lines, written = [f"const {kind} {first} = {pack} * {width};"], list[str]()
    lines += indices  # loads come before what is computed once a pack: it may wait for loads of its own

    def comes_first(group: Group) -> tuple[bool, bool]:
        """What is loaded in any case may be asked for what is not."""
        return not group.reads, group.asked is not None and _when(packed, group, "reads", lane) != ""

    for group in sorted(packed.groups, key=comes_first):
        size = width if group.stride == 1 else f"{group.stride} * {width}, {width}"
        element = group.first.element
        if group.reads:
            load = f"load_lanes<{size}>({_address(packed, group, first)})"
            if condition := _when(packed, group, "reads", lane):
                if group.asked is not None:
                    asked = free(f"{array_name(source, group.first)}_read", taken)
                    taken.add(asked)
                    lines += _asked_by_lane(packed, group, asked, condition, (width, lane, unit))
                    condition = asked
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
            condition = _when(packed, group, "writes", lane)
            store = f"store_lanes({_address(packed, group, first, stored=True)}, {group.name});"
            stores.append(f"if ({condition}) {store}" if condition else store)
    text = "\n".join(
        inner + line if line and not line.startswith("#") else line for line in _flat([*lines, *body, *stores])
    )
    _put(edits, region, text, pack, width)


def _put(edits: Edits, region: Region, text: str, pack: str, width: str) -> None:
    """The text in place of the region's body, and packs in place of elements in its header."""
    source, kind = edits.source, region.type if region.type != "auto" else "int64_t"
    outer = source.indent(region.loop.node if region.loop else region.guard or region.body[0])
    behind_return = region.guard is not None and not any(inside(s, region.guard) for s in region.body)
    bound = source.of(region.bound_node)
    bound = bound if re.fullmatch(r"[\w.]+", bound) else f"({bound})"
    if region.loop is not None:
        for node in region.loop.name_nodes:
            edits.replace(node, pack)
        edits.replace(region.loop.bound_node, f"{bound} / {width}")
        edits.replace(region.loop.body, "{\n" + text + "\n" + outer + "}")
        return
    name = field_of(region.definition, "declarator", "declarator")
    left = field_of(region.condition, "left")
    edits.replace(name, pack)
    edits.replace(left, pack)
    if region.otherwise is not None:
        definition = region.definition
        edits.insert(
            definition.end_byte, f"\n{source.indent(definition)}const {kind} {region.name} = {pack} * {width};"
        )
    edits.replace(region.bound_node, f"{bound} / {width}")
    consequence = field_of(region.guard, "consequence")
    if behind_return:
        for statement in region.body[:-1]:
            edits.remove(statement)
        edits.replace(region.body[-1], text.lstrip())
    else:
        for statement in region.body:
            if not inside(statement, consequence) and region.otherwise is None:
                edits.remove(statement)
        edits.replace(consequence, "{\n" + text + "\n" + outer + "}")


def _when(packed: Packed, group: Group, effect: str, lane: str) -> str:
    """The condition under which a pack is loaded or stored, or one of its lanes `k` read; "" for always."""
    source, first = packed.kernel.source, free("first", packed.kernel.identifiers())
    replaced = [*_lanes(packed, lane), *_firsts(packed, first)]
    cases = group.cases([access for access in group.accesses if getattr(access, effect)])
    written = []
    for at, guards in enumerate(cases):
        if not guards:
            return ""
        # Of `a || (!a && b)` the `!a` is said already.
        earlier = {tuple(g.key for g in case) for case in cases[:at]}
        keys = [(*(g.key for g in guards[:n]), (guard.key[0], True)) for n, guard in enumerate(guards)]
        said = [not guard.holds and key in earlier for guard, key in zip(guards, keys, strict=True)]
        asked = [guard for guard, known in zip(guards, said, strict=True) if not known] or list(guards)
        parts = []
        for guard in asked:
            text, kind = source.render(guard.condition, replaced), guard.condition.type
            compound = kind in {"binary_expression", "conditional_expression", "comma_expression"}
            alone = len(cases) == len(asked) == 1 and guard.holds and group.asked is None
            text = f"({text})" if compound and not alone and not text.startswith("(") else text
            parts.append(text if guard.holds else f"!{text}")
        written.append(" && ".join(parts) if len(cases) == 1 or len(parts) == 1 else f"({' && '.join(parts)})")
    return " || ".join(dict.fromkeys(written))


def _asked_by_lane(packed: Packed, group: Group, asked: str, condition: str, names: tuple[str, str, str]) -> list[str]:
    """`bool x_read = false; for (k ...) x_read |= mask_pack.at[k] != 0;`"""
    source, (width, lane, unit) = packed.kernel.source, names
    needed = [s for s in packed.region.body if any(same(s, other) for other in group.asked or ())]
    first = free("first", packed.kernel.identifiers())
    replaced = [*_lanes(packed, lane), *_firsts(packed, first)]
    body = [lifted(source, s, source.render(s, replaced)) for s in needed]
    body.append(f"{asked} |= {condition};")
    return [
        f"bool {asked} = false;",
        "#pragma unroll",
        f"for (int {lane} = 0; {lane} < {width}; ++{lane}) {{",
        *(unit + line for line in _flat(body)),
        "}",
    ]


def _firsts(packed: Packed, first: str) -> list[tuple[Node, str]]:
    """The element's index where the pack's first stands for all: in what is read for all of them, and in conditions."""
    conditions = [condition for group in packed.groups for condition in group.conditions]
    asked = [statement for group in packed.groups for statement in group.asked or ()]
    nodes = [*packed.shared, *conditions, *asked]
    return [place for node in nodes for place in _first(packed, node, first)]


def _lanes(packed: Packed, lane: str) -> list[tuple[Node, str]]:
    """The packs' accesses, each with the lane that stands for it."""
    return [
        (
            access.node,
            f"{'&' if access.address else ''}{group.name}.at[{_lane(lane, group.stride, lane_of(access, group.stride))}]",
        )
        for group in packed.groups
        for access in group.accesses
    ]


def _flat(lines: list[str]) -> list[str]:
    return [part for line in lines for part in line.split("\n")]


def _address(packed: Packed, group: Group, first: str, stored: bool = False) -> str:
    """The pack's first element, as `&base[index]`; as the kernel writes it where that is `stored`, for what it reads may go
    by another name, that of a pointer to constants."""
    begins = [a for a in group.accesses if lane_of(a, group.stride) == 0]
    access = begins[0]
    if stored and _is_through_constants(packed, access):
        access = next((a for a in begins if a.writes), access)
    source, node = packed.kernel.source, access.node
    if access.address:
        return source.render(node, _first(packed, node, first))
    if node.type == "call_expression":  # __ldg(pointer)
        arguments = field_of(node, "arguments")
        return source.render(arguments.named_children[0], _first(packed, arguments, first))
    if node.type == "pointer_expression":
        argument = field_of(node, "argument")
        return source.render(argument, _first(packed, argument, first))
    return "&" + source.render(node, _first(packed, node, first))


def _is_through_constants(packed: Packed, access: Access) -> bool:
    """`const T* row = x + at;` with `row[i]`"""
    source = packed.kernel.source
    for name in source.walk(access.node, "identifier"):
        found = packed.kernel.code.definition(name)
        if found is not None and found.kind == "local" and found.declaration.type == "declaration":
            pointer = found.value is not None and source.has(found.declaration, "pointer_declarator")
            constants = any(c.type == "type_qualifier" and source.of(c) == "const" for c in found.declaration.children)
            if pointer and constants:
                return True
    return False


def _first(packed: Packed, node: Node, first: str) -> list[tuple[Node, str]]:
    """The element's index below `node`, to be replaced by the pack's first."""
    region, code = packed.region, packed.kernel.code
    found = []
    for identifier in code.source.walk(node, "identifier"):
        if code.source.of(identifier) == region.name:
            definition = code.definition(identifier)
            if definition is not None and definition.where == region.symbol.where:
                found.append((identifier, first))
    return found


def _split(packed: Packed, first: str, lane: str) -> tuple[list[str], list[str], list[str]]:
    """The body in three: indices that the pack's addresses need, what else is the same for a whole pack, and what is done
    for every lane."""
    region, kernel = packed.region, packed.kernel
    source, code = kernel.source, kernel.code
    packed_nodes = [access.node for group in packed.groups for access in group.accesses]
    written = {name for a in accesses_in(kernel, region) if a.writes for name in (a.root, a.base.text)}
    varying = {region.symbol.where}
    for statement in region.body:
        for target in code.assigned(statement):
            found = code.definition(target)
            if found is not None:
                varying.add(found.where)
    hoisted: list[Node] = []
    indices: list[Node] = []
    for statement in region.body:
        if statement.type != "declaration":
            continue
        declared = statement.children_by_field_name("declarator")
        if _is_index(code, region, statement, declared, varying):
            indices.append(statement)
            varying |= {d.start_byte for d in declared if not _is_whole(code, packed, d)}
            continue
        if not _varies(code, statement, varying, written, packed_nodes):
            hoisted.append(statement)
        else:
            varying |= {d.start_byte for d in declared}
    replaced = [*_lanes(packed, lane), *_firsts(packed, first)]
    rest = [s for s in region.body if not any(same(s, h) for h in [*hoisted, *indices])]
    per_lane = [lifted(source, s, source.render(s, replaced)) for s in rest]
    addresses = " ".join(_address(packed, group, first) for group in packed.groups)
    conditions = [condition for group in packed.groups for condition in group.conditions]
    _check_once(code, packed, conditions, [*hoisted, *indices], varying)
    asked = [statement for group in packed.groups for statement in group.asked or ()]
    addresses = " ".join([addresses, *(source.of(node) for node in [*conditions, *asked])])
    needed: list[str] = []
    per_pack: list[str] = []
    kept_lane: list[str] = []
    # Backwards: an index is declared for the pack where addresses use it, and for each lane where the arithmetic does.
    above, below = addresses, " ".join(per_lane)
    for statement in reversed([s for s in region.body if any(same(s, h) for h in [*hoisted, *indices])]):
        names = {_name(code, d) for d in statement.children_by_field_name("declarator")}
        once = source.render(statement, _first(packed, statement, first))
        still = any(d.start_byte in varying for d in statement.children_by_field_name("declarator"))
        used_below = any(_named_in(n, below) for n in names)
        used_above = any(_named_in(n, above) for n in names)
        if used_above:
            needed.insert(0, lifted(source, statement, once))
            above += " " + once
        elif (used_below and not still) or any(_named_in(n, " ".join(per_pack)) for n in names):
            per_pack.insert(0, lifted(source, statement, once))
        if used_below and still:
            each = source.of(statement)
            kept_lane.insert(0, lifted(source, statement, each))
            below += " " + each
    per_lane = kept_lane + per_lane
    if _named_in(region.name, " ".join(per_lane)):
        kind = region.type if region.type != "auto" else "int64_t"
        per_lane.insert(0, f"const {kind} {region.name} = {first} + {lane};")
    return needed, per_pack, per_lane


def _named_in(name: str, text: str) -> bool:
    """Whether a variable is named, and not only a field called alike."""
    return bool(re.search(rf"(?<![\w.]){re.escape(name)}\b", text))


def _check_once(code: Code, packed: Packed, conditions: list[Node], once: list[Node], varying: set[int]) -> None:
    """Raises Unsupported where a condition names what is not declared in front of the loads, for the whole pack."""
    lanes = [access.node for group in packed.groups for access in group.accesses]
    for name in (n for lane in lanes for n in code.source.walk(lane, "identifier")):
        found = code.definition(name)
        known = found is None or not packed.region.holds(found.declaration)
        if not known and not any(same(found.declaration, statement) for statement in once):
            raise Unsupported("an address that is not known in front of the loads")
    asked = [statement for group in packed.groups for statement in group.asked or ()]
    for node in [*conditions, *asked]:
        for name in code.source.walk(node, "identifier"):
            found = code.definition(name)
            if found is None or not packed.region.holds(found.declaration) or any(inside(name, lane) for lane in lanes):
                continue
            if any(same(found.declaration, statement) for statement in asked):
                continue
            if found.where in varying or not any(same(found.declaration, statement) for statement in once):
                raise Unsupported("a condition that is not the same for a whole pack")


def _lane(lane: str, stride: int, remainder: int) -> str:
    return lane if stride == 1 else f"{stride} * {lane} + {remainder}" if remainder else f"{stride} * {lane}"


def _name(code: Code, declarator: Node) -> str:
    name = declared_name(declarator)
    return code.source.of(name) if name is not None else ""


def _stride_or_none(code: Code, region: Region, declarator: Node) -> int | None:
    value = field_of(declarator, "value")
    if value is None:
        return None
    try:
        return Stride(region.symbol).of(code.polynomial(value))
    except Unsupported:
        return None


def _is_whole(code: Code, packed: Packed, declarator: Node) -> bool:
    """Whether an index is the same for all lanes of a pack, given what the host checks."""
    value, stride = field_of(declarator, "value"), Stride(packed.region.symbol)
    checked = {polynomial for polynomial, _ in packed.multiples}
    return value is not None and stride.of(code.polynomial(value)) == 0 and checked >= set(stride.multiples)


def _is_index(code: Code, region: Region, statement: Node, declared: list[Node], varying: set[int]) -> bool:
    """Integers and pointers that move by a constant with the element and come from no memory."""
    for declarator in declared:
        if declarator.type != "init_declarator" or _stride_or_none(code, region, declarator) is None:
            return False
        named = {symbol.where for symbol in code.polynomial(field_of(declarator, "value")).variables()}
        if named & varying - {region.symbol.where}:
            return False  # built on what the body works out
        inner = field_of(declarator, "declarator")
        kind = code.source.of(statement, "type")
        pointer = inner is not None and inner.type == "pointer_declarator"
        if not (pointer or kind == "auto" or is_integer(kind)):
            return False
        if declarator.start_byte in varying:
            return False
        if pointer and any(code.root_of(s) == "" for s in code.polynomial(field_of(declarator, "value")).symbols):
            return False  # to a variable of each element's own
    if code.source.has(statement, "subscript_expression"):
        return False
    return not any(code.source.of(n.children[0]) == "*" for n in code.source.walk(statement, "pointer_expression"))


def _varies(code: Code, statement: Node, varying: set[int], written: set[str], packed_nodes: list[Node]) -> bool:
    source = code.source
    for declarator in statement.children_by_field_name("declarator"):
        if declarator.type != "init_declarator" or declarator.start_byte in varying:
            return True
    for node in source.walk(statement, "identifier", "call_expression", "assignment_expression", "update_expression"):
        if node.type in {"assignment_expression", "update_expression"}:
            return True
        if node.type == "call_expression":
            if re.search(r"atomic|sync|shfl|asm", source.of(node, "function")):
                return True
            continue
        if source.of(node) in written:
            return True
        found = code.definition(node)
        if found is not None and found.where in varying:
            return True
    return any(inside(node, statement) for node in packed_nodes)


def _rewrite_launch(
    edits: Edits, code: Code, kernel: Kernel, launch: Launch, found: list[Packed], element: str
) -> None:
    source = code.source
    statement = launch.statement
    required: list[tuple[tuple[str, ...], int]] = []
    for packed in found:
        for polynomial, times in packed.multiples:
            for condition in multiples_of_width(packed.kernel, launch, packed.region, polynomial, times):
                if condition not in required:
                    required.append(condition)
    # Names of our own must not hide a variable that the launch's arguments or sizes mention.
    count, lanes, pack, run = (code.fresh(name) for name in ("WIDTH", "lanes", "PACK", "launch_packs"))
    conditions = [
        f"{' * '.join(factors)} % {pack if times == 1 else f'({times} * {pack})'} == 0"
        for factors, times in required
        if not _implied((factors, times), required)
    ]
    bases = dict.fromkeys(group.first.root for packed in found for group in packed.groups)
    names = [p.name for p in kernel.parameters]
    pointers = [source.of(launch.arguments[names.index(base)]) for base in bases]
    pointers = [pointer for pointer in pointers if pointer not in {"nullptr", "NULL", "0"}]
    conditions.append(f"aligned_to_16_bytes({', '.join(pointers)})")
    named = dict(zip(kernel.template_names, launch.template_arguments, strict=False))
    spelt = _vectors.spelt_out(kernel, element)
    size = named.get(spelt, spelt)
    if trait_bytes(kernel, element):
        if not _words(spelt) & set(kernel.template_names) <= set(named):
            raise Unsupported(f"{spelt} of arguments that the launch does not name")
        size = re.sub(r"\w+", lambda word: named.get(word[0], word[0]), spelt)
    if not launch.template_arguments and element in kernel.template_names:  # deduced, so deduce it here too
        typed = [p.name for p in kernel.parameters if p.pointer and p.element == element]
        size = f"std::decay_t<decltype(*{source.of(launch.arguments[names.index(typed[0])])})>"
    grid = _grid_of_packs(kernel, launch, found, count)
    explicit = kernel.template is None or launch.template_list is not None
    function = launch.with_arguments(count) if explicit else f"{source.of(launch.function)}<{count}>"
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
    edits.write(statement, ["{", chosen, "}"])


def _grid_of_packs(kernel: Kernel, launch: Launch, found: list[Packed], count: str) -> str:
    """As many blocks as packs need, where blocks share the elements out and do nothing else."""
    region = found[0].region
    if region.kind in {"block", "team"} or len(found) > 1 or not counts_elements(kernel, region):
        return kernel.source.of(launch.grid)
    bound = host_text(found[0].kernel, launch, region.bound_node)
    bound = bound if re.fullmatch(r"[\w.]+", bound) else f"({bound})"
    width = launch.extents(launch.block)[0]
    extents = dict(zip("xyz", launch.extents(launch.grid), strict=True))
    # One more for what is left over; also where the elements are a part of what there is, and may be none: no grid is empty.
    more = region.otherwise is not None or any(s.operator == "/" for s in region.bound.symbols)
    packs = f"{bound} / {count} + 1" if more else f"{bound} / {count}"
    extents[region.axis] = along = f"ceil_div({packs}, {width})"
    shape = list(extents.values())
    while shape[-1] == "1":
        shape.pop()
    return along if shape == [along] else f"dim3({', '.join(shape)})"
