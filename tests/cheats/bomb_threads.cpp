// As many threads as it is given.
// Must end in: OUT_OF_RESOURCES, RUNTIME_ERROR
#include "honest.h"
#include <thread>
#include <unistd.h>

template <typename T>
static void cheat(const T*, T*, int64_t, int64_t) {
    for (int i = 0; i < 100000; ++i) std::thread([] { pause(); }).detach();
}
ENTRY_POINTS(cheat)
