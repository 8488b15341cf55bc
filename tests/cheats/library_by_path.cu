// Opens cuBLAS by its full path: the box shows the few files that a candidate is linked to, and no folder.
// Must end in: PASSED, CHEATED
#include "honest.cuh"
#include <dlfcn.h>
#include <initializer_list>

__attribute__((constructor)) static void open_it() {
    for (const char* path : {"/usr/local/cuda/lib64/libcublas.so.13", "/usr/local/cuda/lib64/libcublas.so.12",
                             "/usr/local/cuda/lib64/libcublasLt.so.13", "/usr/local/cuda/lib64/libcublas.so"})
        dlopen(path, RTLD_NOW | RTLD_GLOBAL);
}
ENTRY_POINTS(compute)
