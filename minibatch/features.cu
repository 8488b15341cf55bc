// Rows of a table in host memory, some of which are held on the device too: each comes from where it is.
//
// A row in host memory costs an address translation, which neighbours in memory share: what is missed is fetched in the order of
// ids, by few blocks, so that what they read at once lies close together. The bus is full with these, and the rest of the GPU stays
// free for what runs beside.
#include <stdint.h>

namespace {

constexpr int THREADS = 256;
constexpr int BLOCKS = 32;
constexpr int IN_FLIGHT = 4;
constexpr int32_t NONE = INT32_MAX;

// keys [rows]: ids of rows that are in host memory only, NONE of others. read: how many rows were read, and how many of them from
// host memory, are added.
__global__ void __launch_bounds__(THREADS) find_missed(
    const int32_t* __restrict__ place, const int32_t* __restrict__ ids, int32_t* __restrict__ keys, unsigned long long* read,
    int64_t rows) {
    const int64_t row = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    const int32_t id = row < rows ? ids[row] : -1;
    const bool missed = id >= 0 && place[id] < 0;
    if (row < rows) {
        keys[row] = missed ? id : NONE;
    }
    const int seen = __syncthreads_count(id >= 0);
    const int far = __syncthreads_count(missed);
    if (threadIdx.x == 0 && seen) {
        atomicAdd(read, static_cast<unsigned long long>(seen));
        atomicAdd(read + 1, static_cast<unsigned long long>(far));
    }
}

// out: rows that are held, zeros where an id is -1. A row has `packs` packs.
template <typename Pack>
__global__ void __launch_bounds__(THREADS) gather_held(
    const Pack* __restrict__ cache, const int32_t* __restrict__ place, const int32_t* __restrict__ ids, Pack* __restrict__ out,
    int64_t total, int packs) {
    const int64_t at = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (at >= total) {
        return;
    }
    const int64_t row = at / packs;
    const int32_t id = ids[row];
    const int64_t here = id < 0 ? -1 : place[id];
    if (id < 0 || here >= 0) {
        out[at] = id < 0 ? Pack{} : cache[here * packs + (at - row * packs)];
    }
}

// out: rows of sorted ids, until one is NONE; order: the row of out that each is.
template <typename Pack>
__global__ void __launch_bounds__(THREADS) gather_missed(
    const Pack* __restrict__ table, const int32_t* __restrict__ sorted, const int64_t* __restrict__ order, Pack* __restrict__ out,
    int64_t total, int packs) {
    const int64_t stride = static_cast<int64_t>(gridDim.x) * THREADS;
    for (int64_t first = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; first < total; first += stride * IN_FLIGHT) {
        if (sorted[first / packs] == NONE) {
            return;
        }
        Pack held[IN_FLIGHT];
        int64_t to[IN_FLIGHT];
#pragma unroll
        for (int j = 0; j < IN_FLIGHT; ++j) {
            const int64_t at = first + j * stride;
            const int64_t row = at / packs;
            const int64_t id = at < total ? sorted[row] : NONE;
            to[j] = -1;
            if (id != NONE) {
                held[j] = table[id * packs + (at - row * packs)];
                to[j] = order[row] * packs + (at - row * packs);
            }
        }
#pragma unroll
        for (int j = 0; j < IN_FLIGHT; ++j) {
            if (to[j] >= 0) {
                out[to[j]] = held[j];
            }
        }
    }
}

unsigned blocks(int64_t total) { return static_cast<unsigned>((total + THREADS - 1) / THREADS); }

template <typename Pack>
void launch_held(
    const void* cache, const int32_t* place, const int32_t* ids, void* out, int64_t rows, int64_t row_bytes, cudaStream_t stream) {
    const int64_t packs = row_bytes / static_cast<int64_t>(sizeof(Pack));
    gather_held<Pack><<<blocks(rows * packs), THREADS, 0, stream>>>(
        static_cast<const Pack*>(cache), place, ids, static_cast<Pack*>(out), rows * packs, static_cast<int>(packs));
}

template <typename Pack>
void launch_missed(
    const void* table, const int32_t* sorted, const int64_t* order, void* out, int64_t rows, int64_t row_bytes, cudaStream_t stream) {
    const int64_t packs = row_bytes / static_cast<int64_t>(sizeof(Pack));
    const unsigned needed = blocks(rows * packs);
    gather_missed<Pack><<<needed < BLOCKS ? needed : BLOCKS, THREADS, 0, stream>>>(
        static_cast<const Pack*>(table), sorted, order, static_cast<Pack*>(out), rows * packs, static_cast<int>(packs));
}

}  // namespace

extern "C" void features_find_missed(
    const int32_t* place, const int32_t* ids, int32_t* keys, unsigned long long* read, int64_t rows, cudaStream_t stream) {
    if (rows > 0) {
        find_missed<<<blocks(rows), THREADS, 0, stream>>>(place, ids, keys, read, rows);
    }
}

// Table and cache begin on 16 bytes, out too: they come from allocators.
extern "C" void features_gather_held(
    const void* cache, const int32_t* place, const int32_t* ids, void* out, int64_t rows, int64_t row_bytes, cudaStream_t stream) {
    if (rows > 0 && row_bytes > 0) {
        const auto run = row_bytes % 16 == 0 ? launch_held<uint4> : row_bytes % 8 == 0 ? launch_held<uint2> : launch_held<uint16_t>;
        run(cache, place, ids, out, rows, row_bytes, stream);
    }
}

extern "C" void features_gather_missed(
    const void* table, const int32_t* sorted, const int64_t* order, void* out, int64_t rows, int64_t row_bytes, cudaStream_t stream) {
    if (rows > 0 && row_bytes > 0) {
        const auto run =
            row_bytes % 16 == 0 ? launch_missed<uint4> : row_bytes % 8 == 0 ? launch_missed<uint2> : launch_missed<uint16_t>;
        run(table, sorted, order, out, rows, row_bytes, stream);
    }
}
