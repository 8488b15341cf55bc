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

from dataclasses import dataclass

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.block_shape import whole_warps
from nodes.rewrites.analysis.device_code import Code, code_of
from nodes.rewrites.analysis.insertions import require
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import children_of, field_of, names_declared, same, statement_around, upward

WARP = 32
MASK = "0xffffffffu"
REDUCTIONS = {"plus": "sum", "greater": "max", "less": "min"}
"""What cooperative groups' functors are."""
REDUCED = frozenset({"float", "double", "int", "int32_t", "unsigned", "unsigned int", "uint32_t"})
OF_BLOCK = {"thread_rank": "threadIdx.x", "size": "blockDim.x", "num_threads": "blockDim.x", "sync": "__syncthreads()"}
OF_WARP = {
    "thread_rank": "threadIdx.x % 32", "meta_group_rank": "threadIdx.x / 32", "meta_group_size": "blockDim.x / 32",
    "size": "32", "num_threads": "32", "sync": "__syncwarp()",
}  # fmt: skip
PLACES = {"thread_index": "threadIdx", "group_index": "blockIdx", "group_dim": "blockDim", "dim_threads": "blockDim"}
TALKS = {
    "shfl": "__shfl_sync", "shfl_xor": "__shfl_xor_sync", "shfl_down": "__shfl_down_sync", "shfl_up": "__shfl_up_sync",
    "any": "__any_sync", "all": "__all_sync", "ballot": "__ballot_sync",
}  # fmt: skip
HEADERS = ("<cooperative_groups.h>", "<cooperative_groups/reduce.h>")


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
    code, edits, kinds = code_of(source), Edits(source), set[str]()
    for kernel in code.kernels:
        with edits.attempt():
            kinds |= _written_out(edits, code, kernel)
    if not edits.changes:
        return None
    for name in sorted(kinds):
        require(edits, code, f"warp_{REDUCTIONS[name]}")
    return _without_headers(source.reparsed(edits.apply()))


@dataclass(frozen=True)
class _Group:
    name: Node
    declaration: Node
    """The statement."""
    warp: bool


def _written_out(edits: Edits, code: Code, kernel: Kernel) -> set[str]:
    """Which functors reduce. Raises Unsupported where a group is used for anything that has no other name."""
    source = code.source
    groups = _groups(code, kernel)
    if not groups or not kernel.launches:
        raise Unsupported("no groups")
    for launch in kernel.launches:
        if launch.extents(launch.block)[1:] != ("1", "1") or not whole_warps(code, kernel, launch.block):
            raise Unsupported("blocks that may not be whole warps along x")
    kinds: set[str] = set()
    for use in source.walk(kernel.body, "identifier"):
        group = groups.get(source.of(use))
        if group is None or same(use, group.name) or _makes_another(use, groups):
            continue
        kinds |= _write(edits, use, group)
    for group in groups.values():
        edits.remove(group.declaration)
    return kinds


def _groups(code: Code, kernel: Kernel) -> dict[str, _Group]:
    """By name. Raises Unsupported where a name means two things, or a group is of another kind."""
    source, found = code.source, dict[str, _Group]()
    for call in source.walk(kernel.body, "call_expression"):
        kind = _made(source, call)
        holder = call.parent
        if kind is None or holder is None or holder.type == "argument_list":
            continue
        name = field_of(holder, "declarator" if holder.type == "init_declarator" else "left")
        value = field_of(holder, "value" if holder.type == "init_declarator" else "right")
        statement = statement_around(holder)
        declares = holder.type == "init_declarator" or _is_tile(source, statement, holder)
        if name is None or name.type != "identifier" or not same(value, call) or not declares:
            raise Unsupported("a group of another form")
        if len(statement.children_by_field_name("declarator")) > 1 or source.of(name) in found:
            raise Unsupported("groups that are declared together")
        found[source.of(name)] = _Group(name, statement, kind)
    named = [p.name for p in kernel.parameters]
    for node in source.walk(kernel.body, "declaration"):
        for inner in names_declared(node):
            if source.of(inner) in found and not same(inner, found[source.of(inner)].name):
                raise Unsupported("a name of two things")
    if any(name in named for name in found):
        raise Unsupported("a name of two things")
    return found


def _made(source: Source, call: Node) -> bool | None:
    """Whether a call makes the group of the warp, False for that of the block, None for another call."""
    function = source.of(call, "function").replace(" ", "")
    scope, _, last = function.rpartition("::")
    if scope not in {"cg", "cooperative_groups", ""}:
        return None
    if last == "this_thread_block":
        return False
    if last.startswith("tiled_partition<"):
        if last != f"tiled_partition<{WARP}>":
            raise Unsupported("parts of a warp")
        return True
    if last in {
        "this_grid",
        "this_cluster",
        "coalesced_threads",
        "tiled_partition",
        "labeled_partition",
        "binary_partition",
    }:
        raise Unsupported("a group of another kind")
    return None


