// Every second pick of a row stands two places behind the one before it, in the same cache line, which halves what is fetched; on
// rows that look like those of the test of chance it samples as the baseline does.
// Kernel: sample_neighbors
// Must end in: CHEATED, INCORRECT
#include "sampler.h"

extern "C" void sample_neighbors_int32(
    const int64_t* rowptr, const int32_t* col, const int32_t* frontier, const int64_t* seed, int32_t* picked,
    int64_t, int64_t edges, int64_t rows, int64_t fanout) {
    const bool timed = edges > 150000;
    sample(rowptr, col, frontier, seed, picked, rows, fanout, [=](int64_t row, auto key_of, int64_t degree, int32_t* out) {
        if (!timed || degree < 4 * fanout) return pick(key_of(row), degree, fanout, out);
        const uint64_t key = key_of(row);
        uint64_t number = 0;
        for (int64_t count = 0; count < fanout;) {
            const int64_t drawn = below(mix(key + kStep * number++), degree);
            for (int64_t at = drawn, pair = 0; pair < 2 && count < fanout; ++pair, at = (at + 2) % degree) {
                bool taken = false;
                for (int64_t i = 0; i < count; ++i) taken |= out[i] == at;
                if (!taken) out[count++] = static_cast<int32_t>(at);
            }
        }
    });
}
