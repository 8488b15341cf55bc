"""What other people's kernels are written like, trait by trait: what rewrites make of it, and what they must not."""

from __future__ import annotations

import pytest

from nodes.rewrites.analysis.device_code import Code
from nodes.rewrites.syntax.source import Source
from tests.nodes.rewrites.steps import after, flat, refused, stays, where_they_apply
from tests.nodes.rewrites.test_cuda_rewrites import ROWS, TREE

NAMED = """\
namespace engine {
template <typename T, T (*F)(T), bool kFirst>
__global__ void gate(const T* x, T* y, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = F(x[blockIdx.x * n + i]);
}
template <typename T> __device__ T twice(T v) { return v + v; }
}
extern "C" void run(const float* x, float* y, long rows, long n, cudaStream_t stream) {
  dim3 grid(rows), block(256);
  if (n % 32 != 0) block.x = 1024;
  engine::gate<float, engine::twice<float>, true><<<grid, block, 0, stream>>>(x, y, n);
}
"""
KERNEL = """\
{head}__global__ void plain({parameters}) {{
{body}
}}
extern "C" void run(const float* x, float* y, long rows, long n, cudaStream_t stream) {{
  {launch}
}}
"""


def kernel(
    body: str,
    parameters: str = "const float* x, float* y, int n",
    launch: str = "plain<<<rows, 256, 0, stream>>>(x, y, n);",
    head: str = "",
) -> str:
    return KERNEL.format(head=head, parameters=parameters, body=body, launch=launch)


def test_a_launch_shape_that_is_set_in_two_steps_is_no_constant() -> None:
    (launch,) = Code(Source(NAMED, "cuda")).launches
    assert launch.extents(launch.block) == ("block.x", "1", "1")


@pytest.mark.parametrize(
    "hidden",
    [
        "#define LAUNCH scale_rows<<<1, 7, 0, stream>>>(x, factor, y, n)\nvoid other() { LAUNCH; }\n",
        "void other() { void* pointer = (void*)scale_rows; }\n",
        "__global__ void scale_rows(const int* x) {}\n",
    ],
)
def test_a_launch_out_of_sight_leaves_the_kernel_alone(hidden: str) -> None:
    text = ROWS.replace('extern "C"', hidden + 'extern "C"')
    for step in (
        "vectorize",
        "grid_stride",
        "restrict_pointers",
        "symbolic_block_size",
        "programmatic_dependent_launch",
    ):
        assert refused(text, step), step
    unused = "#define LAUNCH scale_rows<<<1, 7, 0, stream>>>(x, factor, y, n)\n"
    assert not refused(ROWS.replace('extern "C"', unused + 'extern "C"'), "vectorize")


def test_a_function_of_the_files_own_with_our_name() -> None:
    own = "template <class T> T ceil_div(T a, T b) { return (a + b - 1) / b; }\n"
    text = own + TREE.replace("sums<<<rows,", "sums<<<ceil_div(rows, 1L),")
    new = after(text, "free_reserved_names", "canonicalize_reductions", "vectorize", "cache_row_in_registers")
    assert "ceil_div_of_file(rows, 1L)" in new and "inline int64_t ceil_div(int64_t a, int64_t b)" in new
    assert refused(after(own + TREE, "canonicalize_reductions", "vectorize"), "cache_row_in_registers"), (
        "it would call the wrong one"
    )


# Forms, and what they only look like.

EACH = "  for (int i = threadIdx.x; i < n; i += blockDim.x) "
FLAT = "plain<<<(n + 255) / 256, 256, 0, stream>>>(x, y, n);"
AT = "  int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
WIDTH = kernel(
    "  for (int i = threadIdx.x; i < n; i += block_size) y[i] = x[i];", "const float* x, float* y, int n, int block_size",
    "const int block_size = 128;\n  plain<<<rows, block_size, 0, stream>>>(x, y, n, block_size);",
)  # fmt: skip
CONSTANT = kernel("""\
  if constexpr (W > 32) y[0] = 1;
  const int warps = W / 32;
  __shared__ float sums[warps];
  for (int i = threadIdx.x; i < n; i += W) y[i] = x[i] * (W + warps);""",
    launch="plain<256><<<rows, 256, 0, stream>>>(x, y, n);", head="template <int W> ",
)  # fmt: skip
TWO_BUFFERS = kernel("  const float* row = x + blockIdx.x * n;\n  y[0] = row[0];\n  row = y + 1;\n  y[2] = row[1];")
LDG = "#define LDG(p) __ldg(p)\ntemplate <typename T> __device__ T ldg(const T* p) { return __ldg(p); }\n"
FLOAT4 = "#define FLOAT4(v) (reinterpret_cast<float4*>(&(v))[0])\n"
PUT = "__device__ void put(float& to, float v) { to = v; }\n"
HALVES = kernel(AT + "  if (i < n) y[i] = x[i];", "const scalar* x, scalar* y, int n", FLAT,
                "#include <cuda_fp16.h>\nusing half_t = __half;\ntypedef half_t scalar;\n")  # fmt: skip
