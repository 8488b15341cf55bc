"""The loop that makes calls on a CPU: every entry point gets its own arguments, in every register and on the stack."""

from __future__ import annotations

import ctypes
import random
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from harness import backends
from harness.checks.buffers import GuardedBuffers, LaidOutAnewError
from harness.checks.layout import Layout
from harness.device import ArgumentBuffers, facts
from harness.evaluate import Evaluator
from harness.farside import worker
from harness.farside.worker import CTYPES, words_of
from harness.timing.neighbours import BESIDE
from kernels import catalog

CODES = {"i": "int64_t", "f": "float", "d": "double"}


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return built(tmp_path_factory.mktemp("loop"), BESIDE["cpu"].read_text())


def built(folder: Path, text: str) -> Any:
    if reason := backends.get("cpu").why_unavailable():
        pytest.skip(reason)
    (folder / "candidate.cpp").write_text(text)
    done = backends.get("cpu").compile(folder / "candidate.cpp", folder / "candidate.so", facts("cpu"), 60.0)
    assert done.ok, done.log
    return ctypes.CDLL(str(folder / "candidate.so"))


@pytest.mark.parametrize("codes", ["i", "ii", "iifd", "d" * 9, "f" * 12, "i" * 9, "ifd" * 7, "i" * 20 + "d" * 20])
def test_every_argument_arrives(loop: Any, tmp_path: Path, codes: str) -> None:
    parameters = ", ".join(f"{CODES[code]} a{at}" for at, code in enumerate(codes))
    stored = " ".join(f"to[{at}] = a{at};" for at in range(len(codes)))
    candidate = built(
        tmp_path,
        f'#include <cstdint>\nextern "C" void entry(double* to, {parameters}) {{ {stored} ++to[{len(codes)}]; }}\n',
    )
    given = [[random.randrange(1000) + (0.5 if code in "fd" else 0) for code in codes] for _ in range(3)]
    out = [(ctypes.c_double * (len(codes) + 1))() for _ in given]
    calls = [
        [
            ctypes.c_void_p(ctypes.addressof(to)),
            *(CTYPES[code](value) for code, value in zip(codes, values, strict=True)),
        ]  # type: ignore[arg-type]
        for to, values in zip(out, given, strict=True)
    ]
    words, stack = words_of(loop, calls)
    order = (ctypes.c_int32 * 3)(2, 0, 2)
    assert loop.make_calls(ctypes.cast(candidate.entry, ctypes.c_void_p), words, stack, order, 3, 2) > 0
    assert list(out[0]) == [*given[0], 2] and list(out[2]) == [*given[2], 4] and not any(out[1])


def test_more_arguments_than_there_is_room_for_are_refused_in_a_sentence(loop: Any) -> None:
    with pytest.raises(OSError, match="74 arguments more than fit into registers"):
        words_of(loop, [[ctypes.c_int64(1)] * (74 + loop.integer_registers())])


def test_what_was_returned_before_it_was_done_is_found_out_by_the_copy(loop: Any) -> None:
    taken = loop.take_output
    taken.argtypes, taken.restype = [ctypes.c_void_p] * 2 + [ctypes.c_int64, ctypes.c_uint64], ctypes.c_int64
    for count in (0, 1, 3, 4, 7, 4099):
        given, got = random.randbytes(count), ctypes.create_string_buffer(count + 1)
        assert taken(got, given, count, 7) == 0 and got.raw[:count] == given
    size = 8 << 20
    late, copy = (ctypes.create_string_buffer(size) for _ in range(2))
    done = threading.Event()

    def go_on() -> None:
        value = 0
        while not done.is_set():
            value = (value + 1) % 256
            ctypes.memset(late, value, size)

    worker = threading.Thread(target=go_on)
    worker.start()
    try:
        assert any(taken(copy, late, size, seed) for seed in range(2000))
    finally:
        done.set()
        worker.join()


def test_memory_that_was_laid_out_anew_accuses_nobody() -> None:
    """A baseline was compiled for behind a candidate's guards, and the candidate CHEATED by what lay there."""
    kernel = catalog.load("silu_and_mul")
    workload = next(one for one in kernel.spec.workloads if "cpu" in one.devices and not one.timed)
    layout = Layout(kernel.spec, workload, 1)
    buffers, rng = ArgumentBuffers("cpu", layout.size), torch.Generator().manual_seed(1)
    try:
        first = GuardedBuffers(kernel.spec, buffers, layout, rng)
        assert first.check_guards("guards").passed
        GuardedBuffers(kernel.spec, buffers, layout, rng)
        with pytest.raises(RuntimeError, match="laid out the memory of a check anew"):
            first.check_guards("guards")
    finally:
        buffers.close()


def test_a_question_whose_memory_was_laid_out_anew_is_asked_once_more() -> None:
    """What laid it out was the start of a process, which lives then."""
    asked: list[int] = []

    def answer(_session: object) -> str:
        asked.append(1)
        if len(asked) == 1:
            raise LaidOutAnewError
        return "the verdict"

    assert Evaluator._judge(Mock(), Mock(answer=answer)) == "the verdict"


def test_no_room_for_a_tensor_on_pages_of_its_own_is_a_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate that leaks was INCORRECT, by chance, where its memory ended in that check."""
    monkeypatch.setattr(worker, "FENCE_BYTES", 1 << 60)
    memory = ctypes.create_string_buffer(64)
    requests = object.__new__(worker.RequestLoop)
    requests.arenas = {"a": (ctypes.addressof(memory), 64)}  # type: ignore[assignment]
    with pytest.raises(MemoryError, match="mmap: Cannot allocate memory"):
        requests.call_fenced(lambda *_: None, [["p", "a", 0]], {"end": True, "tensors": [[64, False]]})
