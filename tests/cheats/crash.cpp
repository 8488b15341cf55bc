// Writes through a null pointer.
// Must end in: RUNTIME_ERROR
#include "honest.h"

template <typename T>
static void cheat(const T*, T*, int64_t, int64_t) {
    *reinterpret_cast<volatile int*>(8) = 1;
}
ENTRY_POINTS(cheat)
