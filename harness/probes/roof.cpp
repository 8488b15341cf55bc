// The compute roof of the vector units: each function runs nothing but independent multiply-adds on registers, on every
// core, and answers the 1e9 FLOPs a second of its fastest try, a multiply-add counted as two.
// Twelve chains hide a latency of four to six cycles of two units and fit sixteen registers beside the two constants.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <omp.h>
#include <vector>

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

// 1e9 bytes a second that one core reads of what no cache holds, the fastest try.
double core_gbps() {
  typedef float Vector __attribute__((vector_size(BYTES)));
  constexpr int64_t COUNT = (128 << 20) / BYTES;
  std::vector<Vector> read(COUNT, Vector{} + 1.0f);
  double best = 0.0;
  for (int attempt = 0; attempt < TRIES; ++attempt) {
    Vector sum[8] = {};
    const auto begin = std::chrono::steady_clock::now();
    for (int64_t at = 0; at < COUNT; at += 8) {
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) sum[i] += read[at + i];
    }
    const auto end = std::chrono::steady_clock::now();
    for (int i = 0; i < 8; ++i) asm volatile("" : : "m"(sum[i]));  // needed
    best = std::max(best, COUNT * BYTES / std::chrono::duration<double>(end - begin).count() * 1e-9);
  }
  return best;
}

// Microseconds of a parallel region in which nothing is done, the median: beside other processes its threads wait for a core.
double region_us() {
  std::vector<double> taken;
  for (int attempt = 0; attempt < 301; ++attempt) {
    const auto begin = std::chrono::steady_clock::now();
#pragma omp parallel
    asm volatile("");
    taken.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() * 1e6);
  }
  std::nth_element(taken.begin(), taken.begin() + taken.size() / 2, taken.end());
  return taken[taken.size() / 2];
}

}  // namespace

extern "C" double roof_core_gbps() { return core_gbps(); }
extern "C" double roof_region_us() { return region_us(); }
extern "C" double roof_float64() { return gflops<double>(); }
extern "C" double roof_float32() { return gflops<float>(); }
