// WRONG: takes row 0 for a neighbour that is not there.
// The mean of the rows that each row of ids names, summed in float, an element after another. -1 is no id.
#include <cstdint>
#include <cstring>

struct bfloat16 {
    uint16_t bits;
};

static inline float to_float(float value) { return value; }
static inline float to_float(_Float16 value) { return static_cast<float>(value); }
static inline float to_float(bfloat16 value) {
    const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
    float wide;
    std::memcpy(&wide, &bits, sizeof(wide));
    return wide;
}

static inline void store(float* to, float value) { *to = value; }
static inline void store(_Float16* to, float value) { *to = static_cast<_Float16>(value); }
static inline void store(bfloat16* to, float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    to->bits = static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

template <typename T>
static void gather_mean(
    const T* table, const int32_t* ids, T* out, int64_t rows, int64_t fanout, int64_t width) {
    for (int64_t row = 0; row < rows; ++row) {
        const int32_t* mine = ids + row * fanout;
        int64_t count = 0;
        for (int64_t j = 0; j < fanout; ++j) {
            count += mine[j] >= 0;
        }
        const float divisor = count > 0 ? static_cast<float>(count) : 1.0f;
        for (int64_t i = 0; i < width; ++i) {
            float sum = 0.0f;
            for (int64_t j = 0; j < fanout; ++j) {
                sum += to_float(table[(mine[j] < 0 ? 0 : mine[j]) * width + i]);
            }
            store(out + row * width + i, sum / divisor);
        }
    }
}

extern "C" void gather_mean_float16(
    const _Float16* table, const int32_t* ids, _Float16* out, int64_t nodes, int64_t rows, int64_t fanout, int64_t width) {
    (void)nodes;
    gather_mean(table, ids, out, rows, fanout, width);
}

extern "C" void gather_mean_bfloat16(
    const bfloat16* table, const int32_t* ids, bfloat16* out, int64_t nodes, int64_t rows, int64_t fanout, int64_t width) {
    (void)nodes;
    gather_mean(table, ids, out, rows, fanout, width);
}

extern "C" void gather_mean_float32(
    const float* table, const int32_t* ids, float* out, int64_t nodes, int64_t rows, int64_t fanout, int64_t width) {
    (void)nodes;
    gather_mean(table, ids, out, rows, fanout, width);
}
