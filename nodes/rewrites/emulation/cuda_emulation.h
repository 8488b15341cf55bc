// CUDA on one CPU thread, for checking what kernels compute: every thread of a block is a fiber, barriers and shuffles
// switch fibers, blocks run one after another, those of a cluster together. Slow, deterministic, and it stops where a
// barrier is not reached by all.
#pragma once
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
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
constexpr int warpSize = 32;

namespace emulate {

constexpr size_t kStack = 128 * 1024;
constexpr size_t kShared = 227 * 1024;
constexpr unsigned kCluster = 8;

#if defined(__x86_64__)
// The registers that a call keeps, on the stack that is left. `swapcontext` also keeps the signal mask, which is a
// call into the operating system each time.
struct Context {
  void* stack = nullptr;
};
asm(R"(
.text
.weak emulate_switch
.type emulate_switch, @function
emulate_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq (%rsi), %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
extern "C" void emulate_switch(Context* from, const Context* to);
inline void begin(Context& context, char* stack, size_t bytes, void (*run)()) {
  void** top = reinterpret_cast<void**>(stack + bytes);
  *--top = nullptr;  // where `run` would return to
  *--top = reinterpret_cast<void*>(run);
  for (int kept = 0; kept < 6; ++kept) *--top = nullptr;
  context.stack = top;
}
#else
struct Context : ucontext_t {};
inline void emulate_switch(Context* from, const Context* to) { swapcontext(from, to); }
inline void begin(Context& context, char* stack, size_t bytes, void (*run)()) {
  getcontext(&context);
  context.uc_stack.ss_sp = stack;
  context.uc_stack.ss_size = bytes;
  context.uc_link = nullptr;
  makecontext(&context, run, 0);
}
#endif

struct Copy {
  void* to;
  const void* from;
  size_t bytes;
  unsigned group;
  size_t zeros = 0;  // behind them
};

struct Fiber {
  Context context;
  dim3 thread;
  unsigned linear = 0, rank = 0, shuffles = 0;
  bool done = false;
  const unsigned* waits_for = nullptr;  // runs on when *waits_for != waits_at
  unsigned waits_at = 0;
  std::vector<Copy> copies;  // that it has asked for and not waited for
  unsigned groups = 0;       // of copies, closed by commits
};

struct Meeting {
  unsigned arrived = 0, generation = 0, members = 0;
};

inline Fiber* self = nullptr;
inline unsigned rank = 0, cluster_blocks = 1;  // of the running thread's block in its cluster
inline std::vector<Meeting> warps[kCluster];
inline Meeting everyone[kCluster], whole_cluster;
inline Context scheduler;
inline const void* kernel_of_all = nullptr;  // a lambda; std::function would be instantiated for each launch of a text
inline void (*body)(const void*) = nullptr;
alignas(128) inline unsigned char dynamic_shared[kCluster][kShared];
alignas(128) inline unsigned char static_shared[kCluster][kShared];
inline size_t reserved = 0;
constexpr size_t kMostLooks = size_t(1) << 27;  // of a launch
inline size_t looks = 0;
alignas(16) inline unsigned char exchanged[kCluster][2][32][32][16];  // block, parity, warp, lane, bytes
inline bool backwards = std::getenv("EMULATE_BACKWARDS") != nullptr;

[[noreturn]] inline void fail(const char* what) {
  std::fprintf(stderr, "emulation: %s (block %u %u %u)\n", what, blockIdx.x, blockIdx.y, blockIdx.z);
  std::exit(9);
}

// A place in every block's shared memory; each declaration asks once.
inline size_t reserve(size_t bytes) {
  const size_t at = reserved;
  reserved += (bytes + 127) / 128 * 128;
  if (reserved > kShared) fail("more static shared memory than there is");
  return at;
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
  emulate_switch(&self->context, &scheduler);
}

// Lets the others go on: what a thread reads again and again until somebody has written it.
inline void look_again() {
  if (++looks > kMostLooks) fail("threads wait for a value that nobody writes");
  emulate_switch(&self->context, &scheduler);
}

#if defined(EMULATION_LINKED)  // it was compiled before, for many texts
void run_grid(dim3 grid_, dim3 block_, size_t shared_bytes, unsigned cluster);
#else
inline std::vector<Fiber> fibers;
inline std::unique_ptr<char[]> stacks;

inline void run_fiber() {
  body(kernel_of_all);
  self->done = true;
  for (Meeting* meeting : {&everyone[rank], &warps[rank][self->linear / 32], &whole_cluster}) {
    --meeting->members;
    release(*meeting);
  }
  emulate_switch(&self->context, &scheduler);
}

// The blocks of one cluster, a single one where there are no clusters; blockIdx is the first one's.
inline void run_cluster(unsigned of_block) {
  const unsigned threads = of_block * cluster_blocks;
  const dim3 first = blockIdx;
  whole_cluster = Meeting{0, 0, threads};
  for (unsigned block = 0; block < cluster_blocks; ++block) {
    everyone[block] = Meeting{0, 0, of_block};
    warps[block].assign((of_block + 31) / 32, Meeting{});
  }
  for (unsigned n = 0; n < threads; ++n) {
    Fiber& fiber = fibers[n];
    const unsigned t = n % of_block;
    fiber = Fiber{};
    fiber.linear = t;
    fiber.rank = n / of_block;
    fiber.thread = dim3(t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y);
    ++warps[fiber.rank][t / 32].members;
    begin(fiber.context, &stacks[size_t(n) * kStack], kStack, run_fiber);
  }
  for (unsigned left = threads; left > 0;) {
    bool moved = false;
    for (unsigned n = 0; n < threads; ++n) {
      Fiber& fiber = fibers[backwards ? threads - 1 - n : n];
      if (fiber.done || (fiber.waits_for != nullptr && *fiber.waits_for == fiber.waits_at)) continue;
      fiber.waits_for = nullptr;
      self = &fiber;
      threadIdx = fiber.thread;
      rank = fiber.rank;
      blockIdx = dim3(first.x + rank, first.y, first.z);
      emulate_switch(&scheduler, &fiber.context);
      moved = true;
      if (fiber.done) --left;
    }
    if (!moved) fail("threads wait for each other for ever");
  }
}

inline void run_grid(dim3 grid_, dim3 block_, size_t shared_bytes, unsigned cluster) {
  const unsigned threads = block_.x * block_.y * block_.z;
  if (threads == 0 || threads > 1024) fail("a block of 0 or more than 1024 threads");
  if (grid_.x == 0 || grid_.y == 0 || grid_.z == 0 || grid_.y > 65535 || grid_.z > 65535) fail("a grid out of limits");
  if (shared_bytes > kShared) fail("more shared memory than there is");
  if (cluster == 0 || cluster > kCluster || grid_.x % cluster) fail("a grid that clusters do not divide");
  gridDim = grid_;
  blockDim = block_;
  cluster_blocks = cluster;
  looks = 0;
  const size_t most = std::max<size_t>(1024, threads * cluster);
  if (fibers.size() < most) fibers.resize(most), stacks.reset(new char[most * kStack]);
  const char* only = std::getenv("EMULATE_ENDS");  // so many blocks at either end of x: of a grid that is larger than memory
  const unsigned ends = only != nullptr ? unsigned(std::atoi(only)) : gridDim.x;
  for (unsigned z = 0; z < gridDim.z; ++z)
    for (unsigned y = 0; y < gridDim.y; ++y)
      for (unsigned x = 0; x < gridDim.x; x += cluster) {
        if (x >= ends && x < gridDim.x - std::min(ends, gridDim.x)) continue;
        blockIdx = dim3(x, y, z);
        for (unsigned block = 0; block < cluster; ++block) {  // NaN where nobody wrote
          std::memset(dynamic_shared[block], 0xff, kShared);
          std::memset(static_shared[block], 0xff, reserved);
        }
        run_cluster(threads);
      }
}
#endif

template <typename F>
void launch(dim3 grid, dim3 block, size_t shared_bytes, const F& kernel, unsigned cluster = 1) {
  kernel_of_all = &kernel;
  body = [](const void* held) { (*static_cast<const F*>(held))(); };
  run_grid(grid, block, shared_bytes, cluster);
}

template <typename V>
V exchange(V value, unsigned from) {
  static_assert(sizeof(V) <= 16);
  const unsigned warp = self->linear / 32, lane = self->linear % 32, parity = self->shuffles++ % 2;
  const unsigned mine = rank;
  std::memcpy(exchanged[mine][parity][warp][lane], &value, sizeof(V));
  meet(warps[mine][warp]);
  V other;
  std::memcpy(&other, exchanged[mine][parity][warp][from % 32], sizeof(V));
  return other;
}

}  // namespace emulate

// What cp.async brings arrives as late as it may: when the thread waits for its group.
inline void __pipeline_memcpy_async(void* to, const void* from, size_t bytes, size_t zeros = 0) {
  const size_t places = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from);
  if ((bytes != 4 && bytes != 8 && bytes != 16) || places % bytes) emulate::fail("a copy that cp.async does not make");
  emulate::self->copies.push_back({to, from, bytes - zeros, emulate::self->groups, zeros});
}
inline void __pipeline_commit() { ++emulate::self->groups; }
inline void __pipeline_wait_prior(unsigned left) {
  auto& copies = emulate::self->copies;
  while (!copies.empty() && copies.front().group + left < emulate::self->groups) {
    const auto& copy = copies.front();
    if (copy.bytes) std::memcpy(copy.to, copy.from, copy.bytes);
    std::memset(static_cast<char*>(copy.to) + copy.bytes, 0, copy.zeros);
    copies.erase(copies.begin());
  }
}

