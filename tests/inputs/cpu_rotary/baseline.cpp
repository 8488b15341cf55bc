#include <cstddef>
#include <cstdint>

template <typename scalar_t>
static void rotate(scalar_t* x, const float* cosine, const float* sine, int tokens, int heads, int half) {
    for (int t = 0; t < tokens; t++) {
        for (int h = 0; h < heads; h++) {
            scalar_t* head = x + ((size_t)t * heads + h) * 2 * half;
            for (int i = 0; i < half; i++) {
                float a = (float)head[i];
                float b = (float)head[i + half];
                float c = cosine[t * half + i];
                float s = sine[t * half + i];
                head[i] = (scalar_t)(a * c - b * s);
                head[i + half] = (scalar_t)(b * c + a * s);
            }
        }
    }
}

extern "C" void cpu_rotary_float32(
    float* x, const float* cosine, const float* sine, int64_t tokens, int64_t heads, int64_t half) {
    rotate(x, cosine, sine, (int)tokens, (int)heads, (int)half);
}

extern "C" void cpu_rotary_float16(
    _Float16* x, const float* cosine, const float* sine, int64_t tokens, int64_t heads, int64_t half) {
    rotate(x, cosine, sine, (int)tokens, (int)heads, (int)half);
}
