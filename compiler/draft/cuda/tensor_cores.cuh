// Steps of K that a stage of an exact product holds, and stages of the ring, of which all but one are being filled ahead.
#define DEPTH 32  // tune: 32 16
#define STAGES 3  // tune: 3 4
// Stages of 32 steps are more than the 99 KiB or less of shared memory that a block has elsewhere.
constexpr bool kLarge = kArchitectures[0] == 800 || kArchitectures[0] == 870 || (kArchitectures[0] >= 900 && kArchitectures[0] < 1200);
constexpr int kDepth = kLarge ? DEPTH : 16;

// One operand's part of a stage: SIDE places (rows of the left, columns of the right), STEPS steps of K of each. What is together in
// memory is together here: steps where ALONG_K, else places. Lines are 4 or 8 words longer, so that the 8 places x 4 steps that a
// warp reads at a time lie in 32 banks. Thread t of the block brings WIDTH floats of its `round`.
template <int SIDE, int STEPS, bool ALONG_K, int ROUNDED = 0>
struct Side {
    static constexpr int kSteps = STEPS;
    static constexpr bool kAlongK = ALONG_K;
    static constexpr int kRounded = ROUNDED;  // 0: to the nearest, 1: in memory these are TF32 numbers already, 2: of two as near to the even one
    static constexpr int kLine = ALONG_K ? STEPS : SIDE;
    static constexpr int kPitch = kLine + (ALONG_K ? 4 : 8);
    static constexpr int kWords = SIDE * STEPS / kLine * kPitch;
    template <int WIDTH>
    static constexpr int kRounds = (SIDE * STEPS + kThreads * WIDTH - 1) / (kThreads * WIDTH);

    __device__ __forceinline__ static int at(int place, int step) {
        return ALONG_K ? place * kPitch + step : step * kPitch + place;
    }
    template <int WIDTH>
    __device__ __forceinline__ static int along() { return threadIdx.x % (kLine / WIDTH) * WIDTH; }
    template <int WIDTH>
    __device__ __forceinline__ static int across(int round) {
        return threadIdx.x / (kLine / WIDTH) + round * (kThreads * WIDTH / kLine);
    }
    template <int WIDTH>  // a narrow side has no work for all threads
    __device__ __forceinline__ static bool brings() { return kThreads * WIDTH <= SIDE * STEPS || threadIdx.x < SIDE * STEPS / WIDTH; }
    template <int WIDTH>
    __device__ __forceinline__ static int place(int round) { return ALONG_K ? across<WIDTH>(round) : along<WIDTH>(); }
    template <int WIDTH>
    __device__ __forceinline__ static int step(int round) { return ALONG_K ? along<WIDTH>() : across<WIDTH>(round); }
};

// The nearest TF32 number. By an addition of half its last place, since as integers some NaNs would become zeros.
__device__ __forceinline__ uint32_t nearest(float value) {
    const float power = __uint_as_float(__float_as_uint(value) & 0xff800000u);
    return __float_as_uint(fmaf(power, 1.0f / 2048, value)) & 0xffffe000u;
}

// Of two as near the even one: the sum has the TF32 numbers' last place. What overflows is not finite and computed again.
__device__ __forceinline__ uint32_t nearest_even(float value) {
    const float power = __uint_as_float(__float_as_uint(value) & 0xff800000u);
    return __float_as_uint(fmaf(power, -12288.0f, fmaf(power, 12288.0f, value)));
}

__device__ __forceinline__ float round_to_tf32(float value) { return __uint_as_float(nearest(value)); }

// WIDTH floats into shared memory, zeros where there are none to read. They are there when the thread has waited.
template <int WIDTH>
__device__ __forceinline__ void copy_ahead(float* to, const float* from, bool inside) {
#if __CUDA_ARCH__ >= 800
    const uint32_t place = static_cast<uint32_t>(__cvta_generic_to_shared(to));
    const int bytes = inside ? WIDTH * 4 : 0;
    if constexpr (WIDTH == 4) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(place), "l"(from), "r"(bytes) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(place), "l"(from), "r"(bytes) : "memory");
    }
#else
    for (int i = 0; i < WIDTH; ++i) {
        to[i] = inside ? from[i] : 0.0f;
    }
#endif
}

// Ends a group of copies.
__device__ __forceinline__ void end_group() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Until all but the last LEFT groups are there.
template <int LEFT>
__device__ __forceinline__ void wait_for_groups() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
}

