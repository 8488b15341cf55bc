// licm
// timed 64 1000
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>

extern "C" void fuzz_float16(const _Float16* x, const _Float16* z, float* out, float* sums, int64_t rows, int64_t n) {
  for (int64_t r = 0; r < rows; r++) {
    float sum2 = 0.0f;
    for (int64_t i = 0; i < n; ++i) {
      const float in3 = float(x[r * n + i]);
      sum2 += (1.0f / std::sqrt(0.5f * 0.5f + 1.0f));
    }
    const float result4 = 1.0f / std::sqrt((float)(sum2 * sum2 / n) + 1.0f);
    float sum5 = INFINITY;
    float sum6 = INFINITY;
    for (int i = 0; i < n; i++) {
      const float in7 = float(z[r * n + i]);
      sum5 = std::min<float>(sum5, (1.0f / std::sqrt(result4 * result4 + 1.0f)));
      sum6 = std::min<float>(sum6, (1.0f / std::sqrt(result4 * result4 + 1.0f)));
    }
    out[r] = ((float)sum6 / (1.0f + fabsf(1.25f)));
  }
  {
    for (int64_t c = 0; c < n; c++) {
      sums[c] = 0.0f;
    }
    for (int r = 0; r < rows; r++) {
      for (int c = 0; c < n; ++c) {
        sums[c] += (1.25f * (float)(n % 7));
      }
    }
  }
}
