// unflatten_loop licm
// timed 4096 64
#include <cmath>
#include <cstdint>

template <typename T>
static void work(const T* w, const float* s, T* v, int64_t rows, int64_t n) {
  {
    for (int64_t index_ = 0; index_ < rows * n; ++index_) {
      const int64_t row = index_ / n;
      const int64_t column = index_ % n;
      const float in3 = s[row];
      const float in4 = s[row];
      const float in5 = w[column];
      float t6 = ((0.5f + 1.25f) * (in5 * in5));
      if (in4 > 0.0f) { v[row * n + column] = static_cast<T>((in3 != 0.0f ? expf(-fabsf(t6)) : (t6 - 0.5f))); }
    }
  }
}

extern "C" void fuzz_float32(const float* w, const float* s, float* v, int64_t rows, int64_t n) {
  work(w, s, v, rows, n);
}
