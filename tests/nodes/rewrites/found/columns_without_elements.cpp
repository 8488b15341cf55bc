// loop_interchange
// timed 64 1000
#include <cstdint>
#include <numeric>

extern "C" void fuzz_float32(const float* x, float* sums, int64_t rows, int64_t n) {
  {
    for (int64_t c = 0; c < n; ++c) {
      float total1 = 0;
      for (int64_t r = 0; r < rows; ++r) {
        total1 += 0.5f;
      }
      sums[c] = total1;
    }
  }
}
