// Rows of a table by id: a block a row, a thread an element and step. The row of no id (-1) is zeros.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

template <typename T>
__global__ void gather_rows_kernel(const T* table, const int32_t* ids, T* out, int64_t rows, int64_t width) {
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const int64_t id = ids[row];
        for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
            out[row * width + i] = id < 0 ? T{} : table[id * width + i];
        }
    }
}

extern "C" void gather_rows_by_id_float16(
    const __half* table, const int32_t* ids, __half* out, int64_t nodes, int64_t rows, int64_t width, cudaStream_t stream) {
    (void)nodes;
    const unsigned blocks = static_cast<unsigned>(rows < 65536 ? rows : 65536);
    gather_rows_kernel<<<blocks, 128, 0, stream>>>(table, ids, out, rows, width);
}

extern "C" void gather_rows_by_id_bfloat16(
    const __nv_bfloat16* table, const int32_t* ids, __nv_bfloat16* out, int64_t nodes, int64_t rows, int64_t width, cudaStream_t stream) {
    (void)nodes;
    const unsigned blocks = static_cast<unsigned>(rows < 65536 ? rows : 65536);
    gather_rows_kernel<<<blocks, 128, 0, stream>>>(table, ids, out, rows, width);
}

extern "C" void gather_rows_by_id_float32(
    const float* table, const int32_t* ids, float* out, int64_t nodes, int64_t rows, int64_t width, cudaStream_t stream) {
    (void)nodes;
    const unsigned blocks = static_cast<unsigned>(rows < 65536 ? rows : 65536);
    gather_rows_kernel<<<blocks, 128, 0, stream>>>(table, ids, out, rows, width);
}
