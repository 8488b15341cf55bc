// licm
// timed 1024 4096
// What is done in the first round reads what that round has written.
#include <cstdint>

extern "C" void fuzz_float32(const float* x, float* y, float* out, int64_t rows, int64_t n) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < n; ++i) {
      y[row * n + i] = x[row * n + i] * 2.0f;
      if (i == 0) {
        out[row] = y[row * n];
      }
    }
  }
}
