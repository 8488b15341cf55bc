"""A place that is lent is one job of the scheduler's, whatever is asked there, and is given back when others wait or nothing comes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("distributed")

from harness import engines
from harness.cluster import leases
from harness.cluster.leases import Lease
from harness.cluster.places import ClusterPlace
from harness.cluster.supervisor import environment
from harness.cluster.worker import Orders
from harness.jobs import Job
from harness.questions import CheckToolchain, ToolchainFacts
from harness.records import DeviceFacts
from harness.store import Store
from kernels import catalog
from kernels.spec import Workload

pytestmark = pytest.mark.usefixtures("few_samples")


def test_what_was_asked_before_the_end_is_done_and_nothing_after_it():
    lease, done = Lease("one"), []
    assert lease.put(lambda: done.append(1)) and lease.put(lambda: done.append(2))
    lease.end()
    assert not lease.put(lambda: done.append(3))
    while (work := lease.next(60.0)) is not None:
        work()
    assert done == [1, 2]


def test_it_ends_where_nothing_comes():
    lease = Lease("one")
    threading.Timer(0.05, lease.put, [lambda: None]).start()
    assert lease.next(60.0) is not None and lease.next(0.0) is None
    assert not lease.put(lambda: None)


@pytest.fixture(scope="module")
def cluster():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASTROLABE_CLUSTER_CONTEST_S", "0")
        made = engines.open_engine(engines.choice("dask:1"), "cpu")
        yield made
        made.close()


@pytest.fixture
def submitted(cluster, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Functions that the scheduler was given."""
    names, submit = list[str](), cluster.cluster.client.submit

    def note(function, *words, **more):
        names.append(function.__name__)
        return submit(function, *words, **more)

    monkeypatch.setattr(cluster.cluster.client, "submit", note)
    return names


def test_its_scheduler_has_imported_what_jobs_are_functions_of_before_the_first_one(cluster):
    def has_imported(dask_scheduler) -> bool:
        import sys

        return "harness.cluster.worker" in sys.modules

    assert cluster.cluster.client.run_on_scheduler(has_imported)


def small():
    kernel = catalog.load("silu_and_mul")
    workload = Workload(axes={"tokens": 8, "hidden": 512}, dtype="float32")
    return replace(kernel, spec=kernel.spec.model_copy(update={"workloads": (workload,), "dtypes": ("float32",)}))


def test_a_verdict_is_one_job_of_the_schedulers_beside_its_builds(cluster, submitted, tmp_path: Path):
    kernel = small()
    with cluster.evaluator(kernel, Store(tmp_path)) as evaluator:
        source = evaluator.store.put(kernel.baseline("cpu")[1].read_text())
        build = evaluator.build(source)
        for beside in evaluator.beside():
            evaluator.build(beside)
        assert set(submitted) == {"answer"}
        submitted.clear()
        verdict = evaluator.measure(evaluator.verify(build), baseline=source)
        assert verdict.timings and submitted == ["hold"]
        evaluator.build(evaluator.store.put("// another\n"))  # on a CPU a build wants the device
        assert submitted == ["hold", "answer"]
        assert evaluator.admits(kernel.spec.workloads[0]) and submitted == ["hold", "answer", "hold"]


def test_a_worker_that_cannot_be_reached_is_asked_by_the_scheduler(
    cluster, submitted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cluster.cluster, "routes", leases.Routes())

    reach = cluster.cluster.client.rpc.connect

    async def connect(address, **more):
        if address in cluster.cluster.addresses.values():
            raise OSError("a tunnel")
        return await reach(address, **more)

    monkeypatch.setattr(cluster.cluster.client.rpc, "connect", connect)
    kernel = small()
    with cluster.evaluator(kernel, Store(tmp_path)) as evaluator:
        source = evaluator.store.put(kernel.baseline("cpu")[1].read_text())
        assert evaluator.verify(evaluator.build(source)).passed
    assert set(submitted) == {"answer"}


def test_a_place_that_builds_is_asked_without_the_scheduler(cluster, submitted, tmp_path: Path):
    place = ClusterPlace(
        name="host builds", kind="builder", device="cuda", cores=tuple(os.sched_getaffinity(0)), slots=2
    )
    local = cluster.cluster.local
    orders = Orders(
        address=local.address, place=place, folder=str(tmp_path), tls=str(local.tls), contest_s=0, room_bytes=0
    )
    worker = subprocess.Popen(
        [sys.executable, "-m", "harness.cluster", "worker", str(os.getpid()), orders.model_dump_json()],
        cwd=tmp_path, env=environment(place), stdin=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        late = time.monotonic() + 60
        while not any(one.kind == "builder" for one in cluster.cluster.seen):
            assert time.monotonic() < late
            time.sleep(0.1)
        facts = DeviceFacts(device="cuda", name="a GPU", architecture="sm_90", units=1, last_level_cache_bytes=1)
        job = Job(question=CheckToolchain(backend="cpu"), asker="", facts=facts, memory_bytes=1, session=None)
        places: list[str] = []
        told = cluster.ask(job, {}, lambda _text: None, places.append)
        assert not ToolchainFacts.model_validate_json(told.record).missing
        assert places == ["host builds"] and not submitted
    finally:
        worker.kill()
        worker.wait()
