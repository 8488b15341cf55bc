#include <cstdint>

extern "C" void cpu_embedding_bag_float32(
    const float* table, const int64_t* index, float* out, int64_t bags, int64_t size, int64_t width, int64_t vocabulary) {
    for (int64_t i = 0; i < width; ++i) {
        for (int64_t b = 0; b < bags; ++b) {
            float sum = 0.0f;
            for (int64_t j = 0; j < size; ++j) {
                sum += table[index[b * size + j] * width + i];
            }
            out[b * width + i] = sum;
        }
    }
}
