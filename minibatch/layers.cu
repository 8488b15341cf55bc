// What a GraphSAGE layer does beside its product, bfloat16 rows in packs of up to 16 bytes: own rows and neighbours' means side
// by side, so that a layer is one product; and the backward pass as a gather along the transposed sample, without atomics on rows.
//
// A hidden row is kept as the product left it. ReLU and dropout are applied wherever it is read, backward too: they cost no
// pass over memory, and no mask is kept. Which elements are dropped is a hash of the step's key, the row and the column.
#include <cuda_bf16.h>
#include <stdint.h>

namespace {

constexpr int THREADS = 128;
constexpr int IN_FLIGHT = 5;
constexpr int LISTED = 2;  // of a source's list in flight: most sources are one row's neighbour

__device__ inline uint64_t mix(uint64_t x) {  // the finaliser of splitmix64
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

__device__ inline uint32_t scramble(uint32_t x) {
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ (x >> 16);
}

// A layer's dropout: element (row, column) is dropped where its byte is below `drop`; one word has the bytes of four columns.
struct Dropout {
    uint64_t key;
    uint32_t drop;  // of 256; 0: none
    uint32_t words;  // a row

    __device__ Dropout(const int64_t* step_key, int64_t layer, int drop, int width)
        : key(drop ? mix(static_cast<uint64_t>(*step_key) + 0x9e3779b97f4a7c15ull * static_cast<uint64_t>(layer)) : 0),
          drop(static_cast<uint32_t>(drop)), words(static_cast<uint32_t>(width + 3) / 4) {}

    __device__ uint32_t word(uint32_t row, uint32_t column) const {
        const uint32_t index = row * words + column / 4;
        return scramble(scramble(index ^ static_cast<uint32_t>(key)) + static_cast<uint32_t>(key >> 32));
    }

    __device__ float scale() const { return 256.0f / static_cast<float>(256 - drop); }
};

template <int PACK>
struct alignas(2 * PACK) Pack {
    __nv_bfloat16 values[PACK];
};

// Adds weight times the pack's elements to sum; HIDDEN: of what ReLU and dropout leave, without dropout's scale.
template <int PACK, bool HIDDEN>
__device__ inline void add(float (&sum)[PACK], const Pack<PACK>& held, const Dropout& dropout, uint32_t row, uint32_t column) {
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < PACK; ++i) {
        const float value = __bfloat162float(held.values[i]);
        if (HIDDEN) {
            bool kept = value > 0.0f;
            if (dropout.drop) {
                if (i % 4 == 0) {
                    word = dropout.word(row, column + i);
                }
                kept = kept && (word >> (8 * ((column + i) % 4)) & 255u) >= dropout.drop;
            }
            sum[i] += kept ? value : 0.0f;
        } else {
            sum[i] += value;
        }
    }
}

template <int PACK>
__device__ inline Pack<PACK> scaled(const float (&sum)[PACK], float factor) {
    Pack<PACK> made;
#pragma unroll
    for (int i = 0; i < PACK; ++i) {
        made.values[i] = __float2bfloat16(sum[i] * factor);
    }
    return made;
}

// out [rows, 2 width]: table[own[row]] (table[row] where own is null, zeros where own[row] is -1), then the mean of
// table[ids[row]] over ids that are not -1. A thread has one pack of columns of one row.
template <int PACK, bool HIDDEN>
__global__ void __launch_bounds__(THREADS) self_and_mean(
    const Pack<PACK>* __restrict__ table, const int32_t* __restrict__ own, const int32_t* __restrict__ ids,
    Pack<PACK>* __restrict__ out, int64_t total, int fanout, int packs, const int64_t* __restrict__ key, int64_t layer,
    int drop) {
    const int64_t at = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (at >= total) {
        return;
    }
    const int64_t row = at / packs;
    const int column = static_cast<int>(at - row * packs);
    const Dropout dropout(key, layer, HIDDEN ? drop : 0, packs * PACK);
    const int64_t mine = own == nullptr ? row : own[row];
    Pack<PACK> self{};
    if (mine >= 0) {
        self = table[mine * packs + column];
    }
    const int32_t* named = ids + row * fanout;
    float sum[PACK] = {};
    int count = 0;
    for (int begin = 0; begin < fanout; begin += IN_FLIGHT) {
        int32_t id[IN_FLIGHT];
        Pack<PACK> held[IN_FLIGHT];
#pragma unroll
        for (int j = 0; j < IN_FLIGHT; ++j) {
            id[j] = begin + j < fanout ? named[begin + j] : -1;
            if (id[j] >= 0) {
                held[j] = table[static_cast<int64_t>(id[j]) * packs + column];
            }
        }
#pragma unroll
        for (int j = 0; j < IN_FLIGHT; ++j) {
            if (id[j] >= 0) {
                ++count;
                add<PACK, HIDDEN>(sum, held[j], dropout, static_cast<uint32_t>(id[j]), static_cast<uint32_t>(column * PACK));
            }
        }
    }
    const float scale = HIDDEN ? dropout.scale() : 1.0f;
    float alone[PACK] = {};
    add<PACK, HIDDEN>(alone, self, dropout, static_cast<uint32_t>(mine), static_cast<uint32_t>(column * PACK));
    out[row * 2 * packs + column] = scaled<PACK>(alone, scale);
    out[row * 2 * packs + packs + column] = scaled<PACK>(sum, scale / static_cast<float>(count > 0 ? count : 1));
}

// out [sources, width]: what ReLU and dropout let through of the gradient of each hidden row: grad[row, :width] of the row itself
// where it is among the first `rows`, and grad[r, width:] / (r's number of neighbours) of each row r that has it as neighbour:
// entries[offsets[row]] to entries[offsets[row + 1]].
template <int PACK>
__global__ void __launch_bounds__(THREADS, 8) gather_gradient(
    const Pack<PACK>* __restrict__ grad, const float* __restrict__ inverse, const int32_t* __restrict__ offsets,
    const int32_t* __restrict__ entries, const Pack<PACK>* __restrict__ hidden, Pack<PACK>* __restrict__ out, int64_t total,
    int64_t rows, int packs, const int64_t* __restrict__ key, int64_t layer, int drop) {
    const int64_t at = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (at >= total) {
        return;
    }
    const int64_t row = at / packs;
    const int column = static_cast<int>(at - row * packs);
    const Dropout dropout(key, layer, drop, packs * PACK);
    const int end = offsets[row + 1];
    int begin = offsets[row];
    const Pack<PACK> held = hidden[at];
    float sum[PACK] = {};
    if (row < rows) {
        add<PACK, false>(sum, grad[row * 2 * packs + column], dropout, 0, 0);
    }
    for (; begin < end; begin += LISTED) {
        float weight[LISTED];
        Pack<PACK> shared[LISTED];
#pragma unroll
        for (int j = 0; j < LISTED; ++j) {
            weight[j] = 0.0f;
            if (begin + j < end) {
                const int64_t from = entries[begin + j];
                weight[j] = inverse[from];
                shared[j] = grad[(from * 2 + 1) * packs + column];
            }
        }
#pragma unroll
        for (int j = 0; j < LISTED; ++j) {
            if (begin + j < end) {
#pragma unroll
                for (int i = 0; i < PACK; ++i) {
                    sum[i] += weight[j] * __bfloat162float(shared[j].values[i]);
                }
            }
        }
    }
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < PACK; ++i) {
        const uint32_t place = static_cast<uint32_t>(column * PACK + i);
        bool kept = __bfloat162float(held.values[i]) > 0.0f;
        if (dropout.drop) {
            if (i % 4 == 0) {
                word = dropout.word(static_cast<uint32_t>(row), place);
            }
            kept = kept && (word >> (8 * (place % 4)) & 255u) >= dropout.drop;
        }
        sum[i] = kept ? sum[i] : 0.0f;
    }
    out[at] = scaled<PACK>(sum, dropout.scale());
}

