// A step of the gated delta rule: a block a head of a sequence, a thread a column of its state, which is read twice.
#include <cuda_bf16.h>
#include <math.h>
#include <stdint.h>

__global__ void step(
    const __nv_bfloat16* q, const __nv_bfloat16* k, const __nv_bfloat16* v, const __nv_bfloat16* a, const __nv_bfloat16* beta,
    const float* a_log, const float* dt_bias, const int32_t* slot, float* state, __nv_bfloat16* out, int64_t q_heads,
    int64_t v_heads) {
    __shared__ float query[128];
    __shared__ float key[128];
    const int64_t row = blockIdx.x;
    const int64_t b = row / v_heads;
    const int64_t h = row % v_heads;
    const int64_t q_row = (b * q_heads + h / (v_heads / q_heads)) * 128;
    query[threadIdx.x] = static_cast<float>(q[q_row + threadIdx.x]);
    key[threadIdx.x] = static_cast<float>(k[q_row + threadIdx.x]);
    __syncthreads();
    float q_squares = 1e-6f;
    float k_squares = 1e-6f;
    for (int i = 0; i < 128; ++i) {
        q_squares += query[i] * query[i];
        k_squares += key[i] * key[i];
    }
    const float k_scale = rsqrtf(k_squares);
    const float x = static_cast<float>(a[row]) + dt_bias[h];
    const float softplus = x > 20.0f ? x : log1pf(expf(x));
    const float decay = expf(-expf(a_log[h]) * softplus);
    const float rate = 1.0f / (1.0f + expf(-static_cast<float>(beta[row])));
    float* held = state + (slot[b] * v_heads + h) * 16384 + threadIdx.x;
    float seen = 0.0f;
    for (int i = 0; i < 128; ++i) {
        seen += key[i] * k_scale * (held[i * 128] * decay);
    }
    const float change = (static_cast<float>(v[row * 128 + threadIdx.x]) - seen) * rate;
    float sum = 0.0f;
    for (int i = 0; i < 128; ++i) {
        const float next = held[i * 128] * decay + key[i] * k_scale * change;
        held[i * 128] = next;
        sum += query[i] * next;
    }
    out[row * 128 + threadIdx.x] = __nv_bfloat16(sum * rsqrtf(q_squares) * 0.08838834764831845f);
}

extern "C" void gated_delta_rule_step_bfloat16(
    const __nv_bfloat16* q, const __nv_bfloat16* k, const __nv_bfloat16* v, const __nv_bfloat16* a, const __nv_bfloat16* beta,
    const float* a_log, const float* dt_bias, const int32_t* slot, float* state, __nv_bfloat16* out, int64_t batch,
    int64_t q_heads, int64_t v_heads, int64_t slots, cudaStream_t stream) {
    (void)slots;
    step<<<static_cast<unsigned>(batch * v_heads), 128, 0, stream>>>(
        q, k, v, a, beta, a_log, dt_bias, slot, state, out, q_heads, v_heads);
}
