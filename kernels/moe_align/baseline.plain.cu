// Pairs by expert, runs padded to whole blocks: one block, a thread an expert, which walks over all pairs twice.
#include <stdint.h>

__global__ void place_pairs(
    const int32_t* ids, int32_t* sorted, int32_t* block_expert, int32_t* total, int pairs, int experts, int block, int blocks) {
    extern __shared__ int begins[];
    for (int e = threadIdx.x; e < experts; e += blockDim.x) {
        int count = 0;
        for (int i = 0; i < pairs; ++i) {
            count += ids[i] == e;
        }
        begins[e + 1] = (count + block - 1) / block * block;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        begins[0] = 0;
        for (int e = 0; e < experts; ++e) {
            begins[e + 1] += begins[e];
        }
        *total = begins[experts];
    }
    __syncthreads();
    for (int e = threadIdx.x; e < experts; e += blockDim.x) {
        int next = begins[e];
        for (int i = 0; i < pairs; ++i) {
            if (ids[i] == e) {
                sorted[next++] = i;
            }
        }
        for (; next < begins[e + 1]; ++next) {
            sorted[next] = pairs;
        }
        for (int i = begins[e] / block; i < begins[e + 1] / block; ++i) {
            block_expert[i] = e;
        }
    }
    for (int i = begins[experts] + threadIdx.x; i < blocks * block; i += blockDim.x) {
        sorted[i] = pairs;
        block_expert[i / block] = -1;
    }
}

extern "C" void moe_align_int32(
    const int32_t* ids, int32_t* sorted, int32_t* block_expert, int32_t* total, int64_t tokens, int64_t topk,
    int64_t experts, int64_t block, cudaStream_t stream) {
    const int pairs = static_cast<int>(tokens * topk);
    const int blocks = static_cast<int>((pairs + experts * (block - 1) + block - 1) / block);
    const size_t bytes = static_cast<size_t>(experts + 1) * sizeof(int);
    place_pairs<<<1, 256, bytes, stream>>>(
        ids, sorted, block_expert, total, pairs, static_cast<int>(experts), static_cast<int>(block), blocks);
}
