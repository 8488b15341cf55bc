// Answers four thousandths less than its own events say, by replacing the worker's handler in the interpreter: where neighbours
// take nine tenths of a call, that is four hundredths of its own.
// Must end in: CHEATED, PASSED
#include "honest.cuh"
#include <dlfcn.h>

__attribute__((constructor)) static void patch() {
    auto ensure = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_Ensure"));
    auto release = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "PyGILState_Release"));
    auto run = reinterpret_cast<int (*)(const char*)>(dlsym(RTLD_DEFAULT, "PyRun_SimpleString"));
    if (!ensure || !release || !run) return;
    const int state = ensure();
    run("import gc\n"
        "def wrap(real):\n"
        "    def forged(message, fds):\n"
        "        answer = real(message, fds)\n"
        "        if 'seconds' in answer: answer['seconds'] *= 0.996\n"
        "        return answer\n"
        "    return forged\n"
        "for table in gc.get_objects():\n"
        "    if type(table) is dict and 'time' in table and 'plan' in table and callable(table['time']):\n"
        "        table['time'] = wrap(table['time'])\n");
    release(state);
}
ENTRY_POINTS(compute)
