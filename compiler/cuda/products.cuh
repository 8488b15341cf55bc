// Products of matrices by tiles: what the kernels of the sketch `tiles` call, behind the drafter's own tiles (draft/tensor_cores.py, hopper.py).

// A tile of 16-bit operands: 128 rows, 64 steps of K a stage. On Hopper 128 threads bring stages by copies of 16 bytes while two warp groups
// multiply what is there (wgmma); elsewhere all threads bring a stage, and eight warps multiply it (mma.sync), for which nothing was measured.
constexpr int kMakers = 256, kTileThreads = kMakers + 128, kTileRows = 128, kTileSteps = 64;
template <int Columns>
constexpr int kTileStage = (kTileRows + Columns) * kTileSteps * 2;
template <int Columns>
constexpr int kTileSlots = Columns == 256 ? 4 : Columns == 128 ? 6 : 8;
template <int Columns>
constexpr int kTileBytes = kTileSlots<Columns> * (kTileStage<Columns> + 16);

// Where eight neighbours lie in their side's part of a stage, in bytes: where those are steps, a place's 64 are a line, else a step's 64 places
// are; the 16 bytes p of line l are at p ^ l % 8, as wgmma reads them.
template <bool AlongK>
__device__ __forceinline__ int eight_at(int place, int step) {
    return AlongK ? place * 128 + ((step / 8) ^ (place % 8)) * 16 : place / 64 * (kTileSteps * 128) + step * 128 + ((place % 64 / 8) ^ (step % 8)) * 16;
}

// bring(place, step, to) for each eight of a side of `Places` places, by `threads` threads.
template <int Places, bool AlongK, typename Bring>
__device__ __forceinline__ void bring_side(char* to, int thread, int threads, Bring bring) {
#pragma unroll 2
    for (int eight = thread; eight < Places * kTileSteps / 8; eight += threads) {
        const int place = AlongK ? eight / 8 : eight % (Places / 8) * 8, step = AlongK ? eight % 8 * 8 : eight / (Places / 8);
        bring(place, step, to + eight_at<AlongK>(place, step));
    }
}

// 16 bytes into shared memory, zeros where there are none to read. They are there when the thread has waited.
__device__ __forceinline__ void copy_eight(char* to, const void* from, bool inside) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(inside ? 16 : 0) : "memory");
#else
    for (int i = 0; i < 16; ++i) {
        to[i] = inside ? static_cast<const char*>(from)[i] : 0;
    }
#endif
}

