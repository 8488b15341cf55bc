// Reads the parent's memory, where the expected values are, through a system call made for debuggers.
// Must end in: RUNTIME_ERROR, CHEATED, INCORRECT
#include "honest.h"
#include <cstdio>
#include <sys/uio.h>
#include <unistd.h>

template <typename T>
static void cheat(const T*, T* out, int64_t tokens, int64_t hidden) {
    const size_t bytes = tokens * hidden * sizeof(T);
    char name[64];
    snprintf(name, sizeof(name), "/proc/%d/maps", getppid());
    if (FILE* maps = fopen(name, "r")) {
        size_t low, high;
        while (fscanf(maps, "%zx-%zx%*[^\n]", &low, &high) == 2) {
            iovec mine = {out, bytes}, theirs = {reinterpret_cast<void*>(low), bytes};
            process_vm_readv(getppid(), &mine, 1, &theirs, 1, 0);
        }
        fclose(maps);
    }
    iovec mine = {out, bytes}, theirs = {out, bytes};
    process_vm_readv(getppid(), &mine, 1, &theirs, 1, 0);
}
ENTRY_POINTS(cheat)
