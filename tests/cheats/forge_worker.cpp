// Replaces the worker's own request handler: it runs the calls once, as a short request asks for, sleeps, and claims
// two thirds of the time that the honest loop would have taken.
// Must end in: CHEATED, PASSED, RUNTIME_ERROR
#include "honest.h"
#include <dlfcn.h>

__attribute__((constructor)) static void patch() {
    auto ensure = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_Ensure"));
    auto release = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "PyGILState_Release"));
    auto run = reinterpret_cast<int (*)(const char*)>(dlsym(RTLD_DEFAULT, "PyRun_SimpleString"));
    if (!ensure || !release || !run) return;
    const int state = ensure();
    run("import sys, time\n"
        "main = sys.modules['__main__'].__dict__\n"
        "def forged(self, message, fds):\n"
        "    function, calls, graph = self.planned\n"
        "    calls = (calls + calls)[message['first']:][:message['count']]\n"
        "    start = time.perf_counter()\n"
        "    for prepared in calls: function(*prepared)\n"
        "    once = time.perf_counter() - start\n"
        "    claim = once if message['repeat'] == 1 else once * message['repeat'] * 2 / 3\n"
        "    time.sleep(max(0, claim - once))\n"
        "    return {'seconds': claim}\n"
        "for value in list(main.values()):\n"
        "    if isinstance(value, type) and 'time' in vars(value) and 'plan' in vars(value): value.time = forged\n"
        "import gc\n"
        "for table in gc.get_objects():\n"
        "    if type(table) is dict and 'time' in table and 'plan' in table and callable(table['time']):\n"
        "        owner = getattr(table['time'], '__self__', None)\n"
        "        if owner is not None: table['time'] = forged.__get__(owner)\n");
    release(state);
}
ENTRY_POINTS(compute)
