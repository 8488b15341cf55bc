"""A row's maximum and the sum of exponentials below it, over the block in one exchange."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nodes.rewrites.steps import ROOT, after, check, flat, refused, stays

SOFTMAX = (ROOT / "tests/inputs/row_softmax/baseline.plain.cu").read_text()
PREPARED = after(SOFTMAX, "symbolic_block_size", "warp_shuffle_reduction")


def test_a_maximum_that_may_be_minus_infinity_is_no_shift() -> None:
    new = flat(after(PREPARED.replace("-FLT_MAX", "-INFINITY"), "fuse_block_reductions"))
    assert "const float own_shift = fmaxf(largest, -3.402823466e+38f);" in new


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("float sum = 0.0f;", "float sum = shift;"),  # more than exponentials below the maximum
        ("float sum = 0.0f;", "float sum = 0.0f; y[blockIdx.x] = shift;"),  # somebody waits for the maximum
        ("sum += expf(static_cast<float>(in[i]) - shift)", "sum += expf(static_cast<float>(in[i]) - 2 * shift)"),
        ("sum += expf(static_cast<float>(in[i]) - shift)", "sum += expf(2.0f * static_cast<float>(in[i]) - shift)"),
        ("sum += expf(static_cast<float>(in[i]) - shift)", "sum += shift * expf(static_cast<float>(in[i]) - shift)"),
        ("sum += expf(static_cast<float>(in[i]) - shift)", "sum += exp(static_cast<float>(in[i]) - shift)"),
        ("largest = fmaxf(largest, static_cast<float>(in[i]))", "largest = fmaxf(largest, fabsf(static_cast<float>(in[i])))"),
        ("float sum = 0.0f;\n    for (int64_t i = threadIdx.x;", "float sum = 0.0f;\n    for (int64_t i = threadIdx.x + 1;"),
    ],
)  # fmt: skip
def test_other_sums_wait_for_the_maximum(old: str, new: str) -> None:
    assert stays("fuse_block_reductions", PREPARED, old, new)


LATER = "out[i] = static_cast<T>(expf(static_cast<float>(in[i]) - shift) / total);"


@pytest.mark.parametrize(
    "new",
    [
        "out[i] = static_cast<T>(expf(static_cast<float>(in[columns - 1 - i]) - shift) / total);",  # others' elements
        "out[i] = static_cast<T>(expf(2.0f * static_cast<float>(in[i]) - shift) / total);",  # may overflow below another shift
        "out[i] = static_cast<T>(in[i] - shift - logf(total));",
    ],
)
def test_a_later_pass_over_something_else_keeps_the_row_s_shift(new: str) -> None:
    assert LATER in PREPARED
    changed = after(PREPARED.replace(LATER, new), "fuse_block_reductions")
    assert new in changed and "to_block" not in changed


def test_a_loop_over_rows_needs_a_barrier_before_the_next_exchange() -> None:
    rows = (ROOT / "tests/inputs/row_logsumexp/baseline.plain.cu").read_text()
    prepared = after(rows, "warp_shuffle_reduction", "fast_math")
    assert "block_shifted_sum<" in after(prepared, "fuse_block_reductions")
    start, end = prepared.index("y[row] = "), prepared.index('extern "C"')
    assert refused(
        prepared[:start] + prepared[start:end].replace("__syncthreads();", "") + prepared[end:], "fuse_block_reductions"
    )


@pytest.mark.parametrize(
    "summand",
    [
        "expf(m - top)",
        "(m < top ? expf(m - top) : 1.0f)",
        "exp(m - top)",
        "expf(top - m)",
        "(m > -INFINITY ? expf(m - top) : 0.0f)",
    ],
)
def test_the_pair_of_an_online_recurrence_is_online_reduce_s(summand: str) -> None:
    """That knows what a sum of nothing and one with an infinity came to; what it left in two reductions has a reason."""
    rows = f"""\
__global__ void rows(const float* x, float* y, int n) {{
  float m = -FLT_MAX, s = 0.0f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {{
    const float v = x[blockIdx.x * n + i], old = m;
    m = fmaxf(m, v);
    s = s * expf(old - m) + expf(v - m);
  }}
  const float top = block_max<2>(m);
  const float total = block_sum<3>(s * {summand});
  y[blockIdx.x] = top;
}}

extern "C" void run(const float* x, float* y, long rows_, long n, cudaStream_t stream) {{
  rows<<<rows_, 256, 0, stream>>>(x, y, n);
}}
"""
    assert refused(PREPARED[: PREPARED.index("template <typename T, int BLOCK>")] + rows, "fuse_block_reductions")


@pytest.mark.parametrize(
    ("folder", "steps", "numbers", "workloads"),
    [
        ("row_softmax", ("symbolic_block_size", "warp_shuffle_reduction", "fast_math", "fuse_block_reductions", "vectorize", "cache_row_in_registers"), {},
         ("float32:rows=3,columns=515", "float16:rows=2,columns=2056", "float16:rows=1,columns=20000", "float32:rows=2,columns=1")),
        pytest.param("row_softmax", ("symbolic_block_size", "warp_shuffle_reduction", "fuse_block_reductions", "vectorize", "cache_row_in_registers", "several_rows_per_block"),
         {"SHORT_ROWS_FROM 528": "SHORT_ROWS_FROM 1"},
         ("float32:rows=5,columns=7", "float16:rows=37,columns=64", "float16:rows=9,columns=1000"), marks=pytest.mark.slow),
        ("row_softmax", ("symbolic_block_size", "warp_shuffle_reduction", "fast_math", "fuse_block_reductions", "vectorize", "cache_row_in_registers", "programmatic_dependent_launch", "cluster_split"),
         {"CLUSTER_STEPS 4096": "CLUSTER_STEPS 128", "CLUSTER_THREADS 256": "CLUSTER_THREADS 64"},
         ("float16:rows=3,columns=2056", "float32:rows=1,columns=9000")),
        pytest.param("row_logsumexp", ("warp_shuffle_reduction", "fast_math", "fuse_block_reductions", "vectorize", "several_rows_per_block"),
         {"SHORT_ROWS_FROM 528": "SHORT_ROWS_FROM 4"}, ("float32:rows=3,columns=1028", "float32:rows=700,columns=20"),
         marks=pytest.mark.slow),
        pytest.param("thread_softmax", ("block_per_row", "fast_math", "fuse_block_reductions", "vectorize", "cache_row_in_registers"), {},
         ("float16:rows=3,n=1032", "float32:rows=2,n=515"), marks=pytest.mark.slow),
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(value) if isinstance(value, tuple) and "vectorize" in value else "",
)  # fmt: skip
def test_it_computes_what_the_reference_says(
    folder: str, steps: tuple[str, ...], numbers: dict[str, str], workloads: tuple[str, ...], tmp_path: Path
) -> None:
    text = after((ROOT / f"tests/inputs/{folder}/baseline.plain.cu").read_text(), *steps)
    for old, new in numbers.items():
        assert old in text
        text = text.replace(old, new)
    check(text, tmp_path, ROOT / "tests/inputs" / folder, "0", "1", *workloads, EMULATE_BACKWARDS="1")
