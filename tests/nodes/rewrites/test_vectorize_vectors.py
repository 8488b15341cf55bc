"""Kernels that move vectors of 4 or 8 bytes a thread already: how pack widens them, and what it leaves alone."""

from __future__ import annotations

import pytest

from tests.nodes.rewrites.steps import after, flat, stays

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


@pytest.mark.parametrize(
    ("body", "loads", "condition"),
    [
        (f"{INDEX}if (i < n / 2) {{ {COPY} }}", "&reinterpret_cast<const float2*>(x)[first]", "n / 2 % PACK"),
        (f"{INDEX}if (i >= n / 2) return;\n  {COPY}", "&reinterpret_cast<const float2*>(x)[first]", "n / 2 % PACK"),
        (
            f"{INDEX}if (i < n / 2) {{ reinterpret_cast<float2*>(y)[i] = *(const float2*)(x + n + 2 * i); }}",
            "(const float2*)(x + n + 2 * first)",
            "n % (2 * PACK)",  # where the vectors begin, in elements of the parameter
        ),
        (
            "const float2* row = (const float2*)(x + blockIdx.x * n);\n  float2* to = (float2*)y;\n  "
            "for (int i = threadIdx.x; i < n / 2; i += blockDim.x) to[blockIdx.x * (n / 2) + i] = row[i];",
            "&row[first]",
            "n % (2 * PACK)",
        ),
    ],
)
def test_a_thread_takes_as_many_vectors_as_make_16_bytes(body: str, loads: str, condition: str) -> None:
    new = after(kernel(body), "vectorize")
    assert f"load_lanes<VEC>({loads})" in new and flat(new).count("; Lanes<float2, VEC>") == 1
    assert f"{condition} == 0" in new and "PACK = PACK_BYTES / sizeof(float2);" in new
    assert "aligned_to_16_bytes(x, y)" in new or "aligned_to_16_bytes(y, x)" in new


def test_a_grid_is_not_empty_where_there_is_no_whole_vector() -> None:
    """One element is no pair; the launch had a block for it."""
    assert "ceil_div((n / 2) / WIDTH + 1, 256)" in after(kernel(f"{INDEX}if (i < n / 2) {{ {COPY} }}"), "vectorize")
    assert "ceil_div(n / WIDTH, 256)" in after(ELEMENT, "vectorize")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(x)[i];", "(x)[i + threadIdx.x];"),
        (
            "(x)[i]; }",
            "(x)[i]; } else if (i == n / 2 && n % 2) { y[n - 1] = x[n - 1]; }",
        ),  # the thread behind the last pair
        ("float2*>(", "Unseen*>("),  # who knows how long that is
        ("float2*>(", "half2*>("),  # its copy goes half by half
        ("float2*>(", "float4*>("),  # nothing is wider
    ],
)
def test_what_is_not_understood_stays(old: str, new: str) -> None:
    assert stays("vectorize", kernel(f"{INDEX}if (i < n / 2) {{ {COPY} }}"), old, new, times=-1)


@pytest.mark.parametrize(
    "read", ["*(const float2*)(x + 1 + 2 * i)", "*(const float2*)(x + i)", "*(const float2*)(x + 3 * i)"]
)
def test_vectors_that_begin_anywhere_are_read_one_by_one(read: str) -> None:
    new = after(kernel(f"{INDEX}if (i < n / 2) {{ reinterpret_cast<float2*>(y)[i] = {read}; }}"), "vectorize")
    assert f"y_pack.at[k] = {read};" in new and "x_pack" not in new


def test_one_array_in_two_sizes_is_written_one_by_one() -> None:
    new = after(kernel(f"{INDEX}if (i < n / 2) {{ {COPY} y[2 * i + 1] = x[0]; }}"), "vectorize")
    assert "y_pack" not in new and "reinterpret_cast<float2*>(y)[i] = x_pack.at[k];" in new


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
