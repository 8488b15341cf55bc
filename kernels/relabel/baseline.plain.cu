// Deduplication as one writes it first: a hash table in which each id remembers its first place, one block that walks over
// all places and numbers those that are first, and a look-up. Numbers follow the order in which ids come.
#include <stdint.h>

__device__ inline uint32_t slot_of(int32_t id, uint32_t mask) {
    uint32_t x = static_cast<uint32_t>(id) * 0x9e3779b1u;
    return (x ^ (x >> 15)) & mask;
}

__global__ void clear(int32_t* keys, int32_t* firsts, int64_t slots) {
    const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < slots) {
        keys[i] = -1;
        firsts[i] = INT32_MAX;
    }
}

__global__ void insert(const int32_t* ids, int32_t* keys, int32_t* firsts, int32_t* local, int64_t count, uint32_t mask) {
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

__global__ void number(
    const int32_t* ids, const int32_t* local, int32_t* keys, const int32_t* firsts, int32_t* unique, int32_t* total,
    int64_t count, int64_t capacity) {
    __shared__ int32_t sums[1024];
    int32_t base = 0;
    for (int64_t begin = 0; begin < count; begin += 1024) {
        const int64_t i = begin + threadIdx.x;
        const int32_t at = i < count ? local[i] : -1;
        const bool first = at >= 0 && firsts[at] == i;
        sums[threadIdx.x] = first;
        __syncthreads();
        for (int step = 1; step < 1024; step *= 2) {
            const int32_t more = threadIdx.x >= step ? sums[threadIdx.x - step] : 0;
            __syncthreads();
            sums[threadIdx.x] += more;
            __syncthreads();
        }
        if (first) {
            const int32_t mine = base + sums[threadIdx.x] - 1;
            keys[at] = mine;  // all ids are in: the key is not needed any more
            if (mine < capacity) {
                unique[mine] = ids[i];
            }
        }
        base += sums[1023];
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        *total = base;
    }
}

__global__ void look_up(int32_t* local, const int32_t* keys, int64_t count, int64_t capacity) {
    const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < count && local[i] >= 0) {
        const int32_t mine = keys[local[i]];
        local[i] = mine < capacity ? mine : -1;
    }
}

extern "C" void relabel_int32(
    const int32_t* ids, int32_t* unique, int32_t* total, int32_t* local, int32_t* scratch, int64_t seeds, int64_t count,
    int64_t slots, int64_t capacity, cudaStream_t stream) {
    (void)seeds;
    int32_t* keys = scratch;
    int32_t* firsts = scratch + slots;
    const unsigned blocks = static_cast<unsigned>((count + 255) / 256);
    clear<<<static_cast<unsigned>((slots + 255) / 256), 256, 0, stream>>>(keys, firsts, slots);
    insert<<<blocks, 256, 0, stream>>>(ids, keys, firsts, local, count, static_cast<uint32_t>(slots - 1));
    number<<<1, 1024, 0, stream>>>(ids, local, keys, firsts, unique, total, count, capacity);
    look_up<<<blocks, 256, 0, stream>>>(local, keys, count, capacity);
}
