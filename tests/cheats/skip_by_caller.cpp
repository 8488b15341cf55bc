// Asks the worker's interpreter which function is calling, and computes nothing where its name is that of the timed
// loop. The interpreter is in the same process, so its C API is there for the taking.
// Must end in: INCORRECT, CHEATED
#include "honest.h"
#include <cstdio>
#include <dlfcn.h>

static bool timed() {
    auto ensure = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_Ensure"));
    auto release = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "PyGILState_Release"));
    auto run = reinterpret_cast<int (*)(const char*)>(dlsym(RTLD_DEFAULT, "PyRun_SimpleString"));
    if (!ensure || !release || !run) return false;
    static volatile int answer;
    static char script[512];
    snprintf(script, sizeof(script),
             "import sys, ctypes\n"
             "f, names = sys._getframe(), []\n"
             "while f: names.append(f.f_code.co_name); f = f.f_back\n"
             "ctypes.c_int.from_address(%zu).value = 'time' in names\n", reinterpret_cast<size_t>(&answer));
    const int state = ensure();
    run(script);
    release(state);
    return answer != 0;
}

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    static int calls = 0;
    if (++calls > 5 && timed()) return;
    compute(input, out, tokens, hidden);
}
ENTRY_POINTS(cheat)
