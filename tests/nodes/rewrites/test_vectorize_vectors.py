"""Kernels that move vectors of 4 or 8 bytes a thread already: how pack widens them, and what it leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodes.rewrites.analysis.vectors import written_out
from nodes.rewrites.syntax.source import Source
from tests.nodes.rewrites.emulate.emulation import emulated
from tests.nodes.rewrites.test_cuda_rewrites import ROOT, after, flat, refused

HEAD = "#include <cuda_fp16.h>\n#define HALF2(value) (reinterpret_cast<half2*>(&(value))[0])\n"
TEXT = """\
{head}__global__ void plain(const half* x, half* y, int n) {{
  {body}
}}
extern "C" void run(const half* x, half* y, int n, cudaStream_t stream) {{
  plain<<<(n / 2 + 256) / 256, 256, 0, stream>>>(x, y, n);
}}
"""
INDEX = "int i = blockIdx.x * blockDim.x + threadIdx.x;\n  "
TWOS = "int i = 2 * (blockIdx.x * blockDim.x + threadIdx.x);\n  "
COPY = "reinterpret_cast<half2*>(y)[i] = reinterpret_cast<const half2*>(x)[i];"
REST = f"if (i < n / 2) {{ {COPY} }} else if (i == n / 2 && n % 2) {{ y[n - 1] = x[n - 1]; }}"


def kernel(body: str, head: str = HEAD) -> str:
    return TEXT.format(body=body, head=head)


@pytest.mark.parametrize(
    ("body", "loads", "condition"),
    [
        (f"{INDEX}if (i < n / 2) {{ {COPY} }}", "&reinterpret_cast<const half2*>(x)[first]", "n / 2 % PACK"),
        (f"{INDEX}if (i >= n / 2) return;\n  {COPY}", "&reinterpret_cast<const half2*>(x)[first]", "n / 2 % PACK"),
        (
            f"{INDEX}if (i < n / 2) {{ HALF2(y[2 * i]) = *(const half2*)(x + n + 2 * i); }}",
            "(const half2*)(x + n + 2 * first)",
            "n % (2 * PACK)",  # where the vectors begin, in elements of the parameter
        ),
        (
            f"{TWOS}if (i < n) {{ HALF2(y[i]) = *(const half2*)(&x[i]); }}",
            "(const half2*)(&x[i])",
            "(n + 1) / 2 % PACK",
        ),
        (
            "const half2* row = (const half2*)(x + blockIdx.x * n);\n  half2* to = (half2*)y;\n  "
            "for (int i = threadIdx.x; i < n / 2; i += blockDim.x) to[blockIdx.x * (n / 2) + i] = row[i];",
            "&row[first]",
            "n % (2 * PACK)",
        ),
        (
            "for (int i = 2 * threadIdx.x; i < n; i += blockDim.x * 2) { HALF2(y[i]) = *(const half2*)(x + i); }",
            "(const half2*)(x + i)",
            "(n + 1) / 2 % PACK",
        ),
    ],
)
def test_a_thread_takes_as_many_vectors_as_make_16_bytes(body: str, loads: str, condition: str) -> None:
    new = after(kernel(body), "vectorize")
    assert f"load_lanes<VEC>({loads})" in new and flat(new).count("; Lanes<half2, VEC>") == 1
    assert f"{condition} == 0" in new and "PACK = PACK_BYTES / sizeof(half2);" in new
    assert "aligned_to_16_bytes(x, y)" in new or "aligned_to_16_bytes(y, x)" in new
    # A half2 copies its halves one by one, so nvcc made four loads of it.
    assert "load_lanes(const __half2* from)" in new and "store_lanes(__half2* to" in new


def test_a_grid_is_not_empty_where_there_is_no_whole_vector() -> None:
    """One element is no pair; the launch had a block for it."""
    assert "ceil_div((n / 2) / WIDTH + 1, 256)" in after(kernel(f"{INDEX}if (i < n / 2) {{ {COPY} }}"), "vectorize")
    whole = kernel(f"{INDEX}if (i < n) {{ y[i] = x[i]; }}")
    assert "ceil_div(n / WIDTH, 256)" in after(whole, "vectorize")


def test_the_one_behind_the_last_vector_stays_with_its_thread() -> None:
    new = flat(after(kernel(INDEX + REST), "vectorize"))
    assert "const int i = pack * VEC; if (pack < (n / 2) / VEC) {" in new
    assert "else if (i == n / 2 && n % 2) { y[n - 1] = x[n - 1]; }" in new
    assert "ceil_div((n / 2) / WIDTH + 1, 256)" in new  # packs, and the thread behind them
    loop = "if (i + 1 < n) { HALF2(y[i]) = *(const half2*)(x + i); } else for (int j = i; j < n; ++j) y[j] = x[j];"
    assert "const int i = 2 * unit; if (pack < (n / 2) / VEC) {" in flat(after(kernel(TWOS + loop), "vectorize"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("i == n / 2 &&", "i == n / 2 + 1 &&"),  # a thread that would be another's
        ("i == n / 2 &&", "i <= n / 2 &&"),
        ("i == n / 2 && n % 2", "i == n / 2 || n % 2"),
        ("else if (i == n / 2 && n % 2)", "else"),
        ("n % 2)", "threadIdx.x == 3)"),
        ("i < n / 2)", "i < n / 2 && x[0] > x[1])"),  # the rest is for others as well
        ("if (i < n / 2)", "const half v = x[i];\n  if (i < n / 2)"),
        ("= x[n - 1]; }", "= x[n - 1]; } else { y[0] = x[0]; }"),
        (COPY, COPY.replace("(x)[i];", "(x)[i + threadIdx.x];")),
        ("half2*>(", "Unseen*>("),  # who knows how long that is
        ("half2*>(", "float4*>("),  # nothing is wider
    ],
)
def test_what_is_not_understood_stays(old: str, new: str) -> None:
    text = kernel(INDEX + REST)
    assert old in text and not refused(text, "vectorize")
    assert refused(text.replace(old, new), "vectorize")


@pytest.mark.parametrize(
    "read", ["*(const half2*)(x + 1 + 2 * i)", "*(const half2*)(x + i)", "*(const half2*)(x + 3 * i)"]
)
def test_vectors_that_begin_anywhere_are_read_one_by_one(read: str) -> None:
    new = after(kernel(f"{INDEX}if (i < n / 2) {{ HALF2(y[2 * i]) = {read}; }}"), "vectorize")
    assert f"y_pack.at[k] = {read};" in new and "x_pack" not in new


def test_one_array_in_two_sizes_is_written_one_by_one() -> None:
    new = after(kernel(f"{INDEX}if (i < n / 2) {{ {COPY} y[2 * i + 1] = x[0]; }}"), "vectorize")
    assert "y_pack" not in new and "reinterpret_cast<half2*>(y)[i] = x_pack.at[k];" in new


def test_an_element_that_depends_on_its_thread_stays_with_it() -> None:
    text = kernel(f"{INDEX}if (i < n / 2) {{ {COPY} }}")
    assert refused(text.replace("const half2*>(x)[i]", "const half2*>(x)[i] * threadIdx.x"), "vectorize")
    named = text.replace(INDEX, f"const int t = threadIdx.x;\n  {INDEX}")
    assert refused(named.replace("const half2*>(x)[i]", "const half2*>(x)[i] * t"), "vectorize")
    assert not refused(named, "vectorize")


def test_access_macros_and_indices_by_twos() -> None:
    def written(body: str, head: str = HEAD) -> str:
        return flat(written_out(Source(kernel(body, head), "cuda")))

    assert "reinterpret_cast<half2*>(&y[i])[0] = v;" in written("HALF2(y[i]) = v;")
    other = HEAD.replace("(reinterpret_cast<half2*>(&(value))[0])", "*(half2*)&value")
    assert "reinterpret_cast<half2*>(&y[i])[0] = v;" in written("HALF2(y[i]) = v;", other)
    for body in ("value + value", "reinterpret_cast<half2*>(&(value))[1]", "*(half2*)(value)", "*(half2*)&other"):
        head = HEAD.replace("(reinterpret_cast<half2*>(&(value))[0])", body)
        assert "HALF2(y[i]) = v;" in written("HALF2(y[i]) = v;", head)
    assert "HALF2(y[i]) = v;" in written("HALF2(y[i]) = v;", HEAD + "#ifdef A\n#define HALF2(v) v\n#endif\n")

    assert "if (unit < n / 2) {" in written(TWOS + "if (i + 1 < n) { y[i] = x[i]; }")
    assert "if (unit >= (n + 1) / 2) return;" in written(TWOS + "if (i >= n) return;\n  y[i] = x[i];")
    for body in (
        "if (i + 2 < n) { y[i] = x[i]; }",
        "if (i <= n) { y[i] = x[i]; }",
        "i += 2; if (i < n) { y[i] = x[i]; }",
    ):
        assert "unit" not in written(TWOS + body)
    assert "unit" not in written("for (int i = 4 * threadIdx.x; i < n; i += 2 * blockDim.x) { y[i] = x[i]; }")


def test_a_store_in_parentheses_is_a_store() -> None:
    """`(y[i]) = v` was once taken for a load."""
    text = kernel(f"{INDEX}if (i < n) {{ (y[i]) = x[i]; }}")
    assert "store_lanes(&y[first], y_pack);" in after(text, "vectorize")


RELU = """\
#include <cuda_bf16.h>
#include <stdint.h>

