// Clusters of 1, 2, 4 and 8 blocks that run at once, where a multiprocessor has one: fewer than their blocks, since a cluster lies in one part of
// the device.
struct ClusterPlaces {
    int of[4];

    ClusterPlaces() {
        const Multiprocessors device;
        for (int i = 0; i < 4; ++i) {
            of[i] = device.count >> i;
        }
    }
    template <typename Kernel>
    ClusterPlaces(Kernel kernel, int threads, int bytes) : ClusterPlaces() {
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
        for (int i = 1; i < 4; ++i) {
            cudaLaunchAttribute cluster = {};
            cluster.id = cudaLaunchAttributeClusterDimension;
            cluster.val.clusterDim.x = 1 << i;
            cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
            cudaLaunchConfig_t config = {};
            config.gridDim = dim3(1 << i);
            config.blockDim = dim3(threads);
            config.dynamicSmemBytes = bytes;
            config.attrs = &cluster;
            config.numAttrs = 1;
            int count = 0;
            of[i] = cudaOccupancyMaxActiveClusters(&count, kernel, &config) == cudaSuccess && count > 0 ? count : 1;
        }
    }
};
