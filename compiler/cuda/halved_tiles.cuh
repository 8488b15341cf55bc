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
constexpr bool kAsksForBoxes = true;

// A side's part of a stage, by boxes of a tensor in the swizzle.
__device__ __forceinline__ void ask_for_box(uint32_t to, const CUtensorMap& map, uint32_t barrier, int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
                 ::"r"(to), "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z) : "memory");
}
template <bool AlongK, int Places>
__device__ __forceinline__ void ask_for_side(const CUtensorMap& map, uint32_t to, uint32_t barrier, int place, int step, int batch) {
    if constexpr (AlongK) {
        ask_for_box(to, map, barrier, step, place, batch);
    } else {
#pragma unroll
        for (int n = 0; n < Places; n += 64) {
            ask_for_box(to + n * 128, map, barrier, place + n, step, batch);
        }
    }
}
// 64 channels from one on at neighbouring places of a convolution, moved by a tap of each axis, the innermost first; from image to image.
template <int Axes>
__device__ __forceinline__ void ask_for_window(
    const CUtensorMap& map, uint32_t to, uint32_t barrier, int channel, const int (&place)[Axes], int image, const uint16_t (&tap)[Axes]) {
    if constexpr (Axes == 1) {
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2], {%6};"
                     ::"r"(to), "l"(&map), "r"(barrier), "r"(channel), "r"(place[0]), "r"(image), "h"(tap[0]) : "memory");
    } else if constexpr (Axes == 2) {
        asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8};"
                     ::"r"(to), "l"(&map), "r"(barrier), "r"(channel), "r"(place[0]), "r"(place[1]), "r"(image), "h"(tap[0]), "h"(tap[1]) : "memory");
    } else {
        asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, %7}], [%2], {%8, %9, %10};"
                     ::"r"(to), "l"(&map), "r"(barrier), "r"(channel), "r"(place[0]), "r"(place[1]), "r"(place[2]), "r"(image), "h"(tap[0]), "h"(tap[1]), "h"(tap[2]) : "memory");
    }
}
// WGMMA
#else
constexpr bool kAsksForBoxes = false;
template <int Axes>
__device__ __forceinline__ void ask_for_window(const CUtensorMap&, uint32_t, uint32_t, int, const int (&)[Axes], int, const uint16_t (&)[Axes]) {}
template <bool AlongK, int Places>
__device__ __forceinline__ void ask_for_side(const CUtensorMap&, uint32_t, uint32_t, int, int, int) {}


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
// A warp's 16 rows of `Rows` += 16 steps from `step` on.
template <int Rows, typename T, bool LeftAlongK, bool RightAlongK, int Sums>
__device__ __forceinline__ void multiply_sixteen(Operands<T, LeftAlongK, RightAlongK>, float (&d)[Sums], const char* left, const char* right, int step) {
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % (Rows / 16) * 16 + lane / 4;
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

__device__ __forceinline__ void meet_makers() { asm volatile("bar.sync 1, %0;" ::"n"(kMakers) : "memory"); }

// Lane q of four has a number of each of four groups; it gets the four of group q.
__device__ __forceinline__ void exchange_in_fours(float (&numbers)[4]) {
    const bool odd = threadIdx.x % 2, high = threadIdx.x / 2 % 2;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const float got = __shfl_xor_sync(0xffffffffu, odd ? numbers[i] : numbers[i + 1], 1);
        numbers[i] = odd ? got : numbers[i];
        numbers[i + 1] = odd ? numbers[i + 1] : got;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const float got = __shfl_xor_sync(0xffffffffu, high ? numbers[i] : numbers[i + 2], 2);
        numbers[i] = high ? got : numbers[i];
        numbers[i + 2] = high ? numbers[i + 2] : got;
    }
}

// What the sums within `Stages` stages are multiplied by before they are added: of_row(batch, row, first step) * of_column(batch, column, first step),
// which is the same for all columns of a tile where they are `Shared`.
struct NoFactors {
    static constexpr int kStages = 0;
};
template <int Stages, bool Shared, typename Row, typename Column>
struct Factors {
    static constexpr int kStages = Stages;
    Row of_row;
    Column of_column;

    template <int Sums, typename Index>
    __device__ __forceinline__ void add(float (&sums)[Sums], const float (&within)[Sums], Index batch, Index row, Index first_column, int column, Index step) const {
        const float upper = of_row(batch, row, step), lower = of_row(batch, row + 8, step), shared = Shared ? of_column(batch, first_column, step) : 0.0f;
#pragma unroll
        for (int i = 0; i < Sums; ++i) {
            const float factor = Shared ? shared : of_column(batch, first_column + column + i / 4 * 8 + i % 2, step);
            sums[i] += within[i] * ((i % 4 < 2 ? upper : lower) * factor);
        }
    }
};

