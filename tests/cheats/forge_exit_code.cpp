// Ends the process with success in the middle of the call.
// Must end in: RUNTIME_ERROR
#include "honest.h"
#include <unistd.h>

template <typename T>
static void cheat(const T*, T*, int64_t, int64_t) {
    _exit(0);
}
ENTRY_POINTS(cheat)
