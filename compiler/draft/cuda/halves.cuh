// Stages that are in shared memory at a time, and stages that are summed by tensor cores before an ordinary addition.
#define SLOTS 6  // tune: 6 5
#define PERIOD 2  // tune: 2 1
constexpr int kLineSteps = 32;                 // of K in a line of 128 bytes: their high halves, then their low ones
constexpr int kSideBytes = 128 * 128;          // a stage of one operand: a tile's 128 lines
constexpr int kStageBytes = 2 * kSideBytes;
constexpr int kSlots = kArchitectures[0] >= 900 && kArchitectures[0] < 1000 ? SLOTS : 1;
constexpr int kStripLine = 32 + 8;             // floats of a line of results on its way out
constexpr int kStripBytes = kThreads / 32 * 16 * kStripLine * 4;
constexpr int kHalvesBytes = kSlots * (kStageBytes + 16) + kStripBytes;
constexpr int kHalvesThreads = kThreads + (kSlots > 1 ? 128 : 0);  // a warp group of which one thread brings

constexpr float kRest = 2048;  // by which low halves are too large, so that they are normal numbers where the high ones are

struct alignas(16) Eight {
    __half at[8];
};

// As many places as all tiles have.
template <typename Index>
__host__ __device__ __forceinline__ int64_t padded(Index places) { return (static_cast<int64_t>(places) + 127) / 128 * 128; }
template <typename Index>
__host__ __device__ __forceinline__ int64_t stages_of(Index depth) { return (static_cast<int64_t>(depth) + kLineSteps - 1) / kLineSteps; }

// The bits of a magnitude, which are in its order.
__device__ __forceinline__ int magnitude(float value) { return static_cast<int>(__float_as_uint(value) & 0x7fffffffu); }
// The power of two that a place's numbers are divided by, so that the largest is in [2^14, 2^15); none where that is not finite.
__device__ __forceinline__ int exponent_of(int largest) {
    const int biased = largest >> 23;
    return biased == 255 ? 0 : (biased == 0 ? 1 : biased) - 141;
}
__device__ __forceinline__ float power_of_two(int exponent) { return __uint_as_float(static_cast<uint32_t>(exponent + 127) << 23); }
// value * 2^exponent, in two steps, because the power alone may be none of float32's.
__device__ __forceinline__ float scaled(float value, int exponent) {
    exponent = exponent < -252 ? -252 : exponent;
    return value * power_of_two(exponent / 2) * power_of_two(exponent - exponent / 2);
}

// Eight steps of a place, of which the first is `step`, into its line.
template <typename Index>
__device__ __forceinline__ void write_eight(const float* values, int exponent, Eight* lines, int64_t places, Index place, Index step) {
    Eight high, low;
    #pragma unroll
    for (int i = 0; i < 8; ++i) {
        const float value = scaled(values[i], -exponent);
        high.at[i] = __float2half_rn(value);
        low.at[i] = __float2half_rn((value - __half2float(high.at[i])) * kRest);
    }
    Eight* line = lines + (step / kLineSteps * places + place) * 8;
    const int piece = static_cast<int>(step % kLineSteps) / 8, turned = static_cast<int>(place % 8);
    line[piece ^ turned] = high;
    line[(piece + 4) ^ turned] = low;
}

constexpr int kHeld = 8192;  // steps of a place that are kept, so that they are computed once
constexpr int kSpan = 64, kPlaces = 64;  // steps of a thread of find_largest, places of a block of prepare_across
constexpr int kAlongBytes = (kHeld + kThreads / 32) * 4, kAcrossBytes = kLineSteps * (kPlaces + 1) * 4;

// As many threads as share a place: a warp where it is short.
template <typename Index>
__host__ __device__ __forceinline__ int sharers_of(Index depth) { return depth <= kHeld / (kThreads / 32) ? 32 : kThreads; }

inline int64_t blocks_along(int64_t places, int64_t depth) {
    const int each = kThreads / sharers_of(depth);
    return (places + each - 1) / each;
}

