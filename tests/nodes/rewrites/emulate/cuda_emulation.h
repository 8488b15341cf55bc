// CUDA on one CPU thread, for checking what kernels compute: every thread of a block is a fiber, barriers and shuffles
// switch fibers, blocks run one after another. Slow, deterministic, and it stops where a barrier is not reached by all.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

using std::max;
using std::min;

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __forceinline__ inline
#define __noinline__
#define __restrict__
#define __align__(n) alignas(n)
#define __launch_bounds__(...)
#define __CUDA_ARCH__ 900

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
using cudaStream_t = void*;
using cudaError_t = int;
constexpr int cudaSuccess = 0;

inline dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulate {

constexpr size_t kStack = 128 * 1024;
constexpr size_t kShared = 227 * 1024;

struct Fiber {
  ucontext_t context;
  dim3 thread;
  unsigned linear = 0, shuffles = 0;
  bool done = false;
  const unsigned* waits_for = nullptr;  // runs on when *waits_for != waits_at
  unsigned waits_at = 0;
};

struct Meeting {
  unsigned arrived = 0, generation = 0, members = 0;
};

inline Fiber* self = nullptr;
inline std::vector<Fiber> fibers;
inline std::vector<char> stacks;
inline std::vector<Meeting> warps;
inline Meeting everyone;
inline ucontext_t scheduler;
inline const std::function<void()>* body = nullptr;
alignas(128) inline unsigned char dynamic_shared[kShared];
alignas(16) inline unsigned char exchanged[2][32][32][16];  // parity, warp, lane, bytes
inline bool backwards = std::getenv("EMULATE_BACKWARDS") != nullptr;

[[noreturn]] inline void fail(const char* what) {
  std::fprintf(stderr, "emulation: %s (block %u %u %u)\n", what, blockIdx.x, blockIdx.y, blockIdx.z);
  std::exit(9);
}

inline void release(Meeting& meeting) {
  if (meeting.arrived == meeting.members && meeting.members > 0) {
    meeting.arrived = 0;
    ++meeting.generation;
  }
}

inline void meet(Meeting& meeting) {
  ++meeting.arrived;
  const unsigned generation = meeting.generation;
  release(meeting);
  if (meeting.generation != generation) return;
  self->waits_for = &meeting.generation;
  self->waits_at = generation;
  swapcontext(&self->context, &scheduler);
}

inline void run_fiber() {
  (*body)();
  self->done = true;
  --everyone.members;
  --warps[self->linear / 32].members;
  release(everyone);
  release(warps[self->linear / 32]);
  swapcontext(&self->context, &scheduler);
}

inline void run_block(unsigned threads) {
  everyone = Meeting{0, 0, threads};
  warps.assign((threads + 31) / 32, Meeting{});
  for (unsigned t = 0; t < threads; ++t) {
    Fiber& fiber = fibers[t];
    fiber = Fiber{};
    fiber.linear = t;
    fiber.thread = dim3(t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y);
    ++warps[t / 32].members;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = &stacks[size_t(t) * kStack];
    fiber.context.uc_stack.ss_size = kStack;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, run_fiber, 0);
  }
  for (unsigned left = threads; left > 0;) {
    bool moved = false;
    for (unsigned n = 0; n < threads; ++n) {
      Fiber& fiber = fibers[backwards ? threads - 1 - n : n];
      if (fiber.done || (fiber.waits_for != nullptr && *fiber.waits_for == fiber.waits_at)) continue;
      fiber.waits_for = nullptr;
      self = &fiber;
      threadIdx = fiber.thread;
      swapcontext(&scheduler, &fiber.context);
      moved = true;
      if (fiber.done) --left;
    }
    if (!moved) fail("threads wait for each other for ever");
  }
}

inline void launch(dim3 grid_, dim3 block_, size_t shared_bytes, const std::function<void()>& kernel) {
  const unsigned threads = block_.x * block_.y * block_.z;
  if (threads == 0 || threads > 1024) fail("a block of 0 or more than 1024 threads");
  if (grid_.x == 0 || grid_.y == 0 || grid_.z == 0 || grid_.y > 65535 || grid_.z > 65535) fail("a grid out of limits");
  if (shared_bytes > kShared) fail("more shared memory than there is");
  gridDim = grid_;
  blockDim = block_;
  if (fibers.size() < threads) fibers.resize(1024), stacks.resize(1024 * kStack);
  body = &kernel;
  for (unsigned z = 0; z < gridDim.z; ++z)
    for (unsigned y = 0; y < gridDim.y; ++y)
      for (unsigned x = 0; x < gridDim.x; ++x) {
        blockIdx = dim3(x, y, z);
        std::memset(dynamic_shared, 0xff, sizeof(dynamic_shared));  // NaN where nobody wrote
        run_block(threads);
      }
}

