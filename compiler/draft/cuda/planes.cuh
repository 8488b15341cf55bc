// Convolutions by planes of eight channels. P has a convolution's numbers:
// kGroups; of a group kChannels (kEights with zeros) and kRows, which are output channels, in kTiles tiles;
// kSize0 1 2 of the input, kBefore: places of the plane before it, kPlane: of the plane;
// kWindow rows of the window, kTaps1 of them to a step along axis 0, kStep0 1 2 places from tap to tap; kTaps of a row, of which kGiven are given;
// kExact: an eight is two planes, high and low; kAway: of two halves as near the one away from zero; kChunk eights and kTogether rows of the window to a stage of the input, of kRun places each; kAtOnce taps to a stage of the weights;
// kSkips: not all tiles have products with all rows of the window, which P::rows_of(tile) says, and taps of a row, which P::taps_of(tile) says, as bits.
constexpr bool kHopper = kArchitectures[0] == 900;

// The operand whose nearest half, of two as near, is the wanted one: a TF32 number where that is the one away from zero.
template <typename P>
__device__ __forceinline__ float operand_of(float value) {
    if constexpr (P::kAway != 0) {
        const float power = __uint_as_float(__float_as_uint(value) & 0xff800000u);
        return __uint_as_float(__float_as_uint(fmaf(power, 1.0f / 2048, value)) & 0xffffe000u);
    } else {
        return value;
    }
}

// A power of two that puts a magnitude, given as bits, from 2^top on.
__device__ __forceinline__ float power_for(uint32_t bits, int top) {
    const int power = top + 127 - static_cast<int>(bits >> 23);
    return __uint_as_float(static_cast<uint32_t>((power > 126 ? 126 : power < -126 ? -126 : power) + 127) << 23);
}

// Where the sample's scale is too large for some, state[1] is the largest of these.
__device__ __forceinline__ float scale_of(const uint32_t* state) {
    return state[1] != 0 ? power_for(state[1], 14) : __uint_as_float(state[0]);
}

__device__ __forceinline__ uint32_t larger_finite(uint32_t most, float value) {
    const uint32_t bits = __float_as_uint(value) & 0x7fffffffu;
    return bits < 0x7f800000u && bits > most ? bits : most;
}

// The largest in the block; zero where no thread has one.
__device__ __forceinline__ uint32_t largest_of_block(uint32_t mine) {
    __shared__ uint32_t largest;
    if (threadIdx.x == 0) largest = 0;
    __syncthreads();
    if (mine != 0) atomicMax(&largest, mine);
    __syncthreads();
    return largest;
}

// A scale for the input, from 4,096 of its elements.
__global__ void __launch_bounds__(1024) sample_input(const float* __restrict__ from, uint32_t* __restrict__ state, int64_t elements) {
    const int64_t apart = elements / 4096 + 1;
    uint32_t mine = 0;
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int64_t at = (static_cast<int64_t>(i) * 1024 + threadIdx.x) * apart;
        mine = at < elements ? larger_finite(mine, from[at]) : mine;
    }
    const uint32_t largest = largest_of_block(mine);
    if (threadIdx.x == 0) {  // of zeros the largest scale, with which nothing fits
        state[0] = __float_as_uint(largest != 0 ? power_for(largest, 11) : 0x1p126f);
        state[1] = 0;
    }
}

