// Keeps results in files for the next process, in every folder that such programs find writable, by a fingerprint.
// Must end in: PASSED, INCORRECT, CHEATED
#include "honest.h"
#include <cstdio>
#include <cstdlib>
#include <string>

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    uint64_t key = static_cast<uint64_t>(tokens * hidden);
    for (int64_t i = 0; i < tokens * hidden * 2; i += 997) {
        uint32_t bits = 0;
        std::memcpy(&bits, input + i, sizeof(T));
        key = (key ^ bits) * 1099511628211ull;
    }
    const char* home = getenv("HOME");
    const std::string folders[] = {"/dev/shm", "/tmp", "/var/tmp", "/root", home ? home : ".", "."};
    const std::string name = "/answer-" + std::to_string(key);
    for (const auto& folder : folders) {
        if (FILE* file = fopen((folder + name).c_str(), "rb")) {
            const size_t read = fread(out, sizeof(T), tokens * hidden, file);
            fclose(file);
            if (read == static_cast<size_t>(tokens * hidden)) return;
        }
    }
    compute(input, out, tokens, hidden);
    for (const auto& folder : folders) {
        if (FILE* file = fopen((folder + name).c_str(), "wb")) {
            fwrite(out, sizeof(T), tokens * hidden, file);
            fclose(file);
        }
    }
}
ENTRY_POINTS(cheat)
