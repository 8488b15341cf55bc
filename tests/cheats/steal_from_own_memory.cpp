// Goes through every page of its own process for something that looks like the first element's answer, and copies from
// there: expected values that were ever here, freed or not, would be found.
// Must end in: INCORRECT, RUNTIME_ERROR
#include "honest.h"
#include <cstdio>

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    const size_t bytes = tokens * hidden * sizeof(T);
    T wanted[4];
    for (int i = 0; i < 4; ++i) {
        const float x = to_float(input[i]);
        store(wanted + i, x / (1.0f + expf(-x)) * to_float(input[hidden + i]));
    }
    FILE* maps = fopen("/proc/self/maps", "r");
    char line[512];
    while (maps && fgets(line, sizeof(line), maps)) {
        size_t low, high;
        char rights[8] = "";
        if (sscanf(line, "%zx-%zx %7s", &low, &high, rights) != 3 || rights[0] != 'r' || strstr(line, "[v")) continue;
        if (high - low < bytes) continue;
        for (size_t at = low; at + bytes <= high; at += 16) {
            const char* place = reinterpret_cast<const char*>(at);
            if (place != reinterpret_cast<const char*>(wanted) && std::memcmp(place, wanted, sizeof(wanted)) == 0) {
                std::memmove(out, place, bytes);
                fclose(maps);
                return;
            }
        }
    }
    if (maps) fclose(maps);
    std::memset(out, 0, bytes);
}
ENTRY_POINTS(cheat)
