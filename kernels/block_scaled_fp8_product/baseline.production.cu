// A product of fp8 operands with scales for blocks on tensor cores: 128 columns and 128 or 32 rows a block, eight warps. Operands become
// float16, which holds every fp8 number, so products are exact; the sum of each 128 is scaled and added in float32.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <stdint.h>

constexpr int THREADS = 256;
constexpr int COLUMNS = 128;
constexpr int STEP = 64;           // of the depth, twice a group of scales
constexpr int STRIDE = STEP + 8;   // halves from row to row: 8 rows of 4 words touch all 32 banks
constexpr int LANES = 16;

struct alignas(LANES) Codes {
    __nv_fp8_e4m3 code[LANES];
};

template <bool WIDE>
__device__ __forceinline__ Codes load(const __nv_fp8_e4m3* from, bool inside) {
    Codes codes;
    if (inside && WIDE) {
        codes = *reinterpret_cast<const Codes*>(from);
    } else {
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            codes.code[lane] = inside ? from[lane] : __nv_fp8_e4m3(0.0f);
        }
    }
    return codes;
}

__device__ __forceinline__ void store(__half* to, const Codes& codes) {
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane) {
        to[lane] = __half(static_cast<float>(codes.code[lane]));
    }
}

__device__ __forceinline__ uint32_t two(const __half* at) { return *reinterpret_cast<const uint32_t*>(at); }

template <int PIECES, bool WIDE>  // PIECES: of 16 rows, for each warp
__global__ void __launch_bounds__(THREADS) multiply(
    const __nv_fp8_e4m3* __restrict__ a, const float* __restrict__ a_scales, const __nv_fp8_e4m3* __restrict__ b,
    const float* __restrict__ b_scales, __nv_bfloat16* __restrict__ out, int64_t m, int64_t n, int64_t groups) {
    constexpr int ROWS = 32 * PIECES;
    constexpr int CHUNKS = STEP / LANES;
    constexpr int LEFT = (ROWS * CHUNKS + THREADS - 1) / THREADS;
    constexpr int RIGHT = COLUMNS * CHUNKS / THREADS;
    __shared__ __half left[ROWS][STRIDE];
    __shared__ __half right[COLUMNS][STRIDE];
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int row = warp / 4 * 16 * PIECES + lane / 4;
    const int column = warp % 4 * 32 + lane / 4;
    const int deep = lane % 4 * 2;
    const int64_t top = static_cast<int64_t>(blockIdx.y) * ROWS;
    const int64_t begin = static_cast<int64_t>(blockIdx.x) * COLUMNS;
    const int64_t k = groups * 128;

    Codes held_left[LEFT];
    Codes held_right[RIGHT];
    const auto fetch = [&](int64_t first) {
#pragma unroll
        for (int i = 0; i < LEFT; ++i) {
            const int chunk = i * THREADS + threadIdx.x;
            const int64_t at = top + chunk / CHUNKS;
            held_left[i] = load<WIDE>(a + at * k + first + chunk % CHUNKS * LANES, chunk < ROWS * CHUNKS && at < m);
        }
#pragma unroll
        for (int i = 0; i < RIGHT; ++i) {
            const int chunk = i * THREADS + threadIdx.x;
            const int64_t at = begin + chunk / CHUNKS;
            held_right[i] = load<WIDE>(b + at * k + first + chunk % CHUNKS * LANES, at < n);
        }
    };

    float sum[PIECES][4][4] = {};
    float part[PIECES][4][4] = {};
    fetch(0);
    for (int64_t first = 0; first < k; first += STEP) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < LEFT; ++i) {
            const int chunk = i * THREADS + threadIdx.x;
            if (chunk < ROWS * CHUNKS) {
                store(&left[chunk / CHUNKS][chunk % CHUNKS * LANES], held_left[i]);
            }
        }
#pragma unroll
        for (int i = 0; i < RIGHT; ++i) {
            const int chunk = i * THREADS + threadIdx.x;
            store(&right[chunk / CHUNKS][chunk % CHUNKS * LANES], held_right[i]);
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
                        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                        "{%0, %1, %2, %3};"
                        : "+f"(part[p][c][0]), "+f"(part[p][c][1]), "+f"(part[p][c][2]), "+f"(part[p][c][3])
                        : "r"(of_left[p][0]), "r"(of_left[p][1]), "r"(of_left[p][2]), "r"(of_left[p][3]), "r"(b0), "r"(b1));
                }
            }
        }
        if (first / STEP % 2 == 1) {  // the group is whole
            const int64_t group = first / 128;
            const float of_block = b_scales[blockIdx.x * groups + group];
#pragma unroll
            for (int p = 0; p < PIECES; ++p) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int64_t at = top + row + 16 * p + 8 * half;
                    const float scale = at < m ? a_scales[at * groups + group] * of_block : 0.0f;
#pragma unroll
                    for (int c = 0; c < 4; ++c) {
#pragma unroll
                        for (int i = 0; i < 2; ++i) {
                            sum[p][c][2 * half + i] += part[p][c][2 * half + i] * scale;
                            part[p][c][2 * half + i] = 0.0f;
                        }
                    }
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
                const int64_t at = top + row + 16 * p + i / 2 * 8;
                const int64_t to = begin + warp % 4 * 32 + 8 * c + deep + i % 2;
                if (at < m && to < n) {
                    out[at * n + to] = __nv_bfloat16(sum[p][c][i]);
                }
            }
        }
    }
}

template <int PIECES>
static void launch(
    const __nv_fp8_e4m3* a, const float* a_scales, const __nv_fp8_e4m3* b, const float* b_scales, __nv_bfloat16* out,
    int64_t m, int64_t n, int64_t groups, cudaStream_t stream) {
    constexpr int ROWS = 32 * PIECES;
    const dim3 grid(static_cast<unsigned>((n + COLUMNS - 1) / COLUMNS), static_cast<unsigned>((m + ROWS - 1) / ROWS));
    if ((reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(b)) % 16 == 0) {
        multiply<PIECES, true><<<grid, THREADS, 0, stream>>>(a, a_scales, b, b_scales, out, m, n, groups);
    } else {
        multiply<PIECES, false><<<grid, THREADS, 0, stream>>>(a, a_scales, b, b_scales, out, m, n, groups);
    }
}

extern "C" void block_scaled_fp8_product_bfloat16(
    const __nv_fp8_e4m3* a, const float* a_scales, const __nv_fp8_e4m3* b, const float* b_scales, __nv_bfloat16* out,
    int64_t m, int64_t n, int64_t groups, cudaStream_t stream) {
    if (m > 32) {
        launch<4>(a, a_scales, b, b_scales, out, m, n, groups, stream);
    } else {
        launch<1>(a, a_scales, b, b_scales, out, m, n, groups, stream);
    }
}
