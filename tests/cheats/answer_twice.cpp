// Sends the answer to the next request with this one's: that request ends at once, and its calls are made in the next.
// Must end in: CHEATED, RUNTIME_ERROR, INCORRECT
#include "honest.h"
#include "interpreter.h"

__attribute__((constructor)) static void patch() {
    in_the_interpreter(
        "import sys\n"
        "main = sys.modules['__main__'].__dict__\n"
        "real_send = main['send']\n"
        "sent = [0]\n"
        "def twice(channel, message):\n"
        "    if 'seconds' in message: sent[0] += 1\n"
        "    if 'seconds' not in message or sent[0] < 13: return real_send(channel, message)\n"
        "    if sent[0] % 2: real_send(channel, message); real_send(channel, {'seconds': 1e-4})\n"
        "main['send'] = twice\n");
}
ENTRY_POINTS(compute)
