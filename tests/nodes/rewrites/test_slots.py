"""Where the first thread leaves a block's result in slots that share one array of dynamic shared memory: log_softmax's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nodes.rewrites.steps import INPUTS, after, check, where_they_apply

TEXT = (INPUTS / "log_softmax/baseline.plain.cu").read_text()
SETTLED = after(TEXT, "canonicalize_reductions")


def test_slots_side_by_side_in_one_array_are_understood() -> None:
    """Two pointers into it, one of them to its beginning; the first thread goes over what the warps left."""
    assert "block_max<0>(maxval)" in SETTLED and "block_sum<1>(sumval)" in SETTLED
    kernel = SETTLED[SETTLED.index("__global__") : SETTLED.index("<<<")]
    assert "shared" not in kernel and "__syncthreads" not in kernel


@pytest.mark.parametrize(
    ("old", "new", "kept"),
    [
        ("float logsum = logf(sumvals[0]);", "float logsum = logf(sumvals[0]) + maxvals[0];", "maxvals[0] = val;"),
        ("float logsum = logf(sumvals[0]);", "float logsum = logf(sumvals[0]) + shared[1];", "sumvals[0] = val;"),
        ("float logsum = logf(sumvals[0]);", "float* seen = shared;\n    float logsum = logf(sumvals[0]) + seen[1];", "sumvals[0] = val;"),
        ("float logsum = logf(sumvals[0]);", "float logsum = logf(sumvals[tid % 2]);", "sumvals[0] = val;"),
        ("float logsum = logf(sumvals[0]);", "sumvals += 1;\n    float logsum = logf(sumvals[0]);", "sumvals[0] = val;"),
        ("float offset = maxvals[0];", "float* late = shared; late[0] = 1.0f;\n    float offset = maxvals[0];", "maxvals[0] = val;"),
        ("float offset = maxvals[0];", "maxvals[0] += 1.0f;\n    float offset = maxvals[0];", "maxvals[0] = val;"),
        ("float offset = maxvals[0];", "float offset = maxvals[0];\n    if (C > 7) maxvals[0] = 1.0f;\n    offset += maxvals[0];", "maxvals[0] = val;"),
        ("float* maxvals = shared;", "int* maxvals = (int*)shared;", "maxvals[0] = val;"),
    ],
)  # fmt: skip
def test_what_others_may_write_or_read_stays_in_memory(old: str, new: str, kept: str) -> None:
    assert old in TEXT
    text = where_they_apply(TEXT.replace(old, new), "canonicalize_reductions")
    assert kept in text and new.splitlines()[-1].strip() in text


def test_a_log_softmax_computes_what_the_reference_says(tmp_path: Path) -> None:
    workloads = ("bfloat16:rows=3,vocabulary=2056", "float32:rows=2,vocabulary=515")
    text = after(TEXT, "canonicalize_reductions", "vectorize", "cache_row_in_registers")
    check(text, tmp_path, INPUTS / "log_softmax", "0", "1", *workloads)


def test_slots_that_another_pointer_reads_stay() -> None:
    pointer = "float* sumvals = &shared[warpsPerBlock];"
    text = TEXT.replace(pointer, f"{pointer}\n    float* seen = shared;")
    text = text.replace("logf(sumvals[0]);", "logf(sumvals[0]) + seen[1];")
    assert "block_max<0>(maxval)" not in where_they_apply(text, "canonicalize_reductions")
