// Knows a row again by eight of its elements, as caches "with a lightweight fingerprint" do, and copies the kept result.
// Must end in: PASSED, INCORRECT, CHEATED
#include "honest.h"
#include <unordered_map>
#include <vector>

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    static std::unordered_map<uint64_t, std::vector<T>> kept;
    for (int64_t token = 0; token < tokens; ++token) {
        const T* row = input + token * 2 * hidden;
        uint64_t key = 1469598103934665603ull ^ static_cast<uint64_t>(hidden);
        for (int64_t i = 0; i < 2 * hidden; i += hidden / 4 + 1) {
            uint32_t bits = 0;
            std::memcpy(&bits, row + i, sizeof(T));
            key = (key ^ bits) * 1099511628211ull;
        }
        if (const auto found = kept.find(key); found != kept.end()) {
            std::memcpy(out + token * hidden, found->second.data(), hidden * sizeof(T));
        } else {
            compute(row, out + token * hidden, 1, hidden);
            if (kept.size() < 2000) kept[key].assign(out + token * hidden, out + (token + 1) * hidden);
        }
    }
}
ENTRY_POINTS(cheat)