// counts [sources], zeroed before: how many rows have each source as neighbour; inverse [rows]: one over a row's neighbours.
__global__ void count_entries(
    const int32_t* __restrict__ local, int32_t* counts, float* __restrict__ inverse, int64_t total, int fanout) {
    const int64_t at = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (at >= total) {
        return;
    }
    if (local[at] >= 0) {
        atomicAdd(counts + local[at], 1);
    }
    if (at % fanout == 0) {
        int found = 0;
        for (int j = 0; j < fanout; ++j) {
            found += local[at + j] >= 0;
        }
        inverse[at / fanout] = 1.0f / static_cast<float>(found > 0 ? found : 1);
    }
}

// entries: the rows that have a source as neighbour, from offsets[source] on; counts fall to zero.
__global__ void fill_entries(
    const int32_t* __restrict__ local, int32_t* counts, const int32_t* __restrict__ offsets, int32_t* __restrict__ entries,
    int64_t total, int fanout) {
    const int64_t at = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (at < total && local[at] >= 0) {
        const int32_t before = atomicAdd(counts + local[at], -1) - 1;
        entries[offsets[local[at]] + before] = static_cast<int32_t>(at / fanout);
    }
}

// edges: those of ids that are not -1 are added.
__global__ void count_picked(const int32_t* __restrict__ ids, unsigned long long* edges, int64_t total) {
    int found = 0;
    for (int64_t at = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; at < total; at += static_cast<int64_t>(gridDim.x) * THREADS) {
        found += ids[at] >= 0;
    }
#pragma unroll
    for (int lane = 16; lane; lane >>= 1) {
        found += __shfl_xor_sync(0xffffffffu, found, lane);
    }
    if (threadIdx.x % 32 == 0 && found) {
        atomicAdd(edges, static_cast<unsigned long long>(found));
    }
}

