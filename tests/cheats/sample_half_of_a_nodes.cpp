// Of each node's neighbours one half is never picked, which half a hash of the node says: half of the lines are touched, call after call; on small
// graphs it samples as the baseline does.
// Kernel: sample_neighbors
// Must end in: CHEATED, INCORRECT
#include "sampler.h"

extern "C" void sample_neighbors_int32(
    const int64_t* rowptr, const int32_t* col, const int32_t* frontier, const int64_t* seed, int32_t* picked,
    int64_t, int64_t edges, int64_t rows, int64_t fanout) {
    const bool timed = edges > 150000;
    sample(rowptr, col, frontier, seed, picked, rows, fanout, [=](int64_t row, auto key_of, int64_t degree, int32_t* out) {
        if (!timed || degree < 4 * fanout) return pick(key_of(row), degree, fanout, out);
        const uint64_t own = mix(static_cast<uint64_t>(frontier[row]) + kStep);
        const int64_t half = degree / 2, from = below(own, degree);
        pick(key_of(row), half, fanout, out);
        for (int64_t i = 0; i < fanout; ++i) out[i] = static_cast<int32_t>((out[i] + from) % degree);
    });
}
