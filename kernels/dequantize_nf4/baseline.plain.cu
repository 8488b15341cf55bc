// Weights from NF4 codes: a thread a byte.
#include <cuda_bf16.h>
#include <stdint.h>

__constant__ float NF4[16] = {
    -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f,
    -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,
    0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,
    0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f};

__global__ void dequantize(const uint8_t* packed, const float* absmax, __nv_bfloat16* out, int64_t bytes) {
    const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < bytes) {
        out[2 * i] = __nv_bfloat16(NF4[packed[i] >> 4] * absmax[i / 32]);
        out[2 * i + 1] = __nv_bfloat16(NF4[packed[i] & 15] * absmax[i / 32]);
    }
}

extern "C" void dequantize_nf4_bfloat16(
    const uint8_t* packed, const float* absmax, __nv_bfloat16* out, int64_t blocks, cudaStream_t stream) {
    dequantize<<<static_cast<unsigned>((blocks * 32 + 255) / 256), 256, 0, stream>>>(packed, absmax, out, blocks * 32);
}
