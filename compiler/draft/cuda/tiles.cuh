constexpr int kThreads = 256;
// Tiles below one another that are taken together, so that what they share is still in the cache.
constexpr int kBand = 8;

// Where a tile is: bands of kBand tiles below one another, in each from column to column.
template <int ROWS, int COLUMNS, typename Index>
__device__ __forceinline__ void find_tile(int tile, Index rows, Index columns, Index& first_row, Index& first_column) {
    const int down = (rows + ROWS - 1) / ROWS, across = (columns + COLUMNS - 1) / COLUMNS;
    const int in_band = tile % (kBand * across), above = tile / (kBand * across) * kBand;
    const int height = down - above < kBand ? down - above : kBand;
    first_row = static_cast<Index>(above + in_band % height) * ROWS;
    first_column = static_cast<Index>(in_band / height) * COLUMNS;
}

// The results leave through shared memory in strips of 16 rows of each half of the warps, so that a thread stays in its column and
// neighbours store neighbours. Round r of a thread is line line_of(r) of the strip.
template <int COLUMNS>
__device__ __forceinline__ int line_of(int round) { return threadIdx.x / COLUMNS + round * (kThreads / COLUMNS); }
template <int ROWS>
__device__ __forceinline__ int row_of_line(int strip, int line) { return line / 16 * (ROWS / 2) + strip * 16 + line % 16; }
