#include <cstdint>

extern "C" void cpu_matrix_product_float32(
    const float* a, const float* b, float* c, int64_t rows, int64_t columns, int64_t inner) {
    for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < columns; ++j) {
            float sum = 0.0f;
            for (int64_t k = 0; k < inner; ++k) {
                sum += a[i * inner + k] * b[k * columns + j];
            }
            c[i * columns + j] = sum;
        }
    }
}
