// Pairs by expert, runs padded to whole blocks: a block of threads an expert, each counts all pairs, then places its own by ballots.
#include <stdint.h>

constexpr int THREADS = 512;
constexpr int WARPS = THREADS / 32;

__global__ void __launch_bounds__(THREADS) place_pairs(
    const int32_t* __restrict__ ids, int32_t* __restrict__ sorted, int32_t* __restrict__ block_expert,
    int32_t* __restrict__ total, int pairs, int experts, int block, int blocks) {
    extern __shared__ int counts[];
    __shared__ int found[WARPS];
    const int mine = blockIdx.x;
    for (int e = threadIdx.x; e < experts; e += THREADS) {
        counts[e] = 0;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < pairs; i += THREADS) {
        atomicAdd(&counts[ids[i]], 1);
    }
    __syncthreads();
    int begin = 0;
    int all = 0;
    for (int e = 0; e < experts; ++e) {
        const int run = (counts[e] + block - 1) / block * block;
        begin += e < mine ? run : 0;
        all += run;
    }
    const int end = begin + (counts[mine] + block - 1) / block * block;
    int next = begin;
    for (int first = 0; first < pairs; first += THREADS) {
        const int i = first + threadIdx.x;
        const bool here = i < pairs && ids[i] == mine;
        const unsigned votes = __ballot_sync(0xffffffffu, here);
        if (threadIdx.x % 32 == 0) {
            found[threadIdx.x / 32] = __popc(votes);
        }
        __syncthreads();
        int before = 0;
        int together = 0;
#pragma unroll
        for (int warp = 0; warp < WARPS; ++warp) {
            before += warp < threadIdx.x / 32 ? found[warp] : 0;
            together += found[warp];
        }
        if (here) {
            sorted[next + before + __popc(votes & ((1u << threadIdx.x % 32) - 1u))] = i;
        }
        next += together;
        __syncthreads();
    }
    for (int i = next + threadIdx.x; i < end; i += THREADS) {
        sorted[i] = pairs;
    }
    for (int i = begin / block + threadIdx.x; i < end / block; i += THREADS) {
        block_expert[i] = mine;
    }
    for (int i = all + mine * THREADS + threadIdx.x; i < blocks * block; i += experts * THREADS) {
        sorted[i] = pairs;
        if (i % block == 0) {
            block_expert[i / block] = -1;
        }
    }
    if (mine == 0 && threadIdx.x == 0) {
        *total = all;
    }
}

extern "C" void moe_align_int32(
    const int32_t* ids, int32_t* sorted, int32_t* block_expert, int32_t* total, int64_t tokens, int64_t topk,
    int64_t experts, int64_t block, cudaStream_t stream) {
    const int pairs = static_cast<int>(tokens * topk);
    const int blocks = static_cast<int>((pairs + experts * (block - 1) + block - 1) / block);
    const size_t bytes = static_cast<size_t>(experts) * sizeof(int);
    place_pairs<<<static_cast<unsigned>(experts), THREADS, bytes, stream>>>(
        ids, sorted, block_expert, total, pairs, static_cast<int>(experts), static_cast<int>(block), blocks);
}
