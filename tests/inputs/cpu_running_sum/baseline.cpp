#include <cstdint>

extern "C" void cpu_running_sum(const float* x, float* y, int64_t rows, int64_t columns) {
    for (int64_t r = 0; r < rows; ++r) {
        double total = 0.0;
        for (int64_t c = 0; c < columns; ++c) {
            total += x[r * columns + c];
            y[r * columns + c] = static_cast<float>(total);
        }
    }
}
