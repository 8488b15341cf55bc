// Speed of light: reads `read` packs of 16 bytes with every core, writes the first `inplace` of them back to where they
// came from and `write` others elsewhere, and does nothing else.
// Stores that go around the caches win where the output does not fit them, one thread where starting the others takes
// longer than the work, so all three kinds are timed.
#include <cstdint>
#include <cstring>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace {

struct alignas(16) Pack {
  int64_t a, b;
};

template <bool AROUND>
void put(Pack* to, Pack value) {
#if defined(__SSE2__)
  if (AROUND) return _mm_stream_si128((__m128i*)to, _mm_load_si128((const __m128i*)&value));
#endif
  *to = value;
}

template <bool AROUND, bool PARALLEL>
void stream(Pack* in, Pack* out, int64_t read, int64_t write, int64_t inplace) {
  const int64_t copied = read - inplace < write ? read - inplace : write;  // read packs that have one to write
  int64_t sum = 0;
#pragma omp parallel if (PARALLEL) reduction(+ : sum)
  {
#pragma omp for schedule(static) nowait
    for (int64_t i = 0; i < inplace; ++i) in[i] = Pack{in[i].a + 1, in[i].b};
#pragma omp for schedule(static) nowait
    for (int64_t i = 0; i < copied; ++i) put<AROUND>(out + i, in[inplace + i]);
#pragma omp for schedule(static) nowait
    for (int64_t i = inplace + copied; i < read; ++i) sum += in[i].a ^ in[i].b;
#pragma omp for schedule(static)
    for (int64_t i = copied; i < write; ++i) put<AROUND>(out + i, Pack{1, 2});
  }
  if (sum == 0x7ffffffffffffff1) out[0].a = sum;  // so that reading was needed
}

}  // namespace

extern "C" void light_cached(void* in, void* out, int64_t read, int64_t write, int64_t inplace) {
  stream<false, true>((Pack*)in, (Pack*)out, read, write, inplace);
}

extern "C" void light_around(void* in, void* out, int64_t read, int64_t write, int64_t inplace) {
  stream<true, true>((Pack*)in, (Pack*)out, read, write, inplace);
}

extern "C" void light_serial(void* in, void* out, int64_t read, int64_t write, int64_t inplace) {
  stream<false, false>((Pack*)in, (Pack*)out, read, write, inplace);
}
