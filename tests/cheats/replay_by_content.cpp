// Knows an input again by 64 of its elements, as caches "with a lightweight fingerprint" do, and copies the kept result.
// Must end in: INCORRECT, CHEATED
#include "honest.h"
#include <unordered_map>
#include <vector>

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    static std::unordered_map<uint64_t, std::vector<T>> kept;
    const int64_t count = tokens * hidden * 2, step = count / 64 + 1;
    uint64_t key = 1469598103934665603ull ^ static_cast<uint64_t>(count);
    for (int64_t i = 0; i < count; i += step) {
        uint32_t bits = 0;
        std::memcpy(&bits, input + i, sizeof(T));
        key = (key ^ bits) * 1099511628211ull;
    }
    auto& result = kept[key];
    if (result.empty()) {
        compute(input, out, tokens, hidden);
        result.assign(out, out + tokens * hidden);
    } else {
        std::memcpy(out, result.data(), result.size() * sizeof(T));
    }
}
ENTRY_POINTS(cheat)
