// What tensor_cores.py makes calls of. An address in shared memory is its distance from where a block's dynamic part begins; the static part is behind it.
#pragma once
#include <cstring>
#include <map>

#define __grid_constant__
#define __CUDA_ARCH_FEAT_SM90_ALL

namespace tensor {
[[noreturn]] inline void fail(const char* what) {  // from a fiber, whose stack is too small for what exit() calls
  std::fprintf(stderr, "emulation: %s (block %u %u %u)\n", what, blockIdx.x, blockIdx.y, blockIdx.z);
  std::_Exit(9);
}
}  // namespace tensor

struct int2 { int x, y; };
inline int2 make_int2(int x, int y) { return {x, y}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline unsigned atomicMax(unsigned* at, unsigned value) { const unsigned before = *at; return *at = std::max(before, value), before; }
inline __half __low2half(__half2 v) { return v.x; }
inline __half __high2half(__half2 v) { return v.y; }

// --- the driver's encoder: a map is what it was made from -------------------------------------------------------------------
struct CUtensorMap { const void* base; uint64_t sizes[5]; uint32_t box[3]; uint64_t strides[5]; int first[3], last[3]; uint32_t steps[5]; };
enum CUresult { CUDA_SUCCESS, CUDA_ERROR_INVALID_VALUE };
enum CUtensorMapDataType { CU_TENSOR_MAP_DATA_TYPE_FLOAT16, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 };
enum CUtensorMapInterleave { CU_TENSOR_MAP_INTERLEAVE_NONE };
enum CUtensorMapSwizzle { CU_TENSOR_MAP_SWIZZLE_128B };
enum CUtensorMapL2promotion { CU_TENSOR_MAP_L2_PROMOTION_L2_256B };
enum CUtensorMapFloatOOBfill { CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE };
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess };
enum { cudaEnableDefault };
using cuuint32_t = uint32_t;
using cuuint64_t = uint64_t;
using cudaError_t = int;

inline CUresult encode_tiled(CUtensorMap* map, CUtensorMapDataType, cuuint32_t rank, void* base, const cuuint64_t* sizes, const cuuint64_t* strides,
                             const cuuint32_t* box, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                             CUtensorMapFloatOOBfill) {
  *map = CUtensorMap{base, {1, 1, 1}, {1, 1, 1}, {2, 0, 0}, {}, {}, {}};
  for (cuuint32_t n = 0; n < rank; ++n) {
    map->sizes[n] = sizes[n], map->box[n] = box[n];
    if (n > 0) map->strides[n] = strides[n - 1];
    if (n > 0 && (strides[n - 1] == 0 || strides[n - 1] % 16)) tensor::fail("a map whose rows are no multiples of 16 bytes apart");
    if (box[n] > 256) tensor::fail("a box of more than 256 places");
  }
  if (box[0] != 64 || uint64_t(base) % 16) tensor::fail("a map of boxes that are not 128 bytes wide, or of a tensor at an odd address");
  return CUDA_SUCCESS;
}
// Of [images, *places, channels]: places from `first` on, `steps` apart, up to `last` behind the image's end.
inline CUresult encode_im2col(CUtensorMap* map, CUtensorMapDataType, cuuint32_t rank, void* base, const cuuint64_t* sizes, const cuuint64_t* strides,
                              const int* first, const int* last, cuuint32_t channels, cuuint32_t pixels, const cuuint32_t* steps, CUtensorMapInterleave,
                              CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  *map = CUtensorMap{base, {1, 1, 1, 1, 1}, {channels, pixels, 1}, {2}, {}, {}, {}};
  for (cuuint32_t n = 0; n < rank; ++n) {
    map->sizes[n] = sizes[n], map->steps[n] = steps[n];
    if (n > 0) map->strides[n] = strides[n - 1];
    if (n > 0 && (strides[n - 1] == 0 || strides[n - 1] % 16)) tensor::fail("a map whose rows are no multiples of 16 bytes apart");
  }
  const int far = rank == 3 ? 1 << 15 : rank == 4 ? 1 << 7 : 1 << 4;
  for (cuuint32_t n = 0; n + 2 < rank; ++n) {
    map->first[n] = first[n], map->last[n] = last[n];
    if (first[n] < -far || first[n] >= far || last[n] < -far || last[n] >= far || steps[n + 1] > 8) return CUDA_ERROR_INVALID_VALUE;
  }
  if (channels != 64 || uint64_t(base) % 16) tensor::fail("a map of boxes that are not 128 bytes wide, or of a tensor at an odd address");
  return CUDA_SUCCESS;
}
inline cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** entry, unsigned, int, cudaDriverEntryPointQueryResult* result) {
  *entry = !std::strcmp(name, "cuTensorMapEncodeIm2col") ? reinterpret_cast<void*>(encode_im2col) : reinterpret_cast<void*>(encode_tiled);
  *result = cudaDriverEntryPointSuccess;
  return 0;
}

