"""CUDA for a tile of a product whose operands both lie along K in memory, as TF32 numbers, by the tensor cores' instruction for a warp group.

wgmma (sm_90a) reads both operands from shared memory and is at work while the threads ask for what comes next, where mma.sync has each
warp load its fragments and wait for them. On an H200, of cuDNN in TF32, before and now: 0.55x and 1.09x (KernelBench's level 1, 56), 0.65x and
1.20x (62), 0.82x and 1.13x (63), 2.7x and 4.6x (68), 0.49x and 0.83x (69).
How the input is laid out channels last is of weight too: 55 was 0.73x before blocks of one place's channels began beside one another, and 0.91x since.
Lines are the 16 steps of a place, 64 bytes, in the swizzle of 64 bytes: piece p of line l, of 16 bytes, lies at p ^ (l / 2 % 4), so
that eight lines' pieces of equal number lie in all banks. Where the instruction is missing, the same text is multiplied by mma.sync.
"""

PRELUDE = """\
// As channels_last; blocks that write into the same lines of memory begin beside one another.
template <int CHANNELS>
__global__ void __launch_bounds__(kThreads) channels_together(const float* __restrict__ from, float* __restrict__ to, int64_t batches, int64_t places) {
    constexpr int kEights = CHANNELS / 8;
    const int64_t place = static_cast<int64_t>(blockIdx.x / kEights) * kThreads + threadIdx.x, channel = blockIdx.x % kEights * 8;
    turn_eight<CHANNELS>(from, to, batches, places, place, channel);
}

// A side whose lines a warp group's instruction reads.
template <int SIDE>
struct Lines : Side<SIDE, 16, true, true> {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    __device__ __forceinline__ static int at(int place, int step) { return place * 16 + (step / 4 ^ place / 2 % 4) * 4 + step % 4; }
#endif
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// Lines of 64 bytes in the swizzle of 64 bytes, 512 bytes from eight lines to the next eight.
__device__ __forceinline__ uint64_t lines_at(uint32_t address) {
    return uint64_t((address & 0x3ffff) >> 4) | uint64_t(1) << 16 | uint64_t(512 >> 4) << 32 | uint64_t(2) << 62;
}

// A warp group's 64 x 128 sums += 64 lines of the left times 128 lines of the right, eight steps of each.
__device__ __forceinline__ void multiply_lines(float (&d)[64], uint64_t left, uint64_t right) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, 1, 1, 1;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "l"(left), "l"(right));
}
#endif

// Of the tile, a warp group has the rows or the columns from here on: 128 x 128 is halved across, 64 x 256 down.
template <int ROWS>
__device__ __forceinline__ int row_of_group() { return ROWS == 128 ? threadIdx.x / 128 * 64 : 0; }
template <int ROWS>
__device__ __forceinline__ int column_of_group() { return ROWS == 128 ? 0 : threadIdx.x / 128 * 128; }

// sums += the product over the whole depth, as multiply_tiles does.
template <int ROWS, int COLUMNS, typename Index, typename Fetch>
__device__ __forceinline__ void multiply_groups(float (&sums)[ROWS / 32][COLUMNS / 32][4], float* ring, Index depth, Fetch fetch) {
    using Left = Lines<ROWS>;
    using Right = Lines<COLUMNS>;
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    constexpr int kWords = Left::kWords + Right::kWords;
    const Index stages = (depth + 15) / 16;
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        if (stage < stages) {
            fetch(static_cast<Index>(stage) * 16, ring + stage * kWords, ring + stage * kWords + Left::kWords);
        }
        end_group();
    }
    float (&flat)[64] = reinterpret_cast<float (&)[64]>(sums);
    const uint32_t first = static_cast<uint32_t>(__cvta_generic_to_shared(ring));
    const uint32_t left = first + row_of_group<ROWS>() * 64, right = first + Left::kWords * 4 + column_of_group<ROWS>() * 64;
    int here = 0;
    for (Index stage = 0; stage < stages; ++stage) {
        wait_for_groups<STAGES - 2>();
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // what this thread brought is for another unit to read
        __syncthreads();  // this stage is there for all, and nobody reads the one before any more
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        #pragma unroll
        for (int step = 0; step < 2; ++step) {
            const uint32_t at = here * (kWords * 4) + step * 32;
            multiply_lines(flat, lines_at(left + at), lines_at(right + at));
        }
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        const int ahead = here == 0 ? STAGES - 1 : here - 1;
        if (stage + STAGES - 1 < stages) {
            fetch((stage + STAGES - 1) * 16, ring + ahead * kWords, ring + ahead * kWords + Left::kWords);
        }
        end_group();
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        here = here == STAGES - 1 ? 0 : here + 1;
    }
    #pragma unroll
    for (int i = 0; i < 64; ++i) {
        asm volatile("" : "+f"(flat[i])::"memory");  // nobody reads them above this line
    }
    __syncthreads();  // the ring may be used again
#else
    multiply_tiles<ROWS, COLUMNS, false, Left, Right>(sums, ring, depth, fetch);
#endif
}

// As put_strip: a strip is one warp's rows of each warp group here, or two warps' of both.
template <int ROWS, int COLUMNS>
__device__ __forceinline__ void put_groups(float (&sums)[ROWS / 32][COLUMNS / 32][4], float* to, int strip) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    const float (&flat)[64] = reinterpret_cast<float (&)[64]>(sums);
    const int row = row_of_group<ROWS>() + threadIdx.x / 32 % 4 * 16, lane = threadIdx.x % 32;
    if (row % (ROWS / 2) / 16 == strip) {
        #pragma unroll
        for (int i = 0; i < 64; ++i) {
            const int line = row / (ROWS / 2) * 16 + i % 4 / 2 * 8 + lane / 4;
            to[line * (COLUMNS + 8) + column_of_group<ROWS>() + i / 4 * 8 + lane % 4 * 2 + i % 2] = flat[i];
        }
    }
#else
    put_strip<ROWS, COLUMNS>(sums, to, strip);
#endif
}
"""
