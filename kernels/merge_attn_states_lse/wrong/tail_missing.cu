// WRONG: whole groups of eight elements only: a head_dim that is no multiple of 8 keeps the end of every row
// unwritten.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>
#include <stdint.h>

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(__half value) { return __half2float(value); }
__device__ __forceinline__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

__device__ __forceinline__ void store(float* to, float value) { *to = value; }
__device__ __forceinline__ void store(__half* to, float value) { *to = __float2half(value); }
__device__ __forceinline__ void store(__nv_bfloat16* to, float value) { *to = __float2bfloat16(value); }

// A part without keys has an lse of -inf; some kernels write +inf for it.
__device__ __forceinline__ float without_infinity(float lse) { return lse == INFINITY ? -INFINITY : lse; }

template <typename T>
__global__ void merge_attn_states_lse_kernel(
    const T* prefix_output, const float* prefix_lse, const T* suffix_output, const float* suffix_lse, T* output,
    float* output_lse, int64_t tokens, int64_t heads, int64_t head_dim) {
    for (int64_t row = blockIdx.x; row < tokens * heads; row += gridDim.x) {
        const int64_t token = row / heads;
        const int64_t head = row % heads;
        const int64_t at = head * tokens + token;
        for (int64_t i = threadIdx.x; i < head_dim / 8 * 8; i += blockDim.x) {
            const float prefix = without_infinity(prefix_lse[at]);
            const float suffix = without_infinity(suffix_lse[at]);
            const float highest = fmaxf(prefix, suffix);
            const bool empty = highest == -INFINITY;
            const float p = empty ? 0.0f : expf(prefix - highest);
            const float s = empty ? 0.0f : expf(suffix - highest);
            const float total = empty ? 1.0f : p + s;
            const float mixed = to_float(prefix_output[row * head_dim + i]) * (p / total) +
                                to_float(suffix_output[row * head_dim + i]) * (s / total);
            store(output + row * head_dim + i, mixed);
            if (i == 0) {
                output_lse[at] = logf(total) + highest;
            }
        }
    }
}

template <typename T>
void merge_attn_states_lse(
    const T* prefix_output, const float* prefix_lse, const T* suffix_output, const float* suffix_lse, T* output,
    float* output_lse, int64_t tokens, int64_t heads, int64_t head_dim, cudaStream_t stream) {
    const int threads = 128;
    const int blocks = tokens * heads < 256 ? static_cast<int>(tokens * heads) : 256;
    merge_attn_states_lse_kernel<T><<<blocks, threads, 0, stream>>>(
        prefix_output, prefix_lse, suffix_output, suffix_lse, output, output_lse, tokens, heads, head_dim);
}

extern "C" void merge_attn_states_lse_float16(
    const __half* prefix_output, const float* prefix_lse, const __half* suffix_output, const float* suffix_lse,
    __half* output, float* output_lse, int64_t tokens, int64_t heads, int64_t head_dim, cudaStream_t stream) {
    merge_attn_states_lse(
        prefix_output, prefix_lse, suffix_output, suffix_lse, output, output_lse, tokens, heads, head_dim, stream);
}

extern "C" void merge_attn_states_lse_bfloat16(
    const __nv_bfloat16* prefix_output, const float* prefix_lse, const __nv_bfloat16* suffix_output,
    const float* suffix_lse, __nv_bfloat16* output, float* output_lse, int64_t tokens, int64_t heads,
    int64_t head_dim, cudaStream_t stream) {
    merge_attn_states_lse(
        prefix_output, prefix_lse, suffix_output, suffix_lse, output, output_lse, tokens, heads, head_dim, stream);
}

extern "C" void merge_attn_states_lse_float32(
    const float* prefix_output, const float* prefix_lse, const float* suffix_output, const float* suffix_lse,
    float* output, float* output_lse, int64_t tokens, int64_t heads, int64_t head_dim, cudaStream_t stream) {
    merge_attn_states_lse(
        prefix_output, prefix_lse, suffix_output, suffix_lse, output, output_lse, tokens, heads, head_dim, stream);
}
