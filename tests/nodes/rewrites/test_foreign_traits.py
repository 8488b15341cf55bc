"""What other people's kernels are written like, trait by trait: what rewrites make of it, and what they must not."""

from __future__ import annotations

import pytest

from nodes.rewrites.analysis.device_code import Code
from nodes.rewrites.syntax.source import Source
from tests.nodes.rewrites.steps import after, flat, refused
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
    text = ROWS.replace("scale_rows<<<rows, 256,", "dim3 block(256); block.x = n; scale_rows<<<rows, block,")
    assert refused(text, "symbolic_block_size") and refused(text, "tune_block_size")
    assert refused(
        TREE.replace("sums<<<rows, 256,", "dim3 b(256); b.x = n; sums<<<rows, b,"), "canonicalize_reductions"
    )


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


def test_what_the_compiler_must_know_stays_a_constant() -> None:
    body = """\
  if constexpr (W > 32) y[0] = 1;
  const int warps = W / 32;
  __shared__ float sums[warps];
  for (int i = threadIdx.x; i < n; i += W) y[i] = x[i] * (W + warps);"""
    new = after(
        kernel(body, launch="plain<256><<<rows, 256, 0, stream>>>(x, y, n);", head="template <int W> "),
        "symbolic_block_size",
    )
    assert "if constexpr (W > 32)" in new and "warps = W / 32;" in new
    assert "i += blockDim.x" in new and "(blockDim.x + warps)" in new


def test_a_parameter_that_is_passed_the_width() -> None:
    text = kernel(
        "  for (int i = threadIdx.x; i < n; i += block_size) y[i] = x[i];",
        parameters="const float* x, float* y, int n, int block_size",
        launch="const int block_size = 128;\n  plain<<<rows, block_size, 0, stream>>>(x, y, n, block_size);",
    )
    assert "i += blockDim.x" in after(text, "symbolic_block_size")
    assert refused(text.replace("y, n, block_size);", "y, n, 64);"), "symbolic_block_size")


def test_a_pointer_that_changes_to_another_buffer_is_two() -> None:
    body = "  const float* row = x + blockIdx.x * n;\n  y[0] = row[0];\n  row = y + 1;\n  y[2] = row[1];"
    new = after(kernel(body), "single_assignment")
    assert "y[0] = row[0];" in new and "const float* row_y = y + 1;" in new and "y[2] = row_y[1];" in new
    looped = body.replace("  row = y + 1;", "  for (int k = 0; k < n; ++k) row = y + k;")
    assert refused(kernel(looped), "single_assignment")


@pytest.mark.parametrize(
    "loop",
    [
        "int i = tid;\n  while (i < n) {\n    y[i] = x[i];\n    i += blockDim.x;\n  }",
        "int i;\n  for (i = tid; n > i; i = i + blockDim.x) { y[i] = x[i]; }",
    ],
)
def test_loops_of_other_forms(loop: str) -> None:
    new = flat(after(kernel(f"  const int tid = threadIdx.x;\n  {loop}"), "canonicalize_loops"))
    assert "i = tid; i < n; i += blockDim.x) { y[i] = x[i]; }" in new


@pytest.mark.parametrize(
    "loop",
    [
        "int i = tid; while (i < n) { y[i] = x[i]; i += blockDim.x; } y[i] = 1;",
        "int i = tid; while (i < n) { if (x[i] > 0) continue; y[i] = x[i]; i += blockDim.x; }",
        "int i = tid; while (i < n) { i += blockDim.x; y[i] = x[i]; }",
    ],
)
def test_loops_that_only_look_like_it(loop: str) -> None:
    assert refused(kernel(f"  const int tid = threadIdx.x;\n  {loop}"), "canonicalize_loops")


def test_a_function_of_the_files_own_with_our_name() -> None:
    own = "template <class T> T ceil_div(T a, T b) { return (a + b - 1) / b; }\n"
    text = own + TREE.replace("sums<<<rows,", "sums<<<ceil_div(rows, 1L),")
    new = after(text, "free_reserved_names", "canonicalize_reductions", "vectorize", "cache_row_in_registers")
    assert "ceil_div_of_file(rows, 1L)" in new and "inline int64_t ceil_div(int64_t a, int64_t b)" in new
    assert refused(after(own + TREE, "canonicalize_reductions", "vectorize"), "cache_row_in_registers"), (
        "it would call the wrong one"
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("int s = blockDim.x / 2;", "int s = 16;"),  # 32 of the block's values
        ("if (threadIdx.x < s)", "if (threadIdx.x < s && threadIdx.x + s < n)"),  # those below n
        ("if (threadIdx.x < s)", "if (threadIdx.x < n)"),
    ],
)
def test_a_tree_over_some_of_the_threads_stays(old: str, new: str) -> None:
    assert old in TREE
    assert refused(TREE.replace(old, new), "canonicalize_reductions")


