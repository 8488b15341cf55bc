#include <math.h>
#include <stdint.h>
#include <string.h>

static float gelu(float x) {
    const float inner = 0.7978845608f * (x + 0.044715f * x * x * x);
    return 0.5f * x * (1.0f + tanhf(inner));
}

static float widen(uint16_t half) {
    uint32_t word = (uint32_t)half << 16;
    float value;
    memcpy(&value, &word, 4);
    return value;
}

static uint16_t narrow(float value) {
    uint32_t word;
    memcpy(&word, &value, 4);
    if ((word & 0x7fffffff) > 0x7f800000) {
        return (uint16_t)((word >> 16) | 0x40);
    }
    word += 0x7fff + ((word >> 16) & 1);
    return (uint16_t)(word >> 16);
}

extern "C" void cpu_gelu_float32(const float* x, float* y, int64_t rows, int64_t columns) {
    for (int64_t i = 0; i < rows * columns; i++) {
        y[i] = gelu(x[i]);
    }
}

extern "C" void cpu_gelu_bfloat16(const uint16_t* x, uint16_t* y, int64_t rows, int64_t columns) {
    for (int64_t i = 0; i < rows * columns; i++) {
        y[i] = narrow(gelu(widen(x[i])));
    }
}
