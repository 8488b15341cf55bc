// WRONG: the log-sum-exps are natural ones but are mixed to base 2, as kernels that keep theirs to base 2 rightly
// do.
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

constexpr int kThreads = 128;

// What one thread loads and stores at once: 16 bytes, or one element where rows do not begin on 16 bytes.
template <typename T, int kLanes>
struct alignas(kLanes * sizeof(T)) Pack {
    T lane[kLanes];
};

// A part without keys has an lse of -inf; some kernels write +inf for it.
__device__ __forceinline__ float without_infinity(float lse) { return lse == INFINITY ? -INFINITY : lse; }

// Index is 32 bits wide wherever the packs can be counted so: a 64-bit division costs some hundred instructions.
template <typename T, int kLanes, typename Index>
__global__ void merge_attn_states_lse_kernel(
    const T* __restrict__ prefix_output, const float* __restrict__ prefix_lse, const T* __restrict__ suffix_output,
    const float* __restrict__ suffix_lse, T* __restrict__ output, float* __restrict__ output_lse, Index tokens,
    Index heads, Index packs_per_row) {
    const Index pack = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x;
    const Index row = pack / packs_per_row;
    const Index token = row / heads;
    const Index head = row % heads;
    if (token >= tokens) {
        return;
    }
    const int64_t at = static_cast<int64_t>(head) * tokens + token;

    const float prefix = without_infinity(prefix_lse[at]);
    const float suffix = without_infinity(suffix_lse[at]);
    const float highest = fmaxf(prefix, suffix);
    const bool empty = highest == -INFINITY;
    const float p = empty ? 0.0f : exp2f(prefix - highest);
    const float s = empty ? 0.0f : exp2f(suffix - highest);
    const float total = empty ? 1.0f : p + s;
    const float prefix_weight = p / total;
    const float suffix_weight = s / total;

    const Pack<T, kLanes> a = reinterpret_cast<const Pack<T, kLanes>*>(prefix_output)[pack];
    const Pack<T, kLanes> b = reinterpret_cast<const Pack<T, kLanes>*>(suffix_output)[pack];
    Pack<T, kLanes> mixed;
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
        store(&mixed.lane[lane], to_float(a.lane[lane]) * prefix_weight + to_float(b.lane[lane]) * suffix_weight);
    }
    reinterpret_cast<Pack<T, kLanes>*>(output)[pack] = mixed;
    if (pack % packs_per_row == 0) {
        output_lse[at] = log2f(total) + highest;
    }
}

template <typename T, int kLanes>
void launch(
    const T* prefix_output, const float* prefix_lse, const T* suffix_output, const float* suffix_lse, T* output,
    float* output_lse, int64_t tokens, int64_t heads, int64_t head_dim, cudaStream_t stream) {
    const int64_t packs_per_row = head_dim / kLanes;
    const int64_t packs = tokens * heads * packs_per_row;
    const dim3 grid(static_cast<unsigned>((packs + kThreads - 1) / kThreads));
    if (packs + kThreads <= INT32_MAX) {
        merge_attn_states_lse_kernel<T, kLanes, uint32_t><<<grid, kThreads, 0, stream>>>(
            prefix_output, prefix_lse, suffix_output, suffix_lse, output, output_lse, static_cast<uint32_t>(tokens),
            static_cast<uint32_t>(heads), static_cast<uint32_t>(packs_per_row));
    } else {
        merge_attn_states_lse_kernel<T, kLanes, uint64_t><<<grid, kThreads, 0, stream>>>(
            prefix_output, prefix_lse, suffix_output, suffix_lse, output, output_lse, static_cast<uint64_t>(tokens),
            static_cast<uint64_t>(heads), static_cast<uint64_t>(packs_per_row));
    }
}

template <typename T>
void merge_attn_states_lse(
    const T* prefix_output, const float* prefix_lse, const T* suffix_output, const float* suffix_lse, T* output,
    float* output_lse, int64_t tokens, int64_t heads, int64_t head_dim, cudaStream_t stream) {
    constexpr int kLanes = 16 / sizeof(T);
    const uintptr_t addresses = reinterpret_cast<uintptr_t>(prefix_output) |
                                reinterpret_cast<uintptr_t>(suffix_output) | reinterpret_cast<uintptr_t>(output);
    if (head_dim % kLanes == 0 && addresses % 16 == 0) {
        launch<T, kLanes>(
            prefix_output, prefix_lse, suffix_output, suffix_lse, output, output_lse, tokens, heads, head_dim, stream);
    } else {
        launch<T, 1>(
            prefix_output, prefix_lse, suffix_output, suffix_lse, output, output_lse, tokens, heads, head_dim, stream);
    }
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
