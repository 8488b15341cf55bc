// Its reason holds half of a character (a lone surrogate), which no UTF-8 file can hold.
// Must end in: CHEATED, RUNTIME_ERROR
#include "honest.h"
#include "interpreter.h"

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    compute(input, out, tokens, hidden);
    in_the_interpreter(
        "import struct, sys\n"
        "def send(channel, message):\n"
        "    data = b'{\"error\": \"no \\\\ud800 character\"}'\n"
        "    channel.sendall(struct.pack('<I', len(data)) + data)\n"
        "sys.modules['__main__'].__dict__['send'] = send\n");
}
ENTRY_POINTS(cheat)
