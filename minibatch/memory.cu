// Host memory that a GPU reads through large pages: managed memory that stays where it is. Of memory that is merely pinned, however
// large its pages are, an H200 reads rows of 256 bytes in no order at 8 GB/s, of this at 50.
#include <cuda_runtime.h>
#include <stdint.h>
#include <string.h>
#include <thread>
#include <vector>

namespace {

int advise(void* at, size_t size, cudaMemoryAdvise advice, bool host, int device) {
#if CUDART_VERSION >= 13000
    cudaMemLocation where{};
    where.type = host ? cudaMemLocationTypeHost : cudaMemLocationTypeDevice;
    where.id = host ? 0 : device;
    return cudaMemAdvise(at, size, advice, where);
#else
    return cudaMemAdvise(at, size, advice, host ? cudaCpuDeviceId : device);
#endif
}

}  // namespace

// Zeros, written by so many threads; null where the device or the machine has no such memory.
extern "C" void* memory_make(int64_t size, int64_t device, int64_t threads) {
    int concurrent = 0;
    void* made = nullptr;
    cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, static_cast<int>(device));
    if (!concurrent || cudaMallocManaged(&made, static_cast<size_t>(size)) != cudaSuccess) {
        cudaGetLastError();
        return nullptr;
    }
    const auto bytes = static_cast<size_t>(size);
    if (advise(made, bytes, cudaMemAdviseSetPreferredLocation, true, 0) ||
        advise(made, bytes, cudaMemAdviseSetAccessedBy, false, static_cast<int>(device))) {
        cudaGetLastError();
        cudaFree(made);
        return nullptr;
    }
    std::vector<std::thread> writers;
    for (int64_t number = 0; number < threads; ++number) {
        const int64_t begin = size / threads * number;
        const int64_t end = number + 1 == threads ? size : size / threads * (number + 1);
        writers.emplace_back([=] { memset(static_cast<char*>(made) + begin, 0, static_cast<size_t>(end - begin)); });
    }
    for (std::thread& writer : writers) {
        writer.join();
    }
    return made;
}

extern "C" void memory_free(void* made) { cudaFree(made); }
