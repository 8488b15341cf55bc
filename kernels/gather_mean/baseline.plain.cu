// The mean of the rows that each row of ids names: a block a row, a thread an element and step. -1 is no id.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(__half value) { return __half2float(value); }
__device__ inline float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ inline void store(float* to, float value) { *to = value; }
__device__ inline void store(__half* to, float value) { *to = __float2half(value); }
__device__ inline void store(__nv_bfloat16* to, float value) { *to = __float2bfloat16(value); }

template <typename T>
__global__ void gather_mean_kernel(
    const T* table, const int32_t* ids, T* out, int64_t rows, int64_t fanout, int64_t width) {
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
            float sum = 0.0f;
            int count = 0;
            for (int64_t j = 0; j < fanout; ++j) {
                const int64_t id = ids[row * fanout + j];
                if (id >= 0) {
                    sum += to_float(table[id * width + i]);
                    ++count;
                }
            }
            store(out + row * width + i, sum / (count > 0 ? count : 1));
        }
    }
}

extern "C" void gather_mean_float16(
    const __half* table, const int32_t* ids, __half* out, int64_t nodes, int64_t rows, int64_t fanout, int64_t width,
    cudaStream_t stream) {
    (void)nodes;
    const unsigned blocks = static_cast<unsigned>(rows < 65536 ? rows : 65536);
    gather_mean_kernel<<<blocks, 128, 0, stream>>>(table, ids, out, rows, fanout, width);
}

extern "C" void gather_mean_bfloat16(
    const __nv_bfloat16* table, const int32_t* ids, __nv_bfloat16* out, int64_t nodes, int64_t rows, int64_t fanout, int64_t width,
    cudaStream_t stream) {
    (void)nodes;
    const unsigned blocks = static_cast<unsigned>(rows < 65536 ? rows : 65536);
    gather_mean_kernel<<<blocks, 128, 0, stream>>>(table, ids, out, rows, fanout, width);
}

extern "C" void gather_mean_float32(
    const float* table, const int32_t* ids, float* out, int64_t nodes, int64_t rows, int64_t fanout, int64_t width,
    cudaStream_t stream) {
    (void)nodes;
    const unsigned blocks = static_cast<unsigned>(rows < 65536 ? rows : 65536);
    gather_mean_kernel<<<blocks, 128, 0, stream>>>(table, ids, out, rows, fanout, width);
}
