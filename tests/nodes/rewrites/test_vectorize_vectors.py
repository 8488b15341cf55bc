"""What vectorize leaves to the thread that has it: vectors, elements that depend on their thread, guards that ask for an element."""

from __future__ import annotations

import pytest

from tests.nodes.rewrites.steps import after, refused, stays

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


ELEMENT = kernel(f"{INDEX}if (i < n) {{ y[i] = x[i]; }}")


def test_one_array_in_two_sizes_is_written_one_by_one() -> None:
    new = after(kernel(f"{INDEX}if (i < n) {{ y[i] = x[i]; reinterpret_cast<float2*>(y)[i].x = 1; }}"), "vectorize")
    assert "y_pack" not in new and "y[i] = x_pack.at[k];" in new
    assert refused(kernel(f"{INDEX}if (i < n / 2) {{ {COPY} }}"), "vectorize")


NAMED = ELEMENT.replace(INDEX, f"const int t = threadIdx.x;\n  {INDEX}")


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        (ELEMENT, "= x[i]", "= x[i] * threadIdx.x"),  # an element that depends on its thread stays with it
        (NAMED, "= x[i]", "= x[i] * t"),
        # A guard that asks for the element: of the catalogue's look_up, `if (i < count && local[i] >= 0)`, an index was left over
        # that nothing declared.
        (ELEMENT, "if (i < n)", "if (i < n && x[i] > 0)"),
        (ELEMENT, "if (i < n)", "if (i >= n || x[i] < 0) return;\n "),
        (ELEMENT, "if (i < n)", "if (i % 3 && i < n)"),
    ],
)
def test_elements_that_stay(text: str, old: str, new: str) -> None:
    assert stays("vectorize", text, old, new)


def test_a_store_in_parentheses_is_a_store() -> None:
    """`(y[i]) = v` was once taken for a load."""
    assert "store_lanes(&y[first], y_pack);" in after(ELEMENT.replace("y[i]", "(y[i])"), "vectorize")
