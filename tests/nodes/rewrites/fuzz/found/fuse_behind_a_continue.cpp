// loop_fusion
// timed 1024 4096
// What leaves an element of the first loop early must not leave the second one's out.
#include <cstdint>

extern "C" void fuzz_float32(const float* x, float* y, float* v, int64_t rows, int64_t n) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < n; ++i) {
      if (x[r * n + i] < 0.0f) continue;
      y[r * n + i] = 1.0f;
    }
    for (int64_t i = 0; i < n; ++i) {
      v[r * n + i] = x[r * n + i] * 2.0f;
    }
  }
}
