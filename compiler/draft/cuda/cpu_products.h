// Products of matrices on a CPU: blocks of both sides are copied into panels, of which a tile of sums in registers takes one step after another.
#include <algorithm>
#include <type_traits>
#include <vector>
#if defined(_OPENMP)
#include <omp.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#else
constexpr int kVectorBytes = 32;
#endif
using TileVector [[gnu::vector_size(kVectorBytes), gnu::may_alias, gnu::aligned(4)]] = float;
constexpr int kWide = kVectorBytes / 4;
constexpr int kTileRows = 6, kTileColumns = 2 * kWide;  // twelve vectors of sums, two of the right side, one of the left
constexpr int64_t kRows = 96, kColumns = 256, kSteps = 256;  // of a block: both panels stay in the second cache

// The sums of one tile over `steps`, to `made` rows of kTileColumns. Every vector has a name, so that it has a register.
inline void multiply_tile(const float* left, const float* right, int64_t steps, float* made) {
    TileVector a0{}, a1{}, a2{}, a3{}, a4{}, a5{}, b0{}, b1{}, b2{}, b3{}, b4{}, b5{};
    for (int64_t step = 0; step < steps; ++step, left += kTileRows, right += kTileColumns) {
        const TileVector first = *reinterpret_cast<const TileVector*>(right), second = *reinterpret_cast<const TileVector*>(right + kWide);
        a0 += left[0] * first; b0 += left[0] * second;
        a1 += left[1] * first; b1 += left[1] * second;
        a2 += left[2] * first; b2 += left[2] * second;
        a3 += left[3] * first; b3 += left[3] * second;
        a4 += left[4] * first; b4 += left[4] * second;
        a5 += left[5] * first; b5 += left[5] * second;
    }
    TileVector* const to = reinterpret_cast<TileVector*>(made);
    to[0] = a0; to[1] = b0; to[2] = a1; to[3] = b1; to[4] = a2; to[5] = b2;
    to[6] = a3; to[7] = b3; to[8] = a4; to[9] = b4; to[10] = a5; to[11] = b5;
}

// A panel of `side` places side by side, step by step; zeros beyond the end. `AlongSteps`: neighbours in memory differ in the step.
template <int Side, bool AlongSteps, typename Value>
inline void fill_panel(float* panel, int64_t first, int64_t end, int64_t start, int64_t steps, Value value) {
    if (end - first < Side) {
        std::fill(panel, panel + steps * Side, 0.0f);
    }
    if (AlongSteps) {
        for (int64_t place = first; place < std::min(end, first + Side); ++place) {
#pragma omp simd
            for (int64_t step = 0; step < steps; ++step) {
                panel[step * Side + place - first] = value(place, start + step);
            }
        }
    } else if (end - first >= Side) {
        for (int64_t step = 0; step < steps; ++step) {
#pragma omp simd
            for (int place = 0; place < Side; ++place) {
                panel[step * Side + place] = value(first + place, start + step);
            }
        }
    } else {
        for (int64_t step = 0; step < steps; ++step) {
            for (int64_t place = first; place < end; ++place) {
                panel[step * Side + place - first] = value(place, start + step);
            }
        }
    }
}

// put(batch, m, n, sum over k of left(batch, m, k) * right(batch, k, n)): float within kSteps, double above.
template <bool LeftAlongSteps, bool RightAlongSteps, typename Left, typename Right, typename Put>
inline void multiply_panels(int64_t batches, int64_t rows, int64_t columns, int64_t depth, Left left, Right right, Put put) {
    const auto blocks_of = [](int64_t count, int64_t by) { return (count + by - 1) / by; };
    int64_t down = std::min(kRows, blocks_of(rows, kTileRows) * kTileRows), across = std::min(kColumns, blocks_of(columns, kTileColumns) * kTileColumns);
    int64_t threads = 1;
#if defined(_OPENMP)
    threads = batches * rows * columns * depth < (1 << 18) ? 1 : omp_get_max_threads();
#endif
    while (batches * blocks_of(rows, down) * blocks_of(columns, across) < threads && down > kTileRows) {
        down = blocks_of(down / kTileRows, 2) * kTileRows;
    }
    while (batches * blocks_of(rows, down) * blocks_of(columns, across) < threads && across > kTileColumns) {
        across = blocks_of(across / kTileColumns, 2) * kTileColumns;
    }
    const int64_t row_blocks = blocks_of(rows, down), column_blocks = blocks_of(columns, across), blocks = batches * row_blocks * column_blocks;
    const int64_t steps_most = std::min(kSteps, depth);
#pragma omp parallel num_threads(static_cast<int>(threads)) if (threads > 1)
    {
        std::vector<float> panels(steps_most * (down + across) + kTileRows * kTileColumns);
        std::vector<double> sums(down * across);
        float* const left_panels = panels.data();
        float* const right_panels = left_panels + steps_most * down;
        float* const made = right_panels + steps_most * across;
#pragma omp for
        for (int64_t block = 0; block < blocks; ++block) {
            const int64_t batch = block / (row_blocks * column_blocks);
            const int64_t first_row = block % row_blocks * down, first_column = block / row_blocks % column_blocks * across;
            const int64_t own_rows = std::min(down, rows - first_row), own_columns = std::min(across, columns - first_column);
            std::fill(sums.begin(), sums.end(), 0.0);
            for (int64_t start = 0; start < depth; start += kSteps) {
                const int64_t steps = std::min(kSteps, depth - start);
                for (int64_t n = 0; n < own_columns; n += kTileColumns) {
                    fill_panel<kTileColumns, RightAlongSteps>(right_panels + n * steps, first_column + n, columns, start, steps, [&](int64_t place, int64_t k) { return right(batch, k, place); });
                }
                for (int64_t m = 0; m < own_rows; m += kTileRows) {
                    fill_panel<kTileRows, LeftAlongSteps>(left_panels, first_row + m, rows, start, steps, [&](int64_t place, int64_t k) { return left(batch, place, k); });
                    for (int64_t n = 0; n < own_columns; n += kTileColumns) {
                        multiply_tile(left_panels, right_panels + n * steps, steps, made);
                        for (int64_t row = 0; row < kTileRows && m + row < own_rows; ++row) {
                            double* const to = sums.data() + (m + row) * across + n;
#pragma omp simd
                            for (int column = 0; column < kTileColumns; ++column) {
                                to[column] += made[row * kTileColumns + column];
                            }
                        }
                    }
                }
            }
            for (int64_t row = 0; row < own_rows; ++row) {
                for (int64_t column = 0; column < own_columns; ++column) {
                    put(batch, first_row + row, first_column + column, static_cast<float>(sums[row * across + column]));
                }
            }
        }
    }
}

}  // namespace
