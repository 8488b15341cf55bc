// What a GraphSAGE layer does beside its product, bfloat16 rows in packs of up to 16 bytes: own rows and neighbours' means side
// by side, so that a layer is one product; and the backward pass as a gather along the transposed sample, without atomics on rows.
//
// A hidden row is kept as the product left it. ReLU and dropout are applied wherever the forward pass reads it: they cost no pass
// over memory. Which elements are dropped is a hash of the step's key, the row and the column. What they leave is kept as a bit an
// element, so that the backward pass reads a sixteenth of the hidden rows. Loss, its gradient and Adam's step are kernels here too:
// a step's small ones are bound by how long a launch takes.
#include <cuda_bf16.h>
#include <stdint.h>

namespace {

constexpr int THREADS = 128;
constexpr int IN_FLIGHT = 3;  // more takes registers, and an SM holds fewer threads
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

// Adds the pack's elements to sum; HIDDEN: what ReLU and dropout leave of them, without dropout's scale. Returns a bit for each
// that was left.
template <int PACK, bool HIDDEN>
__device__ inline uint32_t add(float (&sum)[PACK], const Pack<PACK>& held, const Dropout& dropout, uint32_t row, uint32_t column) {
    uint32_t word = 0;
    uint32_t left = 0;
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
            left |= static_cast<uint32_t>(kept) << i;
        } else {
            sum[i] += value;
        }
    }
    return left;
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
// table[ids[row]] over ids that are not -1. A thread has one pack of columns of one row. mask [table's rows, packs], where it is
// not null: what was left of each pack that was read, the same whoever reads it.
template <int PACK, bool HIDDEN>
__global__ void __launch_bounds__(THREADS) self_and_mean(
    const Pack<PACK>* __restrict__ table, const int32_t* __restrict__ own, const int32_t* __restrict__ ids,
    Pack<PACK>* __restrict__ out, uint8_t* mask, int64_t total, int fanout, int packs, const int64_t* __restrict__ key,
    int64_t layer, int drop) {
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
                const uint32_t left =
                    add<PACK, HIDDEN>(sum, held[j], dropout, static_cast<uint32_t>(id[j]), static_cast<uint32_t>(column * PACK));
                if (HIDDEN && mask != nullptr) {
                    mask[static_cast<int64_t>(id[j]) * packs + column] = static_cast<uint8_t>(left);
                }
            }
        }
    }
    const float scale = HIDDEN ? dropout.scale() : 1.0f;
    float alone[PACK] = {};
    const uint32_t left = add<PACK, HIDDEN>(alone, self, dropout, static_cast<uint32_t>(mine), static_cast<uint32_t>(column * PACK));
    if (HIDDEN && mask != nullptr && mine >= 0) {
        mask[mine * packs + column] = static_cast<uint8_t>(left);
    }
    out[row * 2 * packs + column] = scaled<PACK>(alone, scale);
    out[row * 2 * packs + packs + column] = scaled<PACK>(sum, scale / static_cast<float>(count > 0 ? count : 1));
}