#if __CUDA_ARCH__ >= 800
// value = high + low but for 2^-23 of it, each a TF32 number: the nearest, and what is left, cut off. A NaN stays one in `low`.
// As integers, because a conversion (cvt.rna.tf32) is seven instructions on Hopper, for the sake of what is not finite.
__device__ __forceinline__ void split(float value, uint32_t& high, uint32_t& low) {
    high = (__float_as_uint(value) + 0x1000u) & 0xffffe000u;
    low = __float_as_uint(value - __uint_as_float(high)) & 0xffffe000u;
}

// 16 x 8 sums += 16 x 8 of the left times 8 x 8 of the right.
__device__ __forceinline__ void multiply(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif

// Where a thread's sums[i][j][e] lie in the tile: eight warps, 2 x 4, each with ROWS / 2 x COLUMNS / 4 of it.
template <int ROWS>
__device__ __forceinline__ int row_of(int i, int e) {
    return threadIdx.x / 128 * (ROWS / 2) + i * 16 + e / 2 * 8 + threadIdx.x % 32 / 4;
}
template <int COLUMNS>
__device__ __forceinline__ int column_of(int j, int e) {
    return threadIdx.x / 32 % 4 * (COLUMNS / 4) + j * 8 + threadIdx.x % 4 * 2 + e % 2;
}

#if __CUDA_ARCH__ >= 800
// 16 places x 8 steps of a side: value e of a lane is place lane / 4 + e % 2 * 8, step lane % 4 + e / 2 * 4.
template <typename Part>
__device__ __forceinline__ void read_sixteen(const float* part, int place, int step, float (&values)[4]) {
    const int lane = threadIdx.x % 32;
    if constexpr (Part::kAlongK) {  // four matrices of eight lines of 16 bytes
        const uint32_t line = static_cast<uint32_t>(__cvta_generic_to_shared(part + Part::at(place + lane % 16, step + lane / 16 * 4)));
        uint32_t bits[4];
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(bits[0]), "=r"(bits[1]), "=r"(bits[2]), "=r"(bits[3]) : "r"(line) : "memory");
        #pragma unroll
        for (int e = 0; e < 4; ++e) {
            values[e] = __uint_as_float(bits[e]);
        }
    } else {
        #pragma unroll
        for (int e = 0; e < 4; ++e) {
            values[e] = part[Part::at(place + lane / 4 + e % 2 * 8, step + lane % 4 + e / 2 * 4)];
        }
    }
}

// An operand for the instruction: its two parts, or the nearest.
template <bool EXACT, int ROUNDED>
__device__ __forceinline__ void prepare(float value, uint32_t& high, uint32_t& low) {
    if constexpr (EXACT) {
        split(value, high, low);
    } else {
        high = ROUNDED == 1 ? __float_as_uint(value) : ROUNDED == 2 ? nearest_even(value) : nearest(value);
    }
}

// sums += eight steps of a stage: the nearest of each operand, or with EXACT its two parts, the small ones first, and a round over
// all tiles between two additions to the same sums.
template <int ROWS, int COLUMNS, bool EXACT, typename Left, typename Right>
__device__ __forceinline__ void multiply_steps(float (&sums)[ROWS / 32][COLUMNS / 32][4], const float* left, const float* right, int step) {
    constexpr int kDown = ROWS / 32, kAcross = COLUMNS / 32;
    const int row = threadIdx.x / 128 * (ROWS / 2), column = threadIdx.x / 32 % 4 * (COLUMNS / 4);
    uint32_t a_high[kDown][4], a_low[kDown][4], b_high[kAcross][2], b_low[kAcross][2];
    #pragma unroll
    for (int i = 0; i < kDown; ++i) {
        float values[4];
        read_sixteen<Left>(left, row + i * 16, step, values);
        #pragma unroll
        for (int e = 0; e < 4; ++e) {
            prepare<EXACT, Left::kRounded>(values[e], a_high[i][e], a_low[i][e]);
        }
    }
    #pragma unroll
    for (int j = 0; j < kAcross; j += 2) {
        float values[4];
        if constexpr (kAcross > 1) {
            read_sixteen<Right>(right, column + j * 8, step, values);
        } else {
            const int lane = threadIdx.x % 32;
            values[0] = right[Right::at(column + lane / 4, step + lane % 4)];
            values[2] = right[Right::at(column + lane / 4, step + lane % 4 + 4)];
        }
        #pragma unroll
        for (int e = 0; e < 2 * (kAcross > 1 ? 2 : 1); ++e) {  // both steps of a column, then those of the next
            prepare<EXACT, Right::kRounded>(values[e % 2 * 2 + e / 2], b_high[j + e / 2][e % 2], b_low[j + e / 2][e % 2]);
        }
    }
    #pragma unroll
    for (int round = EXACT ? 0 : 2; round < 3; ++round) {
        #pragma unroll
        for (int i = 0; i < kDown; ++i) {
            #pragma unroll
            for (int j = 0; j < kAcross; ++j) {
                multiply(sums[i][j], round == 0 ? a_low[i] : a_high[i], round == 1 ? b_low[j] : b_high[j]);
            }
        }
    }
}
#endif

