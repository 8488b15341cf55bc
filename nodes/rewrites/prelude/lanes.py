"""Elements that move together, what one of them takes, and divisions that round up."""

from __future__ import annotations

ELEMENT_BYTES = {
    "float": 4, "__half": 2, "half": 2, "__nv_bfloat16": 2, "nv_bfloat16": 2, "int8_t": 1, "uint8_t": 1, "char": 1,
    "signed char": 1, "unsigned char": 1, "bool": 1, "__nv_fp8_e4m3": 1, "__nv_fp8_storage_t": 1, "int": 4, "int32_t": 4, "uint32_t": 4,
    "double": 8, "int64_t": 8, "int16_t": 2, "uint16_t": 2, "short": 2, "unsigned": 4,
    "__half2": 4, "half2": 4, "__nv_bfloat162": 4, "nv_bfloat162": 4, "float2": 8, "int2": 8, "uint2": 8,
    "char2": 2, "uchar2": 2, "char4": 4, "uchar4": 4, "short2": 4, "ushort2": 4, "short4": 8, "ushort4": 8, "uint": 4,
    "unsigned int": 4, "uint64_t": 8, "float4": 16, "int4": 16, "uint4": 16, "double2": 16,
}  # fmt: skip


LANES = """\
// N neighbouring elements that move together, in loads and stores of up to 16 bytes; they begin on a multiple of A elements.
template <typename T, int N, int A = N>
struct alignas(A * sizeof(T) < 16 ? A * sizeof(T) : 16) Lanes {
  T at[N];
};

template <int N, int A = N, typename T>
__device__ __forceinline__ Lanes<T, N, A> load_lanes(const T* from) {
  return *reinterpret_cast<const Lanes<T, N, A>*>(from);
}

template <typename T, int N, int A>
__device__ __forceinline__ void store_lanes(T* to, const Lanes<T, N, A>& lanes) {
  *reinterpret_cast<Lanes<T, N, A>*>(to) = lanes;
}
"""


CEIL_DIV = """\
inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
"""
