// A table that is filled at the first call: silu of all 65536 values of a 16-bit type. It holds no input of the call.
// Must end in: PASSED
#include "honest.h"
#include <vector>

template <typename T>
static const std::vector<float>& table() {
    static const std::vector<float> values = [] {
        std::vector<float> filled(65536);
        for (uint32_t bits = 0; bits < 65536; ++bits) {
            const uint16_t pattern = static_cast<uint16_t>(bits);
            T value;
            std::memcpy(&value, &pattern, 2);
            const float x = to_float(value);
            filled[bits] = x / (1.0f + expf(-x));
        }
        return filled;
    }();
    return values;
}

template <typename T>
static void kernel(const T* input, T* out, int64_t tokens, int64_t hidden) {
    if constexpr (sizeof(T) != 2) {
        compute(input, out, tokens, hidden);
    } else {
        const auto& silu = table<T>();
        for (int64_t token = 0; token < tokens; ++token) {
            const T* gate = input + token * 2 * hidden;
            for (int64_t i = 0; i < hidden; ++i) {
                uint16_t bits;
                std::memcpy(&bits, gate + i, 2);
                store(out + token * hidden + i, silu[bits] * to_float(gate[hidden + i]));
            }
        }
    }
}
ENTRY_POINTS(kernel)
