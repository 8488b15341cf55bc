"""Outputs larger than the caches are written past them.

An ordinary store reads its line first: a third to a half of the traffic of a kernel that writes as much as it reads.
Measured on two Zen 4 cores, copying 512 MB: 37 GB/s with ordinary stores, 50 GB/s past the caches; but 170 against 56
where it all fits into the L2. So the choice is made at run time by the size of the output.
"""

from __future__ import annotations

from tree_sitter import Node

from nodes.rewrites.analysis.host_source import (
    arguments,
    canonical,
    function_around,
    identifiers,
    put_in_front,
    root_name,
    varying,
)
from nodes.rewrites.analysis.kernels import Loop
from nodes.rewrites.prelude import text_of
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.insert import as_factor, behind_stores, define
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import field_of, upward

_DEFINE = "#define STREAM_FROM_MB {threshold}  // tune: {threshold} {large}"


@rule(
    "cpu",
    expected="bytes moved fall by the size of the output on workloads beyond the last-level cache",
    speedup=1.15,
    helps={"memory"},
    after=("omp_simd",),
    once="STREAM_FROM_MB",
)
def rewrite(source: Source, facts: Facts) -> str | None:
    threshold_mb = _threshold_mb(facts)
    suite = [workload for workload in facts.spec.suite(facts.device.device) if workload.timed]  # which agents may see
    if all(facts.spec.write_bytes(workload) < threshold_mb << 20 for workload in suite):
        return None
    edits, declared = Edits(source), set[int]()
    for call in _calls(source, source.root, "store_lanes"):
        with edits.attempt():
            nest, target = _nest(source, call), _output(source, call)
            if nest[0].node.start_byte not in declared:
                size = " * ".join(as_factor(source.of(loop.bound_node)) for loop in nest)
                written = f"{size} * static_cast<int64_t>(sizeof(*{target}))"
                line = f"const bool streams = {written} >= STREAM_FROM_MB * int64_t{{1 << 20}};"
                put_in_front(edits, nest[0], [line])
                declared.add(nest[0].node.start_byte)
            edits.insert(field_of(call, "arguments").end_byte - 1, ", streams")
    if not edits.changes:
        return None
    define(source, edits, "STREAM_FROM_MB", _DEFINE.format(threshold=threshold_mb, large=4 * threshold_mb))
    edits.insert(behind_stores(source), f"\n{text_of('streaming_stores', '.h')}")
    return edits.apply()


def _threshold_mb(facts: Facts) -> int:
    """An output of five eighths of the last-level cache and inputs as large do not stay there from call to call.

    With 32 MB of it, an output of 22 MiB gained 15 % (silu, 69 MB of traffic) and one of 16 MiB lost 40 % (softmax).
    """
    return max(1, facts.device.last_level_cache_bytes * 5 // 8 >> 20)


def _calls(source: Source, node: Node, name: str) -> list[Node]:
    return [call for call in source.walk(node, "call_expression") if source.of(call, "function") == name]


def _nest(source: Source, call: Node) -> list[Loop]:
    """The loops around a store, outermost first, all of whose bounds are known before the first of them."""
    found = [canonical(source, here) for here in upward(call) if here.type == "for_statement"][::-1]
    if not found or any(loop is None or source.of(loop.start_node) != "0" for loop in found):
        raise Unsupported("no loop around the store, or one whose extent is not known")
    if identifiers(source, *(loop.bound_node for loop in found)) & varying(source, found[0]):
        raise Unsupported("an extent that changes")
    return found


def _output(source: Source, call: Node) -> str:
    """The parameter that a store writes to, which the function never loads from."""
    function, name = function_around(source, call), root_name(source, arguments(call)[0])
    read = [arguments(other)[0] for other in _calls(source, function.node, "load_lanes")]
    read += [field_of(node, "argument") for node in source.walk(function.node, "subscript_expression")]
    known = name in {parameter.name for parameter in function.parameters}
    if not known or any(root_name(source, each) == name for each in read):
        raise Unsupported("no parameter, or the output is read again, or used otherwise")
    return name