// A block prepares a place, or each of its warps one, whose steps are together in memory: value(place, step).
template <typename Index, typename Value>
__device__ __forceinline__ void prepare_along(Value value, Index places, Index depth, Eight* lines, int* largest) {
    extern __shared__ __align__(1024) float memory[];
    const int threads = sharers_of(depth), each = kThreads / threads, thread = threadIdx.x % threads;
    const int room = kHeld / each;
    float* held = memory + threadIdx.x / threads * room;
    int* of_warps = reinterpret_cast<int*>(memory + kHeld);
    const Index mine = static_cast<Index>(blockIdx.x) * each + threadIdx.x / threads, end = static_cast<Index>(stages_of(depth)) * kLineSteps;
    const Index place = mine < places ? mine : places - 1;  // what has none does the last one again
    int most = 0;
    #pragma unroll 8
    for (Index step = thread; step < end; step += threads) {
        const float found = step < depth ? value(place, step) : 0.0f;
        if (step < room) held[step] = found;
        const int bits = magnitude(found);
        most = bits > most ? bits : most;
    }
    #pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        const int other = __shfl_xor_sync(0xffffffffu, most, lanes);
        most = other > most ? other : most;
    }
    if (each == 1) {
        if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = most;
        __syncthreads();
        #pragma unroll
        for (int warp = 0; warp < kThreads / 32; ++warp) {
            most = of_warps[warp] > most ? of_warps[warp] : most;
        }
    } else {
        __syncwarp();
    }
    if (thread == 0) largest[place] = most;
    for (Index begin = 0; begin < end; begin += room) {
        if (begin > 0) {  // only where a block has one
            __syncthreads();
            #pragma unroll 8
            for (Index step = begin + thread; step < end && step < begin + room; step += threads) {
                held[step - begin] = step < depth ? value(place, step) : 0.0f;
            }
            __syncthreads();
        }
        for (Index step = begin + thread * 8; step < end && step < begin + room; step += threads * 8) {
            write_eight(held + (step - begin), exponent_of(most), lines, padded(places), place, step);
        }
    }
    __syncthreads();  // the next batch may write
}

// A thread finds the largest magnitude of a place in kSpan steps; places are together in memory.
template <typename Index, typename Value>
__device__ __forceinline__ void find_largest(Value value, Index places, Index depth, int* largest) {
    const int blocks = static_cast<int>((places + kThreads - 1) / kThreads);
    const Index place = static_cast<Index>(blockIdx.x % blocks) * kThreads + threadIdx.x, start = static_cast<Index>(blockIdx.x / blocks) * kSpan;
    if (place >= places) return;
    int most = 0;
    #pragma unroll 8
    for (int i = 0; i < kSpan; ++i) {
        const Index step = start + i;
        const int bits = step < depth ? magnitude(value(place, step)) : 0;
        most = bits > most ? bits : most;
    }
    atomicMax(largest + place, most);
}

