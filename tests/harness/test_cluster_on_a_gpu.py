"""On GPUs: a cluster of one's own has a worker for each, which judges on that one alone, and leaves nothing behind."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("distributed")

from harness import engines
from harness.cluster import places
from harness.store import Store
from kernels import catalog

pytestmark = pytest.mark.gpu


def environment(pid: int) -> dict[str, str]:
    pairs = (one.decode().partition("=") for one in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if one)
    return {name: value for name, _, value in pairs}


def ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def until(true: Callable[[], bool], otherwise: str) -> None:
    late = time.monotonic() + 60
    while not true():
        assert time.monotonic() < late, otherwise
        time.sleep(0.1)


def test_every_gpu_judges_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ASTROLABE_CLUSTER_CONTEST_S", "0")
    gpus, kernel = list(places.gpus()), catalog.load("silu_and_mul")
    source = kernel.baseline("cuda")[1].read_text()
    with closing(engines.open_engine(engines.choice("dask"), "cuda", every=True)) as engine:
        until(lambda: len(engine.cluster.seen) > len(gpus), "who builds did not join")
        seen = engine.cluster.seen
        lent = {environment(one.pid)["CUDA_VISIBLE_DEVICES"] for one in seen if one.kind == "device"}
        assert lent == set(gpus) and sum(one.kind == "builder" for one in seen) == 1
        cores = [os.sched_getaffinity(one.pid) for one in seen]
        assert sum(map(len, cores)) == len(set().union(*cores)) or len(os.sched_getaffinity(0)) < 3 * len(cores)
        pids = [one.pid for one in seen] + [engine.cluster.local.scheduler.pid, engine.cluster.local.supervisor.pid]
        with (
            engine.evaluator(kernel, Store(tmp_path), dtypes=("float16",)) as evaluator,
            ThreadPoolExecutor(engine.width()) as pool,
        ):
            baseline = evaluator.store.put(source)

            def judged(number: int):
                verdict = evaluator.verify(evaluator.build(evaluator.store.put(f"{source}\n// twin {number}\n")))
                return evaluator.measure(verdict, baseline=baseline) if verdict.passed else verdict

            found = list(pool.map(judged, range(2 * engine.width())))
            assert all(one.passed and one.suite for one in found), [one.reason for one in found]
            assert {one.device for one in found} == {evaluator.facts.name}
            assert len(evaluator.places) == engine.width(), "one of its kind stood idle"
            assert all(one.timings and all(timing.light_us for timing in one.timings) for one in found)
    until(lambda: all(map(ended, pids)), "a part of the cluster is left")
