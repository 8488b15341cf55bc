// WRONG: the last row wins where several share a source.
// Each row's gradient, shared out evenly, is added to the rows that it was the mean of, one after another.
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


template <typename T>
static void scatter_mean_backward(
    const T* grad_out, const int32_t* ids, float* grad, int64_t sources, int64_t rows, int64_t fanout, int64_t width) {
    std::memset(grad, 0, static_cast<size_t>(sources * width) * sizeof(float));
    for (int64_t row = 0; row < rows; ++row) {
        const int32_t* mine = ids + row * fanout;
        int64_t count = 0;
        for (int64_t j = 0; j < fanout; ++j) {
            count += mine[j] >= 0;
        }
        for (int64_t j = 0; j < fanout; ++j) {
            if (mine[j] >= 0) {
                for (int64_t i = 0; i < width; ++i) {
                    grad[mine[j] * width + i] = to_float(grad_out[row * width + i]) / static_cast<float>(count);
                }
            }
        }
    }
}

extern "C" void scatter_mean_backward_float16(
    const _Float16* grad_out, const int32_t* ids, float* grad, int64_t sources, int64_t rows, int64_t fanout, int64_t width) {
    scatter_mean_backward(grad_out, ids, grad, sources, rows, fanout, width);
}

extern "C" void scatter_mean_backward_bfloat16(
    const bfloat16* grad_out, const int32_t* ids, float* grad, int64_t sources, int64_t rows, int64_t fanout, int64_t width) {
    scatter_mean_backward(grad_out, ids, grad, sources, rows, fanout, width);
}

extern "C" void scatter_mean_backward_float32(
    const float* grad_out, const int32_t* ids, float* grad, int64_t sources, int64_t rows, int64_t fanout, int64_t width) {
    scatter_mean_backward(grad_out, ids, grad, sources, rows, fanout, width);
}
