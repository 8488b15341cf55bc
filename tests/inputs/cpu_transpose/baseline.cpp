#include <cstdint>

template <typename T>
static void transpose(const T* x, const float* scale, T* y, int64_t rows, int64_t columns) {
    for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < columns; ++c) {
            y[c * rows + r] = static_cast<T>(static_cast<float>(x[r * columns + c]) * scale[c]);
        }
    }
}

extern "C" void cpu_transpose_float32(const float* x, const float* scale, float* y, int64_t rows, int64_t columns) {
    transpose(x, scale, y, rows, columns);
}

extern "C" void cpu_transpose_float16(const _Float16* x, const float* scale, _Float16* y, int64_t rows, int64_t columns) {
    transpose(x, scale, y, rows, columns);
}