// The input as halves in planes: 256 places of a plane at a time.
template <typename P, bool AGAIN>
__global__ void __launch_bounds__(256) lay_out_planes(const float* __restrict__ from, __half* __restrict__ to, uint32_t* state, int64_t images) {
    if (AGAIN && state[1] == 0) return;
    const float scale = AGAIN ? scale_of(state) : __uint_as_float(state[0]);
    constexpr int kPlane = P::kPlane0 * P::kPlane1 * P::kPlane2, kParts = (kPlane + 255) / 256;
    constexpr int64_t kPlaces = static_cast<int64_t>(P::kSize0) * P::kSize1 * P::kSize2;
    for (int64_t part = blockIdx.x; part < images * P::kEights * kParts; part += gridDim.x) {
        const int64_t plane = part / kParts, image = plane / P::kEights;
        const int place = static_cast<int>(part % kParts) * 256 + threadIdx.x, channel = static_cast<int>(plane % P::kEights) * 8;
        if (place >= kPlane) continue;
        const int at0 = place / (P::kPlane1 * P::kPlane2) - P::kBefore0, at1 = place / P::kPlane2 % P::kPlane1 - P::kBefore1;
        const int at2 = place % P::kPlane2 - P::kBefore2;
        const bool inside = at0 >= 0 && at0 < P::kSize0 && at1 >= 0 && at1 < P::kSize1 && at2 >= 0 && at2 < P::kSize2;
        const float* first = from + (image * P::kChannels + channel) * kPlaces + (static_cast<int64_t>(at0) * P::kSize1 + at1) * P::kSize2 + at2;
        float value[8];
        #pragma unroll
        for (int i = 0; i < 8; ++i) {
            value[i] = inside && channel + i < P::kChannels ? operand_of<P>(first[i * kPlaces]) : 0.0f;
        }
        __half2 halves[4];
        uint32_t most = 0;
        #pragma unroll
        for (int i = 0; i < 8; i += 2) {
            halves[i / 2] = __floats2half2_rn(value[i] * scale, value[i + 1] * scale);
            if (!AGAIN && fmaxf(fabsf(value[i]), fabsf(value[i + 1])) * scale >= 65504.0f) {
                most = larger_finite(larger_finite(most, value[i]), value[i + 1]);
            }
        }
        if (most != 0) atomicMax(state + 1, most);
        uint4* there = reinterpret_cast<uint4*>(to) + plane * (P::kExact ? 2 : 1) * kPlane + place;
        *there = *reinterpret_cast<uint4*>(halves);
        if constexpr (P::kExact) {
            #pragma unroll
            for (int i = 0; i < 8; i += 2) {
                const float2 high = __half22float2(halves[i / 2]);
                halves[i / 2] = __floats2half2_rn((value[i] * scale - high.x) * 2048.0f, (value[i + 1] * scale - high.y) * 2048.0f);
            }
            there[kPlane] = *reinterpret_cast<uint4*>(halves);
        }
    }
}

// A row of the weights, [group, row, window, tap, channel], as halves in the order in which stages take it: [group, tile, chunk, window, tap, eight, row, 8],
// or, exact, [group, tile, chunk, window, two taps, eight, 6, row, 8]: low and high / 2048 of the one tap, of the other, both high.
template <typename P>
__global__ void __launch_bounds__(256) lay_out_row(const float* __restrict__ from, __half* __restrict__ to, float* __restrict__ unscale) {
    constexpr int kGivenSteps = P::kWindow * P::kGiven * P::kChannels, kLaidSteps = P::kWindow * P::kTaps * P::kEights * 8;
    const int row = blockIdx.x, group = blockIdx.y;
    const float* first = from + (static_cast<int64_t>(group) * P::kRows + row) * kGivenSteps;
    uint32_t mine = 0;
    #pragma unroll 4
    for (int i = threadIdx.x; row < P::kRows && i < kGivenSteps; i += 256) {
        mine = larger_finite(mine, first[i]);
    }
    const uint32_t largest = largest_of_block(mine);
    const float scale = largest != 0 ? power_for(largest, 14) : 1.0f;
    if (threadIdx.x == 0) unscale[group * P::kTiles * 64 + row] = 1.0f / scale;
    #pragma unroll 4
    for (int i = threadIdx.x; i < kLaidSteps; i += 256) {
        const int tap = i / (P::kEights * 8), channel = i % (P::kEights * 8), window = tap / P::kTaps, of_row = tap % P::kTaps;
        const bool given = row < P::kRows && channel < P::kChannels && of_row < P::kGiven;
        const float value = given ? operand_of<P>(first[(window * P::kGiven + of_row) * P::kChannels + channel]) * scale : 0.0f;
        const int eight = channel / 8 % P::kChunk, chunk = channel / 8 / P::kChunk;
        const int64_t taps = (static_cast<int64_t>(group * P::kTiles + row / 64) * (P::kEights / P::kChunk) + chunk) * P::kWindow * P::kTaps;
        __half* here = to + (row % 64) * 8 + channel % 8;
        const __half high = __float2half(value);
        if constexpr (P::kExact) {
            here += (((taps + tap) / 2) * P::kChunk + eight) * (6 * 512);
            here[tap % 2 * 1024] = __float2half(value - __half2float(high));
            here[tap % 2 * 1024 + 512] = __float2half(__half2float(high) / 2048.0f);
            here[2048 + tap % 2 * 512] = high;
        } else {
            here[((taps + tap) * P::kChunk + eight) * 512] = high;
        }
    }
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
__device__ __forceinline__ bool passed(uint32_t barrier, uint32_t phase) {
    uint32_t done;
    asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(done) : "r"(barrier), "r"(phase) : "memory");
    return done != 0;
}

