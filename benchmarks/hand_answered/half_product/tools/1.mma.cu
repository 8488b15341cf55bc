// Tensor cores by mma.sync: a block of eight warps makes 128 x 128 of c, copies run three stages ahead, no bank is met twice.
#include <cstdint>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#define STAGES 4

// --- any size, any alignment: mma.sync on tiles of 128 x 128, K in steps of 32 through a ring of stages -----------------------

namespace portable {

constexpr int kRows = 128, kColumns = 128, kInner = 32, kThreads = 256;
constexpr int kStageBytes = (kRows + kColumns) * kInner * 2;
constexpr int kBytes = STAGES * kStageBytes;

struct Sizes {
    int rows, columns, inner;
};

__device__ __forceinline__ uint32_t address_of(const void* at) { return uint32_t(__cvta_generic_to_shared(at)); }

// Eight halves of a row-major [height, width] matrix from (row, column) on into shared memory, zeros beyond its edges.
template <bool ALIGNED>
__device__ __forceinline__ void fetch(char* to, const __half* matrix, int row, int column, int height, int width) {
    if constexpr (ALIGNED) {  // width is a multiple of 8, so the eight are all inside or all outside
        const bool inside = row < height && column < width;
        const __half* from = inside ? matrix + int64_t(row) * width + column : matrix;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address_of(to)), "l"(from), "r"(inside ? 16 : 0)
                     : "memory");
    } else {
        __half* each = reinterpret_cast<__half*>(to);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const bool inside = row < height && column + i < width;
            each[i] = inside ? matrix[int64_t(row) * width + column + i] : __float2half(0.0f);
        }
    }
}

// Rows of 64 bytes, two to a line of all banks; rows of 256 bytes.
__device__ __forceinline__ int place_of_a(int row, int piece) { return row * 64 + (piece ^ (row >> 1 & 3)) * 16; }
__device__ __forceinline__ int place_of_b(int row, int piece) { return row * 256 + (piece ^ (row & 7)) * 16; }

template <bool ALIGNED>
__device__ __forceinline__ void fetch_stage(char* stage, const __half* a, const __half* b, Sizes n, int row, int column, int step) {
#pragma unroll
    for (int i = threadIdx.x; i < kRows * 4; i += kThreads)
        fetch<ALIGNED>(stage + place_of_a(i / 4, i % 4), a, row + i / 4, step + i % 4 * 8, n.rows, n.inner);
    char* const stage_b = stage + kRows * kInner * 2;
#pragma unroll
    for (int i = threadIdx.x; i < kInner * 16; i += kThreads)
        fetch<ALIGNED>(stage_b + place_of_b(i / 16, i % 16), b, step + i / 16, column + i % 16 * 8, n.inner, n.columns);
}

__device__ __forceinline__ void load(uint32_t (&to)[4], const char* from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address_of(from)) : "memory");
}
__device__ __forceinline__ void load_transposed(uint32_t (&to)[4], const char* from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address_of(from)) : "memory");
}
__device__ __forceinline__ void multiply(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// A warp's 64 x 32 of the tile: 4 x 4 products of m16n8k16 for each 16 of K.
__device__ __forceinline__ void multiply_stage(float (&sum)[4][4][4], const char* stage, int warp_row, int warp_column) {
    const int lane = threadIdx.x % 32;
    const char* const stage_b = stage + kRows * kInner * 2;
#pragma unroll
    for (int k = 0; k < kInner / 16; ++k) {
        uint32_t a[4][4], b[2][4];
#pragma unroll
        for (int m = 0; m < 4; ++m) load(a[m], stage + place_of_a(warp_row + m * 16 + lane % 16, k * 2 + lane / 16));
#pragma unroll
        for (int n = 0; n < 2; ++n)
            load_transposed(b[n], stage_b + place_of_b(k * 16 + lane % 16, warp_column / 8 + n * 2 + lane / 16));
#pragma unroll
        for (int m = 0; m < 4; ++m)
#pragma unroll
            for (int n = 0; n < 4; ++n) multiply(sum[m][n], a[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
    }
}

template <bool ALIGNED>
__global__ void __launch_bounds__(kThreads, 2)
product(const __half* __restrict__ a, const __half* __restrict__ b, __half* __restrict__ c, Sizes n, int tiles_down) {
    extern __shared__ __align__(128) char stages[];
    // Eight tiles of rows after one another, then the next tile of columns: what runs at a time shares its operands in L2.
    const int tiles_across = (n.columns + kColumns - 1) / kColumns, band = blockIdx.x / (8 * tiles_across);
    const int height = min(8, tiles_down - band * 8), within = blockIdx.x - band * 8 * tiles_across;
    const int row = (band * 8 + within % height) * kRows, column = within / height * kColumns;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warp_row = warp / 4 * 64, warp_column = warp % 4 * 32;
    const int steps = (n.inner + kInner - 1) / kInner;
    for (int s = 0; s < STAGES - 1; ++s) {
        if (s < steps) fetch_stage<ALIGNED>(stages + s * kStageBytes, a, b, n, row, column, s * kInner);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    float sum[4][4][4] = {};
    for (int step = 0; step < steps; ++step) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();  // this stage is there for all, and nobody reads the one before any more
        const int ahead = step + STAGES - 1;
        if (ahead < steps) fetch_stage<ALIGNED>(stages + ahead % STAGES * kStageBytes, a, b, n, row, column, ahead * kInner);
        asm volatile("cp.async.commit_group;" ::: "memory");
        multiply_stage(sum, stages + step % STAGES * kStageBytes, warp_row, warp_column);
    }
#pragma unroll
    for (int m = 0; m < 4; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int at_row = row + warp_row + m * 16 + half * 8 + lane / 4;
            if (at_row >= n.rows) continue;
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const int at = column + warp_column + j * 8 + lane % 4 * 2;
                __half* const to = c + int64_t(at_row) * n.columns + at;
                const __half2 two = __floats2half2_rn(sum[m][j][half * 2], sum[m][j][half * 2 + 1]);
                if constexpr (ALIGNED) {
                    if (at < n.columns) *reinterpret_cast<__half2*>(to) = two;
                } else {
                    if (at < n.columns) to[0] = __low2half(two);
                    if (at + 1 < n.columns) to[1] = __high2half(two);
                }
            }
        }
}

template <bool ALIGNED>
void launch_as(const __half* a, const __half* b, __half* c, Sizes n, cudaStream_t stream) {
    const int down = (n.rows + kRows - 1) / kRows, across = (n.columns + kColumns - 1) / kColumns;
    cudaFuncSetAttribute(product<ALIGNED>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
    product<ALIGNED><<<down * across, kThreads, kBytes, stream>>>(a, b, c, n, down);
}

void launch(const __half* a, const __half* b, __half* c, Sizes n, bool aligned, cudaStream_t stream) {
    if (aligned) launch_as<true>(a, b, c, n, stream);
    else launch_as<false>(a, b, c, n, stream);
}

}  // namespace portable

// Whether rows begin at multiples of 16 bytes, which copies of 16 bytes and TMA need.
static bool in_sixteens(const void* a, const void* b, const void* c, int64_t columns, int64_t inner) {
    return (uintptr_t(a) | uintptr_t(b) | uintptr_t(c)) % 16 == 0 && columns % 8 == 0 && inner % 8 == 0;
}

extern "C" void half_product_float16(
    const __half* a, const __half* b, __half* c, int64_t rows, int64_t columns, int64_t inner, cudaStream_t stream) {
    const portable::Sizes n{int(rows), int(columns), int(inner)};
    portable::launch(a, b, c, n, in_sixteens(a, b, c, columns, inner), stream);
}
