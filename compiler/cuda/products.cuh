// Products of matrices by tiles, behind the drafter's own tiles (draft/tensor_cores.py, hopper.py).

template <int Split>
__device__ __forceinline__ int part_of_cluster() {
#if !defined(WITHOUT_CLUSTERS)
    if constexpr (Split != 1) {
        return static_cast<int>(cooperative_groups::this_cluster().block_rank());
    }
#endif
    return 0;
}

// All of a tile's sums in shared memory, in which a line is four floats longer.
template <int Columns>
constexpr int kSumsLine = Columns + 4;

// Eight neighbouring columns at a time: put(batch, row, column, sums of each product). The groups of a block and the blocks of a
// cluster add what each has, and each block puts its share of the rows; two eights of a thread are under way.
template <int Rows, int Columns, int Split, int Products, int Groups, typename Index, typename Put>
__device__ __forceinline__ void put_together(const float* sums, int threads, Index batch, Index first_row, Index first_column, Put put) {
    constexpr int kPlane = Rows * kSumsLine<Columns>, kAcross = Columns / 8;
    const int parts = blocks_of_cluster<Split>(), rows = Rows / parts, begin = part_of_cluster<Split>() * rows;
    for (int first = threadIdx.x; first < rows * kAcross; first += 2 * threads) {
        float all[2][Products][8] = {};
        for (int other = 0; other < parts; ++other) {
            const float* theirs = of_block<Split>(const_cast<float*>(sums), other);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int eight = first + i * threads < rows * kAcross ? first + i * threads : first;
                const float* line = theirs + (begin + eight / kAcross) * kSumsLine<Columns> + eight % kAcross * 8;
#pragma unroll
                for (int plane = 0; plane < Groups * Products; ++plane) {
                    float(&to)[8] = all[i][plane % Products];
#pragma unroll
                    for (int four = 0; four < 8; four += 4) {
                        const float4 got = *reinterpret_cast<const float4*>(line + plane * kPlane + four);
                        to[four] += got.x;
                        to[four + 1] += got.y;
                        to[four + 2] += got.z;
                        to[four + 3] += got.w;
                    }
                }
            }
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int eight = first + i * threads;
            if (eight < rows * kAcross) {
                put(batch, first_row + begin + eight / kAcross, first_column + eight % kAcross * 8, all[i]);
            }
        }
    }
}

// How a product is cut: rows and columns of a tile, and blocks of a cluster that share its depth.
struct TilePlan {
    int rows, columns, split;
};

inline int64_t count_tiles(TilePlan plan, int64_t batches, int64_t rows, int64_t columns) {
    return batches * ((rows + plan.rows - 1) / plan.rows) * ((columns + plan.columns - 1) / plan.columns);
}

// The cut that is soonest done by what a stage takes and how many rounds of blocks there are. `cycles(rows, columns)`: of a stage of `steps` steps.
template <typename Cycles>
inline TilePlan plan_tiles(
    const TilePlan* cuts, int count, const ClusterPlaces& places, int64_t batches, int64_t rows, int64_t columns, int64_t depth, int steps, Cycles cycles) {
    TilePlan best = {cuts[0].rows, cuts[0].columns, 1};
    double least = 0.0;
    for (int at = 0; at < count; ++at) {
        TilePlan plan = {cuts[at].rows, cuts[at].columns, 1};
        for (int doubled = 0; plan.split <= cuts[at].split; plan.split *= 2, ++doubled) {
            const int64_t stages = (depth + steps - 1) / steps / plan.split;
            if (plan.split > 1 && stages < 4) {
                break;
            }
            const int64_t rounds = (count_tiles(plan, batches, rows, columns) + places.of[doubled] - 1) / places.of[doubled];
            const double time = rounds * (stages * cycles(plan.rows, plan.columns) + 600 + 8.0 * plan.columns + (plan.split > 1 ? 6000 + 32 * plan.columns : 0));
            if (least == 0.0 || time < least) {
                least = time;
                best = plan;
            }
        }
    }
    return best;
}
