"""A thousand devices without one: the real scheduler, the real engine, and workers that sleep as long as jobs take.

    python -m benchmarks.cluster_simulation --workers 1000 [--rounds 3] [--processes 16] [--seconds verify=2.5,measure=6]

Each of as many runs as there are devices asks one question after another (build, verify, search, measure), as a campaign
does, through harness/engines/dask.py; a simulated worker fetches the job's contents, says what a real one says, sleeps, and
answers with as many bytes. Printed: wall time over what the jobs alone take, and which process worked hardest.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import psutil
from distributed import Worker

from harness.cluster import ROOT, Model, build_resource, code, worker
from harness.cluster.places import Place
from harness.cluster.scheduler import configure
from harness.engines import EngineChoice
from harness.engines.dask import Devices, opened
from harness.jobs import Answer, Job
from harness.records import DeviceFacts
from harness.store import digest

FACTS = DeviceFacts(device="cuda", name="Simulated", architecture="sm_90", units=132, last_level_cache_bytes=50 << 20)
SECONDS = {"build": 1.6, "verify": 2.5, "search": 8.0, "measure": 6.0}
"""What jobs on an H200 take about; --seconds has others."""
CHAIN = ("build", "verify", "search", "measure")
ANSWER_BYTES = {"build": 120_000, "verify": 12_000, "search": 1_000, "measure": 60_000}
SOURCE_BYTES, KERNEL_BYTES = 12_000, 40_000
BUILDERS = 8
"""Devices that share a process that builds."""
SAID_EVERY_S = 0.5


class Sleeper:
    """In the place of harness.cluster.worker.Here."""

    def __init__(self, place: Place, folder: Path, seconds: dict[str, float]) -> None:
        self.place, self.seconds = place, seconds
        self.shelf = worker.Shelf(folder)
        self.doing = ""

    def _note(self) -> None:
        pass

    def status(self, _worker: Worker | None = None) -> dict:
        return {
            "place": self.place.name, "kind": self.place.kind, "state": "ready", "facts": FACTS.model_dump(mode="json"),
            "memory_bytes": 80 << 30, "doing": self.doing, "pid": os.getpid(), "code": code(), "slots": self.place.slots,
        }  # fmt: skip

    def answer(self, job: Job, contents, say) -> Answer:
        contents()
        began, late = time.perf_counter(), time.monotonic() + self.seconds.get(job.op, 0.0)
        while (left := late - time.monotonic()) > 0:
            say(f"simulated {job.op}")
            time.sleep(min(SAID_EVERY_S, left))
        record = "x" * ANSWER_BYTES.get(job.op, 100)
        return Answer(record=record, seconds=time.perf_counter() - began)


async def serve(address: str, first: int, count: int, folder: Path, seconds: dict[str, float]) -> None:
    configure()
    sleepers: dict[str, Sleeper] = {}

    class Which:
        """`worker._here` of all workers of this process."""

        def __getattr__(self, name: str):
            return getattr(sleepers[worker.get_worker().name], name)

    worker._here = Which()  # type: ignore[assignment]
    async with contextlib.AsyncExitStack() as stack:
        for number in range(first, first + count):
            kinds = ["device"] + (["builder"] if number % BUILDERS == 0 else [])
            for kind in kinds:
                slots = BUILDERS if kind == "builder" else 1
                place = Place(name=f"{kind} {number}", kind=kind, device="cuda", cores=(0,), slots=slots)
                sleepers[place.name] = Sleeper(place, folder / place.name.replace(" ", "-"), seconds)
                resource = build_resource() if kind == "builder" else MODEL.resource
                await stack.enter_async_context(
                    Worker(
                        address, nthreads=slots, name=place.name, resources={resource: slots}, memory_limit=0,
                        local_directory=str(folder), dashboard=False, metrics={"astrolabe": sleepers[place.name].status},
                    )
                )  # fmt: skip
        await asyncio.Event().wait()


MODEL = Model(facts=FACTS, memory_bytes=80 << 30)


def one_run(devices: Devices, number: int, rounds: int, kernel: bytes, late: dict[str, list[float]]) -> int:
    """A run's questions, one after another; the jobs that it asked. Appends what each took beyond its own work."""
    asked = 0
    for _ in range(rounds):
        source = secrets.token_bytes(SOURCE_BYTES // 2).hex().encode()
        contents = {digest(source): source, digest(kernel): kernel}
        for op in CHAIN:
            job = Job(
                op=op, asker=f"{number}", device="cuda", facts=FACTS, memory_bytes=80 << 30, sources=tuple(contents),
                candidate=digest(source),
            )  # fmt: skip
            began = time.monotonic()
            answer = devices.ask(job, contents, lambda _text: None, lambda _place: None)
            late[op].append(time.monotonic() - began - answer.seconds)
            asked += 1
        devices.release({digest(source)})
    return asked


def simulate(asked: argparse.Namespace, seconds: dict[str, float]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        scheduler = subprocess.Popen(
            [sys.executable, str(ROOT / "run.py"), "scheduler", "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            text=True,
        )
        assert scheduler.stdout is not None
        address = scheduler.stdout.readline().strip()
        share = -(-asked.workers // asked.processes)
        words = [sys.executable, "-m", "benchmarks.cluster_simulation", "--serve", address, "--seconds", asked.seconds]
        starts = range(0, asked.workers, share)
        children = [
            subprocess.Popen(
                [*words, "--first", str(first), "--workers", str(min(share, asked.workers - first)), "--folder", folder],
                cwd=ROOT, stderr=subprocess.DEVNULL,
            )
            for first in starts
        ]  # fmt: skip
        try:
            devices = opened(EngineChoice(name="dask", address=address), "cuda", print, False)
            while devices.width() < asked.workers:
                time.sleep(0.5)
            print(f"{asked.workers} workers in {len(children)} processes have joined")
            _measured(asked, seconds, devices, scheduler.pid, [child.pid for child in children])
            devices.close()
        finally:
            for child in (*children, scheduler):
                child.kill()
                child.wait()
            scheduler.stdout.close()


def _measured(
    asked: argparse.Namespace, seconds: dict[str, float], devices: Devices, scheduler: int, workers: list[int]
) -> None:
    parts = {"the scheduler": [scheduler], "the parent": [os.getpid()], "the workers' processes": workers}
    before = {name: [_cpu(pid) for pid in pids] for name, pids in parts.items()}
    late: dict[str, list[float]] = {op: [] for op in CHAIN}
    kernel, began = secrets.token_bytes(KERNEL_BYTES // 2).hex().encode(), time.monotonic()
    threading.stack_size(1 << 20)
    with ThreadPoolExecutor(asked.workers) as pool:
        run = partial(one_run, devices, rounds=asked.rounds, kernel=kernel, late=late)
        jobs = sum(pool.map(run, range(asked.workers)))
    wall = time.monotonic() - began
    ideal = asked.rounds * sum(seconds[op] for op in CHAIN)
    print(f"{jobs} jobs in {wall:.1f} s; their own work takes {ideal:.1f} s: overhead {wall / ideal - 1:.1%}")
    for op, beyond in late.items():
        beyond.sort()
        print(
            f"{op}: beyond its work {statistics.median(beyond) * 1e3:.0f} ms (median), "
            f"{beyond[int(len(beyond) * 0.95)] * 1e3:.0f} ms (95 %), {beyond[-1] * 1e3:.0f} ms (largest)"
        )
    for name, pids in parts.items():
        shares = [(_cpu(pid) - then) / wall for pid, then in zip(pids, before[name], strict=True)]
        print(f"{name}: {max(shares):.0%} of one core" + (" at the busiest" if len(pids) > 1 else ""))


def _cpu(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", default=",".join(f"{op}={s:g}" for op, s in SECONDS.items()))
    parser.add_argument("--serve", default="", help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, default=Path(), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    seconds = SECONDS | {op: float(s) for op, _, s in (one.partition("=") for one in asked.seconds.split(","))}
    if asked.serve:
        asyncio.run(serve(asked.serve, asked.first, asked.workers, asked.folder, seconds))
    else:
        simulate(asked, seconds)


if __name__ == "__main__":
    main()
