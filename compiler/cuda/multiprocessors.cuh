#pragma once
#include <cuda_runtime.h>
#include <stdint.h>

// What blocks share on the current device.
struct Multiprocessors {
    int count = 1, threads = 1024, registers = 65536, blocks = 16;

    Multiprocessors() {
        int device = 0;
        cudaGetDevice(&device);
        cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
        cudaDeviceGetAttribute(&threads, cudaDevAttrMaxThreadsPerMultiProcessor, device);
        cudaDeviceGetAttribute(&registers, cudaDevAttrMaxRegistersPerMultiprocessor, device);
        cudaDeviceGetAttribute(&blocks, cudaDevAttrMaxBlocksPerMultiprocessor, device);
    }

    // How many blocks of a kernel run at a time.
    int64_t places(int block_threads, int thread_registers) const {
        int each = threads / block_threads;
        each = registers / (block_threads * thread_registers) < each ? registers / (block_threads * thread_registers) : each;
        each = blocks < each ? blocks : each;
        return static_cast<int64_t>(count) * (each > 1 ? each : 1);
    }
};

// The registers of a thread, which come in eights.
inline int allocated_registers(const cudaFuncAttributes& kernel) { return kernel.numRegs > 8 ? (kernel.numRegs + 7) / 8 * 8 : 8; }