#define FLOAT2(value) (reinterpret_cast<float2*>(&(value))[0])

template <typename T> struct Pair;
template <> struct Pair<__nv_bfloat16> {
  using type = __nv_bfloat162;
  static __device__ float2 unpack(type v) { return __bfloat1622float2(v); }
  static __device__ type pack(float2 v) { return __float22bfloat162_rn(v); }
};
__device__ float relu_squared(float v) { return v > 0.0f ? v * v : 0.0f; }

template <typename T>
__global__ void pairs(const T* x, T* y, int64_t n) {
  using T2 = typename Pair<T>::type;
  const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n / 2) {
    float2 v = Pair<T>::unpack(reinterpret_cast<const T2*>(x)[i]);
    v.x = relu_squared(v.x);
    v.y = relu_squared(v.y);
    reinterpret_cast<T2*>(y)[i] = Pair<T>::pack(v);
  } else if (i == n / 2 && n % 2 == 1) {
    y[n - 1] = (T)relu_squared((float)x[n - 1]);
  }
}
__global__ void twos(float* x, float* y, int n) {
  const int i = 2 * (blockIdx.x * blockDim.x + threadIdx.x);
  if (i + 1 < n) {
    float2 v = FLOAT2(x[i]);
    v.x = relu_squared(v.x);
    v.y = relu_squared(v.y);
    FLOAT2(y[i]) = v;
  } else if (i < n) {
    y[i] = relu_squared(x[i]);
  }
}
extern "C" void relu_squared_bfloat16(const __nv_bfloat16* x, __nv_bfloat16* y, int64_t n, cudaStream_t stream) {
  pairs<__nv_bfloat16><<<(n / 2 + 64) / 64, 64, 0, stream>>>(x, y, n);
}
extern "C" void relu_squared_float32(float* x, float* y, int64_t n, cudaStream_t stream) {
  twos<<<(n / 2 + 64) / 64, 64, 0, stream>>>(x, y, n);
}
"""


def test_vectors_of_both_kinds_are_right_at_any_size(tmp_path: Path) -> None:
    new = after(RELU, "vectorize")
    assert "sizeof(typename Pair<__nv_bfloat16>::type)" in new and "sizeof(float2)" in new
    assert new.count("store_lanes(&") == 2
    candidate = tmp_path / "candidate.cu"
    candidate.write_text(new)
    sizes = [f"{dtype}:elements={n}" for dtype in ("bfloat16", "float32") for n in (1, 2, 8, 9, 127, 128, 1024, 1025)]
    ended = emulated(ROOT / "tests/inputs/relu_squared", candidate, "0", "2", *sizes)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    wrong = new.replace("/ WIDTH + 1,", "/ WIDTH,")  # nobody is there for what is left over
    assert wrong != new
    candidate.write_text(wrong)
    assert emulated(ROOT / "tests/inputs/relu_squared", candidate, "0", "bfloat16:elements=1025").returncode == 1


VIEWS = """\
#include <cuda_fp16.h>
#include <stdint.h>

