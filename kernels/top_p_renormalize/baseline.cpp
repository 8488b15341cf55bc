// The likeliest that make up a share, scaled to sum one: a row after another, sorted.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

extern "C" void top_p_renormalize_float32(
    const float* probabilities, const float* top_p, float* out, int64_t rows, int64_t vocabulary) {
    std::vector<float> falling(vocabulary);
    for (int64_t row = 0; row < rows; ++row) {
        const float* mine = probabilities + row * vocabulary;
        std::copy(mine, mine + vocabulary, falling.begin());
        std::sort(falling.begin(), falling.end(), std::greater<float>());
        double sum = 0.0;
        int64_t last = 0;
        for (; last < vocabulary; ++last) {
            sum += falling[last];
            if (sum >= top_p[row]) {
                break;
            }
        }
        const float least = falling[std::min(last, vocabulary - 1)];
        double kept = 0.0;
        for (int64_t i = 0; i < vocabulary; ++i) {
            kept += mine[i] >= least ? mine[i] : 0.0f;
        }
        for (int64_t i = 0; i < vocabulary; ++i) {
            out[row * vocabulary + i] = mine[i] >= least ? static_cast<float>(mine[i] / kept) : 0.0f;
        }
    }
}