// A block prepares kPlaces places in a line's steps: read along the places, written along the steps.
template <typename Index, typename Value>
__device__ __forceinline__ void prepare_across(Value value, Index places, Index depth, Eight* lines, const int* largest) {
    extern __shared__ __align__(1024) float memory[];
    float* tile = memory;  // lines of one more, so that columns lie in all banks
    const int blocks = static_cast<int>((places + kPlaces - 1) / kPlaces);
    const Index first = static_cast<Index>(blockIdx.x % blocks) * kPlaces, start = static_cast<Index>(blockIdx.x / blocks) * kLineSteps;
    #pragma unroll
    for (int i = 0; i < 8; ++i) {
        const Index place = first + threadIdx.x % kPlaces, step = start + threadIdx.x / kPlaces + i * 4;
        tile[(threadIdx.x / kPlaces + i * 4) * (kPlaces + 1) + threadIdx.x % kPlaces] = place < places && step < depth ? value(place, step) : 0.0f;
    }
    __syncthreads();
    const int piece = threadIdx.x % 4, mine = threadIdx.x / 4;
    if (first + mine < places) {
        float values[8];
        #pragma unroll
        for (int i = 0; i < 8; ++i) {
            values[i] = tile[(piece * 8 + i) * (kPlaces + 1) + mine];
        }
        write_eight(values, exponent_of(largest[first + mine]), lines, padded(places), static_cast<Index>(first + mine), static_cast<Index>(start + piece * 8));
    }
    __syncthreads();
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// Lines of 128 bytes in the swizzle of 128 bytes, 1024 bytes from eight lines to the next eight.
__device__ __forceinline__ uint64_t halves_at(uint32_t address) {
    return uint64_t((address & 0x3ffff) >> 4) | uint64_t(1) << 16 | uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62;
}

// A warp group's 64 x 128 sums = or += 64 lines of the left times 128 lines of the right, 16 steps of each.
// WGMMA
#else
// The same for the eight warps' rows one by one, by the instruction for a warp.
__device__ __forceinline__ void multiply_sixteen(float (&d)[64], const char* left, const char* right, int left_piece, int right_piece) {
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16;
#if __CUDA_ARCH__ >= 800
    uint32_t a[4], b[4];
    const uint32_t from = shared_address(left + (row + lane % 16) * 128 + ((left_piece + lane / 16) ^ lane % 8) * 16);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(from) : "memory");
    #pragma unroll
    for (int j = 0; j < 16; ++j) {
        if (j % 2 == 0) {
            const uint32_t of = shared_address(right + (j * 8 + lane % 8 + lane / 16 * 8) * 128 + ((right_piece + lane / 8 % 2) ^ lane % 8) * 16);
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3]) : "r"(of) : "memory");
        }
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(d[j * 4]), "+f"(d[j * 4 + 1]), "+f"(d[j * 4 + 2]), "+f"(d[j * 4 + 3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[j % 2 * 2]), "r"(b[j % 2 * 2 + 1]));
    }
#else
    for (int step = 0; step < 16; ++step) {
        const auto at = [&](const char* lines, int line, int piece) {
            return __half2float(*reinterpret_cast<const __half*>(lines + line * 128 + ((piece + step / 8) ^ line % 8) * 16 + step % 8 * 2));
        };
        #pragma unroll
        for (int i = 0; i < 64; ++i) {
            d[i] += at(left, row + i % 4 / 2 * 8 + lane / 4, left_piece) * at(right, i / 4 * 8 + lane % 4 * 2 + i % 2, right_piece);
        }
    }
#endif
}
#endif

// What a thread knows of the ring of stages.
struct Ring {
    char* slots;
    uint32_t full, empty;  // barriers, one of each a slot
    int slot = 0, phase = 0;
    __device__ __forceinline__ explicit Ring(char* memory) : slots(memory), full(shared_address(memory + kSlots * kStageBytes + kStripBytes)), empty(full + kSlots * 8) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
        if (threadIdx.x == 0) {
            for (int i = 0; i < kSlots; ++i) {
                begin_barrier(full + i * 8, 1);
                begin_barrier(empty + i * 8, 8);
            }
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        }
        __syncthreads();
#endif
    }
    // A warp's own memory for 16 lines of results.
    __device__ __forceinline__ float* strip() const { return reinterpret_cast<float*>(slots + kSlots * kStageBytes) + threadIdx.x / 32 * (16 * kStripLine); }
    __device__ __forceinline__ void next() {
        slot = slot == kSlots - 1 ? 0 : slot + 1;
        phase ^= slot == 0;
    }
};

// What the threads without sums do: one of them brings a tile's stages. `left` and `right` are its lines in the first, the next one's lie
// `left_places` and `right_places` lines further on.
__device__ __forceinline__ void bring_halves(Ring& ring, const Eight* left, const Eight* right, int64_t left_places, int64_t right_places, int64_t stages) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    if (threadIdx.x != kThreads) return;
    for (int64_t stage = 0; stage < stages; ++stage) {
        wait_at(ring.empty + ring.slot * 8, ring.phase ^ 1);
        const uint32_t barrier = ring.full + ring.slot * 8, to = shared_address(ring.slots) + ring.slot * kStageBytes;
        expect_bytes(barrier, kStageBytes);
        bring_bytes(to, left + stage * left_places * 8, kSideBytes, barrier);
        bring_bytes(to + kSideBytes, right + stage * right_places * 8, kSideBytes, barrier);
        ring.next();
    }
