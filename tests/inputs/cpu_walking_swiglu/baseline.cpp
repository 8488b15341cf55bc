#include <math.h>
#include <stdint.h>

typedef uint16_t bf16_t;

static inline float bf16_to_fp32(bf16_t h) {
    union {
        float f;
        uint32_t i;
    } u;
    u.i = (uint32_t)h << 16;
    return u.f;
}

static inline bf16_t fp32_to_bf16(float s) {
    union {
        float f;
        uint32_t i;
    } u;
    u.f = s;
    if ((u.i & 0x7fffffff) > 0x7f800000) { /* nan */
        return (u.i >> 16) | 64;
    }
    return (u.i + (0x7fff + ((u.i >> 16) & 1))) >> 16;
}

static inline float silu(float v) { return v / (1.0f + expf(-v)); }

extern "C" void cpu_walking_swiglu_float32(const float* gate, const float* up, float* out, int64_t tokens, int64_t hidden) {
    int64_t n = tokens * hidden;
    while (n--) {
        *out++ = silu(*gate++) * *up++;
    }
}

extern "C" void cpu_walking_swiglu_bfloat16(const bf16_t* gate, const bf16_t* up, bf16_t* out, int64_t tokens, int64_t hidden) {
    const bf16_t* end = gate + tokens * hidden;
    for (; gate != end; ++gate, ++up, ++out) {
        *out = fp32_to_bf16(silu(bf16_to_fp32(*gate)) * bf16_to_fp32(*up));
    }
}
