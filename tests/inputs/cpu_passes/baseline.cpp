// As it was translated from a line of tensor operations: one pass over the memory for each of them.
#include <cstdint>

extern "C" void cpu_passes(
    const float* x, const float* gain, const float* residual, float* y, int64_t rows, int64_t columns) {
    for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < columns; ++c) {
            y[r * columns + c] = x[r * columns + c] * gain[c];
        }
    }
    // Nothing below zero.
    for (int64_t row = 0; row < rows; ++row) {
        for (int64_t c = 0; c < columns; ++c) {
            const float v = y[row * columns + c];
            y[row * columns + c] = v > 0.0f ? v : 0.0f;
        }
    }
    for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < columns; ++c) {
            y[r * columns + c] += residual[r * columns + c];
        }
    }
}
