"""What a sample calls and in which order, what is looked at, and whose clock is believed.

Far sides are in this process and their clocks scripted: nothing here depends on how fast a machine is.
"""

from __future__ import annotations

import math
import os
import random
import statistics
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness import backends
from harness.device import ArgumentBuffers, facts
from harness.processes.worker import Worker, WorkerFailure
from harness.records import Check, Outcome
from harness.timing import interleaved, load, sampling
from harness.timing.interleaved import (
    ACCUSING_PAIRS,
    CHECKS,
    CONFIRM_S,
    LEAST_OWN,
    LONG_S,
    MORE_DOUBTS,
    OTHERS,
    _confirm,
    _correct,
    _doubt,
    _is_known_by_cpu,
    _narrow,
    _net,
    _outside,
    _ratios,
    _spread,
)
from harness.timing.neighbours import BESIDE
from harness.timing.sampling import (
    LEAST_SHARE,
    PAIR,
    PROTOCOLS,
    ABComparison,
    Arm,
    ArmFailure,
    _blame,
    chain_length,
    read_seconds,
)
from kernels import catalog
from kernels.spec import Workload
from tests import machine
from tests.harness.far_side import FarSide, Negation, guards, negate, negation, timed_request

WORKLOAD = Workload(axes={"tokens": 4, "hidden": 64}, dtype="float32")
CACHE_BYTES = 30_000
COUNTING = """
#include <cstdint>
extern "C" void silu_and_mul_float32(const float*, float* out, int64_t, int64_t) { out[0] += 1.0f; }
"""


@pytest.fixture(autouse=True)
def confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CONFIRM_S, "cpu", machine.CONFIRMED_S)


def contest(cache: str = "cold") -> ABComparison:
    return ABComparison(catalog.load("silu_and_mul"), WORKLOAD, cache, "cpu", CACHE_BYTES)  # type: ignore[arg-type]


