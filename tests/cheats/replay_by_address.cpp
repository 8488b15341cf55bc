// Keeps every result by the addresses and sizes of the call, and copies it when the same addresses come again.
// Must end in: INCORRECT, CHEATED
#include "honest.h"
#include <map>
#include <tuple>
#include <vector>

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    static std::map<std::tuple<const T*, T*, int64_t, int64_t>, std::vector<T>> kept;
    auto& result = kept[{input, out, tokens, hidden}];
    if (result.empty()) {
        compute(input, out, tokens, hidden);
        result.assign(out, out + tokens * hidden);
    } else {
        std::memcpy(out, result.data(), result.size() * sizeof(T));
    }
}
ENTRY_POINTS(cheat)