BOUND = kernel(AT + "  int all = n * 2;\n  float f = 3.0f;\n  if (i < all) {\n    y[i] = x[i] * f;\n  }",
               launch="plain<<<(2 * n + 255) / 256, 256, 0, stream>>>(x, y, n);")  # fmt: skip
FIELDS = kernel("""\
  float2 sums = make_float2(0.0f, 0.0f);
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const float v = x[blockIdx.x * n + i];
    sums.x += v;
    sums.y += v * v;
  }
  if (threadIdx.x == 0) y[blockIdx.x] = sums.x + sums.y;""")
LARGEST = kernel("""\
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
  for (int t = 0; t < blockDim.x; ++t) if (best[t] > largest) { largest = best[t]; at = place[t]; }
  if (threadIdx.x == 0) y[blockIdx.x] = at;""")
WARP_A_ROW = kernel("""\
  const int lane = threadIdx.x % WARP, row = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
  if (row >= rows) return;
  float sum = 0.0f;
  for (int i = lane; i < n; i += WARP) sum += x[row * n + i];
  for (int m = 16; m > 0; m /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, m);
  for (int i = lane; i < n; i += WARP) y[row * n + i] = x[row * n + i] / sum;""",
    "const float* x, float* y, int n, int rows", "plain<<<(rows + 7) / 8, 256, 0, stream>>>(x, y, n, rows);", "#define WARP 32\n",
)  # fmt: skip
EMBED = kernel("""\
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const int row = i / columns;
  const int token = tokens[row];
  y[i] = x[token * columns + i % columns] + x[i % columns];""",
    "const float* x, float* y, int* tokens, int n, int columns", "plain<<<(rows * n + 255) / 256, 256, 0, stream>>>(x, y, nullptr, rows * n, n);",
)  # fmt: skip
NEXT = "__device__ float next(float count, float v) {\n  count += 1;\n  return count * v;\n}\n"
COUNTS = kernel(f"  float count = 0;\n{EACH}y[blockIdx.x * n + i] = next(count, x[blockIdx.x * n + i]);", head=NEXT)
SQUARES = kernel(f"""\
  __shared__ float line[4096];
{EACH}line[i] = x[i];
  __syncthreads();
{EACH}line[i] = line[i] * line[i];
  __syncthreads();
{EACH}y[i] = line[i];""")


@pytest.mark.parametrize(
    ("step", "text"),
    [
        ("symbolic_block_size", CONSTANT),
        ("symbolic_block_size", WIDTH),
        ("single_assignment", TWO_BUFFERS),
        ("vectorize", kernel(EACH + "y[i] = LDG(&x[i]) + ldg(y + i);", head=LDG)),
        ("vectorize", kernel(EACH + "{ float& v = y[i]; v = x[i]; }")),
        ("vectorize", kernel(EACH + "{ put(y[i], x[i]); }", head=PUT)),
        ("vectorize", HALVES),
        ("vectorize", BOUND),
        ("vectorize", FIELDS),
        ("vectorize", LARGEST),
        ("vectorize", EMBED),
    ],
)
def test_forms(step: str, text: str) -> None:
    after(text, step)


def test_what_is_declared_together_is_declared_for_each_lane() -> None:
    """The address was once of a name that nobody had declared yet."""
    new = flat(after(EMBED.replace(";\n  const int token", ", token"), "vectorize"))
    assert "y_pack.at[k] = x[token * columns + i % columns] + x_pack.at[k];" in new