def side(name: str, seconds: list[float], lacking: list[float], **changes: Any) -> Arm:
    return Arm(name, None, seconds=list(seconds), lacking=list(lacking), **changes)  # type: ignore[arg-type]


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes an open comparison of a kernel of ours; our clock is scripted, too."""
    monkeypatch.setattr(sampling, "time_request", timed_request)
    opened: list[ArgumentBuffers] = []

    def of(kernel: tuple[Negation, Workload], cache: str = "hot", cache_bytes: int = CACHE_BYTES) -> ABComparison:
        made = ABComparison(*kernel, cache, "cpu", cache_bytes)  # type: ignore[arg-type]
        opened.append(ArgumentBuffers("cpu", made.size))
        made.open(opened[-1])
        return made

    yield of
    for buffers in opened:
        buffers.close()


def contestant(one: ABComparison, compute: Any = negate, name: str = "side", told: Any = None) -> Arm:
    """A side that has been prepared."""
    made = Arm(name, FarSide(name, one, compute, told))  # type: ignore[arg-type]
    one.prepare(made)
    return made


# --- what a sample calls ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("calls", [1, 3, 10, 21, 30])
def test_calls_go_to_sets_that_were_not_called_for_long_in_an_order_that_nobody_foresees(calls: int) -> None:
    one = contest()
    assert one.layout.slots == 30, "what follows speaks of as many"
    orders = []
    for _ in range(30):
        before = list(one.idle)
        one._draw_order(calls)
        assert len(set(one.called)) == len(one.called) == calls
        assert set(one.called) <= set(before[: max(calls, 15)])
        assert one.idle == [slot for slot in before if slot not in one.called] + one.called
        orders.append([before.index(slot) for slot in one.called])
    assert len({order[0] for order in orders}) > 4, "which set is next can be told"
    assert any(order != sorted(order) for order in orders) or calls == 1


@pytest.mark.parametrize("rows", [20, 500, 50_000])
def test_what_cold_calls_of_a_gather_touch_does_not_fit_in_the_cache(rows: int) -> None:
    """However large the table: what lies in the cache from the pass before made calls warm, and long samples warmer."""
    kernel = catalog.load("tests/inputs/gather_rows")
    workload = Workload(axes={"picks": 4, "width": 64, "rows": rows}, dtype="float16")
    one = ABComparison(kernel, workload, "cold", "cpu", CACHE_BYTES)
    buffers = ArgumentBuffers("cpu", one.size)
    one.open(buffers)
    one.production.produce(list(range(one.layout.slots)))
    picked = next(t for t in kernel.spec.tensors if t.name == "index")
    sets = [one.layout.arguments(buffers, slot) for slot in range(one.layout.slots)]
    at = [argument.name for argument in kernel.spec.arguments].index("table")
    touched = {
        (arguments[at][2], index)
        for slot, arguments in enumerate(sets)
        for index in one.bench.read(slot, picked).tolist()
    }
    passed = PROTOCOLS["cpu"].cache_factor * CACHE_BYTES
    assert len(touched) * 64 * 2 > passed / 4, "half is the output's, and some rows meet"
    copies = {arguments[at][2] for arguments in sets}
    assert len(copies) == one.layout.copies["table"] == {20: 70, 500: 2, 50_000: 1}[rows]
    assert one.layout.size < 4 * max(passed, one.layout.sizes["table"])
    buffers.close()


def test_sides_of_about_one_speed_make_the_same_calls() -> None:
    one, sample_s = contest(), PROTOCOLS["cpu"].sample_s
    first, alike, fast = (Arm(name, None, pace_s=sample_s / n) for name, n in (("a", 4), ("b", 5), ("c", 9)))  # type: ignore[arg-type]
    for each in (first, alike, fast):
        one.settle(each, first)
    assert (first.calls, alike.calls, fast.calls) == (4, 4, 9)


def test_a_sample_is_no_longer_for_the_copies_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    one, sample_s = contest(), PROTOCOLS["cpu"].sample_s
    monkeypatch.setattr(one, "_copy_alone_s", lambda: 1e-6)
    writes = side("writes", [], [], pace_s=sample_s / 20)
    returns = side("returns", [], [], pace_s=sample_s / 20, copied=[(sample_s / 5 - sample_s / 20, 0.0)])
    for each in (writes, returns):
        one.settle(each, writes)
    assert (writes.calls, returns.calls) == (20, 5)


def test_a_sample_of_short_calls_is_several_requests() -> None:
    one, sample_s = contest("hot"), PROTOCOLS["cpu"].sample_s
    sets = one.layout.slots
    quick = Arm("quick", None, pace_s=sample_s / (3 * sets))  # type: ignore[arg-type]
    one.settle(quick, quick)
    assert (quick.calls, quick.rounds, quick.passes) == (sets, 3, 1)
    quick.pace_s = 1e-9
    one.settle(quick, quick)
    assert (quick.calls, quick.rounds) == (sets, PROTOCOLS["cpu"].rounds)


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """A worker whose candidate counts its calls in the first element of the output."""
    if reason := backends.get("cpu").why_unavailable():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("counting")
    (folder / "candidate.cpp").write_text(COUNTING)
    done = backends.get("cpu").compile(folder / "candidate.cpp", folder / "candidate.so", facts("cpu"), 60.0)
    assert done.ok, done.log
    (folder / "calls.cpp").write_text(BESIDE["cpu"].read_text())
    assert backends.get("cpu").compile(folder / "calls.cpp", folder / "calls.so", facts("cpu"), 60.0).ok
    symbols = {"float32": ("silu_and_mul_float32",)}
    worker = Worker(device="cpu", artefact=folder / "candidate.so", symbols=symbols, company=folder / "calls.so")
    yield worker
    worker.close()


def test_a_worker_makes_the_calls_that_were_asked_for(counting: Worker) -> None:
    one = contest()
    buffers = ArgumentBuffers("cpu", one.layout.size)
    counting.map(buffers)
    out = one.layout.view(buffers, next(t for t in one.kernel.spec.tensors if t.role == "output"))

    def planned(*slots: int) -> None:
        calls = [one.layout.arguments(buffers, slot) for slot in slots]
        counting.request({"op": "plan", "dtype": "float32", "calls": calls, "shapes": one.layout.shapes()})

    def counted(order: list[int], repeat: int) -> list[float]:
        out.zero_()
        counting.request({"op": "time", "order": order, "repeat": repeat})
        return out[:4, 0, 0].tolist()

    planned(0, 1, 2, 3)
    assert counted([0, 1, 2, 3], 1) == [1, 1, 1, 1]
    assert counted([3, 0], 3) == [3, 0, 0, 3]
    planned(2, 2)
    assert counted([0, 1], 2) == [0, 0, 4, 0]  # one plan: the new one is in place of the other
    counting.unmap(buffers)
    buffers.close()


@pytest.mark.parametrize(
    ("fresh", "evict", "pace_us", "calls"),
    [
        (1, 0, 0, 64),
        (13_000_000, 0, 0, 35),
        (1 << 40, 0, 0, 2),
        (1, 10**8, 0, 43),
        (1, 0, 60, 10),
        (1, 10**8, 75, 14),
        (1, 0, 1, 64),
    ],
)
def test_a_chain_is_as_long_as_its_calls_allow(fresh: int, evict: int, pace_us: float, calls: int) -> None:
    assert chain_length(fresh, evict, pace_us) == calls


# --- what stands around a call ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache", ["hot", "cold"])
def test_every_call_of_every_sample_has_inputs_of_its_own_and_an_output_that_nobody_wrote(
    stage: Any, cache: str
) -> None:
    seen: list[torch.Tensor] = []

    def compute(_far: FarSide, tensors: dict[str, torch.Tensor]) -> None:
        assert bool((tensors["out"].view(torch.int32) == -1).all()), "what is left of the call before could be kept"
        seen.append(tensors["input"].clone())
        negate(_far, tensors)

    one = stage(negation("float32", 100), cache)
    lone = contestant(one, compute)
    lone.calls, lone.rounds = 7, 2
    for _ in range(3):
        one.sample(lone, look=True)
    assert len(seen) > 40
    for index, values in enumerate(seen):
        assert all(int((values == other).sum()) < 10 for other in seen[:index])
    assert lone.looked == 3 and lone.error < 1


def test_a_request_is_written_for_then_started_then_stopped(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, Any]] = []
    one = stage(negation("float32", 100))
    lone = contestant(one, told=told)
    for name in ("renew", "produce", "forget"):
        function = getattr(one.production, name)

        def noted(*given: Any, name: str = name, function: Any = function, **keywords: Any) -> None:
            told.append((name, list(given[0]) if given else None))
            function(*given, **keywords)

        monkeypatch.setattr(one.production, name, noted)
    told.clear()
    lone.calls, lone.rounds = 3, 1
    one.sample(lone)
    called = one.called
    begun, run = [("renew", None), ("produce", called)], [("side", "proceed"), ("side", called)]
    assert told == [*begun, *run, ("side", "pause")]
    one.cache = "cold"  # there what was written leaves the cache again
    told.clear()
    one.sample(lone)
    called = one.called
    begun, run = [("renew", None), ("produce", called)], [("side", "proceed"), ("side", called)]
    assert told == [*begun, ("forget", called), *run, ("side", "pause")]


@pytest.mark.parametrize(
    ("baseline", "candidate", "own"),
    [
        (None, (2e-6, 0.0), 1e-3),  # as long as ours
        ((5e-4, 0.0), (5e-4, 0.0), 1e-3),  # as long as the baseline's
        (None, (5e-4, 0.0), 1e-3 + 5e-4 - 2.5e-6),  # what takes longer is its own time
        (None, (0.0, 5e-4), 1e-3 + 5e-4),  # so is a copy of another layout
        ((0.0, 5e-4), (0.0, 5e-4), 1e-3),  # unless the baseline returns such, too
        ((5e-4, 0.0), (0.0, 5e-4), 1e-3 + 5e-4),
    ],
)
def test_the_copy_of_what_a_call_returned_is_nobodys_time(
    stage: Any, monkeypatch: pytest.MonkeyPatch, baseline: Any, candidate: tuple[float, float], own: float
) -> None:
    one = stage(negation("float32", 100))
    monkeypatch.setattr(one, "_copy_alone_s", lambda: 2e-6)
    arms = [Arm(name, FarSide(name, one, negate)) for name in ("baseline", "candidate")]  # type: ignore[arg-type]
    for arm, copied in zip(arms, (baseline, candidate), strict=True):
        arm.worker.copied_s = copied  # type: ignore[attr-defined]
    found = interleaved.run(one, arms, check=("candidate",))
    assert found.median_us["baseline"] == pytest.approx(1e3)
    assert found.median_us["candidate"] == pytest.approx(own * 1e6)
    for arm in arms:
        assert arm.lacking == pytest.approx([1e-4] * len(arm.lacking)), "our clock has no copy in it either"


def test_copies_that_took_longer_than_the_request_are_no_copies(stage: Any) -> None:
    one = stage(negation("float32", 100))
    lone = contestant(one)
    lone.worker.copied_s = (1e-3, 0.0)  # type: ignore[attr-defined]
    one.sample(lone)
    lone.worker.lacks_s = -1e-3  # type: ignore[attr-defined]
    with pytest.raises(WorkerFailure, match="more seconds than have passed"):
        one.sample(lone)
    for nonsense in (-1.0, math.nan, "1"):
        with pytest.raises(WorkerFailure, match="its clock answered"):
            sampling.read_copies({"copied": nonsense})


def test_our_own_copy_of_an_output_takes_some_time_and_leaves_inputs_and_guards_alone(stage: Any) -> None:
    one = stage(negation("float32", 100), "cold")
    assert 0 < one._copy_alone_s() < 1
    contestant(one)
    assert one.bench.check_guards("guards").passed


def test_large_calls_are_looked_at_up_to_the_last_block() -> None:
    """Who knew when the looks are over could compute nothing from then on."""
    looks = _spread(8, 24)
    assert [sum(first <= block < first + 8 for block in looks) for first in (0, 8, 16)] == [3, 3, 3]
    assert max(looks) < 24


def test_only_one_process_runs_while_one_is_timed(stage: Any) -> None:
    one = stage(negation("float32", 100))
    one.protocol = replace(one.protocol, replan=1)
    arms: list[Arm] = []

    def compute(far: FarSide, tensors: dict[str, torch.Tensor]) -> None:
        assert [other.name for other in arms if not other.worker.stopped] == [far.name]  # type: ignore[attr-defined]
        negate(far, tensors)

    told: list[tuple[str, Any]] = []
    arms += [Arm(name, FarSide(name, one, compute, told)) for name in ("first", "other", "third")]  # type: ignore[arg-type]
    interleaved.run(one, arms, check=("other",))
    assert {name for name, what in told if isinstance(what, list)} == {"first", "other", "third"}
    assert all(arm.worker.stopped for arm in arms)  # type: ignore[attr-defined]


def test_the_order_of_the_sides_is_drawn_anew_for_each_block(stage: Any) -> None:
    one = stage(negation("float32", 100))
    told: list[tuple[str, Any]] = []
    arms = [Arm(name, FarSide(name, one, negate, told)) for name in ("a", "b", "c")]  # type: ignore[arg-type]
    interleaved.run(one, arms, blocks=(20, 20))
    order = [name for name, what in told if isinstance(what, list)]
    requests = {name: arm.rounds for name, arm in zip("abc", arms, strict=True)}
    assert set(requests.values()) == {1}
    blocks = [tuple(order[at : at + 3]) for at in range(len(order) - 60, len(order), 3)]
    assert all(set(block) == {"a", "b", "c"} for block in blocks) and len(set(blocks)) > 2


MIB = 1 << 20


@pytest.mark.parametrize(
    ("cache", "company", "table", "slots", "copies"),
    [
        ("hot", "plain", 0, 64, None), ("cold", "plain", 0, 53, None),  # 70 MB are read in between
        ("hot", "plain", 16, 64, 4), ("hot", "plain", 300 * MIB // 4, 64, 3), ("hot", "plain", 2048 * MIB // 4, 64, 1),
        ("hot", "alone", 16, 11, 4), ("cold", "alone", 16, 11, 4),
    ],
)  # fmt: skip
def test_a_chain_on_a_gpu_is_laid_out_for_its_neighbours(
    cache: Any, company: Any, table: int, slots: int, copies: int | None
) -> None:
    """Sets of 2 MiB, of a constant four copies at most and one at least; by itself, what fits into half of the cache."""
    kernel, workload = negation("float32", MIB // 4, table=table)
    one = ABComparison(kernel, workload, cache, "cuda", 50 * 10**6, company)
    evicted = int(1.4 * 50e6) if (cache, company) == ("cold", "plain") else 0
    expected = chain_length(2 * MIB, evicted)
    if company == "alone":
        expected = min(expected, 25 * 10**6 // (2 * MIB))
    assert one.layout.slots == len(one.called) == expected
    assert one.layout.copies["input"] == expected and one.layout.copies.get("table") == copies
    assert expected == slots


def test_of_a_slow_call_a_sample_has_fewer() -> None:
    """What its tensors weigh says nothing of a convolution of 40 ms."""
    kernel, workload = negation("float32", MIB // 4)
    slots = [
        ABComparison(kernel, workload, "hot", "cuda", 50 * MIB, pace_us=us).layout.slots for us in (0.0, 100.0, 4e4)
    ]
    assert slots == [64, 6, 2]


def test_alone_on_a_gpu_a_sample_is_as_many_passes_as_take_its_time() -> None:
    """Beside neighbours it is the whole chain once, whatever its calls take."""
    kernel, workload = negation("float32", 1000)
    beside, lone = (ABComparison(kernel, workload, "hot", "cuda", 50 * MIB, company) for company in ("plain", "alone"))
    one = side("side", [], [], calls=10)
    for pace_s, passes in ((6e-6, 10), (1e-6, 60), (1e-3, 1)):
        lone._fill_sample(one, pace_s)
        assert (one.calls, one.rounds, one.passes) == (10, 1, passes)
    one.passes = 1
    beside._fill_sample(one, 1e-6)
    assert (one.calls, one.rounds, one.passes) == (10, 1, 1)


def test_a_side_is_kept_off_the_parents_core_once_its_threads_are_there(stage: Any) -> None:
    """Threads that are started while it is would be born on that core."""
    told: list[Any] = []
    contestant(stage(negation("float32", 100)), told=told)
    acts = [act for _, act in told if act in ("free", "pin", "plan") or isinstance(act, list)]
    assert acts[:2] == ["free", "plan"] and isinstance(acts[2], list) and acts[3] == "pin"
    assert acts.count("pin") == acts.count("free") == acts.count("plan") == 1


def test_sides_that_work_alone_are_timed_on_one_core_that_is_drawn_anew(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cores are unequal where others use the machine, and a process stays where it ran last."""
    monkeypatch.setattr(sampling.os, "sched_getaffinity", lambda _pid: set(range(8)))
    one, told = stage(negation("float32", 100)), []
    arms = [Arm(name, FarSide(name, one, negate, told)) for name in ("first", "other", "third")]  # type: ignore[arg-type]
    interleaved.run(one, arms, blocks=(40, 40))
    on: dict[str, Any] = {}
    timed = []
    for name, what in told:
        if isinstance(what, list):
            timed.append((name, on.get(name)))
        elif what.startswith(("core", "pin", "free")):
            on[name] = what
    blocks = [timed[at : at + 3] for at in range(len(timed) - 120, len(timed), 3)]
    assert all(len({core for _, core in block}) == 1 for block in blocks)
    cores = [block[0][1] for block in blocks]
    assert all(core.startswith("core") for core in cores) and len(set(cores)) > 1
    assert set(on.values()) == {"pin"}, "and in the end threads may start anywhere"


