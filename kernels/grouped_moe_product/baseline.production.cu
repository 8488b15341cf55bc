// A product with the weights of each row's expert on tensor cores: a block up to 64 rows of one expert and 128 columns, eight warps. There are
// as many blocks as the worst split of the rows needs; each finds its expert, and those left over end at once.
#include <cuda_bf16.h>
#include <stdint.h>

constexpr int THREADS = 256;
constexpr int COLUMNS = 128;
constexpr int STEP = 64;          // of the depth
constexpr int STRIDE = STEP + 8;  // elements from row to row: 8 rows of 4 words touch all 32 banks
constexpr int LANES = 8;
constexpr int CHUNKS = STEP / LANES;

struct alignas(2 * LANES) Pack {
    __nv_bfloat16 lane[LANES];
};

template <bool WIDE>
__device__ __forceinline__ Pack load(const __nv_bfloat16* from, bool inside) {
    Pack pack;
    if (inside && WIDE) {
        pack = *reinterpret_cast<const Pack*>(from);
    } else {
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            pack.lane[lane] = inside ? from[lane] : __nv_bfloat16(0.0f);
        }
    }
    return pack;
}

__device__ __forceinline__ uint32_t two(const __nv_bfloat16* at) { return *reinterpret_cast<const uint32_t*>(at); }

template <int PIECES, bool WIDE>  // PIECES: of 16 rows, for each warp
__global__ void __launch_bounds__(THREADS) multiply(
    const __nv_bfloat16* __restrict__ x, const int32_t* __restrict__ offsets, const __nv_bfloat16* __restrict__ weights,
    __nv_bfloat16* __restrict__ out, int experts, int64_t n, int64_t k) {
    constexpr int ROWS = 32 * PIECES;
    constexpr int LEFT = ROWS * CHUNKS / THREADS;
    constexpr int RIGHT = COLUMNS * CHUNKS / THREADS;
    __shared__ __nv_bfloat16 left[ROWS][STRIDE];
    __shared__ __nv_bfloat16 right[COLUMNS][STRIDE];
    int tile = blockIdx.y;
    int expert = 0;
    int end = 0;
    for (; expert < experts; ++expert) {
        const int first = offsets[expert];
        end = offsets[expert + 1];
        const int tiles = (end - first + ROWS - 1) / ROWS;
        if (tile < tiles) {
            tile = first + tile * ROWS;
            break;
        }
        tile -= tiles;
    }
    if (expert == experts) {
        return;
    }
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int row = warp / 4 * 16 * PIECES + lane / 4;
    const int column = warp % 4 * 32 + lane / 4;
    const int deep = lane % 4 * 2;
    const int64_t begin = static_cast<int64_t>(blockIdx.x) * COLUMNS;
    const __nv_bfloat16* of_expert = weights + static_cast<int64_t>(expert) * n * k;

    Pack held_left[LEFT];
    Pack held_right[RIGHT];
    const auto fetch = [&](int64_t first) {
#pragma unroll
        for (int i = 0; i < LEFT; ++i) {
            const int chunk = i * THREADS + threadIdx.x;
            const int64_t at = tile + chunk / CHUNKS;
            held_left[i] = load<WIDE>(x + at * k + first + chunk % CHUNKS * LANES, at < end);
        }
#pragma unroll
        for (int i = 0; i < RIGHT; ++i) {
            const int chunk = i * THREADS + threadIdx.x;
            const int64_t at = begin + chunk / CHUNKS;
            held_right[i] = load<WIDE>(of_expert + at * k + first + chunk % CHUNKS * LANES, at < n);
        }
    };

    float sum[PIECES][4][4] = {};
    fetch(0);
    for (int64_t first = 0; first < k; first += STEP) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < LEFT; ++i) {
            const int chunk = i * THREADS + threadIdx.x;
            *reinterpret_cast<Pack*>(&left[chunk / CHUNKS][chunk % CHUNKS * LANES]) = held_left[i];
        }
#pragma unroll
        for (int i = 0; i < RIGHT; ++i) {
            const int chunk = i * THREADS + threadIdx.x;
            *reinterpret_cast<Pack*>(&right[chunk / CHUNKS][chunk % CHUNKS * LANES]) = held_right[i];
        }
        __syncthreads();
        if (first + STEP < k) {
            fetch(first + STEP);
        }
#pragma unroll
        for (int step = 0; step < STEP; step += 16) {
            uint32_t of_left[PIECES][4];
#pragma unroll
            for (int p = 0; p < PIECES; ++p) {
                of_left[p][0] = two(&left[row + 16 * p][step + deep]);
                of_left[p][1] = two(&left[row + 16 * p + 8][step + deep]);
                of_left[p][2] = two(&left[row + 16 * p][step + deep + 8]);
                of_left[p][3] = two(&left[row + 16 * p + 8][step + deep + 8]);
            }
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                const uint32_t b0 = two(&right[column + 8 * c][step + deep]);
                const uint32_t b1 = two(&right[column + 8 * c][step + deep + 8]);
#pragma unroll
                for (int p = 0; p < PIECES; ++p) {
                    asm volatile(
                        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                        "{%0, %1, %2, %3};"
                        : "+f"(sum[p][c][0]), "+f"(sum[p][c][1]), "+f"(sum[p][c][2]), "+f"(sum[p][c][3])
                        : "r"(of_left[p][0]), "r"(of_left[p][1]), "r"(of_left[p][2]), "r"(of_left[p][3]), "r"(b0), "r"(b1));
                }
            }
        }
    }
#pragma unroll
    for (int p = 0; p < PIECES; ++p) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int64_t at = tile + row + 16 * p + i / 2 * 8;
                const int64_t to = begin + warp % 4 * 32 + 8 * c + deep + i % 2;
                if (at < end && to < n) {
                    out[at * n + to] = __nv_bfloat16(sum[p][c][i]);
                }
            }
        }
    }
}

template <int PIECES>
static void launch(
    const __nv_bfloat16* x, const int32_t* offsets, const __nv_bfloat16* weights, __nv_bfloat16* out, int64_t rows,
    int64_t experts, int64_t n, int64_t k, cudaStream_t stream) {
    constexpr int ROWS = 32 * PIECES;
    const int64_t most = rows / ROWS + (experts < rows ? experts : rows);
    const dim3 grid(static_cast<unsigned>((n + COLUMNS - 1) / COLUMNS), static_cast<unsigned>(most));
    const int all = static_cast<int>(experts);
    if ((reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(weights)) % 16 == 0) {
        multiply<PIECES, true><<<grid, THREADS, 0, stream>>>(x, offsets, weights, out, all, n, k);
    } else {
        multiply<PIECES, false><<<grid, THREADS, 0, stream>>>(x, offsets, weights, out, all, n, k);
    }
}

extern "C" void grouped_moe_product_bfloat16(
    const __nv_bfloat16* x, const int32_t* offsets, const __nv_bfloat16* weights, __nv_bfloat16* out, int64_t rows,
    int64_t experts, int64_t n, int64_t k, cudaStream_t stream) {
    if (rows > 16 * experts) {
        launch<2>(x, offsets, weights, out, rows, experts, n, k, stream);
    } else {
        launch<1>(x, offsets, weights, out, rows, experts, n, k, stream);
    }
}