def test_macros_and_helpers_that_load() -> None:
    head = "#define LDG(p) __ldg(p)\ntemplate <typename T> __device__ T ldg(const T* p) { return __ldg(p); }\n"
    body = "  for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = LDG(&x[i]) + ldg(y + i);"
    new = after(kernel(body, head=head), "vectorize")
    assert "x_pack.at[k] + ldg(&y_pack.at[k])" in new


def test_a_macro_may_store_anything() -> None:
    head = "#define FLOAT4(v) (reinterpret_cast<float4*>(&(v))[0])\n"
    body = "  for (int i = threadIdx.x; i < n; i += blockDim.x) { y[i] = x[i]; if (i % 4 == 0) FLOAT4(y[i]) = FLOAT4(x[i]); }"
    text = kernel(body, head=head)
    assert refused(text, "vectorize") or "store_lanes(&y" not in after(text, "vectorize")


@pytest.mark.parametrize("change", ["float& v = y[i]; v = x[i];", "put(y[i], x[i]);"])
def test_an_element_changes_through_a_reference(change: str) -> None:
    head = "__device__ void put(float& to, float v) { to = v; }\n"
    new = after(kernel(f"  for (int i = threadIdx.x; i < n; i += blockDim.x) {{ {change} }}", head=head), "vectorize")
    assert "store_lanes(&y[first], y_pack);" in new


def test_types_that_are_called_otherwise() -> None:
    head = "#include <cuda_fp16.h>\nusing half_t = __half;\ntypedef half_t scalar;\n"
    body = "  const int i = blockIdx.x * blockDim.x + threadIdx.x;\n  if (i < n) y[i] = x[i];"
    text = kernel(
        body, "const scalar* x, scalar* y, int n", "plain<<<(n + 255) / 256, 256, 0, stream>>>(x, y, n);", head
    )
    assert "Lanes<scalar, VEC> x_pack" in after(text, "vectorize")
    assert refused(text.replace("typedef half_t scalar;", "struct scalar;"), "vectorize")


def test_what_the_guard_needs_stays_in_front_of_it() -> None:
    """The declaration of the bound once went with the body."""
    body = """\
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  int all = n * 2;
  float f = 3.0f;
  if (i < all) {
    y[i] = x[i] * f;
  }"""
    launch = "plain<<<(2 * n + 255) / 256, 256, 0, stream>>>(x, y, n);"
    new = flat(after(kernel(body, launch=launch), "vectorize"))
    assert "int all = n * 2;" in new and new.index("int all") < new.index("if (pack < all / VEC)")
    moved = body.replace("int all = n * 2;", "int all = n * 2 - i % 2;")
    assert refused(kernel(moved, launch=launch), "vectorize")


def test_sums_in_the_fields_of_a_variable() -> None:
    body = """\
  float2 sums = make_float2(0.0f, 0.0f);
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const float v = x[blockIdx.x * n + i];
    sums.x += v;
    sums.y += v * v;
  }
  if (threadIdx.x == 0) y[blockIdx.x] = sums.x + sums.y;"""
    assert "x_pack.at[k]" in after(kernel(body), "vectorize")
    assert refused(kernel(body.replace("sums.y += v * v;", "sums.y += sums.x;")), "vectorize")


def test_a_tangent_by_itself_keeps_small_numbers() -> None:
    body = "  for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = {};"
    assert "near" in after(kernel(body.format("30.0f * tanhf(x[i])")), "fast_tanh")
    assert "near" not in after(kernel(body.format("0.5f * x[i] * (1.0f + tanhf(x[i]))")), "fast_tanh")


def test_no_thread_meets_what_another_now_has() -> None:
    """A thread that comes back to its own elements needs no barrier, until they are dealt out in packs."""
    body = """\
  __shared__ float line[4096];
  for (int i = threadIdx.x; i < n; i += blockDim.x) line[i] = x[i];
  for (int i = threadIdx.x; i < n; i += blockDim.x) line[i] = line[i] * line[i];
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = line[i];"""
    assert refused(kernel(body), "vectorize")
    parts = body.split("\n")
    apart = "\n".join([*parts[:2], "  __syncthreads();", parts[2], "  __syncthreads();", parts[3]])
    assert not refused(kernel(apart), "vectorize")


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
    body = """\
  float v = 0.0f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) v += x[blockIdx.x * n + i];
  v = total(v);
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = x[blockIdx.x * n + i] - v;"""
    text = kernel(body, launch="plain<<<rows, 1024, 0, stream>>>(x, y, n);", head=helper)
    assert refused(text, "tune_block_size")


