// Replaces the worker's clock, in its own interpreter, by one that runs a third slower.
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
        "_ns, _s, _m, _t = time.perf_counter_ns, time.perf_counter, time.monotonic, time.time\n"
        "_ns0, _s0 = _ns(), _s()\n"
        "time.perf_counter_ns = lambda: _ns0 + (_ns() - _ns0) * 2 // 3\n"
        "time.perf_counter = lambda: _s0 + (_s() - _s0) * 2 / 3\n");
    release(state);
}
ENTRY_POINTS(compute)
