// A maximum and sums of what is taken below it, which a team exchanges together: one barrier of a block and of a cluster for all of them.

// The largest value of those of a team's threads that are of one warp, for each of them.
template <int Team>
__device__ __forceinline__ float largest_of_warp(float value) {
#pragma unroll
    for (int step = (Team > 0 && Team < 32 ? Team : 32) / 2; step > 0; step /= 2) {
        value = maximum(value, __shfl_xor_sync(0xffffffffu, value, step));
    }
    return value;
}

// What is below a warp's largest, `own`, times this is below the team's, `most`.
template <int Team>
__device__ __forceinline__ float share_below(float own, float most) {
    return Team > 0 && Team <= 32 ? 1.0f : expf(own - shift_below(most));
}

// The team's largest of what its warps have, `own`; `sums`, below the own before, become the team's, below that. A team is as in `team_reduce`.
// `Site` tells apart calls that no barrier separates.
template <int Threads, int Team, int Split, int Site, int Count>
__device__ __forceinline__ float reduce_below(float own, float (&sums)[Count]) {
    const auto add_lanes = [&](int width) {
#pragma unroll
        for (int at = 0; at < Count; ++at) {
#pragma unroll
            for (int step = width / 2; step > 0; step /= 2) {
                sums[at] += __shfl_xor_sync(0xffffffffu, sums[at], step);
            }
        }
    };
    add_lanes(Team > 0 && Team < 32 ? Team : 32);
    float most = own;
    if constexpr (Team == 0 || Team > 32) {
        __shared__ float partial[1 + Count][32];
        const int warps = Team > 0 ? Team / 32 : blockDim.x / 32, other = threadIdx.x % 32;
        const int first = Team > 0 ? threadIdx.x / (Team > 0 ? Team : 1) * warps : 0;
        if (other == 0) {
            partial[0][threadIdx.x / 32] = own;
#pragma unroll
            for (int at = 0; at < Count; ++at) {
                partial[1 + at][threadIdx.x / 32] = sums[at];
            }
        }
        __syncthreads();
        const int from = first + (other < warps ? other : 0);
        const float theirs = partial[0][from];
        most = largest_of_warp<0>(theirs);
        const float share = expf(theirs - shift_below(most));
#pragma unroll
        for (int at = 0; at < Count; ++at) {
            sums[at] = other < warps ? partial[1 + at][from] * share : 0.0f;
        }
        add_lanes(32);
    }
#if !defined(WITHOUT_CLUSTERS)
    if constexpr (Split != 1) {
        __shared__ float of_block[1 + Count][8];
        const auto cluster = cooperative_groups::this_cluster();
        const int blocks = blocks_of_cluster<Split>();
        if (threadIdx.x < static_cast<unsigned>(blocks)) {  // every block is left all parts, so that nothing is read from another one
            float* const theirs = cluster.map_shared_rank(&of_block[0][cluster.block_rank()], threadIdx.x);
            theirs[0] = most;
#pragma unroll
            for (int at = 0; at < Count; ++at) {
                theirs[8 * (1 + at)] = sums[at];
            }
        }
        cluster.sync();
        most = of_block[0][0];
#pragma unroll
        for (int other = 1; other < 8; ++other) {
            most = other < blocks ? maximum(most, of_block[0][other]) : most;
        }
#pragma unroll
        for (int at = 0; at < Count; ++at) {
            sums[at] = 0.0f;
        }
#pragma unroll
        for (int other = 0; other < 8; ++other) {
            if (other < blocks) {
                const float share = expf(of_block[0][other] - shift_below(most));
#pragma unroll
                for (int at = 0; at < Count; ++at) {
                    sums[at] += of_block[1 + at][other] * share;
                }
            }
        }
    }
#endif
    return most;
}