// All tiles of a block. ask(batch, row, column, step, to, barrier) asks for the boxes of a stage, of `Asked` bytes in all; the rest of it is what
// fetch(batch, row, column, step, thread, threads) reads and bring(what was read, batch, row, column, step, to, thread, threads) makes and brings. put(batch, row, column, sums of each product) takes eight
// neighbouring columns. Where `Split` is 0, the blocks of a cluster share a depth.
template <typename T, int Rows, int Columns, int Split, int Products, int Lefts, int Rights, bool LeftAlongK, bool RightAlongK, int Asked, bool Brings, bool Copies, typename Index, typename Ask, typename Fetch, typename Bring, typename Put, typename OfSums>
__device__ __forceinline__ void multiply_halved_tiles(float* memory, Index batches, Index rows, Index columns, Index depth, Ask ask, Fetch fetch, Bring bring, Put put, OfSums factors) {
    constexpr int kSlots = kTileSlots<Rows, Columns, Lefts, Rights>, kStage = kTileStage<Rows, Columns, Lefts, Rights>, kGroups = Rows == 64 ? 2 : 1, kSums = Columns / 2;
    char* const slots = reinterpret_cast<char*>(memory);
    const Operands<T, LeftAlongK, RightAlongK> kind;
    const int parts = blocks_of_cluster<Split>(), part = part_of_cluster<Split>();
    const Index stages = (depth + kTileSteps - 1) / kTileSteps, from = stages * part / parts, to = stages * (part + 1) / parts;
    const int64_t of_batch = static_cast<int64_t>((rows + Rows - 1) / Rows) * ((columns + Columns - 1) / Columns);
    const bool makes = threadIdx.x < kMakers;
    const auto left_of = [](int product) { return (product < Lefts ? product : 0) * Rows * kTileSteps * 2; };
    const auto right_of = [](int product) { return Lefts * Rows * kTileSteps * 2 + (product < Rights ? product : 0) * Columns * kTileSteps * 2; };
    const int group = threadIdx.x / 128, row = threadIdx.x / 32 % (Rows / 16) * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
    const auto each_tile = [&](auto does) {
        for (int64_t tile = blockIdx.x / parts; tile < of_batch * batches; tile += gridDim.x / parts) {
            Index first_row, first_column;
            find_tile<Rows, Columns>(static_cast<int>(tile % of_batch), rows, columns, first_row, first_column);
            does(static_cast<Index>(tile / of_batch), first_row, first_column);
        }
    };
    // Of the threads that have sums, which have met since anybody read a stage.
    const auto put_sums = [&](const float (&sums)[Products][kSums], Index batch, Index first_row, Index first_column) {
        if constexpr (Split == 0 || kGroups == 2) {
            float* const own = memory + group % kGroups * Products * Rows * kSumsLine<Columns>;
#pragma unroll
            for (int product = 0; product < Products; ++product) {
#pragma unroll
                for (int i = 0; i < kSums; i += 2) {
                    *reinterpret_cast<float2*>(own + (product * Rows + row + i % 4 / 2 * 8) * kSumsLine<Columns> + column + i / 4 * 8) = make_float2(sums[product][i], sums[product][i + 1]);
                }
            }
            if constexpr (Split == 0) {
                meet_in_cluster<Split>();
            } else {
                meet_makers();
            }
            put_together<Rows, Columns, Split, Products, kGroups>(memory, kMakers, batch, first_row, first_column, put);
            leave_cluster<Split>();
        } else {
#pragma unroll
            for (int wide = 0; wide < Columns / 32; ++wide) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    float eight[Products][8];
#pragma unroll
                    for (int product = 0; product < Products; ++product) {
#pragma unroll
                        for (int odd = 0; odd < 2; ++odd) {
                            float four[4];
#pragma unroll
                            for (int j = 0; j < 4; ++j) {
                                four[j] = sums[product][wide * 16 + j * 4 + half * 2 + odd];
                            }
                            exchange_in_fours(four);
#pragma unroll
                            for (int j = 0; j < 4; ++j) {
                                eight[product][j * 2 + odd] = four[j];
                            }
                        }
                    }
                    put(batch, first_row + row + half * 8, first_column + threadIdx.x % 4 * 8 + wide * 32, eight);
                }
            }
        }
    };
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    const uint32_t first = shared_address(slots), full = first + kSlots * kStage, empty = full + kSlots * 8;
    int slot = 0, phase = 0;
    const auto go_on = [&](int by) {
        slot += by;
        phase ^= slot >= kSlots;
        slot -= slot >= kSlots ? kSlots : 0;
    };
    if (threadIdx.x == 0) {
        for (int i = 0; i < kSlots; ++i) {
            begin_barrier(full + i * 8, (Asked > 0) + (Brings ? 128 : 0));
            begin_barrier(empty + i * 8, kMakers / 32 / kGroups);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (!makes) {
        if constexpr (kGroups == 1) {
            asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Brings ? 88 : 40));
        }
        int turn = (threadIdx.x - kMakers) / 128;
        each_tile([&](Index batch, Index first_row, Index first_column) {
            if (Brings || threadIdx.x == kMakers) {
                const int thread = threadIdx.x % 128;
                auto read = fetch(batch, first_row, first_column, (from + turn) * kTileSteps, thread, 128);
                for (Index stage = from; stage < to; ++stage) {
                    if (!Brings || turn == 0) {
                        wait_at(empty + slot * 8, phase ^ 1);
                        if (Asked > 0 && thread == 0) {
                            expect_bytes(full + slot * 8, Asked);
                            ask(batch, first_row, first_column, stage * kTileSteps, first + slot * kStage, full + slot * 8);
                        }
                        if constexpr (Brings) {
                            bring(read, batch, first_row, first_column, stage * kTileSteps, slots + slot * kStage, thread, 128);
                            arrive_with_copies(full + slot * 8);
                            read = fetch(batch, first_row, first_column, (stage + 2) * kTileSteps, thread, 128);
                        }
                    }
                    turn ^= 1;
                    go_on(1);
                }
            }
            if constexpr (Split == 0) {
                __syncwarp();
                meet_in_cluster<Split>();
                leave_cluster<Split>();
            }
        });
    } else {
        if constexpr (kGroups == 1) {
            asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Brings ? 168 : 232));
        }
        const auto release = [&](int which) {
            if (threadIdx.x % 32 == 0) arrive_at(empty + which * 8);
        };
        each_tile([&](Index batch, Index first_row, Index first_column) {
            float sums[Products][kSums] = {};
            [[maybe_unused]] float within[kSums];  // the sums of stages that have one factor
            [[maybe_unused]] bool begins = true;
            const int height = kGroups == 1 ? group * 64 : 0;
            const bool has_rows = first_row + height < rows;
            int before = -1;
            if constexpr (kGroups == 2) {
                slot = group;  // its block has one tile
            }
            for (Index stage = from + (kGroups == 1 ? 0 : group); stage < to; stage += kGroups) {
                wait_at(full + slot * 8, phase);
                if constexpr (Copies) {
                    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // what other threads' copies have brought; who stores has a fence of his own
                }
                if (kGroups == 2 || has_rows) {
                    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
                    const uint32_t here = first + slot * kStage;
#pragma unroll
                    for (int step = 0; step < kTileSteps / 16; ++step) {
#pragma unroll
                        for (int product = 0; product < Products; ++product) {
                            const uint32_t a = here + left_of(product) + height * 128, b = here + right_of(product);
                            const uint64_t left = lines_at<LeftAlongK>(a + step * (LeftAlongK ? 32 : 2048)), right = lines_at<RightAlongK>(b + step * (RightAlongK ? 32 : 2048));
                            if constexpr (OfSums::kStages > 0) {
                                multiply_sixteen(kind, within, left, right, !begins || step > 0);
                            } else {
                                multiply_sixteen(kind, sums[product], left, right, 1);
                            }
                        }
                    }
                    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
                }
                if constexpr (OfSums::kStages > 0) {
                    begins = kGroups == 2 || (stage + 1) % OfSums::kStages == 0 || stage + 1 == to;
                    if (begins && (kGroups == 2 || has_rows)) {
                        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
                        for (int i = 0; i < kSums; ++i) {
                            asm volatile("" : "+f"(within[i])::"memory");  // as below
                        }
                        factors.add(sums[0], within, batch, first_row + row, first_column, column, stage * kTileSteps);
                    }
                }
                asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
                if (before >= 0) release(before);
                before = slot;
                go_on(kGroups);
            }
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
            for (int product = 0; product < Products; ++product) {
#pragma unroll
                for (int i = 0; i < kSums; ++i) {
                    asm volatile("" : "+f"(sums[product][i])::"memory");  // nobody reads them above this line
                }
            }
            if (before >= 0) release(before);
            if constexpr (Split == 0 || kGroups == 2) {
                meet_makers();
            }
            put_sums(sums, batch, first_row, first_column);
        });
    }
