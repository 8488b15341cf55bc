// Does nothing: the memory may still hold somebody else's right answer.
// Must end in: INCORRECT
#include "honest.h"

template <typename T>
static void cheat(const T*, T*, int64_t, int64_t) {}
ENTRY_POINTS(cheat)
