// Says nothing of what it found in the library while that is loaded.
// Must end in: CHEATED
#include "honest.h"
#include "interpreter.h"

__attribute__((constructor)) static void patch() {
    in_the_interpreter(
        "import sys\n"
        "main = sys.modules['__main__'].__dict__\n"
        "real = main['send']\n"
        "main['send'] = lambda channel, message: real(channel, {})\n");
}
ENTRY_POINTS(compute)
