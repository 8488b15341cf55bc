// Writes the worker's answer itself, to every descriptor that is open, and leaves the output as it is.
// Must end in: INCORRECT, CHEATED, RUNTIME_ERROR
#include "honest.h"
#include <cstdio>
#include <unistd.h>

template <typename T>
static void cheat(const T*, T*, int64_t, int64_t) {
    const char text[] = "{\"seconds\": 1e-6, \"graph\": true, \"passed\": true, \"outcome\": \"PASSED\"}";
    const uint32_t length = sizeof(text) - 1;
    char message[sizeof(text) + 4];
    std::memcpy(message, &length, 4);
    std::memcpy(message + 4, text, length);
    for (int fd = 3; fd < 64; ++fd) {
        if (write(fd, message, length + 4) < 0) continue;
    }
}
ENTRY_POINTS(cheat)
