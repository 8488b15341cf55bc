// The compute roof of the vector units: each function runs nothing but independent multiply-adds on registers, on every
// core, and answers the 1e9 FLOPs a second of its fastest try, a multiply-add counted as two.
// Twelve chains hide a latency of four to six cycles of two units and fit sixteen registers beside the two constants.
#include <chrono>
#include <cstdint>
#include <omp.h>

namespace {

#if defined(__AVX512F__)
constexpr int BYTES = 64;
#elif defined(__AVX__)
constexpr int BYTES = 32;
#else
constexpr int BYTES = 16;
#endif
constexpr int CHAINS = 12, TRIES = 5;
constexpr int64_t ROUNDS = 1 << 20;

template <typename T>
double gflops() {
  typedef T Vector __attribute__((vector_size(BYTES)));
  constexpr int WIDTH = BYTES / sizeof(T);
  double best = 0.0;
  for (int attempt = 0; attempt < TRIES; ++attempt) {
    double slowest = 0.0;
    int threads = 1;
#pragma omp parallel reduction(max : slowest)
    {
#pragma omp single
      threads = omp_get_num_threads();
      Vector sum[CHAINS];
      Vector scale = Vector{} + T(0.5), shift = Vector{} + T(1 + attempt);
      asm volatile("" : "+m"(scale), "+m"(shift));  // unknown to the compiler, which could solve the recurrence
      for (int i = 0; i < CHAINS; ++i) sum[i] = Vector{} + T(i);
#pragma omp barrier
      const auto begin = std::chrono::steady_clock::now();
      for (int64_t round = 0; round < ROUNDS; ++round) {
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; ++i) sum[i] = sum[i] * scale + shift;
      }
      const auto end = std::chrono::steady_clock::now();
      Vector all = {};
      for (int i = 0; i < CHAINS; ++i) all += sum[i];
      asm volatile("" : : "m"(all));  // needed
      slowest = std::chrono::duration<double>(end - begin).count();
    }
    const double rate = 2.0 * WIDTH * CHAINS * double(ROUNDS) * threads / slowest * 1e-9;
    if (rate > best) best = rate;
  }
  return best;
}

}  // namespace

extern "C" double roof_float64() { return gflops<double>(); }
extern "C" double roof_float32() { return gflops<float>(); }