inline uint64_t __cvta_generic_to_shared(const void* at) {
  const auto* const byte = static_cast<const unsigned char*>(at);
  const unsigned char* const fixed = emulate::static_shared[emulate::rank];
  if (byte >= fixed && byte < fixed + emulate::kShared) return emulate::kShared + (byte - fixed);
  return byte - emulate::dynamic_shared[emulate::rank];
}

namespace tensor {

inline unsigned char* place(uint64_t address, unsigned rank = emulate::rank) {
  if (address >= 2 * emulate::kShared) tensor::fail("an address that is not in shared memory");
  return address < emulate::kShared ? emulate::dynamic_shared[rank] + address : emulate::static_shared[rank] + (address - emulate::kShared);
}
// What another block may be writing; it gets to it in between.
inline void read_now(uint32_t& word, const float* from) {
  emulate::look_again();
  std::memcpy(&word, from, 4);
}
inline void read_now(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d, const float* from) {
  if (reinterpret_cast<uintptr_t>(from) % 16) tensor::fail("four words that are not aligned");
  read_now(a, from), read_now(b, from + 1), read_now(c, from + 2), read_now(d, from + 3);
}
inline uint64_t swizzled(uint64_t address) { return address ^ (address >> 7 & 7) << 4; }
inline float half_at(const void* at) {
  __half value;
  std::memcpy(&value, at, 2);
  return __half2float(value);
}
template <typename T>
inline float one_of(uint32_t pair, int which) {
  T value;
  std::memcpy(&value, reinterpret_cast<const char*>(&pair) + 2 * which, 2);
  return float(value);
}

inline void copy(uint64_t to, const void* from, int bytes, int of) {
  if (to % of || reinterpret_cast<uintptr_t>(from) % of || bytes > of) tensor::fail("a copy that cp.async does not make");
  place(to + of - 1);
  emulate::self->copies.push_back({place(to), from, size_t(bytes), emulate::self->groups, size_t(of - bytes)});
}

struct Warp { uint64_t at[32]; uint32_t a[32][4], b[32][2]; };
inline Warp warps[emulate::kCluster][32];
inline Warp& mine() { return warps[emulate::rank][emulate::self->linear / 32]; }

inline void ldmatrix(bool transposed, uint32_t& r0, uint32_t& r1, uint32_t& r2, uint32_t& r3, uint64_t from) {
  const unsigned lane = emulate::self->linear % 32;
  uint32_t* const to[] = {&r0, &r1, &r2, &r3};
  mine().at[lane] = from;
  __syncwarp();
  for (unsigned m = 0; m < 4; ++m)
    for (unsigned i = 0; i < 2; ++i) {
      const unsigned row = transposed ? lane % 4 * 2 + i : lane / 4, column = transposed ? lane / 4 : lane % 4 * 2 + i;
      std::memcpy(reinterpret_cast<char*>(to[m]) + 2 * i, place(mine().at[m * 8 + row]) + 2 * column, 2);
    }
  __syncwarp();
}

template <typename T>
inline void mma(float& d0, float& d1, float& d2, float& d3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  const unsigned lane = emulate::self->linear % 32;
  float* const d[] = {&d0, &d1, &d2, &d3};
  const uint32_t a[] = {a0, a1, a2, a3};
  std::memcpy(mine().a[lane], a, sizeof a);
  mine().b[lane][0] = b0, mine().b[lane][1] = b1;
  __syncwarp();
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    double sum = *d[i];
    for (unsigned k = 0; k < 16; ++k)
      sum += double(one_of<T>(mine().a[row % 8 * 4 + k % 8 / 2][k / 8 * 2 + row / 8], k % 2)) * one_of<T>(mine().b[column * 4 + k % 8 / 2][k / 8], k % 2);
    *d[i] = float(sum);
  }
  __syncwarp();
}

