#include <assert.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <vector>

#define MAX(a, b) ((a) > (b) ? (a) : (b))

typedef double ggml_float;

inline static void ggml_vec_cpy_f32 (const int n, float * y, const float * x) { for (int i = 0; i < n; ++i) y[i] = x[i]; }
inline static void ggml_vec_acc_f32 (const int n, float * y, const float * x) { for (int i = 0; i < n; ++i) y[i] += x[i]; }
inline static void ggml_vec_scale_f32(const int n, float * y, const float v) {
    for (int i = 0; i < n; ++i) {
        y[i] *= v;
    }
}

inline static void ggml_vec_max_f32(const int n, float * s, const float * x) {
    float max = -INFINITY;
    for (int i = 0; i < n; ++i) {
        max = MAX(max, x[i]);
    }
    *s = max;
}

static ggml_float ggml_vec_soft_max_f32(const int n, float * y, const float * x, float max) {
    int i = 0;
    ggml_float sum = 0;
    for (; i < n; ++i) {
        float val = expf(x[i] - max);
        sum += (ggml_float)val;
        y[i] = val;
    }
    return sum;
}

extern "C" void cpu_scratch_softmax(const float * src, const float * mask, float * dst, int64_t rows, int64_t n, float scale) {
    const int nc = (int) n;
    std::vector<float> wdata(nc);
    for (int i1 = 0; i1 < rows; i1++) {
        const float * sp = src + i1*n;
        float * dp = dst + i1*n;
        float * wp = wdata.data();

        ggml_vec_cpy_f32  (nc, wp, sp);
        ggml_vec_scale_f32(nc, wp, scale);
        if (mask) {
            ggml_vec_acc_f32(nc, wp, mask);
        }

        float max = -INFINITY;
        ggml_vec_max_f32(nc, &max, wp);

        ggml_float sum = ggml_vec_soft_max_f32(nc, dp, wp, max);
        assert(sum > 0.0);

        sum = 1.0/sum;
        ggml_vec_scale_f32(nc, dp, sum);
    }
}
