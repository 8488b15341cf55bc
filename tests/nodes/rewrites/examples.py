"""A CUDA kernel or more for each rewrite: where it applies, what it then writes, and what it must leave alone.

All have the entry that `emulate/texts.py` asks for, so that what comes out is run beside what went in.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Example:
    steps: str
    """All of them apply, one after the other."""
    text: str
    but: tuple[tuple[str, str], ...] = ()
    """(old, new): with the one in place of the other in front of the last step, that step refuses."""
    reads: tuple[str, ...] = ()
    """What is in the text afterwards."""
    flags: tuple[str, ...] = ()


KERNEL = """\
#include <cuda_fp16.h>
#include <stdint.h>
{head}
__global__ void plain({parameters}) {{
{body}
}}

extern "C" void fuzz_{dtype}({arrays}, int64_t rows, int64_t n, cudaStream_t stream) {{
  {launch}
}}
"""
X_Y = "const float* x, float* y"
EACH = "  for (int i = threadIdx.x; i < n; i += blockDim.x) "
FLAT = "plain<<<(n + 255) / 256, 256, 0, stream>>>(x, y, n);"
AT = "  int i = blockIdx.x * blockDim.x + threadIdx.x;\n"


def kernel(
    body: str, launch: str = "plain<<<rows, 256, 0, stream>>>(x, y, n);", parameters: str = f"{X_Y}, int n", head: str = "",
    arrays: str = X_Y,
) -> str:  # fmt: skip
    dtype = "float16" if "__half*" in arrays else "float32"
    return KERNEL.format(
        body=body.strip("\n"), launch=launch, parameters=parameters, head=head, arrays=arrays, dtype=dtype
    )


ROWS = kernel("""
  const int row = blockIdx.x;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const float f = s[row];
    y[row * n + i] = __float2half(__half2float(x[row * n + i]) * f);
  }""", "plain<<<rows, 256, 0, stream>>>(x, s, y, n);", "const __half* x, const float* s, __half* y, int n", arrays="const __half* x, const float* s, __half* y",
)  # fmt: skip
BY_ELEMENTS = kernel(
    "  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) y[i] = 2 * x[i];", FLAT
)
OTHER_SHAPE = ("plain<<<rows, 256,", "dim3 b(256); b.x = n; plain<<<rows, b,")
HIDDEN = 'extern "C"'
"""In front of it stands what hides a launch."""
TURN = kernel("""
  const int row = blockIdx.x;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const float a = angles[i];
    turn(y + row * 2 * n, x + row * 2 * n, a, i, row);
  }""", "plain<float><<<rows, 256, 0, stream>>>(x, w, y, n / 2);", "const T* x, const float* angles, T* y, int n", """
template <typename scalar, int STEP = 2>
__device__ inline void turn(scalar* __restrict__ to, const scalar* from, const float angle, int place, int64_t shift) {
  // neighbours
  const int first = STEP * place;
  const float a = from[first] * angle;
  float row = from[first + 1];
  row += a;
  to[first] = a - row;
  to[first + 1] = a + shift;
}

template <typename T>""", "const float* x, const float* w, float* y",
)  # fmt: skip
TURNS = "turn(y + row * 2 * n, x + row * 2 * n, a, i, row);"
ADDED = "  row += a;"
BRANCHED = kernel("""
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    int from, to;
    if (FLIP) {
      from = n + i;
      to = i;
    } else {
      from = i;
      to = n + i;
    }
    y[to] = x[from];
  }""", """\
