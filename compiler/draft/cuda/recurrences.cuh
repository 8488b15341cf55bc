
// Four words that other blocks may be writing, as they are now.
__device__ __forceinline__ uint4 read_now(const float* from) {
    uint4 words;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w) : "l"(from) : "memory");
    return words;
}

__device__ __forceinline__ uint32_t read_word_now(const float* from) {
    uint32_t word;
    asm volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
    return word;
}

// No value: a NaN that arithmetic does not make, and that is not stored as one.
constexpr uint32_t kNothing = 0xffffffffu;

__device__ __forceinline__ void put_value(float* to, float value) {
    *static_cast<volatile float*>(to) = __float_as_uint(value) == kNothing ? __uint_as_float(0x7fffffffu) : value;
}

template <bool ROUNDS>
__device__ __forceinline__ float operand(float value) { return ROUNDS ? round_to_tf32_even(value) : value; }
template <bool ROUNDS>
__device__ __forceinline__ float4 operands(float4 a) {
    return make_float4(operand<ROUNDS>(a.x), operand<ROUNDS>(a.y), operand<ROUNDS>(a.z), operand<ROUNDS>(a.w));
}

// ROWS rows of HIDDEN floats into shared memory, as soon as all of them are there, perhaps rounded to TF32; rows from `rows` on are zeros.
template <int HIDDEN, int ROWS, int THREADS, bool ROUNDS>
__device__ __forceinline__ void bring(float* to, const float* from, int64_t row_stride, int64_t rows, bool waits) {
    constexpr int kPadded = (HIDDEN + 3) / 4 * 4;
    if (HIDDEN % 4 == 0 && waits) {
        constexpr int kWords = ROWS * HIDDEN / 4, kRounds = (kWords + THREADS - 1) / THREADS;
        uint4 words[kRounds];
        bool missing[kRounds], any;
        #pragma unroll
        for (int round = 0; round < kRounds; ++round) {
            const int word = round * THREADS + threadIdx.x;
            words[round] = make_uint4(0, 0, 0, 0);
            missing[round] = word < kWords && word / (HIDDEN / 4) < rows;
        }
        do {
            any = false;
            #pragma unroll
            for (int round = 0; round < kRounds; ++round) {  // all of them in flight
                const int word = round * THREADS + threadIdx.x;
                if (missing[round]) words[round] = read_now(from + word / (HIDDEN / 4) * row_stride + word % (HIDDEN / 4) * 4);
            }
            #pragma unroll
            for (int round = 0; round < kRounds; ++round) {
                const uint4 a = words[round];
                missing[round] = a.x == kNothing || a.y == kNothing || a.z == kNothing || a.w == kNothing;
                any = any || missing[round];
            }
        } while (any);
        #pragma unroll
        for (int round = 0; round < kRounds; ++round) {
            const int word = round * THREADS + threadIdx.x;
            const uint4 a = words[round];
            const float4 found = make_float4(__uint_as_float(a.x), __uint_as_float(a.y), __uint_as_float(a.z), __uint_as_float(a.w));
            if (word < kWords) reinterpret_cast<float4*>(to)[word] = operands<ROUNDS>(found);
        }
        return;
    }
    for (int at = threadIdx.x; at < ROWS * kPadded; at += THREADS) {
        const int row = at / kPadded, unit = at % kPadded;
        uint32_t word = 0;
        if (row < rows && unit < HIDDEN) {
            do {
                word = read_word_now(from + row * row_stride + unit);
            } while (waits && word == kNothing);
        }
        to[at] = operand<ROUNDS>(__uint_as_float(word));
    }
}

// A unit's weights, four neighbours at a time to each lane: in registers where KEPT, else read anew.
template <int GATES, int PADDED, bool KEPT, bool ROUNDS>
struct UnitWeights {
    static constexpr int kParts = (PADDED + 127) / 128;
    float4 held[KEPT ? GATES : 1][KEPT ? kParts : 1];
    const float* from;

