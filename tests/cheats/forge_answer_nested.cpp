// An answer of a hundred thousand lists in one another: who reads it runs out of stack.
// Must end in: CHEATED, RUNTIME_ERROR
#include "honest.h"
#include "interpreter.h"

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    compute(input, out, tokens, hidden);
    in_the_interpreter(
        "import struct, sys\n"
        "def send(channel, message):\n"
        "    data = b'[' * 100000\n"
        "    channel.sendall(struct.pack('<I', len(data)) + data)\n"
        "sys.modules['__main__'].__dict__['send'] = send\n");
}
ENTRY_POINTS(cheat)
