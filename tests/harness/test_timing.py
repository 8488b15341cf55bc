"""What a sample calls, and whose clock is believed. Figures are scripted: nothing here depends on how fast a machine is."""

from __future__ import annotations

import statistics
from types import SimpleNamespace
from typing import Any

import pytest

from harness import backends
from harness.device import Arena, facts
from harness.engines.process import Worker
from harness.records import Check, Outcome
from harness.timing import PROTOCOLS, Contest, Side, SideFailure, _blame, _confirm, _doubt
from kernels import catalog
from kernels.spec import Workload

WORKLOAD = Workload(axes={"tokens": 4, "hidden": 64}, dtype="float32")
CACHE_BYTES = 30_000
COUNTING = """
#include <cstdint>
extern "C" void silu_and_mul_float32(const float*, float* out, int64_t, int64_t) { out[0] += 1.0f; }
"""


def contest(cache: str = "cold") -> Contest:
    return Contest(catalog.load("silu_and_mul"), WORKLOAD, cache, "cpu", CACHE_BYTES)  # type: ignore[arg-type]


def side(name: str, seconds: list[float], lacking: list[float], **changes: Any) -> Side:
    return Side(name, None, seconds=list(seconds), lacking=list(lacking), **changes)  # type: ignore[arg-type]


# --- what a sample calls ---------------------------------------------------------------------------------------------


def test_a_cold_sample_calls_what_was_not_called_for_longest() -> None:
    one = contest()
    called = []
    for calls in (5, 2, 7, 5, 2, 7, 5):
        one.move_on(calls)
        called += [(one.first + at) % len(one.sets) for at in range(one.count)]
    assert len(one.sets) == one.layout.slots > 20
    assert called == [(called[0] + at) % len(one.sets) for at in range(len(called))]


@pytest.mark.parametrize("rows", [20, 500, 50_000])
def test_what_cold_calls_of_a_gather_touch_does_not_fit_in_the_cache(rows: int) -> None:
    """However large the table: what lies in the cache from the pass before made calls warm, and long samples warmer."""
    kernel = catalog.load("tests/inputs/gather_rows")
    workload = Workload(axes={"picks": 4, "width": 64, "rows": rows}, dtype="float16")
    one = Contest(kernel, workload, "cold", "cpu", CACHE_BYTES)
    arena = Arena("cpu", one.layout.size)
    one.open(arena)
    table, picked = (next(t for t in kernel.spec.tensors if t.name == name) for name in ("table", "index"))
    sets = [one.layout.arguments(arena, slot) for slot in one.sets]
    at = [argument.name for argument in kernel.spec.arguments].index("table")
    touched = {
        (arguments[at][2], index)
        for slot, arguments in enumerate(sets)
        for index in one.bench.read(slot, picked).tolist()
    }
    passed = PROTOCOLS["cpu"].cache_factor * CACHE_BYTES
    assert len(touched) * 64 * 2 > passed / 4, "half is the output's, and some rows meet"
    assert (
        len({arguments[at][2] for arguments in sets}) == one.layout.copies["table"] == {20: 70, 500: 2, 50_000: 1}[rows]
    )
    assert one.layout.size < 4 * max(passed, one.layout.sizes["table"])
    for slots in ((0, 1), (len(sets) - 1,)):
        one.disturb(slots)
        inputs = one._snapshot(slots)
        assert all(one.bench.check_inputs(slot, inputs[slot], "").passed for slot in slots)
        one.bench.read(slots[0], table)[0] += 1
        assert "table" in one.bench.check_inputs(slots[0], inputs[slots[0]], "").message
    arena.close()


def test_sides_of_about_one_speed_make_the_same_calls() -> None:
    one, sample_s = contest(), PROTOCOLS["cpu"].sample_s
    first, alike, fast = (Side(name, None, pace_s=sample_s / n) for name, n in (("a", 4), ("b", 5), ("c", 9)))  # type: ignore[arg-type]
    for each in (first, alike, fast):
        one.settle(each, first)
    assert (first.calls, alike.calls, fast.calls) == (4, 4, 9)


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory):
    """A worker whose candidate counts its calls in the first element of the output."""
    if reason := backends.get("cpu").why_unavailable():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("counting")
    (folder / "candidate.cpp").write_text(COUNTING)
    done = backends.get("cpu").compile(folder / "candidate.cpp", folder / "candidate.so", facts("cpu"), 60.0)
    assert done.ok, done.log
    worker = Worker(device="cpu", artefact=folder / "candidate.so", symbols={"float32": ("silu_and_mul_float32",)})
    yield worker
    worker.close()