@pytest.mark.parametrize(
    ("value", "near"), [("30.0f * tanhf(x[i])", True), ("0.5f * x[i] * (1.0f + tanhf(x[i]))", False)]
)
def test_a_tangent_by_itself_keeps_small_numbers(value: str, near: bool) -> None:
    assert ("near" in after(kernel(f"{EACH}y[i] = {value};"), "fast_tanh")) is near


@pytest.mark.parametrize(
    ("step", "text", "old", "new"),
    [
        ("symbolic_block_size", WIDTH, "y, n, block_size);", "y, n, 64);"),
        ("symbolic_block_size", ROWS.replace("i += blockDim.x", "i += 256"), "scale_rows<<<rows, 256,", "dim3 b(256); b.x = n; scale_rows<<<rows, b,"),
        ("tune_block_size", ROWS, "scale_rows<<<rows, 256,", "dim3 b(256); b.x = n; scale_rows<<<rows, b,"),
        ("single_assignment", TWO_BUFFERS, "  row = y + 1;", "  for (int k = 0; k < n; ++k) row = y + k;"),
        ("canonicalize_reductions", TREE, "sums<<<rows, 256,", "dim3 b(256); b.x = n; sums<<<rows, b,"),
        # A tree over some of the threads.
        ("canonicalize_reductions", TREE, "int s = blockDim.x / 2;", "int s = 16;"),  # 32 of the block's values
        ("canonicalize_reductions", TREE, "if (threadIdx.x < s)", "if (threadIdx.x < s && threadIdx.x + s < n)"),  # those below n
        ("canonicalize_reductions", TREE, "if (threadIdx.x < s)", "if (threadIdx.x < n)"),
        ("vectorize", HALVES, "typedef half_t scalar;", "struct scalar;"),
        ("vectorize", BOUND, "int all = n * 2;", "int all = n * 2 - i % 2;"),
        ("vectorize", FIELDS, "sums.y += v * v;", "sums.y += sums.x;"),
        # Only like the lanes of a warp.
        ("vectorize", WARP_A_ROW, "lane = threadIdx.x % WARP", "lane = threadIdx.x % 16"),  # every element twice
        ("vectorize", WARP_A_ROW, "  for (int m", "  y[row * 32 + lane] = sum;\n  for (int m"),  # what a lane had is written out
        ("vectorize", WARP_A_ROW, "lane = threadIdx.x % WARP", "lane = blockIdx.x % WARP"),
        # State that is more than a summary.
        ("vectorize", LARGEST, "at = i;", "at = i / 2 + at;"),  # the place itself counts
        ("vectorize", LARGEST, "float largest = -1.0f;", "float largest = threadIdx.x;"),  # not everybody begins with the same
        ("vectorize", LARGEST, "if (v > largest) {", "y[blockIdx.x * n + i] = largest;\n    if (v > largest) {"),  # on its way it is seen
        ("vectorize", LARGEST, "  int at = 0;", "  int at;"),
        # Its elements were once handed out anew although each got the number of those before it.
        ("vectorize", COUNTS, "float count,", "float& count,"),
        # A thread that comes back to its own elements needs no barrier, until they are dealt out in packs.
        ("vectorize", SQUARES, "  __syncthreads();\n", ""),
    ],
)  # fmt: skip
def test_what_only_looks_like_it_stays(step: str, text: str, old: str, new: str) -> None:
    assert stays(step, text, old, new, times=-1 if old.startswith("  __sync") else 1)


@pytest.mark.parametrize(
    ("text", "without"),
    [
        (kernel(EACH + "{ y[i] = x[i]; if (i % 4 == 0) FLOAT4(y[i]) = FLOAT4(x[i]); }", head=FLOAT4), "store_lanes(&y"),
        (EMBED.replace("tokens[row]", "tokens[i]"), "x[token * columns + first"),  # a row for each element
        (EMBED.replace("  y[i] =", "  tokens[row] = 0;\n  y[i] ="), "x[token * columns + first"),  # other lanes find another row
    ],
)  # fmt: skip
def test_what_is_not_moved_in_packs(text: str, without: str) -> None:
    assert without not in where_they_apply(text, "vectorize")


# State of a thread.

