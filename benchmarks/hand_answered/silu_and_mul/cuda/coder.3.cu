// out[t][i] = silu(input[t][i]) * input[t][hidden + i]: one pack of 16 bytes a thread, rows cut into blocks along their length.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

// A row is cut into blocks until there are this many: a small tensor is done soonest by all multiprocessors together.
#define MIN_BLOCKS 132  // tune: 66 132 264

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

// 16 bytes, the widest load of a thread.
template <typename T>
struct alignas(16) Pack {
    static constexpr int kLanes = 16 / sizeof(T);
    T lane[kLanes];
};

// The divisor is at most infinite, never between 2^126 and infinity for an x that matters: silu is below 1e-36 there.
__device__ __forceinline__ float silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

template <typename T>
__device__ __forceinline__ Pack<T> activated(const Pack<T>& gate, const Pack<T>& up) {
    Pack<T> product;
#pragma unroll
    for (int lane = 0; lane < Pack<T>::kLanes; ++lane) {
        store(&product.lane[lane], silu(to_float(gate.lane[lane])) * to_float(up.lane[lane]));
    }
    return product;
}

// blockIdx.x is the token, blockIdx.y the place in its row; `packs` is the length of a row of the output.
template <typename T>
__global__ void vector_kernel(const Pack<T>* __restrict__ input, Pack<T>* __restrict__ out, uint32_t packs) {
    const uint32_t i = blockIdx.y * blockDim.x + threadIdx.x;
    const Pack<T>* gate = input + static_cast<uint64_t>(blockIdx.x) * 2 * packs;
    cudaGridDependencySynchronize();
    cudaTriggerProgrammaticLaunchCompletion();
    if (i < packs) out[static_cast<uint64_t>(blockIdx.x) * packs + i] = activated(gate[i], gate[packs + i]);
}

// For rows that do not begin on 16 bytes, and those that are too long for the grid.
template <typename T>
__global__ void scalar_kernel(const T* __restrict__ input, T* __restrict__ out, int64_t hidden) {
    cudaGridDependencySynchronize();
    cudaTriggerProgrammaticLaunchCompletion();
    const T* gate = input + blockIdx.x * 2 * hidden;
    T* row = out + blockIdx.x * hidden;
    for (int64_t i = blockIdx.y * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < hidden; i += gridDim.y * blockDim.x) {
        store(row + i, silu(to_float(gate[i])) * to_float(gate[hidden + i]));
    }
}

template <typename T>
void silu_and_mul(const T* input, T* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    constexpr int64_t kLanes = Pack<T>::kLanes;
    const uintptr_t addresses = reinterpret_cast<uintptr_t>(input) | reinterpret_cast<uintptr_t>(out);
    const int64_t packs = hidden / kLanes;
    if (hidden % kLanes == 0 && addresses % 16 == 0 && packs < 1 << 21) {
        const Pack<T>* packed_input = reinterpret_cast<const Pack<T>*>(input);
        Pack<T>* packed_out = reinterpret_cast<Pack<T>*>(out);
        unsigned threads = 512;
        while (threads > 64 && tokens * ((packs + threads - 1) / threads) < MIN_BLOCKS) threads /= 2;
        while (threads > 64 && threads / 2 >= packs) threads /= 2;
        const dim3 grid(static_cast<unsigned>(tokens), static_cast<unsigned>((packs + threads - 1) / threads));
        launch(vector_kernel<T>, grid, dim3(threads), 0, stream, packed_input, packed_out, static_cast<uint32_t>(packs));
    } else {
        const unsigned threads = 256;
        const int64_t slices = (hidden + threads - 1) / threads;
        const dim3 grid(static_cast<unsigned>(tokens), static_cast<unsigned>(slices < 65535 ? slices : 65535));
        launch(scalar_kernel<T>, grid, dim3(threads), 0, stream, input, out, hidden);
    }
}

extern "C" void silu_and_mul_float16(
    const __half* input, __half* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    silu_and_mul(input, out, tokens, hidden, stream);
}

extern "C" void silu_and_mul_bfloat16(
    const __nv_bfloat16* input, __nv_bfloat16* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    silu_and_mul(input, out, tokens, hidden, stream);
}

extern "C" void silu_and_mul_float32(
    const float* input, float* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    silu_and_mul(input, out, tokens, hidden, stream);
}
