"""Whose kernels did the work, from two profiles as an H200 might show them: microseconds by kernel name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harness.judge import rules
from harness.judge.shares import divide
from harness.processes.worker import WorkerFailure
from harness.records import Outcome

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


NHWC = {"nchwToNhwcKernel_cudnn": 2.0, "sm90_xmma_fprop_implicit_gemm_nhwc": 9.0, "void at::native::tanh_kernel": 3.0}


@pytest.mark.parametrize("decoy_us", [0.7, 1.8])
def test_a_decoy_beside_another_kernel_of_the_library_replaces_nothing(decoy_us: float) -> None:
    found = divide(NHWC | {"decoy": decoy_us, COPY: 4.1}, EAGER)
    assert found.replaced > 0.8 and "its own kernel replaces nothing" in found.fault


def test_a_gain_that_a_library_makes_is_doubted_however_long_a_decoy_takes() -> None:
    found = divide(NHWC | {"decoy": 4.0, COPY: 4.1}, EAGER)
    assert not found.fault and "a library did the work" in found.doubt


def test_what_a_kernel_gains_beside_another_one_of_the_library_is_its_own() -> None:
    swapped = {name: spent for name, spent in NHWC.items() if "tanh" not in name}
    slower = swapped | {"sm90_xmma_fprop_implicit_gemm_nhwc": 17.5}
    for libraries in (swapped, slower, {"sm90_xmma_fprop_implicit_gemm": 20.0}):
        found = divide(libraries | {"bias_and_tanh": 1.2, COPY: 4.1}, EAGER)
        assert not found.fault and not found.doubt, found
    halves = divide({"sm90_xmma_gemm_small": 5.0, "mine": 6.0, "void at::native::tanh_kernel": 3.0, COPY: 4.1}, EAGER)
    assert not halves.fault and not halves.doubt


def test_a_copy_beside_an_own_kernel_does_none_of_its_work() -> None:
    moved = {"void at::native::elementwise_kernel<direct_copy_kernel_cuda>": 9.0, "void at::native::FillFunctor": 2.0}
    found = divide({**moved, "sm90_xmma_fprop_implicit_gemm": 20.0, "mine": 1.5, COPY: 4.1}, EAGER)
    assert not found.fault and found.by_own == pytest.approx(3 / 23)


def test_kernels_of_timed_calls_are_without_their_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """And in the process that was timed, planned and timed once more before it is profiled, and that nobody is timed in afterwards."""
    done: list[str] = []
    kernels = [
        ["own", 8.0],
        ["produce_kernel(Pieces, Pieces)", 9.0],
        ["void consume_kernel(Pieces)", 9.0],
        ["evict_kernel(int4 const*)", 1.0],
    ]

    def request(message: dict[str, Any]) -> dict[str, Any]:
        done.append(message["op"])
        return {"kernels": kernels}

    worker = SimpleNamespace(request=request)
    pool = SimpleNamespace(drop=lambda _: done.append("drop"), get=lambda _: worker, settle=lambda: None)

    def prepare(arm: Any) -> None:
        arm.calls = 4
        done.append("prepare")

    comparison = SimpleNamespace(prepare=prepare, sample=lambda arm, look: done.append("sample"))
    session = SimpleNamespace(pool=pool, open_comparison=lambda *_: comparison)
    found = rules.kernels_of_timed_calls(session, SimpleNamespace(candidate="mine"), None, "cold")  # type: ignore[arg-type]
    assert found == {"own": 2.0} and done == ["prepare", "sample", "profile", "drop"]
    kernels[:] = ["no", "list"]
    with pytest.raises(WorkerFailure, match="no list of kernels"):
        rules.kernels_of_timed_calls(session, SimpleNamespace(candidate="mine"), None, "cold")  # type: ignore[arg-type]


LIVES = "RuntimeError: CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"


@pytest.mark.parametrize(
    ("reason", "control", "believed"),
    [
        (LIVES, None, True),
        (LIVES, LIVES, True),
        (LIVES, "", False),
        ("the process ended with SIGSEGV in the middle of its work", None, False),
        ("the process ended with SIGSEGV in the middle of its work", LIVES, True),
        ("RuntimeError: not when watched (candidate.py, line 7)", None, False),
    ],
)
def test_where_no_profile_can_be_had_it_decides_nothing(
    reason: str, control: str | None, believed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else no Python candidate would be FASTER on a machine that refuses CUPTI; whose own fault it is gains nothing by it."""
    said = {"candidate": reason, "eager": control}

    def profiled(_session: Any, build: Any, *_: Any) -> dict[str, float]:
        if said[build]:
            raise WorkerFailure(Outcome.RUNTIME_ERROR, said[build])
        return {}

    monkeypatch.setattr(rules, "kernels_of_timed_calls", profiled)
    session: Any = SimpleNamespace(notices=())
    asked: Any = None if control is None else "eager"
    found, why = rules.profile_timed_calls(session, "candidate", None, "hot", asked)  # type: ignore[arg-type]
    assert not found and (not why) is believed and bool(session.notices) is believed