#else
    each_tile([&](Index batch, Index first_row, Index first_column) {
        float sums[Products][kSums] = {};
        for (Index stage = from; stage < to; ++stage) {
            __syncthreads();  // nobody reads the stage before any more
            bring(fetch(batch, first_row, first_column, stage * kTileSteps, threadIdx.x, blockDim.x), batch, first_row, first_column, stage * kTileSteps, slots, threadIdx.x, blockDim.x);
            end_group();
            wait_for_groups<0>();
            __syncthreads();
            if (makes && (kGroups == 1 || (stage - from) % 2 == group)) {
#pragma unroll
                for (int product = 0; product < Products; ++product) {
                    [[maybe_unused]] float within[kSums] = {};
#pragma unroll
                    for (int step = 0; step < kTileSteps; step += 16) {
                        multiply_sixteen<Rows>(kind, OfSums::kStages > 0 ? within : sums[product], slots + left_of(product), slots + right_of(product), step);
                    }
                    if constexpr (OfSums::kStages > 0) {
                        factors.add(sums[product], within, batch, first_row + row, first_column, column, stage * kTileSteps);
                    }
                }
            }
        }
        if constexpr (Split == 0 || kGroups == 2) {
            __syncthreads();
        }
        if (makes) {
            put_sums(sums, batch, first_row, first_column);
        } else if constexpr (Split == 0) {
            meet_in_cluster<Split>();
            leave_cluster<Split>();
        }
    });
