// Never returns from its first call.
// Must end in: TIMEOUT
#include "honest.h"

template <typename T>
static void cheat(const T*, T*, int64_t, int64_t) {
    volatile bool forever = true;
    while (forever) {
    }
}
ENTRY_POINTS(cheat)
