// output = the mean of prefix and suffix weighted by exp(lse), output_lse = log(exp(prefix_lse) + exp(suffix_lse)): a thread
// for each 16 bytes of the output, loads before arithmetic, no division of indices,
// neighbouring tokens of one head in a block.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cmath>

// Tokens of one head that a block takes: their log-sum-exps lie side by side, eight of them in the 32 bytes that are moved
// at least.
#define TOKENS 8  // tune: 4 8 16
// From this many packs on a thread takes two rows.
#define TWO_FROM 4194304  // tune: 524288 4194304

// Launches a kernel that may be set up while the one before it on the stream drains; every kernel here waits for that one
// (cudaGridDependencySynchronize) before it touches memory.
template <typename... Parameters, typename... Arguments>
inline void launch(
    void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream, Arguments... arguments) {
    cudaLaunchAttribute overlap = {};
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = &overlap;
    config.numAttrs = 1;
    cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(__half value) { return __half2float(value); }
__device__ __forceinline__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

__device__ __forceinline__ void store(float* to, float value) { *to = value; }
__device__ __forceinline__ void store(__half* to, float value) { *to = __float2half(value); }
__device__ __forceinline__ void store(__nv_bfloat16* to, float value) { *to = __float2bfloat16(value); }

// What a thread loads and stores at once: 16 bytes, or one element where rows do not begin on 16 bytes.
template <typename T, int kLanes>
struct alignas(kLanes * sizeof(T)) Pack {
    T lane[kLanes];
};

struct Weights {
    float prefix, suffix, lse;
};

// A part without keys has an lse of -infinity; some kernels write +infinity for it.
__device__ __forceinline__ float without_infinity(float lse) { return lse == INFINITY ? -INFINITY : lse; }

// The larger of the two exponentials is 1, so the sum lies in [1, 2] and the fast division and logarithm are exact enough.
__device__ __forceinline__ Weights weights(float prefix, float suffix) {
    prefix = without_infinity(prefix);
    suffix = without_infinity(suffix);
    const float highest = fmaxf(prefix, suffix);
    if (highest == -INFINITY) return {0.0f, 0.0f, -INFINITY};
    const float p = __expf(prefix - highest), s = __expf(suffix - highest);
    const float inverse = __fdividef(1.0f, p + s);
    return {p * inverse, s * inverse, logf(p + s) + highest};
}

template <typename T, int kLanes>
__device__ __forceinline__ Pack<T, kLanes> mixed(const Pack<T, kLanes>& a, const Pack<T, kLanes>& b, const Weights& w) {
    Pack<T, kLanes> out;
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
        store(&out.lane[lane], to_float(a.lane[lane]) * w.prefix + to_float(b.lane[lane]) * w.suffix);
    }
    return out;
}

// blockIdx.x is the head, threadIdx.x the place in a row; a block takes kRows * TOKENS tokens from blockIdx.y on.
template <typename T, int kLanes, int kRows>
__global__ void tile_kernel(
    const T* __restrict__ prefix_output, const float* __restrict__ prefix_lse, const T* __restrict__ suffix_output,
    const float* __restrict__ suffix_lse, T* __restrict__ output, float* __restrict__ output_lse, int64_t tokens,
    int64_t heads, uint32_t packs_per_row) {
    const int64_t first = static_cast<int64_t>(blockIdx.y) * kRows * TOKENS + threadIdx.y;
    const Pack<T, kLanes>* a = reinterpret_cast<const Pack<T, kLanes>*>(prefix_output);
    const Pack<T, kLanes>* b = reinterpret_cast<const Pack<T, kLanes>*>(suffix_output);
    Pack<T, kLanes>* out = reinterpret_cast<Pack<T, kLanes>*>(output);
    cudaGridDependencySynchronize();
    cudaTriggerProgrammaticLaunchCompletion();
    Pack<T, kLanes> x[kRows], y[kRows];
    float prefix[kRows], suffix[kRows];
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
        const int64_t token = first + k * TOKENS;
        if (token < tokens) {
            const int64_t at = blockIdx.x * tokens + token, pack = (token * heads + blockIdx.x) * packs_per_row + threadIdx.x;
            prefix[k] = prefix_lse[at];
            suffix[k] = suffix_lse[at];
            x[k] = a[pack];
            y[k] = b[pack];
        }
    }
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
        const int64_t token = first + k * TOKENS;
        if (token < tokens) {
            const int64_t at = blockIdx.x * tokens + token, pack = (token * heads + blockIdx.x) * packs_per_row + threadIdx.x;
            const Weights w = weights(prefix[k], suffix[k]);
            out[pack] = mixed(x[k], y[k], w);
            if (threadIdx.x == 0) output_lse[at] = w.lse;
        }
    }
}

