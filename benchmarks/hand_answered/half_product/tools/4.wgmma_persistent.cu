// wgmma, 128 x 256 of c at a time, a block for each multiprocessor: the next tile is loaded while this one is stored.
#include <algorithm>
#include <cstdint>
#include <cuda.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#define STAGES 4
#define RING 4

// --- any size, any alignment: mma.sync on tiles of 128 x 128, K in steps of 32 through a ring of stages -----------------------

namespace portable {

constexpr int kRows = 128, kColumns = 128, kInner = 32, kThreads = 256;
constexpr int kStageBytes = (kRows + kColumns) * kInner * 2;
constexpr int kBytes = STAGES * kStageBytes;

struct Sizes {
    int rows, columns, inner;
};

__device__ __forceinline__ uint32_t address_of(const void* at) { return uint32_t(__cvta_generic_to_shared(at)); }

// Eight halves of a row-major [height, width] matrix from (row, column) on into shared memory, zeros beyond its edges.
template <bool ALIGNED>
__device__ __forceinline__ void fetch(char* to, const __half* matrix, int row, int column, int height, int width) {
    if constexpr (ALIGNED) {  // width is a multiple of 8, so the eight are all inside or all outside
        const bool inside = row < height && column < width;
        const __half* from = inside ? matrix + int64_t(row) * width + column : matrix;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address_of(to)), "l"(from), "r"(inside ? 16 : 0)
                     : "memory");
    } else {
        __half* each = reinterpret_cast<__half*>(to);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const bool inside = row < height && column + i < width;
            each[i] = inside ? matrix[int64_t(row) * width + column + i] : __float2half(0.0f);
        }
    }
}

// Rows of 64 bytes, two to a line of all banks; rows of 256 bytes.
__device__ __forceinline__ int place_of_a(int row, int piece) { return row * 64 + (piece ^ (row >> 1 & 3)) * 16; }
__device__ __forceinline__ int place_of_b(int row, int piece) { return row * 256 + (piece ^ (row & 7)) * 16; }

template <bool ALIGNED>
__device__ __forceinline__ void fetch_stage(char* stage, const __half* a, const __half* b, Sizes n, int row, int column, int step) {
#pragma unroll
    for (int i = threadIdx.x; i < kRows * 4; i += kThreads)
        fetch<ALIGNED>(stage + place_of_a(i / 4, i % 4), a, row + i / 4, step + i % 4 * 8, n.rows, n.inner);
    char* const stage_b = stage + kRows * kInner * 2;
#pragma unroll
    for (int i = threadIdx.x; i < kInner * 16; i += kThreads)
        fetch<ALIGNED>(stage_b + place_of_b(i / 16, i % 16), b, step + i / 16, column + i % 16 * 8, n.inner, n.columns);
}

