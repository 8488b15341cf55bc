#include <cmath>
#include <cstdint>
#include <cstring>

static float value_of(float x) { return x; }
static float value_of(uint16_t x) {
    const uint32_t wide = static_cast<uint32_t>(x) << 16;
    float value;
    std::memcpy(&value, &wide, sizeof(value));
    return value;
}

template <typename T>
static void quantise(const T* x, int8_t* q, float* scale, int64_t rows, int64_t columns) {
    for (int64_t r = 0; r < rows; ++r) {
        const T* row = x + r * columns;
        float highest = 0.0f;
        for (int64_t c = 0; c < columns; ++c) {
            highest = fmaxf(highest, fabsf(value_of(row[c])));
        }
        const float step = fmaxf(highest / 127.0f, 1e-10f);
        for (int64_t c = 0; c < columns; ++c) {
            const float rounded = rintf(value_of(row[c]) / step);
            q[r * columns + c] = static_cast<int8_t>(fminf(fmaxf(rounded, -127.0f), 127.0f));
        }
        scale[r] = step;
    }
}

extern "C" void cpu_quantise_float32(const float* x, int8_t* q, float* scale, int64_t rows, int64_t columns) {
    quantise(x, q, scale, rows, columns);
}

extern "C" void cpu_quantise_bfloat16(const uint16_t* x, int8_t* q, float* scale, int64_t rows, int64_t columns) {
    quantise(x, q, scale, rows, columns);
}
