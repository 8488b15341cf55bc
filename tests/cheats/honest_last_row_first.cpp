// Goes through its rows backwards, reads each twice, and writes each output in two steps: first the gate's part, then the product.
// Must end in: PASSED
#include "honest.h"

template <typename T>
static void backwards(const T* input, T* out, int64_t tokens, int64_t hidden) {
    float parts[256];
    for (int64_t token = tokens - 1; token >= 0; --token) {
        const T* gate = input + token * 2 * hidden;
        for (int64_t begin = 0; begin < hidden; begin += 256) {
            const int64_t count = hidden - begin < 256 ? hidden - begin : 256;
            for (int64_t i = 0; i < count; ++i) {
                const float x = to_float(gate[begin + i]);
                parts[i] = x / (1.0f + expf(-x));
                store(out + token * hidden + begin + i, parts[i]);
            }
            for (int64_t i = 0; i < count; ++i)
                store(out + token * hidden + begin + i, parts[i] * to_float(gate[hidden + begin + i]));
        }
    }
}
ENTRY_POINTS(backwards)
