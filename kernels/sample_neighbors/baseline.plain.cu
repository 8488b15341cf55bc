// Neighbourhood sampling as one writes it first: a thread a row walks over all neighbours of its node and keeps a
// reservoir in the output. What it costs follows the degrees, not the fanout.
#include <stdint.h>

__device__ inline uint64_t mix(uint64_t x) {  // the finaliser of splitmix64
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

__global__ void sample_neighbors_kernel(
    const int64_t* rowptr, const int32_t* col, const int32_t* frontier, const int64_t* seed, int32_t* picked,
    int64_t rows, int64_t fanout) {
    const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (row >= rows) {
        return;
    }
    int32_t* out = picked + row * fanout;
    const int64_t node = frontier[row];
    const int64_t first = node < 0 ? 0 : rowptr[node];
    const int64_t degree = node < 0 ? 0 : rowptr[node + 1] - first;
    const uint64_t key = mix(mix(static_cast<uint64_t>(*seed) + 0x9e3779b97f4a7c15ull) ^ (row * 0xd1342543de82ef95ull + 1));
    for (int64_t i = 0; i < fanout; ++i) {
        out[i] = i < degree ? col[first + i] : -1;
    }
    for (int64_t i = fanout; i < degree; ++i) {
        const uint64_t random = mix(key + 0x9e3779b97f4a7c15ull * static_cast<uint64_t>(i));
        const int64_t at = static_cast<int64_t>(__umul64hi(random, static_cast<uint64_t>(i + 1)));
        if (at < fanout) {
            out[at] = col[first + i];
        }
    }
}

extern "C" void sample_neighbors_int32(
    const int64_t* rowptr, const int32_t* col, const int32_t* frontier, const int64_t* seed, int32_t* picked,
    int64_t nodes, int64_t edges, int64_t rows, int64_t fanout, cudaStream_t stream) {
    (void)nodes;
    (void)edges;
    const unsigned blocks = static_cast<unsigned>((rows + 127) / 128);
    sample_neighbors_kernel<<<blocks, 128, 0, stream>>>(rowptr, col, frontier, seed, picked, rows, fanout);
}
