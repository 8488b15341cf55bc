#include <cmath>
#include <cstdint>
#include <limits>

template <typename T>
void softmax(const T* x, T* y, int64_t rows, int64_t columns) {
    for (int64_t r = 0; r < rows; ++r) {
        float highest = -std::numeric_limits<float>::infinity();
        for (int64_t c = 0; c < columns; ++c) {
            highest = fmaxf(highest, static_cast<float>(x[r * columns + c]));
        }
        float total = 0.0f;
        for (int64_t c = 0; c < columns; ++c) {
            total += expf(static_cast<float>(x[r * columns + c]) - highest);
        }
        for (int64_t c = 0; c < columns; ++c) {
            const float weight = expf(static_cast<float>(x[r * columns + c]) - highest) / total;
            y[r * columns + c] = static_cast<T>(weight);
        }
    }
}

extern "C" void cpu_softmax_float32(const float* x, float* y, int64_t rows, int64_t columns) {
    softmax<float>(x, y, rows, columns);
}

extern "C" void cpu_softmax_float16(const _Float16* x, _Float16* y, int64_t rows, int64_t columns) {
    softmax<_Float16>(x, y, rows, columns);
}
