"""What vectorize leaves to the thread that has it: vectors, elements that depend on their thread, guards that ask for an element."""

from __future__ import annotations

import pytest

from tests.nodes.rewrites.steps import after, refused

TEXT = """\
__global__ void plain(const float* x, float* y, int n) {{
  {body}
}}
extern "C" void run(const float* x, float* y, int n, cudaStream_t stream) {{
  plain<<<(n / 2 + 256) / 256, 256, 0, stream>>>(x, y, n);
}}
"""
INDEX = "int i = blockIdx.x * blockDim.x + threadIdx.x;\n  "
COPY = "reinterpret_cast<float2*>(y)[i] = reinterpret_cast<const float2*>(x)[i];"


def kernel(body: str) -> str:
    return TEXT.format(body=body)


def test_one_array_in_two_sizes_is_written_one_by_one() -> None:
    new = after(kernel(f"{INDEX}if (i < n) {{ y[i] = x[i]; reinterpret_cast<float2*>(y)[i].x = 1; }}"), "vectorize")
    assert "y_pack" not in new and "y[i] = x_pack.at[k];" in new
    assert refused(kernel(f"{INDEX}if (i < n / 2) {{ {COPY} }}"), "vectorize")


def test_an_element_that_depends_on_its_thread_stays_with_it() -> None:
    text = kernel(f"{INDEX}if (i < n) {{ y[i] = x[i]; }}")
    assert refused(text.replace("= x[i]", "= x[i] * threadIdx.x"), "vectorize")
    named = text.replace(INDEX, f"const int t = threadIdx.x;\n  {INDEX}")
    assert refused(named.replace("= x[i]", "= x[i] * t"), "vectorize")
    assert not refused(named, "vectorize")


@pytest.mark.parametrize(
    "guard", ["if (i < n && x[i] > 0)", "if (i >= n || x[i] < 0) return;\n ", "if (i % 3 && i < n)"]
)
def test_a_guard_that_asks_for_the_element_stays(guard: str) -> None:
    """Of the catalogue's look_up, `if (i < count && local[i] >= 0)`, an index was left over that nothing declared."""
    assert refused(kernel(f"{INDEX}{guard} y[i] = x[i];"), "vectorize")


def test_a_store_in_parentheses_is_a_store() -> None:
    """`(y[i]) = v` was once taken for a load."""
    text = kernel(f"{INDEX}if (i < n) {{ (y[i]) = x[i]; }}")
    assert "store_lanes(&y[first], y_pack);" in after(text, "vectorize")
