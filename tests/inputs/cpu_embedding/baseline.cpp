#include <cstdint>

template <typename T>
static void embed(
    const T* table, const int64_t* index, const T* position, T* out, int64_t tokens, int64_t width, float factor) {
    for (int64_t t = 0; t < tokens; ++t) {
        const int64_t id = index[t];
        for (int64_t i = 0; i < width; ++i) {
            out[t * width + i] =
                static_cast<T>(static_cast<float>(table[id * width + i]) * factor + static_cast<float>(position[t * width + i]));
        }
    }
}

extern "C" void cpu_embedding_float32(
    const float* table, const int64_t* index, const float* position, float* out, int64_t tokens, int64_t width,
    int64_t vocabulary, float factor) {
    embed(table, index, position, out, tokens, width, factor);
}

extern "C" void cpu_embedding_float16(
    const _Float16* table, const int64_t* index, const _Float16* position, _Float16* out, int64_t tokens, int64_t width,
    int64_t vocabulary, float factor) {
    embed(table, index, position, out, tokens, width, factor);
}
