"""What `evaluate` is asked for is refused where it does not apply, before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from graph import one_file
from graph.request import OpenRequest
from graph.runs import RunError


def test_kernelbenchs_protocol_is_refused_where_there_is_no_such_module(tmp_path: Path):
    (tmp_path / "my.cpp").write_text("int x;\n")
    file, request = str(tmp_path / "my.cpp"), OpenRequest(kernel="silu_and_mul", device="cpu")
    with pytest.raises(
        RunError, match="--protocol kernelbench is for a PyTorch module in KernelBench's form, and silu_and_mul is none"
    ):
        one_file.of_file(file, request, "kernelbench")
    assert one_file.of_file(file, request, None).kernel.spec.name == "silu_and_mul"