__device__ __forceinline__ void load(uint32_t (&to)[4], const char* from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address_of(from)) : "memory");
}
__device__ __forceinline__ void load_transposed(uint32_t (&to)[4], const char* from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address_of(from)) : "memory");
}
__device__ __forceinline__ void multiply(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// A warp's 64 x 32 of the tile: 4 x 4 products of m16n8k16 for each 16 of K.
__device__ __forceinline__ void multiply_stage(float (&sum)[4][4][4], const char* stage, int warp_row, int warp_column) {
    const int lane = threadIdx.x % 32;
    const char* const stage_b = stage + kRows * kInner * 2;
#pragma unroll
    for (int k = 0; k < kInner / 16; ++k) {
        uint32_t a[4][4], b[2][4];
#pragma unroll
        for (int m = 0; m < 4; ++m) load(a[m], stage + place_of_a(warp_row + m * 16 + lane % 16, k * 2 + lane / 16));
#pragma unroll
        for (int n = 0; n < 2; ++n)
            load_transposed(b[n], stage_b + place_of_b(k * 16 + lane % 16, warp_column / 8 + n * 2 + lane / 16));
#pragma unroll
        for (int m = 0; m < 4; ++m)
#pragma unroll
            for (int n = 0; n < 4; ++n) multiply(sum[m][n], a[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
    }
}

template <bool ALIGNED>
__global__ void __launch_bounds__(kThreads, 2)
product(const __half* __restrict__ a, const __half* __restrict__ b, __half* __restrict__ c, Sizes n, int tiles_down) {
    extern __shared__ __align__(128) char stages[];
    // Eight tiles of rows after one another, then the next tile of columns: what runs at a time shares its operands in L2.
    const int tiles_across = (n.columns + kColumns - 1) / kColumns, band = blockIdx.x / (8 * tiles_across);
    const int height = min(8, tiles_down - band * 8), within = blockIdx.x - band * 8 * tiles_across;
    const int row = (band * 8 + within % height) * kRows, column = within / height * kColumns;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warp_row = warp / 4 * 64, warp_column = warp % 4 * 32;
    const int steps = (n.inner + kInner - 1) / kInner;
    for (int s = 0; s < STAGES - 1; ++s) {
        if (s < steps) fetch_stage<ALIGNED>(stages + s * kStageBytes, a, b, n, row, column, s * kInner);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    float sum[4][4][4] = {};
    for (int step = 0; step < steps; ++step) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();  // this stage is there for all, and nobody reads the one before any more
        const int ahead = step + STAGES - 1;
        if (ahead < steps) fetch_stage<ALIGNED>(stages + ahead % STAGES * kStageBytes, a, b, n, row, column, ahead * kInner);
        asm volatile("cp.async.commit_group;" ::: "memory");
        multiply_stage(sum, stages + step % STAGES * kStageBytes, warp_row, warp_column);
    }
#pragma unroll
    for (int m = 0; m < 4; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int at_row = row + warp_row + m * 16 + half * 8 + lane / 4;
            if (at_row >= n.rows) continue;
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const int at = column + warp_column + j * 8 + lane % 4 * 2;
                __half* const to = c + int64_t(at_row) * n.columns + at;
                const __half2 two = __floats2half2_rn(sum[m][j][half * 2], sum[m][j][half * 2 + 1]);
                if constexpr (ALIGNED) {
                    if (at < n.columns) *reinterpret_cast<__half2*>(to) = two;
                } else {
                    if (at < n.columns) to[0] = __low2half(two);
                    if (at + 1 < n.columns) to[1] = __high2half(two);
                }
            }
        }
}

template <bool ALIGNED>
void launch_as(const __half* a, const __half* b, __half* c, Sizes n, cudaStream_t stream) {
    const int down = (n.rows + kRows - 1) / kRows, across = (n.columns + kColumns - 1) / kColumns;
    cudaFuncSetAttribute(product<ALIGNED>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
    product<ALIGNED><<<down * across, kThreads, kBytes, stream>>>(a, b, c, n, down);
}

void launch(const __half* a, const __half* b, __half* c, Sizes n, bool aligned, cudaStream_t stream) {
    if (aligned) launch_as<true>(a, b, c, n, stream);
    else launch_as<false>(a, b, c, n, stream);
}

}  // namespace portable

// Whether rows begin at multiples of 16 bytes, which copies of 16 bytes and TMA need.
static bool in_sixteens(const void* a, const void* b, const void* c, int64_t columns, int64_t inner) {
    return (uintptr_t(a) | uintptr_t(b) | uintptr_t(c)) % 16 == 0 && columns % 8 == 0 && inner % 8 == 0;
}

// --- wgmma on tiles that TMA brings: needs rows of multiples of 16 bytes ------------------------------------------------------

namespace hopper {

constexpr int kRows = 128, kInner = 64, kThreads = 384, kBytesA = kRows * kInner * 2;
template <int COLUMNS>
constexpr int kStageBytes = kBytesA + kInner * COLUMNS * 2;
template <int COLUMNS>
constexpr int kBytes = RING * kStageBytes<COLUMNS> + 1024 + 2 * RING * 8;

__device__ __forceinline__ uint32_t address_of(const void* at) { return uint32_t(__cvta_generic_to_shared(at)); }

__device__ __forceinline__ void wait(uint32_t barrier, uint32_t phase) {
    asm volatile("{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}"
                 ::"r"(barrier), "r"(phase) : "memory");
}
__device__ __forceinline__ void arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void load_box(uint32_t to, const CUtensorMap* map, int column, int row, uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
                 ::"r"(to), "l"(map), "r"(barrier), "r"(column), "r"(row) : "memory");
}

// Tiles of rows of 128 bytes, swizzled by 128 bytes, 1024 bytes from 8 rows to the next 8.
// a: rows of m along K. b: rows of k along N, and `next_block` bytes from 64 columns to the next 64.
__device__ __forceinline__ uint64_t descriptor(uint32_t tile, uint32_t next_block) {
    return uint64_t((tile & 0x3FFFF) >> 4) | uint64_t(next_block >> 4) << 16 | uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62;
}

// d[64, 256] = a[64, 16] * b[16, 256], and d of before where `adds`: a's rows lie along K, b's along N (the last operand).
__device__ __forceinline__ void multiply(float (&d)[128], uint64_t a, uint64_t b, int adds) {
    asm volatile(
        "{\n.reg .pred adds;\nsetp.ne.b32 adds, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
        "%128, %129, adds, 1, 1, 0, 1;\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
          "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
          "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]),
          "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]),
          "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]),
          "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]),
          "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]),
          "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]),
          "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
        : "l"(a), "l"(b), "r"(adds));
}
__device__ __forceinline__ void multiply(float (&d)[64], uint64_t a, uint64_t b, int adds) {
    asm volatile(
        "{\n.reg .pred adds;\nsetp.ne.b32 adds, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, adds, 1, 1, 0, 1;\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "l"(a), "l"(b), "r"(adds));
}

// One thread fills the ring: those of a tile after those of the tile before.
template <int COLUMNS>
__device__ __forceinline__ void fill(const CUtensorMap* map_a, const CUtensorMap* map_b, uint32_t ring, uint32_t full, uint32_t empty,
                                     int row, int column, int steps, int& stage, uint32_t& phase) {
    for (int step = 0; step < steps; ++step) {
        wait(empty + stage * 8, phase ^ 1);  // passes at once in the first round
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(full + stage * 8), "r"(kStageBytes<COLUMNS>) : "memory");
        const uint32_t to = ring + stage * kStageBytes<COLUMNS>;
        load_box(to, map_a, step * kInner, row, full + stage * 8);
#pragma unroll
        for (int n = 0; n < COLUMNS / 64; ++n)
            load_box(to + kBytesA + n * kInner * 128, map_b, column + n * 64, step * kInner, full + stage * 8);
        if (++stage == RING) stage = 0, phase ^= 1;
    }
}

// A warp group's 64 rows of the tile. The product of one stage is still under way while the next is waited for.
template <int COLUMNS>
__device__ __forceinline__ void consume(float (&sum)[COLUMNS / 2], uint32_t ring, uint32_t full, uint32_t empty, int group, int steps,
                                        int& stage, uint32_t& phase) {
    int before = -1;
    for (int step = 0; step < steps; ++step) {
        wait(full + stage * 8, phase);
        const uint32_t a = ring + stage * kStageBytes<COLUMNS> + group * 64 * 128, b = ring + stage * kStageBytes<COLUMNS> + kBytesA;
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int k = 0; k < kInner / 16; ++k) multiply(sum, descriptor(a + k * 32, 16), descriptor(b + k * 16 * 128, kInner * 128), step + k);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
        if (before >= 0 && threadIdx.x % 32 == 0) arrive(empty + before * 8);
        before = stage;
        if (++stage == RING) stage = 0, phase ^= 1;
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; ++i) asm volatile("" : "+f"(sum[i])::"memory");  // nobody reads them above this line
    if (before >= 0 && threadIdx.x % 32 == 0) arrive(empty + before * 8);
}

// Thread t of a warp group holds rows t/32*16 + t%32/4 (+8), of every eight columns t%4*2 (+1). Neighbours exchange one of two
// pairs, so that each stores 8 bytes and four lanes the 32 bytes of a sector.
template <int COLUMNS>
__device__ __forceinline__ void store(const float (&sum)[COLUMNS / 2], __half* __restrict__ c, int rows, int columns, int row, int column) {
    const int thread = threadIdx.x % 128, lane = thread % 32, odd = lane % 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int at_row = row + thread / 32 * 16 + half * 8 + lane / 4;
        __half* const to = c + int64_t(at_row) * columns;
#pragma unroll
        for (int j = 0; j < COLUMNS / 8; j += 2) {  // even lanes get columns of block j, odd ones of block j + 1
            const __half2 first = __floats2half2_rn(sum[j * 4 + half * 2], sum[j * 4 + half * 2 + 1]);
            const __half2 second = __floats2half2_rn(sum[j * 4 + 4 + half * 2], sum[j * 4 + 4 + half * 2 + 1]);
            const uint32_t low = *reinterpret_cast<const uint32_t*>(&first), high = *reinterpret_cast<const uint32_t*>(&second);
            const uint32_t got = __shfl_xor_sync(0xffffffffu, odd ? low : high, 1);
            const uint2 four = odd ? make_uint2(got, high) : make_uint2(low, got);
            const int at = column + (j + odd) * 8 + lane / 2 % 2 * 4;
            if (at_row < rows && at < columns) *reinterpret_cast<uint2*>(to + at) = four;
        }
    }
}

