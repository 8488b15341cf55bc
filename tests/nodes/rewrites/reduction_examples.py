"""Reductions over a block as other people write them, and rows that are kept or shared: what stands between a thread's sum and everybody's total."""

from __future__ import annotations

from tests.nodes.rewrites.examples import X_Y, Example, kernel

WARP_DOWN = """
__inline__ __device__ float warpReduceSum(float val) {
  for (int offset = 16; offset > 0; offset /= 2) val += __shfl_down_sync(0xffffffff, val, offset);
  return val;
}
"""
FASTER_TRANSFORMER = """
#define FINAL_MASK 0xffffffff
template <typename T>
__inline__ __device__ T warpReduceSum(T val) {
#pragma unroll
  for (int mask = 16; mask > 0; mask >>= 1) val += __shfl_xor_sync(FINAL_MASK, val, mask, 32);
  return val;
}
template <typename T>
__inline__ __device__ T blockReduceSum(T val) {
  static __shared__ T shared[32];
  int lane = threadIdx.x & 0x1f;
  int wid = threadIdx.x >> 5;
  val = warpReduceSum<T>(val);
  if (lane == 0) shared[wid] = val;
  __syncthreads();
  val = (threadIdx.x < (blockDim.x / 32.f)) ? shared[lane] : (T)(0.0f);
  val = warpReduceSum<T>(val);
  return val;
}
"""
HARRIS = f"""{WARP_DOWN}
__inline__ __device__ float blockReduceSum(float val) {{
  static __shared__ float shared[32];
  int lane = threadIdx.x % warpSize;
  int wid = threadIdx.x / warpSize;
  val = warpReduceSum(val);
  if (lane == 0) shared[wid] = val;
  __syncthreads();
  val = (threadIdx.x < blockDim.x / warpSize) ? shared[lane] : 0;
  if (wid == 0) val = warpReduceSum(val);
  return val;
}}
"""
TOLD = """
  if (threadIdx.x == 0) {
    total = fmaxf(sqrtf(sum), 1e-6f);
  }
  __syncthreads();
"""
IN_THE_SLOTS = """
  __shared__ float partial[32];
  for (int offset = 16; offset > 0; offset >>= 1) {
    sum += __shfl_down_sync(0xffffffffu, sum, offset);
  }
  int lane = threadIdx.x % 32;
  int warp = threadIdx.x / 32;
  if (lane == 0) { partial[warp] = sum; }
  __syncthreads();
  if (warp == 0) {
    float v = (lane < (blockDim.x + 31) / 32) ? partial[lane] : 0.0f;
    for (int offset = 16; offset > 0; offset >>= 1) v += __shfl_down_sync(0xffffffffu, v, offset);
    if (lane == 0) partial[0] = v;
  }
  __syncthreads();
  if (threadIdx.x == 0) total = fmaxf(sqrtf(partial[0]), 1e-6f);
  __syncthreads();
"""
ONE_THREAD = """
  __shared__ float partial[8];
  for (int offset = 16; offset > 0; offset >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    float all = 0.0f;
    for (int w = 0; w < 8; w++) all += partial[w];
    total = fmaxf(sqrtf(all), 1e-6f);
  }
  __syncthreads();
"""
TWICE = """
  __shared__ float partial[32];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  sum = warpReduceSum(sum);
  if (lane == 0) partial[warp] = sum;
  __syncthreads();
  if (warp == 0) {
    sum = lane < blockDim.x / 32 ? partial[lane] : 0.0f;
    sum = warpReduceSum(sum);
    if (lane == 0) total = fmaxf(sqrtf(sum), 1e-6f);
  }
  __syncthreads();
"""
TWICE += "  sum = total + threadIdx.x;" + TWICE[TWICE.index("\n  sum = warp") :]
ROUNDS = """
  for (int k = 0; k < 3; ++k) {
    const float s = blockReduceSum<float>(sum);
    if (threadIdx.x == 0) total = s + columns + 1;
    if (columns == 7) continue;
    __syncthreads();
  }
  __syncthreads();
"""


