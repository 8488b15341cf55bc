"""Faults that engines' own kernels found: sizes of types, defaults that are made of other arguments, launches through `__VA_ARGS__`."""

from __future__ import annotations

import pytest

from tests.nodes.rewrites.steps import after, flat, refused

COPY = """\
__global__ void copy(const float* x, float* y, long bytes) {
  long n = bytes / sizeof(float);
  long m = bytes / SIZE;
  long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n && i < m) y[i] = x[i] / (1.0f + x[i]);
}
"""


@pytest.mark.parametrize(
    "size", ["sizeof(float)", "alignof(float)", "sizeof (double)", "(2 * sizeof(float))", "sizeof(x[0])"]
)
def test_a_number_of_bytes_is_no_float(size: str) -> None:
    new = after(COPY.replace("SIZE", size), "fast_math")
    assert f"bytes / {size};" in new and "bytes / sizeof(float);" in new and "__fdividef(x[i]" in new


QUANT = """\
#include <type_traits>
template <typename T, typename DST, bool MAJOR = false, bool PACKED = false, typename S = std::conditional_t<PACKED, unsigned, float>>
__global__ void quant(const T* x, DST* y, S* scale, long n) {
  long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    y[i] = (DST)x[i];
    if (MAJOR && i == 0) scale[0] = S(1);
  }
}
"""
DIRECT = """\
extern "C" void entry(const float* x, float* y, float* scale, long n, cudaStream_t stream) {
  quant<float, float, true><<<(n + 255) / 256, 256, 0, stream>>>(x, y, scale, n);
}
"""
THROUGH = """\
#define LAUNCH(MAJOR, ...) \\
  do { \\
    quant<float, float, MAJOR><<<(n + 255) / 256, 256, 0, stream>>>(x, y, ##__VA_ARGS__); \\
  } while (0)
extern "C" void entry(const float* x, float* y, float* scale, long n, cudaStream_t stream) {
  LAUNCH(true, scale, n);
}
"""


def test_a_step_may_add_a_parameter_behind_defaults() -> None:
    assert "launch_dependent" in after(QUANT + DIRECT, "programmatic_dependent_launch")


def test_a_launch_through_a_variadic_macro_is_expanded() -> None:
    new = flat(after(QUANT + THROUGH, "expand_macros"))
    assert (
        "quant<float, float, true><<<(n + 255) / 256, 256, 0, stream>>>(x, y, scale, n);" in new and "LAUNCH" not in new
    )
    nothing = flat(
        after(
            "#define RUN(k, ...) k<<<1, 1>>>(x, ##__VA_ARGS__)\n__global__ void f(int*);\nvoid g(int* x) { RUN(f); }\n",
            "expand_macros",
        )
    )
    assert "f<<<1, 1>>>(x)" in nothing
    assert refused("#define RUN(k, ...) k<<<1, 1>>>(__VA_OPT__(x,) 1)\nvoid g(int x) { RUN(f, 1); }\n", "expand_macros")


SUM = """\
__global__ void moe_sum(float* out, const float* in, int topk, int d) {
  long t = blockIdx.x;
  for (int i = threadIdx.x; i < d; i += blockDim.x) {
    float x = 0.0f;
    for (int k = 0; k < topk; ++k) {
      x += in[(t * topk + k) * d + i];
    }
    out[t * d + i] = x;
  }
}
extern "C" void entry(float* out, const float* in, int rows, int topk, int d, cudaStream_t stream) {
  moe_sum<<<rows, 256, 0, stream>>>(out, in, topk, d);
}
"""


def test_a_wide_store_is_not_worth_loads_that_stay_apart() -> None:
    """Each lane would walk its own column, one element at a time."""
    assert refused(SUM, "vectorize")
    plain = SUM.replace("in[(t * topk + k) * d + i]", "1.0f").replace("x;\n  }\n}", "x + in[t * d + i];\n  }\n}")
    assert "load_lanes" in after(plain, "vectorize"), "where the loads are packs, too"