// out [sources, width]: what ReLU and dropout let through, by the mask that `self_and_mean` wrote, of the gradient of each hidden
// row: grad[row, :width] of the row itself where it is among the first `rows`, and grad[r, width:] / (r's number of neighbours) of
// each row r that has it as neighbour: entries[offsets[row]] to entries[offsets[row + 1]]. A row that nobody read has no gradient.
template <int PACK>
__global__ void __launch_bounds__(THREADS, 12) gather_gradient(
    const Pack<PACK>* __restrict__ grad, const float* __restrict__ inverse, const int32_t* __restrict__ offsets,
    const int32_t* __restrict__ entries, const uint8_t* __restrict__ mask, Pack<PACK>* __restrict__ out, int64_t total,
    int64_t rows, int packs, int drop) {
    const int64_t at = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (at >= total) {
        return;
    }
    const int64_t row = at / packs;
    const int column = static_cast<int>(at - row * packs);
    const int end = offsets[row + 1];
    int begin = offsets[row];
    const uint32_t left = row < rows || begin < end ? mask[at] : 0u;
    float sum[PACK] = {};
    if (row < rows) {
        const Pack<PACK> own = grad[row * 2 * packs + column];
#pragma unroll
        for (int i = 0; i < PACK; ++i) {
            sum[i] = __bfloat162float(own.values[i]);
        }
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
#pragma unroll
    for (int i = 0; i < PACK; ++i) {
        sum[i] = left >> i & 1u ? sum[i] : 0.0f;
    }
    out[at] = scaled<PACK>(sum, 256.0f / static_cast<float>(256 - drop));
}

// counts [sources], zeros before: how many rows have each source as neighbour; inverse [rows]: one over a row's neighbours.
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

__device__ inline float warp_max(float value) {
#pragma unroll
    for (int lane = 16; lane; lane >>= 1) {
        value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, lane));
    }
    return value;
}

__device__ inline float warp_sum(float value) {
#pragma unroll
    for (int lane = 16; lane; lane >>= 1) {
        value += __shfl_xor_sync(0xffffffffu, value, lane);
    }
    return value;
}

// A warp a row: losses [rows], a row's share of the mean cross entropy over rows whose label is not -1, and its gradient of the
// logits [rows, classes].
constexpr int LOSS_THREADS = 256;

__global__ void __launch_bounds__(LOSS_THREADS) softmax_gradient(
    const __nv_bfloat16* __restrict__ logits, const int64_t* __restrict__ labels, __nv_bfloat16* __restrict__ grad,
    float* __restrict__ losses, int rows, int classes) {
    int known = 0;
    for (int begin = 0; begin < rows; begin += LOSS_THREADS) {
        const int other = begin + static_cast<int>(threadIdx.x);
        known += __syncthreads_count(other < rows && labels[other] >= 0);
    }
    const int lane = threadIdx.x % 32;
    const int row = static_cast<int>(blockIdx.x) * (LOSS_THREADS / 32) + static_cast<int>(threadIdx.x) / 32;
    if (row >= rows) {
        return;
    }
    const float share = 1.0f / static_cast<float>(known > 0 ? known : 1);
    const int64_t label = labels[row];
    const __nv_bfloat16* mine = logits + static_cast<int64_t>(row) * classes;
    float most = -INFINITY;
    for (int column = lane; column < classes; column += 32) {
        most = fmaxf(most, __bfloat162float(mine[column]));
    }
    most = warp_max(most);
    float sum = 0.0f;
    for (int column = lane; column < classes; column += 32) {
        sum += expf(__bfloat162float(mine[column]) - most);
    }
    sum = warp_sum(sum);
    for (int column = lane; column < classes; column += 32) {
        const float chance = expf(__bfloat162float(mine[column]) - most) / sum;
        const float wanted = column == label ? 1.0f : 0.0f;
        grad[static_cast<int64_t>(row) * classes + column] = __float2bfloat16(label >= 0 ? (chance - wanted) * share : 0.0f);
    }
    if (lane == 0) {
        losses[row] = label >= 0 ? (most + logf(sum) - __bfloat162float(mine[label])) * share : 0.0f;
    }
}

// Of Adam's step: what is the same of all weights, and whether it is left out.
struct Step {
    float rate;        // over one minus the first beta's power
    float correction;  // one over the root of one minus the second's
};

constexpr double FIRST = 0.9;
constexpr double SECOND = 0.999;
constexpr float EPSILON = 1e-8f;

