"""Variants of one source in one process, and workers that wait, with real compilers and real workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness import backends
from harness.checks.drawing import distributions
from harness.evaluate import Evaluator
from harness.judge import variants
from harness.judge.session import map_buffers
from harness.judge.variants import Variants, measure_ratios
from harness.processes import spares, worker
from harness.processes.spares import Spares
from harness.processes.worker import LIMITS, SpareNativeWorker, Worker, WorkerFailure
from harness.store import Store
from harness.timing import interleaved
from harness.timing.sampling import ArmFailure
from kernels import catalog
from kernels.spec import Workload

pytestmark = pytest.mark.usefixtures("few_samples")

OPEN = "#include <cstdint>\n#define SIZE 1  // tune: 1 2 3 4 5\n"
FAULT = {2: "*static_cast<volatile int*>(nullptr) = 1;", 3: "return;"}
"""What a variant does in place of the work: it ends its process, or leaves the outputs as they were."""


@pytest.fixture
def evaluator(tmp_path: Path) -> Iterator[Evaluator]:
    if reason := backends.get("cpu").why_unavailable():
        pytest.skip(reason)
    kernel = catalog.load("silu_and_mul")
    workloads = (Workload(axes={"tokens": 8, "hidden": 512}, dtype="float32"),)
    kernel = replace(kernel, spec=kernel.spec.model_copy(update={"workloads": workloads, "dtypes": ("float32",)}))
    with Evaluator(kernel, "cpu", Store(tmp_path)) as made:
        yield made


@pytest.fixture
def source(evaluator: Evaluator) -> str:
    """The baseline with an open number, which stays in a variable that all calls of a variant count in."""
    text = evaluator.kernel.baseline("cpu")[1].read_text().replace("#include <cstdint>\n", OPEN, 1)
    entry = 'extern "C" void silu_and_mul_float32'
    head, _, tail = text.partition(entry)
    at = tail.index("{") + 1
    faults = "".join(f"  if (SIZE == {size}) {{ {what} }}\n" for size, what in FAULT.items())
    return f"{head}{entry}{tail[:at]}\n{faults}{tail[at:]}"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Worker]:
    """The workers whose processes were begun, in order."""
    found: list[Worker] = []
    begin = Worker._begin

    def noted(self: Worker) -> None:
        begin(self)
        found.append(self)

    monkeypatch.setattr(Worker, "_begin", noted)
    return found


def sizes(*values: int) -> list[dict[str, int]]:
    return [{"SIZE": value} for value in values]


def test_variants_share_a_process_and_who_ends_it_or_is_wrong_takes_nobody_along(
    evaluator: Evaluator, source: str, started: list[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [(evaluator.suite()[0], "hot", "plain")]
    apart = measure_ratios(evaluator, source, sizes(2, 3, 4, 5), cases, 3)
    assert [one is None for one in apart] == [True, True, False, False]
    assert len(started) >= 5, "each has a process of its own on a CPU"
    started.clear()
    monkeypatch.setattr(variants, "may_share", lambda *_: True)
    together = measure_ratios(evaluator, source, sizes(2, 3, 4, 5), cases, 3)
    assert [one is None for one in together] == [True, True, False, False]
    assert len(started) == 2, "one for all, and one for those that are left when that has ended"
    evaluator.pool.settle()
    assert not any(one.alive for one in started)
    none = measure_ratios(evaluator, source.replace("#define SIZE 1", "#define SIZE 2"), sizes(4, 5), cases, 3)
    assert none == [None, None], "without the source there is nothing to compare with"


def test_one_that_fails_while_it_is_timed_is_started_by_itself(
    evaluator: Evaluator, source: str, started: list[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(variants, "may_share", lambda *_: True)
    timed, ended = interleaved.run, [False, True]
    processes: list[list[int]] = []

    def fails_twice(comparison: Any, arms: Any, **more: Any) -> Any:
        processes.append([arm.worker.process.pid for arm in arms])
        if ended:
            if ended.pop():
                arms[1].worker.close()  # the process that all are in
            raise ArmFailure("1", worker.Outcome.CHEATED, "its clock disagrees")
        return timed(comparison, arms, **more)

    monkeypatch.setattr(interleaved, "run", fails_twice)
    cases = [(evaluator.suite()[0], "hot", "plain")]
    ratios = measure_ratios(evaluator, source, sizes(4, 5), cases, 3)
    assert ratios[0] is None and ratios[1] is not None, "it had two tries"
    first, second, third = processes
    assert len(set(first)) == 1 and len(set(second)) == 2 and len(third) == 2 and len(set(third)) == 1
    assert second[0] == second[2] == third[0] != first[0], "the others went into another process, and stayed in it"
    evaluator.pool.settle()
    assert not any(one.alive for one in started)


def test_candidates_of_a_process_have_entries_plans_and_static_variables_of_their_own(
    evaluator: Evaluator, source: str
) -> None:
    counted = source.replace("if (SIZE == 3)", "static int64_t calls = 0;\n  if (++calls > SIZE)", 1)
    assert counted != source
    builds = [evaluator.build(evaluator.store.put(counted.replace("SIZE 1 ", f"SIZE {size} "))) for size in (1, 5)]
    running = Variants(evaluator, builds)
    first = evaluator.pool.start(builds[0])
    second = evaluator.pool.start_beside(first, builds[1])
    assert first.process is second.process and not running.workers
    workload = evaluator.suite()[0]
    case = evaluator.cases.get(workload, distributions(evaluator.spec, {})[0], {})
    done = []
    for one in (first, second, first, second):
        bench = map_buffers(evaluator, one, workload, 1)
        bench.write(0, case.inputs)
        bench.outputs(0)["out"].zero_()
        one.request(bench.message())
        done.append(bool(bench.outputs(0)["out"].any()))
        assert one.foreign_code() == ""
    assert done == [True, True, False, True], "the first makes one call, the second five"
    assert first.mapped is second.mapped and first.found == second.found
    broken = builds[1].model_copy(update={"artefact": __file__})
    with pytest.raises(WorkerFailure):
        evaluator.pool.start_beside(first, broken)
    assert not first.alive and not second.alive


def test_a_native_worker_that_waits_is_the_next_one(
    evaluator: Evaluator, source: str, started: list[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Spares(partial(SpareNativeWorker, device="cpu"), 1)
    monkeypatch.setattr(Worker, "_spare", lambda self: kept.take(self.limits))
    build = evaluator.build(evaluator.store.put(source))
    kept.prepare(LIMITS)
    kept.settle()
    (waiting,) = started
    one = evaluator.pool.start(build)
    assert one.process is waiting.process and one.found == {"float32": "silu_and_mul_float32"}
    assert one.foreign_code() == "" and one.active == waiting.active
    kept.settle()
    assert len(started) == 2, "another waits in its place"
    with spares.resting():
        evaluator.pool.start(build).close()
        other = evaluator.pool.start(build)
        assert len(started) == 3 and started[-1] is other, "none is begun meanwhile but by who needs one"
        other.close()
    one.close()
    kept.close()
    assert not any(one.alive for one in started)
    assert not any(one.scratch.exists() or one.code.exists() for one in started)
