"""What `evaluate` is asked for is refused where it does not apply, before anything runs."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from graph import one_file
from graph.runs import RunError


def test_kernelbenchs_protocol_is_refused_where_there_is_no_such_module(tmp_path: Path):
    (tmp_path / "my.cpp").write_text("int x;\n")
    asked = argparse.Namespace(
        kernel="silu_and_mul", file=str(tmp_path / "my.cpp"), device="cpu", baseline=None, own_kernels=None, compare=[],
        dtype=[], protocol="kernelbench",
    )  # fmt: skip
    with pytest.raises(
        RunError, match="--protocol kernelbench is for a PyTorch module in KernelBench's form, and silu_and_mul is none"
    ):
        one_file.of_file(asked)
    asked.protocol = None
    assert one_file.of_file(asked).kernel.spec.name == "silu_and_mul"
