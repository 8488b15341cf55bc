"""Skips what this machine cannot run, with the reason; what runs on a GPU has it for itself."""

from __future__ import annotations

import errno
import gc
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

import tests.machine
from harness import machine
from harness.timing.sampling import PROTOCOLS

gc.disable()  # while tests are imported, which leaves next to no garbage (`pytest_collection_finish`)

# The tests start hundreds of processes. Where nobody may keep what Python compiled, each compiles our modules anew: a third of
# all the time. Whoever needs that all the same (benchmarks/mutants.py, whose files change within a second) says 2.
if os.environ.get("PYTHONDONTWRITEBYTECODE") != "2":
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False

# Eight test processes with two OpenMP threads each would wait for one another more than they compute.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# A busy machine makes any example slow; what a test finds must not depend on it.
hypothesis.settings.register_profile("no clock", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("no clock")


def pytest_configure(config: pytest.Config) -> None:
    """What is kept for every run of a machine is these tests' own, made once for all of their processes."""
    if not hasattr(config, "workerinput"):
        kept = tempfile.TemporaryDirectory(prefix="astrolabe-tests-")
        os.environ["ASTROLABE_CACHE"] = kept.name
        config.add_cleanup(kept.cleanup)


def pytest_collection_finish() -> None:
    """What thousands of tests and all imports have made stays until the end; to go through it again and again for garbage
    took a tenth of the time of tests that are Python alone. What single tests make is little, and looked through each 50,000 objects."""
    # Beside one another, processes of two threads each wait for theirs: with that and the memory a tenth of what computes.
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    machine.keep_freed_memory()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)
    gc.enable()


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Called with N: the disk is full once N more files were written atomically."""

    def fill(after: int) -> None:
        left = iter(range(after))

        def sync(_file: int) -> None:
            if next(left, None) is None:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "fsync", sync)

    return fill


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not any(item.get_closest_marker("gpu") for item in items):
        return
    from harness.device import why_no_cuda

    if reason := why_no_cuda():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason=reason))


class Logged(logging.Handler):
    """What is logged while it is there. pytest's own plugin is off: it set itself up three times a test, 2 % of all CPU seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def text(self) -> str:
        return "\n".join(map(self.format, self.records))


@pytest.fixture
def logged() -> Iterator[Logged]:
    """All that reaches the root logger, whose level is as before afterwards."""
    root, handler = logging.getLogger(), Logged()
    level = root.level
    root.addHandler(handler)
    yield handler
    root.removeHandler(handler)
    root.setLevel(level)


@pytest.fixture
def whole_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many calls and rows as a verdict is made by outside of tests."""
    for module, name, value in tests.machine.WHOLE:
        monkeypatch.setattr(module, name, value)


@pytest.fixture
def few_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison in this process ends after as few samples as there may be."""
    monkeypatch.setitem(PROTOCOLS, "cpu", tests.machine.short())


@pytest.fixture
def short_run(few_samples: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole run too, whose topic is not its comparisons: `tests.machine.hurry` for this process."""
    monkeypatch.setattr("nodes.contest.MOST", 0)
    for name in ("source", "source_ahead"):
        monkeypatch.setattr(f"nodes.compiling.Compilation.{name}", tests.machine.compile_nothing)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Two tests that time on one GPU would accuse each other's candidates, and one of them fills its memory."""
    if not item.get_closest_marker("gpu"):
        return (yield)
    from filelock import FileLock  # in Python 3.12 it asks at each audit event of its process: two seconds of a hundred

    with FileLock(Path(tempfile.gettempdir()) / f"astrolabe-gpu-{os.getuid()}.lock"):
        said = yield
    # The next test's workers are other processes: what torch keeps here for reuse is not theirs. A test that was skipped has left nothing,
    # and to look through all of a process for garbage takes half a second.
    if "torch" in sys.modules and sys.modules["torch"].cuda.is_initialized():
        gc.collect()
        sys.modules["torch"].cuda.empty_cache()
    return said