// Where tile `index` is: 16 tiles of rows after one another, then the next tile of columns, so that what runs at a time shares
// its operands in L2.
template <int COLUMNS>
__device__ __forceinline__ int2 place_of(int index, int down, int across) {
    const int band = index / (16 * across), height = min(16, down - band * 16), within = index - band * 16 * across;
    return make_int2((band * 16 + within % height) * kRows, within / height * COLUMNS);
}

template <int COLUMNS>
__global__ void __launch_bounds__(kThreads, 1)
product(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b, __half* __restrict__ c, int rows, int columns,
        int inner, int down, int across) {
    extern __shared__ char dynamic[];
    const uint32_t ring = (address_of(dynamic) + 1023) / 1024 * 1024;  // the swizzle counts from there
    const uint32_t full = ring + RING * kStageBytes<COLUMNS>, empty = full + RING * 8;
    if (threadIdx.x == 0) {
        for (int i = 0; i < RING; ++i) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(full + i * 8) : "memory");
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 8;" ::"r"(empty + i * 8) : "memory");  // a lane of each consuming warp
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    const int steps = (inner + kInner - 1) / kInner, group = threadIdx.x / 128;
    int stage = 0;
    uint32_t phase = 0;
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0)
            for (int tile = blockIdx.x; tile < down * across; tile += gridDim.x) {
                const int2 place = place_of<COLUMNS>(tile, down, across);
                fill<COLUMNS>(&map_a, &map_b, ring, full, empty, place.x, place.y, steps, stage, phase);
            }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    for (int tile = blockIdx.x; tile < down * across; tile += gridDim.x) {
        const int2 place = place_of<COLUMNS>(tile, down, across);
        float sum[COLUMNS / 2];  // the first product of a tile sets it
        consume<COLUMNS>(sum, ring, full, empty, group - 1, steps, stage, phase);
        store<COLUMNS>(sum, c, rows, columns, place.x + (group - 1) * 64, place.y);
    }
}

