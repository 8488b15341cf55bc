// A template over the array that is given what to apply, and helpers that return early.
#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float widen(uint16_t half) {
    uint32_t word = (uint32_t)half << 16;
    float value;
    memcpy(&value, &word, 4);
    return value;
}

static inline float bounded(float inner) {
    if (inner > 10.0f) return 1.0f;
    if (inner < -10.0f) return -1.0f;
    return tanhf(inner);
}

static inline uint16_t narrow(float value) {
    uint32_t word;
    memcpy(&word, &value, 4);
    if ((word & 0x7fffffff) > 0x7f800000) {
        return (uint16_t)((word >> 16) | 0x40);
    }
    word += 0x7fff + ((word >> 16) & 1);
    return (uint16_t)(word >> 16);
}

struct Gelu {
    float operator()(float x) const {
        const float inner = 0.7978845608f * (x + 0.044715f * x * x * x);
        return 0.5f * x * (1.0f + bounded(inner));
    }
};

template <typename Op>
static void map_float(const float* x, float* y, int64_t n, Op op) {
    for (int64_t i = 0; i < n; i++) {
        y[i] = op(x[i]);
    }
}

template <typename Op>
static void map_bfloat16(const uint16_t* x, uint16_t* y, int64_t n, Op op) {
    for (int64_t i = 0; i < n; i++) {
        y[i] = narrow(op(widen(x[i])));
    }
}

extern "C" void cpu_gelu_float32(const float* x, float* y, int64_t rows, int64_t columns) {
    map_float(x, y, rows * columns, Gelu{});
}

extern "C" void cpu_gelu_bfloat16(const uint16_t* x, uint16_t* y, int64_t rows, int64_t columns) {
    map_bfloat16(x, y, rows * columns, Gelu{});
}
