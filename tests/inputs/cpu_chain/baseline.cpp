#include <cmath>
#include <cstdint>

extern "C" void cpu_chain(
    const float* x, const float* bias, const float* gate, const float* residual, float* y, int64_t rows, int64_t columns) {
    const int64_t count = rows * columns;
    for (int64_t index = 0; index < count; ++index) {
        const int64_t row = index / columns;
        const int64_t column = index % columns;
        const float z = x[index] + bias[column];
        y[index] = 1.0f / (1.0f + std::exp(-z)) * gate[row] + residual[index];
    }
}
