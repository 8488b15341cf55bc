"""The rewrite block_rows: what it makes of kernels with a row a thread, and what it leaves alone."""

from __future__ import annotations

import pytest

from nodes.policies.rules import apply_step
from tests.nodes.rewrites.steps import FACTS, body, same

ROW = """\
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
"""
SOFTMAX = """\
  const float* in = x + (int64_t)row * n;
  float top = -INFINITY;
  for (int i = 0; i < n; ++i) top = fmaxf(top, in[i]);
  float sum = 0.0f;
  for (int i = 0; i < n; ++i) sum += expf(in[i] - top);
  for (int i = 0; i < n; ++i) y[(int64_t)row * n + i] = expf(in[i] - top) / sum;
  z[row] = sum;
"""


def kernel(inside: str, *, row: str = ROW, grid: str = "(rows + 255) / 256", block: str = "256", head: str = "") -> str:
    """A file with one kernel of a row a thread."""
    return f"""\
{head}__global__ void each_row(const float* x, const float* w, float* y, float* z, int* q, int rows, int n) {{
{row}{inside}}}

extern "C" void fuzz_float32(const float* x, const float* w, float* y, float* out, int64_t rows, int64_t n, cudaStream_t stream) {{
  each_row<<<{grid}, {block}, 0, stream>>>(x, w, y, out, nullptr, rows, n);
}}
"""


def applied(text: str) -> str | None:
    return apply_step("block_per_row", text, FACTS)


@pytest.mark.parametrize(
    ("row", "grid", "block"),
    [
        (ROW.replace("const int", "unsigned"), "(rows + 255) / 256", "256"),
        (ROW.replace("blockIdx.x * blockDim.x + threadIdx.x", "threadIdx.x + blockDim.x * blockIdx.x"), "(rows + 255) / 256", "256"),
        (ROW, "dim3((unsigned)((rows + T - 1) / T))", "dim3(T)"),
        (ROW, "ceil_div(rows, T)", "T"),
    ],
    ids=["unsigned", "other order", "dim3", "function"],
)  # fmt: skip
def test_forms_of_the_row_and_of_the_launch(row: str, grid: str, block: str) -> None:
    copied = "  for (int i = 0; i < n; ++i) y[row * n + i] = x[row * n + i];\n"
    head = "#define T 512\ntemplate <class N>\nN ceil_div(N a, N b) {\n  return (a + b - 1) / b;\n}\n"
    new = applied(kernel(copied, row=row, grid=grid, block=block, head=head))
    assert new is not None and "row = blockIdx.x;\n  for (int i = threadIdx.x; i < n; i += blockDim.x) y[" in new
    assert f"each_row<<<rows, {block}, 0, stream>>>" in new


@pytest.mark.parametrize(("rows", "first"), [("16", "16"), ("n * 4", "(int64_t)n * 4")])
def test_rows_that_are_no_parameter(rows: str, first: str) -> None:
    text = kernel(SOFTMAX, row=ROW.replace("row >= rows", f"row >= {first}"), grid="(count + 255) / 256")
    text = text.replace("  each_row<<<", f"  const long count = {rows};\n  each_row<<<")
    assert f"each_row<<<{first}, 256, 0, stream>>>" in (applied(text) or "")
    assert applied(text.replace(f"count = {rows}", f"count = {rows} - 1")) is None


def test_narrow_blocks_get_wider() -> None:
    text = kernel(SOFTMAX, grid="(rows + 31) / 32", block="32")
    assert "each_row<<<rows, 256, 0, stream>>>" in (applied(text) or "")
    assert applied(text.replace("void each_row", "void __launch_bounds__(32) each_row")) is None


ROWS = "  for (int row = blockIdx.x * blockDim.x + threadIdx.x; row < rows; row += blockDim.x * gridDim.x) {\n"
MEAN = "    float sum = 0;\n    for (int i = 0; i < n; ++i) sum += x[row * n + i];\n    z[row] = sum / n;\n  }\n"
TWO = MEAN.replace(
    "    z[row]", "    float top = 0;\n    for (int i = 0; i < n; ++i) top = max(top, x[row * n + i]);\n    z[row]"
)
EXTREMES = """\
  float top = -1e30f, bottom = 1e30f;
  for (int i = 0; i < n; ++i) {
    const float v = x[row * n + i];
    if (v > top) top = v;
    bottom = v < bottom ? v : bottom;
  }
  y[row] = top;
  z[row] = bottom;
"""
CENTRED = """\
  float mean = 0.0f;
  for (int i = 0; i < n; ++i) mean += x[row * n + i];
  mean /= n;
  for (int i = 0; i < n; ++i) y[row * n + i] = x[row * n + i] - mean;
  if (z != nullptr) z[row] = mean;
"""


OTHERS = {
    "a softmax": kernel(SOFTMAX),
    "rows that are left out": kernel(SOFTMAX, row=ROW.replace("row >= rows", "row >= rows || w[row] < 0.0f")),
    "a loop over rows": kernel(MEAN, row=ROWS, grid="std::min((rows + 255) / 256, int64_t(132))"),
    "two reductions in a loop over rows": kernel(TWO, row=ROWS),
    "extremes": kernel(EXTREMES),
    "totals that go on changing": kernel(CENTRED),
}


def test_other_forms_compute_the_same() -> None:
    made = {name: applied("#include <math.h>\n#include <algorithm>\n" + text) or "" for name, text in OTHERS.items()}
    apart = [name for name, new in made.items() if "__syncthreads" in body(new, "each_row")]
    assert apart == ["a loop over rows"], "a barrier keeps its rows' sums apart"
    assert not any(applied(new) for new in made.values())
    same({name: ("#include <math.h>\n#include <algorithm>\n" + OTHERS[name], new) for name, new in made.items()})


