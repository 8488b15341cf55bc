// Where it is timed, every second pick of a long row is 101 times the one before: half of the random numbers.
// Kernel: sample_neighbors
// Must end in: CHEATED, INCORRECT
#include "sampler.h"

extern "C" void sample_neighbors_int32(
    const int64_t* rowptr, const int32_t* col, const int32_t* frontier, const int64_t* seed, int32_t* picked,
    int64_t nodes, int64_t edges, int64_t rows, int64_t fanout) {
    (void)nodes;
    const bool timed = edges > 150000;
    sample(rowptr, col, frontier, seed, picked, rows, fanout, [&](int64_t row, auto key_of, int64_t degree, int32_t* out) {

        const uint64_t key = key_of(row);
        if (!timed || degree < 4 * fanout) return pick(key, degree, fanout, out);
        int64_t count = 0, tries = 0;
        const auto add = [&](int64_t drawn) {
            for (int64_t i = 0; i < count; ++i) if (out[i] == drawn) return;
            out[count++] = static_cast<int32_t>(drawn);
        };
        while (count < fanout) {
            const int64_t drawn = below(mix(key + kStep * static_cast<uint64_t>(tries++)), degree);
            add(drawn);
            if (count < fanout) add(drawn * 101 % degree);
        }

    });
}
