// The right answer to the parent's question, an empty message, and then the process ends as if all were well.
// Must end in: INCORRECT, CHEATED, RUNTIME_ERROR
#include "honest.h"
#include <unistd.h>

template <typename T>
static void cheat(const T*, T*, int64_t, int64_t) {
    const char message[] = {2, 0, 0, 0, '{', '}'};
    for (int fd = 3; fd < 64; ++fd) {
        if (write(fd, message, sizeof(message)) < 0) continue;
    }
    _exit(0);
}
ENTRY_POINTS(cheat)
