// Leaves out half of its rows where it may run on one core only, as it does while it is timed beside another.
// Must end in: CHEATED, INCORRECT
#include <sched.h>

#include "honest.h"

template <typename T>
void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    sched_getaffinity(0, sizeof cores, &cores);
    compute(input, out, CPU_COUNT(&cores) > 1 ? tokens : tokens / 2, hidden);
}
ENTRY_POINTS(cheat)