// sums += a stage's product; with EXACT that is summed by itself first: see what tensor cores cut off.
template <int ROWS, int COLUMNS, bool EXACT, typename Left, typename Right>
__device__ __forceinline__ void multiply_stage(float (&sums)[ROWS / 32][COLUMNS / 32][4], const float* left, const float* right) {
    constexpr int kDown = ROWS / 32, kAcross = COLUMNS / 32;
#if __CUDA_ARCH__ >= 800
    if constexpr (!EXACT) {
        #pragma unroll
        for (int step = 0; step < Left::kSteps; step += 8) {
            multiply_steps<ROWS, COLUMNS, EXACT, Left, Right>(sums, left, right, step);
        }
    } else {
        float part[kDown][kAcross][4] = {};
        #pragma unroll
        for (int step = 0; step < Left::kSteps; step += 8) {
            multiply_steps<ROWS, COLUMNS, EXACT, Left, Right>(part, left, right, step);
        }
        #pragma unroll
        for (int i = 0; i < kDown; ++i) {
            #pragma unroll
            for (int j = 0; j < kAcross; ++j) {
                #pragma unroll
                for (int e = 0; e < 4; ++e) {
                    sums[i][j][e] += part[i][j][e];
                }
            }
        }
    }
#else
    for (int step = 0; step < Left::kSteps; ++step) {
        #pragma unroll
        for (int i = 0; i < kDown; ++i) {
            #pragma unroll
            for (int j = 0; j < kAcross; ++j) {
                #pragma unroll
                for (int e = 0; e < 4; ++e) {
                    sums[i][j][e] += left[Left::at(row_of<ROWS>(i, e), step)] * right[Right::at(column_of<COLUMNS>(j, e), step)];
                }
            }
        }
    }
#endif
}

// sums += the product over the whole depth. `fetch(start, left, right)` asks for the stage that begins at step `start`.
template <int ROWS, int COLUMNS, bool EXACT, typename Left, typename Right, typename Index, typename Fetch>
__device__ __forceinline__ void multiply_tiles(float (&sums)[ROWS / 32][COLUMNS / 32][4], float* ring, Index depth, Fetch fetch) {
    constexpr int kWords = Left::kWords + Right::kWords;
    const Index stages = (depth + Left::kSteps - 1) / Left::kSteps;
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        if (stage < stages) {
            fetch(static_cast<Index>(stage) * Left::kSteps, ring + stage * kWords, ring + stage * kWords + Left::kWords);
        }
        end_group();
    }
    int here = 0;
    for (Index stage = 0; stage < stages; ++stage) {
        wait_for_groups<STAGES - 2>();
        __syncthreads();  // this stage is there for all, and nobody reads the one before any more
        const int ahead = here == 0 ? STAGES - 1 : here - 1;
        if (stage + STAGES - 1 < stages) {
            fetch((stage + STAGES - 1) * Left::kSteps, ring + ahead * kWords, ring + ahead * kWords + Left::kWords);
        }
        end_group();
        multiply_stage<ROWS, COLUMNS, EXACT, Left, Right>(sums, ring + here * kWords, ring + here * kWords + Left::kWords);
        here = here == STAGES - 1 ? 0 : here + 1;
    }
    __syncthreads();  // the ring may be used again
}

template <int ROWS, int COLUMNS>
__device__ __forceinline__ void put_strip(const float (&sums)[ROWS / 32][COLUMNS / 32][4], float* to, int strip) {
    #pragma unroll
    for (int j = 0; j < COLUMNS / 32; ++j) {
        #pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int line = threadIdx.x / 128 * 16 + e / 2 * 8 + threadIdx.x % 32 / 4;
            to[line * (COLUMNS + 8) + column_of<COLUMNS>(j, e)] = sums[strip][j][e];
        }
    }
}