if (rows > 2) {
    plain<true><<<1, 256, 0, stream>>>(x, y, n / 2);
  } else {
    plain<false><<<1, 256, 0, stream>>>(x, y, n / 2);
  }""", head="template <bool FLIP>",
)  # fmt: skip
ONE_SIDE = BRANCHED.replace("plain<false>", "plain<true>").replace(
    "    if (FLIP) {", "    if (n > 7) from = to = 0;\n    else if (FLIP) {"
)
SET_LATER = kernel(
    EACH + "{\n    int from, to;\n    from = n + i;\n    to = i;\n    y[to] = x[from];\n  }",
    "plain<<<1, 256, 0, stream>>>(x, y, n / 2);",
)
SET = "    from = n + i;\n    to = i;"
LOOP = kernel("  KERNEL_LOOP(at, n) {\n    y[at] = x[at] * 2.0f;\n  }", "plain<<<4, 256, 0, stream>>>(x, y, rows * n);", head=(
    "#define KERNEL_LOOP(i, n) for (long i = (long)blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += (long)blockDim.x * gridDim.x)\n"
))  # fmt: skip
LAUNCHED = kernel(AT + "  if (i < n) y[i] = (T)((float)x[i] * 2.0f);", "RUN(float, 1'000'000);", "const T* x, T* y, long n", r"""
#define CEIL(a, b) (((a) + (b)-1) / (b))
#define THREADS 256
#define LAUNCH(T, threads, ...) \
  do { \
    plain<T><<<CEIL(rows * n, threads), threads, 0, stream>>>(x, ##__VA_ARGS__); \
  } while (0)
#define RUN(T, by) \
  if (rows * n < by) {  \
    LAUNCH(T, THREADS, y, rows * n); \
  }

template <typename T>""")  # fmt: skip
WIDTH = kernel(
    "  for (int i = threadIdx.x; i < n; i += width) y[i] = x[i];", "const int width = 128;\n  plain<<<rows, width, 0, stream>>>(x, y, n, width);",
    f"{X_Y}, int n, int width",
)  # fmt: skip
CONSTANT = kernel("""
  if constexpr (W > 32) y[0] = 1;
  const int warps = W / 32;
  __shared__ float sums[warps];
  for (int i = threadIdx.x + 1; i < n; i += W) y[i] = x[i] * (W + warps);""", "plain<256><<<rows, 256, 0, stream>>>(x, y, n);", head="template <int W>",
)  # fmt: skip
MATHS = kernel("""
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const double d = x[i];
  const long m = n / sizeof(float);
  const float s = x[i] * x[i] + 1.0f, t = 30.0f * tanhf(s - 1.0f), u = 0.5f * x[i] * (1.0f + tanhf(x[i]));
  y[i] = expf(-s) / s + t + u + m + d / (1 + d * d);""", FLAT,
)  # fmt: skip
CHOICES = kernel("""
    const float b = w != nullptr && row > 0 ? w[i] : 0.0f;
    const int64_t from = index[row];
    const bool wanted = mask[row * n + i] != 0;
    const float t = wanted ? x[(int64_t)from * n + i] : 0.0f;
    if (x[row * n + i] > 0) y[row * n + i] = t + b; else if (row > 1) y[row * n + i] = b; else y[row * n + i] = 0;
    if (from > 0) v[row * n + i] = t;
  }""".replace("\n    const float b", "\n  const int64_t row = blockIdx.x;\n  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {\n    const float b", 1),
    "plain<<<rows, 64, 0, stream>>>(x, w, mask, index, y, v, rows, n);",
    "const float* x, const float* w, const uint8_t* mask, const int64_t* index, float* y, float* v, int64_t rows, int64_t n",
    arrays="const float* x, const float* w, const uint8_t* mask, const int64_t* index, float* y, float* v",
)  # fmt: skip
FIELDS = kernel("""
  float2 sums = make_float2(0.0f, 0.0f);
  __shared__ float part[256];
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const float v = x[blockIdx.x * n + i];
    sums.x += v;
    sums.y += v * v;
  }
  part[threadIdx.x] = sums.x + sums.y;
  __syncthreads();
  if (threadIdx.x == 0) for (int t = 0; t < blockDim.x; ++t) y[blockIdx.x] += part[t];""")
WARP_A_ROW = kernel("""
  const int lane = threadIdx.x % WARP, row = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
  if (row >= rows) return;
  float sum = 0.0f;
  for (int i = lane; i < n; i += WARP) sum += fabsf(x[row * n + i]);
  for (int m = 16; m > 0; m /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, m);
  for (int i = lane; i < n; i += WARP) y[row * n + i] = x[row * n + i] / sum;""", "plain<<<(rows + 7) / 8, 256, 0, stream>>>(x, y, n, rows);",
    f"{X_Y}, int n, int rows", "#define WARP 32",
)  # fmt: skip
LARGEST = kernel("""
  __shared__ float best[256];
  __shared__ int place[256];
  float largest = -1.0f;
  int at = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const float v = x[blockIdx.x * n + i];
    if (v > largest) {
      largest = v;
      at = i;
    }
  }
  best[threadIdx.x] = largest;
  place[threadIdx.x] = at;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int t = 0; t < blockDim.x; ++t) if (best[t] > largest) { largest = best[t]; at = place[t]; }
  y[blockIdx.x] = at;""")
GATHERED = kernel("""
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const int row = i / columns, token = index[row];
  y[i] = x[token * columns + i % columns] + w[i % columns];""", "plain<<<(rows * n + 255) / 256, 256, 0, stream>>>(x, w, index, y, rows * n, n);",
    "const float* x, const float* w, const int64_t* index, float* y, int count, int columns",
    arrays="const float* x, const float* w, const int64_t* index, float* y",
)  # fmt: skip
LINE = kernel(f"""
  __shared__ float line[1100];
{EACH}line[i] = x[blockIdx.x * n + i];
  __syncthreads();
{EACH}y[blockIdx.x * n + i] = line[i] * line[n - 1 - i];
  __syncthreads();
{EACH}y[blockIdx.x * n + i] += line[i];""")
FOURS = kernel(
    """
  constexpr int kEach = 8 / sizeof(__half);
  const int first = (blockIdx.x * blockDim.x + threadIdx.x) * kEach;
  if (first + kEach > n) return;
  float kept[kEach];
