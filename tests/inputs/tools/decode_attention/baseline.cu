#include <cuda_fp16.h>
#include <stdint.h>

#define HEAD 128

// A block takes one query head, a thread one element of it: keys come one after the other, and each is read by the whole block.
__global__ void decode_attention_kernel(
    const __half* query, const __half* keys, const __half* values, __half* out, int64_t group, int64_t length,
    float scale) {
    __shared__ float partial[HEAD / 32];
    const int64_t head = blockIdx.x;
    const int64_t shared_head = head / group;
    const float mine = __half2float(query[head * HEAD + threadIdx.x]) * scale;
    const __half* key = keys + shared_head * length * HEAD + threadIdx.x;
    const __half* value = values + shared_head * length * HEAD + threadIdx.x;
    float maximum = -INFINITY;
    float weights = 0.0f;
    float sum = 0.0f;
    for (int64_t at = 0; at < length; ++at) {
        float score = mine * __half2float(key[at * HEAD]);
        for (int step = 16; step > 0; step /= 2) {
            score += __shfl_xor_sync(0xffffffffu, score, step);
        }
        if (threadIdx.x % 32 == 0) {
            partial[threadIdx.x / 32] = score;
        }
        __syncthreads();
        score = partial[0] + partial[1] + partial[2] + partial[3];
        __syncthreads();
        const float larger = fmaxf(maximum, score);
        const float keep = expf(maximum - larger);
        const float weight = expf(score - larger);
        weights = weights * keep + weight;
        sum = sum * keep + weight * __half2float(value[at * HEAD]);
        maximum = larger;
    }
    out[head * HEAD + threadIdx.x] = __float2half(sum / weights);
}

extern "C" void decode_attention_float16(
    const __half* query, const __half* keys, const __half* values, __half* out, int64_t batch, int64_t heads_kv,
    int64_t group, int64_t length, float scale, cudaStream_t stream) {
    decode_attention_kernel<<<batch * heads_kv * group, HEAD, 0, stream>>>(
        query, keys, values, out, group, length, scale);
}