// One block, after the loss: losses[*finished] is the step's; *flag is 1 where the batch did not fit (a total beyond its room;
// without totals it did) or steps are idle; next: of the step that is to be made.
__global__ void __launch_bounds__(LOSS_THREADS) close_batch(
    const float* __restrict__ shares, const int32_t* __restrict__ totals, const int32_t* __restrict__ room,
    const float* __restrict__ idle, const float* __restrict__ rate, const float* __restrict__ made,
    const int64_t* __restrict__ finished, float* __restrict__ losses, float* __restrict__ flag, Step* __restrict__ next, int rows,
    int hops) {
    __shared__ float parts[LOSS_THREADS / 32];
    float sum = 0.0f;
    for (int row = threadIdx.x; row < rows; row += LOSS_THREADS) {
        sum += shares[row];
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) {
        parts[threadIdx.x / 32] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        sum = 0.0f;
        for (int warp = 0; warp < LOSS_THREADS / 32; ++warp) {
            sum += parts[warp];
        }
        losses[*finished] = sum;
        bool beyond = *idle > 0.0f;
        for (int hop = 0; hop < hops; ++hop) {
            beyond = beyond || totals[hop] > room[hop];
        }
        *flag = beyond ? 1.0f : 0.0f;
        const double number = static_cast<double>(*made) + 1.0;
        next->rate = static_cast<float>(static_cast<double>(*rate) / (1.0 - pow(FIRST, number)));
        next->correction = static_cast<float>(1.0 / sqrt(1.0 - pow(SECOND, number)));
    }
}

constexpr int MOST_ADDED = 2;  // gradients read at once, of a group of weights

// Adam's step of all weights, and their bfloat16 copies; left out where a flag is not 0, which then stands in flags[*finished].
// The gradient is the sum of `held` ones, read where they are, each with its flag behind it, over `ranks`. All ranks add in one
// order, so that their weights stay alike bit for bit. Counters go on: how many steps were made, batches finished, and the next
// batch's key. A thread has GROUP weights. All that it reads is asked for before any of it is waited for: a gradient may be far away.
template <int GROUP>
__global__ void __launch_bounds__(THREADS) adam(
    float* __restrict__ weights, __nv_bfloat16* __restrict__ rounded, float* __restrict__ first, float* __restrict__ second,
    const float* const* __restrict__ grads, int held, const Step* __restrict__ next, float* made, int64_t* finished, int64_t* key,
    float* flags, int64_t total, float ranks) {
    struct alignas(GROUP * sizeof(float)) Floats {
        float values[GROUP];
    };
    const int64_t at = (static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x) * GROUP;
    const bool mine = at < total;
    Floats weight{};
    Floats m{};
    Floats v{};
    if (mine) {
        weight = *reinterpret_cast<const Floats*>(weights + at);
        m = *reinterpret_cast<const Floats*>(first + at);
        v = *reinterpret_cast<const Floats*>(second + at);
    }
    const Step step = *next;
    float sum[GROUP] = {};
    bool fails = false;
    for (int begin = 0; begin < held; begin += MOST_ADDED) {
        Floats part[MOST_ADDED];
        float flag[MOST_ADDED];
#pragma unroll
        for (int j = 0; j < MOST_ADDED; ++j) {
            part[j] = Floats{};
            flag[j] = 0.0f;
            if (begin + j < held) {
                const float* from = grads[begin + j];
                if (mine) {
                    part[j] = *reinterpret_cast<const Floats*>(from + at);
                }
                if (threadIdx.x < 32) {  // a warp a block asks
                    flag[j] = from[total];
                }
            }
        }
#pragma unroll
        for (int j = 0; j < MOST_ADDED; ++j) {
            fails = fails || flag[j] > 0.0f;
#pragma unroll
            for (int i = 0; i < GROUP; ++i) {
                sum[i] += part[j].values[i];
            }
        }
    }
    const bool left_out = __syncthreads_count(fails) > 0;
    if (mine && !left_out) {
#pragma unroll
        for (int i = 0; i < GROUP; ++i) {
            const float grad = sum[i] / ranks;
            m.values[i] += static_cast<float>(1.0 - FIRST) * (grad - m.values[i]);
            v.values[i] = static_cast<float>(SECOND) * v.values[i] + static_cast<float>(1.0 - SECOND) * grad * grad;
            weight.values[i] -= step.rate * m.values[i] / (sqrtf(v.values[i]) * step.correction + EPSILON);
        }
        *reinterpret_cast<Floats*>(first + at) = m;
        *reinterpret_cast<Floats*>(second + at) = v;
        *reinterpret_cast<Floats*>(weights + at) = weight;
        *reinterpret_cast<Pack<GROUP>*>(rounded + at) = scaled<GROUP>(weight.values, 1.0f);
    }
    if (at == 0) {
        flags[*finished] = left_out ? 1.0f : 0.0f;
        *made += left_out ? 0.0f : 1.0f;
        ++*finished;
        ++*key;
    }
}

