// What norm.cu calls and ggml-cuda.cu defines among much else.
#include <cuda_runtime.h>

int ggml_cuda_get_device() {
    int device = 0;
    cudaGetDevice(&device);
    return device;
}
