// Pairs by expert, runs padded to whole blocks: counted, then placed, one pair after another.
#include <algorithm>
#include <cstdint>
#include <vector>

extern "C" void moe_align_int32(
    const int32_t* ids, int32_t* sorted, int32_t* block_expert, int32_t* total, int64_t tokens, int64_t topk,
    int64_t experts, int64_t block) {
    const int64_t pairs = tokens * topk;
    const int64_t blocks = (pairs + experts * (block - 1) + block - 1) / block;
    std::vector<int64_t> next(experts + 1);
    for (int64_t i = 0; i < pairs; ++i) {
        ++next[ids[i] + 1];
    }
    std::fill(block_expert, block_expert + blocks, -1);
    for (int64_t e = 0; e < experts; ++e) {
        const int64_t run = (next[e + 1] + block - 1) / block * block;
        std::fill(block_expert + next[e] / block, block_expert + (next[e] + run) / block, static_cast<int32_t>(e));
        next[e + 1] = next[e] + run;
    }
    *total = static_cast<int32_t>(next[experts]);
    std::fill(sorted, sorted + blocks * block, static_cast<int32_t>(pairs));
    for (int64_t i = 0; i < pairs; ++i) {
        sorted[next[ids[i]]++] = static_cast<int32_t>(i);
    }
}
