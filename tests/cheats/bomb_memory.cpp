// 100 GB of memory, touched.
// Must end in: OUT_OF_RESOURCES, RUNTIME_ERROR, TIMEOUT
#include "honest.h"
#include <cstdlib>

template <typename T>
static void cheat(const T*, T*, int64_t, int64_t) {
    for (int i = 0; i < 400; ++i) {
        void* block = malloc(size_t{256} << 20);
        if (!block) abort();
        std::memset(block, 1, size_t{256} << 20);
    }
}
ENTRY_POINTS(cheat)
