// 100 GB of text on standard output and as much in files.
// Must end in: OUT_OF_RESOURCES, RUNTIME_ERROR, TIMEOUT, INCORRECT
#include "honest.h"
#include <cstdio>
#include <string>
#include <unistd.h>

template <typename T>
static void cheat(const T*, T*, int64_t, int64_t) {
    static char block[1 << 20];
    std::memset(block, 'x', sizeof(block));
    for (int i = 0; i < 100000; ++i) {
        if (write(1, block, sizeof(block)) < 0 && i > 2000) return;
        if (FILE* file = fopen(("flood-" + std::to_string(i % 4000)).c_str(), "ab")) {
            fwrite(block, 1, sizeof(block), file);
            fclose(file);
        }
    }
}
ENTRY_POINTS(cheat)
