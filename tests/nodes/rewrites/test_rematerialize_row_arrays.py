"""Rows that a thread's share of is kept in arrays, read again by loops over their elements."""

from __future__ import annotations

import pytest

from tests.nodes.rewrites.steps import after, same, stays
from tests.nodes.rewrites.test_differential import ENTRY, HEAD

STEP = "rematerialize_row_arrays"
BODY = """
  const int lane = threadIdx.x % 32;
  const float* row = x + blockIdx.x * n;
  float kept[4];
  float most = -INFINITY, sum = 0.0f;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int i = lane + k * 32;
    kept[k] = i < n ? row[i] * 2 : -INFINITY;
    most = fmaxf(most, kept[k]);
  }
  for (int s = 16; s > 0; s /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, s));
  for (int k = 0; k < 4; ++k) {
    kept[k] = __expf(kept[k] - most);
    sum += kept[k];
  }
  for (int s = 16; s > 0; s /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, s);
  for (int k = 0; k < 4; ++k) {
    const int i = lane + k * 32;
    if (i < n) y[blockIdx.x * n + lane + k * 32] = kept[k] / sum;
  }
"""


def text_of(body: str, launch: str = "trap_kernel<<<rows, 32, 0, stream>>>(x, y, n);") -> str:
    head = HEAD.replace("#include <stdint.h>", "#include <math.h>\n#include <stdint.h>")
    return f"{head}__global__ void trap_kernel(const float* x, float* y, int64_t n) {{{body}}}\n" + ENTRY.format(
        launch=launch
    )


def test_what_was_kept_is_read_again() -> None:
    new = after(text_of(BODY), STEP)
    assert "kept[" not in new and "unroll" not in new
    packed = after(new, "vectorize")
    assert packed.count("load_lanes<VEC>(&row[first])") == 3
    assert "(n < 4 * 32 ? n : 4 * 32) % PACK == 0 &&" in packed, "the choice is one factor"


OTHERS = {
    "a row that is longer than the arrays": BODY,
    "rounds of the block": """
  float kept[16];
  float sum = 0.0f;
  __shared__ float sums[128];
  for (int k = 0; blockDim.x * k + threadIdx.x < n; k++) {
    kept[k] = x[blockIdx.x * n + blockDim.x * k + threadIdx.x] + 1;
    sum += kept[k];
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  sum = 0.0f;
  for (int t = 0; t < 128; ++t) sum += sums[t];
  for (int k = 0; blockDim.x * k + threadIdx.x < n; k++) {
    y[blockIdx.x * n + blockDim.x * k + threadIdx.x] = kept[k] / sum;
  }
""",
    "in place": """
  const int lane = threadIdx.x % 32;
  float* row = y + blockIdx.x * n;
  float kept[40];
  float sum = 0.0f;
  for (int k = 0; k < 40; ++k) {
    const int i = lane + k * 32;
    if (i < n) {
      kept[k] = row[i];
      sum += kept[k];
    }
  }
  for (int s = 16; s > 0; s /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, s);
  for (int k = 0; k < 40; ++k) {
    const int i = lane + k * 32;
    if (i < n) row[i] = kept[k] - sum;
  }
""",
}  # fmt: skip


def test_rows_that_are_read_again_come_out_the_same() -> None:
    widths = {name: 128 if name == "rounds of the block" else 32 for name in OTHERS}
    texts = {n: text_of(OTHERS[n], f"trap_kernel<<<rows, {w}, 0, stream>>>(x, y, n);") for n, w in widths.items()}
    assert not any("kept[" in after(text, STEP) for text in texts.values())
    same({f"{n}, {steps}": (text, steps) for n, text in texts.items() for steps in (STEP, f"{STEP} vectorize")})


LAST = "if (i < n) y[blockIdx.x * n + lane + k * 32] = kept[k] / sum;"
REFUSED = {
    "an element by itself": ("kept[k] / sum", "kept[0] / sum"),
    "the array itself": ("  float most", "  use(kept);\n  float most"),
    "another step": (LAST, LAST.replace("k * 32", "k * 16").replace("i < n", "lane + k * 16 < n")),
    "another end": (LAST, LAST.replace("i < n", "i < n - 1")),
    "an index by other steps": ("= kept[k] / sum", "+= kept[k] / sum + k"),
    "places behind the row that count": (": -INFINITY;", ": 0.0f;"),
    "a sum that they add to": ("sum += kept[k];", "sum += kept[k] - most;"),
    "a number that is not low enough": (": -INFINITY;", ": -1e4f;"),
    "a loop that says nothing of the end": ("i < n ? row[i] * 2 : -INFINITY;", "row[i];"),
    "a count of all places": ("sum += kept[k];", "sum += kept[k];\n    most += 1.0f;"),
    "a variable that changes": ("row[i] * 2", "row[i] * most"),
    "a variable of the loop": ("    kept[k] = i < n ? row[i] * 2", "    const float v = row[i];\n    kept[k] = i < n ? v"),
    "memory that changes": ("row[i] * 2", "y[i] * 2"),
    "an element that is set now and then": ("sum += kept[k];", "if (most > 0) kept[k] = 0.0f;\n    sum += kept[k];"),
    "a longer array": ("float kept[4];", "float kept[5];"),
    "a loop that may be skipped": ("  for (int k = 0; k < 4; ++k) {\n    kept", "  if (n > 3) for (int k = 0; k < 4; ++k) {\n    kept"),
    "threads that begin further on": ("threadIdx.x % 32", "threadIdx.x % 64"),
    "an end that changes": ("  float most", "  n -= 1;\n  float most"),
    "a place by another variable's name": (LAST, LAST.replace("y[", "{ const int lane = n; y[") + " }"),
    "a vote": ("__expf(kept[k] - most)", "__shfl_sync(~0u, kept[k], 0)"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new"), REFUSED.values(), ids=REFUSED)
def test_arrays_that_stay(old: str, new: str) -> None:
    assert stays(STEP, text_of(BODY), old, new, times=-1)
