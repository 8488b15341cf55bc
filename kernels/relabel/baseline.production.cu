// Deduplication by a hash table in which each id remembers its first place; first places are counted by blocks of 1,024
// and numbered by their rank, so numbers follow the order in which ids come and a seed gives the same batch every time.
// No host synchronisation and no allocation: it can be captured.
#include <stdint.h>

constexpr int THREADS = 1024;

__device__ inline uint32_t slot_of(int32_t id, uint32_t mask) {
    uint32_t x = static_cast<uint32_t>(id) * 0x9e3779b1u;
    return (x ^ (x >> 15)) & mask;
}

__global__ void __launch_bounds__(256) insert(
    const int32_t* __restrict__ ids, int32_t* keys, int32_t* firsts, int32_t* __restrict__ local, int64_t count,
    uint32_t mask) {
    const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= count) {
        return;
    }
    const int32_t id = ids[i];
    if (id < 0) {
        local[i] = -1;
        return;
    }
    uint32_t at = slot_of(id, mask);
    while (true) {
        const int32_t held = atomicCAS(keys + at, -1, id);
        if (held == -1 || held == id) {
            break;
        }
        at = (at + 1) & mask;
    }
    atomicMin(firsts + at, static_cast<int32_t>(i));
    local[i] = static_cast<int32_t>(at);
}

__global__ void __launch_bounds__(THREADS) count_firsts(
    const int32_t* __restrict__ local, const int32_t* __restrict__ firsts, int32_t* __restrict__ sums, int64_t count) {
    const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    const int32_t at = i < count ? local[i] : -1;
    const int found = __syncthreads_count(at >= 0 && firsts[at] == i);
    if (threadIdx.x == 0) {
        sums[blockIdx.x] = found;
    }
}

__device__ inline int32_t warp_sum(int32_t value) {
#pragma unroll
    for (int lane = 16; lane; lane >>= 1) {
        value += __shfl_xor_sync(0xffffffffu, value, lane);
    }
    return value;
}

__global__ void __launch_bounds__(THREADS) number(
    const int32_t* __restrict__ ids, const int32_t* __restrict__ local, int32_t* __restrict__ keys,
    const int32_t* __restrict__ firsts, const int32_t* __restrict__ sums, int32_t* __restrict__ unique,
    int32_t* __restrict__ total, int64_t count, int64_t capacity) {
    __shared__ int32_t before[32];
    __shared__ int32_t ranks[32];
    const int lane = threadIdx.x & 31;
    const int warp = threadIdx.x >> 5;
    int32_t mine = 0;
    for (int block = threadIdx.x; block < static_cast<int>(blockIdx.x); block += THREADS) {
        mine += sums[block];
    }
    const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    const int32_t at = i < count ? local[i] : -1;
    const bool first = at >= 0 && firsts[at] == i;
    const unsigned voted = __ballot_sync(0xffffffffu, first);
    mine = warp_sum(mine);
    if (lane == 0) {
        before[warp] = mine;
        ranks[warp] = __popc(voted);
    }
    __syncthreads();
    int32_t rank = __popc(voted & ((1u << lane) - 1));
    rank += warp_sum(before[lane]);
    rank += warp_sum(lane < warp ? ranks[lane] : 0);
    if (first) {
        keys[at] = rank;  // all ids are in: the key is not needed any more
        if (rank < capacity) {
            unique[rank] = ids[i];
        }
    }
    if (blockIdx.x == gridDim.x - 1 && threadIdx.x == THREADS - 1) {
        *total = rank + first;
    }
}

__global__ void __launch_bounds__(256)
    look_up(int32_t* __restrict__ local, const int32_t* __restrict__ keys, int64_t count, int64_t capacity) {
    const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < count && local[i] >= 0) {
        const int32_t mine = keys[local[i]];
        local[i] = mine < capacity ? mine : -1;
    }
}

// One launch: in a captured graph two memsets wait for each other longer than they take.
__global__ void __launch_bounds__(256)
    clear(int32_t* __restrict__ keys, int32_t* __restrict__ firsts, int64_t slots) {
    const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < slots) {
        keys[i] = -1;
        firsts[i] = INT32_MAX;
    }
}

extern "C" void relabel_int32(
    const int32_t* ids, int32_t* unique, int32_t* total, int32_t* local, int32_t* scratch, int64_t seeds, int64_t count,
    int64_t slots, int64_t capacity, cudaStream_t stream) {
    (void)seeds;
    int32_t* keys = scratch;
    int32_t* firsts = scratch + slots;
    int32_t* sums = scratch + 2 * slots;
    const unsigned blocks = static_cast<unsigned>((count + 255) / 256);
    const unsigned wide = static_cast<unsigned>((count + THREADS - 1) / THREADS);
    clear<<<static_cast<unsigned>((slots + 255) / 256), 256, 0, stream>>>(keys, firsts, slots);
    insert<<<blocks, 256, 0, stream>>>(ids, keys, firsts, local, count, static_cast<uint32_t>(slots - 1));
    count_firsts<<<wide, THREADS, 0, stream>>>(local, firsts, sums, count);
    number<<<wide, THREADS, 0, stream>>>(ids, local, keys, firsts, sums, unique, total, count, capacity);
    look_up<<<blocks, 256, 0, stream>>>(local, keys, count, capacity);
}
