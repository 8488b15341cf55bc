// Takes memory out of all caches, in this process's mapping and in every other: a cold call's inputs are written just before
// it, which leaves them there.
#include <cstddef>
#include <cstdint>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

extern "C" void forget(const char* from, int64_t bytes) {
  constexpr int64_t kLine = 64;
  const char* first = from - reinterpret_cast<uintptr_t>(from) % kLine;
  for (const char* line = first; line < from + bytes; line += kLine) {
#if defined(__CLFLUSHOPT__)
    _mm_clflushopt(const_cast<char*>(line));
#elif defined(__x86_64__)
    _mm_clflush(line);
#elif defined(__aarch64__)
    asm volatile("dc civac, %0" ::"r"(line) : "memory");
#else
#error "how does this processor empty its caches?"
#endif
  }
#if defined(__x86_64__)
  _mm_mfence();
#else
  asm volatile("dsb sy" ::: "memory");
#endif
}