@pytest.mark.parametrize("turned", [False, True])
def test_the_last_side_is_prepared_first_where_sides_are_turned(stage: Any, turned: bool) -> None:
    one, told = stage(negation("float32", 100)), []
    arms = [Arm(name, FarSide(name, one, negate, told)) for name in ("first", "other")]  # type: ignore[arg-type]
    interleaved.run(one, arms, turned=turned)
    assert [name for name, what in told if what == "plan"] == (["other", "first"] if turned else ["first", "other"])


def test_who_has_threads_shares_no_core(stage: Any) -> None:
    one, told = stage(negation("float32", 100)), []
    arms = [Arm(name, FarSide(name, one, negate, told)) for name in ("first", "other")]  # type: ignore[arg-type]
    arms[1].worker.others_s = 1e-3  # type: ignore[attr-defined]
    interleaved.run(one, arms)
    assert not any(isinstance(what, str) and what.startswith("core") for _, what in told)


def test_all_threads_of_a_worker_are_put_on_a_core_and_freed_again(counting: Worker) -> None:
    cores = os.sched_getaffinity(0)
    counting.put_on(min(cores))
    assert os.sched_getaffinity(counting.process.pid) == {min(cores)}
    counting.pin(True)
    assert os.sched_getaffinity(counting.process.pid) == cores


def test_on_a_gpu_a_side_is_warmed_up_with_its_whole_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, workload = negation("float32", 1000)
    one = ABComparison(kernel, workload, "hot", "cuda", 50 * MIB)
    taken: list[tuple[int, int, int]] = []

    def sample(arm: Arm) -> None:
        taken.append((arm.calls, arm.rounds, arm.passes))
        arm.seconds.append(1e-6)
        arm.lacking.append(0.0)

    one.buffers = SimpleNamespace(id=7)  # type: ignore[assignment]
    monkeypatch.setattr(one, "plan", lambda _side: None)
    monkeypatch.setattr(one, "sample", sample)
    lone = Arm("side", SimpleNamespace(mapped={7}))  # type: ignore[arg-type]
    one.prepare(lone)
    assert taken == [(one.layout.slots, 1, 1)] * 4 and one.layout.slots > 2
    assert lone.pace_s == 1e-6 and lone.seconds == lone.lacking == []


