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
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Edits, Source, Unsupported, inside
from nodes.rewrites.syntax.tree import enclosing, names_declared, same

REDUCTIONS = {"plus": "sum", "greater": "max", "less": "min"}
"""What cooperative groups' functors are."""
REDUCED = ("float", "double", "int", "int32_t", "unsigned", "unsigned int", "uint32_t")
OF_BLOCK = {"thread_rank": "threadIdx.x", "size": "blockDim.x", "num_threads": "blockDim.x", "sync": "__syncthreads()"}
OF_WARP = {
    "thread_rank": "(threadIdx.x % 32)", "meta_group_rank": "(threadIdx.x / 32)", "meta_group_size": "(blockDim.x / 32)",
    "size": "32", "num_threads": "32", "sync": "__syncwarp()",
}  # fmt: skip
_SCOPE = "(?:cg|cooperative_groups)"
_GROUP = re.compile(
    rf"(?:const )?(?:auto|{_SCOPE}::thread_block(?:_tile<32[^=;]*>)?) (\w+) = "
    rf"{_SCOPE}::(?:this_thread_block\(\)|(tiled_partition<32>\([^;]*\)));"
)
"""The declaration of a group; the second part of a warp's only."""
_REDUCE = tuple(f"{scope}::reduce($group, $value, {scope}::{functor}<$T>{made})" for scope in ("cg", "cooperative_groups")
                for functor in REDUCTIONS for made in ("{}", "()"))  # fmt: skip
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
    for statement in made:
        edits.remove(statement)


def _write(edits: Edits, code: Code, use: Node, warp: bool) -> None:
    """What a call with a group's name is without it. Raises Unsupported for one that is handed on."""
    source, call = code.source, enclosing(use, "call_expression")
    asked, reduced = match(source, call, "$group.$method()"), match(source, call, *_REDUCE)
    if asked is not None and same(asked["group"], use):
        text = (OF_WARP if warp else OF_BLOCK).get(source.of(asked["method"]))
        if text is None:
            raise Unsupported("a part of a group that has no other name")
        edits.replace(call, text)
    elif reduced is not None and same(reduced["group"], use) and warp and source.of(reduced["T"]) in REDUCED:
        functor, value, found = (
            reduced.pattern.split("::")[-1].split("<")[0],
            reduced["value"],
            code.variable(reduced["value"]),
        )
        plain = found is not None and source.of(found.declaration, "type") == source.of(reduced["T"])
        before, behind = ("", ")") if plain else (f"static_cast<{source.of(reduced['T'])}>(", "))")
        edits.changes.append((call.start_byte, value.start_byte, f"warp_{REDUCTIONS[functor]}({before}"))
        edits.changes.append((value.end_byte, call.end_byte, behind))
    else:
        raise Unsupported("a group that is handed on, or another reduction")
