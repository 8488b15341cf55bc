// Replaces the worker's request handler by one that computes nothing at all, sleeps as long as it claims, and claims
// to be a third faster than its own measured honest run.
// Must end in: CHEATED, INCORRECT, RUNTIME_ERROR
#include "honest.h"
#include <dlfcn.h>

__attribute__((constructor)) static void patch() {
    auto ensure = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_Ensure"));
    auto release = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "PyGILState_Release"));
    auto run = reinterpret_cast<int (*)(const char*)>(dlsym(RTLD_DEFAULT, "PyRun_SimpleString"));
    if (!ensure || !release || !run) return;
    const int state = ensure();
    run("import gc, time\n"
        "once = {}\n"
        "def forged(self, message, fds):\n"
        "    function, calls, graph = self.planned\n"
        "    key = (id(calls), message['count'])\n"
        "    calls = (calls + calls)[message['first']:][:message['count']]\n"
        "    if key not in once:\n"
        "        start = time.perf_counter()\n"
        "        for prepared in calls: function(*prepared)\n"
        "        once[key] = time.perf_counter() - start\n"
        "        return {'seconds': once[key]}\n"
        "    claim = once[key] * message['repeat'] * 2 / 3\n"
        "    time.sleep(claim)\n"
        "    return {'seconds': claim}\n"
        "for table in gc.get_objects():\n"
        "    if type(table) is dict and 'time' in table and 'plan' in table and callable(table['time']):\n"
        "        owner = getattr(table['time'], '__self__', None)\n"
        "        if owner is not None: table['time'] = forged.__get__(owner)\n"
        "    if isinstance(table, type) and 'time' in vars(table) and 'plan' in vars(table): table.time = forged\n");
    release(state);
}
ENTRY_POINTS(compute)
