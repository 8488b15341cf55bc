"""Cooperative groups of a block and of its warps are written out as the coordinates, shuffles and barriers that they are.

    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
    for (int i = warp.thread_rank(); i < n; i += warp.size()) v += x[i];
    v = cg::reduce(warp, v, cg::plus<float>{});
                                                   ->
    for (int i = threadIdx.x % 32; i < n; i += 32) v += x[i];
    v = warp_sum(v);

Changes nothing by itself, but other steps know threads by `threadIdx`. Applies to kernels whose blocks are whole warps along x
and that do nothing with a group but ask it such things; one that hands a group on stays as it is.
"""

from __future__ import annotations

import re

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.block_shape import whole_warps
from nodes.rewrites.analysis.device_code import Code, code_of
from nodes.rewrites.analysis.insertions import require
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.source import Edits, Source, Unsupported, inside
from nodes.rewrites.syntax.tree import children_of, field_of, names_declared, same

MASK = "0xffffffffu"
REDUCTIONS = {"plus": "sum", "greater": "max", "less": "min"}
"""What cooperative groups' functors are."""
REDUCED = ("float", "double", "int", "int32_t", "unsigned", "unsigned int", "uint32_t")
OF_BLOCK = {"thread_rank": "threadIdx.x", "size": "blockDim.x", "num_threads": "blockDim.x", "sync": "__syncthreads()"}
OF_WARP = {
    "thread_rank": "threadIdx.x % 32", "meta_group_rank": "threadIdx.x / 32", "meta_group_size": "blockDim.x / 32",
    "size": "32", "num_threads": "32", "sync": "__syncwarp()",
}  # fmt: skip
PLACES = {"thread_index": "threadIdx", "group_index": "blockIdx", "group_dim": "blockDim", "dim_threads": "blockDim"}
TALKS = {"shfl", "shfl_xor", "shfl_down", "shfl_up", "any", "all", "ballot"}
"""Methods that are functions of a warp's threads."""
_SCOPE = "(?:cg|cooperative_groups)"
_GROUP = re.compile(
    rf"(?:const )?(?:auto|{_SCOPE}::thread_block(?:_tile<32[^=;]*>)?) (\w+) = "
    rf"{_SCOPE}::(?:this_thread_block\(\)|(tiled_partition<32>\([^;]*\)));"
)
"""The declaration of a group; the second part of a warp's only."""
_FUNCTOR = re.compile(rf"{_SCOPE}::(plus|greater|less)<({'|'.join(REDUCED)})>(\(\)|\{{\}})")
_NAMED = re.compile(r"#include <cooperative_groups(/reduce)?\.h>\n|namespace cg = cooperative_groups;\n")


@rule(
    "cuda",
    expected="nothing by itself: later steps see which thread has what",
    normalizes=True,
    after=("standard_alignas",),
    risks=(Outcome.INCORRECT,),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    if "cooperative_groups" not in source.text:
        return None
    code, edits = code_of(source), Edits(source)
    for kernel in code.kernels:
        with edits.attempt():
            _write_out(edits, code, kernel)
    if not edits.changes:
        return None
    require(edits, code, *(f"warp_{name}" for name in REDUCTIONS.values()))
    text = edits.apply()
    plain = _NAMED.sub("", text)
    return text if re.search(rf"\b{_SCOPE}\b", plain) else plain  # where something still asks for them


def _write_out(edits: Edits, code: Code, kernel: Kernel) -> None:
    """Raises Unsupported where a group is used for anything that has no other name."""
    source = code.source
    made = {n: found for n in source.walk(kernel.body, "declaration", "expression_statement")
            if (found := _GROUP.fullmatch(" ".join(source.of(n).split()))) is not None}  # fmt: skip
    groups = {found[1]: found[2] is not None for found in made.values()}
    if not groups or not kernel.launches:
        raise Unsupported("no groups")
    for launch in kernel.launches:
        if launch.extents(launch.block)[1:] != ("1", "1") or not whole_warps(code, kernel, launch.block):
            raise Unsupported("blocks that may not be whole warps along x")
    others = [n for n in source.walk(kernel.node, "declaration", "parameter_declaration") if n not in made]
    named = [source.of(name) for n in others for name in names_declared(n)]
    if len(groups) != len(made) or groups.keys() & set(named):
        raise Unsupported("a name of two things")
    for use in source.walk(kernel.body, "identifier"):
        if source.of(use) in groups and not any(inside(use, statement) for statement in made):
            _write(edits, code, use, groups[source.of(use)])
    for call in source.walk(kernel.body, "call_expression"):
        known = any(inside(call, n) for n in made) or _FUNCTOR.fullmatch(source.of(call))
        of_ours = [source.of(n) in groups for n in children_of(call, "arguments")[:1]]
        if re.match(rf"{_SCOPE}::", source.of(call, "function")) and not known and of_ours != [True]:
            raise Unsupported("a group of another kind")
    for statement in made:
        edits.remove(statement)


def _write(edits: Edits, code: Code, use: Node, warp: bool) -> None:
    """What an expression with a group's name is without it."""
    source, holder = code.source, use.parent
    if holder.type == "field_expression" and same(field_of(holder, "argument"), use):
        _write_method(edits, holder, warp)
        return
    call, given = holder.parent, children_of(holder)
    function = source.of(call, "function")
    if holder.type != "argument_list" or not re.fullmatch(rf"{_SCOPE}::(sync|reduce)", function) or given[0] != use:
        raise Unsupported("a group that is handed on")
    if function.endswith("sync"):
        edits.replace(call, (OF_WARP if warp else OF_BLOCK)["sync"])
        return
    functor = _FUNCTOR.fullmatch(source.of(given[-1]))
    if len(given) != 3 or functor is None or not warp:
        raise Unsupported("another reduction")
    name, value, found = REDUCTIONS[functor[1]], given[1], code.variable(given[1])
    plain = found is not None and source.of(found.declaration, "type") == functor[2]
    before, behind = ("", ")") if plain else (f"static_cast<{functor[2]}>(", "))")
    edits.changes.append((call.start_byte, value.start_byte, f"warp_{name}({before}"))
    edits.changes.append((value.end_byte, call.end_byte, behind))


def _write_method(edits: Edits, field: Node, warp: bool) -> None:
    source, call, name = edits.source, field.parent, edits.source.of(field, "field")
    if call.type != "call_expression" or not same(field_of(call, "function"), field):
        raise Unsupported("a part of a group")
    given, holder, text = children_of(call, "arguments"), call.parent, (OF_WARP if warp else OF_BLOCK).get(name)
    if text is not None and not given:
        plain = holder.type in {"init_declarator", "argument_list", "subscript_argument_list"}
        edits.replace(call, text if plain or not re.search("[%/]", text) else f"({text})")
    elif name in TALKS and warp and given:
        edits.replace(field, f"__{name}_sync")
        edits.insert(given[0].start_byte, f"{MASK}, ")
    elif name in PLACES and not warp and not given and holder.type == "field_expression":
        edits.replace(holder, f"{PLACES[name]}.{source.of(holder, 'field')}")
    else:
        raise Unsupported(f"a call of {name}")