    __device__ __forceinline__ float4 read(int gate, int part) const {
        const int k = 128 * part + 4 * (threadIdx.x % 32);
        return k < PADDED ? operands<ROUNDS>(*reinterpret_cast<const float4*>(from + gate * PADDED + k)) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    __device__ __forceinline__ void take(const float* weights) {
        from = weights;
        if (KEPT) {
            #pragma unroll
            for (int gate = 0; gate < GATES; ++gate) {
                #pragma unroll
                for (int part = 0; part < kParts; ++part) held[KEPT ? gate : 0][KEPT ? part : 0] = read(gate, part);
            }
        }
    }
    // Adds this lane's share of the products with ROWS rows; what belongs to gate 2 goes to sum LAST.
    template <int SUMS, int ROWS, int LAST>
    __device__ __forceinline__ void multiply(float (&sums)[SUMS * ROWS], const float* rows) const {
        #pragma unroll
        for (int part = 0; part < kParts; ++part) {
            const int k = 128 * part + 4 * (threadIdx.x % 32);
            if (PADDED % 128 == 0 || k < PADDED) {
                float4 now[GATES];
                #pragma unroll
                for (int gate = 0; gate < GATES; ++gate) now[gate] = KEPT ? held[KEPT ? gate : 0][KEPT ? part : 0] : read(gate, part);
                #pragma unroll
                for (int row = 0; row < ROWS; ++row) {
                    const float4 x = *reinterpret_cast<const float4*>(rows + row * PADDED + k);
                    #pragma unroll
                    for (int gate = 0; gate < GATES; ++gate) {
                        float& sum = sums[(gate == 2 ? LAST : gate) * ROWS + row];
                        sum = fmaf(now[gate].x, x.x, sum);
                        sum = fmaf(now[gate].y, x.y, sum);
                        sum = fmaf(now[gate].z, x.z, sum);
                        sum = fmaf(now[gate].w, x.w, sum);
                    }
                }
            }
        }
    }
};

// Adds COUNT sums over a warp's lanes, half of them in each half of it and so on, and writes each where it belongs: `first` on, `own` of them.
template <int OFFSET, int COUNT>
__device__ __forceinline__ void add_lanes(const float (&sums)[COUNT], float* to, int first, int own) {
    if constexpr (OFFSET == 0) {
        #pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            if (i < own) to[first + i] = sums[i];
        }
    } else {
        constexpr int kHalf = (COUNT + 1) / 2;
        const bool upper = threadIdx.x & OFFSET;
        float half[kHalf];
        #pragma unroll
        for (int i = 0; i < kHalf; ++i) {
            const float low = sums[i], high = i + kHalf < COUNT ? sums[i + kHalf < COUNT ? i + kHalf : 0] : 0.0f;
            half[i] = (upper ? high : low) + __shfl_xor_sync(0xffffffffu, upper ? low : high, OFFSET);
        }
        const int below = own < kHalf ? own : kHalf;
        add_lanes<OFFSET / 2, kHalf>(half, to, upper ? first + kHalf : first, upper ? own - below : below);
    }
}

