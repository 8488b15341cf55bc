// Rows of a table by id: a block a row, a thread an element and step. The row of no id (-1) is zeros.
#include <stdint.h>

template <typename T>
__global__ void gather_rows_kernel(const T* table, const int32_t* ids, T* out, int64_t rows, int64_t width) {
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const int64_t id = ids[row];
        for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
            out[row * width + i] = id < 0 ? T(0) : table[id * width + i];
        }
    }
}

extern "C" void gather_rows_by_id_float16(
    const uint16_t* table, const int32_t* ids, uint16_t* out, int64_t nodes, int64_t rows, int64_t width, cudaStream_t stream) {
    (void)nodes;
    const unsigned blocks = static_cast<unsigned>(rows < 65536 ? rows : 65536);
    gather_rows_kernel<<<blocks, 128, 0, stream>>>(table, ids, out, rows, width);
}

extern "C" void gather_rows_by_id_bfloat16(
    const uint16_t* table, const int32_t* ids, uint16_t* out, int64_t nodes, int64_t rows, int64_t width, cudaStream_t stream) {
    (void)nodes;
    const unsigned blocks = static_cast<unsigned>(rows < 65536 ? rows : 65536);
    gather_rows_kernel<<<blocks, 128, 0, stream>>>(table, ids, out, rows, width);
}

extern "C" void gather_rows_by_id_float32(
    const uint32_t* table, const int32_t* ids, uint32_t* out, int64_t nodes, int64_t rows, int64_t width, cudaStream_t stream) {
    (void)nodes;
    const unsigned blocks = static_cast<unsigned>(rows < 65536 ? rows : 65536);
    gather_rows_kernel<<<blocks, 128, 0, stream>>>(table, ids, out, rows, width);
}