// One block: goes on when all ranks have come here as often as this one. signals [ranks]: where each rank's own [ranks] are, in
// which the others count; met: how often this one was here. A signal goes one way, and each waits at its own memory.
__global__ void meet(volatile int32_t* const* signals, int32_t* met, int rank, int ranks) {
    const int32_t now = *met + 1;
    __syncthreads();
    __threadfence_system();
    for (int other = threadIdx.x; other < ranks; other += THREADS) {
        signals[other][rank] = now;
    }
    for (int other = threadIdx.x; other < ranks; other += THREADS) {
        while (signals[rank][other] - now < 0) {
        }
    }
    __threadfence_system();
    if (threadIdx.x == 0) {
        *met = now;
    }
}

unsigned blocks(int64_t total) { return static_cast<unsigned>((total + THREADS - 1) / THREADS); }

template <int PACK>
void launch_self_and_mean(
    const void* table, const int32_t* own, const int32_t* ids, void* out, uint8_t* mask, int64_t rows, int64_t fanout,
    int64_t width, bool hidden, const int64_t* key, int64_t layer, int64_t drop, cudaStream_t stream) {
    const int packs = static_cast<int>(width / PACK);
    const int64_t total = rows * packs;
    const Pack<PACK>* from = static_cast<const Pack<PACK>*>(table);
    Pack<PACK>* to = static_cast<Pack<PACK>*>(out);
    if (hidden) {
        self_and_mean<PACK, true><<<blocks(total), THREADS, 0, stream>>>(
            from, own, ids, to, mask, total, static_cast<int>(fanout), packs, key, layer, static_cast<int>(drop));
    } else {
        self_and_mean<PACK, false><<<blocks(total), THREADS, 0, stream>>>(
            from, own, ids, to, nullptr, total, static_cast<int>(fanout), packs, key, layer, 0);
    }
}

template <int PACK>
void launch_gather_gradient(
    const void* grad, const float* inverse, const int32_t* offsets, const int32_t* entries, const uint8_t* mask, void* out,
    int64_t sources, int64_t rows, int64_t width, int64_t drop, cudaStream_t stream) {
    const int packs = static_cast<int>(width / PACK);
    const int64_t total = sources * packs;
    gather_gradient<PACK><<<blocks(total), THREADS, 0, stream>>>(
        static_cast<const Pack<PACK>*>(grad), inverse, offsets, entries, mask, static_cast<Pack<PACK>*>(out), total, rows, packs,
        static_cast<int>(drop));
}

}  // namespace

// Rows begin on 16 bytes where 8 divides the width, on 8 where 4 does: tables and outputs come from an allocator.
extern "C" void layers_self_and_mean(
    const void* table, const int32_t* own, const int32_t* ids, void* out, uint8_t* mask, int64_t rows, int64_t fanout,
    int64_t width, int64_t hidden, const int64_t* key, int64_t layer, int64_t drop, cudaStream_t stream) {
    const auto launch = width % 8 == 0 ? launch_self_and_mean<8> : width % 4 == 0 ? launch_self_and_mean<4> : launch_self_and_mean<1>;
    if (rows > 0) {
        launch(table, own, ids, out, mask, rows, fanout, width, hidden != 0, key, layer, drop, stream);
    }
}

