"""Whose kernels did the work, from two profiles as an H200 might show them: microseconds by kernel name."""

from __future__ import annotations

import pytest

from harness.judge.shares import divide

COPY = "Memcpy DtoD (Device -> Device)"
EAGER = {"sm90_xmma_fprop_implicit_gemm": 20.0, "void at::native::tanh_kernel": 3.0, COPY: 4.1}


def test_the_copy_of_what_a_call_returns_is_nobodys_work() -> None:
    """A candidate that does everything itself is copied from like the eager module."""
    found = divide({"mine": 6.0, COPY: 4.0}, EAGER)
    assert found.own == 1.0 and found.replaced > 0.99 and not found.fault
    more = divide({"mine": 6.0, COPY: 10.1}, EAGER)  # a copy of its own beside ours
    assert more.own == pytest.approx(0.5)


def test_a_decoy_is_one_however_long_its_neighbours_happen_to_take() -> None:
    faster = {name: 0.95 * spent for name, spent in EAGER.items()} | {"mine": 0.5}
    assert "replaces nothing" in divide(faster, EAGER).fault
    assert "replaces nothing" in divide(EAGER | {"mine": 0.5}, EAGER).fault


def test_what_no_longer_runs_or_runs_for_less_time_is_replaced() -> None:
    convolution = {name: spent for name, spent in EAGER.items() if "tanh" not in name}
    found = divide(convolution | {"mine": 2.0}, EAGER)
    assert found.replaced == pytest.approx(3 / 23) and not found.fault
    fewer = divide(EAGER | {"sm90_xmma_fprop_implicit_gemm": 10.0, "mine": 6.0}, EAGER)
    assert fewer.replaced == pytest.approx(10 / 23) and not fewer.fault


def test_libraries_alone_are_no_candidate() -> None:
    for by_torch in (EAGER, {"cutlass_gemm": 5.0, COPY: 4.0}, {"triton_poi_fused_tanh_0": 5.0}):
        assert "no kernel of its own ran" in divide(by_torch, EAGER).fault
