// A product's left, 128 rows of it, as its instructions read it: four values a lane of each 16 rows and 8 steps, behind them with EXACT their small parts.
template <int STEPS, bool EXACT, int ROUNDED, typename Value>
__device__ __forceinline__ void lay_left(float4* lines, Value value) {
    constexpr int kLines = 128 / 16 * STEPS * 32;
    for (int at = threadIdx.x; at < kLines; at += kThreads) {
        const int lane = at % 32, step = at / 32 % STEPS, row = at / 32 / STEPS * 16;
        uint32_t high[4], low[4];
        #pragma unroll
        for (int e = 0; e < 4; ++e) {
            const float one = value(row + lane / 4 + e % 2 * 8, step * 8 + lane % 4 + e / 2 * 4);
#if __CUDA_ARCH__ >= 800
            prepare<EXACT, ROUNDED>(one, high[e], low[e]);
#else
            high[e] = low[e] = __float_as_uint(one);
#endif
        }
        lines[at] = make_float4(__uint_as_float(high[0]), __uint_as_float(high[1]), __uint_as_float(high[2]), __uint_as_float(high[3]));
        if (EXACT) {
            lines[kLines + at] = make_float4(__uint_as_float(low[0]), __uint_as_float(low[1]), __uint_as_float(low[2]), __uint_as_float(low[3]));
        }
    }
}

// The first of a lane's columns, so that what four lanes store of a row's sums is 64 bytes.
__device__ __forceinline__ int column_of_lane() { return threadIdx.x % 32 / 8 * 4 + threadIdx.x / 4 % 2 * 16; }

// The product of 128 rows and a warp's 32 columns: `right` has four columns, from column_of_lane() on, of every step that is lane % 4 modulo four.
// `store(row, column, values)` takes four neighbours. Whether all are finite; below sm_80 never, so that they are computed by plain multiply-adds.
template <int STEPS, bool EXACT, int ROUNDED, typename Store>
__device__ __forceinline__ bool multiply_thin(const float4* lines, const float (&right)[2 * STEPS][4], Store store) {
#if __CUDA_ARCH__ >= 800
    constexpr int kLines = 128 / 16 * STEPS * 32;
    const int lane = threadIdx.x % 32;
    uint32_t high[4][STEPS][2], low[4][EXACT ? STEPS : 1][2];
    #pragma unroll
    for (int at = 0; at < 2 * STEPS; ++at) {
        #pragma unroll
        for (int j = 0; j < 4; ++j) {
            prepare<EXACT, ROUNDED>(right[at][j], high[j][at / 2][at % 2], low[j][EXACT ? at / 2 : 0][at % 2]);
        }
    }
    bool finite = true;
    #pragma unroll 1
    for (int tile = 0; tile < 128 / 16; ++tile) {
        float sums[4][4] = {};
        #pragma unroll
        for (int first = 0; first < STEPS; first += 4) {  // 32 steps are summed from zero
            float part[4][4] = {};
            #pragma unroll
            for (int step = first; step < STEPS && step < first + 4; ++step) {
                const float4 left = lines[(tile * STEPS + step) * 32 + lane];
                const uint32_t a[4] = {__float_as_uint(left.x), __float_as_uint(left.y), __float_as_uint(left.z), __float_as_uint(left.w)};
                if constexpr (EXACT) {
                    const float4 rest = lines[kLines + (tile * STEPS + step) * 32 + lane];
                    const uint32_t small[4] = {__float_as_uint(rest.x), __float_as_uint(rest.y), __float_as_uint(rest.z), __float_as_uint(rest.w)};
                    #pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        multiply(part[j], small, high[j][step]);
                    }
                    #pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        multiply(part[j], a, low[j][step]);
                    }
                }
                #pragma unroll
                for (int j = 0; j < 4; ++j) {
                    multiply(part[j], a, high[j][step]);
                }
            }
            #pragma unroll
            for (int j = 0; j < 4; ++j) {
                #pragma unroll
                for (int e = 0; e < 4; ++e) {
                    sums[j][e] += part[j][e];
                }
            }
        }
        #pragma unroll
        for (int e = 0; e < 4; ++e) {
            const float values[4] = {sums[0][e], sums[1][e], sums[2][e], sums[3][e]};
            #pragma unroll
            for (int j = 0; j < 4; ++j) {
                finite = finite && fabsf(values[j]) < INFINITY;
            }
            store(tile * 16 + e / 2 * 8 + lane / 4, lane % 4 * 4 + e % 2 * 16, values);
        }
    }
    return finite;
#else
    return false;
#endif
}
