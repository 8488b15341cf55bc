"""CUDA of what Hopper brings and multiplies by: barriers that count bytes, bulk copies, and the registers of a warp group's 64 x 128 sums.

What is behind __CUDA_ARCH_FEAT_SM90_ALL is for sm_90a alone; halves.py and planes.py multiply by other means elsewhere.
"""

MULTIPROCESSORS = 132
"""Of an H100 or H200: so many blocks run at once where each takes one. A device with fewer gets wider blocks of a recurrence, as its launch decides."""

PRELUDE = """\
__device__ __forceinline__ uint32_t shared_address(const void* at) { return static_cast<uint32_t>(__cvta_generic_to_shared(at)); }

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
__device__ __forceinline__ void begin_barrier(uint32_t barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void arrive_at(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void wait_at(uint32_t barrier, uint32_t phase) {
    asm volatile("{\\n.reg .pred done;\\nagain:\\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\\n@!done bra again;\\n}" ::"r"(barrier), "r"(phase) : "memory");
}
__device__ __forceinline__ void expect_bytes(uint32_t barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void bring_bytes(uint32_t to, const void* from, int bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}
#endif
"""


def _registers() -> str:
    """%0 to %63, as the list that an instruction's text begins with."""
    rows = [", ".join(f"%{i}" for i in range(first, first + 16)) for first in range(0, 64, 16)]
    return ', "\n        "'.join(rows).join(('        "', '}, "'))


def _sums() -> str:
    """`d`, of 64 floats, as its operands."""
    rows = [", ".join(f'"+f"(d[{i}])' for i in range(first, first + 8)) for first in range(0, 64, 8)]
    return "        : " + ",\n          ".join(rows)


REGISTERS, SUMS = _registers(), _sums()


def wgmma(type: str, left: str, right: str, columns: int) -> str:
    """A warp group's 64 rows of sums += 16 steps of both sides, which lie in shared memory."""
    count, kind = columns // 2, {"__half": "f16", "__nv_bfloat16": "bf16"}[type]
    registers = ", ".join(f"%{i}" for i in range(count))
    sums = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    across = ", ".join("0" if along == "true" else "1" for along in (left, right))
    return (
        f"__device__ __forceinline__ void multiply_sixteen(Operands<{type}, {left}, {right}>, float (&d)[{count}], uint64_t left, uint64_t right, int adds) {{\n"
        "    asm volatile(\n"
        f'        "{{.reg .pred adds; setp.ne.b32 adds, %{count + 2}, 0; wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind} {{{registers}}}, "\n'
        f'        "%{count}, %{count + 1}, adds, 1, 1, {across};}}"\n'
        f'        : {sums} : "l"(left), "l"(right), "r"(adds));\n'
        "}\n"
    )
