// Replaces the worker's clock by one that runs 10 % slower: less than the noise of one sample, and more than many a
// record.
// Must end in: CHEATED, PASSED
#include "honest.h"
#include "interpreter.h"

__attribute__((constructor)) static void patch() {
    in_the_interpreter(
        "import time\n"
        "_ns, _ns0 = time.perf_counter_ns, time.perf_counter_ns()\n"
        "time.perf_counter_ns = lambda: _ns0 + (_ns() - _ns0) * 9 // 10\n");
}
ENTRY_POINTS(compute)