def norm(reduction: str, head: str = "") -> str:
    body = f"""\
  __shared__ float total;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) {{
    const float v = x[blockIdx.x * columns + i];
    sum += v * v;
  }}
{reduction}
  for (int i = threadIdx.x; i < columns; i += blockDim.x) y[blockIdx.x * columns + i] = x[blockIdx.x * columns + i] / total;"""
    return kernel(body, parameters=f"{X_Y}, int columns", head=head)


CALL = "  sum = blockReduceSum<float>(sum);" + TOLD
LARGEST = FASTER_TRANSFORMER.replace("val += ", "val = fmaxf(val, ").replace(", mask, 32)", ", mask, 32))")
TREE = kernel("""
  __shared__ float partial[256];
  float sum = 0.0f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += fabsf(x[blockIdx.x * n + i]);
  partial[threadIdx.x] = sum;
  __syncthreads();
  for (int s = blockDim.x / 2; s > 0; s >>= 1) {
    if (threadIdx.x < s) partial[threadIdx.x] += partial[threadIdx.x + s];
    __syncthreads();
  }
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = x[blockIdx.x * n + i] / partial[0];""")
UNROLLED = kernel("""
  __shared__ float sdata[blockSize];
  unsigned int tid = threadIdx.x;
  float sum = 0.0f;
  for (int i = tid; i < n; i += blockSize) sum += x[blockIdx.x * n + i] * x[blockIdx.x * n + i];
  sdata[tid] = sum;
  __syncthreads();
  if (blockSize >= 512) { if (tid < 256) sdata[tid] += sdata[tid + 256]; __syncthreads(); }
  if (blockSize >= 256) { if (tid < 128) sdata[tid] += sdata[tid + 128]; __syncthreads(); }
  if (blockSize >= 128) { if (tid < 64) sdata[tid] += sdata[tid + 64]; __syncthreads(); }
  if (tid < 32) { sdata[tid] += sdata[tid + 32]; __syncwarp(); }
  for (int d = 16; d > 0; d /= 2) { if (tid < d) sdata[tid] += sdata[tid + d]; __syncthreads(); }
  const float scale = rsqrtf(sdata[0] / n + 1e-5f);
  for (int i = tid; i < n; i += blockSize) y[blockIdx.x * n + i] = x[blockIdx.x * n + i] * scale;""",
    "plain<256><<<rows, 256, 0, stream>>>(x, y, n);", head="template <unsigned int blockSize>",
)  # fmt: skip
SLOTS = kernel("""
  extern __shared__ float shared[];
  float* maxvals = shared;
  float* sumvals = &shared[blockDim.x / 32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float most = -INFINITY;
  for (int i = threadIdx.x; i < n; i += blockDim.x) most = fmaxf(most, x[blockIdx.x * n + i]);
  for (int offset = 16; offset > 0; offset /= 2) most = fmaxf(most, __shfl_down_sync(0xffffffff, most, offset));
  if (lane == 0) maxvals[warp] = most;
  __syncthreads();
  if (threadIdx.x == 0) {
    float val = maxvals[0];
    for (int i = 1; i < blockDim.x / 32; i++) val = fmaxf(val, maxvals[i]);
    maxvals[0] = val;
  }
  __syncthreads();
  float offset = maxvals[0];
  float sum = 0.0f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += expf(x[blockIdx.x * n + i] - offset);
  sum = warpReduceSum(sum);
  if (lane == 0) sumvals[warp] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    float val = sumvals[0];
    for (int i = 1; i < blockDim.x / 32; ++i) val += sumvals[i];
    sumvals[0] = val;
  }
  __syncthreads();
  float logsum = logf(sumvals[0]);
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = x[blockIdx.x * n + i] - offset - logsum;""",
    "plain<<<rows, 256, 16 * sizeof(float), stream>>>(x, y, n);", head=WARP_DOWN,
)  # fmt: skip
START = "float sum = 0.0f;"
OURS = TREE.replace("__global__", "template <class T> T ceil_div(T a, T b) { return (a + b - 1) / b; }\n__global__").replace(
    "<<<rows,", "<<<ceil_div(rows, (int64_t)1),"
)  # fmt: skip
TEMPLATES = kernel("""
  const int row = blockIdx.x + gridDim.x * blockIdx.y;
  x += row * n;
  y += row * n;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < n; i += width) sum += x[i] * x[i];
  for (int d = 16; d > 0; d >>= 1) sum += __shfl_xor_sync(0xffffffff, sum, d, 32);
  if constexpr (width > WARP) {
    static_assert(width <= 1024, "unexpected width");
    __shared__ float slots[32];
    if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0.0f;
    if (threadIdx.x % 32 < width / 32) sum = slots[threadIdx.x % 32];
    for (int d = 16; d > 0; d >>= 1) sum += __shfl_xor_sync(0xffffffff, sum, d, 32);
  }
  const float scale = rsqrtf(sum / n + 1e-5f);
  for (int i = threadIdx.x; i < n; i += width) y[i] = x[i] * scale * w[i];""", """\
const dim3 blocks(rows, 1, 1);
  if (n < 64) {
    plain<WARP><<<blocks, WARP, 0, stream>>>(x, w, y, n);
  } else {
    plain<256><<<blocks, dim3(256, 1, 1), 0, stream>>>(x, w, y, n);
  }""", "const float* x, const float* w, float* y, int n", "#define WARP 32\ntemplate <int width>", "const float* x, const float* w, float* y",
)  # fmt: skip
TO_ROWS = "single_assignment symbolic_block_size canonicalize_reductions vectorize "
PART = "  double part = double(sum);\n  part = blockReduceSum<double>(part);"
LOG = "logf(sumvals[0]);"
THE_SAME = "val = warpReduceSum<T>(val);\n  return"

