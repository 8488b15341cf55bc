// Each row's gradient, shared out evenly, is added atomically to the rows that it was the mean of: a block a row, a thread
// an element and step. Sums come in any order.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(__half value) { return __half2float(value); }
__device__ inline float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

template <typename T>
__global__ void scatter_kernel(
    const T* grad_out, const int32_t* ids, float* grad, int64_t rows, int64_t fanout, int64_t width) {
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        int count = 0;
        for (int64_t j = 0; j < fanout; ++j) {
            count += ids[row * fanout + j] >= 0;
        }
        for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
            const float share = to_float(grad_out[row * width + i]) / (count > 0 ? count : 1);
            for (int64_t j = 0; j < fanout; ++j) {
                const int64_t id = ids[row * fanout + j];
                if (id >= 0) {
                    atomicAdd(grad + id * width + i, share);
                }
            }
        }
    }
}

extern "C" void scatter_mean_backward_float16(
    const __half* grad_out, const int32_t* ids, float* grad, int64_t sources, int64_t rows, int64_t fanout, int64_t width,
    cudaStream_t stream) {
    cudaMemsetAsync(grad, 0, static_cast<size_t>(sources * width) * sizeof(float), stream);
    const unsigned blocks = static_cast<unsigned>(rows < 65536 ? rows : 65536);
    scatter_kernel<<<blocks, 128, 0, stream>>>(grad_out, ids, grad, rows, fanout, width);
}

extern "C" void scatter_mean_backward_bfloat16(
    const __nv_bfloat16* grad_out, const int32_t* ids, float* grad, int64_t sources, int64_t rows, int64_t fanout, int64_t width,
    cudaStream_t stream) {
    cudaMemsetAsync(grad, 0, static_cast<size_t>(sources * width) * sizeof(float), stream);
    const unsigned blocks = static_cast<unsigned>(rows < 65536 ? rows : 65536);
    scatter_kernel<<<blocks, 128, 0, stream>>>(grad_out, ids, grad, rows, fanout, width);
}

extern "C" void scatter_mean_backward_float32(
    const float* grad_out, const int32_t* ids, float* grad, int64_t sources, int64_t rows, int64_t fanout, int64_t width,
    cudaStream_t stream) {
    cudaMemsetAsync(grad, 0, static_cast<size_t>(sources * width) * sizeof(float), stream);
    const unsigned blocks = static_cast<unsigned>(rows < 65536 ? rows : 65536);
    scatter_kernel<<<blocks, 128, 0, stream>>>(grad_out, ids, grad, rows, fanout, width);
}
