// What norm.cu calls and ggml-cuda.cu defines among much else.
#include <cuda_runtime.h>
#include <cstdio>
#include <cstdlib>

int ggml_cuda_get_device() {
    int device = 0;
    cudaGetDevice(&device);
    return device;
}

[[noreturn]] void ggml_cuda_error(const char * stmt, const char *, const char *, int, const char * message) {
    std::fprintf(stderr, "%s: %s\n", stmt, message);
    std::abort();
}