REDUCTIONS = {
    "faster transformer": Example("canonicalize_reductions", norm(CALL, FASTER_TRANSFORMER), (
        ("FINAL_MASK 0xffffffff", "FINAL_MASK 0x0000ffff"), ("mask = 16", "mask = 8"), ("mask > 0", "mask > 1"),
        ("val, mask, 32)", "val, mask, 16)"), ("val += __shfl", "val -= __shfl"), ("(T)(0.0f)", "(T)(1.0f)"),
        ("shared[32]", "shared[4]"), ("shared[32]", "shared[2][16]"), ("shared[wid] = val", "shared[lane] = val"),
        ("(blockDim.x / 32.f)", "(blockDim.x / 64.f)"), ("  __syncthreads();\n  val", "  val"),
        ("  __syncthreads();\n  val", "  if (lane == 0) __syncthreads();\n  val"), ("static __shared__ T", "static __shared__ double"),
        (THE_SAME, "val = warpReduceSum<T>(val) / 2;\n  return"), (THE_SAME, f'asm volatile("");\n  {THE_SAME}'),
        (THE_SAME, "val = val > 0 ? warpReduceSum<T>(val) : val;\n  return"),
        ("rows, 256,", "rows, dim3(32, 8),"), ("rows, 256,", "rows, 48,"), ("rows, 256,", "rows, 2048,"),
    ), ("sum_of_block = block_sum<0>(sum);",)),
    "harris": Example("canonicalize_reductions", norm(CALL.replace("<float>", ""), HARRIS), (
        ("if (threadIdx.x == 0) {", "if (threadIdx.x < 32) {"),  # who has it besides the first is theirs to know
        ("sum = blockReduceSum(sum);", "sum += blockReduceSum(sum);"),
        ("sum = blockReduceSum(sum);", "if (columns > 5) sum = blockReduceSum(sum);"),
        ("float blockReduceSum(float val)", "double blockReduceSum(double val)"),
    )),
    "in the slots": Example("canonicalize_reductions", norm(IN_THE_SLOTS), (
        ("partial[warp] = sum;", "partial[warp] = sum + 1;"), ("if (warp == 0) {", "if (warp == 9) {"),
        ("sqrtf(partial[0])", "sqrtf(partial[0] + partial[1])"),  # what is left in the slots
        ("sqrtf(partial[0])", "sqrtf(partial[0] + sum)"),  # a part of the sum
    )),
    "one thread": Example("canonicalize_reductions", norm(ONE_THREAD)),
    "twice through the same slots": Example("canonicalize_reductions", norm(TWICE, WARP_DOWN), reads=("block_sum<0>(sum)", "block_sum<1>(sum)")),
    "the largest of doubles": Example("canonicalize_reductions", norm(
        PART + TOLD.replace("sqrtf(sum)", "sqrtf(float(part))"), LARGEST.replace("fmaxf(", "fmax(").replace("(T)(0.0f)", "shared[0]")
    ).replace("sum += v * v;", "sum = fmaxf(sum, v * v);"), ((PART, PART.replace("double", "__half")), (PART, PART.replace("double", "T")))),
    "rounds that are kept apart": Example(
        "canonicalize_reductions", norm(ROUNDS, FASTER_TRANSFORMER.replace("  if (lane == 0) shared", "  __syncthreads();\n  if (lane == 0) shared")),
    ),
    "rounds, for the first warp": Example("canonicalize_reductions", norm(ROUNDS.replace("<float>", ""), HARRIS), ((
        "const float s = blockReduceSum(sum);\n    if (threadIdx.x == 0) total = s +",
        "sum = blockReduceSum(sum);\n    if (threadIdx.x == 0) total = sum +",  # others go on with what they have
    ),)),
    "tree": Example("canonicalize_reductions", TREE, (
        ("rows, 256,", "rows, n,"), ("/ partial[0]", "/ partial[1]"), ("+= partial[threadIdx.x + s]", "+= 2 * partial[threadIdx.x + s]"),
        ("int s = blockDim.x / 2;", "int s = 16;"),  # 32 of the block's values
        ("if (threadIdx.x < s)", "if (threadIdx.x < s && threadIdx.x + s < n)"),  # those below n
        ("  plain<<<", "  auto run = &plain; run<<<"), ("plain<<<rows, 256,", "dim3 b(256); b.x = n; plain<<<rows, b,"),
    )),
    "unrolled tree": Example("canonicalize_reductions", UNROLLED, (
        ("<256><<<rows, 256,", "<256><<<rows, n,"), ("<256><<<rows, 256,", "<256><<<rows, 512,"), ("[tid + 128]; __syncthreads();", "[tid + 128];"),
        ("sdata[tid + 64]", "sdata[tid + 63]"), ("  const float scale", "  y[tid] = sdata[tid];\n  const float scale"),
        ("  sdata[tid] = sum;", "  sdata[tid + 1] = sum;"),
    )),
    "slots side by side in one array": Example("canonicalize_reductions", SLOTS, (
        (LOG, LOG.replace(";", " + maxvals[0];")), (LOG, LOG.replace(";", " + shared[1];")),
    ), ("block_max<0>(most)", "block_sum<1>(sum)")),
    "a maximum that is changed": Example("canonicalize_reductions", SLOTS.replace(
        "float offset =", "float* late = shared;\n  late[0] = 1.0f;\n  float offset ="), reads=("maxvals[0] = val;",)),
    "names of ours": Example("free_reserved_names", OURS, reads=("ceil_div_of_file(rows",)),
    "rows in registers": Example("canonicalize_reductions vectorize cache_row_in_registers", TREE, (
        (START, START + " __shared__ float mine[1]; mine[0] = n;"), (START, START + " if (threadIdx.x < 7) sum = n;"), (START, "float sum = 1.0f;"),
        ("const int first", "if (n > 9) break;\n    const int first"),  # what is not loaded is missing later on
    ), ("plain_in_registers",)),
    "rows of templates": Example(TO_ROWS + "cache_row_in_registers", TEMPLATES, (("blocks(rows, 1, 1)", "blocks(1, rows, 1)"),)),
    "clusters": Example("canonicalize_reductions vectorize cache_row_in_registers programmatic_dependent_launch cluster_split", TREE, reads=("row_cluster, true,",)),
    "rows over a cluster": Example("canonicalize_reductions cluster_split", TREE, (
        (START, START + " if (threadIdx.x == 0) y[blockIdx.x * n] = 0.0f;"), ("sum += fabsf(x", "__syncwarp(); sum += fabsf(x"), (START, "float sum = 1.0f;"),
        (START, START + " __shared__ float mine; mine = 1.0f;"), (START, START + " if (threadIdx.x % 32 == 0) sum = 1.0f;"), (START, "float sum = y[blockIdx.x * n];"),
        ("y[blockIdx.x * n + i] =", "y[(blockIdx.x + gridDim.x) * n + i] ="), (START, START + " if (n == 0) return;"),
    )),
}  # fmt: skip
