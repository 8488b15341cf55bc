// Log-probabilities over a vocabulary: a block a row, warps reduce by shuffles and meet in shared memory. C is what it is.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>

#define CEIL_DIV(M, N) (((M) + (N) - 1) / (N))

__device__ float warpReduceMax(float val) {
    for (int offset = 16; offset > 0; offset /= 2) {
        val = fmaxf(val, __shfl_down_sync(0xFFFFFFFF, val, offset));
    }
    return val;
}

__device__ float warpReduceSum(float val) {
    for (int offset = 16; offset > 0; offset /= 2) {
        val += __shfl_down_sync(0xFFFFFFFF, val, offset);
    }
    return val;
}

template <typename floatX>
__global__ void log_softmax_forward_kernel(floatX* out, const floatX* inp, int N, int C) {
    extern __shared__ float shared[];
    int idx = blockIdx.x;
    int tid = threadIdx.x;
    int warpId = threadIdx.x / 32;
    int laneId = threadIdx.x % 32;
    int warpsPerBlock = blockDim.x / 32;
    float* maxvals = shared;
    float* sumvals = &shared[warpsPerBlock];

    const floatX* x = inp + (size_t)idx * C;
    floatX* y = out + (size_t)idx * C;

    float maxval = -INFINITY;
    for (int i = tid; i < C; i += blockDim.x) {
        maxval = fmaxf(maxval, (float)x[i]);
    }
    maxval = warpReduceMax(maxval);
    if (laneId == 0) maxvals[warpId] = maxval;
    __syncthreads();
    if (tid == 0) {
        float val = maxvals[0];
        for (int i = 1; i < warpsPerBlock; i++) {
            val = fmaxf(val, maxvals[i]);
        }
        maxvals[0] = val;
    }
    __syncthreads();
    float offset = maxvals[0];

    float sumval = 0.0f;
    for (int i = tid; i < C; i += blockDim.x) {
        sumval += expf((float)x[i] - offset);
    }
    sumval = warpReduceSum(sumval);
    if (laneId == 0) sumvals[warpId] = sumval;
    __syncthreads();
    if (tid == 0) {
        float val = sumvals[0];
        for (int i = 1; i < warpsPerBlock; ++i) {
            val += sumvals[i];
        }
        sumvals[0] = val;
    }
    __syncthreads();
    float logsum = logf(sumvals[0]);

    for (int i = tid; i < C; i += blockDim.x) {
        y[i] = (floatX)((float)x[i] - offset - logsum);
    }
}

template <typename floatX>
void log_softmax_forward(floatX* out, const floatX* inp, int N, int C, cudaStream_t stream) {
    const int block_size = 512;
    size_t shared_mem_size = 2 * CEIL_DIV(block_size, 32) * sizeof(float);
    log_softmax_forward_kernel<<<N, block_size, shared_mem_size, stream>>>(out, inp, N, C);
}

extern "C" void log_softmax_float32(const float* inp, float* out, int64_t N, int64_t C, cudaStream_t stream) {
    log_softmax_forward(out, inp, (int)N, (int)C, stream);
}

extern "C" void log_softmax_bfloat16(const __nv_bfloat16* inp, __nv_bfloat16* out, int64_t N, int64_t C, cudaStream_t stream) {
    log_softmax_forward(out, inp, (int)N, (int)C, stream);
}
