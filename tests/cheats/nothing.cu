// Launches nothing: freed device memory may still hold somebody else's right answer.
// Must end in: INCORRECT
#include "honest.cuh"

template <typename T>
void cheat(const T*, T*, int64_t, int64_t, cudaStream_t) {}
ENTRY_POINTS(cheat)
