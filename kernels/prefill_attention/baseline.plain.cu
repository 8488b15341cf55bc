// Causal attention: a block a query of a head, a thread an element of the head, one key after another.
#include <cuda_bf16.h>
#include <math.h>
#include <stdint.h>

__global__ void attend(
    const __nv_bfloat16* query, const __nv_bfloat16* key, const __nv_bfloat16* value, __nv_bfloat16* out, int64_t length,
    int64_t context, int64_t heads, int64_t kv_heads, float scale) {
    __shared__ float products[128];
    const int64_t head = blockIdx.x % heads;
    const int64_t place = blockIdx.x / heads % length;
    const int64_t batch = blockIdx.x / heads / length;
    const int64_t kv_head = head / (heads / kv_heads);
    const float q = static_cast<float>(query[static_cast<int64_t>(blockIdx.x) * 128 + threadIdx.x]);
    float largest = -INFINITY;
    float sum = 0.0f;
    float mine = 0.0f;
    for (int64_t t = 0; t <= context - length + place; ++t) {
        const int64_t at = ((batch * context + t) * kv_heads + kv_head) * 128 + threadIdx.x;
        products[threadIdx.x] = q * static_cast<float>(key[at]);
        __syncthreads();
        for (int stride = 64; stride > 0; stride /= 2) {
            if (threadIdx.x < stride) {
                products[threadIdx.x] += products[threadIdx.x + stride];
            }
            __syncthreads();
        }
        const float score = products[0] * scale;
        __syncthreads();
        const float next = fmaxf(largest, score);
        const float shrunk = expf(largest - next);
        const float weight = expf(score - next);
        largest = next;
        sum = sum * shrunk + weight;
        mine = mine * shrunk + weight * static_cast<float>(value[at]);
    }
    out[static_cast<int64_t>(blockIdx.x) * 128 + threadIdx.x] = __nv_bfloat16(mine / sum);
}

extern "C" void prefill_attention_bfloat16(
    const __nv_bfloat16* query, const __nv_bfloat16* key, const __nv_bfloat16* value, __nv_bfloat16* out, int64_t batch,
    int64_t length, int64_t context, int64_t heads, int64_t kv_heads, float scale, cudaStream_t stream) {
    attend<<<static_cast<unsigned>(batch * length * heads), 128, 0, stream>>>(
        query, key, value, out, length, context, heads, kv_heads, scale);
}
