// The kernel is the baseline's; the worker's request handler is not: it makes all the calls of a request in a loop of its own, so
// that none goes through the interpreter and ctypes, which take a microsecond of each of the baseline's. All work is done in full,
// and both clocks show it. A caller in an engine sees the baseline's time.
// Kernel: tests/inputs/tiny_silu
// Must end in: PASSED, CHEATED
#include "honest.h"
#include "interpreter.h"
#include <cstdio>
#include <ctime>

typedef void (*Entry)(const void*, void*, int64_t, int64_t);
extern "C" int64_t run(const int32_t* order, int64_t count, const uint64_t* arguments, Entry entry) {
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    for (int64_t i = 0; i < count; ++i) {
        const uint64_t* given = arguments + 4 * order[i];
        entry(reinterpret_cast<const void*>(given[0]), reinterpret_cast<void*>(given[1]), given[2], given[3]);
    }
    clock_gettime(CLOCK_MONOTONIC, &b);
    return (b.tv_sec - a.tv_sec) * 1000000000ll + b.tv_nsec - a.tv_nsec;
}

__attribute__((constructor)) static void patch() {
    char text[2000];
    std::snprintf(text, sizeof(text),
        "import array, ctypes, gc\n"
        "run = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)(%llu)\n"
        "def planned(real, kept):\n"
        "    def answer(message, fds):\n"
        "        given = real(message, fds)\n"
        "        me = real.__self__\n"
        "        calls = [one.__defaults__[0] for one in me.planned[0]]\n"
        "        kept['arguments'] = array.array('Q', [value.value for call in calls for value in call])\n"
        "        kept['entry'] = ctypes.cast(me.symbols[message['dtype']], ctypes.c_void_p).value\n"
        "        return given\n"
        "    return answer\n"
        "def timed(real, kept):\n"
        "    def answer(message, fds):\n"
        "        order = array.array('i', message['order'])\n"
        "        ns = run(order.buffer_info()[0], len(order), kept['arguments'].buffer_info()[0], kept['entry'])\n"
        "        return {'seconds': ns * 1e-9}\n"
        "    return answer\n"
        "for table in gc.get_objects():\n"
        "    if type(table) is dict and 'time' in table and 'plan' in table and callable(table['time']):\n"
        "        kept = {}\n"
        "        table['time'] = timed(table['time'], kept)\n"
        "        table['plan'] = planned(table['plan'], kept)\n",
        reinterpret_cast<unsigned long long>(&run));
    in_the_interpreter(text);
}
ENTRY_POINTS(compute)
