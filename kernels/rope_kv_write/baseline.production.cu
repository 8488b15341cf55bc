// Rotation of queries and keys, keys and values into their slots of the cache: a block a token, a thread two packs half a head apart, packs of
// 16 bytes where a half allows.
#include <cuda_bf16.h>
#include <stdint.h>

template <typename T, int LANES>
struct alignas(sizeof(T) * LANES) Pack {
    T lane[LANES];
};

template <int LANES>
__global__ void rotate_and_write(
    __nv_bfloat16* __restrict__ query, const __nv_bfloat16* __restrict__ key, const __nv_bfloat16* __restrict__ value,
    const float* __restrict__ cos_sin, const int64_t* __restrict__ at, const int64_t* __restrict__ slot,
    __nv_bfloat16* __restrict__ key_cache, __nv_bfloat16* __restrict__ value_cache, int heads, int kv_heads, int head) {
    using Values = Pack<__nv_bfloat16, LANES>;
    const int64_t token = blockIdx.x;
    const int64_t place = slot[token];
    const int half = head / 2;
    const int packs = half / LANES;
    const float* turn = cos_sin + at[token] * head;
    const int work = (heads + (place < 0 ? 0 : 2 * kv_heads)) * packs;
    for (int i = threadIdx.x; i < work; i += blockDim.x) {
        const int h = i / packs;
        const int lane_0 = (i - h * packs) * LANES;
        const __nv_bfloat16* from = query + (token * heads + h) * head;
        __nv_bfloat16* to = query + (token * heads + h) * head;
        if (h >= heads + kv_heads) {
            from = value + (token * kv_heads + h - heads - kv_heads) * head;
            to = value_cache + (place * kv_heads + h - heads - kv_heads) * head;
        } else if (h >= heads) {
            from = key + (token * kv_heads + h - heads) * head;
            to = key_cache + (place * kv_heads + h - heads) * head;
        }
        Values low = *reinterpret_cast<const Values*>(from + lane_0);
        Values high = *reinterpret_cast<const Values*>(from + half + lane_0);
        if (h < heads + kv_heads) {
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) {
                const float x = static_cast<float>(low.lane[lane]);
                const float y = static_cast<float>(high.lane[lane]);
                const float cosine = turn[lane_0 + lane];
                const float sine = turn[half + lane_0 + lane];
                low.lane[lane] = __nv_bfloat16(x * cosine - y * sine);
                high.lane[lane] = __nv_bfloat16(y * cosine + x * sine);
            }
        }
        *reinterpret_cast<Values*>(to + lane_0) = low;
        *reinterpret_cast<Values*>(to + half + lane_0) = high;
    }
}

extern "C" void rope_kv_write_bfloat16(
    __nv_bfloat16* query, const __nv_bfloat16* key, const __nv_bfloat16* value, const float* cos_sin, const int64_t* at,
    const int64_t* slot, __nv_bfloat16* key_cache, __nv_bfloat16* value_cache, int64_t tokens, int64_t heads,
    int64_t kv_heads, int64_t head, int64_t positions, int64_t slots, cudaStream_t stream) {
    (void)positions;
    (void)slots;
    const uintptr_t addresses = reinterpret_cast<uintptr_t>(query) | reinterpret_cast<uintptr_t>(key) |
                                reinterpret_cast<uintptr_t>(value) | reinterpret_cast<uintptr_t>(key_cache) |
                                reinterpret_cast<uintptr_t>(value_cache);
    const unsigned blocks = static_cast<unsigned>(tokens);
    const int q = static_cast<int>(heads);
    const int kv = static_cast<int>(kv_heads);
    const int size = static_cast<int>(head);
    if (head % 16 == 0 && addresses % 16 == 0) {
        const int packs = (q + 2 * kv) * size / 16;
        const unsigned threads = packs < 512 ? static_cast<unsigned>((packs + 31) / 32 * 32) : 512u;
        rotate_and_write<8><<<blocks, threads, 0, stream>>>(
            query, key, value, cos_sin, at, slot, key_cache, value_cache, q, kv, size);
    } else {
        rotate_and_write<1><<<blocks, 256, 0, stream>>>(
            query, key, value, cos_sin, at, slot, key_cache, value_cache, q, kv, size);
    }
}