def test_a_worker_makes_the_calls_that_were_asked_for(counting: Worker) -> None:
    one = contest()
    arena = Arena("cpu", one.layout.size)
    counting.map(arena)
    out = one.layout.view(arena, next(t for t in one.kernel.spec.tensors if t.role == "output"))

    def planned(*slots: int) -> None:
        calls = [one.layout.arguments(arena, slot) for slot in slots]
        counting.request({"op": "plan", "dtype": "float32", "calls": calls, "shapes": one.layout.shapes()})

    def counted(first: int, count: int, repeat: int) -> list[float]:
        out.zero_()
        counting.request({"op": "time", "first": first, "count": count, "repeat": repeat})
        return out[:4, 0, 0].tolist()

    planned(0, 1, 2, 3)
    assert counted(0, 4, 1) == [1, 1, 1, 1]
    assert counted(3, 2, 3) == [3, 0, 0, 3]  # the first follows the last
    planned(2, 2)
    assert counted(0, 2, 2) == [0, 0, 4, 0]  # one plan: the new one is in place of the other
    counting.unmap(arena)
    arena.close()


# --- whose clock is believed -----------------------------------------------------------------------------------------

CALLS, PIPE_S = 4, 1e-4


class Scripted:
    """A contest whose long samples take `long_s` per call, by side, one after another."""

    def __init__(self, device: str, **long_s: list[float]) -> None:
        self.device, self.cache, self.protocol = device, "cold", PROTOCOLS[device]
        self.left = {name: list(values) for name, values in long_s.items()}
        self.more: list[float] = []

    def long_sample(self, side: Side) -> float:
        return self.left[side.name].pop(0)

    def sample(self, side: Side) -> None:
        side.seconds.append(1.0)
        side.lacking.append(self.more.pop(0))


def alone(side: Side, action: Any) -> Any:
    return action(side)


def claimed(device: str, true_s: float, claimed_s: float, long_s: list[float]) -> float:
    """What is believed of a side whose calls take `true_s`, beside one whose calls take 1 ms."""
    first = side("first", [1e-3] * 8, [PIPE_S] * 8, calls=CALLS)
    other = side("other", [claimed_s] * 8, [PIPE_S + CALLS * (true_s - claimed_s)] * 8, calls=CALLS)
    _confirm(Scripted(device, first=[1e-3] * 3, other=long_s), first, other, alone)  # type: ignore[arg-type]
    return statistics.median(a / b for a, b in zip(first.seconds, other.seconds, strict=True))


def test_a_clock_that_runs_slow_is_corrected_where_a_long_sample_bears_it_out_by_chance() -> None:
    assert claimed("cpu", 1e-3, 0.9e-3, [0.8e-3]) == pytest.approx(1.0)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_clock_that_runs_slow_is_corrected_by_long_samples(device: str) -> None:
    assert claimed(device, 1e-3, 0.9e-3, [1e-3] * 3) <= 1.0 + 1e-9


def test_who_is_faster_loses_little_to_long_samples_that_others_interrupt() -> None:
    assert claimed("cpu", 0.5e-3, 0.5e-3, [0.9e-3] * 3) > 1.85


def test_one_long_pair_is_enough_where_it_bears_the_claim_out() -> None:
    assert claimed("cuda", 0.5e-3, 0.5e-3, [0.5e-3]) == pytest.approx(2.0)


def test_a_clock_that_claims_far_too_much_is_accused() -> None:
    with pytest.raises(SideFailure, match=r"its clock says 2.00x in short samples, ours 1.00x"):
        claimed("cpu", 1e-3, 0.5e-3, [1e-3] * 3)


def test_calls_that_get_cheaper_the_more_there_are_are_accused() -> None:
    with pytest.raises(SideFailure, match="skipped work"):
        claimed("cuda", 0.5e-3, 0.5e-3, [0.1e-3] * 3)


def test_before_a_clock_is_accused_it_is_looked_at_again() -> None:
    first = side("first", [1e-3] * 3, [PIPE_S] * 3)
    late = side("late", [1e-3] * 3, [5e-3] * 3)
    scripted = Scripted("cpu")
    scripted.more = [4e-3, PIPE_S, 9.0]
    _doubt(scripted, first, late, alone)  # type: ignore[arg-type]
    assert scripted.more == [9.0] and len(late.seconds) == len(late.lacking) == 3