#endif
}

using EncodeTiled = CUresult(
    CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
    CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

using EncodeIm2col = CUresult(
    CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*, const int*, const int*, cuuint32_t, cuuint32_t, const cuuint32_t*,
    CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// The driver's function, by the runtime, so that no library is linked; nullptr where it has none.
template <typename Function>
inline Function* function_of_driver(const char* name) {
    static Function* const found = [name] {
        void* entry = nullptr;
        cudaDriverEntryPointQueryResult result;
        const auto error = cudaGetDriverEntryPointByVersion(name, &entry, 12000, cudaEnableDefault, &result);
        return error == cudaSuccess && result == cudaDriverEntryPointSuccess ? reinterpret_cast<Function*>(entry) : nullptr;
    }();
    return found;
}

// Boxes of 64 neighbours in `lines` lines of a matrix of each batch, in the swizzle, zeros beyond its ends. False where lines do not begin at
// multiples of 16 bytes.
inline bool map_side(CUtensorMap* map, CUtensorMapDataType type, const void* from, int64_t neighbours, int64_t height, int64_t batches, int64_t line, int64_t matrix, int lines) {
    line = height > 1 ? line : (neighbours + 7) / 8 * 8;
    matrix = batches > 1 ? matrix : line;
    auto* const encode = function_of_driver<EncodeTiled>("cuTensorMapEncodeTiled");
    if (reinterpret_cast<uintptr_t>(from) % 16 != 0 || line % 8 != 0 || matrix % 8 != 0 || line <= 0 || matrix <= 0 || encode == nullptr) {
        return false;
    }
    const cuuint64_t sizes[] = {static_cast<cuuint64_t>(neighbours), static_cast<cuuint64_t>(height), static_cast<cuuint64_t>(batches)};
    const cuuint64_t strides[] = {static_cast<cuuint64_t>(line) * 2, static_cast<cuuint64_t>(matrix) * 2};
    const cuuint32_t box[] = {64, static_cast<cuuint32_t>(lines), 1}, steps[] = {1, 1, 1};
    return encode(
               map, type, 3, const_cast<void*>(from), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// Boxes of 64 channels at `lines` places of a convolution, which begin at `first` and are `strides` apart along each axis, the innermost first.
// False where a stage would have channels of two taps.
template <int Axes>
inline bool map_window(
    CUtensorMap* map, CUtensorMapDataType type, const void* from, int64_t channels, int64_t images, const int64_t (&places)[Axes], const int64_t (&columns)[Axes],
    const int (&first)[Axes], const cuuint32_t (&strides)[Axes], int lines) {
    auto* const encode = function_of_driver<EncodeIm2col>("cuTensorMapEncodeIm2col");
    if (reinterpret_cast<uintptr_t>(from) % 16 != 0 || channels % kTileSteps != 0 || encode == nullptr) {
        return false;
    }
    cuuint64_t sizes[Axes + 2] = {static_cast<cuuint64_t>(channels)}, apart[Axes + 1] = {static_cast<cuuint64_t>(channels) * 2};
    cuuint32_t steps[Axes + 2] = {1};
    int last[Axes];  // of the places that are begun at, counted from the image's last
    for (int i = 0; i < Axes; ++i) {
        sizes[i + 1] = static_cast<cuuint64_t>(places[i]);
        apart[i + 1] = apart[i] * sizes[i + 1];
        steps[i + 1] = strides[i];
        last[i] = static_cast<int>(first[i] + (columns[i] - 1) * strides[i] + 1 - places[i]);
    }
    sizes[Axes + 1] = static_cast<cuuint64_t>(images);
    steps[Axes + 1] = 1;
    return encode(
               map, type, Axes + 2, const_cast<void*>(from), sizes, apart, first, last, kTileSteps, static_cast<cuuint32_t>(lines), steps,
               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// As measured on an H200, where all multiprocessors read.
inline double halved_cycles(int rows, int columns) { return rows == 64 ? 240 + 3.3 * columns : 215 + 3.85 * columns; }
