// Reads how many cores there are and how large the cache is, writes a note into its scratch folder, prints a line, and
// sets a fault handler of its own: unusual, and none of it a cheat.
// Must end in: PASSED
#include "honest.h"
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <unistd.h>

__attribute__((constructor)) static void look() {
    if (FILE* file = fopen("/sys/devices/system/cpu/online", "r")) fclose(file);
    if (FILE* file = fopen("/proc/cpuinfo", "r")) fclose(file);
    if (FILE* file = fopen((std::string(getenv("TMPDIR") ? getenv("TMPDIR") : ".") + "/note").c_str(), "w")) fclose(file);
    printf("%ld cores\n", sysconf(_SC_NPROCESSORS_ONLN));
    fflush(stdout);
    signal(SIGUSR1, SIG_IGN);
}
ENTRY_POINTS(compute)