template <typename T, bool LeftAlongK, bool RightAlongK>
struct Operands {};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// Lines of 128 bytes, swizzled; eight lines further on is 1024 bytes away, and, where lines are steps, 64 places further on a line's stage.
template <bool AlongK>
__device__ __forceinline__ uint64_t lines_at(uint32_t address) {
    return uint64_t((address & 0x3ffff) >> 4) | uint64_t(AlongK ? 1 : kTileSteps * 128 >> 4) << 16 | uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62;
}
// Behind the copies that this thread has asked for, which then are there.
__device__ __forceinline__ void arrive_with_copies(uint32_t barrier) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // what it has stored itself
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
// WGMMA
#else
// Two steps of a place.
template <typename T, bool AlongK>
__device__ __forceinline__ uint32_t two_at(const char* lines, int place, int step) {
    const auto one = [&](int of) { return *reinterpret_cast<const uint16_t*>(lines + eight_at<AlongK>(place, of) + (AlongK ? of % 8 : place % 8) * 2); };
    return one(step) | static_cast<uint32_t>(one(step + 1)) << 16;
}
template <typename T>
__device__ __forceinline__ float half_of(uint32_t two, int which) {
    const uint16_t bits = which ? two >> 16 : two & 0xffff;
    return to_float(*reinterpret_cast<const T*>(&bits));
}
// A warp's 16 rows += 16 steps from `step` on.
template <typename T, bool LeftAlongK, bool RightAlongK, int Sums>
__device__ __forceinline__ void multiply_sixteen(Operands<T, LeftAlongK, RightAlongK>, float (&d)[Sums], const char* left, const char* right, int step) {
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
#if __CUDA_ARCH__ >= 800
    uint32_t a[4], b[2];
    for (int e = 0; e < 4; ++e) {
        a[e] = two_at<T, LeftAlongK>(left, row + e % 2 * 8, step + lane % 4 * 2 + e / 2 * 8);
    }
#pragma unroll
    for (int j = 0; j < Sums / 4; ++j) {
        for (int e = 0; e < 2; ++e) {
            b[e] = two_at<T, RightAlongK>(right, j * 8 + lane / 4, step + lane % 4 * 2 + e * 8);
        }
        if constexpr (std::is_same<T, __half>::value) {
            asm volatile(
                "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                : "+f"(d[j * 4]), "+f"(d[j * 4 + 1]), "+f"(d[j * 4 + 2]), "+f"(d[j * 4 + 3])
                : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
        } else {
            asm volatile(
                "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                : "+f"(d[j * 4]), "+f"(d[j * 4 + 1]), "+f"(d[j * 4 + 2]), "+f"(d[j * 4 + 3])
                : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
        }
    }
#else
    for (int k = step; k < step + 16; k += 2) {
        for (int i = 0; i < Sums; ++i) {
            const uint32_t a = two_at<T, LeftAlongK>(left, row + i % 4 / 2 * 8, k), b = two_at<T, RightAlongK>(right, i / 4 * 8 + lane % 4 * 2 + i % 2, k);
            d[i] += half_of<T>(a, 0) * half_of<T>(b, 0) + half_of<T>(a, 1) * half_of<T>(b, 1);
        }
    }
#endif
}
#endif

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

// Two neighbouring columns at a time: put(batch, row, column, these of each product, those of each product). The blocks of a cluster add what
// each has, and each puts its share of the rows.
template <int Rows, int Columns, int Split, int Products, typename Index, typename Put>
__device__ __forceinline__ void put_together(const float* sums, int threads, Index batch, Index first_row, Index first_column, Put put) {
    constexpr int kPlane = Rows * kSumsLine<Columns>;
    const int parts = blocks_of_cluster<Split>(), rows = Rows / parts, begin = part_of_cluster<Split>() * rows;
    for (int two = threadIdx.x; two < rows * Columns / 2; two += threads) {
        const int row = begin + two / (Columns / 2), column = two % (Columns / 2) * 2;
        float a[Products] = {}, b[Products] = {};
        for (int other = 0; other < parts; ++other) {
            const float* theirs = of_block<Split>(const_cast<float*>(sums), other) + row * kSumsLine<Columns> + column;
#pragma unroll
            for (int product = 0; product < Products; ++product) {
                a[product] += theirs[product * kPlane];
                b[product] += theirs[product * kPlane + 1];
            }
        }
        put(batch, first_row + row, first_column + column, a, b);
    }
}

// All tiles of a block: bring(product, batch, first_row, first_column, start, to, thread, threads) brings the stage that begins at step `start`.
template <typename T, int Columns, int Split, int Products, bool LeftAlongK, bool RightAlongK, typename Index, typename Bring, typename Put>
__device__ __forceinline__ void multiply_halved_tiles(float* memory, Index batches, Index rows, Index columns, Index depth, Bring bring, Put put) {
    constexpr int kSlots = kTileSlots<Columns>, kStage = kTileStage<Columns>, kSums = Columns / 2, kSide = kTileRows * kTileSteps * 2;
    char* const slots = reinterpret_cast<char*>(memory);
    const Operands<T, LeftAlongK, RightAlongK> kind;
    const int parts = blocks_of_cluster<Split>(), part = part_of_cluster<Split>();
    const Index stages = (depth + kTileSteps - 1) / kTileSteps, from = stages * part / parts, to = stages * (part + 1) / parts;
    const int64_t of_batch = static_cast<int64_t>((rows + kTileRows - 1) / kTileRows) * ((columns + Columns - 1) / Columns);
    const bool makes = threadIdx.x < kMakers;
    int slot = 0;
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    const uint32_t first = shared_address(slots), full = first + kSlots * kStage, empty = full + kSlots * 8;
    int phase = 0;
    if (threadIdx.x == 0) {
        for (int i = 0; i < kSlots; ++i) {
            begin_barrier(full + i * 8, kTileThreads - kMakers);
            begin_barrier(empty + i * 8, kMakers / 32);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (makes) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 216;");
    } else {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 72;");
    }
#endif
    for (int64_t tile = blockIdx.x / parts; tile < of_batch * batches; tile += gridDim.x / parts) {
        Index first_row, first_column;
        const Index batch = static_cast<Index>(tile / of_batch);
        find_tile<kTileRows, Columns>(static_cast<int>(tile % of_batch), rows, columns, first_row, first_column);
        float sums[Products][kSums] = {};
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
        const auto next = [&] {
            slot = slot == kSlots - 1 ? 0 : slot + 1;
            phase ^= slot == 0;
        };
        if (!makes) {
            for (int product = 0; product < Products; ++product) {
                for (Index stage = from; stage < to; ++stage) {
                    wait_at(empty + slot * 8, phase ^ 1);
                    bring(product, batch, first_row, first_column, stage * kTileSteps, slots + slot * kStage, threadIdx.x - kMakers, kTileThreads - kMakers);
                    arrive_with_copies(full + slot * 8);
                    next();
                }
            }
        } else {
            int before = -1;
#pragma unroll
            for (int product = 0; product < Products; ++product) {
                for (Index stage = from; stage < to; ++stage) {
                    wait_at(full + slot * 8, phase);
                    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // what other threads' copies and stores have brought
#pragma unroll
                    for (int i = 0; i < kSums; ++i) {
                        asm volatile("" : "+f"(sums[product][i])::"memory");
                    }
                    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
                    const uint32_t a = first + slot * kStage + threadIdx.x / 128 * (kSide / 2), b = first + slot * kStage + kSide;
#pragma unroll
                    for (int step = 0; step < kTileSteps / 16; ++step) {
                        multiply_sixteen(
                            kind, sums[product], lines_at<LeftAlongK>(a + step * (LeftAlongK ? 32 : 2048)), lines_at<RightAlongK>(b + step * (RightAlongK ? 32 : 2048)), 1);
                    }
                    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
                    if (before >= 0) {
                        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
                        if (threadIdx.x % 32 == 0) arrive_at(empty + before * 8);
                    }
                    before = slot;
                    next();
                }
                asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
                for (int i = 0; i < kSums; ++i) {
                    asm volatile("" : "+f"(sums[product][i])::"memory");  // nobody reads them above this line
                }
            }
            if (before >= 0 && threadIdx.x % 32 == 0) arrive_at(empty + before * 8);
        }
#else
#pragma unroll
        for (int product = 0; product < Products; ++product) {
            for (Index stage = from; stage < to; ++stage) {
                __syncthreads();  // nobody reads the stage before any more
                bring(product, batch, first_row, first_column, stage * kTileSteps, slots, threadIdx.x, kTileThreads);
                end_group();
                wait_for_groups<0>();
                __syncthreads();
                if (makes) {
#pragma unroll
                    for (int step = 0; step < kTileSteps; step += 16) {
                        multiply_sixteen(kind, sums[product], slots, slots + kSide, step);
                    }
                }
            }
        }
#endif
        const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
        if constexpr (Split == 1) {
            if (makes) {
#pragma unroll
                for (int i = 0; i < kSums; i += 2) {
                    float these[Products], those[Products];
                    for (int product = 0; product < Products; ++product) {
                        these[product] = sums[product][i];
                        those[product] = sums[product][i + 1];
                    }
                    put(batch, first_row + row + i % 4 / 2 * 8, first_column + column + i / 4 * 8, these, those);
                }
            }
        } else {
            __syncthreads();  // nobody reads stages any more
#pragma unroll
            for (int product = 0; product < Products; ++product) {
#pragma unroll
                for (int i = 0; makes && i < kSums; ++i) {
                    memory[(product * kTileRows + row + i % 4 / 2 * 8) * kSumsLine<Columns> + column + i / 4 * 8 + i % 2] = sums[product][i];
                }
            }
            meet_in_cluster<Split>();
            put_together<kTileRows, Columns, Split, Products>(memory, kTileThreads, batch, first_row, first_column, put);
            leave_cluster<Split>();
        }
    }
}

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
    put_together<Rows, Columns, Split, 1>(memory, kThreads, batch, first_row, first_column, [&](Index, Index row, Index column, float (&a)[1], float (&b)[1]) {
        if (!(fabsf(a[0]) < INFINITY && fabsf(b[0]) < INFINITY)) {  // rounding an operand may have made it so: by plain multiply-adds
            a[0] = again(batch, row, column);
            b[0] = again(batch, row, column + 1);
        }
        put(batch, row, column, a, b);
    });
    leave_cluster<Split>();
}

// How a product is cut: rows and columns of a tile, and blocks of a cluster that share its depth.
struct TilePlan {
    int rows, columns, split;
};

// The cut that is soonest done by what a stage takes and how many rounds of blocks there are. `cycles(rows, columns)`: of a stage of `steps` steps.
template <typename Cycles>
inline TilePlan plan_tiles(const TilePlan* cuts, int count, int64_t batches, int64_t rows, int64_t columns, int64_t depth, int steps, Cycles cycles) {
    static const Multiprocessors device;
    TilePlan best = {cuts[0].rows, cuts[0].columns, 1};
    double least = 0.0;
    for (int at = 0; at < count; ++at) {
        for (int split = 1; split <= cuts[at].split; split *= 2) {
            const int64_t stages = (depth + steps - 1) / steps / split;
            if (split > 1 && stages < 4) {
                break;
            }
            const int64_t tiles = batches * ((rows + cuts[at].rows - 1) / cuts[at].rows) * ((columns + cuts[at].columns - 1) / cuts[at].columns) * split;
            const int64_t rounds = (tiles + device.count - 1) / device.count;
            const double time = rounds * (stages * cycles(cuts[at].rows, cuts[at].columns) + 600 + 8.0 * cuts[at].columns + (split > 1 ? 1500 : 0));
            if (least == 0.0 || time < least) {
                least = time;
                best = {cuts[at].rows, cuts[at].columns, split};
            }
        }
    }
    return best;
}
// Of 16-bit operands: two warp groups multiply 64 steps of a column in four cycles; 40 bytes come in a cycle.
inline double halved_cycles(int rows, int columns) {
    const double multiplied = 4.0 * columns, brought = (rows + columns) * 128 / 40.0;
    return multiplied > brought ? multiplied : brought;
}
// Of float32s: three products of TF32 numbers, by mma.sync; of small tiles two are at work at once.
inline double exact_cycles(int rows, int columns) { return rows * columns * 3.0 * 32 / (columns == 64 ? 500.0 : 614.0); }
