// Rows of c in registers, columns as vectors.
#include <algorithm>
#include <cstdint>

#define TILE_ROWS 4
#define TILE_COLUMNS 32

typedef float Lanes __attribute__((vector_size(64), aligned(4)));

// c[rows i .. i+TILE_ROWS, columns j .. j+TILE_COLUMNS) in registers over the whole inner loop.
static inline void tile(const float* a, const float* b, float* c, int64_t columns, int64_t inner) {
    Lanes sum[TILE_ROWS][2] = {};
    for (int64_t k = 0; k < inner; ++k) {
        const Lanes b0 = *reinterpret_cast<const Lanes*>(b + k * columns);
        const Lanes b1 = *reinterpret_cast<const Lanes*>(b + k * columns + 16);
        for (int r = 0; r < TILE_ROWS; ++r) {
            const float x = a[r * inner + k];
            sum[r][0] += x * b0;
            sum[r][1] += x * b1;
        }
    }
    for (int r = 0; r < TILE_ROWS; ++r) {
        *reinterpret_cast<Lanes*>(c + r * columns) = sum[r][0];
        *reinterpret_cast<Lanes*>(c + r * columns + 16) = sum[r][1];
    }
}

static void scalar(
    const float* a, const float* b, float* c, int64_t columns, int64_t inner, int64_t rows, int64_t from, int64_t to) {
    for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = from; j < to; ++j) {
            float sum = 0.0f;
            for (int64_t k = 0; k < inner; ++k) {
                sum += a[i * inner + k] * b[k * columns + j];
            }
            c[i * columns + j] = sum;
        }
    }
}

extern "C" void cpu_matrix_product_float32(
    const float* a, const float* b, float* c, int64_t rows, int64_t columns, int64_t inner) {
    const int64_t whole = columns / TILE_COLUMNS * TILE_COLUMNS;
#pragma omp parallel for schedule(static) if (rows * columns * inner > 2000000)
    for (int64_t i = 0; i < rows; i += TILE_ROWS) {
        const int64_t here = std::min<int64_t>(TILE_ROWS, rows - i);
        if (here < TILE_ROWS) {
            scalar(a + i * inner, b, c + i * columns, columns, inner, here, 0, columns);
            continue;
        }
        for (int64_t j = 0; j < whole; j += TILE_COLUMNS) {
            tile(a + i * inner, b + j, c + i * columns + j, columns, inner);
        }
        scalar(a + i * inner, b, c + i * columns, columns, inner, TILE_ROWS, whole, columns);
    }
}