inline void __syncthreads() { emulate::meet(emulate::everyone[emulate::rank]); }
inline void __syncwarp(unsigned = ~0u) { emulate::meet(emulate::warps[emulate::rank][emulate::self->linear / 32]); }
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
template <typename V> V __shfl_up_sync(unsigned, V v, unsigned delta, int width = 32) {
  const unsigned mine = emulate::self->linear % 32;
  const V other = emulate::exchange(v, mine >= delta ? mine - delta : mine);
  return mine % width >= delta ? other : v;
}
inline unsigned __ballot_sync(unsigned, bool here) {
  const unsigned mine = emulate::self->linear % 32;
  unsigned all = here ? 1u << mine : 0u;
  for (unsigned step = 1; step < 32; step *= 2) all |= emulate::exchange(all, mine ^ step);
  return all;
}
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
namespace cooperative_groups {
struct cluster_group {
  void sync() const { emulate::meet(emulate::whole_cluster); }
  void barrier_arrive() const {}
  void barrier_wait() const { sync(); }
  unsigned block_rank() const { return emulate::rank; }
  unsigned num_blocks() const { return emulate::cluster_blocks; }
  template <typename V> V* map_shared_rank(V* mine, unsigned of) const {
    if (of >= emulate::cluster_blocks) emulate::fail("a block outside the cluster");
    auto* bytes = reinterpret_cast<unsigned char*>(mine);
    return reinterpret_cast<V*>(bytes + (std::ptrdiff_t(of) - std::ptrdiff_t(emulate::rank)) * std::ptrdiff_t(emulate::kShared));
  }
};
inline cluster_group this_cluster() { return {}; }
}  // namespace cooperative_groups
inline void cudaGridDependencySynchronize() {}
// Fibers switch at barriers only, so a plain read and write is atomic, and seen in order.
inline void __threadfence() {}
inline void __threadfence_system() {}
template <typename V> V atomicAdd(V* to, V value) { return std::exchange(*to, V(*to + value)); }
template <typename V> V atomicCAS(V* to, V expected, V value) { return std::exchange(*to, *to == expected ? value : *to); }
inline void cudaTriggerProgrammaticLaunchCompletion() {}