extern "C" void layers_gather_gradient(
    const void* grad, const float* inverse, const int32_t* offsets, const int32_t* entries, const uint8_t* mask, void* out,
    int64_t sources, int64_t rows, int64_t width, int64_t drop, cudaStream_t stream) {
    const auto launch =
        width % 8 == 0 ? launch_gather_gradient<8> : width % 4 == 0 ? launch_gather_gradient<4> : launch_gather_gradient<1>;
    launch(grad, inverse, offsets, entries, mask, out, sources, rows, width, drop, stream);
}

extern "C" void layers_count_entries(
    const int32_t* local, int32_t* counts, float* inverse, int64_t rows, int64_t fanout, cudaStream_t stream) {
    count_entries<<<blocks(rows * fanout), THREADS, 0, stream>>>(local, counts, inverse, rows * fanout, static_cast<int>(fanout));
}

extern "C" void layers_fill_entries(
    const int32_t* local, int32_t* counts, const int32_t* offsets, int32_t* entries, int64_t rows, int64_t fanout,
    cudaStream_t stream) {
    fill_entries<<<blocks(rows * fanout), THREADS, 0, stream>>>(
        local, counts, offsets, entries, rows * fanout, static_cast<int>(fanout));
}

extern "C" void layers_softmax_gradient(
    const void* logits, const int64_t* labels, void* grad, float* losses, int64_t rows, int64_t classes, cudaStream_t stream) {
    const unsigned warps = LOSS_THREADS / 32;
    softmax_gradient<<<(static_cast<unsigned>(rows) + warps - 1) / warps, LOSS_THREADS, 0, stream>>>(
        static_cast<const __nv_bfloat16*>(logits), labels, static_cast<__nv_bfloat16*>(grad), losses, static_cast<int>(rows),
        static_cast<int>(classes));
}

// next [2]: room for a Step.
extern "C" void layers_close_batch(
    const float* shares, const int32_t* totals, const int32_t* room, const float* idle, const float* rate, const float* made,
    const int64_t* finished, float* losses, float* flag, float* next, int64_t rows, int64_t hops, cudaStream_t stream) {
    close_batch<<<1, LOSS_THREADS, 0, stream>>>(
        shares, totals, room, idle, rate, made, finished, losses, flag, reinterpret_cast<Step*>(next), static_cast<int>(rows),
        static_cast<int>(hops));
}

// grads [held], on the device: where each gradient is, [total + 1]. All of these begin on 16 bytes.
extern "C" void layers_adam(
    float* weights, void* rounded, float* first, float* second, const float* const* grads, const float* next, float* made,
    int64_t* finished, int64_t* key, float* flags, int64_t total, int64_t held, int64_t ranks, cudaStream_t stream) {
    const auto launch = total % 4 == 0 ? adam<4> : adam<1>;
    launch<<<blocks(total % 4 == 0 ? total / 4 : total), THREADS, 0, stream>>>(
        weights, static_cast<__nv_bfloat16*>(rounded), first, second, grads, static_cast<int>(held),
        reinterpret_cast<const Step*>(next), made, finished, key, flags, total, static_cast<float>(ranks));
}

extern "C" void layers_meet(int32_t* const* signals, int32_t* met, int64_t rank, int64_t ranks, cudaStream_t stream) {
    meet<<<1, THREADS, 0, stream>>>(
        const_cast<volatile int32_t* const*>(signals), met, static_cast<int>(rank), static_cast<int>(ranks));
}

extern "C" void layers_count_picked(const int32_t* ids, unsigned long long* edges, int64_t total, cudaStream_t stream) {
    count_picked<<<total < 256 * THREADS ? 1 : 256, THREADS, 0, stream>>>(ids, edges, total);
}