# --- what is looked at -----------------------------------------------------------------------------------------------


def test_an_ordinary_sample_finds_what_was_not_written(stage: Any) -> None:
    """Nobody looks at these calls, and one element of one is left as it was."""
    one = stage(negation("float32", 100))
    lone = contestant(one)
    lone.calls, lone.rounds = 4, 1
    first = lone.worker.calls  # type: ignore[attr-defined]

    def lazy(far: FarSide, tensors: dict[str, torch.Tensor]) -> None:
        negate(far, tensors)
        if far.calls == first + 3:
            tensors["out"].view(torch.int32)[99] = -1

    lone.worker.compute = lazy  # type: ignore[attr-defined]
    with pytest.raises(WorkerFailure, match="skipped work while it was timed: 1 elements of out were not") as failure:
        one.sample(lone)
    assert failure.value.outcome is Outcome.CHEATED


def test_of_large_outputs_the_last_call_and_some_others_are_searched(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = stage(negation("float32", 100))
    monkeypatch.setattr(sampling, "SCANNED_BYTES", 3 * 400)
    out = one.kernel.spec.outputs[0]
    one.called = list(range(8))
    for slot in range(8):
        one.bench.read(slot, out).zero_()
    assert one.unwritten() == ""
    one.bench.read(7, out).view(torch.int32)[5] = -1
    assert all(one.unwritten() for _ in range(20)), "the last one, which a call may have left to the next"
    one.bench.read(7, out).zero_()
    one.bench.read(3, out).view(torch.int32)[5] = -1
    assert {bool(one.unwritten()) for _ in range(200)} == {True, False}
    one.bench.read(9, out).view(torch.int32)[5] = -1
    one.called = [0, 1, 2]
    assert one.unwritten() == ""  # nobody has called that one


def test_as_many_calls_are_searched_as_the_bytes_allow(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = stage(negation("float32", 100))
    one.called, asked, real = list(range(8)), [], random.sample
    monkeypatch.setattr(
        random, "sample", lambda several, count: asked.append((len(several), count)) or real(several, count)
    )
    for scanned in (3 * 400, 4 * 400 - 1, 400, 8 * 400):
        monkeypatch.setattr(sampling, "SCANNED_BYTES", scanned)
        one.unwritten()
    assert asked == [(7, 2), (7, 2), (7, 0)], "beside the last; and all where all may be"


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float8_e4m3fn"])
def test_poison_is_found_in_every_type_of_floats(stage: Any, dtype: str) -> None:
    one = stage(negation(dtype, 100))
    one.called = [0]
    raw = one.layout.bytes_view(one.buffers, one.kernel.spec.outputs[0])[0]
    raw.zero_()
    assert one.unwritten() == ""
    size = len(raw) // 100
    raw[5 * size : 7 * size - 1] = 0xFF
    assert one.unwritten() == ("1 elements of out were not written")


def test_who_works_on_after_it_has_answered_is_accused(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU: the digest of the last call is another one once everything has come to rest."""
    one = stage(negation("float32", 100))
    lone = contestant(one)
    one.sample(lone)
    one.device = "cuda"
    monkeypatch.setattr(one, "require_written", lambda: None)
    monkeypatch.setattr(one.production, "last_digest", lambda: 7)
    one.finished = 7
    one._examine(lone, look=False)
    one.finished = 8
    with pytest.raises(WorkerFailure, match="worked on after it had answered") as failure:
        one._examine(lone, look=False)
    assert failure.value.outcome is Outcome.CHEATED


@pytest.mark.parametrize(("new", "samples", "looks"), [([], 8, []), ([[], [], [3]], 3, [3])])
def test_a_call_with_a_new_constant_is_waited_for_and_looked_at(
    stage: Any, monkeypatch: pytest.MonkeyPatch, new: list[list[int]], samples: int, looks: list[int]
) -> None:
    one = stage(negation("float32", 100))
    lone = contestant(one)
    taken, seen, left = [], [], list(new)

    def sample(arm: Arm) -> None:
        taken.append(arm.name)
        arm.seconds.append(1.0)
        arm.lacking.append(1.0)

    monkeypatch.setattr(one, "sample", sample)
    monkeypatch.setattr(one, "look", lambda _side, slot: seen.append(slot))
    monkeypatch.setattr(one, "_with_new_constants", lambda: left.pop(0) if left else [])
    monkeypatch.setattr(one.production, "kept", {"weight": None})
    one.look_at_new_constants(lone)
    assert (len(taken), seen) == (samples, looks) and lone.seconds == lone.lacking == []
    one.look_at_new_constants(Arm(PAIR, None))  # type: ignore[arg-type]
    one.context = "alone"
    one.look_at_new_constants(lone)
    one.context = "plain"
    monkeypatch.setattr(one.production, "kept", {})
    one.look_at_new_constants(lone)
    assert len(taken) == samples, "these have no constants, or nobody looks at them"


def test_integers_may_rightly_be_all_ones(stage: Any) -> None:
    one = stage(negation("int8", 100))
    one.bench.read(0, one.kernel.spec.outputs[0]).fill_(-1)
    assert one.unwritten() == ""


def test_after_each_sample_it_is_waited_for_until_no_thread_of_a_side_runs(stage: Any) -> None:
    """One that is stopped within a system call ends that first, beside its rival."""
    one = stage(negation("float32", 64))
    lone = contestant(one)
    before = lone.worker.rests
    for number in (1, 2, 3):
        one.sample(lone)
        assert lone.worker.rests == before + number


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "int8"])
@pytest.mark.parametrize("n", [1, 13, 256])
def test_a_look_sees_one_wrong_element(stage: Any, dtype: str, n: int) -> None:
    one = stage(negation(dtype, n))
    lone = contestant(one)
    one.sample(lone, look=True)
    for at in {0, n // 2, n - 1}:
        out = one.bench.read(one.called[0], one.kernel.spec.outputs[0])
        right = out[at].clone()
        out[at] = right + 1 if right < 64 else right - 1
        with pytest.raises(WorkerFailure, match="wrong while it was timed: out") as failure:
            one.look(lone, one.called[0])
        assert failure.value.outcome is Outcome.CHEATED
        out[at] = right
    one.look(lone, one.called[0])


@pytest.mark.parametrize("n", [1, 7, 8, 9, 13, 15, 16, 17])
def test_a_look_sees_one_changed_byte_of_an_input(stage: Any, n: int) -> None:
    """Whatever the size: eight bytes are compared at once, and what is left over one by one."""
    one = stage(negation("int8", n))
    lone = contestant(one)
    lone.calls = 2
    one.sample(lone, look=True)
    slot = one.called[1]
    raw = one.layout.bytes_view(one.buffers, one.kernel.spec.inputs[0])[slot]
    for at in range(n):
        raw[at] ^= 1
        with pytest.raises(WorkerFailure, match="wrong while it was timed: changed its input input") as failure:
            one.look(lone, slot)
        assert failure.value.outcome is Outcome.CHEATED
        raw[at] ^= 1
        one.look(lone, slot)


def test_inputs_that_are_made_zeros_are_seen(stage: Any) -> None:
    """Zeros are right for zeros: what a call was given is held against what was drawn, not against what lies there."""

    def zeros(_far: FarSide, tensors: dict[str, torch.Tensor]) -> None:
        tensors["input"].zero_()
        tensors["out"].zero_()

    one = stage(negation("float32", 100))
    lone = contestant(one, zeros)
    with pytest.raises(WorkerFailure, match="changed its input input"):
        one.sample(lone, look=True)


@pytest.mark.parametrize("name", ["input", "out", "table"])
@pytest.mark.parametrize("where", ["before", "behind"])
def test_one_byte_beside_a_tensor_is_seen_in_the_end(stage: Any, name: str, where: str) -> None:
    one = stage(negation("float32", 13, table=5))
    lone = contestant(one)
    one.sample(lone, look=True)
    assert one.finish(lone).passed
    beside = guards(one.layout, one.buffers, name)[where]
    beside[-1] ^= 1
    with pytest.raises(WorkerFailure, match=f"wrote {where} {name}") as failure:
        one.finish(lone)
    assert failure.value.outcome is Outcome.CHEATED


def test_a_write_to_what_is_kept_between_calls_is_seen(stage: Any) -> None:
    """By a look at a call that has it, and in the end wherever it was."""
    one = stage(negation("float32", 100, table=300))
    lone = contestant(one)
    one.sample(lone, look=True)
    table = next(t for t in one.kernel.spec.inputs if t.name == "table")
    raw = one.layout.bytes_view(one.buffers, table)
    slot = one.called[0]
    raw[one.layout.copy(table, slot), 1199] ^= 1
    with pytest.raises(WorkerFailure, match="changed its input table"):
        one.look(lone, slot)
    with pytest.raises(WorkerFailure, match="changed its input table"):
        one.finish(lone)
    raw[one.layout.copy(table, slot), 1199] ^= 1
    assert one.finish(lone).name == f"{lone.looked} timed calls, hot"


@pytest.mark.parametrize(("elements", "looks"), [(100, 8 + OTHERS), ((1 << 18) + 1, CHECKS + 1)])
def test_so_many_calls_are_looked_at(stage: Any, elements: int, looks: int) -> None:
    """One of each sample, and a few where a look takes long; and those of other distributions."""
    one = stage(negation("float32", elements), cache_bytes=16 << 20)
    arms = [Arm(name, FarSide(name, one, negate)) for name in ("first", "other")]  # type: ignore[arg-type]
    result = interleaved.run(one, arms, check=("other",), blocks=(8, 8))
    assert [arm.looked for arm in arms] == [0, looks]
    assert [check.name for check in result.checks["other"]] == [f"{looks} timed calls, hot"]
    assert result.checks["first"] == []


def test_the_side_without_a_candidate_has_no_output_to_look_at(stage: Any) -> None:
    one = stage(negation("float32", 100))
    nobody = contestant(one, lambda _far, _tensors: None, name=PAIR)
    one.sample(nobody, look=True)
    assert nobody.looked == 0 and len(nobody.seconds) == 1


def test_a_failure_names_its_side(stage: Any) -> None:
    one = stage(negation("float32", 100))

    def nothing(far: FarSide, tensors: dict[str, torch.Tensor]) -> None:
        if far.calls < 8:
            negate(far, tensors)

    arms = [Arm("first", FarSide("first", one, negate)), Arm("lazy", FarSide("lazy", one, nothing))]  # type: ignore[arg-type]
    with pytest.raises(ArmFailure, match="skipped work") as failure:
        interleaved.run(one, arms)
    assert failure.value.arm == "lazy"


def test_code_of_a_library_is_seen_after_any_request(stage: Any) -> None:
    one = stage(negation("float32", 100))
    lone = contestant(one)
    lone.worker.library = "it runs code of libblas.so.3"  # type: ignore[attr-defined]
    with pytest.raises(WorkerFailure, match=r"it runs code of libblas\.so\.3") as failure:
        one.sample(lone)
    assert failure.value.outcome is Outcome.CHEATED


@pytest.mark.parametrize(
    ("error", "blamed"),
    [(1.4, Outcome.INCORRECT), (2.7, Outcome.CHEATED), (128.0, Outcome.CHEATED), (0.0, Outcome.CHEATED)],
)
def test_an_accident_of_rounding_is_no_fraud(error: float, blamed: Outcome) -> None:
    """2.7: bfloat16 for float16, 128: float16 for float32; no error at all: something was not written, or an input was."""
    found = Check(workload="w", name="timed calls, cold", passed=False, error=error, message="y[0] is 1, should be 2")
    assert _blame(found) is blamed


# --- what is computed from the samples -------------------------------------------------------------------------------


def test_the_neighbours_own_time_is_taken_off() -> None:
    first, other = side("first", [5.0, 6.0, 5.5], []), side("other", [4.0, 4.0, 4.0], [])
    pair = side(PAIR, [3.0, 2.0, 3.5], [])
    assert _net(first, pair) == [2.0, 4.0, 2.0] and _net(other, pair) == [1.0, 2.0, 0.5]
    assert _ratios(first, other, pair) == [2.0, 2.0, 4.0]
    assert _net(first, None) == first.seconds and _ratios(first, other) == [1.25, 1.5, 1.375]


def test_what_adds_nothing_to_its_neighbours_is_not_infinitely_fast() -> None:
    first, other, pair = side("first", [5.0] * 2, []), side("other", [2.9, 3.01], []), side(PAIR, [3.0] * 2, [])
    assert _net(other, pair) == pytest.approx([0.06, 0.06])
    assert _ratios(first, other, pair) == pytest.approx([2 / 0.06] * 2)


def test_an_interval_is_narrow_with_the_neighbours_taken_off() -> None:
    """What is left of two long times may vary much where they vary little."""
    first, other = side("first", [10.0] * 12, []), side("other", [10.0, 10.1] * 6, [])
    pair = side(PAIR, [9.0] * 12, [])
    assert _narrow([first, other], None, 0.02) and not _narrow([first, other], pair, 0.02)
    assert not _narrow([other], None, 0.005) and _narrow([other], None, 0.02)
    assert not _narrow([other], pair, 0.02)


def test_sides_far_apart_are_told_apart_by_a_wide_interval() -> None:
    """Also two that are both far from the first: what they are beside each other decides, too."""
    first, fast = side("first", [5.0] * 12, []), side("fast", [1.0, 1.1] * 6, [])
    near, other = side("near", [4.9, 5.2] * 6, []), side("other", [1.1, 1.0] * 6, [])
    assert _narrow([first, fast], None, 0.02, 0.1) and not _narrow([first, fast], None, 0.02, 0.0)
    assert not _narrow([first, near], None, 0.02, 0.1), "as near to 1 as it is, more samples say more"
    assert not _narrow([first, fast, other], None, 0.02, 0.1), "which of the two is faster is open"
    assert _narrow([first, fast, side("half", [0.5] * 12, [])], None, 0.02, 0.2)


def test_a_contest_takes_its_neighbours_off(stage: Any) -> None:
    one = stage(negation("float32", 100))
    arms = [Arm(name, FarSide(name, one, negate)) for name in ("first", "other", PAIR)]  # type: ignore[arg-type]
    for each, call_s in zip(arms, (3e-3, 2e-3, 1e-3), strict=True):
        each.worker.call_s = call_s  # type: ignore[attr-defined]
    result = interleaved.run(one, arms[:2], pair=arms[2])
    assert result.median_us == pytest.approx({"first": 2000, "other": 1000})
    assert result.ratios["other"] == pytest.approx([2.0] * result.samples)
    assert result.speedup("other").median == pytest.approx(2.0)
    assert set(result.raw) == {"first", "other", PAIR} and result.raw["first"] == pytest.approx([3e-3] * result.samples)
    assert result.samples == PROTOCOLS["cpu"].blocks[0]  # all alike: no more are needed


def test_samples_are_taken_until_the_interval_is_narrow(stage: Any) -> None:
    one = stage(negation("float32", 100))
    one.protocol, rng = replace(one.protocol, patience_s=math.inf), random.Random(5)
    arms = [Arm(name, FarSide(name, one, negate)) for name in ("first", "other")]  # type: ignore[arg-type]

    def noisy(far: FarSide, tensors: dict[str, torch.Tensor]) -> None:
        negate(far, tensors)
        far.call_s = 1e-3 * rng.uniform(1.0, 1.3)

    arms[1].worker.compute = noisy  # type: ignore[attr-defined]
    assert interleaved.run(one, arms).samples == PROTOCOLS["cpu"].blocks[1]
    one.protocol = replace(one.protocol, patience_s=0.0)
    fresh = [Arm(arm.name, arm.worker) for arm in arms]
    assert interleaved.run(one, fresh).samples == PROTOCOLS["cpu"].blocks[0]


# --- whose clock is believed -----------------------------------------------------------------------------------------

CALLS, PIPE_S = 4, 1e-4


@pytest.mark.parametrize("said", [None, "1e-6", 1, True, 0.0, -1e-9, math.nan, math.inf, 3600.0, [1e-6]])
def test_a_clock_that_answers_nonsense_is_accused(said: Any) -> None:
    with pytest.raises(WorkerFailure, match="its clock answered") as failure:
        read_seconds({"seconds": said})
    assert failure.value.outcome is Outcome.CHEATED
    assert read_seconds({"seconds": 0.5}) == 0.5


def test_a_clock_cannot_say_more_than_has_passed(stage: Any) -> None:
    one = stage(negation("float32", 100))
    lone = contestant(one)
    lone.worker.lacks_s = -1e-3  # type: ignore[attr-defined]
    with pytest.raises(WorkerFailure, match="its clock says more seconds than have passed") as failure:
        one.sample(lone)
    assert failure.value.outcome is Outcome.CHEATED


@pytest.mark.parametrize(
    ("device", "pace_s"), [("cuda", 1e-4), ("cuda", 1.0), ("cpu", 1e-4), ("cpu", 1e-6), ("cpu", 1.0)]
)
def test_a_long_sample_outlasts_what_the_pipe_costs(
    stage: Any, monkeypatch: pytest.MonkeyPatch, device: str, pace_s: float
) -> None:
    """Whatever its calls take; what each request left is looked for as after any other."""
    one = stage(negation("float32", 100))
    asked: list[tuple[int, int]] = []
    examined: list[tuple[Arm, bool]] = []

    def request(_side: Arm, calls: int, passes: int = 1) -> tuple[float, float]:
        asked.append((calls, passes))
        return 0.0, 3 * pace_s * calls * passes

    one.device = device
    monkeypatch.setattr(one, "_request", request)
    monkeypatch.setattr(one, "_examine", lambda side, *, look: examined.append((side, look)))
    lone = side("side", [], [], calls=4, pace_s=pace_s)
    assert one.long_sample(lone, LONG_S) == pytest.approx(3 * pace_s), "by our clock, a call"
    made, (calls, passes) = sum(calls * passes for calls, passes in asked), asked[0]
    assert made * pace_s >= LONG_S * (1 - 1e-9) and (made - calls) * pace_s < LONG_S
    assert set(asked) == {(calls, passes)} and examined == [(lone, False)] * len(asked)
    if device == "cuda":
        assert len(asked) == 1 and calls == 4
        whole = 3 * pace_s * calls * passes
        assert one.long_sample(lone, LONG_S, pipe_s=whole / 3) == pytest.approx(2 * pace_s), "without the pipe"
    else:
        assert passes == 1 and calls == min(one.layout.slots, max(1, math.ceil(LONG_S / pace_s)))


def test_the_quickest_request_of_all_samples_is_kept_by_our_clock(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = stage(negation("float32", 100))
    lone = side("lone", [], [], calls=2, rounds=3)
    outside_s = [5e-3, 2e-3, 9e-3, 7e-3, 3e-3, 4e-3]
    monkeypatch.setattr(one, "_request", lambda *_: (1e-3, outside_s.pop(0)))
    monkeypatch.setattr(one, "_examine", lambda *_, look: None)
    one.sample(lone)
    one.sample(lone)
    assert outside_s == [] and lone.quickest_s == pytest.approx(1e-3)


@pytest.mark.parametrize("look", [False, True])
def test_one_call_of_a_long_sample_may_be_looked_at(stage: Any, monkeypatch: pytest.MonkeyPatch, look: bool) -> None:
    one = stage(negation("float32", 100))
    lone = contestant(one)
    lone.pace_s = LONG_S / 3 / one.layout.slots
    looked: list[int] = []
    monkeypatch.setattr(one, "look", lambda _side, slot: looked.append(slot))
    one.long_sample(lone, LONG_S, look=look)
    assert len(looked) == look and set(looked) <= set(range(one.layout.slots))


@pytest.mark.parametrize("cache", ["hot", "cold"])
def test_who_computes_only_in_short_samples_and_claims_that_they_are_quick_is_wrong(stage: Any, cache: str) -> None:
    """A long sample shows by the number of its calls; there its clock is right, and its answers are not."""
    one = stage(negation("float32", 100), cache)
    claims_s = 0.6e-3

    def compute(far: FarSide, tensors: dict[str, torch.Tensor]) -> None:
        short = len(one.called) < 5
        far.call_s, far.lacks_s = (claims_s, 1e-4 + len(one.called) * (1e-3 - claims_s)) if short else (0.1e-3, 1e-4)
        if short:
            negate(far, tensors)
        else:
            tensors["out"].zero_()

    arms = [Arm("first", FarSide("first", one, negate)), Arm("other", FarSide("other", one, compute))]  # type: ignore[arg-type]
    assert math.ceil(LONG_S / claims_s) >= 5 and one.layout.slots >= 5
    with pytest.raises(ArmFailure, match="wrong while it was timed") as failure:
        interleaved.run(one, arms, check=("other",))
    assert (failure.value.arm, failure.value.outcome) == ("other", Outcome.CHEATED)


@pytest.fixture
def others_share(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Says what share of the CPU other processes take; none until then, whatever else the machine does."""

    def say(share: float) -> None:
        monkeypatch.setattr(load.LoadWatch, "share", lambda _self: share)

    say(0.0)
    return say


def test_a_contest_ends_with_a_doubt_of_the_clock_that_lacks(stage: Any, others_share: Any) -> None:
    one = stage(negation("float32", 100))
    arms = [Arm(name, FarSide(name, one, negate)) for name in ("first", "late")]  # type: ignore[arg-type]
    assert set(interleaved.run(one, arms).median_us) == {"first", "late"}
    again = [Arm(name, FarSide(name, one, negate)) for name in ("first", "late")]  # type: ignore[arg-type]
    again[1].worker.lacks_s = 1.0  # type: ignore[attr-defined]
    with pytest.raises(ArmFailure, match="its clock lacks") as failure:
        interleaved.run(one, again)
    assert (failure.value.arm, failure.value.outcome) == ("late", Outcome.CHEATED)


class Scripted:
    """A comparison whose long samples take `long_s` per call, by side, one after another."""

    def __init__(self, device: str, **long_s: list[float]) -> None:
        self.device, self.cache, self.protocol = device, "cold", PROTOCOLS[device]
        self.left = {name: list(values) for name, values in long_s.items()}
        self.more: list[float] = []
        self.asked_s = 0.0

    def long_sample(self, arm: Arm, seconds: float, *, look: bool = False, pipe_s: float = 0.0) -> float:
        self.asked_s = seconds
        return self.left[arm.name].pop(0)

    def sample(self, arm: Arm) -> None:
        arm.seconds.append(1.0)
        arm.lacking.append(self.more.pop(0))
        for values in (arm.cpu, arm.others_cpu):
            values.extend(values[-1:])


def claimed(
    device: str, true_s: float, claimed_s: float, long_s: list[float], *, taken_s: list[float] | None = None
) -> float:
    """What is believed of a side whose calls take `true_s`, beside one whose calls take 1 ms; others take `taken_s` of requests."""
    taken = taken_s or [0.0] * 8
    first = side("first", [1e-3] * 8, [PIPE_S + more for more in taken], calls=CALLS)
    lacking = [PIPE_S + more + CALLS * (true_s - claimed_s) for more in taken]
    quickest_s = claimed_s + min(lacking) / CALLS
    other = side("other", [claimed_s] * 8, lacking, calls=CALLS, quickest_s=quickest_s)
    _confirm(Scripted(device, first=[1e-3] * ACCUSING_PAIRS, other=long_s), first, other, None)  # type: ignore[arg-type]
    return statistics.median(a / b for a, b in zip(first.seconds, other.seconds, strict=True))


def test_a_clock_that_runs_slow_is_corrected_where_a_long_sample_bears_it_out_by_chance() -> None:
    assert claimed("cpu", 1e-3, 0.9e-3, [0.8e-3]) == pytest.approx(1.0)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_clock_that_runs_slow_is_corrected_by_long_samples(device: str) -> None:
    assert claimed(device, 1e-3, 0.9e-3, [1e-3] * 3) <= 1.0 + 1e-9


@pytest.mark.parametrize(
    ("true_s", "claimed_s", "believed"), [(1e-3, 0.9e-3, 1.0), (0.9e-3, 0.9e-3, 1 / 0.9), (1e-3, 0.99e-3, 1 / 0.99)]
)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_short_comparisons_believe_no_more_than_our_clock_shows(
    device: str, true_s: float, claimed_s: float, believed: float
) -> None:
    """Without long samples: by what the short ones took. Where that says anything up to the claim it stands."""
    taken = [0.0, 1e-6, 2e-6, 5e-6, 0.0, 3e-6, 1e-6, 4e-5]
    first = side("first", [1e-3] * 8, [PIPE_S + more for more in taken], calls=CALLS)
    lacking = [PIPE_S + more + CALLS * (true_s - claimed_s) for more in reversed(taken)]
    other = side("other", [claimed_s] * 8, lacking, calls=CALLS)
    _correct(Scripted(device), first, other)  # type: ignore[arg-type]
    assert statistics.median(_ratios(first, other)) == pytest.approx(believed, rel=6e-3)


def test_who_is_faster_loses_little_to_long_samples_that_others_interrupt() -> None:
    assert claimed("cpu", 0.5e-3, 0.5e-3, [0.9e-3] * 3) > 1.85


def test_no_ratio_is_kept_that_no_clock_has_shown() -> None:
    """Of a request that took less than the pipe is thought to take nothing is left for its calls: that was 1 ns, and 6.5 million."""
    first = side("first", [1e-3] * 8, [PIPE_S] * 8, calls=1)
    other = side("other", [1e-3] * 8, [PIPE_S - 1e-3] * 4 + [PIPE_S] * 4, calls=1)
    shown = [a / b for a, b in zip(_outside(first, PIPE_S), _outside(other, PIPE_S), strict=True)]
    assert max(shown) < 1 / LEAST_SHARE * 1e-3 / PIPE_S * 1.001


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_of_sides_of_ours_the_fastest_is_found_and_the_clearly_slower_are_let_go(
    stage: Any, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    one = stage(negation("float32", 100))
    took = {"slow": 2e-3, "close": 1.01e-3, "quick": 1e-3, "pair": 0.4e-3}
    made: list[str] = []

    def sample(arm: Arm) -> None:
        made.append(arm.name)
        arm.seconds.append(took[arm.name] * (1.5 if len(arm.seconds) == 2 else 1.0))  # one is disturbed

    def prepare(arm: Arm, most: int = 4) -> None:
        arm.pace_s = took[arm.name]
        arm.seconds.append(9.0)

    one.device = device
    monkeypatch.setattr(one, "sample", sample)
    monkeypatch.setattr(one, "prepare", prepare)
    monkeypatch.setattr(one, "plan", lambda arm: made.append(f"plan {arm.name}"))
    arms = [side(name, [], []) for name in ("slow", "close", "quick")]
    assert interleaved.find_fastest_us(one, arms, side("pair", [], []), 5) == pytest.approx(600)
    assert made.count("close") == made.count("quick") == 5 and made.count("pair") == 10 and "slow" not in made
    assert [text for text in made if text.startswith("plan")] == ["plan close", "plan quick"]
    assert interleaved.find_fastest_us(one, arms, None, 5) == pytest.approx(1000)

    def fail(arm: Arm) -> None:
        raise WorkerFailure(Outcome.RUNTIME_ERROR, "gone")

    monkeypatch.setattr(one, "sample", fail)
    with pytest.raises(ArmFailure, match="gone"):
        interleaved.find_fastest_us(one, arms, None, 5)


def test_one_long_pair_is_enough_where_it_bears_the_claim_out() -> None:
    assert claimed("cuda", 0.5e-3, 0.5e-3, [0.5e-3]) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("neighbours_s", "asked_s"), [(0.9e-3, CONFIRM_S["cuda"] / LEAST_OWN), (0.5e-3, CONFIRM_S["cuda"] / 0.498)]
)
def test_a_clock_that_is_a_little_slow_is_corrected_where_most_of_a_call_is_its_neighbours(
    neighbours_s: float, asked_s: float
) -> None:
    """Four thousandths of a call are four hundredths of what the side adds to it, and long samples are longer for it."""
    first = side("first", [1e-3] * 8, [PIPE_S] * 8, calls=CALLS)
    other = side("other", [0.996e-3] * 8, [PIPE_S] * 8, calls=CALLS)
    pair = side("pair", [neighbours_s] * 8, [PIPE_S] * 8, calls=CALLS)
    contest = Scripted("cuda", first=[1e-3] * ACCUSING_PAIRS, other=[1e-3] * 3)
    _confirm(contest, first, other, pair)  # type: ignore[arg-type]
    assert _ratios(first, other, pair) == pytest.approx([1.0] * 8)
    assert contest.asked_s == pytest.approx(asked_s, rel=0.01)


def test_a_clock_that_claims_far_too_much_is_accused() -> None:
    with pytest.raises(ArmFailure, match=r"its clock says 2.00x in short samples, ours 1.00x"):
        claimed("cpu", 1e-3, 0.5e-3, [1e-3] * ACCUSING_PAIRS)


def test_nobody_is_accused_whose_quickest_request_bears_the_clock_out() -> None:
    """Nor believed: twice as fast, and 1.1 times in requests of which others take most."""
    others_s = [0.0, *[20 * CALLS * 1e-3] * 7]
    assert 1 <= claimed("cpu", 0.5e-3, 0.5e-3, [0.9e-3] * ACCUSING_PAIRS, taken_s=others_s) < 1.2
    with pytest.raises(ArmFailure, match="its clock says"):
        claimed("cpu", 1e-3, 0.5e-3, [0.9e-3] * ACCUSING_PAIRS, taken_s=others_s)


def test_nobody_is_accused_by_three_pairs_that_others_interrupted() -> None:
    """Of nine pairs one bears the claim out: what is believed is what the middle one shows."""
    assert claimed("cpu", 1e-3, 0.5e-3, [1e-3] * (ACCUSING_PAIRS - 1) + [0.5e-3]) == pytest.approx(1.0)


def test_before_a_clock_is_accused_it_is_looked_at_again() -> None:
    first = side("first", [1e-3] * 3, [PIPE_S] * 3)
    late = side("late", [1e-3] * 3, [5e-3] * 3)
    scripted = Scripted("cpu")
    scripted.more = [4e-3, PIPE_S, 9.0]
    _doubt(scripted, first, late)  # type: ignore[arg-type]
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
    device: str, firsts: list[float], lates: list[float], accused: bool, others_share: Any
) -> None:
    first, late = side("first", [1e-3] * 3, [PIPE_S] * 3), side("late", [1e-3] * 3, [5e-3] * 3)
    scripted = Scripted(device, first=firsts, late=lates)
    scripted.more = [4e-3] * 100
    if not accused:
        assert _doubt(scripted, first, late)  # type: ignore[arg-type]
        return
    with pytest.raises(ArmFailure, match="its clock lacks 3.90 ms") as failure:
        _doubt(scripted, first, late)  # type: ignore[arg-type]
    assert failure.value.outcome is Outcome.CHEATED


@pytest.mark.parametrize(
    ("cpu_s", "other_threads_s", "believed"),
    [
        (1e-3, 0.0, True),  # one thread that has done no more than its clock says: what lacks is its waiting for a core
        (1.9e-3, 0.95e-3, False),  # two threads side by side, or a second one that goes on: CPU time cannot tell
        (2e-3, 0.0, None),  # its own thread alone took twice what its clock says
        (4e-3, 2e-3, None),
        (0.0, 0.0, False),  # the kernel does not say
    ],
)
def test_on_a_busy_cpu_only_cpu_time_accuses_a_clock(
    cpu_s: float, other_threads_s: float, believed: bool | None, others_share: Any
) -> None:
    others_share(0.6)
    first = side("first", [1e-3] * 3, [PIPE_S] * 3, calls=6, cpu=[1e-3] * 3, others_cpu=[0.0] * 3)
    late = side("late", [1e-3] * 3, [4.2e-3 + PIPE_S] * 3, calls=6, cpu=[cpu_s] * 3, others_cpu=[other_threads_s] * 3)
    scripted = Scripted("cpu", first=[1e-3] * 3, late=[3e-3] * 3)
    scripted.more = [4.2e-3 + PIPE_S] * MORE_DOUBTS
    if believed is not None:
        assert _doubt(scripted, first, late) is believed  # type: ignore[arg-type]
    else:
        with pytest.raises(ArmFailure, match="its clock lacks 4.20 ms of a sample of 6.00 ms"):
            _doubt(scripted, first, late)  # type: ignore[arg-type]


@pytest.mark.parametrize(("cpu_s", "accused"), [(0.5e-3, False), (1e-3, True)])
def test_on_a_busy_cpu_long_samples_accuse_nobody_but_take_its_gain(
    cpu_s: float, accused: bool, others_share: Any
) -> None:
    others_share(0.6)
    first = side("first", [1e-3] * 8, [PIPE_S] * 8, calls=CALLS, cpu=[1e-3] * 8, others_cpu=[0.0] * 8)
    other = side(
        "other", [0.5e-3] * 8, [PIPE_S + CALLS * 0.5e-3] * 8, calls=CALLS, cpu=[cpu_s] * 8, others_cpu=[0.0] * 8,
        quickest_s=1e-3 + PIPE_S / CALLS,
    )  # fmt: skip
    scripted = Scripted("cpu", first=[1e-3] * ACCUSING_PAIRS, other=[1e-3] * ACCUSING_PAIRS)
    with pytest.raises(ArmFailure, match="its clock says 2.00x") if accused else nullcontext():
        _confirm(scripted, first, other, None, others=load.LoadWatch())  # type: ignore[arg-type]
    if not accused:
        assert _ratios(first, other) == pytest.approx([1.0] * 8)


def arms_beside_others(
    *, candidate_cpu: float = 0.95, other_threads: float = 0.0, waits: int = 2, noise: float = 0.5
) -> list[Arm]:
    """Two arms of which others interrupt each sample by chance: the second takes 5 % less CPU time."""
    rng = random.Random(1)
    made = []
    for name, cpu, others, waited in (("baseline", 1.0, 0.0, 2), ("candidate", candidate_cpu, other_threads, waits)):
        taken = [cpu * rng.uniform(0.995, 1.005) for _ in range(20)]
        seconds = [one * rng.uniform(1.0, 1.0 + noise) for one in taken]
        made.append(Arm(name, None, seconds=seconds, cpu=taken, others_cpu=[others] * 20, waits=[waited] * 20))  # type: ignore[arg-type]
    return made


def test_where_others_interrupt_samples_cpu_time_decides():
    assert _is_known_by_cpu(arms_beside_others(), None)
    assert not _is_known_by_cpu(arms_beside_others(noise=0.004), None), "the clock knows as much"


@pytest.mark.parametrize(
    ("why", "changes"),
    [
        ("threads share its work", {"other_threads": 0.4}),
        ("it sleeps", {"waits": 5}),
        ("its time is another's", {"candidate_cpu": 0.0}),
    ],
)
def test_cpu_time_decides_only_of_who_works_alone_and_awake(why: str, changes: dict[str, Any]):
    assert not _is_known_by_cpu(arms_beside_others(**changes), None), why
