#include <immintrin.h>

#include <cstdint>

extern "C" void cpu_tuned_scale(const float* x, float* y, int64_t count, float factor) {
    const int64_t blocks = count / 8;
    const __m256 wide = _mm256_set1_ps(factor);
    #pragma omp parallel for schedule(static) if (count > 32768)
    for (int64_t block = 0; block < blocks; ++block) {
        const __m256 value = _mm256_mul_ps(_mm256_loadu_ps(x + block * 8), wide);
        _mm256_storeu_ps(y + block * 8, value);
    }
    for (int64_t i = blocks * 8; i < count; ++i) {
        y[i] = factor * x[i];
    }
}
