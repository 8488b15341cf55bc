"""An index that is declared with others."""

from __future__ import annotations

from tests.nodes.rewrites.steps import after, refused

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
