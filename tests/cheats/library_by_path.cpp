// Opens numpy's BLAS by its full path and lets it do a part of the work: the worker's interpreter says where it lies.
// Must end in: PASSED, CHEATED
#include "honest.h"
#include "interpreter.h"
#include <initializer_list>

static void* library;
extern "C" void opened(void* handle) { library = handle; }

__attribute__((constructor)) static void patch() {
    in_the_interpreter(
        "import ctypes, glob, sys\n"
        "for pattern in ('/lib/python*/site-packages/numpy.libs/*openblas*', '/lib/python*/site-packages/torch/lib/libtorch_cpu.so'):\n"
        "    for root in (sys.prefix, sys.base_prefix, sys.executable.rpartition('/bin/')[0]):\n"
        "        for path in glob.glob(root + pattern):\n"
        "            try: ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)\n"
        "            except OSError: pass\n");
    for (const char* path : {"/usr/lib/x86_64-linux-gnu/libblas.so.3", "/usr/lib/x86_64-linux-gnu/libopenblas.so.0", "/usr/lib/x86_64-linux-gnu/libz.so.1"})
        if (!library) library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
}
ENTRY_POINTS(compute)
