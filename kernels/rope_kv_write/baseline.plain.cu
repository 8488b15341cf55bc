// Rotation of queries and keys, keys and values into their slots of the cache: a block a token and head, a thread a pair of elements.
#include <cuda_bf16.h>
#include <stdint.h>

__global__ void rotate_and_write(
    __nv_bfloat16* query, const __nv_bfloat16* key, const __nv_bfloat16* value, const float* cos_sin, const int64_t* at,
    const int64_t* slot, __nv_bfloat16* key_cache, __nv_bfloat16* value_cache, int64_t heads, int64_t kv_heads, int64_t head) {
    const int64_t token = blockIdx.x;
    const int64_t h = blockIdx.y;
    const int64_t half = head / 2;
    const float* turn = cos_sin + at[token] * head;
    for (int64_t i = threadIdx.x; i < half; i += blockDim.x) {
        const float cosine = turn[i];
        const float sine = turn[i + half];
        if (h < heads) {
            __nv_bfloat16* mine = query + (token * heads + h) * head;
            const float x = static_cast<float>(mine[i]);
            const float y = static_cast<float>(mine[i + half]);
            mine[i] = __nv_bfloat16(x * cosine - y * sine);
            mine[i + half] = __nv_bfloat16(y * cosine + x * sine);
        } else if (slot[token] >= 0) {
            const int64_t from = (token * kv_heads + h - heads) * head;
            const int64_t to = (slot[token] * kv_heads + h - heads) * head;
            const float x = static_cast<float>(key[from + i]);
            const float y = static_cast<float>(key[from + i + half]);
            key_cache[to + i] = __nv_bfloat16(x * cosine - y * sine);
            key_cache[to + i + half] = __nv_bfloat16(y * cosine + x * sine);
            value_cache[to + i] = value[from + i];
            value_cache[to + i + half] = value[from + i + half];
        }
    }
}

extern "C" void rope_kv_write_bfloat16(
    __nv_bfloat16* query, const __nv_bfloat16* key, const __nv_bfloat16* value, const float* cos_sin, const int64_t* at,
    const int64_t* slot, __nv_bfloat16* key_cache, __nv_bfloat16* value_cache, int64_t tokens, int64_t heads,
    int64_t kv_heads, int64_t head, int64_t positions, int64_t slots, cudaStream_t stream) {
    (void)positions;
    (void)slots;
    const dim3 grid(static_cast<unsigned>(tokens), static_cast<unsigned>(heads + kv_heads));
    rotate_and_write<<<grid, 64, 0, stream>>>(
        query, key, value, cos_sin, at, slot, key_cache, value_cache, heads, kv_heads, head);
}
