"""Elements that are reached under a condition: when pack moves them as one, what it asks first, and what it leaves alone."""

from __future__ import annotations

import pytest

from tests.nodes.rewrites.steps import after, flat, refused, same

BODY = """\
    const float b = bias != nullptr && row > 0 ? (float)bias[i] : 0.0f;
    const int64_t from = index[row];
    const bool wanted = mask[row * n + i] != 0;
    const float v = wanted ? (float)x[(int64_t)from * n + i] : 0.0f;
    y[row * n + i] = (T)(v + b);
    if (from > 0) kept[row * n + i] = (T)v;
"""
FLAT_BODY = """\
    const int64_t row = i / n;
    float v = 0.0f;
    if (mask[i] != 0) v = (float)x[index[row] * n + i % n];
    if (row > 0) y[i] = (T)(v + (float)bias[i % n]);
    else y[i] = (T)v;
    if (index[row] > 0) kept[i] = (T)v;
"""
KERNEL = """\
#include <cuda_fp16.h>
#include <stdint.h>

template <typename T>
__global__ void mixed(const T* x, const T* bias, const uint8_t* mask, const int64_t* index, T* y, T* kept, int64_t rows, int64_t n) {{
  {head} {{
{body}  }}
}}

extern "C" void fuzz_float16(const __half* x, const __half* w, const uint8_t* mask, const int64_t* index, __half* y, __half* v, int64_t rows, int64_t n, cudaStream_t stream) {{
  mixed<__half><<<rows, 64, 0, stream>>>(x, w, mask, index, y, v, rows, n);
}}
"""
ROWS = "const int64_t row = blockIdx.x;\n  for (int64_t i = threadIdx.x; i < n; i += blockDim.x)"
FLAT = "for (int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < rows * n; i += gridDim.x * blockDim.x)"


def kernel(body: str = BODY, head: str = ROWS) -> str:
    return KERNEL.format(head=head, body=body)


def packed(text: str) -> str:
    return "" if refused(text, "vectorize") else flat(after(text, "vectorize"))


CHOSEN = "if ((float)x[i] > 0) y[i] = x[i]; else if (i > rows) y[i] = bias[i]; else y[i] = 0;"
BOTH = "if (rows > 2) { y[2 * i] = x[i]; y[2 * i + 1] = x[i]; }"


@pytest.mark.parametrize(
    ("text", "reads", "without"),
    [
        # What each lane asks for itself stays a read of its own.
        (kernel(), ["wanted ? (float)x[(int64_t)from * n + i] : 0.0f", "const bool wanted = mask_pack.at[k] != 0;",
                    "aligned_to_16_bytes(w, mask, y, v)"], "x_pack"),
        # What both branches store is stored in any case.
        (kernel(FLAT_BODY, FLAT), ["store_lanes(&y[first], y_pack);", "if (index[row] > 0) store_lanes(&kept", "n % PACK == 0",
                                   "const int64_t row = first / n;"], ") store_lanes(&y"),
        # `if (v > 0) y[i] = v; else y[i] = 0;` is how most activations are written, and was once left alone.
        (kernel(CHOSEN), ["store_lanes(&y[first], y_pack);", "if ((float)x_pack.at[k] > 0) y_pack.at[k] = x_pack.at[k];",
                          "else if (i > rows) y_pack.at[k]"], "bias_pack"),
        (kernel("if ((float)x[i] > 0) y[i] = x[i]; else y[i] += x[i];"), [], "store_lanes(&y"),
        # Lanes of one pack are stored under one condition.
        (kernel(BOTH), ["if (rows > 2) store_lanes(&y"], "y_pack_2"),
        (kernel("y[2 * i] = x[i]; if (rows > 2) y[2 * i + 1] = x[i];"), [], "store_lanes(&y"),
        # nullptr lies on every boundary, and NULL may be a number: neither is asked for its alignment.
        (kernel().replace("(x, w, mask,", "(x, nullptr, mask,"), ["aligned_to_16_bytes(mask, y, v)", "(x, nullptr, mask,"], "x_pack"),
        (kernel().replace("(x, w, mask,", "(x, NULL, mask,"), ["aligned_to_16_bytes(mask, y, v)", "(x, nullptr, mask,"], "x_pack"),
    ],
)  # fmt: skip
def test_what_is_asked_in_front(text: str, reads: list[str], without: str) -> None:
    new = packed(text)
    assert all(words in new for words in reads) and without not in new, new


@pytest.mark.parametrize(
    "body",
    [
        "if (mask[i] != 0) y[i] = x[i];",  # some lanes of a pack would be stored and others not
        "if (i < rows) y[i] = x[i];",
        "if (y[0] > 0) y[i] = x[i];",  # what the body changes
        "if (threadIdx.x > 2) y[i] = x[i];",
        "if (rows > 2) { const int64_t j = rows + i; y[j] = x[i]; }",  # an address that nobody knows in front
        "if (n > 2 && atomicAdd(&index[0], 1)) y[i] = x[i];",
        "for (int j = 0; j < rows; ++j) y[i] = x[i];",
        "switch (rows) { case 1: y[i] = x[i]; }",
    ],
)
def test_stores_under_other_conditions_stay(body: str) -> None:
    assert "store_lanes(&y" not in packed(kernel(body))


@pytest.mark.parametrize(
    "read",
    [
        "i < rows ? x[i] : bias[i]",  # the elements end there, perhaps
        "mask[i] != 0 && i > 2 ? x[i] : bias[i]",
        "mask[rows - i] != 0 ? x[i] : bias[i]",  # not told by a pack
        "kept[i] > y[i] ? x[i] : bias[i]",  # told by what is written
        "__shfl_sync(~0u, mask[i], 0) != 0 ? x[i] : bias[i]",
        "mask[i] != 0 ? x[n - i] : bias[n - i]",
    ],
)
def test_reads_that_cannot_be_told_in_front_stay(read: str) -> None:
    new = packed(kernel(f"y[i] = {read}; const T other = kept[i]; y[i] += other;"))
    assert "x_pack" not in new and "bias_pack" not in new and ("store_lanes(&y" in new or "shfl" in read)


def test_all_of_it_is_right() -> None:
    texts = [kernel(BODY), kernel(FLAT_BODY, FLAT)]
    texts += [text.replace("float16", "float32").replace("__half", "float") for text in texts]
    later = ("", "grid_stride drop_grid_stride_loop", "vectorize_unaligned_rows")
    same({f"{n}, {steps}": (text, f"vectorize {steps}") for n, text in enumerate(texts) for steps in later})
