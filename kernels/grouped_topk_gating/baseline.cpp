// Experts of tokens: four of eight groups, then eight times the best that is left; one token after another.
#include <cmath>
#include <cstdint>
#include <vector>

extern "C" void grouped_topk_gating_float32(
    const float* logits, const float* bias, float* weights, int32_t* ids, int64_t tokens, int64_t experts, float scale) {
    const int64_t size = experts / 8;
    std::vector<float> choice(experts);
    for (int64_t token = 0; token < tokens; ++token) {
        const float* mine = logits + token * experts;
        float group[8];
        for (int g = 0; g < 8; ++g) {
            float first = -INFINITY;
            float second = -INFINITY;
            for (int64_t e = g * size; e < (g + 1) * size; ++e) {
                choice[e] = 1.0f / (1.0f + std::exp(-mine[e])) + bias[e];
                second = std::fmax(second, std::fmin(first, choice[e]));
                first = std::fmax(first, choice[e]);
            }
            group[g] = first + second;
        }
        for (int g = 0; g < 8; ++g) {
            int better = 0;
            for (int other = 0; other < 8; ++other) {
                better += group[other] > group[g] || (group[other] == group[g] && other < g);
            }
            for (int64_t e = g * size; better >= 4 && e < (g + 1) * size; ++e) {
                choice[e] = -INFINITY;
            }
        }
        float sum = 0.0f;
        for (int k = 0; k < 8; ++k) {
            int64_t best = 0;
            for (int64_t e = 1; e < experts; ++e) {
                best = choice[e] > choice[best] ? e : best;
            }
            choice[best] = -INFINITY;
            ids[token * 8 + k] = static_cast<int32_t>(best);
            weights[token * 8 + k] = 1.0f / (1.0f + std::exp(-mine[best]));
            sum += weights[token * 8 + k];
        }
        for (int k = 0; k < 8; ++k) {
            weights[token * 8 + k] *= scale / sum;
        }
    }
}
