"""Launches and loops out of macros: the text that comes out, what is left alone, and that other steps then apply."""

from __future__ import annotations

import pytest

from tests.nodes.rewrites.steps import after, flat, refused, stays
from tests.nodes.rewrites.test_cuda_rewrites import ROWS

DISPATCH = """\
#include <cuda_fp16.h>
#define CEIL(a, b) (((a) + (b)-1) / (b))

template <typename T>
__global__ void twice(const T* x, T* y, long n) {
  long i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = (T)((float)x[i] * 2.0f);
}

#define LAUNCH(T, threads)                                                  \\
  do {                                                                      \\
    twice<T><<<CEIL(n, threads), threads, 0, stream>>>((const T*)x, (T*)y, n); \\
  } while (0)

#define ENTRY(NAME, T)                                                      \\
  extern "C" void twice_##NAME(const T* x, T* y, long n, cudaStream_t stream) { \\
    LAUNCH(T, 256);                                                         \\
  }
ENTRY(float16, __half)
ENTRY(float32, float)
#undef ENTRY
"""
LOOP = """\
#define KERNEL_LOOP(i, n) for (long i = (long)blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += (long)blockDim.x * gridDim.x)

__global__ void twice(const float* x, float* y, long n) {
  KERNEL_LOOP(at, n) {
    y[at] = x[at] * 2.0f;
  }
}
extern "C" void run(const float* x, float* y, long n, cudaStream_t stream) {
  twice<<<1024, 256, 0, stream>>>(x, y, n);
}
"""


def test_a_launch_in_a_macro_of_a_macro_is_written_out() -> None:
    new = after(DISPATCH, "expand_macros")
    assert "#define CEIL" in new and "LAUNCH" not in new and "ENTRY" not in new
    assert 'extern "C" void twice_float16(const __half* x, __half* y, long n, cudaStream_t stream) {' in new
    launch = "twice<__half><<<CEIL(n, 256), 256, 0, stream>>>((const __half*)x, (__half*)y, n);"
    assert f"do {{ {launch} }} while (0);" in flat(new)


def test_a_loop_in_a_macro_is_a_loop_and_can_be_packed() -> None:
    assert refused(LOOP, "vectorize")
    new = after(LOOP, "expand_macros")
    assert (
        "for (long at = (long)blockIdx.x * blockDim.x + threadIdx.x; at < (n); at += (long)blockDim.x * gridDim.x) {"
        in new
    )
    assert "#define" not in new and "store_lanes(&y[first], y_pack);" in after(new, "vectorize")


def test_lines_of_a_macro_stand_where_it_was_used() -> None:
    text = ROWS.replace("  scale_rows<<<rows, 256, 0, stream>>>(x, factor, y, n);", "  CASE(256);").replace(
        'extern "C"', "#define CASE(W)       \\\n  if (n > W) {  \\\n    scale_rows<<<rows, W, 0, stream>>>(x, factor, y, n); \\\n  }\n\nextern \"C\""
    )  # fmt: skip
    new = after(text, "expand_macros")
    assert "  if (n > 256) {\n    scale_rows<<<rows, 256, 0, stream>>>(x, factor, y, n);\n  }\n}" in new


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("y[at] = x[at] * 2.0f;", "y[at] = x[at] * 2.0f;\n#ifdef OTHER\n#define KERNEL_LOOP(i, n) if (n)\n#endif"),
        ("(i, n) for", "(i, n) for (; #n[0];) for"),
        ("KERNEL_LOOP(at, n) {", "KERNEL_LOOP(at) {"),
        ("i < (n)", "i < KERNEL_LOOP(i, n)"),
        ("(i, n) for", "(i, n...) for"),  # a name for the rest
        ("gridDim.x)\n", "gridDim.x) /* over all */ if (i != 3)\n"),  # the grammar ends the text at the comment
    ],
)
def test_a_macro_that_is_not_understood_stays(old: str, new: str) -> None:
    assert stays("expand_macros", LOOP, old, new)


BY_TYPE = LOOP.replace("KERNEL_LOOP(i, n) for", "KERNEL_LOOP(i, n, T) for").replace("i < (n)", "i < (T)n")


@pytest.mark.parametrize(
    ("text", "given", "becomes"),
    [
        (LOOP, "KERNEL_LOOP(at,  // each\n              n /* of all */) {", "at < (n);"),
        (LOOP, "KERNEL_LOOP(at, 1'024) {", "at < (1'024);"),
        (LOOP, "KERNEL_LOOP(at, COUNT) {", "at < (COUNT);"),  # a name that stands for more
        (BY_TYPE, "KERNEL_LOOP(at, n, long) {", "at < (long)n;"),  # a cast keeps its parentheses
    ],
)
def test_arguments_of_other_forms(text: str, given: str, becomes: str) -> None:
    assert becomes in after("#define COUNT n - 1\n" + text.replace("KERNEL_LOOP(at, n) {", given), "expand_macros")


def test_a_comment_does_not_swallow_what_is_behind_it() -> None:
    text = LOOP.replace("gridDim.x)\n", "gridDim.x)  // over all\n", 1)
    assert after(text, "expand_macros") == after(LOOP, "expand_macros")