// blockIdx.x is the token; its rows lie one behind the other, cut into blocks along blockIdx.y.
template <typename T, int kLanes>
__global__ void token_kernel(
    const T* __restrict__ prefix_output, const float* __restrict__ prefix_lse, const T* __restrict__ suffix_output,
    const float* __restrict__ suffix_lse, T* __restrict__ output, float* __restrict__ output_lse, int64_t tokens,
    int64_t heads, uint32_t packs_per_row) {
    const int64_t begin = static_cast<int64_t>(blockIdx.x) * heads * packs_per_row;
    const uint32_t packs = static_cast<uint32_t>(heads) * packs_per_row;
    const Pack<T, kLanes>* a = reinterpret_cast<const Pack<T, kLanes>*>(prefix_output);
    const Pack<T, kLanes>* b = reinterpret_cast<const Pack<T, kLanes>*>(suffix_output);
    Pack<T, kLanes>* out = reinterpret_cast<Pack<T, kLanes>*>(output);
    cudaGridDependencySynchronize();
    cudaTriggerProgrammaticLaunchCompletion();
    for (uint32_t i = blockIdx.y * blockDim.x + threadIdx.x; i < packs; i += gridDim.y * blockDim.x) {
        const uint32_t head = i / packs_per_row;
        const int64_t at = head * tokens + blockIdx.x;
        const float prefix = prefix_lse[at], suffix = suffix_lse[at];
        const Pack<T, kLanes> x = a[begin + i], y = b[begin + i];
        const Weights w = weights(prefix, suffix);
        out[begin + i] = mixed(x, y, w);
        if (i == head * packs_per_row) output_lse[at] = w.lse;
    }
}

template <typename T, int kLanes>
void merge_packs(
    const T* prefix_output, const float* prefix_lse, const T* suffix_output, const float* suffix_lse, T* output,
    float* output_lse, int64_t tokens, int64_t heads, int64_t head_dim, cudaStream_t stream) {
    const uint32_t packs_per_row = static_cast<uint32_t>(head_dim / kLanes);
    const bool two = tokens * heads * packs_per_row >= TWO_FROM;
    const int64_t step = two ? 2 * TOKENS : TOKENS, groups = (tokens + step - 1) / step;
    if (packs_per_row * TOKENS <= 1024 && packs_per_row * TOKENS >= 32 && groups <= 65535) {
        const dim3 grid(static_cast<unsigned>(heads), static_cast<unsigned>(groups)), block(packs_per_row, TOKENS);
        if (two) {
            launch(tile_kernel<T, kLanes, 2>, grid, block, 0, stream, 
                prefix_output, prefix_lse, suffix_output, suffix_lse, output, output_lse, tokens, heads, packs_per_row);
        } else {
            launch(tile_kernel<T, kLanes, 1>, grid, block, 0, stream, 
                prefix_output, prefix_lse, suffix_output, suffix_lse, output, output_lse, tokens, heads, packs_per_row);
        }
        return;
    }
    constexpr unsigned THREADS = 128;
    const int64_t slices = (heads * packs_per_row + THREADS - 1) / THREADS;
    const dim3 grid(static_cast<unsigned>(tokens), static_cast<unsigned>(slices < 65535 ? slices : 65535));
    launch(token_kernel<T, kLanes>, grid, dim3(THREADS), 0, stream, 
        prefix_output, prefix_lse, suffix_output, suffix_lse, output, output_lse, tokens, heads, packs_per_row);
}

template <typename T>
void merge_attn_states_lse(
    const T* prefix_output, const float* prefix_lse, const T* suffix_output, const float* suffix_lse, T* output,
    float* output_lse, int64_t tokens, int64_t heads, int64_t head_dim, cudaStream_t stream) {
    constexpr int kLanes = 16 / sizeof(T);
    const uintptr_t addresses = reinterpret_cast<uintptr_t>(prefix_output) |
                                reinterpret_cast<uintptr_t>(suffix_output) | reinterpret_cast<uintptr_t>(output);
    if (head_dim % kLanes == 0 && addresses % 16 == 0) {
        merge_packs<T, kLanes>(
            prefix_output, prefix_lse, suffix_output, suffix_lse, output, output_lse, tokens, heads, head_dim, stream);
    } else {
        merge_packs<T, 1>(
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
    const __nv_bfloat16* prefix_output, const float* prefix_lse, const __nv_bfloat16* suffix_output, const float* suffix_lse,
    __nv_bfloat16* output, float* output_lse, int64_t tokens, int64_t heads, int64_t head_dim, cudaStream_t stream) {
    merge_attn_states_lse(
        prefix_output, prefix_lse, suffix_output, suffix_lse, output, output_lse, tokens, heads, head_dim, stream);
}

extern "C" void merge_attn_states_lse_float32(
    const float* prefix_output, const float* prefix_lse, const float* suffix_output, const float* suffix_lse,
    float* output, float* output_lse, int64_t tokens, int64_t heads, int64_t head_dim, cudaStream_t stream) {
    merge_attn_states_lse(
        prefix_output, prefix_lse, suffix_output, suffix_lse, output, output_lse, tokens, heads, head_dim, stream);
}