// As the first tensor cores added, later ones keep a bit or two more: what is added is cut off below 24 bits of the largest, and so is the sum.
inline float cut_off_sum(const double* terms, int count) {
  double largest = 0.0, sum = 0.0;
  for (int i = 0; i < count; ++i) largest = std::max(largest, std::fabs(terms[i]));
  if (!(largest < INFINITY) || largest == 0.0) {
    for (int i = 0; i < count; ++i) sum += terms[i];
    return float(sum);
  }
  const double step = std::ldexp(1.0, std::ilogb(largest) - 23);
  for (int i = 0; i < count; ++i) sum += std::trunc(terms[i] / step) * step;
  const float nearest = float(sum);
  return std::fabs(nearest) > std::fabs(sum) ? std::nextafterf(nearest, 0.0f) : nearest;
}

inline void mma_tf32(float& d0, float& d1, float& d2, float& d3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  const unsigned lane = emulate::self->linear % 32;
  const auto value = [](uint32_t bits) {
    if (bits & 0x1fff) tensor::fail("an operand that is no TF32 number");  // PTX leaves open what comes of one
    return double(__uint_as_float(bits));
  };
  float* const d[] = {&d0, &d1, &d2, &d3};
  const uint32_t a[] = {a0, a1, a2, a3};
  std::memcpy(mine().a[lane], a, sizeof a);
  mine().b[lane][0] = b0, mine().b[lane][1] = b1;
  __syncwarp();
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    double terms[9] = {*d[i]};
    for (unsigned k = 0; k < 8; ++k)
      terms[k + 1] = value(mine().a[row % 8 * 4 + k % 4][k / 4 * 2 + row / 8]) * value(mine().b[column * 4 + k % 4][k / 4]);
    *d[i] = cut_off_sum(terms, 9);
  }
  __syncwarp();
}

// Rows of a along K, rows of b along N, both of 128 bytes, swizzled; thread t of 128 holds rows t/32*16 + t%32/4 (+8), columns t%4*2 (+1).
inline void wgmma(float* const* d, int count, uint64_t a, uint64_t b, int adds) {
  const auto field = [](uint64_t descriptor, int bit) { return (descriptor >> bit & 0x3FFF) << 4; };
  if (a >> 62 != 1 || b >> 62 != 1) tensor::fail("a descriptor of another swizzle");
  const unsigned t = emulate::self->linear % 128;
  for (int i = 0; i < count; ++i) {
    const unsigned row = t / 32 * 16 + t % 32 / 4 + i % 4 / 2 * 8, n = i / 4 * 8 + t % 4 * 2 + i % 2;
    double sum = adds ? *d[i] : 0.0;
    for (unsigned k = 0; k < 16; ++k) {
      const uint64_t left = field(a, 0) + row / 8 * field(a, 32) + row % 8 * 128 + k * 2;
      const uint64_t right = field(b, 0) + n / 64 * field(b, 16) + k / 8 * field(b, 32) + k % 8 * 128 + n % 64 * 2;
      sum += double(half_at(place(swizzled(left)))) * half_at(place(swizzled(right)));
    }
    *d[i] = float(sum);
  }
}

// Rows of both along K, of 128 bytes, swizzled, or of 16 bytes and eight of them beside one another; d as above.
inline void wgmma_lines(float* const* d, int count, uint64_t a, uint64_t b, int adds = 1) {
  const auto field = [](uint64_t descriptor, int bit) { return (descriptor >> bit & 0x3FFF) << 4; };
  const auto read = [&](uint64_t descriptor, unsigned row, double (&values)[16]) {
    const uint64_t at = field(descriptor, 0) + row / 8 * field(descriptor, 32);
    const bool apart = descriptor >> 62 == 0;
    if (!apart && descriptor >> 62 != 1) tensor::fail("a descriptor of another swizzle");
    for (unsigned k = 0; k < 16; ++k)
      values[k] = half_at(place(apart ? at + row % 8 * 16 + k / 8 * field(descriptor, 16) + k % 8 * 2 : swizzled(at + row % 8 * 128 + k * 2)));
  };
  const unsigned t = emulate::self->linear % 128;
  double left[2][16], right[16];
  for (unsigned half = 0; half < 2; ++half) read(a, t / 32 * 16 + t % 32 / 4 + half * 8, left[half]);
  for (int pair = 0; pair < count / 2; ++pair) {  // the two rows' results in a column
    const int i = pair / 2 * 4 + pair % 2;
    read(b, i / 4 * 8 + t % 4 * 2 + i % 2, right);
    for (unsigned half = 0; half < 2; ++half) {
      float& sum = *d[i + half * 2];
      double terms[17] = {adds ? sum : 0.0};
      for (unsigned k = 0; k < 16; ++k) terms[k + 1] = left[half][k] * right[k];
      sum = cut_off_sum(terms, 17);
    }
  }
}