template <typename V>
V exchange(V value, unsigned from) {
  static_assert(sizeof(V) <= 16);
  const unsigned warp = self->linear / 32, lane = self->linear % 32, parity = self->shuffles++ % 2;
  if (warps[warp].members != 32 && warps.size() * 32 > fibers.size()) fail("a shuffle in a warp that is not whole");
  std::memcpy(exchanged[parity][warp][lane], &value, sizeof(V));
  meet(warps[warp]);
  V other;
  std::memcpy(&other, exchanged[parity][warp][from % 32], sizeof(V));
  return other;
}

}  // namespace emulate

inline void __syncthreads() { emulate::meet(emulate::everyone); }
inline void __syncwarp(unsigned = ~0u) { emulate::meet(emulate::warps[emulate::self->linear / 32]); }
template <typename V> V __shfl_xor_sync(unsigned, V v, int mask, int = 32) { return emulate::exchange(v, (emulate::self->linear % 32) ^ mask); }
template <typename V> V __shfl_sync(unsigned, V v, int lane, int width = 32) {
  const unsigned mine = emulate::self->linear % 32;
  return emulate::exchange(v, mine / width * width + lane % width);
}
template <typename V> V __shfl_down_sync(unsigned, V v, unsigned delta, int width = 32) {
  const unsigned mine = emulate::self->linear % 32;
  const V other = emulate::exchange(v, mine + delta < 32 ? mine + delta : mine);
  return mine % width + delta < unsigned(width) ? other : v;
}
inline void cudaGridDependencySynchronize() {}
inline void cudaTriggerProgrammaticLaunchCompletion() {}

// Launching.
enum { cudaLaunchAttributeProgrammaticStreamSerialization = 1, cudaFuncAttributeMaxDynamicSharedMemorySize = 2 };
struct cudaLaunchAttribute { int id; struct { int programmaticStreamSerializationAllowed; } val; };
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
  cudaLaunchAttribute* attrs = nullptr;
  unsigned numAttrs = 0;
};
template <typename... P, typename... A>
int cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(P...), A... arguments) {
  emulate::launch(config->gridDim, config->blockDim, config->dynamicSmemBytes, [&] { kernel(arguments...); });
  return 0;
}
template <typename F> int cudaFuncSetAttribute(F, int, int) { return 0; }
inline int cudaGetLastError() { return 0; }

// Types.
struct __half { _Float16 value; __half() = default; __half(float x) : value(static_cast<_Float16>(x)) {} operator float() const { return value; } };
using half = __half;
struct __nv_bfloat16 {
  uint16_t bits;
  __nv_bfloat16() = default;
  __nv_bfloat16(float x) {
    uint32_t u;
    std::memcpy(&u, &x, 4);
    bits = (u & 0x7fffffff) > 0x7f800000 ? uint16_t(u >> 16 | 0x40) : uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16);
  }
  operator float() const { uint32_t u = uint32_t(bits) << 16; float x; std::memcpy(&x, &u, 4); return x; }
};
using nv_bfloat16 = __nv_bfloat16;
struct __nv_fp8_e4m3 {
  uint8_t bits;
  __nv_fp8_e4m3() = default;
  explicit __nv_fp8_e4m3(float x) {  // nearest of all 256 codes, ties to even; the range is +-448
    const uint8_t sign = std::signbit(x) ? 0x80 : 0;
    const float size = std::min(std::fabs(x), 448.0f);
    int best = 0;
    for (int code = 0; code < 0x7f; ++code) {
      const float near = std::fabs(value_of(code) - size), so_far = std::fabs(value_of(best) - size);
      if (near < so_far || (near == so_far && code % 2 == 0)) best = code;
    }
    bits = x != x ? 0x7f : uint8_t(sign | best);
  }
  static float value_of(int code) {
    const int exponent = code >> 3, mantissa = code & 7;
    return exponent ? std::ldexp(1.0f + mantissa / 8.0f, exponent - 7) : std::ldexp(mantissa / 8.0f, -6);
  }
};
inline float __half2float(__half x) { return x; }
inline __half __float2half(float x) { return x; }
inline __half __float2half_rn(float x) { return x; }
inline float __bfloat162float(__nv_bfloat16 x) { return x; }
inline __nv_bfloat16 __float2bfloat16(float x) { return x; }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return x; }
struct alignas(4) __half2 { __half x, y; };
using half2 = __half2;
struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) int4 { int x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 __half22float2(__half2 v) { return {v.x, v.y}; }
inline __half2 __float22half2_rn(float2 v) { return {v.x, v.y}; }
inline __half2 __floats2half2_rn(float x, float y) { return {x, y}; }

// Arithmetic.
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline int __float2int_rn(float x) { return int(std::nearbyint(x)); }
template <typename V> V __ldg(const V* p) { return *p; }
template <typename V> V __ldcs(const V* p) { return *p; }
template <typename V> V __ldcg(const V* p) { return *p; }
template <typename V, typename W> void __stcs(V* p, W v) { *p = v; }