@pytest.mark.parametrize(
    ("firsts", "lates", "accused"),
    [
        ([1e-3, 1.1e-3, 9e-3], [1e-3, 1e-3, 1e-3], True),  # long samples are as long as they should be
        ([2e-3, 2.1e-3, 1.9e-3], [2.1e-3, 2.2e-3, 9e-3], False),  # another process has half of the device
        ([2e-3, 2.1e-3, 1.9e-3], [3.1e-3, 3.2e-3, 2.9e-3], True),  # and this clock answers two thirds
    ],
)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_clock_is_not_accused_of_what_another_process_takes(
    device: str, firsts: list[float], lates: list[float], accused: bool
) -> None:
    first, late = side("first", [1e-3] * 3, [PIPE_S] * 3), side("late", [1e-3] * 3, [5e-3] * 3)
    scripted = Scripted(device, first=firsts, late=lates)
    scripted.more = [4e-3] * 100
    if not accused:
        return _doubt(scripted, first, late, alone)  # type: ignore[arg-type]
    with pytest.raises(SideFailure, match="its clock lacks 3.90 ms") as failure:
        _doubt(scripted, first, late, alone)  # type: ignore[arg-type]
    assert failure.value.outcome is Outcome.CHEATED
    return None


def test_calls_that_change_nothing_are_accused() -> None:
    first = side("first", [1e-3] * 3, [PIPE_S] * 3, changed=[1.0, 1.0])
    lazy = side("lazy", [1e-3] * 3, [PIPE_S] * 3, changed=[0.9, 0.8])
    with pytest.raises(SideFailure, match="15% more of its calls"):
        _doubt(Scripted("cpu"), first, lazy, alone)  # type: ignore[arg-type]


def test_calls_that_are_cheap_without_a_pause_are_accused() -> None:
    one = contest("hot")
    answers = [8e-4] * 8

    def request(message: dict[str, Any], **_how: Any) -> dict[str, float]:
        assert message["repeat"] == 4 and message["count"] == 2
        return {"seconds": answers.pop()}

    honest = side("a", [1e-4], [PIPE_S], calls=2)
    honest.worker = SimpleNamespace(request=request)  # type: ignore[assignment]
    one.require_equal_calls(honest)
    answers[:] = [8e-4] * 7 + [1e-5]
    with pytest.raises(Exception, match="after a pause and 1.25 us without one"):
        one.require_equal_calls(honest)


def test_calls_that_rightly_change_nothing_are_not_accused() -> None:
    """fused_add_rmsnorm of what is all zeros leaves it so; of anything else it does not."""
    kernel = catalog.load("fused_add_rmsnorm")
    axes = {"tokens": 4, "hidden": 64}
    one = Contest(kernel, Workload(axes=axes, dtype="float32"), "cold", "cpu", CACHE_BYTES)
    arena = Arena("cpu", one.layout.size)
    one.open(arena)
    one.disturb()
    assert one.changed_share() == 0.0  # nobody called anything
    for tensor in kernel.spec.inputs:
        one.layout.view(arena, tensor).zero_()
    one.before = [(view, at, view[at].clone()) for view, at, _ in one.before]
    assert one.changed_share() == 1.0
    arena.close()


@pytest.mark.parametrize(
    ("error", "blamed"),
    [(1.4, Outcome.INCORRECT), (2.7, Outcome.CHEATED), (128.0, Outcome.CHEATED), (0.0, Outcome.CHEATED)],
)
def test_an_accident_of_rounding_is_no_fraud(error: float, blamed: Outcome) -> None:
    """2.7: bfloat16 for float16, 128: float16 for float32; no error at all: something was not written, or an input was."""
    found = Check(workload="w", name="unannounced, cold", passed=False, error=error, message="y[0] is 1, should be 2")
    assert _blame(found) is blamed


@pytest.mark.parametrize(
    ("wrong_looks", "accused"), [((), False), ((1,), False), ((0, 4), True), ((0, 1, 2, 3, 4), True)]
)
def test_a_hot_look_that_goes_wrong_once_is_an_accident(
    wrong_looks: tuple[int, ...], accused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = contest("hot")
    one.pristine = {}
    looks = iter(range(100))

    def look(*_: Any) -> Check:
        passed = next(looks) not in wrong_looks
        return Check(workload="w", name="unannounced", passed=passed, message="" if passed else "not written")

    monkeypatch.setattr(one, "_look", look)
    assert one.check(side("a", [1e-3], [PIPE_S])).passed is not accused