// Lines of each side along K (0) or along its places (1), of 128 bytes, swizzled; d as above.
template <typename T, int Left, int Right>
inline void wgmma_of(float* const* d, int count, uint64_t a, uint64_t b, int adds) {
  const auto field = [](uint64_t descriptor, int bit) { return (descriptor >> bit & 0x3FFF) << 4; };
  if (a >> 62 != 1 || b >> 62 != 1) tensor::fail("a descriptor of another swizzle");
  const auto read = [&](uint64_t descriptor, bool across, unsigned place, unsigned k) {
    const uint64_t from = field(descriptor, 0) + (across ? place / 64 * field(descriptor, 16) + k / 8 * field(descriptor, 32) + k % 8 * 128 + place % 64 * 2
                                                         : place / 8 * field(descriptor, 32) + place % 8 * 128 + k * 2);
    T value;
    std::memcpy(&value, tensor::place(swizzled(from)), 2);
    return double(float(value));
  };
  const unsigned t = emulate::self->linear % 128;
  for (int i = 0; i < count; ++i) {
    double sum = adds ? *d[i] : 0.0;
    for (unsigned k = 0; k < 16; ++k)
      sum += read(a, Left, t / 32 * 16 + t % 32 / 4 + i % 4 / 2 * 8, k) * read(b, Right, i / 4 * 8 + t % 4 * 2 + i % 2, k);
    *d[i] = float(sum);
  }
}

// --- barriers that count arrivals and bytes ----------------------------------------------------------------------------------
struct Barrier { int count = 0, pending = 0; int64_t bytes = 0; unsigned phase = 0; };
inline std::map<uint64_t, Barrier> barriers[emulate::kCluster];
inline void turn(Barrier& barrier) {
  if (barrier.pending || barrier.bytes) return;
  barrier.pending = barrier.count, barrier.phase ^= 1;
}
inline void init(uint64_t at, int count) { barriers[emulate::rank][at] = Barrier{count, count, 0, 0}; }
inline void arrive(uint64_t at, unsigned rank) {
  Barrier& barrier = barriers[rank].at(at);
  if (--barrier.pending < 0) tensor::fail("more arrivals at a barrier than it counts");
  turn(barrier);
}
inline void expect(uint64_t at, int64_t bytes) {
  barriers[emulate::rank].at(at).bytes += bytes;
  arrive(at, emulate::rank);
}
inline void wait(uint64_t at, unsigned parity) {
  for (int tries = 0; barriers[emulate::rank].at(at).phase == (parity & 1); ++tries) {
    if (tries == 1 << 12) tensor::fail("a barrier is waited for for ever");
    emulate::emulate_switch(&emulate::self->context, &emulate::scheduler);
  }
}
inline bool passed(uint64_t at, unsigned parity) {
  if (barriers[emulate::rank].at(at).phase != (parity & 1)) return true;
  emulate::look_again();
  return barriers[emulate::rank].at(at).phase != (parity & 1);
}
inline emulate::Meeting named[emulate::kCluster];
inline void named_barrier(unsigned threads) {
  named[emulate::rank].members = threads;
  emulate::meet(named[emulate::rank]);
}

