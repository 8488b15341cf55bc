// Uses the request that is not timed: when the worker plans its calls it makes all of them, and a timed call of which two
// in three elements of its output are no poison returns.
// Must end in: PASSED, CHEATED, INCORRECT
#include "honest.h"
#include "interpreter.h"

__attribute__((constructor)) static void patch() {
    in_the_interpreter(
        "import gc\n"
        "def ahead(real):\n"
        "    def plan(message, fds):\n"
        "        answer = real(message, fds)\n"
        "        for call in real.__self__.planned[0]: call()\n"
        "        return answer\n"
        "    return plan\n"
        "for table in gc.get_objects():\n"
        "    if type(table) is dict and 'time' in table and 'plan' in table and callable(table['time']):\n"
        "        table['plan'] = ahead(table['plan'])\n");
}

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    T poison;
    std::memset(&poison, 0xFF, sizeof(poison));
    const int64_t half = tokens / 2;  // half of the gain, so that it is not faster than light
    if (tokens > 8 && std::memcmp(out, &poison, sizeof(T)) && std::memcmp(out + tokens * hidden - 1, &poison, sizeof(T)))
        return compute(input, out, half, hidden);
    compute(input, out, tokens, hidden);
}
ENTRY_POINTS(cheat)