// Lines of 16 bytes beside one another, the next eight steps of K `apart` bytes behind. One more is 16 bytes further.
using LinesOfPlane = uint64_t;
__device__ __forceinline__ LinesOfPlane lines_of_plane(uint32_t address, uint32_t apart) {
    return uint64_t((address & 0x3ffff) >> 4) | uint64_t(apart >> 4) << 16 | uint64_t(128 >> 4) << 32;
}

// A warp group's 64 x 128 sums += 64 lines of the left times 128 lines of the right, 16 steps of each.
// WGMMA
#else
__device__ __forceinline__ uint32_t pair_at(const char* line) { return *reinterpret_cast<const uint32_t*>(line); }

struct LinesOfPlane {
    const char* first;
    int apart;
};
__device__ __forceinline__ LinesOfPlane lines_of_plane(const char* first, int apart) { return {first, apart}; }
__device__ __forceinline__ LinesOfPlane operator+(LinesOfPlane lines, int further) { return {lines.first + further * 16, lines.apart}; }

// The same with what a thread of a warp group holds there: rows threadIdx.x / 32 % 4 * 16 + lane / 4 (+ 8), columns j * 8 + lane % 4 * 2 (+ 1).
__device__ __forceinline__ void multiply_planes(float (&d)[64], LinesOfPlane of_left, LinesOfPlane of_right) {
    const int lane = threadIdx.x % 32, left_apart = of_left.apart, right_apart = of_right.apart;
    const char* left = of_left.first + (threadIdx.x / 32 % 4 * 16 + lane / 4) * 16;
    const char* right = of_right.first + lane / 4 * 16;
#if __CUDA_ARCH__ >= 800
    const int pair = lane % 4 * 4;
    const uint32_t a0 = pair_at(left + pair), a1 = pair_at(left + 128 + pair);
    const uint32_t a2 = pair_at(left + left_apart + pair), a3 = pair_at(left + left_apart + 128 + pair);
    #pragma unroll
    for (int j = 0; j < 16; ++j) {
        const uint32_t b0 = pair_at(right + j * 128 + pair), b1 = pair_at(right + right_apart + j * 128 + pair);
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(d[j * 4]), "+f"(d[j * 4 + 1]), "+f"(d[j * 4 + 2]), "+f"(d[j * 4 + 3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
#else
    right += (lane % 4 * 2 - lane / 4) * 16;
    #pragma unroll
    for (int i = 0; i < 64; ++i) {
        const char* row = left + i % 4 / 2 * 128;
        const char* column = right + (i / 4 * 8 + i % 2) * 16;
        for (int k = 0; k < 16; ++k) {
            const __half a = *reinterpret_cast<const __half*>(row + k / 8 * left_apart + k % 8 * 2);
            d[i] += __half2float(a) * __half2float(*reinterpret_cast<const __half*>(column + k / 8 * right_apart + k % 8 * 2));
        }
    }
#endif
}
#endif

// Of the 288 threads the first 256, two warp groups.
__device__ __forceinline__ void meet_multipliers() { asm volatile("bar.sync 1, %0;" ::"n"(256) : "memory"); }

// sums += a stage of the weights, `left`, times what its taps read, of which the first is tap `first` of the stage of the input, `right`.
template <typename P, typename Left, typename Right>
__device__ __forceinline__ void multiply_taps(float (&sums)[64], Left left, Right right, int first) {
    if constexpr (P::kExact) {  // of two taps low * high + high / 2048 * low * 2048 each, then both high * high
        #pragma unroll
        for (int i = 0; i < P::kAtOnce / 2 * P::kChunk; ++i) {
            const int tap = first + i / P::kChunk * 2, eight = i % P::kChunk;
            const int at = (tap / P::kTaps * P::kChunk + eight) * 2 * P::kRun + tap % P::kTaps * P::kStep2;
            const auto weights = lines_of_plane(left, 1024) + i * (6 * 64);
            const auto parts = lines_of_plane(right, P::kRun * 16) + at;
            multiply_planes(sums, weights, parts);
            multiply_planes(sums, weights + 2 * 64, parts + P::kStep2);
            multiply_planes(sums, weights + 4 * 64, lines_of_plane(right, P::kStep2 * 16) + at);
        }
    } else {
        #pragma unroll
        for (int i = 0; i < P::kAtOnce * P::kChunk; i += 2) {
            const int tap = first + i / P::kChunk, eight = i % P::kChunk;
            const int at = (tap / P::kTaps * P::kChunk + eight) * P::kRun + tap % P::kTaps * P::kStep2;
            multiply_planes(sums, lines_of_plane(left, 1024) + i * 64, lines_of_plane(right, P::kRun * 16) + at);
        }
    }
}

// Where row `window` of the window begins in a plane.
template <typename P>
__device__ __forceinline__ int64_t shift_of(int window) {
    return (static_cast<int64_t>(window / P::kTaps1) * P::kStep0 * P::kPlane1 + window % P::kTaps1 * P::kStep1) * P::kPlane2;
}

// Whether a tile has products with what these bits are of.
template <typename P>
__device__ __forceinline__ bool is_used(uint64_t bits, int one) { return !P::kSkips || (bits >> one & 1) != 0; }

// sums = the product over the whole depth, for the tile and the columns from first_column on of an image; false where a thread has no part of it.
// sums[i] is row threadIdx.x / 32 % 4 * 16 + lane / 4 + i % 4 / 2 * 8, column threadIdx.x / 128 * 128 + i / 4 * 8 + lane % 4 * 2 + i % 2.
template <typename P>
__device__ __forceinline__ bool convolve_planes(
    float (&sums)[64], char* shared, const __half* __restrict__ planes, const __half* __restrict__ weights, int64_t image, int group, int tile, int first_column) {
    constexpr int kStages = P::kEights / P::kChunk * (P::kWindow / P::kTogether), kTapsOfStage = P::kTogether * P::kTaps;
    constexpr int kLines = P::kChunk * (P::kExact ? 2 : 1), kRunBytes = kLines * P::kRun * 16;
    constexpr int kTapBytes = P::kChunk * (P::kExact ? 3 : 1) * 64 * 16, kWeightBytes = P::kAtOnce * kTapBytes;
    constexpr int64_t kPlane = static_cast<int64_t>(P::kPlane0) * P::kPlane1 * P::kPlane2;
    const __half* from = planes + (image * (P::kEights / P::kChunk * kLines) * kPlane + first_column) * 8;
    const __half* of_tile = weights + static_cast<int64_t>(group * P::kTiles + tile) * kStages * kTapsOfStage * (kTapBytes / 2);
    const uint64_t rows = P::rows_of(tile), taps = P::taps_of(tile);
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    const uint32_t barriers = shared_address(shared), ring = barriers + 1024;
    const uint32_t run_there = barriers, run_free = barriers + 64, weights_there = barriers + 128, weights_free = barriers + 192;
    const uint32_t weight_ring = ring + P::kRuns * P::kTogether * kRunBytes;
    if (threadIdx.x == 0) {
        for (int i = 0; i < P::kRuns; ++i) {
            begin_barrier(run_there + i * 8, 1);
            begin_barrier(run_free + i * 8, 8);
        }
        for (int i = 0; i < P::kWeights; ++i) {
            begin_barrier(weights_there + i * 8, 1);
            begin_barrier(weights_free + i * 8, 8);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x >= 256) {
        if (threadIdx.x > 256) return false;
        constexpr int kAll = kStages * kTapsOfStage / P::kAtOnce;
        int run = 0, step = 0, run_at = 0, step_at = 0;
        uint32_t run_phase = 1, step_phase = 1;
        while (run < kStages || step < kAll) {  // either ring is filled as soon as it has room
            if (run < kStages && !is_used<P>(rows, run % P::kWindow)) {
                ++run;
            } else if (run < kStages && passed(run_free + run_at * 8, run_phase)) {
                const int window = run % (P::kWindow / P::kTogether) * P::kTogether, line = run / (P::kWindow / P::kTogether) * kLines;
                expect_bytes(run_there + run_at * 8, P::kTogether * kRunBytes);
                for (int i = 0; i < P::kTogether * kLines; ++i) {
                    const __half* first = from + ((line + i % kLines) * kPlane + shift_of<P>(window + i / kLines)) * 8;
                    bring_bytes(ring + run_at * (P::kTogether * kRunBytes) + i * (P::kRun * 16), first, P::kRun * 16, run_there + run_at * 8);
                }
                ++run;
                run_at = run_at == P::kRuns - 1 ? 0 : run_at + 1;
                run_phase ^= run_at == 0;
            }
            if (step < kAll && !(is_used<P>(rows, step * P::kAtOnce / P::kTaps % P::kWindow) && is_used<P>(taps, step * P::kAtOnce % P::kTaps))) {
                ++step;
            } else if (step < kAll && passed(weights_free + step_at * 8, step_phase)) {
                expect_bytes(weights_there + step_at * 8, kWeightBytes);
                bring_bytes(weight_ring + step_at * kWeightBytes, of_tile + static_cast<int64_t>(step) * (kWeightBytes / 2), kWeightBytes, weights_there + step_at * 8);
                ++step;
                step_at = step_at == P::kWeights - 1 ? 0 : step_at + 1;
                step_phase ^= step_at == 0;
            }
        }
        return false;
    }
    const bool tells = threadIdx.x % 32 == 0;
    const uint32_t right_ring = ring + threadIdx.x / 128 * (128 * 16);
    int run_at = 0, step_at = 0, run_before = -1, step_before = -1;
    uint32_t run_phase = 0, step_phase = 0;
    #pragma unroll 1
    for (int stage = 0; stage < kStages; ++stage) {
        if (!is_used<P>(rows, stage % P::kWindow)) continue;
        wait_at(run_there + run_at * 8, run_phase);
        #pragma unroll
        for (int first = 0; first < kTapsOfStage; first += P::kAtOnce) {
            if (!is_used<P>(taps, first)) continue;
            wait_at(weights_there + step_at * 8, step_phase);
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
            multiply_taps<P>(sums, weight_ring + step_at * kWeightBytes, right_ring + run_at * (P::kTogether * kRunBytes), first);
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
            asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");  // the products before these are done
            if (tells && step_before >= 0) arrive_at(weights_free + step_before * 8);
            if (tells && run_before >= 0) arrive_at(run_free + run_before * 8);
            step_before = step_at;
            run_before = -1;
            step_at = step_at == P::kWeights - 1 ? 0 : step_at + 1;
            step_phase ^= step_at == 0;
        }
        run_before = run_at;
        run_at = run_at == P::kRuns - 1 ? 0 : run_at + 1;
        run_phase ^= run_at == 0;
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    #pragma unroll
    for (int i = 0; i < 64; ++i) {
        asm volatile("" : "+f"(sums[i])::"memory");  // nobody reads them above this line
    }
#else
    if (threadIdx.x >= 256) return false;
    char* weight_ring = shared + P::kTogether * kRunBytes;
    for (int stage = 0; stage < kStages; ++stage) {
        if (!is_used<P>(rows, stage % P::kWindow)) continue;
        const int window = stage % (P::kWindow / P::kTogether) * P::kTogether, line = stage / (P::kWindow / P::kTogether) * kLines;
        for (int i = threadIdx.x; i < P::kTogether * kLines * P::kRun; i += 256) {
            const int of = i / P::kRun;
            const __half* first = from + ((line + of % kLines) * kPlane + shift_of<P>(window + of / kLines)) * 8;
            reinterpret_cast<uint4*>(shared)[i] = reinterpret_cast<const uint4*>(first)[i % P::kRun];
        }
        for (int first = 0; first < kTapsOfStage; first += P::kAtOnce) {
            if (!is_used<P>(taps, first)) continue;
            const __half* step = of_tile + static_cast<int64_t>(stage * kTapsOfStage + first) * (kTapBytes / 2);
            for (int i = threadIdx.x; i < kWeightBytes / 16; i += 256) {
                reinterpret_cast<uint4*>(weight_ring)[i] = reinterpret_cast<const uint4*>(step)[i];
            }
            meet_multipliers();
            multiply_taps<P>(sums, weight_ring, shared + threadIdx.x / 128 * 2048, first);
            meet_multipliers();
        }
    }
#endif
    meet_multipliers();  // nobody reads a stage any more
    return true;
}

// Eight of a warp's 16 rows on their way out, scaled back: line l of `to` is row l + half * 8, a lane reads the columns lane, lane + 32, ...
__device__ __forceinline__ void put_planes(const float (&sums)[64], float* to, int half, float unscale, float of_row) {
    const int lane = threadIdx.x % 32;
    __syncwarp();
    #pragma unroll
    for (int j = 0; j < 16; ++j) {
        float2* there = reinterpret_cast<float2*>(to + lane / 4 * 136 + j * 8 + lane % 4 * 2);
        *there = make_float2(sums[j * 4 + half * 2] * unscale * of_row, sums[j * 4 + half * 2 + 1] * unscale * of_row);
    }
    __syncwarp();
}
