// WRONG: the row of no id is row 0, not zeros.
// Rows of a table by id, in the manner of library gathers: the widest pack that divides a row and its address, a group of
// threads a row, four packs of different rows in flight a thread. The row of no id (-1) is zeros.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

constexpr int THREADS = 256;
constexpr int IN_FLIGHT = 4;

template <typename P>
__global__ void __launch_bounds__(THREADS) gather_packs(
    const P* __restrict__ table, const int32_t* __restrict__ ids, P* __restrict__ out, int64_t total, int packs) {
    const int64_t stride = static_cast<int64_t>(gridDim.x) * THREADS;
    int64_t at = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    for (; at < total; at += IN_FLIGHT * stride) {
        P held[IN_FLIGHT];
#pragma unroll
        for (int i = 0; i < IN_FLIGHT; ++i) {
            const int64_t place = at + i * stride;
            held[i] = P{};
            if (place < total) {
                const int64_t row = place / packs;
                const int64_t id = ids[row];
                {
                    held[i] = table[(id < 0 ? 0 : id) * packs + (place - row * packs)];
                }
            }
        }
#pragma unroll
        for (int i = 0; i < IN_FLIGHT; ++i) {
            const int64_t place = at + i * stride;
            if (place < total) {
                out[place] = held[i];
            }
        }
    }
}

template <typename P>
static void launch(const void* table, const int32_t* ids, void* out, int64_t rows, int64_t row_bytes, cudaStream_t stream) {
    const int packs = static_cast<int>(row_bytes / static_cast<int64_t>(sizeof(P)));
    const int64_t total = rows * packs;
    const int64_t wanted = (total + THREADS * IN_FLIGHT - 1) / (THREADS * IN_FLIGHT);
    gather_packs<P><<<static_cast<unsigned>(wanted), THREADS, 0, stream>>>(
        static_cast<const P*>(table), ids, static_cast<P*>(out), total, packs);
}

static void gather(const void* table, const int32_t* ids, void* out, int64_t rows, int64_t row_bytes, cudaStream_t stream) {
    const uint64_t alignment = reinterpret_cast<uint64_t>(table) | reinterpret_cast<uint64_t>(out) |
                               static_cast<uint64_t>(row_bytes);
    if (alignment % 16 == 0) {
        launch<uint4>(table, ids, out, rows, row_bytes, stream);
    } else if (alignment % 8 == 0) {
        launch<uint2>(table, ids, out, rows, row_bytes, stream);
    } else if (alignment % 4 == 0) {
        launch<uint32_t>(table, ids, out, rows, row_bytes, stream);
    } else {
        launch<uint16_t>(table, ids, out, rows, row_bytes, stream);
    }
}

extern "C" void gather_rows_by_id_float16(
    const __half* table, const int32_t* ids, __half* out, int64_t nodes, int64_t rows, int64_t width, cudaStream_t stream) {
    (void)nodes;
    gather(table, ids, out, rows, 2 * width, stream);
}

extern "C" void gather_rows_by_id_bfloat16(
    const __nv_bfloat16* table, const int32_t* ids, __nv_bfloat16* out, int64_t nodes, int64_t rows, int64_t width, cudaStream_t stream) {
    (void)nodes;
    gather(table, ids, out, rows, 2 * width, stream);
}

extern "C" void gather_rows_by_id_float32(
    const float* table, const int32_t* ids, float* out, int64_t nodes, int64_t rows, int64_t width, cudaStream_t stream) {
    (void)nodes;
    gather(table, ids, out, rows, 4 * width, stream);
}
