// Experts of tokens: a warp a token, each lane the neighbouring experts of a quarter of a group in registers; groups ranked and the best
// found by shuffles.
#include <math.h>
#include <stdint.h>

constexpr int TOKENS = 4;

template <int EACH>
__global__ void __launch_bounds__(32 * TOKENS) pick(
    const float* __restrict__ logits, const float* __restrict__ bias, float* __restrict__ weights, int32_t* __restrict__ ids,
    int64_t tokens, float scale) {
    const int lane = threadIdx.x % 32;
    const int64_t asked = static_cast<int64_t>(blockIdx.x) * TOKENS + threadIdx.x / 32;
    const int64_t token = asked < tokens ? asked : tokens - 1;
    float score[EACH];
    float choice[EACH];
    float first = -INFINITY;
    float second = -INFINITY;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        score[i] = 1.0f / (1.0f + expf(-logits[token * (32 * EACH) + lane * EACH + i]));
        choice[i] = score[i] + bias[lane * EACH + i];
        second = fmaxf(second, fminf(first, choice[i]));
        first = fmaxf(first, choice[i]);
    }
#pragma unroll
    for (int offset = 1; offset < 4; offset *= 2) {
        const float other_first = __shfl_xor_sync(0xffffffffu, first, offset);
        const float other_second = __shfl_xor_sync(0xffffffffu, second, offset);
        second = fmaxf(fminf(first, other_first), fmaxf(second, other_second));
        first = fmaxf(first, other_first);
    }
    const float group = first + second;
    int better = 0;
#pragma unroll
    for (int other = 0; other < 8; ++other) {
        const float its = __shfl_sync(0xffffffffu, group, other * 4);
        better += its > group || (its == group && other < lane / 4);
    }
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        choice[i] = better < 4 ? choice[i] : -INFINITY;
    }
    float sum = 0.0f;
    float mine = 0.0f;
    int chosen = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
        float best = -INFINITY;
        float its_score = 0.0f;
        int at = 0;
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const bool more = choice[i] > best;
            best = more ? choice[i] : best;
            its_score = more ? score[i] : its_score;
            at = more ? i : at;
        }
        at += lane * EACH;
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) {
            const float other = __shfl_xor_sync(0xffffffffu, best, offset);
            const float other_score = __shfl_xor_sync(0xffffffffu, its_score, offset);
            const int other_at = __shfl_xor_sync(0xffffffffu, at, offset);
            const bool more = other > best || (other == best && other_at < at);
            best = more ? other : best;
            its_score = more ? other_score : its_score;
            at = more ? other_at : at;
        }
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            choice[i] = lane * EACH + i == at ? -INFINITY : choice[i];
        }
        sum += its_score;
        mine = lane == k ? its_score : mine;
        chosen = lane == k ? at : chosen;
    }
    if (lane < 8 && asked < tokens) {
        weights[token * 8 + lane] = mine * scale / sum;
        ids[token * 8 + lane] = chosen;
    }
}

extern "C" void grouped_topk_gating_float32(
    const float* logits, const float* bias, float* weights, int32_t* ids, int64_t tokens, int64_t experts, float scale,
    cudaStream_t stream) {
    const unsigned blocks = static_cast<unsigned>((tokens + TOKENS - 1) / TOKENS);
    switch (experts / 32) {  // a multiple of 32
        case 2: pick<2><<<blocks, 32 * TOKENS, 0, stream>>>(logits, bias, weights, ids, tokens, scale); break;
        case 3: pick<3><<<blocks, 32 * TOKENS, 0, stream>>>(logits, bias, weights, ids, tokens, scale); break;
        case 4: pick<4><<<blocks, 32 * TOKENS, 0, stream>>>(logits, bias, weights, ids, tokens, scale); break;
        case 8: pick<8><<<blocks, 32 * TOKENS, 0, stream>>>(logits, bias, weights, ids, tokens, scale); break;
        default: break;
    }
}