// BELOW, BEFORE: whether products with the layer below, and with the step before, are of operands rounded to TF32.
template <Cell CELL, int HIDDEN, int ROWS, int CELLS, bool LAYERS, bool BELOW, bool BEFORE, int WARPS, bool KEPT>
__global__ void __launch_bounds__(32 * WARPS, 1) recurrence_kernel(const Recurrence r) {
    constexpr int kGates = gates_of<CELL>, kSums = sums_of<CELL>, kPadded = (HIDDEN + 3) / 4 * 4, kThreads = 32 * WARPS;
    constexpr int kBlocks = (HIDDEN + WARPS - 1) / WARPS;  // of a cell
    __shared__ __align__(16) float before[2][ROWS * kPadded];
    __shared__ __align__(16) float below[LAYERS && CELLS > 1 ? ROWS * kPadded : 4];
    __shared__ float totals[WARPS][kSums * ROWS];
    const int cell = blockIdx.x / kBlocks, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int wanted = blockIdx.x % kBlocks * WARPS + warp, unit = wanted < HIDDEN ? wanted : HIDDEN - 1;
    const bool mine = wanted < HIDDEN, top = !LAYERS || cell == CELLS - 1, first = !LAYERS || cell == 0, backwards = !LAYERS && cell == 1;
    float* out = top ? r.out + (LAYERS ? 0 : cell * HIDDEN) : r.below + cell * r.steps * r.batch * HIDDEN;
    const int64_t out_step = top ? r.out_step : r.batch * HIDDEN, out_row = top ? r.out_row : HIDDEN;
    const float* given = r.given + (LAYERS ? 0 : cell * kGates * HIDDEN) + unit;
    UnitWeights<kGates, kPadded, KEPT, BEFORE> weights;
    UnitWeights<kGates, kPadded, KEPT, BELOW> from_below;
    weights.take(r.weights + static_cast<int64_t>(cell * HIDDEN + unit) * kGates * kPadded);
    if (!first) from_below.take(r.from_below + static_cast<int64_t>((cell - 1) * HIDDEN + unit) * kGates * kPadded);
    float bias[kSums];
    #pragma unroll
    for (int sum = 0; sum < kSums; ++sum) bias[sum] = r.bias[(cell * HIDDEN + unit) * kSums + sum];
    int turn = 0;  // of the two places for what was before: a warp may still read the other one
    for (int64_t done = 0; done < r.steps; ++done) {
        const int64_t step = backwards ? r.steps - 1 - done : done, earlier = backwards ? step + 1 : step - 1;
        for (int64_t start = 0; start < r.batch; start += ROWS, turn ^= 1) {
            const int64_t rows = r.batch - start, row = start + lane;
            const bool finishes = mine && lane < ROWS && lane < rows;
            const int64_t place = (cell * r.batch + row) * HIDDEN + unit;
            float inputs[kGates], state = 0.0f;
            #pragma unroll
            for (int gate = 0; gate < kGates; ++gate) {
                inputs[gate] = first && finishes ? given[step * r.given_step + row * r.given_row + gate * HIDDEN] : 0.0f;
            }
            if (CELL == Cell::lstm && finishes) state = done ? r.last_state[place] : r.state[place];
            float sums[kSums * ROWS] = {};
            if (LAYERS && CELLS > 1 && !first) {  // while the others of this layer finish the step before
                bring<HIDDEN, ROWS, kThreads, BELOW>(below, r.below + (((cell - 1) * r.steps + step) * r.batch + start) * HIDDEN, HIDDEN, rows, true);
                __syncthreads();
                from_below.template multiply<kSums, ROWS, 2>(sums, below);
            }
            const float* from = done ? out + earlier * out_step + start * out_row : r.hidden + (cell * r.batch + start) * HIDDEN;
            bring<HIDDEN, ROWS, kThreads, BEFORE>(before[turn], from, done ? out_row : HIDDEN, rows, done > 0);
            __syncthreads();
            float own = finishes ? before[turn][lane * kPadded + unit] : 0.0f;  // what the unit itself was, not rounded
            if (CELL == Cell::gru && BEFORE && finishes) own = __uint_as_float(read_word_now(from + lane * (done ? out_row : HIDDEN) + unit));
            weights.template multiply<kSums, ROWS, CELL == Cell::gru ? 3 : 2>(sums, before[turn]);
            add_lanes<16, kSums * ROWS>(sums, totals[warp], 0, kSums * ROWS);
            __syncwarp();
            if (finishes) {
                float total[kSums];
                #pragma unroll
                for (int sum = 0; sum < kSums; ++sum) {
                    total[sum] = totals[warp][sum * ROWS + lane] + bias[sum] + (sum < kGates ? inputs[sum < kGates ? sum : 0] : 0.0f);
                }
                const float hidden = next_hidden<CELL>(total, own, state);
                put_value(out + step * out_step + row * out_row + unit, hidden);
                if (CELL == Cell::lstm) r.last_state[place] = state;
                if (done == r.steps - 1) r.last[place] = hidden;
            }
            __syncwarp();
        }
    }
}

// All blocks of a grid at once, so that they may wait for each other.
template <Cell CELL, int HIDDEN, int ROWS, int CELLS, bool LAYERS, bool BELOW, bool BEFORE, int WARPS, bool KEPT>
void launch_cells(const Recurrence& recurrence, cudaStream_t stream) {
    cudaLaunchAttribute together;
    together.id = cudaLaunchAttributeCooperative;
    together.val.cooperative = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(CELLS * ((HIDDEN + WARPS - 1) / WARPS));
    config.blockDim = dim3(32 * WARPS);
    config.stream = stream;
    config.attrs = &together;
    config.numAttrs = 1;
    cudaLaunchKernelEx(&config, recurrence_kernel<CELL, HIDDEN, ROWS, CELLS, LAYERS, BELOW, BEFORE, WARPS, KEPT>, recurrence);
}

// WARPS units to a block, or more of them where the device has fewer multiprocessors than that makes blocks.
template <Cell CELL, int HIDDEN, int ROWS, int CELLS, bool LAYERS, bool BELOW, bool BEFORE, int WARPS, bool KEPT>
void run_cells(const Recurrence& recurrence, cudaStream_t stream) {
    int device = 0, multiprocessors = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    if (CELLS * ((HIDDEN + WARPS - 1) / WARPS) <= multiprocessors) {
        launch_cells<CELL, HIDDEN, ROWS, CELLS, LAYERS, BELOW, BEFORE, WARPS, KEPT>(recurrence, stream);
    } else {
        launch_cells<CELL, HIDDEN, ROWS, CELLS, LAYERS, BELOW, BEFORE, 32, false>(recurrence, stream);
    }
}