#pragma unroll
  for (int j = 0; j < kEach; ++j) kept[j] = 0;
  for (int j = 0; j < 4; ++j) {
    const float v = kept[j] + 1;
    y[first + j] = v;
  }""",
    "plain<<<(rows * n + 1023) / 1024, 256, 0, stream>>>(y, rows * n);",
    "__half* y, int n",
    arrays="__half* y",
)
STORED = "y[first + j] = v;"
FROM_ROWS = kernel("""
  constexpr int kEach = 8 / sizeof(__half);
  const int first = (blockIdx.x * blockDim.x + threadIdx.x) * kEach;
  if (first + kEach > n) return;
  float kept[kEach];
#pragma unroll
  for (int j = 0; j < kEach; ++j) kept[j] = (float)x[first + j] / 2;
  for (int j = 0; j < 4; ++j) y[first + j] = kept[j] + (float)__ldg(w + j);""", "plain<<<(rows * n + 1023) / 1024, 256, 0, stream>>>(x, w, y, rows * n);",
    "const __half* x, const __half* w, __half* y, int n", arrays="const __half* x, const __half* w, __half* y",
)  # fmt: skip
COLUMNS = kernel(
    """
  const int64_t row = blockIdx.x;
  const int64_t packs = n / 4;
  const float* from = x + row * n;
  for (int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
    const float value = i == 0 ? from[0] : from[i];
    y[row * stride + i * 4] = value + *(from + i);
  }""",
    "plain<<<rows, 256, 0, stream>>>(x, y, n, n);",
    f"{X_Y}, int64_t n, int64_t stride",
)
TAIL = kernel("""
  const T* from = x + blockIdx.x * n;
  constexpr int kLanes = 16 / sizeof(T);
  const int64_t packs = n / kLanes;
  const Pack<T>* packed = reinterpret_cast<const Pack<T>*>(from);
  Pack<T>* row = reinterpret_cast<Pack<T>*>(y + blockIdx.x * n);
  for (int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
    const Pack<T> v = packed[i];
    Pack<T> more;
    for (int lane = 0; lane < kLanes; ++lane) more.lane[lane] = v.lane[lane] + 1;
    row[i] = more;
  }
  const int64_t step = static_cast<int64_t>(blockDim.x) * kLanes;
  for (int64_t i = n - n % step + threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = from[i] + 1;""", """\
using T = float;
  const int64_t lanes = 16 / sizeof(T);
  const bool aligned = n % lanes == 0 && (reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(y)) % 16 == 0;
  if (aligned) plain<float><<<rows, 128, 0, stream>>>(x, y, n);
  else one_by_one<<<rows, 128, 0, stream>>>(x, y, n);""", "const T* x, T* y, int64_t n", """
template <typename T>
struct alignas(16) Pack {
  T lane[16 / sizeof(T)];
};
__global__ void one_by_one(const float* x, float* y, int64_t n) {
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = x[blockIdx.x * n + i] + 1;
}

template <typename T>""")  # fmt: skip
ROUNDS = (
    ("float s = 0, w = 1;", "s += w * v; w = -w;"), ("float s = 0; int c = 4;", "if (c-- > 0) s += v;"),
    ("float s = 0; bool first = true;", "if (first) { s = v; first = false; }"), ("float s = 0;", "if (v > 0) s = v;"),
    ("float p = 0, s = 0;", "s += fabsf(v - p); p = v;"), ("unsigned s = 7;", "s ^= (unsigned)v; s *= 16777619u;"),
    ("float s = 0;", "s = fmaf(s, 0.9f, v);"), ("float s = 0; int c = 0;", "s += v * x[c]; ++c;"), ("float s = 0; int c = 0;", "step(s, c, v);"),
)  # fmt: skip
"""State that tells one round of a thread from another."""


def rounds(start: str, step: str, share: str = "s") -> str:
    head = "__device__ void step(float& s, int& c, float v) {\n  s += (c % 2) ? v : -v;\n  ++c;\n}\n"
    body = f"""
  __shared__ float part[256];
  {start}
  for (int i = threadIdx.x; i < n; i += blockDim.x) {{
    const float v = x[blockIdx.x * n + i];
    {step}
  }}
  part[threadIdx.x] = {share};
  __syncthreads();
  if (threadIdx.x == 0) for (int t = 0; t < blockDim.x; ++t) y[blockIdx.x] += part[t];"""
    return kernel(body, head=head)


VECTORS = {
    "vectorize": Example("vectorize", ROWS, (
        ("i += blockDim.x", "i += 2 * blockDim.x"), ("s[row];", "s[row];\n    if (f == 0) continue;"),
        ("x[row * n + i]) * f", "x[row * n + i]) * f * threadIdx.x"),
        (HIDDEN, f"#define OTHER plain<<<1, 7, 0, stream>>>(x, s, y, n)\nvoid other() {{ OTHER; }}\n{HIDDEN}"),
        (HIDDEN, f"void other() {{ void* pointer = (void*)plain; }}\n{HIDDEN}"), (HIDDEN, f"__global__ void plain(const int* x) {{}}\n{HIDDEN}"),
    ), ("n % PACK == 0", "store_lanes(&y[", "[&](auto lanes)")),
    "elements of the whole": Example("vectorize", BY_ELEMENTS.replace("y[i] =", "(y[i]) ="), reads=("store_lanes(&y[first], y_pack);",)),
    "a guard": Example("vectorize", kernel(AT + "  int all = n * 2;\n  if (i < all) {\n    y[i] = x[i];\n  }", "if (n > 1) plain<<<(n / 2 * 2 + 255) / 256, 256, 0, stream>>>(x, y, n / 2);"), (
        ("int all = n * 2;", "int all = n * 2 - i % 2;"), ("if (i < all)", "if (i < all && x[i] > 0)"), ("= x[i]", "= x[i] * threadIdx.x"),
    )),
    "fields": Example("vectorize", FIELDS, (("sums.y += v * v;", "sums.y += sums.x;"),)),
    "the lanes of a warp": Example("vectorize", WARP_A_ROW, (
        ("lane = threadIdx.x % WARP", "lane = threadIdx.x % 16"),  # every element twice
        ("  for (int m", "  y[row * 32 + lane] = sum;\n  for (int m"),  # what a lane had is written out
        ("lane = threadIdx.x % WARP", "lane = blockIdx.x % WARP"),
    )),
    "gathered rows": Example("vectorize", GATHERED, reads=("y_pack.at[k] = x[token * columns + i % columns] + w_pack.at[k];",)),
    "a barrier between two writers": Example("vectorize", LINE),
    "choices": Example("vectorize", CHOICES, reads=("wanted ? x[(int64_t)from * n + i] : 0.0f", "store_lanes(&y[", "if (from > 0) store_lanes(&v[")),
    "short loops": Example("vectorize_short_loops", FROM_ROWS, reads=("Lanes<__half, 4> y_joined;", "w_joined = load_joined<4>(w);"), flags=("even",)),
    "short loops that stay": Example("vectorize_short_loops", FOURS, (
        ("__half* y, int n", "volatile __half* y, int n"), ("j < 4", "j < 3"), ("j < 4", "j < n"), (STORED, "y[first + 2 * j] = v;"),
        (STORED, f"if (v > 0) {STORED}"), (STORED, f"{STORED}\n    y[first + j + 1] = v;"), (STORED, "y[first + j] = v + (float)y[j];"),
        (STORED, f"{STORED}\n    __syncthreads();"), (STORED, f"{STORED}\n    y += 1;"), (STORED, f"for (int k = 0; k < 2; ++k) {STORED}"),
    ), flags=("even",)),
    "trim": Example("trim_vector_tail", TAIL, (
        ("n % lanes == 0 && (", "("), ("n % lanes == 0 &&", "n % lanes == 0 ||"), ("lanes = 16 / sizeof", "lanes = 8 / sizeof"), ("lane[16 /", "lane[8 /"),
    )),
    "restrict": Example("restrict_pointers", ROWS, (("(x, s, y, n);", "(y, s, y, n);"),), ("__restrict__ x",)),
}  # fmt: skip
OURS = ROWS.replace("__global__", "template <class T> T ceil_div(T a, T b) { return (a + b - 1) / b; }\n__global__").replace(
    "<<<rows,", "<<<ceil_div(rows, (int64_t)1),"
)  # fmt: skip
FORMS = {
    "names of ours": Example("free_reserved_names", OURS, reads=("ceil_div_of_file(rows",)),
    "macros": Example("expand_macros", LOOP, (
        ("y[at] = x[at] * 2.0f;", "y[at] = x[at] * 2.0f;\n#ifdef OTHER\n#define KERNEL_LOOP(i, n) if (n)\n#endif"),
        ("(i, n) for", "(i, n) for (; #n[0];) for"), ("KERNEL_LOOP(at, n) {", "KERNEL_LOOP(at) {"), ("i < (n)", "i < KERNEL_LOOP(i, n)"),
        ("(i, n) for", "(i, n...) for"), ("gridDim.x)\n", "gridDim.x) /* over all */ if (i != 3)\n"),
    ), ("for (long at = (long)blockIdx.x * blockDim.x + threadIdx.x; at < (n);",)),
    "macros of macros": Example("expand_macros", LAUNCHED, reads=("plain<float><<<CEIL(rows * n, THREADS), THREADS, 0, stream>>>(x, y, rows * n);",)),
    "branches": Example("fold_branches", ONE_SIDE, (("else if (FLIP)", "else if (i > n)"),)),
    "instances": Example("split_template_instances", BRANCHED, (
        ("plain<false>", "plain<true>"), ("<bool FLIP>", "<int FLIP>"), ("plain<true><<<", "plain<kFlip><<<"), ("if (FLIP) {", "if (n) {"),
    )),
    "instances in packs": Example("split_template_instances fold_branches single_assignment vectorize", BRANCHED, reads=("store_lanes(&y[to]",)),
    "set later": Example("single_assignment", SET_LATER, (
        (SET, "    from = from + i;\n    to += i;"), (SET, "    if (i) from = i;\n    if (i) to = i;"),
        (SET, "    {\n      from = n + i;\n      to = i;\n    }"), ("int from, to;", "float from, to;"), ("int from, to;", "static int from, to;"),
    ), ("int from = n + i;",)),
    "two rows by one pointer": Example(
        "single_assignment", kernel("  const float* row = x + blockIdx.x * n;\n  y[0] = row[0] * 0;\n  row = y + 1;\n  y[0] = row[-1];"),
        (("  row = y + 1;", "  for (int k = 0; k < n; ++k) row = y + k;"),),
    ),
    "functions": Example("inline_device_functions", TURN, (
        (ADDED, "  if (a > row) return;\n" + ADDED), (ADDED, "  turn(to, from, angle, place, shift);"), (ADDED, "  __syncthreads();"),
        (ADDED, "  __shared__ float held[4];"), (ADDED, "  const auto f = [&] { return a; };\n  row += f();"), (ADDED, "  row += angles;"),
        (ADDED, '  asm volatile("" : "+f"(row));'), (ADDED, "  goto end;\n  end: row += a;"),
        ("template <typename T>\n", "__device__ void turn(double* to, int at) { to[at] = 0; }\n\ntemplate <typename T>\n"),
        ("template <typename T>\n", "#define turn(a, b, c, d, e) 0\n\ntemplate <typename T>\n"), ("__device__ inline void turn", "inline void turn"),
        ("__device__ inline", "__device__ __noinline__"), (TURNS, "i > 0 && (turn(y, x, a, i, row), true);"),
        ("int64_t shift)", "int64_t shift, int more = 0)"), ("int STEP = 2>", "int STEP = 2, typename other = scalar, int N>"),
        ("__device__ inline void turn", "__device__ inline float turn"),
    )),
    "arguments that are computed once": Example("inline_device_functions", TURN.replace(
        TURNS, f"int count = i; {TURNS.replace('a, i', 'a, count++')} if (i) {TURNS.replace('a, i', 'angles[i], i')} y[row * 2 * n + 2 * i] += count;"
    ).replace(ADDED, ADDED + "\n  ++place;")),
    "names of others": Example("inline_device_functions", TURN.replace("float a = from", "float sum = from").replace("row += a;", "row += sum;").replace(
        "a - row", "sum - row").replace("a + shift;", "sum + shift;  // last\n").replace(TURNS, f"{TURNS}\n    y[row * 2 * n + 2 * i] += sum(a);").replace(
        "template <typename T>", "__device__ float sum(float v) { return 3 * v; }\n\ntemplate <typename T>")),
    "references": Example("inline_device_functions", kernel("""
  for (int i = threadIdx.x; i < n / 4 - 1; i += blockDim.x) {
    float held[4], by = 2.0f;
    load_row<float, 4>(held, x, i + 1);
    scale(held, by);
    y[i] = held[0] + held[3] * by;
  }""", "plain<<<1, 256, 0, stream>>>(x, y, n);", head="""
template <typename T, int N>
__device__ void load_row(float (&to)[N], const T* from, const int& place) {
  for (int j = 0; j < N; ++j) to[j] = static_cast<float>(from[N * place + j]);
}
__device__ void scale(float (&v)[4], float& factor) {
  for (int j = 0; j < 4; ++j) v[j] *= factor;
  factor = 1.0f;
}
"""), (("float held[4]", "float held[5]"),)),
    "a width": Example("symbolic_block_size", WIDTH, (("y, n, width);", "y, n, 64);"),)),
    "a width in a template": Example("symbolic_block_size", CONSTANT, (("<256><<<rows, 256", "<256><<<rows, 128"), ("plain<256><<<rows, 256,", "dim3 b(256); b.x = n; plain<256><<<rows, b,"))),
    "fast": Example("fast_math", MATHS, reads=("__fdividef(", "n / sizeof(float);", "d / (1 + d * d)")),
    "fast, or doubles": Example("fast_math", kernel(EACH + "{ const double d = x[i]; const float f = x[i]; y[i] = f / (f * f + 1.0f); }"), tuple(
        ("f / (f * f + 1.0f)", value) for value in ("exp(d)", "d / (1 + d)", "x[i] / d", "1.0 / sqrt(d)", "d * 0.1",
                                               "floorf(f / (f + 1.0f))", "(int)(f / x[0])", "x[static_cast<int>(1.0f + x[i] / f)]", "0; const int k = f / x[i]; y[i] += k")
    )),
}  # fmt: skip
LAUNCHES = {
    "grid": Example("grid_stride", ROWS, (
        ("const float f", "__syncwarp(); const float f"), ("s[row]", "s[threadIdx.x]"), ("  for (int i", "  if (threadIdx.x == 0) y[row] = 1.0f;\n  for (int i"),
        ("const float f", "auto block = cooperative_groups::this_thread_block(); block.sync(); const float f"),
        (HIDDEN, f"#define OTHER plain<<<1, 7, 0, stream>>>(x, s, y, n)\nvoid other() {{ OTHER; }}\n{HIDDEN}"),
    ), ("#pragma unroll 1\n  for (int i = blockIdx.x * blockDim.x + threadIdx.x;",)),
    "grid of packs": Example("vectorize grid_stride", ROWS, reads=("plain<WIDTH><<<shape.grid, shape.block",)),
    "no loop": Example("grid_stride drop_grid_stride_loop", COLUMNS, (
        ("const int64_t packs = n / 4;", "const int64_t packs = n - 4;"), ("row_shape(rows, (n / 4))", "row_shape(rows, (n / 8))"),
        ("shape.block, 0, stream", "dim3(64), 0, stream"), ("dim3(cuts, ", "dim3(cuts / 2, "), ("i += gridDim.x * blockDim.x", "i += gridDim.x * blockDim.x / 2"),
    )),
}  # fmt: skip
NOT_IN_PACKS = {
    **{f"rounds {n}": rounds(*form) for n, form in enumerate(ROUNDS)},
    "the place of the largest": LARGEST,
    "a copy of columns": kernel(
        "  for (int i = threadIdx.x; i < n; i += blockDim.x) {\n    float sum = 0.0f;\n"
        "    for (int k = 0; k < 2; ++k) sum += x[(blockIdx.x * 2 + k) * n + i];\n    y[blockIdx.x * n + i] = sum;\n  }"
    ),
}
"""What vectorize leaves alone that is no change of an example."""
