"""Indices that are worked down step by step, and tables of pointers."""

from __future__ import annotations

import pytest

from tests.nodes.rewrites.test_cuda_rewrites import after, flat, refused

HEAD = "#include <cuda_fp16.h>\n#include <stdint.h>\n#define USES_J j\n__device__ void bump(int& at) { at += 1; }\n"
TEXT = """\
{head}template <typename T>
__global__ void split(T* q, T* k, const T* x, int n, int width, int heads) {{
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {{
    {body}
  }}
}}
#define RUN(name, T) \\
  extern "C" void split_##name(T* q, T* k, const T* x, int64_t rows, int64_t heads, int64_t width, cudaStream_t stream) {{ \\
    split<T><<<(rows * 2 * heads * width + 95) / 96, 96, 0, stream>>>(q, k, x, rows * 2 * heads * width, width, heads); \\
  }}
RUN(float32, float)
RUN(float16, __half)
"""
BODY = """\
T* to[2] = {q, k};
    int j = i;
    const int column = j % width;
    j /= width;
    const int head = j % heads;
    j /= heads;
    const int part = j % 2;
    j = j / 2;
    to[part][(head * (n / (2 * heads * width)) + j) * width + column] = x[i];"""


def kernel(body: str = BODY) -> str:
    return after(TEXT.format(head=HEAD.replace("USES_J j", "USES_H h"), body=body), "expand_macros")


def test_a_parameter_keeps_its_name_in_front() -> None:
    body = BODY.replace("T* to[2]", "T* table[2]").replace("to[part]", "table[part]")
    text = kernel(body).replace("  for (int i", "  n -= blockIdx.y * (width + 1);\n  for (int i")
    new = flat(after(text, "single_assignment_indices"))
    assert "const int n_2 = n - blockIdx.y * (width + 1); for (int i" in new
    assert "i < n_2;" in new and "(n_2 / (2 * heads * width))" in new


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("j /= heads;", "if (i > 3) j /= heads;"),
        ("j /= heads;", "for (int t = 0; t < 2; ++t) j /= heads;"),
        ("j /= heads;", "bump(j);"),
        ("j /= heads;", "int& other = j; other /= heads;"),
        ("j /= heads;", "auto halve = [&] { return j / 2; };"),
        ("j /= heads;", "const int same = (j /= heads);"),
        ("int j = i;", "int j; j = i;"),
        ("int j = i;", "static int j = i;"),
        ("int j = i;", "float j = i;"),
    ],
)
def test_other_changes_stay(old: str, new: str) -> None:
    assert old in BODY
    assert refused(kernel(BODY.replace(old, new)), "single_assignment_indices")


def test_a_macro_that_names_it_is_left_alone() -> None:
    assert refused(kernel().replace("USES_H h", "USES_J j"), "single_assignment_indices")
    assert not refused(kernel(), "single_assignment_indices")


def test_what_finds_no_element_is_left_alone() -> None:
    assert refused(kernel("int count = 1; count += i; q[i] = x[i] * (T)count;"), "single_assignment_indices")


PLACES = """\
__global__ void scale(const float* x, const float* w, float* y, int rows, int n) {
  const int row = blockIdx.y * blockDim.y + threadIdx.y, i = blockIdx.x * blockDim.x + threadIdx.x;
  if (row < rows && i < n) y[row * n + i] = x[row * n + i] * w[i];
}
extern "C" void run(const float* x, const float* w, float* y, int rows, int n, cudaStream_t stream) {
  scale<<<dim3((n + 31) / 32, (rows + 7) / 8), dim3(32, 8), 0, stream>>>(x, w, y, rows, n);
}
"""


def test_a_place_that_is_declared_with_others_gets_a_declaration() -> None:
    assert refused(PLACES, "vectorize")
    new = after(PLACES, "declare_at_first_value")
    assert "threadIdx.y;\n  const int i = blockIdx.x * blockDim.x + threadIdx.x;\n" in new
    assert "store_lanes(&y[row * n + first], y_pack);" in after(new, "vectorize")
    for other in ("i = threadIdx.x", "* p = nullptr"):
        assert refused(PLACES.replace("i = blockIdx.x * blockDim.x + threadIdx.x", other), "declare_at_first_value")