// Bytes that lie together, there at once.
inline void bulk(uint64_t to, const void* from, int64_t bytes, uint64_t barrier) {
  if (to % 16 || reinterpret_cast<uintptr_t>(from) % 16 || bytes % 16) tensor::fail("a copy that cp.async.bulk does not make");
  place(to + bytes - 1);
  std::memcpy(place(to), from, bytes);
  Barrier& there = barriers[emulate::rank].at(barrier);
  there.bytes -= bytes;
  turn(there);
}

// A box of a map into each block of the mask, zeros beyond the tensor's edges.
inline void box_for(unsigned blocks, uint64_t to, const CUtensorMap* map, uint64_t barrier, int x, int y, int z = 0) {
  if (to % 1024) tensor::fail("a box that is not aligned as its swizzle wants it");
  for (unsigned rank = 0; rank < emulate::cluster_blocks; ++rank) {
    if (!(blocks >> rank & 1)) continue;
    for (uint64_t row = 0; row < map->box[1]; ++row)
      for (uint64_t column = 0; column < map->box[0]; ++column) {
        uint16_t value = 0;
        const bool inside = x + column < map->sizes[0] && y + row < map->sizes[1] && uint64_t(z) < map->sizes[2];
        if (inside) value = *reinterpret_cast<const uint16_t*>(static_cast<const char*>(map->base) + z * map->strides[2] + (y + row) * map->strides[1] + (x + column) * 2);
        std::memcpy(place(swizzled(to + row * 128 + column * 2), rank), &value, 2);
      }
    Barrier& there = barriers[rank].at(barrier);
    there.bytes -= int64_t(map->box[0]) * map->box[1] * 2;
    turn(there);
  }
}

// Channels at neighbouring places that a convolution begins at, moved by a tap, from line to line and from image to image, zeros beyond these.
template <int Axes>
void window_at(uint64_t to, const CUtensorMap* map, uint64_t barrier, int channel, const int (&begin)[Axes], int image, const int (&tap)[Axes]) {
  if (to % 1024) tensor::fail("a box that is not aligned as its swizzle wants it");
  int at[Axes];
  for (int n = 0; n < Axes; ++n) {
    at[n] = begin[n];
    if (tap[n] < 0 || tap[n] > (Axes == 1 ? 65535 : Axes == 2 ? 255 : 31)) tensor::fail("a window that is moved too far");
    if ((at[n] - map->first[n]) % int(map->steps[n + 1])) tensor::fail("a window that begins between two places");
  }
  for (uint64_t row = 0; row < map->box[1]; ++row) {
    bool inside = image >= 0 && uint64_t(image) < map->sizes[Axes + 1];
    const char* from = static_cast<const char*>(map->base) + image * int64_t(map->strides[Axes + 1]);
    for (int n = 0; n < Axes; ++n) {
      const int place = at[n] + tap[n];
      inside = inside && place >= 0 && uint64_t(place) < map->sizes[n + 1];
      from += place * int64_t(map->strides[n + 1]);
    }
    for (uint64_t column = 0; column < map->box[0]; ++column) {
      uint16_t value = 0;
      if (inside && channel + column < map->sizes[0]) value = *reinterpret_cast<const uint16_t*>(from + (channel + column) * 2);
      std::memcpy(place(swizzled(to + row * 128 + column * 2)), &value, 2);
    }
    bool next = true;
    for (int n = 0; n < Axes && next; ++n) {
      at[n] += map->steps[n + 1];
      next = at[n] > int(map->sizes[n + 1]) - 1 + map->last[n];
      if (next) at[n] = map->first[n];
    }
    image += next;
  }
  Barrier& there = barriers[emulate::rank].at(barrier);
  there.bytes -= int64_t(map->box[0]) * map->box[1] * 2;
  turn(there);
}
inline void window_for(uint64_t to, const CUtensorMap* map, uint64_t barrier, int channel, int x, int image, int tap) {
  window_at<1>(to, map, barrier, channel, {x}, image, {tap});
}
inline void window_for(uint64_t to, const CUtensorMap* map, uint64_t barrier, int channel, int x, int y, int image, int tap, int other) {
  window_at<2>(to, map, barrier, channel, {x, y}, image, {tap, other});
}
inline void window_for(uint64_t to, const CUtensorMap* map, uint64_t barrier, int channel, int x, int y, int z, int image, int a, int b, int c) {
  window_at<3>(to, map, barrier, channel, {x, y, z}, image, {a, b, c});
}

}  // namespace tensor
