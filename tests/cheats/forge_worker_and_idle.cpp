// Replaces the worker's request handler by one that makes the calls, and claims, and lets its own clock show, two thirds of
// the time that they took; in requests of an unusual length, which confirm, a little more.
// Must end in: CHEATED, PASSED
#include "honest.h"
#include "interpreter.h"

__attribute__((constructor)) static void patch() {
    in_the_interpreter(
        "import gc\n"
        "usual = {}\n"
        "def forged(real):\n"
        "    def answer(message, fds):\n"
        "        given, length = real(message, fds), len(message['order'])\n"
        "        usual[length] = usual.get(length, 0) + 1\n"
        "        given['seconds'] *= 0.67 if max(usual, key=usual.get) == length else 0.8\n"
        "        return given\n"
        "    return answer\n"
        "for table in gc.get_objects():\n"
        "    if type(table) is dict and 'time' in table and 'plan' in table and callable(table['time']):\n"
        "        table['time'] = forged(table['time'])\n");
}
ENTRY_POINTS(compute)
