// Folders in folders, deeper than those who remove them one inside the other can go; then its process ends.
// Must end in: RUNTIME_ERROR
#include "honest.h"
#include <sys/stat.h>
#include <unistd.h>

template <typename T>
static void cheat(const T*, T*, int64_t, int64_t) {
    for (int depth = 0; depth < 1200; ++depth)
        if (mkdir("a", 0700) || chdir("a")) break;
    _exit(3);
}
ENTRY_POINTS(cheat)
