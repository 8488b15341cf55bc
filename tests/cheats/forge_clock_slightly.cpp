// Replaces the worker's clock by one that runs 10 % slower: less than the noise of one sample, and more than many a
// record.
// Must end in: CHEATED, PASSED
#include "honest.h"
#include <dlfcn.h>

__attribute__((constructor)) static void patch() {
    auto ensure = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_Ensure"));
    auto release = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "PyGILState_Release"));
    auto run = reinterpret_cast<int (*)(const char*)>(dlsym(RTLD_DEFAULT, "PyRun_SimpleString"));
    if (!ensure || !release || !run) return;
    const int state = ensure();
    run("import time\n"
        "_ns, _ns0 = time.perf_counter_ns, time.perf_counter_ns()\n"
        "time.perf_counter_ns = lambda: _ns0 + (_ns() - _ns0) * 9 // 10\n");
    release(state);
}
ENTRY_POINTS(compute)
