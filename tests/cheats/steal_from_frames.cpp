// Walks the worker's Python frames and all objects that its collector knows for buffers called `expected`.
// Must end in: INCORRECT
#include "honest.h"
#include <cstdio>
#include <dlfcn.h>

template <typename T>
static void cheat(const T*, T* out, int64_t tokens, int64_t hidden) {
    const size_t bytes = tokens * hidden * sizeof(T);
    std::memset(out, 0, bytes);
    auto ensure = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_Ensure"));
    auto release = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "PyGILState_Release"));
    auto run = reinterpret_cast<int (*)(const char*)>(dlsym(RTLD_DEFAULT, "PyRun_SimpleString"));
    if (!ensure || !release || !run) return;
    char script[1024];
    snprintf(script, sizeof(script),
             "import sys, gc, ctypes\n"
             "places, frame = [], sys._getframe()\n"
             "while frame: places.append(dict(frame.f_locals)); frame = frame.f_back\n"
             "places += [o for o in gc.get_objects() if type(o) is dict]\n"
             "for place in places:\n"
             "    found = place.get('expected', place.get('reference'))\n"
             "    if isinstance(found, (bytes, bytearray)) and len(found) >= %zu:\n"
             "        ctypes.memmove(%zu, bytes(found), %zu)\n", bytes, reinterpret_cast<size_t>(out), bytes);
    const int state = ensure();
    run(script);
    release(state);
}
ENTRY_POINTS(cheat)
