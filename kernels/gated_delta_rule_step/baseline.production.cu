// A step of the gated delta rule: a block 32 columns of a head's state, a warp 16 rows of them in registers, so that the state is read once;
// sums over rows by shared memory.
#include <cuda_bf16.h>
#include <math.h>
#include <stdint.h>

constexpr int SIZE = 128;
constexpr int COLUMNS = 32;
constexpr int WARPS = 8;
constexpr int ROWS = SIZE / WARPS;

// The sum over a block's 128 first threads' values, for every thread; `slots` are 4 floats of shared memory.
__device__ __forceinline__ float over_four_warps(float value, float* slots) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        value += __shfl_xor_sync(0xffffffffu, value, offset);
    }
    if (threadIdx.x < SIZE && threadIdx.x % 32 == 0) {
        slots[threadIdx.x / 32] = value;
    }
    __syncthreads();
    return slots[0] + slots[1] + slots[2] + slots[3];
}

__global__ void __launch_bounds__(32 * WARPS) step(
    const __nv_bfloat16* __restrict__ q, const __nv_bfloat16* __restrict__ k, const __nv_bfloat16* __restrict__ v,
    const __nv_bfloat16* __restrict__ a, const __nv_bfloat16* __restrict__ beta, const float* __restrict__ a_log,
    const float* __restrict__ dt_bias, const int32_t* __restrict__ slot, float* __restrict__ state,
    __nv_bfloat16* __restrict__ out, int q_heads, int v_heads) {
    __shared__ float query[SIZE];
    __shared__ float key[SIZE];
    __shared__ float query_slots[4];
    __shared__ float key_slots[4];
    __shared__ float seen_of[WARPS][COLUMNS];
    __shared__ float sums_of[WARPS][COLUMNS];
    const int h = blockIdx.y;
    const int64_t b = blockIdx.z;
    const int warp = threadIdx.x / 32;
    const int column = blockIdx.x * COLUMNS + threadIdx.x % 32;
    float* held_at = state + (static_cast<int64_t>(slot[b]) * v_heads + h) * SIZE * SIZE + warp * ROWS * SIZE + column;
    float held[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        held[i] = held_at[i * SIZE];
    }
    const int64_t q_row = (b * q_heads + h / (v_heads / q_heads)) * SIZE;
    const float mine_q = threadIdx.x < SIZE ? static_cast<float>(q[q_row + threadIdx.x % SIZE]) : 0.0f;
    const float mine_k = threadIdx.x < SIZE ? static_cast<float>(k[q_row + threadIdx.x % SIZE]) : 0.0f;
    const float q_scale = rsqrtf(over_four_warps(mine_q * mine_q, query_slots) + 1e-6f) * 0.08838834764831845f;
    const float k_scale = rsqrtf(over_four_warps(mine_k * mine_k, key_slots) + 1e-6f);
    if (threadIdx.x < SIZE) {
        query[threadIdx.x] = mine_q * q_scale;
        key[threadIdx.x] = mine_k * k_scale;
    }
    __syncthreads();
    const int64_t row = b * v_heads + h;
    const float x = static_cast<float>(a[row]) + dt_bias[h];
    const float softplus = x > 20.0f ? x : log1pf(expf(x));
    const float decay = expf(-expf(a_log[h]) * softplus);
    const float rate = 1.0f / (1.0f + expf(-static_cast<float>(beta[row])));
    float seen = 0.0f;
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        held[i] *= decay;
        seen += key[warp * ROWS + i] * held[i];
    }
    seen_of[warp][threadIdx.x % 32] = seen;
    __syncthreads();
    seen = 0.0f;
#pragma unroll
    for (int other = 0; other < WARPS; ++other) {
        seen += seen_of[other][threadIdx.x % 32];
    }
    const float change = (static_cast<float>(v[row * SIZE + column]) - seen) * rate;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        held[i] += key[warp * ROWS + i] * change;
        sum += query[warp * ROWS + i] * held[i];
        held_at[i * SIZE] = held[i];
    }
    sums_of[warp][threadIdx.x % 32] = sum;
    __syncthreads();
    if (warp == 0) {
        sum = 0.0f;
#pragma unroll
        for (int other = 0; other < WARPS; ++other) {
            sum += sums_of[other][threadIdx.x];
        }
        out[row * SIZE + column] = __nv_bfloat16(sum);
    }
}

extern "C" void gated_delta_rule_step_bfloat16(
    const __nv_bfloat16* q, const __nv_bfloat16* k, const __nv_bfloat16* v, const __nv_bfloat16* a, const __nv_bfloat16* beta,
    const float* a_log, const float* dt_bias, const int32_t* slot, float* state, __nv_bfloat16* out, int64_t batch,
    int64_t q_heads, int64_t v_heads, int64_t slots, cudaStream_t stream) {
    (void)slots;
    const dim3 grid(SIZE / COLUMNS, static_cast<unsigned>(v_heads), static_cast<unsigned>(batch));
    step<<<grid, 32 * WARPS, 0, stream>>>(
        q, k, v, a, beta, a_log, dt_bias, slot, state, out, static_cast<int>(q_heads), static_cast<int>(v_heads));
}