// Launching.
enum {
  cudaLaunchAttributeProgrammaticStreamSerialization = 1,
  cudaFuncAttributeMaxDynamicSharedMemorySize = 2,
  cudaFuncAttributePreferredSharedMemoryCarveout = 3,
  cudaLaunchAttributeClusterDimension = 4,
  cudaLaunchAttributeCooperative = 5,
};
enum {  // attributes of a device
  cudaDevAttrMultiProcessorCount,
  cudaDevAttrMaxThreadsPerMultiProcessor,
  cudaDevAttrMaxRegistersPerMultiprocessor,
  cudaDevAttrMaxBlocksPerMultiprocessor,
};
struct cudaLaunchAttribute {
  int id;
  struct { int programmaticStreamSerializationAllowed, cooperative; struct { unsigned x, y, z; } clusterDim; } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
  cudaLaunchAttribute* attrs = nullptr;
  unsigned numAttrs = 0;
};
template <typename... P, typename... A>
int cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(P...), A... arguments) {
  unsigned cluster = 1;
  for (unsigned n = 0; n < config->numAttrs; ++n) {
    if (config->attrs[n].id == cudaLaunchAttributeClusterDimension) cluster = config->attrs[n].val.clusterDim.x;
    if (config->attrs[n].id == cudaLaunchAttributeCooperative) cluster = config->gridDim.x;  // its blocks run together, too
  }
  emulate::launch(config->gridDim, config->blockDim, config->dynamicSmemBytes, [&] { kernel(arguments...); }, cluster);
  return 0;
}
template <typename F> int cudaFuncSetAttribute(F, int, int) { return 0; }
inline int cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t) { return std::memset(to, byte, bytes), 0; }
struct cudaFuncAttributes { int numRegs; };
template <typename F> int cudaOccupancyMaxActiveClusters(int* count, F, const cudaLaunchConfig_t* config) { return *count = 132 / config->gridDim.x, 0; }
template <typename F> int cudaFuncGetAttributes(cudaFuncAttributes* of, F) { return of->numRegs = 40, 0; }
inline int cudaGetDevice(int* device) { return *device = 0; }
// An H200, or one with fewer multiprocessors, so that few rows are many.
inline int cudaDeviceGetAttribute(int* value, int attribute, int) {
  const char* fewer = std::getenv("EMULATE_MULTIPROCESSORS");
  const int device[] = {fewer != nullptr ? std::atoi(fewer) : 132, 2048, 65536, 32};
  *value = device[attribute];
  return 0;
}
template <typename F> int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, F, int, size_t) { return *blocks = 4, 0; }
template <typename T> int cudaMalloc(T** at, std::size_t bytes) { return (*at = static_cast<T*>(std::malloc(bytes))) ? 0 : 2; }
template <typename T> int cudaMallocAsync(T** at, std::size_t bytes, cudaStream_t) { return cudaMalloc(at, bytes); }
inline int cudaFreeAsync(void* at, cudaStream_t) { return std::free(at), 0; }
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
  explicit operator float() const {
    if ((bits & 0x7f) == 0x7f) return std::nanf("");
    return std::copysign(value_of(bits & 0x7f), bits & 0x80 ? -1.0f : 1.0f);
  }
  static float value_of(int code) {
    const int exponent = code >> 3, mantissa = code & 7;
    return exponent ? std::ldexp(1.0f + mantissa / 8.0f, exponent - 7) : std::ldexp(mantissa / 8.0f, -6);
  }
};
#define __constant__ static
inline float __half2float(__half x) { return x; }
inline __half __float2half(float x) { return x; }
inline __half __float2half_rn(float x) { return x; }
inline bool __hisnan(float x) { return std::isnan(x); }
inline int __hisinf(float x) { return std::isinf(x) ? (x < 0 ? -1 : 1) : 0; }
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
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const uint64_t bytes = uint64_t(high) << 32 | low;
  unsigned made = 0;
  for (int at = 0; at < 4; ++at) made |= unsigned(bytes >> (selector >> at * 4 & 7) * 8 & 255) << at * 8;
  return made;
}
inline __half2 __floats2half2_rn(float x, float y) { return {x, y}; }
struct alignas(4) __nv_bfloat162 { __nv_bfloat16 x, y; };
using nv_bfloat162 = __nv_bfloat162;
inline float2 __bfloat1622float2(__nv_bfloat162 v) { return {v.x, v.y}; }
inline __nv_bfloat162 __float22bfloat162_rn(float2 v) { return {v.x, v.y}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {x, y}; }
inline __half2 __float2half2_rn(float v) { return {v, v}; }
inline __nv_bfloat162 __float2bfloat162_rn(float v) { return {v, v}; }
template <typename P, typename F> P of_both(P a, P b, F f) { return {f(float(a.x), float(b.x)), f(float(a.y), float(b.y))}; }
template <typename P> P __hmul2(P a, P b) { return of_both(a, b, [](float x, float y) { return x * y; }); }
template <typename P> P __hadd2(P a, P b) { return of_both(a, b, [](float x, float y) { return x + y; }); }
template <typename P> P __hsub2(P a, P b) { return of_both(a, b, [](float x, float y) { return x - y; }); }
template <typename P> P __hmax2(P a, P b) { return of_both(a, b, [](float x, float y) { return std::fmax(x, y); }); }
template <typename P> P __hmin2(P a, P b) { return of_both(a, b, [](float x, float y) { return std::fmin(x, y); }); }
template <typename P> P __hmax2_nan(P a, P b) { return of_both(a, b, [](float x, float y) { return x != x ? x : y != y ? y : std::fmax(x, y); }); }
template <typename P> P __hmin2_nan(P a, P b) { return of_both(a, b, [](float x, float y) { return x != x ? x : y != y ? y : std::fmin(x, y); }); }
template <typename P> P __hneg2(P a) { return {-float(a.x), -float(a.y)}; }
template <typename P> P __habs2(P a) { return {std::fabs(float(a.x)), std::fabs(float(a.y))}; }
template <typename P> P __hfma2(P a, P b, P c) { return {std::fma(float(a.x), float(b.x), float(c.x)), std::fma(float(a.y), float(b.y), float(c.y))}; }

// Arithmetic.
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __uint_as_float(unsigned bits) { float x; std::memcpy(&x, &bits, 4); return x; }
inline unsigned __float_as_uint(float x) { unsigned bits; std::memcpy(&bits, &x, 4); return bits; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline int __float2int_rn(float x) { return int(std::nearbyint(x)); }
template <typename V> V atomicMin(V* at, V value) { return std::exchange(*at, std::min(*at, value)); }
template <typename V> V atomicMax(V* at, V value) { return std::exchange(*at, std::max(*at, value)); }
template <typename V> V __ldg(const V* p) { return *p; }
template <typename V> V __ldcs(const V* p) { return *p; }
template <typename V> V __ldcg(const V* p) { return *p; }
template <typename V, typename W> void __stcs(V* p, W v) { *p = v; }
template <typename V> void __stwb(V* p, V v) { *p = v; }
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
  return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) >> (by & 31));
}