def _is_tile(source: Source, statement: Node, assignment: Node) -> bool:
    """`cg::thread_block_tile<32> warp = ...;`, which the grammar takes for comparisons."""
    whole = statement.named_children[0] if statement.type == "expression_statement" else None
    if whole is None or whole.type != "binary_expression" or not same(field_of(whole, "right"), assignment):
        return False
    return source.of(whole, "left").replace(" ", "").endswith(f"thread_block_tile<{WARP}")


def _makes_another(use: Node, groups: dict[str, _Group]) -> bool:
    """Whether the group is only named where another one, that goes too, is declared."""
    return any(g.declaration.start_byte <= use.start_byte < g.declaration.end_byte for g in groups.values())


def _write(edits: Edits, use: Node, group: _Group) -> set[str]:
    """What an expression with a group's name is without it; says which functor reduces, if one does."""
    source, holder = edits.source, use.parent
    if holder is None or use.has_error:
        raise Unsupported("a group by itself")
    if holder.type == "field_expression" and same(field_of(holder, "argument"), use):
        _write_method(edits, holder, group)
        return set()
    call = holder.parent
    if holder.type != "argument_list" or call is None or call.type != "call_expression":
        raise Unsupported("a group that is handed on")
    scope, _, name = source.of(call, "function").rpartition("::")
    arguments = children_of(holder)
    if scope not in {"cg", "cooperative_groups"} or not same(arguments[0], use):
        raise Unsupported("a group that is handed on")
    if name == "sync" and len(arguments) == 1:
        edits.replace(call, (OF_WARP if group.warp else OF_BLOCK)["sync"])
        return set()
    if name != "reduce" or len(arguments) != 3 or not group.warp:
        raise Unsupported(f"a call of {name}")
    functor, _, rest = source.of(arguments[2]).rpartition("::")[2].partition("<")
    element, _, end = rest.partition(">")
    if functor not in REDUCTIONS or element.strip() not in REDUCED or end not in {"()", "{}"}:
        raise Unsupported("another reduction")
    value = arguments[1]
    if value.type == "identifier" and _declared_type(source, use, source.of(value)) == element:
        before, behind = "", ")"
    else:
        before, behind = f"static_cast<{element}>(", "))"
    edits.changes.append((call.start_byte, value.start_byte, f"warp_{REDUCTIONS[functor]}({before}"))
    edits.changes.append((value.end_byte, call.end_byte, behind))
    return {functor}


def _declared_type(source: Source, near: Node, name: str) -> str:
    """The type of the nearest declaration of the name in front."""
    for here in upward(near):
        sibling = here.prev_named_sibling
        while sibling is not None:
            if sibling.type == "declaration" and name in map(source.of, names_declared(sibling)):
                return source.of(sibling, "type")
            sibling = sibling.prev_named_sibling
    return ""


def _write_method(edits: Edits, field: Node, group: _Group) -> None:
    source, call, name = edits.source, field.parent, edits.source.of(field, "field")
    if call is None or call.type != "call_expression" or not same(field_of(call, "function"), field):
        raise Unsupported("a part of a group")
    arguments = children_of(call, "arguments")
    known, holder = OF_WARP if group.warp else OF_BLOCK, call.parent
    if name in known and not arguments:
        joined = "%" in known[name] or "/" in known[name]
        plain = holder is not None and holder.type in {"init_declarator", "argument_list", "subscript_argument_list"}
        edits.replace(call, f"({known[name]})" if joined and not plain else known[name])
    elif name in TALKS and group.warp and arguments:
        edits.replace(field, TALKS[name])
        edits.insert(arguments[0].start_byte, f"{MASK}, ")
    elif (
        name in PLACES and not group.warp and not arguments and holder is not None and holder.type == "field_expression"
    ):
        edits.replace(holder, f"{PLACES[name]}.{source.of(holder, 'field')}")
    else:
        raise Unsupported(f"a call of {name}")


def _without_headers(source: Source) -> str:
    """Without the library's headers and its short name where nothing asks for them any more."""
    scopes = [n for n in source.walk(None, "namespace_identifier") if source.of(n) in {"cg", "cooperative_groups"}]
    aliases = list(source.walk(None, "namespace_alias_definition"))
    aliases = [a for a in aliases if "cooperative_groups" in source.of(a)]
    own = [n for n in scopes if any(a.start_byte <= n.start_byte < a.end_byte for a in aliases)]
    using = any("cooperative_groups" in source.of(n) for n in source.walk(None, "using_declaration"))
    if using or len(own) != len(scopes):
        return source.text
    edits = Edits(source)
    for alias in aliases:
        edits.remove(alias)
    for node in source.walk(None, "preproc_include"):
        if source.of(node, "path") in HEADERS:
            edits.changes.append((node.start_byte, node.end_byte, ""))
    return edits.apply()
