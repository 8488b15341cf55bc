// A float32 product, its operands as two TF32 numbers each: all of a tile's sums by the drafter's tiles; what is not finite by again(batch, row, column).
template <int Rows, int Columns>
constexpr int kExactBytes(int stages) {
    return stages > Rows * kSumsLine<Columns> * 4 ? stages : Rows * kSumsLine<Columns> * 4;
}
template <int Rows, int Columns, int Split, typename Left, typename Right, typename Index, typename Bring, typename Put, typename Again>
__device__ __forceinline__ void multiply_exact_tile(float* memory, Index rows, Index columns, Index depth, Bring bring, Put put, Again again) {
    const int parts = blocks_of_cluster<Split>(), part = part_of_cluster<Split>();
    const Index stages = (depth + Left::kSteps - 1) / Left::kSteps, from = stages * part / parts * Left::kSteps;
    const Index end = stages * (part + 1) / parts * Left::kSteps, to = end < depth ? end : depth;
    const int of_batch = static_cast<int>((rows + Rows - 1) / Rows * ((columns + Columns - 1) / Columns)), tile = blockIdx.x / parts;
    const Index batch = tile / of_batch;
    Index first_row, first_column;
    find_tile<Rows, Columns>(tile % of_batch, rows, columns, first_row, first_column);
    float sums[Rows / 32][Columns / 32][4] = {};
    multiply_tiles<Rows, Columns, true, Left, Right>(sums, memory, to - from, [&](Index start, float* left, float* right) {
        bring(batch, first_row, first_column, from + start, left, right);
    });
#pragma unroll
    for (int i = 0; i < Rows / 32; ++i) {
#pragma unroll
        for (int j = 0; j < Columns / 32; ++j) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                memory[row_of<Rows>(i, e) * kSumsLine<Columns> + column_of<Columns>(j, e)] = sums[i][j][e];
            }
        }
    }
    meet_in_cluster<Split>();
    put_together<Rows, Columns, Split, 1, 1>(memory, kThreads, batch, first_row, first_column, [&](Index, Index row, Index column, float (&of)[1][8]) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            if (!(fabsf(of[0][i]) < INFINITY)) {  // rounding an operand may have made it so: by plain multiply-adds
                of[0][i] = again(batch, row, column + i);
            }
        }
        put(batch, row, column, of);
    });
    leave_cluster<Split>();
}

// Of float32s: three products of TF32 numbers, by mma.sync; of small tiles two are at work at once.
inline double exact_cycles(int rows, int columns) { return rows * columns * 3.0 * 32 / (columns == 64 ? 500.0 : 614.0); }
