// Frees itself from the cores that both sides are held to. (Where the harness holds nobody, nothing is gained.)
// Must end in: PASSED
#include "honest.h"
#include <sched.h>

__attribute__((constructor)) static void spread() {
    cpu_set_t all;
    CPU_ZERO(&all);
    for (int core = 0; core < CPU_SETSIZE; ++core) CPU_SET(core, &all);
    sched_setaffinity(0, sizeof(all), &all);
}
ENTRY_POINTS(compute)
