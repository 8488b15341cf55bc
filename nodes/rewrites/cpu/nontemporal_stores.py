"""Outputs larger than the caches are written past them.

An ordinary store reads its line first: a third to a half of the traffic of a kernel that writes as much as it reads.
Measured on two Zen 4 cores, copying 512 MB: 37 GB/s with ordinary stores, 50 GB/s past the caches; but 170 against 56
where it all fits into the L2. So the choice is made at run time by the size of the output.
"""

from __future__ import annotations

from tree_sitter import Node

from nodes.rewrites.analysis.host_loops import loops_around, put_in_front, varying
from nodes.rewrites.analysis.host_source import arguments, enclosing_function, function_of, identifiers, root_name
from nodes.rewrites.analysis.kernels import Loop
from nodes.rewrites.cpu.omp_parallel import factor
from nodes.rewrites.prelude import text_of
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.insert import behind_stores, define
from nodes.rewrites.syntax.source import Edits, Source, Unsupported

_DEFINE = "#define STREAM_FROM_MB {threshold}  // tune: {threshold} {large}"


@rule(
    "cpu",
    expected="bytes moved fall by the size of the output on workloads beyond the last-level cache",
    speedup=1.15,
    helps={"memory"},
    after=("reciprocal_division",),
    once="STREAM_FROM_MB",
)
def rewrite(source: Source, facts: Facts) -> str | None:
    if not _beyond_cache(facts):
        return None
    edits, declared = Edits(source), set[int]()
    for call in source.walk(None, "call_expression"):
        function = enclosing_function(call)
        writes = source.of(call, "function") == "store_lanes" and function is not None
        if not writes or "store_lanes" in source.of(function, "declarator"):
            continue
        with edits.attempt():
            nest, target = _nest(source, call), _output(source, call, function)
            if nest[0].node.start_byte not in declared:
                size = " * ".join(factor(source.of(loop.bound_node)) for loop in nest)
                written = f"{size} * static_cast<int64_t>(sizeof(*{target}))"
                line = f"const bool streams = {written} >= STREAM_FROM_MB * int64_t{{1 << 20}};"
                put_in_front(edits, nest[0], [line])
                declared.add(nest[0].node.start_byte)
            edits.insert(call.child_by_field_name("arguments").end_byte - 1, ", streams")
    if not edits.changes:
        return None
    threshold = _threshold_mb(facts)
    line = _DEFINE.format(threshold=threshold, large=4 * threshold)
    define(source, edits, "STREAM_FROM_MB", line)
    edits.insert(behind_stores(source), f"\n{text_of('streaming_stores', '.h')}")
    return edits.apply()


def _threshold_mb(facts: Facts) -> int:
    """An output of five eighths of the last-level cache and inputs as large do not stay there from call to call.

    With 32 MB of it, an output of 22 MiB gained 15 % (silu, 69 MB of traffic) and one of 16 MiB lost 40 % (softmax).
    """
    return max(1, facts.device.last_level_cache_bytes * 5 // 8 >> 20)


def _beyond_cache(facts: Facts) -> bool:
    """Whether any workload that agents may see writes so much."""
    outputs = [tensor for tensor in facts.spec.tensors if tensor.role == "output"]
    suite = [workload for workload in facts.spec.suite(facts.device.device) if workload.timed]
    written = (sum(facts.spec.tensor_bytes(tensor, workload) for tensor in outputs) for workload in suite)
    return any(each >= _threshold_mb(facts) << 20 for each in written)


def _nest(source: Source, call: Node) -> list[Loop]:
    """The loops around a store, outermost first, all of whose bounds are known before the first of them."""
    found = loops_around(source, call)
    if not found or any(loop is None or source.of(loop.start_node) != "0" for loop in found):
        raise Unsupported("no loop around the store, or one whose extent is not known")
    if any(identifiers(source, loop.bound_node) & varying(source, found[0]) for loop in found):
        raise Unsupported("an extent that changes")
    return found


def _output(source: Source, call: Node, function: Node) -> str:
    """The parameter that a store writes to, which the function never loads from."""
    address = arguments(call)[0]
    name = root_name(source, address)
    if all(parameter.name != name for parameter in function_of(source, function).parameters):
        raise Unsupported("a store to something that is no parameter")
    calls = source.walk(function, "call_expression")
    read = [arguments(other)[0] for other in calls if source.of(other, "function") == "load_lanes"]
    read += [node.child_by_field_name("argument") for node in source.walk(function, "subscript_expression")]
    if any(root_name(source, each) == name for each in read):
        raise Unsupported("the output is read again, or used otherwise")
    return name
