"""What the first thread leaves for the others in dynamic shared memory, and launches whose types are deduced."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nodes.rewrites.steps import INPUTS, ROOT, after, check, refused, stays

LOG_SOFTMAX = (ROOT / "tests/inputs/log_softmax/baseline.plain.cu").read_text()
SETTLED = after(LOG_SOFTMAX, "canonicalize_reductions")


def test_slots_side_by_side_in_one_array_are_understood() -> None:
    """Two pointers into it, one of them to its beginning; the first thread goes over what the warps left."""
    assert "block_max<0>(maxval)" in SETTLED and "block_sum<1>(sumval)" in SETTLED
    assert "maxvals[warpId]" not in SETTLED and "sumvals[warpId]" not in SETTLED


def test_slots_that_another_pointer_reads_stay() -> None:
    text = LOG_SOFTMAX.replace(
        "float* sumvals = &shared[warpsPerBlock];",
        "float* sumvals = &shared[warpsPerBlock];\n    float* seen = shared;",
    )
    text = text.replace("float logsum = logf(sumvals[0]);", "float logsum = logf(sumvals[0]) + seen[1];")
    assert "block_max<0>(maxval)" not in (
        after(text, "canonicalize_reductions") if not refused(text, "canonicalize_reductions") else text
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "float logsum = logf(sumvals[0]);",
            "float logsum = logf(sumvals[0]) + maxvals[0];",
        ),  # may have been overwritten
        ("float logsum = logf(sumvals[0]);", "float logsum = logf(sumvals[0]) + shared[1];"),
        ("float logsum = logf(sumvals[0]);", "float logsum = logf(sumvals[tid % 2]);"),
        ("float logsum = logf(sumvals[0]);", "sumvals += 1;\n    float logsum = logf(sumvals[0]);"),
        ("float* maxvals = shared;", "float* maxvals = shared, *more = shared;"),
        ("float* maxvals = shared;", "int* maxvals = (int*)shared;"),
        ("maxvals[0] = maxval_of_block;", "maxvals[0] += maxval_of_block;"),
    ],
)
def test_other_pointers_stay(old: str, new: str) -> None:
    assert stays("split_shared_memory", SETTLED, old, new)


def test_it_computes_what_the_reference_says(tmp_path: Path) -> None:
    steps = (
        "canonicalize_reductions",
        "split_shared_memory",
        "redundant_broadcast",
        "fuse_block_reductions",
        "vectorize",
        "cache_row_in_registers",
    )
    workloads = ("bfloat16:rows=3,vocabulary=2056", "float32:rows=2,vocabulary=515")
    check(after(LOG_SOFTMAX, *steps), tmp_path, INPUTS / "log_softmax", "0", "1", *workloads)
