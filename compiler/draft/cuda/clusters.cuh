#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#include <cooperative_groups.h>
#endif
constexpr bool kClusters = kArchitectures[0] >= 900 && kArchitectures[0] < 1200;

// Every thread of the cluster's Blocks blocks gets the fold of all their values; 0: of a block without a cluster.
template <int Blocks, typename T, typename Join>
__device__ T cluster_fold(T value, T identity, Join join) {
    value = block_fold(value, identity, join);
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    if constexpr (Blocks > 1) {
        __shared__ T of_block;
        const auto cluster = cooperative_groups::this_cluster();
        if (threadIdx.x == 0) {
            of_block = value;
        }
        cluster.sync();
        value = *cluster.map_shared_rank(&of_block, 0);
        for (int block = 1; block < Blocks; ++block) {
            value = join(value, *cluster.map_shared_rank(&of_block, block));
        }
        cluster.sync();  // nobody reads this block's any more
    }
#endif
    return value;
}

// A cluster of `sharers` blocks for each row, as far as a grid goes, each block with `bytes` of shared memory.
template <typename... Parameters, typename... Arguments>
void launch_clusters(void (*kernel)(Parameters...), int64_t rows, int sharers, int threads, int bytes, cudaStream_t stream, Arguments... arguments) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = sharers;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>((rows < (1 << 20) ? rows : 1 << 20) * sharers));
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = bytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}
