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


def wgmma(function: str, columns: int, kind: str = "f16", across: str = "0, 0") -> str:
    """`function`, of (d, left, right, adds): a warp group's 64 rows of sums `d` = (where `adds` is 0) or += 16 steps of both sides, which their
    descriptors name. `across`: 1 for a side whose lines in shared memory are steps."""
    count = columns // 2
    rows = [", ".join(f"%{i}" for i in range(first, min(first + 16, count))) for first in range(0, count, 16)]
    sums = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    registers = ', "\n        "'.join(rows)
    return f"""\
__device__ __forceinline__ void {function} {{
    asm volatile(
        "{{.reg .pred adds; setp.ne.b32 adds, %{count + 2}, 0; wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind} {{"
        "{registers}}}, "
        "%{count}, %{count + 1}, adds, 1, 1, {across};}}"
        : {sums}
        : "l"(left), "l"(right), "r"(adds));
}}
"""
