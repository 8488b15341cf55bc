// The angles are worked out where they are needed: the same cosines for every head.
#include <math.h>
#include <stdint.h>

extern "C" void cpu_rotary_positions_float32(
    float* x, const int32_t* position, const float* frequency, int64_t tokens, int64_t heads, int64_t half) {
    for (int64_t t = 0; t < tokens; t++) {
        for (int64_t h = 0; h < heads; h++) {
            float* head = x + (t * heads + h) * 2 * half;
            for (int64_t i = 0; i < half; i++) {
                float angle = (float)position[t] * frequency[i];
                float c = cosf(angle);
                float s = sinf(angle);
                float a = head[i];
                float b = head[i + half];
                head[i] = a * c - b * s;
                head[i + half] = b * c + a * s;
            }
        }
    }
}