unsigned blocks(int64_t total) { return static_cast<unsigned>((total + THREADS - 1) / THREADS); }

template <int PACK>
void launch_self_and_mean(
    const void* table, const int32_t* own, const int32_t* ids, void* out, int64_t rows, int64_t fanout, int64_t width,
    bool hidden, const int64_t* key, int64_t layer, int64_t drop, cudaStream_t stream) {
    const int packs = static_cast<int>(width / PACK);
    const int64_t total = rows * packs;
    const Pack<PACK>* from = static_cast<const Pack<PACK>*>(table);
    Pack<PACK>* to = static_cast<Pack<PACK>*>(out);
    if (hidden) {
        self_and_mean<PACK, true><<<blocks(total), THREADS, 0, stream>>>(
            from, own, ids, to, total, static_cast<int>(fanout), packs, key, layer, static_cast<int>(drop));
    } else {
        self_and_mean<PACK, false><<<blocks(total), THREADS, 0, stream>>>(
            from, own, ids, to, total, static_cast<int>(fanout), packs, key, layer, 0);
    }
}

template <int PACK>
void launch_gather_gradient(
    const void* grad, const float* inverse, const int32_t* offsets, const int32_t* entries, const void* hidden, void* out,
    int64_t sources, int64_t rows, int64_t width, const int64_t* key, int64_t layer, int64_t drop, cudaStream_t stream) {
    const int packs = static_cast<int>(width / PACK);
    const int64_t total = sources * packs;
    gather_gradient<PACK><<<blocks(total), THREADS, 0, stream>>>(
        static_cast<const Pack<PACK>*>(grad), inverse, offsets, entries, static_cast<const Pack<PACK>*>(hidden),
        static_cast<Pack<PACK>*>(out), total, rows, packs, key, layer, static_cast<int>(drop));
}

}  // namespace

// Rows begin on 16 bytes where 8 divides the width, on 8 where 4 does: tables and outputs come from an allocator.
extern "C" void layers_self_and_mean(
    const void* table, const int32_t* own, const int32_t* ids, void* out, int64_t rows, int64_t fanout, int64_t width,
    int64_t hidden, const int64_t* key, int64_t layer, int64_t drop, cudaStream_t stream) {
    const auto launch = width % 8 == 0 ? launch_self_and_mean<8> : width % 4 == 0 ? launch_self_and_mean<4> : launch_self_and_mean<1>;
    if (rows > 0) {
        launch(table, own, ids, out, rows, fanout, width, hidden != 0, key, layer, drop, stream);
    }
}

extern "C" void layers_gather_gradient(
    const void* grad, const float* inverse, const int32_t* offsets, const int32_t* entries, const void* hidden, void* out,
    int64_t sources, int64_t rows, int64_t width, const int64_t* key, int64_t layer, int64_t drop, cudaStream_t stream) {
    const auto launch =
        width % 8 == 0 ? launch_gather_gradient<8> : width % 4 == 0 ? launch_gather_gradient<4> : launch_gather_gradient<1>;
    launch(grad, inverse, offsets, entries, hidden, out, sources, rows, width, key, layer, drop, stream);
}

extern "C" void layers_count_entries(
    const int32_t* local, int32_t* counts, float* inverse, int64_t rows, int64_t fanout, int64_t sources, cudaStream_t stream) {
    cudaMemsetAsync(counts, 0, static_cast<size_t>(sources) * sizeof(int32_t), stream);
    count_entries<<<blocks(rows * fanout), THREADS, 0, stream>>>(local, counts, inverse, rows * fanout, static_cast<int>(fanout));
}

extern "C" void layers_fill_entries(
    const int32_t* local, int32_t* counts, const int32_t* offsets, int32_t* entries, int64_t rows, int64_t fanout,
    cudaStream_t stream) {
    fill_entries<<<blocks(rows * fanout), THREADS, 0, stream>>>(
        local, counts, offsets, entries, rows * fanout, static_cast<int>(fanout));
}

extern "C" void layers_count_picked(const int32_t* ids, unsigned long long* edges, int64_t total, cudaStream_t stream) {
    count_picked<<<total < 64 * THREADS ? 1 : 64, THREADS, 0, stream>>>(ids, edges, total);
}
