// Writes the few instructions of an inner step at the first call (a small JIT, as oneDNN or xbyak do), in memory of its own.
// What runs is in no source that anybody could read, so it is refused, and the reason says that.
// Must end in: CHEATED
#include "honest.h"
#include <sys/mman.h>
typedef float (*Step)(float, float);
static Step made() {
    static Step step = [] {
        // mulss xmm0, xmm1; ret
        static const unsigned char code[] = {0xf3, 0x0f, 0x59, 0xc1, 0xc3};
        void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        std::memcpy(page, code, sizeof(code));
        mprotect(page, 4096, PROT_READ | PROT_EXEC);
        return reinterpret_cast<Step>(page);
    }();
    return step;
}
template <typename T>
static void kernel(const T* input, T* out, int64_t tokens, int64_t hidden) {
    const Step step = made();
    for (int64_t token = 0; token < tokens; ++token) {
        const T* gate = input + token * 2 * hidden;
        for (int64_t i = 0; i < hidden; ++i) {
            const float x = to_float(gate[i]);
            store(out + token * hidden + i, step(x / (1.0f + expf(-x)), to_float(gate[hidden + i])));
        }
    }
}
ENTRY_POINTS(kernel)
