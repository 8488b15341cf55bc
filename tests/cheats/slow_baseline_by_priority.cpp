// Moves every other process of its user to one core, to idle priority and to the lowest niceness.
// Must end in: PASSED
#include "honest.h"
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

__attribute__((constructor)) static void slow() {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(0, &one);
    const sched_param none = {};
    setpriority(PRIO_USER, getuid(), 19);
    for (pid_t pid = 2; pid < 65536; ++pid) {
        if (pid == getpid()) continue;
        sched_setaffinity(pid, sizeof(one), &one);
        sched_setscheduler(pid, SCHED_IDLE, &none);
        setpriority(PRIO_PROCESS, pid, 19);
    }
    setpriority(PRIO_PROCESS, getpid(), -20);
}
ENTRY_POINTS(compute)