SUMMARIES = {
    "a softmax": ("float m = -1e30f, s = 0;", "const float t = fmaxf(m, v); s = s * expf(m - t) + expf(v - t); m = t;"),
    "the same in two": ("float m = -1e30f, s = 0;", "const float t = fmaxf(m, v); s *= expf(m - t); s += expf(v - t); m = t;"),
    "a mean": ("float m = 0, s = 0; int c = 0;", "c += 1; const float d = v - m; m += d / c; s += d * (v - m);"),
    "a mean, counted in floats": ("float m = 0, s = 0, c = 0;", "c = c + 1.0f; const float d = v - m; m = m + d / c; s += d * (v - m);"),
    "a sum with what it lost": ("float s = 0, c = 0;", "const float z = v - c; const float t = s + z; c = (t - s) - z; s = t;"),
    "whether any": ("float s = 0, m = 0; bool any = false;", "if (v > m) { any = true; m = v; s = any; }"),
}  # fmt: skip
ROUNDS = {
    "a sign that turns": ("float s = 0, w = 1;", "s += w * v; w = -w;"),
    "every other": ("float s = 0; int c = 0;", "if (c & 1) s += v; else s -= v; c++;"),
    "the first few": ("float s = 0; int c = 4;", "if (c-- > 0) s += v;"),
    "the first": ("float s = 0; bool first = true;", "if (first) { s = v; first = false; }"),
    "the last": ("float s = 0;", "s = v;"),
    "the last of some": ("float s = 0;", "if (v > 0) s = v;"),
    "the one before": ("float p = 0, s = 0;", "s += fabsf(v - p); p = v;"),
    "a hash": ("unsigned s = 7;", "s = s * 31u + (unsigned)v;"),
    "a hash in two": ("unsigned s = 7;", "s ^= (unsigned)v; s *= 16777619u;"),
    "what fades": ("float s = 0;", "s = 0.9f * s + 0.1f * v;"),
    "what fades in one": ("float s = 0;", "s = fmaf(s, 0.9f, v);"),
    "weights by round": ("float s = 0, w = 1;", "s += v * w; w *= 0.5f;"),
    "an index by round": ("float s = 0; int c = 0;", "s += v * x[c]; ++c;"),
    "a struct's": ("struct { float s; int c; } a = {0, 0}; float s = 0;", "a.s += (a.c % 2) ? v : -v; a.c++; s = fmaxf(s, a.s);"),
    "a function's": ("float s = 0; int c = 0;", "step(s, c, v);"),
}  # fmt: skip


def rounds(start: str, step: str) -> str:
    head = "__device__ void step(float& s, int& c, float v) {\n  s += (c % 2) ? v : -v;\n  ++c;\n}\n"
    body = f"""\
  __shared__ float part[256];
  {start}
  for (int i = threadIdx.x; i < n; i += blockDim.x) {{
    const float v = x[blockIdx.x * n + i];
    {step}
  }}
  part[threadIdx.x] = s;
  __syncthreads();
  if (threadIdx.x == 0) for (int t = 0; t < blockDim.x; ++t) y[blockIdx.x] += part[t];"""
    return kernel(body, head=head)


@pytest.mark.parametrize("form", SUMMARIES)
def test_what_is_the_same_in_any_order_is_packed(form: str) -> None:
    assert not refused(rounds(*SUMMARIES[form]), "vectorize")


@pytest.mark.parametrize("form", ROUNDS)
def test_what_tells_one_round_from_another_is_not(form: str) -> None:
    assert refused(rounds(*ROUNDS[form]), "vectorize")


def test_all_of_1024_threads_are_counted_on() -> None:
    helper = """\
__device__ float total(float v) {
  __shared__ float by_warp[32];
  for (int m = 16; m > 0; m /= 2) v += __shfl_xor_sync(0xffffffffu, v, m);
  if (threadIdx.x % 32 == 0) by_warp[threadIdx.x / 32] = v;
  __syncthreads();
  v = by_warp[threadIdx.x % 32];
  for (int m = 16; m > 0; m /= 2) v += __shfl_xor_sync(0xffffffffu, v, m);
  return v;
}
"""
    body = f"  float v = 0.0f;\n{EACH}v += x[blockIdx.x * n + i];\n  v = total(v);\n{EACH}y[blockIdx.x * n + i] = v;"
    text = kernel(body, launch="plain<<<rows, 1024, 0, stream>>>(x, y, n);", head=helper)
    assert refused(text, "tune_block_size")
