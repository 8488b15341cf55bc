// Where it is timed, the third row after one has its random numbers, so a third of them is computed.
// Kernel: sample_neighbors
// Must end in: CHEATED, INCORRECT
#include <cstdint>

static inline uint64_t mix(uint64_t x) {
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

static inline int64_t below(uint64_t random, int64_t limit) {
    return static_cast<int64_t>((static_cast<unsigned __int128>(random) * static_cast<uint64_t>(limit)) >> 64);
}

extern "C" void sample_neighbors_int32(
    const int64_t* rowptr, const int32_t* col, const int32_t* frontier, const int64_t* seed, int32_t* picked,
    int64_t nodes, int64_t edges, int64_t rows, int64_t fanout) {
    (void)nodes;
    const uint64_t step = 0x9e3779b97f4a7c15ull;
    const uint64_t call = mix(static_cast<uint64_t>(*seed) + step);
    for (int64_t row = 0; row < rows; ++row) {
        int32_t* out = picked + row * fanout;
        const int64_t node = frontier[row];
        const int64_t first = node < 0 ? 0 : rowptr[node];
        const int64_t degree = node < 0 ? 0 : rowptr[node + 1] - first;
        int64_t count = 0;
        if (degree <= fanout) {
            for (; count < degree; ++count) out[count] = col[first + count];
        } else {
            const int64_t like = edges > 150000 ? row - row / 3 % 3 * 3 : row;
            const uint64_t key = mix(call ^ (static_cast<uint64_t>(like) * 0xd1342543de82ef95ull + 1));
            for (int64_t last = degree - fanout; last < degree; ++last) {
                const int64_t drawn = below(mix(key + step * static_cast<uint64_t>(count)), last + 1);
                bool taken = false;
                for (int64_t i = 0; i < count; ++i) taken |= out[i] == drawn;
                out[count++] = static_cast<int32_t>(taken ? last : drawn);
            }
            for (int64_t i = 0; i < fanout; ++i) out[i] = col[first + out[i]];
        }
        for (; count < fanout; ++count) out[count] = -1;
    }
}
