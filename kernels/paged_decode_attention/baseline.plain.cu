// Attention of one query a sequence over a paged cache: a block a head of a sequence, a thread an element of the head, one key after another.
#include <cuda_bf16.h>
#include <math.h>
#include <stdint.h>

__global__ void attend(
    const __nv_bfloat16* query, const __nv_bfloat16* key_cache, const __nv_bfloat16* value_cache, const int32_t* block_table,
    const int32_t* lengths, __nv_bfloat16* out, int64_t heads, int64_t kv_heads, int64_t table, float scale) {
    __shared__ float products[128];
    const int64_t seq = blockIdx.x / heads;
    const int64_t kv_head = blockIdx.x % heads / (heads / kv_heads);
    const float q = static_cast<float>(query[static_cast<int64_t>(blockIdx.x) * 128 + threadIdx.x]);
    float largest = -INFINITY;
    float sum = 0.0f;
    float mine = 0.0f;
    for (int t = 0; t < lengths[seq]; ++t) {
        const int64_t page = block_table[seq * table + t / 16];
        const int64_t at = ((page * 16 + t % 16) * kv_heads + kv_head) * 128 + threadIdx.x;
        products[threadIdx.x] = q * static_cast<float>(key_cache[at]);
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
        mine = mine * shrunk + weight * static_cast<float>(value_cache[at]);
    }
    out[static_cast<int64_t>(blockIdx.x) * 128 + threadIdx.x] = __nv_bfloat16(mine / sum);
}

extern "C" void paged_decode_attention_bfloat16(
    const __nv_bfloat16* query, const __nv_bfloat16* key_cache, const __nv_bfloat16* value_cache, const int32_t* block_table,
    const int32_t* lengths, float* partial, __nv_bfloat16* out, int64_t seqs, int64_t heads, int64_t kv_heads, int64_t pages,
    int64_t table, float scale, cudaStream_t stream) {
    (void)partial;
    (void)pages;
    attend<<<static_cast<unsigned>(seqs * heads), 128, 0, stream>>>(
        query, key_cache, value_cache, block_table, lengths, out, heads, kv_heads, table, scale);
}
