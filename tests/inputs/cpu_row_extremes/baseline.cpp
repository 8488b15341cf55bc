#include <algorithm>
#include <cfloat>
#include <cstdint>

template <typename T>
static void reduce(const T* x, float* squares, float* largest, float* smallest, int64_t rows, int64_t columns) {
    for (int64_t r = 0; r < rows; ++r) {
        const T* row = &x[r * columns];
        float sum = 0.0f, high = -FLT_MAX, low = FLT_MAX;
        for (int64_t c = 0; c < columns; ++c) {
            const float v = row[c];
            sum += v * v;
            if (v > high) {
                high = v;
            }
            low = std::min(low, v);
        }
        squares[r] = sum;
        largest[r] = high;
        smallest[r] = low;
    }
}

extern "C" void cpu_row_extremes_float32(
    const float* x, float* squares, float* largest, float* smallest, int64_t rows, int64_t columns) {
    reduce(x, squares, largest, smallest, rows, columns);
}

extern "C" void cpu_row_extremes_float16(
    const _Float16* x, float* squares, float* largest, float* smallest, int64_t rows, int64_t columns) {
    reduce(x, squares, largest, smallest, rows, columns);
}
