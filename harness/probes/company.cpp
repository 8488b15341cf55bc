// What the parent does around every timed call on a CPU: a verdict makes ten thousands of calls, and in as many small tensor
// operations writing their inputs took ten times as long as the calls.
#include <cstdint>

// The input of a call, `to[i] = a[i] ^ (x[i] & b[i])`, where `b` begins anew after `round` bytes.
extern "C" void mix(char* __restrict to, const char* __restrict a, const char* __restrict x, const char* __restrict b,
                    int64_t bytes, int64_t round) {
  for (int64_t first = 0; first < bytes; first += round) {
    const int64_t count = bytes - first < round ? bytes - first : round;
    for (int64_t i = 0; i < count; ++i) to[first + i] = a[first + i] ^ (x[first + i] & b[i]);
  }
}

template <typename T> static int64_t all_ones(const T* values, int64_t count) {
  int64_t found = 0;
  for (int64_t i = 0; i < count; ++i) found += values[i] == T(-1);
  return found;
}

// How many elements of so many bytes have all bits set, as poison has.
extern "C" int64_t poisoned(const void* values, int64_t count, int64_t width) {
  switch (width) {
    case 1: return all_ones(static_cast<const uint8_t*>(values), count);
    case 2: return all_ones(static_cast<const uint16_t*>(values), count);
    case 4: return all_ones(static_cast<const uint32_t*>(values), count);
    default: return all_ones(static_cast<const uint64_t*>(values), count);
  }
}

// Takes memory out of all caches, in this process's mapping and in every other: a cold call's inputs are written just before
// it, which leaves them there.
extern "C" void forget(const char* from, int64_t bytes) {
  constexpr int64_t kLine = 64;
  const char* first = from - reinterpret_cast<uintptr_t>(from) % kLine;
  for (const char* line = first; line < from + bytes; line += kLine) {
#if defined(__CLFLUSHOPT__)
    __builtin_ia32_clflushopt(line);
#elif defined(__x86_64__)
    __builtin_ia32_clflush(line);
#elif defined(__aarch64__)
    asm volatile("dc civac, %0" ::"r"(line) : "memory");
#else
#error "how does this processor empty its caches?"
#endif
  }
#if defined(__x86_64__)
  __builtin_ia32_mfence();
#else
  asm volatile("dsb sy" ::: "memory");
#endif
}
