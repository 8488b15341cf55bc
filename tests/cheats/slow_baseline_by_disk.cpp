// Leaves writes behind: 32 MB of dirty pages after every answer, whose way to the disk begins at once and goes on while the
// baseline is timed.
// Must end in: PASSED, CHEATED, OUT_OF_RESOURCES, RUNTIME_ERROR
#include "honest.h"
#include "interpreter.h"
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <unistd.h>

extern "C" void leave() {
    static const int file = open("left", O_RDWR | O_CREAT, 0600);
    static char* page = static_cast<char*>(std::malloc(1 << 20));
    static char number = 0;
    std::memset(page, ++number, 1 << 20);
    for (int i = 0; i < 32; ++i)
        if (pwrite(file, page, 1 << 20, static_cast<off_t>(i) << 20) < 0) return;
    sync_file_range(file, 0, 0, SYNC_FILE_RANGE_WRITE);
}

__attribute__((constructor)) static void patch() {
    char text[1000];
    std::snprintf(text, sizeof(text),
        "import ctypes, sys\n"
        "leave = ctypes.CFUNCTYPE(None)(%llu)\n"
        "main = sys.modules['__main__'].__dict__\n"
        "real_send = main['send']\n"
        "def sent(channel, message):\n"
        "    real_send(channel, message)\n"
        "    if 'seconds' in message: leave()\n"
        "main['send'] = sent\n",
        reinterpret_cast<unsigned long long>(&leave));
    in_the_interpreter(text);
}
ENTRY_POINTS(compute)
