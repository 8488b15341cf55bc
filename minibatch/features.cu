// Rows of a table in host memory, some of which are held on the device too, in one pass: each comes from where it is.
//
// Few blocks with several loads in flight each: the bus is full with these, and the rest of the GPU stays free for what runs beside.
#include <stdint.h>

namespace {

constexpr int THREADS = 256;
constexpr int BLOCKS = 64;
constexpr int IN_FLIGHT = 4;

// read: how many rows were read, and how many of them from host memory, are added. A row has `packs` packs.
template <typename Pack>
__global__ void __launch_bounds__(THREADS) gather_tiered(
    const Pack* __restrict__ table, const Pack* __restrict__ cache, const int32_t* __restrict__ place,
    const int32_t* __restrict__ ids, Pack* __restrict__ out, unsigned long long* read, int64_t total, int packs) {
    const int64_t stride = static_cast<int64_t>(gridDim.x) * THREADS;
    int seen = 0;
    int missed = 0;
    for (int64_t first = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; first < total; first += stride * IN_FLIGHT) {
        Pack held[IN_FLIGHT];
#pragma unroll
        for (int j = 0; j < IN_FLIGHT; ++j) {
            const int64_t at = first + j * stride;
            held[j] = Pack{};
            if (at < total) {
                const int64_t row = at / packs;
                const int64_t column = at - row * packs;
                const int64_t id = ids[row];
                if (id >= 0) {
                    const int64_t here = place[id];
                    held[j] = here >= 0 ? cache[here * packs + column] : table[id * packs + column];
                    seen += column == 0;
                    missed += column == 0 && here < 0;
                }
            }
        }
#pragma unroll
        for (int j = 0; j < IN_FLIGHT; ++j) {
            const int64_t at = first + j * stride;
            if (at < total) {
                out[at] = held[j];
            }
        }
    }
#pragma unroll
    for (int lane = 16; lane; lane >>= 1) {
        seen += __shfl_xor_sync(0xffffffffu, seen, lane);
        missed += __shfl_xor_sync(0xffffffffu, missed, lane);
    }
    if (threadIdx.x % 32 == 0 && seen) {
        atomicAdd(read, static_cast<unsigned long long>(seen));
        atomicAdd(read + 1, static_cast<unsigned long long>(missed));
    }
}

template <typename Pack>
void launch(
    const void* table, const void* cache, const int32_t* place, const int32_t* ids, void* out, unsigned long long* read, int64_t rows,
    int64_t row_bytes, cudaStream_t stream) {
    const int64_t packs = row_bytes / static_cast<int64_t>(sizeof(Pack));
    const int64_t needed = (rows * packs + THREADS - 1) / THREADS;
    gather_tiered<Pack><<<static_cast<unsigned>(needed < BLOCKS ? needed : BLOCKS), THREADS, 0, stream>>>(
        static_cast<const Pack*>(table), static_cast<const Pack*>(cache), place, ids, static_cast<Pack*>(out), read, rows * packs,
        static_cast<int>(packs));
}

}  // namespace

// table and cache begin on 16 bytes, out too: they come from allocators.
extern "C" void features_gather_tiered(
    const void* table, const void* cache, const int32_t* place, const int32_t* ids, void* out, unsigned long long* read, int64_t rows,
    int64_t row_bytes, cudaStream_t stream) {
    if (rows > 0 && row_bytes > 0) {
        const auto run = row_bytes % 16 == 0 ? launch<uint4> : row_bytes % 8 == 0 ? launch<uint2> : launch<uint16_t>;
        run(table, cache, place, ids, out, read, rows, row_bytes, stream);
    }
}
