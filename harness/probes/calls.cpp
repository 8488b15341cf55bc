// Makes the calls of a request on a CPU, for every candidate alike: from Python each would take a microsecond more, which a
// candidate that replaces this process's Python could leave out.
//
// A call's arguments are words: those of the integer registers, those of the floating-point ones, then the stack's, as the
// calling conventions of x86-64 (System V) and AArch64 hand them on. An entry point looks at those that it knows.
#include <cstdint>
#include <cstring>
#include <ctime>
#include <utility>

#if defined(__x86_64__)
constexpr size_t kIntegers = 6;
#elif defined(__aarch64__)
constexpr size_t kIntegers = 8;
#else
#error "how does this processor hand on arguments?"
#endif
constexpr size_t kFloats = 8;

static inline double as_double(uint64_t word) {
  double value;
  std::memcpy(&value, &word, sizeof(value));
  return value;
}
template <size_t> using Word = uint64_t;
template <size_t> using Float = double;

template <size_t... I, size_t... F, size_t... S>
static inline void call(void* entry, const uint64_t* w, std::index_sequence<I...>, std::index_sequence<F...>,
                        std::index_sequence<S...>) {
  reinterpret_cast<void (*)(Word<I>..., Float<F>..., Word<S>...)>(entry)(
      w[I]..., as_double(w[kIntegers + F])..., w[kIntegers + kFloats + S]...);
}

template <size_t kStack>
static int64_t timed(void* entry, const uint64_t* words, const int32_t* order, int64_t count, int64_t repeat) {
  timespec begin, end;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  for (int64_t pass = 0; pass < repeat; ++pass) {
    for (int64_t i = 0; i < count; ++i) {
      call(entry, words + order[i] * (kIntegers + kFloats + kStack), std::make_index_sequence<kIntegers>(),
           std::make_index_sequence<kFloats>(), std::make_index_sequence<kStack>());
    }
  }
  clock_gettime(CLOCK_MONOTONIC, &end);
  return (end.tv_sec - begin.tv_sec) * INT64_C(1000000000) + end.tv_nsec - begin.tv_nsec;
}

static inline uint64_t mix(uint64_t z) {  // splitmix64's finaliser
  z = ((z += UINT64_C(0x9E3779B97F4A7C15)) ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
  return z ^ (z >> 31);
}

// Copies what a call has returned, which is nobody's time, and answers of how many places, drawn from `seed`, the content when the call
// returned is not what the copy has: somebody was still computing it.
extern "C" int64_t take_output(void* to, const void* from, int64_t bytes, uint64_t seed) {
  constexpr int kPlaces = 32;
  const int64_t width = bytes < 4 ? bytes : 4, places = width ? bytes / width : 0;
  char before[kPlaces][4];
  int64_t at[kPlaces], changed = 0;
  for (int i = 0; i < kPlaces && places; ++i) {
    seed = mix(seed);
    at[i] = int64_t(seed % uint64_t(places)) * width;
    std::memcpy(before[i], static_cast<const char*>(from) + at[i], width);
  }
  std::memcpy(to, from, bytes);
  for (int i = 0; i < kPlaces && places; ++i) changed += std::memcmp(before[i], static_cast<const char*>(to) + at[i], width) != 0;
  return changed;
}

extern "C" int64_t integer_registers() { return kIntegers; }
extern "C" int64_t float_registers() { return kFloats; }

// Nanoseconds of the calls with these numbers, in that order, `repeat` times; -1 where `stack` is none of the sizes below.
extern "C" int64_t make_calls(void* entry, const uint64_t* words, int64_t stack, const int32_t* order, int64_t count, int64_t repeat) {
  switch (stack) {
    case 0: return timed<0>(entry, words, order, count, repeat);
    case 4: return timed<4>(entry, words, order, count, repeat);
    case 16: return timed<16>(entry, words, order, count, repeat);
    case 64: return timed<64>(entry, words, order, count, repeat);
    default: return -1;
  }
}