#endif
}

// The threads with sums take the registers that those without leave.
template <bool SUMS>
__device__ __forceinline__ void share_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    if constexpr (SUMS) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
    } else {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
    }
#endif
}

// Until all threads that have sums are here.
__device__ __forceinline__ void meet_with_sums() { asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory"); }

// sums = the tile's product.
__device__ __forceinline__ void multiply_halves(float (&sums)[64], Ring& ring, const Eight* left, const Eight* right, int64_t left_places, int64_t right_places, int64_t stages) {
    float part[64], rest[64] = {};  // of high halves in a period; of a high and a low one in all stages
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    const uint32_t first = shared_address(ring.slots);
    int before = 0;
    for (int64_t begin = 0; begin < stages; begin += PERIOD) {
        for (int i = 0; i < PERIOD && begin + i < stages; ++i) {
            wait_at(ring.full + ring.slot * 8, ring.phase);
            #pragma unroll
            for (int j = 0; j < 64; ++j) {
                asm volatile("" : "+f"(part[j]), "+f"(rest[j])::"memory");
            }
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
            const uint32_t a = first + ring.slot * kStageBytes + threadIdx.x / 128 * (kSideBytes / 2), b = first + ring.slot * kStageBytes + kSideBytes;
            #pragma unroll
            for (int steps = 0; steps < 64; steps += 32) {  // bytes: 16 steps, and 16 more
                multiply_sixteen(rest, halves_at(a + 64 + steps), halves_at(b + steps), 1);
                multiply_sixteen(rest, halves_at(a + steps), halves_at(b + 64 + steps), 1);
                multiply_sixteen(part, halves_at(a + steps), halves_at(b + steps), i > 0 || steps > 0);
            }
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
            if (i > 0) {
                asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
                if (threadIdx.x % 32 == 0) arrive_at(ring.empty + before * 8);
            }
            before = ring.slot;
            ring.next();
        }
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        #pragma unroll
        for (int j = 0; j < 64; ++j) {
            asm volatile("" : "+f"(part[j]), "+f"(rest[j])::"memory");  // nobody reads them above this line
        }
        if (threadIdx.x % 32 == 0) arrive_at(ring.empty + before * 8);
        #pragma unroll
        for (int j = 0; j < 64; ++j) {
            sums[j] += part[j];
        }
    }
#else
    for (int64_t stage = 0; stage < stages; ++stage) {
        meet_with_sums();  // nobody reads the stage before any more
        Eight* to = reinterpret_cast<Eight*>(ring.slots);
        for (int i = threadIdx.x; i < kSideBytes / 16; i += kThreads) {
            to[i] = left[stage * left_places * 8 + i];
            to[i + kSideBytes / 16] = right[stage * right_places * 8 + i];
        }
        meet_with_sums();
        #pragma unroll
        for (int j = 0; j < 64; ++j) {
            part[j] = 0.0f;
        }
        #pragma unroll
        for (int piece = 0; piece < 4; piece += 2) {
            multiply_sixteen(rest, ring.slots, ring.slots + kSideBytes, piece + 4, piece);
            multiply_sixteen(rest, ring.slots, ring.slots + kSideBytes, piece, piece + 4);
            multiply_sixteen(part, ring.slots, ring.slots + kSideBytes, piece, piece);
        }
        #pragma unroll
        for (int j = 0; j < 64; ++j) {
            sums[j] += part[j];
        }
    }
#endif
    #pragma unroll
    for (int j = 0; j < 64; ++j) {
        sums[j] += rest[j] * (1 / kRest);
    }
}

// A warp's 16 rows of the 32 columns of a strip, so that neighbours store neighbours.
__device__ __forceinline__ void put_halves(const float (&sums)[64], float* to, int strip) {
    const int lane = threadIdx.x % 32;
    #pragma unroll
    for (int i = 0; i < 16; i += 2) {
        float* two = to + (i % 4 / 2 * 8 + lane / 4) * kStripLine + i / 4 * 8 + lane % 4 * 2;
        two[0] = sums[strip * 16 + i];
        two[1] = sums[strip * 16 + i + 1];
    }
}
