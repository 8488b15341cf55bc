"""Functions and types of numbers, by the names that CUDA has for them."""

from __future__ import annotations

EXTREMES = {
    **dict.fromkeys(("fmaxf", "max", "fmax", "std::max", "__hmax"), "max"),
    **dict.fromkeys(("fminf", "min", "fmin", "std::min", "__hmin"), "min"),
}
ELEMENT_BYTES = {
    "float": 4, "__half": 2, "half": 2, "__nv_bfloat16": 2, "nv_bfloat16": 2, "int8_t": 1, "uint8_t": 1, "char": 1,
    "signed char": 1, "unsigned char": 1, "bool": 1, "__nv_fp8_e4m3": 1, "__nv_fp8_storage_t": 1, "int": 4, "int32_t": 4, "uint32_t": 4,
    "double": 8, "int64_t": 8, "int16_t": 2, "uint16_t": 2, "short": 2, "unsigned": 4,
    "float2": 8, "int2": 8, "uint2": 8,
    "char2": 2, "uchar2": 2, "char4": 4, "uchar4": 4, "short2": 4, "ushort2": 4, "short4": 8, "ushort4": 8, "uint": 4,
    "unsigned int": 4, "uint64_t": 8, "float4": 16, "int4": 16, "uint4": 16, "double2": 16,
}  # fmt: skip
"""What an element takes, by its type."""
