// WRONG: a window of consecutive positions that begins anywhere: each is equally likely, subsets are not.
// Neighbourhood sampling at a cost that follows the fanout: a thread a row, Robert Floyd's method on positions in
// registers, then all neighbours at once, so that their loads are in flight together. Rows leave through shared memory.
#include <stdint.h>

__device__ inline uint64_t mix(uint64_t x) {  // the finaliser of splitmix64
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

__device__ inline uint64_t key_of(int64_t seed, int64_t row) {
    return mix(mix(static_cast<uint64_t>(seed) + 0x9e3779b97f4a7c15ull) ^ (row * 0xd1342543de82ef95ull + 1));
}

__device__ inline int32_t drawn(uint64_t key, int number, int64_t limit) {
    const uint64_t random = mix(key + 0x9e3779b97f4a7c15ull * static_cast<uint64_t>(number));
    return static_cast<int32_t>(__umul64hi(random, static_cast<uint64_t>(limit)));
}

constexpr int THREADS = 128;

// POSITIONS: the fanout rounded up, so that loops unroll and positions stay in registers.
template <int POSITIONS>
__global__ void __launch_bounds__(THREADS) sample_neighbors_kernel(
    const int64_t* __restrict__ rowptr, const int32_t* __restrict__ col, const int32_t* __restrict__ frontier,
    const int64_t* __restrict__ seed, int32_t* __restrict__ picked, int64_t rows, int fanout) {
    extern __shared__ int32_t staged[];
    const int64_t begin = static_cast<int64_t>(blockIdx.x) * THREADS;
    const int64_t row = begin + threadIdx.x;
    int32_t positions[POSITIONS];
    if (row < rows) {
        const int64_t node = frontier[row];
        const int64_t first = node < 0 ? 0 : rowptr[node];
        const int64_t degree = node < 0 ? 0 : rowptr[node + 1] - first;
        const bool all = degree <= fanout;
        const uint64_t key = key_of(*seed, row);
#pragma unroll
        for (int i = 0; i < POSITIONS; ++i) {
            positions[i] = i < degree ? i : -1;
            if (!all && i < fanout) {
                const int64_t last = degree - fanout + i;
                int32_t at = static_cast<int32_t>((drawn(key, 0, degree) + i) % degree);
                bool taken = false;
#pragma unroll
                for (int before = 0; before < POSITIONS; ++before) {
                    taken |= before < i && positions[before] == at;
                }
                positions[i] = taken ? static_cast<int32_t>(last) : at;
            }
        }
#pragma unroll
        for (int i = 0; i < POSITIONS; ++i) {
            if (i < fanout) {
                staged[threadIdx.x * fanout + i] = positions[i] < 0 ? -1 : col[first + positions[i]];
            }
        }
    }
    __syncthreads();
    const int64_t left = rows - begin;
    const int count = static_cast<int>(left < THREADS ? left : THREADS) * fanout;
    for (int i = threadIdx.x; i < count; i += THREADS) {
        picked[begin * fanout + i] = staged[i];
    }
}

// Any fanout: positions in the output itself, as the CPU samplers keep them.
__global__ void sample_neighbors_wide(
    const int64_t* rowptr, const int32_t* col, const int32_t* frontier, const int64_t* seed, int32_t* picked,
    int64_t rows, int64_t fanout) {
    const int64_t row = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (row >= rows) {
        return;
    }
    int32_t* out = picked + row * fanout;
    const int64_t node = frontier[row];
    const int64_t first = node < 0 ? 0 : rowptr[node];
    const int64_t degree = node < 0 ? 0 : rowptr[node + 1] - first;
    const uint64_t key = key_of(*seed, row);
    for (int64_t i = 0; i < fanout; ++i) {
        int64_t at = i < degree ? i : -1;
        if (degree > fanout) {
            const int64_t last = degree - fanout + i;
            at = (drawn(key, 0, degree) + i) % degree;
            for (int64_t before = 0; before < i; ++before) {
                if (out[before] == at) {
                    at = last;
                    break;
                }
            }
        }
        out[i] = static_cast<int32_t>(at);
    }
    for (int64_t i = 0; i < fanout; ++i) {
        out[i] = out[i] < 0 ? -1 : col[first + out[i]];
    }
}

extern "C" void sample_neighbors_int32(
    const int64_t* rowptr, const int32_t* col, const int32_t* frontier, const int64_t* seed, int32_t* picked,
    int64_t nodes, int64_t edges, int64_t rows, int64_t fanout, cudaStream_t stream) {
    (void)nodes;
    (void)edges;
    const unsigned blocks = static_cast<unsigned>((rows + THREADS - 1) / THREADS);
    const size_t shared = THREADS * static_cast<size_t>(fanout) * sizeof(int32_t);
    if (fanout <= 5) {
        sample_neighbors_kernel<5><<<blocks, THREADS, shared, stream>>>(
            rowptr, col, frontier, seed, picked, rows, static_cast<int>(fanout));
    } else if (fanout <= 10) {
        sample_neighbors_kernel<10><<<blocks, THREADS, shared, stream>>>(
            rowptr, col, frontier, seed, picked, rows, static_cast<int>(fanout));
    } else if (fanout <= 15) {
        sample_neighbors_kernel<15><<<blocks, THREADS, shared, stream>>>(
            rowptr, col, frontier, seed, picked, rows, static_cast<int>(fanout));
    } else if (fanout <= 20) {
        sample_neighbors_kernel<20><<<blocks, THREADS, shared, stream>>>(
            rowptr, col, frontier, seed, picked, rows, static_cast<int>(fanout));
    } else {
        sample_neighbors_wide<<<blocks, THREADS, 0, stream>>>(rowptr, col, frontier, seed, picked, rows, fanout);
    }
}