using Encode = CUresult(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                        const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// The driver's function, nullptr where it has none; its pointer comes from the runtime, so no library is linked.
Encode* encoder() {
    static Encode* const found = [] {
        void* entry = nullptr;
        cudaDriverEntryPointQueryResult result;
        const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &result);
        return error == cudaSuccess && result == cudaDriverEntryPointSuccess ? reinterpret_cast<Encode*>(entry) : nullptr;
    }();
    return found;
}

// Boxes of [box_rows, 64] of a row-major [height, width], swizzled by 128 bytes, zeros beyond its edges.
bool encode(CUtensorMap* map, const __half* matrix, int height, int width, uint32_t box_rows) {
    const cuuint64_t sizes[] = {cuuint64_t(width), cuuint64_t(height)}, strides[] = {cuuint64_t(width) * 2};
    const cuuint32_t box[] = {64, box_rows}, steps[] = {1, 1};
    return encoder() && encoder()(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, const_cast<__half*>(matrix), sizes, strides, box, steps,
                                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

int multiprocessors() {
    int device = 0, count = 1;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
    return count;
}

// Tiles of 256 columns have fewer operands to load for a product, but are too few for the device where the result is small.
bool wide_tiles(int rows, int columns) {
    const int64_t down = (rows + kRows - 1) / kRows;
    return down * ((columns + 255) / 256) >= 2 * multiprocessors();
}

// False where the driver takes no such map; then nothing was launched.
template <int COLUMNS>
bool launch(const __half* a, const __half* b, __half* c, int rows, int columns, int inner, cudaStream_t stream) {
    CUtensorMap map_a, map_b;
    if (!encode(&map_a, a, rows, inner, kRows) || !encode(&map_b, b, inner, columns, kInner)) return false;
    const int down = (rows + kRows - 1) / kRows, across = (columns + COLUMNS - 1) / COLUMNS;
    cudaFuncSetAttribute(product<COLUMNS>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes<COLUMNS>);
    const int blocks = std::min(down * across, multiprocessors());
    product<COLUMNS><<<blocks, kThreads, kBytes<COLUMNS>, stream>>>(map_a, map_b, c, rows, columns, inner, down, across);
    return true;
}

}  // namespace hopper

extern "C" void half_product_float16(
    const __half* a, const __half* b, __half* c, int64_t rows, int64_t columns, int64_t inner, cudaStream_t stream) {
    const bool aligned = in_sixteens(a, b, c, columns, inner);
    if (aligned) {
        const auto launch = hopper::wide_tiles(int(rows), int(columns)) ? hopper::launch<256> : hopper::launch<128>;
        if (launch(a, b, c, int(rows), int(columns), int(inner), stream)) return;
    }
    portable::launch(a, b, c, {int(rows), int(columns), int(inner)}, aligned, stream);
}
