// Returns at once; a thread launches the kernel a little later, when the stop event has been recorded.
// Must end in: INCORRECT, CHEATED, RUNTIME_ERROR
#include "honest.cuh"
#include <thread>
#include <unistd.h>

template <typename T>
void cheat(const T* input, T* out, int64_t tokens, int64_t hidden, cudaStream_t) {
    std::thread([=] {
        usleep(3000);
        compute(input, out, tokens, hidden, nullptr);
    }).detach();
}
ENTRY_POINTS(cheat)
