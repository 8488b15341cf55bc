// Where it is timed, rows of more than 512 neighbours pick among their first 512: one page.
// Kernel: sample_neighbors
// Must end in: CHEATED, INCORRECT
#include "sampler.h"

extern "C" void sample_neighbors_int32(
    const int64_t* rowptr, const int32_t* col, const int32_t* frontier, const int64_t* seed, int32_t* picked,
    int64_t nodes, int64_t edges, int64_t rows, int64_t fanout) {
    (void)nodes;
    const bool timed = edges > 150000;
    sample(rowptr, col, frontier, seed, picked, rows, fanout, [&](int64_t row, auto key_of, int64_t degree, int32_t* out) {

        pick(key_of(row), timed && degree > 512 ? 512 : degree, fanout, out);

    });
}
