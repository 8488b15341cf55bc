#include <cmath>
#include <cstdint>
#include <cstring>

struct bf16 {
    uint16_t raw;
};

inline float get(const float& v) { return v; }
inline float get(const _Float16& v) { return (float)v; }
inline float get(const bf16& v) {
    uint32_t wide = uint32_t(v.raw) << 16;
    float result;
    std::memcpy(&result, &wide, sizeof result);
    return result;
}

inline void put(float& to, float v) { to = v; }
inline void put(_Float16& to, float v) { to = (_Float16)v; }
inline void put(bf16& to, float v) {
    uint32_t wide;
    std::memcpy(&wide, &v, sizeof wide);
    to.raw = uint16_t((wide + 0x7fffu + ((wide >> 16) & 1u)) >> 16);
}

template <class T>
void normalise_row(const T* x, const T* gamma, const T* beta, T* y, int64_t width, float eps) {
    float mean = 0.f;
    for (int64_t i = 0; i < width; ++i) mean += get(x[i]);
    mean /= (float)width;
    float variance = 0.f;
    for (int64_t i = 0; i < width; ++i) {
        const float d = get(x[i]) - mean;
        variance += d * d;
    }
    variance /= (float)width;
    const float deviation = std::sqrt(variance + eps);
    for (int64_t i = 0; i < width; ++i) {
        put(y[i], (get(x[i]) - mean) / deviation * get(gamma[i]) + get(beta[i]));
    }
}

template <class T>
void normalise(const T* x, const T* gamma, const T* beta, T* y, int64_t rows, int64_t width, float eps) {
    for (int64_t row = 0; row < rows; ++row) {
        normalise_row(x + row * width, gamma, beta, y + row * width, width, eps);
    }
}

extern "C" {

void cpu_layernorm_float32(
    const float* x, const float* gamma, const float* beta, float* y, int64_t rows, int64_t width, float eps) {
    normalise(x, gamma, beta, y, rows, width, eps);
}

void cpu_layernorm_float16(
    const _Float16* x, const _Float16* gamma, const _Float16* beta, _Float16* y, int64_t rows, int64_t width, float eps) {
    normalise(x, gamma, beta, y, rows, width, eps);
}

void cpu_layernorm_bfloat16(
    const bf16* x, const bf16* gamma, const bf16* beta, bf16* y, int64_t rows, int64_t width, float eps) {
    normalise(x, gamma, beta, y, rows, width, eps);
}

}
