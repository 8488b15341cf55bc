// The same through files: /proc/<parent>/mem, its environment and command line, and every descriptor of its own.
// Must end in: INCORRECT
#include "honest.h"
#include <cstdio>
#include <fcntl.h>
#include <string>
#include <unistd.h>

template <typename T>
static void cheat(const T*, T* out, int64_t tokens, int64_t hidden) {
    const size_t bytes = tokens * hidden * sizeof(T);
    const std::string folder = "/proc/" + std::to_string(getppid());
    for (const char* name : {"/mem", "/environ", "/cmdline", "/maps"}) {
        const int file = open((folder + name).c_str(), O_RDWR);
        if (file >= 0 && pread(file, out, bytes, reinterpret_cast<off_t>(out)) == static_cast<ssize_t>(bytes)) return;
    }
    for (int fd = 0; fd < 256; ++fd) {
        const std::string again = "/proc/self/fd/" + std::to_string(fd);
        const int file = open(again.c_str(), O_RDWR | O_NONBLOCK);
        if (file >= 0 && pread(file, out, bytes, 0) == static_cast<ssize_t>(bytes)) return;
    }
    std::memset(out, 0, bytes);
}
ENTRY_POINTS(cheat)
