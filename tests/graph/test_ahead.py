"""A campaign's next problems are prepared in their order, on other cores, and no further ahead than was said."""

from __future__ import annotations

import os
import threading
from contextlib import closing
from pathlib import Path

import pytest

from graph import ahead
from graph.ahead import apart, begin_first, while_timing
from harness.engines import Cores
from harness.engines.process import CORES_OF_A_GPU, ThisMachine

PATIENCE_S = 60.0
PATHS = [Path(f"{number}.py") for number in range(9)]


class Seen:
    """What was prepared, in its order, and on which cores."""

    def __init__(self) -> None:
        self.paths: list[Path] = []
        self.cores: set[frozenset[int]] = set()
        self.came = threading.Condition()

    def prepare(self, path: Path) -> None:
        with self.came:
            self.paths.append(path)
            self.cores.add(frozenset(os.sched_getaffinity(0)))
            self.came.notify_all()

    def wait(self, count: int) -> list[Path]:
        with self.came:
            assert self.came.wait_for(lambda: len(self.paths) >= count, PATIENCE_S), self.paths
            return list(self.paths)


def test_they_are_prepared_in_order_as_far_ahead_as_was_said_and_on_the_spare_cores(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ahead, "MOST_AHEAD", 2)
    seen, spare = Seen(), (min(os.sched_getaffinity(0)),)
    with closing(while_timing(seen.prepare, PATHS, spare, at_once=1)) as at_work:
        assert seen.wait(2) == PATHS[:2]
        at_work.begins(PATHS[0])  # it was prepared, so there is room for one more
        assert seen.wait(3) == PATHS[:3]
        at_work.begins(PATHS[3])  # it was not, and is left out
        at_work.begins(PATHS[1])
        assert seen.wait(4) == [*PATHS[:3], PATHS[4]]
    assert seen.paths == [*PATHS[:3], PATHS[4]] and seen.cores == {frozenset(spare)}


def test_for_several_devices_a_few_are_prepared_side_by_side_on_all_cores(monkeypatch: pytest.MonkeyPatch):
    made: list[tuple] = []
    monkeypatch.setattr(ahead, "Ahead", lambda *words: made.append(words))
    for at_once, threads in ((1, ahead.MOST_AHEAD), (4, 4 * ahead.THREADS_OF_A_DEVICE)):
        while_timing(lambda _path: None, PATHS, range(40), at_once)
        _prepare, _waiting, shares, most = made.pop()
        assert len(shares) == threads and most == at_once * ahead.MOST_AHEAD
        assert len(set().union(*shares)) > 30, "spread, not heaped on the first ones"


def test_the_first_are_read_before_there_is_an_engine_and_no_others(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ahead, "CORES_OF_A_DEVICE", 1)
    seen, cores = Seen(), os.sched_getaffinity(0)
    begin_first(seen.prepare, PATHS)
    first = PATHS[: min(len(PATHS), len(cores))]
    assert sorted(seen.wait(len(first))) == first and set().union(*seen.cores) <= cores


def test_who_is_apart_is_so_with_all_that_it_starts_and_only_meanwhile():
    before = os.sched_getaffinity(0)
    with apart(Cores(own=(min(before),), spare=())):
        started: list[set[int]] = []
        thread = threading.Thread(target=lambda: started.append(os.sched_getaffinity(0)))
        thread.start()
        thread.join()
        assert started == [{min(before)}]
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(("device", "count", "spare"), [("cpu", 64, 0), ("cuda", 4, 0), ("cuda", 16, 10)])
def test_cores_are_spare_where_a_gpu_is_timed_and_there_are_enough(
    monkeypatch: pytest.MonkeyPatch, device: str, count: int, spare: int
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(count)))
    cores = ThisMachine(device, "").cores()  # type: ignore[arg-type]
    assert len(cores.spare) == spare and sorted((*cores.own, *cores.spare)) == list(range(count))
    assert not spare or len(cores.own) == CORES_OF_A_GPU
