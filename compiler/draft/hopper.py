"""CUDA of what Hopper brings and multiplies by: barriers that count bytes, bulk copies, and the registers of a warp group's 64 x 128 sums.

What is behind __CUDA_ARCH_FEAT_SM90_ALL is for sm_90a alone; halves.py and planes.py multiply by other means elsewhere.
"""

MULTIPROCESSORS = 132
"""Of an H100 or H200: so many blocks run at once where each takes one. A device with fewer gets wider blocks of a recurrence, as its launch decides."""


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
