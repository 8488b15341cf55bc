"""What elements take, and how kernels name them and see them through other types."""

from __future__ import annotations

from tree_sitter import Node

from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.syntax.source import Unsupported
from nodes.rewrites.syntax.tree import field_of

ELEMENT_BYTES = {
    "float": 4, "__half": 2, "half": 2, "__nv_bfloat16": 2, "nv_bfloat16": 2, "int8_t": 1, "uint8_t": 1, "char": 1,
    "signed char": 1, "unsigned char": 1, "bool": 1, "__nv_fp8_e4m3": 1, "__nv_fp8_storage_t": 1, "int": 4, "int32_t": 4, "uint32_t": 4,
    "double": 8, "int64_t": 8, "int16_t": 2, "uint16_t": 2, "short": 2, "unsigned": 4,
    "float2": 8, "int2": 8, "uint2": 8,
    "char2": 2, "uchar2": 2, "char4": 4, "uchar4": 4, "short2": 4, "ushort2": 4, "short4": 8, "ushort4": 8, "uint": 4,
    "unsigned int": 4, "uint64_t": 8, "float4": 16, "int4": 16, "uint4": 16, "double2": 16,
}  # fmt: skip
"""What an element takes, by its type."""


def seen_through(cast: Node) -> Node:
    """The pointer that a cast makes another of."""
    value = field_of(cast, "value")
    listed = field_of(cast, "arguments")
    if value is None and listed is not None and listed.named_child_count == 1:
        value = listed.named_children[0]
    if value is None:
        raise Unsupported("a cast of several values")
    return value


def spelt_out(kernel: Kernel, name: str) -> str:
    """A type as the kernel's head could write it: the kernel's own aliases mean nothing there."""
    code = kernel.code
    for node in code.source.walk(kernel.body, "alias_declaration", "type_definition"):
        called = field_of(node, "name") or field_of(node, "declarator")
        if code.source.of(called) == name:
            return code.source.of(node, "type")
    return name