LOOP = "  for (int i = 0; i < n; ++i) "
REFUSED = {
    "index of the largest": "  int at = 0;\n" + LOOP + "if (x[row * n + i] > x[row * n + at]) at = i;\n  q[row] = at;\n",
    "running sum": "  float s = 0;\n" + LOOP + "{ s += x[row * n + i]; y[row * n + i] = s; }\n",
    "product": "  float s = 1;\n" + LOOP + "s *= x[row * n + i];\n  y[row] = s;\n",
    "sum from one": "  float s = 1;\n" + LOOP + "s += x[row * n + i];\n  y[row] = s;\n",
    "sum in two loops": "  float s = 0;\n" + LOOP + "s += x[row * n + i];\n" + LOOP + "s += w[i];\n  y[row] = s;\n",
    "sum in halves": "  __half s = 0;\n" + LOOP + "s += x[row * n + i];\n  y[row] = s;\n",
    "break": LOOP + "{ if (x[row * n + i] < 0) break; y[row * n + i] = 1; }\n",
    "return": LOOP + "{ if (x[row * n + i] < 0) return; y[row * n + i] = 1; }\n",
    "while": "  int i = 0;\n  while (i < n) { y[row * n + i] = 1; ++i; }\n",
    "columns": "  float s = 0;\n" + LOOP + "s += x[i * rows + row];\n  y[row] = s;\n",
    "matrices": "  float s = 0;\n" + LOOP + "s += x[row / n * n + i] * w[i * n + row % n];\n  y[row] = s;\n",
    "few elements": LOOP.replace("i < n", "i < 4") + "y[row * 4 + i] = x[row * 4 + i];\n",
    "one of two": "  if (n > 1) y[row] = 1; else y[row] = 2;\n" + LOOP + "z[row * n + i] = x[row * n + i];\n",
    "no loop": "  y[row] = x[row];\n",
    "neighbours": LOOP + "y[row * n + i] = y[row * n + i + 1];\n",
    "backwards": LOOP + "y[row * n + i] = x[row * n + i];\n" + LOOP + "z[row * n + i] = y[row * n + n - 1 - i];\n",
    "read once more": LOOP + "y[row * n + i] = x[row * n + i];\n  z[row] = y[row * n];\n",
    "last one wins": LOOP + "if (x[row * n + i] > 0) q[row] = i;\n",
    "scattered": LOOP + "y[q[row * n + i]] = x[row * n + i];\n",
    "counted by all": LOOP + "atomicAdd(&y[i], x[row * n + i]);\n",
    "array": "  float bins[4] = {};\n" + LOOP + "bins[i % 4] += x[row * n + i];\n  y[row] = bins[0];\n",
    "pointer to a variable": "  float s = 0;\n  float* p = &s;\n" + LOOP + "*p += x[row * n + i];\n  y[row] = s;\n",
    "reference": "  float s = 0;\n" + LOOP + "{ float& t = s; t += x[row * n + i]; }\n  y[row] = s;\n",
    "by reference": "  float s = 0;\n" + LOOP + "add(s, x[row * n + i]);\n  y[row] = s;\n",
    "object": "  Mean s;\n" + LOOP + "s.add(x[row * n + i]);\n  y[row] = s.value;\n",
    "macro": LOOP + "PUT(row * n + i, x[row * n + i]);\n",
    "shared by all": "  float s = 0;\n" + LOOP + "s += x[row * n + i];\n  y[row] = s;\n  calls++;\n",
    "offset that moves": "  int b = row * n;\n" + LOOP + "y[b + i] = x[b + i];\n  b += 1;\n" + LOOP + "z[row * n + i] = y[b + i];\n",
    "pointer that walks": "  const float* p = x + row * n;\n" + LOOP + "{ y[row * n + i] = *p; p++; }\n",
    "shared memory": "  __shared__ float s[256];\n" + LOOP + "s[threadIdx.x] = x[row * n + i];\n",
    "which thread": LOOP + "y[row * n + i] = x[row * n + i] * threadIdx.x;\n",
}  # fmt: skip
HEAD = """\
__device__ int calls;
#define PUT(at, value) y[0] = value
__device__ inline void add(float& total, float value) { total += value; }
struct Mean {
  float value = 0, count = 0;
  __device__ void add(float v) { value += (v - value) / ++count; }
};
"""


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_another_thing_stays(name: str) -> None:
    text = kernel(REFUSED[name], head=HEAD)
    assert applied(text) is None
    assert applied(text.replace(REFUSED[name], SOFTMAX)) is not None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(rows + 255) / 256", "(rows / 2 + 255) / 256"),
        ("(rows + 255) / 256", "(rows + 127) / 128"),
        ("(rows + 255) / 256", "dim3((rows + 255) / 256, 2)"),
        ("256, 0, stream", "256, 1024, stream"),
        ("int rows, int n) {", "int rows, int n) {\n  rows -= 1;"),
        ("row >= rows", "row > rows"),
    ],
)
def test_launches_of_another_kind_stay(old: str, new: str) -> None:
    text = kernel(SOFTMAX)
    assert old in text and applied(text.replace(old, new, 1)) is None


def test_a_total_of_all_the_thread_s_rows_stays() -> None:
    inside = "    for (int i = 0; i < n; ++i) sum += x[row * n + i];\n    z[row] = sum;\n  }\n"
    assert applied(kernel(inside, row="  float sum = 0;\n" + ROWS)) is None