__device__ float relu_squared(float v) { return v > 0.0f ? v * v : 0.0f; }

__global__ void fours(const half* x, half* y, int n) {
  const float2* x_vector = reinterpret_cast<const float2*>(x);
  float2* y_vector = reinterpret_cast<float2*>(y);
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n / 4) {
    float2 from = x_vector[i];
    const half2* pairs = reinterpret_cast<const half2*>(&from);
    float2 to;
    half2* made = (half2*)(&to.x);
    for (int j = 0; j < 2; ++j) {
      const float2 both = __half22float2(pairs[j]);
      made[j] = __floats2half2_rn(relu_squared(both.x), relu_squared(both.y));
    }
    y_vector[i] = to;
  } else if (i == n / 4) {
    for (int j = 4 * (n / 4); j < n; ++j) y[j] = __float2half(relu_squared(__half2float(x[j])));
  }
}
extern "C" void relu_squared_float16(const half* x, half* y, int64_t n, cudaStream_t stream) {
  fours<<<(n / 4 + 64) / 64, 64, 0, stream>>>(x, y, n);
}
"""


def test_halves_seen_in_a_vector_of_the_threads_own_are_no_memory() -> None:
    """What a pointer to a local vector reads and writes was once an array of unknown origin, and nothing was widened."""
    new = flat(after(VIEWS, "vectorize"))
    assert "float2 from = x_vector_pack.at[k]; const half2* pairs = reinterpret_cast<const half2*>(&from);" in new
    assert "store_lanes(&y_vector[first], y_vector_pack);" in new
    shared = VIEWS.replace("    float2 to;", "    __shared__ float2 to;")
    assert shared != VIEWS and refused(shared, "vectorize")
    outlives = VIEWS.replace("  const int i", "  float2 to;\n  const int i").replace("    float2 to;\n", "")
    assert outlives != VIEWS and refused(
        outlives, "vectorize"
    )  # what an element begins with is what the one before left


@pytest.mark.parametrize("offset", ["0", "4"])
def test_views_of_vectors_are_right_at_any_size(tmp_path: Path, offset: str) -> None:
    folder = tmp_path / "relu"
    folder.mkdir()
    inputs = ROOT / "tests/inputs/relu_squared"
    text = (inputs / "spec.py").read_text()
    (folder / "spec.py").write_text(text.replace('"bfloat16"', '"float16"'))
    (folder / "reference.py").write_text((inputs / "reference.py").read_text())
    (folder / "baseline.plain.cu").write_text(VIEWS)
    candidate = tmp_path / "candidate.cu"
    candidate.write_text(after(VIEWS, "vectorize"))
    sizes = [f"float16:elements={n}" for n in (1, 4, 8, 9, 64, 127, 512)]
    ended = emulated(folder, candidate, offset, *sizes)
    assert ended.returncode == 0, ended.stdout + ended.stderr