WARP_A_ROW = """\
  const int lane = threadIdx.x % WARP, row = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
  if (row >= rows) return;
  float sum = 0.0f;
  for (int i = lane; i < n; i += WARP) sum += x[row * n + i];
  for (int m = 16; m > 0; m /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, m);
  for (int i = lane; i < n; i += WARP) y[row * n + i] = x[row * n + i] / sum;"""


def a_warp_a_row(body: str = WARP_A_ROW) -> str:
    launch = "plain<<<(rows + 7) / 8, 256, 0, stream>>>(x, y, n, rows);"
    return kernel(body, "const float* x, float* y, int n, int rows", launch, "#define WARP 32\n")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("lane = threadIdx.x % WARP", "lane = threadIdx.x % 16"),  # every element twice
        ("  for (int m", "  y[row * 32 + lane] = sum;\n  for (int m"),  # what a lane had is written out
        ("lane = threadIdx.x % WARP", "lane = blockIdx.x % WARP"),
    ],
)
def test_what_only_looks_like_the_lanes_of_a_warp(old: str, new: str) -> None:
    assert refused(a_warp_a_row(WARP_A_ROW.replace(old, new)), "vectorize")


LARGEST = """\
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
  if (threadIdx.x == 0) y[blockIdx.x] = at;"""


def test_a_thread_may_sum_its_elements_up_in_state_of_any_form() -> None:
    new = flat(after(kernel(LARGEST), "vectorize"))
    assert "const int i = first + k; const float v = x_pack.at[k]; if (v > largest) { largest = v; at = i; }" in new
    online = LARGEST.replace("if (v > largest) {", "{\n      at = at * (v > largest) + (v == largest);")
    online = online.replace("at = i;", "").replace("= v;\n", "= fmaxf(largest, v);\n")
    assert "= v;" not in online.replace("float v =", "") and not refused(kernel(online), "vectorize")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("at = i;", "at = i / 2 + at;"),  # the place itself counts
        ("float largest = -1.0f;", "float largest = threadIdx.x;"),  # not everybody begins with the same
        ("if (v > largest) {", "y[blockIdx.x * n + i] = largest;\n    if (v > largest) {"),  # on its way it is seen
        ("  int at = 0;", "  int at;"),
    ],
)
def test_state_that_is_more_than_a_summary(old: str, new: str) -> None:
    assert refused(kernel(LARGEST.replace(old, new)), "vectorize")


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


def test_state_that_a_function_changes_by_reference_is_state() -> None:
    """Its elements were once handed out anew although each got the number of those before it."""
    head = "__device__ float next(float& count, float v) {\n  count += 1;\n  return count * v;\n}\n"
    body = """\
  float count = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = next(count, x[blockIdx.x * n + i]);"""
    assert refused(kernel(body, head=head), "vectorize")
    assert not refused(kernel(body, head=head.replace("float&", "float")), "vectorize")


EMBED = """\
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const int row = i / columns;
  const int token = tokens[row];
  y[i] = x[token * columns + i % columns] + x[i % columns];"""
EMBED_PARAMETERS = "const float* x, float* y, int* tokens, int n, int columns"
EMBED_LAUNCH = "plain<<<(rows * n + 255) / 256, 256, 0, stream>>>(x, y, nullptr, rows * n, n);"


def test_a_row_that_is_looked_up_is_the_same_for_a_pack() -> None:
    new = flat(after(kernel(EMBED, EMBED_PARAMETERS, EMBED_LAUNCH), "vectorize"))
    assert "load_lanes<VEC>(&x[token * columns + first % columns])" in new
    assert "(n) % PACK == 0" in new or "n % PACK == 0" in new
    # Declared together they are declared for each lane, and the address was of a name that nobody had declared yet.
    together = kernel(EMBED.replace(";\n  const int token", ", token"), EMBED_PARAMETERS, EMBED_LAUNCH)
    assert "y_pack.at[k] = x[token * columns + i % columns] + x_pack.at[k];" in after(together, "vectorize")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("tokens[row]", "tokens[i]"),  # a row for each element
        ("  y[i] =", "  tokens[row] = 0;\n  y[i] ="),  # other lanes find another row
    ],
)
def test_a_row_that_is_looked_up_by_element(old: str, new: str) -> None:
    text = kernel(EMBED.replace(old, new), EMBED_PARAMETERS, EMBED_LAUNCH)
    assert refused(text, "vectorize") or "x[token * columns + first" not in after(text, "vectorize")
