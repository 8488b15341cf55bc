"""Kernels written with objects that have methods, and with lambdas."""

from __future__ import annotations

from tests.nodes.rewrites.steps import after, flat, refused, same
from tests.nodes.rewrites.test_differential import ENTRY, HEAD

OBJECTS = """\
struct Highest {
  float m = -1.0f;
  int seen = 0;
  __device__ void take(float v) {
    m = fmaxf(m, v);
    ++seen;
  }
};
struct Shift {
  __device__ Shift(float by, float of) : by(by), of(of) {}
  __device__ float operator()(float v) const { return v * of - by; }
  const float by, of;
};
template <typename F>
__device__ void for_each(const float* from, int n, F&& visit) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) visit(i, from[i]);
}
__device__ float most_of(const float* from, int n, Highest found) {
  for (int i = 0; i < n; ++i) found.take(from[i]);
  return found.m + found.seen;
}
__device__ float sum_of(const float* from, int n) {
  float v = 0.0f;
  for (int i = 0; i < n; ++i) v += from[i];
  return v;
}
"""
BODIES = {
    "an object that its method changes": """
  Highest highest;
  for (int i = 0; i < n; ++i) highest.take(x[blockIdx.x * n + i]);
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] += highest.m + highest.seen;
""",
    "an object made of what keeps its value": """
  const float of = 3.0f, by = x[0];
  const Shift shift(by, of);
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = shift(x[blockIdx.x * n + i] + 1);
""",
    "an object made of what changes": """
  float of = 3.0f, by = x[0];
  const Shift shift(by, of);
  of = 4.0f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const float by = 7.0f;
    y[blockIdx.x * n + i] = shift(x[blockIdx.x * n + i] + by);
  }
""",
    "lambdas": """
  const float by = x[1];
  float* row = y + blockIdx.x * n;
  for_each(x + blockIdx.x * n, n, [&](int i, const float& v) { row[i] = v * by; });
  for_each(x + blockIdx.x * n, n, [=](int j, float v) { row[j] += v; });
""",
    "a lambda of values": """
  float by = x[1];
  float* row = y + blockIdx.x * n;
  const auto visit = [=](int i, float v) { row[i] = v * by; };
  by = 5.0f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) visit(i, x[i] + by);
""",
    "a lambda whose names mean something else": """
  const float by = x[1];
  float* row = y + blockIdx.x * n;
  const auto visit = [&](int i, float v) { row[i] = v * by; };
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const float by = 9.0f;
    visit(i, x[i] + by);
  }
""",
    "a reference to what the lambda changes": """
  float* row = y + blockIdx.x * n;
  const auto visit = [&](int i, const float& v) {
    row[i] = 2 * v;
    row[i] += v;
  };
  for (int i = threadIdx.x; i < n; i += blockDim.x) visit(i, row[i]);
""",
    "an array that a lambda copies": """
  float held[2] = {x[1], x[2]};
  float* row = y + blockIdx.x * n;
  const auto visit = [=](int i, float v) { row[i] = v * held[0]; };
  held[0] = 5.0f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) visit(i, x[i]);
""",
    "an object that is handed on as a copy": """
  Highest highest;
  highest.take(x[0]);
  const float copied = most_of(x + blockIdx.x * n, n, highest);
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] += highest.m + 2 * copied + highest.seen;
""",
    "names that a method has as well": """
  const float of = 3.0f, v = x[0];
  const Shift shift(v, of);
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    float w = x[i];
    w = shift(w * 2);
    y[blockIdx.x * n + i] = w;
  }
""",
    "results": """
  float total = sum_of(x + blockIdx.x * n, n);
  total = sum_of(y + blockIdx.x * n, n) + total;
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = total;
""",
}  # fmt: skip


KEPT = {"an array that a lambda copies", "a lambda of values", "a lambda whose names mean something else"}


def test_what_is_written_out_computes_the_same() -> None:
    texts = {}
    for name, inside in BODIES.items():
        kernel = f"__global__ void trap_kernel(const float* x, float* y, int64_t n) {{{inside}}}\n"
        text = HEAD + OBJECTS + kernel + ENTRY.format(launch="trap_kernel<<<rows, 64, 0, stream>>>(x, y, n);")
        assert refused(text, "inline_device_functions") == (name in KEPT), name
        if name not in KEPT:
            texts[name] = text, "inline_device_functions"
            new = after(*texts[name])
            body = flat(new[new.index("__global__") :])
            assert not any(
                call in body.replace("const Shift shift(", "") for call in ("for_each(", "take(", "shift(")
            ), name
            assert ("Shift shift" in body) == (name == "an object made of what changes")
    same(texts)
