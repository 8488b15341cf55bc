"""Triton candidates: interpreted on a CPU; on a GPU what was compiled before is found where no compiler may be started."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.backends import python_module
from harness.device import facts
from harness.evaluate import Evaluator
from harness.farside import triton_calls
from harness.farside.triton_calls import CACHE, LATE
from harness.judge import pool, triton_kernels
from harness.judge.session import map_buffers
from harness.problems.pytorch import open_problem
from harness.processes.worker import Worker, WorkerFailure
from harness.records import Outcome
from harness.store import Store
from kernels import catalog

PROBLEM = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1)


def get_inputs():
    return [torch.randn(6, 50)]
"""
SOFTMAX = """
import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def softmax(x, out, width, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * width + at, mask=at < width, other=float("-inf"))
    values = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * width + at, values / tl.sum(values, axis=0), mask=at < width)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        softmax[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return out
"""
SILU = """
import triton
import triton.language as tl


@triton.jit
def kernel(x, out, width, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    for start in range(0, width, BLOCK):
        inside = start + at < width
        gate = tl.load(x + row * 2 * width + start + at, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(x + row * 2 * width + width + start + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + row * width + start + at, (gate / (1 + tl.exp(-gate)) * up).to(out.dtype.element_ty), mask=inside)


def silu_and_mul(x, out, tokens, hidden):
    kernel[(tokens,)](x, out, hidden, BLOCK=1024)
"""


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evaluator]:
    with Evaluator(catalog.load("silu_and_mul"), "cpu", Store(tmp_path_factory.mktemp("store"))) as one:
        yield one


def test_a_problem_s_candidates_are_interpreted_on_a_cpu(tmp_path: Path):
    pytest.importorskip("triton")
    (tmp_path / "softmax.py").write_text(PROBLEM)
    with Evaluator(open_problem(tmp_path / "softmax.py", "cpu"), "cpu", Store(tmp_path / "store")) as one:
        for changed, outcome, reason in (
            (("", ""), Outcome.PASSED, ""),
            (("values / tl.sum", "0.999 * values / tl.sum"), Outcome.INCORRECT, ""),
            (("tl.exp(values", "tl.no_such_function(values"), Outcome.RUNTIME_ERROR, "no_such_function"),
        ):
            verdict = one.verify(one.build(one.store.put(SOFTMAX.replace(*changed))))
            assert verdict.outcome is outcome and reason in verdict.reason, verdict.reason


def test_a_kernel_s_candidates_are_interpreted_on_a_cpu_while_torch_is_switched_off(evaluator: Evaluator):
    pytest.importorskip("triton")
    smallest = evaluator.suite()[0]
    for text, outcome in ((SILU, Outcome.PASSED), (SILU.replace("gate / (1", "gate / (1.01"), Outcome.INCORRECT)):
        verdict = evaluator.verify(evaluator.build(evaluator.store.put(text)), only=smallest)
        assert verdict.outcome is outcome, verdict.reason


def test_a_number_of_an_interpreted_kernel_is_an_index_whatever_numpy_is_here():
    """NumPy 2.5 takes no int() of an array of one element, in which Triton 3.6 holds it: `range(0, width)` was a TypeError."""

    class Refusing:
        """As much of such an array."""

        def __int__(self) -> int:
            raise TypeError("only 0-dimensional arrays can be converted to Python scalars")

        def item(self) -> int:
            return 3

    class Number:
        handle = SimpleNamespace(data=Refusing())

    def patch(tensor: type, *_scope: object) -> None:
        tensor.__index__ = lambda self: int(self.handle.data)  # type: ignore[attr-defined]

    for scope in ((), ("a scope",)):
        interpreter = SimpleNamespace(_patch_lang_tensor=patch)
        triton_calls.read_single_numbers(interpreter)
        interpreter._patch_lang_tensor(Number, *scope)
        assert list(range(Number())) == [0, 1, 2]  # type: ignore[call-overload]
    triton_calls.read_single_numbers(SimpleNamespace())  # another Triton's


def test_without_triton_the_build_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    known = python_module.importlib.util.find_spec
    monkeypatch.setattr(
        python_module.importlib.util, "find_spec", lambda name: None if name == "triton" else known(name)
    )
    source = tmp_path / "source.py"
    source.write_text(SILU)
    done = python_module.compile(source, tmp_path / "candidate", facts("cpu"), 60.0, "silu_and_mul")
    assert (done.ok, done.log) == (False, "candidate.py: error: Triton is not installed (python -m pip install triton)")


# --- compiled beforehand -----------------------------------------------------------------------------------------------

COMPILES = """
import sys

sys.path.insert(0, sys.argv[1])
import triton_calls

triton_calls.settle(sys.argv[2], gpu=True, compilers=sys.argv[3] == "compilers")
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def kernel(x, out, width, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < width) * 2, mask=at < width)


signature = {"x": "*fp32", "out": "*fp32", "width": "i32", "BLOCK": "constexpr"}
made = triton.compile(ASTSource(kernel, signature, {"BLOCK": int(sys.argv[4])}), target=GPUTarget("cuda", 90, 32))
print(len(made.asm["cubin"]))
"""


def test_what_was_compiled_in_one_process_is_found_by_one_that_may_start_no_program(tmp_path: Path):
    """For a GPU that is not here: Triton needs none to compile."""
    pytest.importorskip("triton")
    script, first, second = tmp_path / "compiles.py", tmp_path / "first", tmp_path / "second"
    script.write_text(COMPILES)
    first.mkdir()
    farside = Path(triton_calls.__file__).parent

    def run(folder: Path, may: str, block: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-I", str(script), str(farside), str(folder), may, str(block)]
        return subprocess.run(command, capture_output=True, text=True, timeout=240)

    made = run(first, "compilers", 128)
    assert made.returncode == 0, made.stderr[-2000:]
    triton_kernels.gather(first / CACHE, second / CACHE)
    shutil.rmtree(first)  # as a worker's folder is
    found = run(second, "none", 128)
    assert (found.returncode, found.stdout) == (0, made.stdout), found.stderr[-2000:]
    other = run(second, "none", 256)
    assert other.returncode == 1 and LATE in other.stderr


STARTS = """
import os
import subprocess


def silu_and_mul(x, out, tokens, hidden):
    folder = os.path.join(os.path.dirname(__file__), "triton", "key")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, f"{tokens}.bin"), "w") as file:
        file.write(subprocess.check_output(["/bin/echo", "compiled"], text=True))
    if tokens == 7:
        raise ValueError("seven")
"""


def test_a_worker_with_compilers_fills_the_build_s_folder_and_none_that_is_judged_could(evaluator: Evaluator):
    build = evaluator.build(evaluator.store.put(STARTS))
    artefact = Path(build.artefact)
    workloads = {str(w.axes["tokens"]): w for w in evaluator.suite()}
    called: list[str] = []

    def call(worker: Worker, name: str) -> None:
        if name == "late":
            raise WorkerFailure(Outcome.TIMEOUT, "no answer within 300 s")
        called.append(name)
        bench = map_buffers(evaluator, worker, workloads[name], 1)
        calls = [bench.layout.arguments(bench.buffers, 0)]
        dtype, shapes = workloads[name].dtype, bench.layout.shapes()
        worker.request({"op": "call", "dtype": dtype, "calls": calls, "shapes": shapes})

    def start() -> Worker:
        return evaluator.pool.start(build, compilers=True)

    folder = artefact / CACHE / "key"
    assert triton_kernels.fill(artefact, ["1"], start, call) and (folder / "1.bin").read_text() == "compiled\n"
    assert not triton_kernels.fill(artefact, ["1"], start, call) and called == ["1"]
    # What was compiled is a part of the build from then on, and one that is made anew has lost it.
    assert evaluator.build(build.candidate) == build and (folder / "1.bin").exists()
    (artefact / "candidate.py").write_text("harm")
    assert evaluator.build(build.candidate).artefact == build.artefact and not folder.exists()
    assert triton_kernels.fill(artefact, ["1"], start, call) and called.pop() == "1"
    # What fails ends it, and is said; what was made before stays made.
    with pytest.raises(WorkerFailure, match="while Triton compiled its kernels: ValueError: seven") as found:
        triton_kernels.fill(artefact, ["1", "32", "7", "64"], start, call)
    assert found.value.outcome is Outcome.RUNTIME_ERROR and called == ["1", "32", "7"]
    assert sorted(path.name for path in folder.iterdir()) == ["1.bin", "32.bin"]
    with pytest.raises(WorkerFailure, match="while Triton compiled its kernels: no answer within 300 s") as found:
        triton_kernels.fill(artefact, ["late"], start, call)
    assert found.value.outcome is Outcome.TIMEOUT
    # What may be asked later is compiled in the same process, and nobody is blamed for it before it is asked.
    assert triton_kernels.fill(artefact, ["64"], start, call, ["7", "late"]) and called[3:] == ["64", "7"]
    assert not triton_kernels.fill(artefact, ["64", "1"], start, call)
    judged = evaluator.pool.start(build)
    with pytest.raises(WorkerFailure, match="PermissionError"):
        call(judged, "1")


def test_what_a_worker_with_compilers_started_ends_with_it_even_where_it_ended_first(evaluator: Evaluator):
    seconds = f"600.{os.getpid()}"  # told from every other sleep of this machine
    leaves = STARTS.partition("    folder")[0] + f"    subprocess.Popen(['/bin/sleep', '{seconds}'])\n    os._exit(3)\n"
    build = evaluator.build(evaluator.store.put(leaves))
    worker = evaluator.pool.start(build, compilers=True)
    workload = evaluator.suite()[0]
    bench = map_buffers(evaluator, worker, workload, 1)
    message = {"op": "call", "dtype": workload.dtype, "calls": [bench.layout.arguments(bench.buffers, 0)]}
    with pytest.raises(WorkerFailure, match="exited with code 3"):
        worker.request(message | {"shapes": bench.layout.shapes()})
    late = time.monotonic() + 60
    while sleeping(seconds):
        assert time.monotonic() < late, "it is still there"
        time.sleep(0.05)


def test_what_a_worker_with_compilers_starts_counts(evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pool, "COMPILING", pool.COMPILING._replace(threads=40))
    seconds = f"601.{os.getpid()}"
    many = STARTS.partition("    folder")[0] + (
        f"    started = [subprocess.Popen(['/bin/sleep', '{seconds}']) for _ in range(60)]\n    started[0].wait()\n"
    )
    build = evaluator.build(evaluator.store.put(many))
    worker = evaluator.pool.start(build, compilers=True)
    workload = evaluator.suite()[0]
    bench = map_buffers(evaluator, worker, workload, 1)
    message = {"op": "call", "dtype": workload.dtype, "calls": [bench.layout.arguments(bench.buffers, 0)]}
    with pytest.raises(WorkerFailure, match="processes and threads, 40 are allowed") as found:
        worker.request(message | {"shapes": bench.layout.shapes()}, timeout_s=60.0)
    assert found.value.outcome is Outcome.OUT_OF_RESOURCES
    late = time.monotonic() + 60
    while sleeping(seconds):
        assert time.monotonic() < late, "one is still there"
        time.sleep(0.05)


def sleeping(seconds: str) -> bool:
    """Whether a process of that command is alive."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it ended while it was looked at
            if seconds.encode() in path.read_bytes() and b"/bin/sleep" in path.read_bytes():
                return True
    return False


def test_nothing_is_copied_through_a_link_or_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    secret, source = tmp_path / "secret", tmp_path / "source"
    (source / "key").mkdir(parents=True)
    (secret / "inner").mkdir(parents=True)
    (secret / "inner" / "file").write_text("the parent's")
    (source / "key" / "link").symlink_to(secret / "inner" / "file")
    (source / "folder").symlink_to(secret / "inner")
    (source / "key" / "kernel.cubin").write_bytes(b"code")
    os.mkfifo(source / "key" / "pipe")
    triton_kernels.gather(source, tmp_path / "target")
    assert [str(p.relative_to(tmp_path)) for p in (tmp_path / "target").rglob("*") if p.is_file()] == [
        "target/key/kernel.cubin"
    ]
    (tmp_path / "all").symlink_to(secret)
    triton_kernels.gather(tmp_path / "all", tmp_path / "none")
    assert not (tmp_path / "none").exists()
    monkeypatch.setattr(triton_kernels, "MOST_BYTES", 3)
    with pytest.raises(WorkerFailure, match="MiB"):
        triton_kernels.gather(source, tmp_path / "other")


TUNED = SILU.replace(
    "@triton.jit",
    '@triton.autotune(configs=[triton.Config({"BLOCK": 512}), triton.Config({"BLOCK": 1024})], key=["width"])\n@triton.jit',
).replace("hidden, BLOCK=1024", "hidden")


def test_a_tuned_kernel_is_interpreted_with_its_first_configuration(evaluator: Evaluator):
    pytest.importorskip("triton")
    verdict = evaluator.verify(evaluator.build(evaluator.store.put(TUNED)), only=evaluator.suite()[0])
    assert verdict.outcome is Outcome.PASSED, verdict.reason


class Tuner:
    """What of Triton's is asked."""

    def __init__(self, count: int):
        self.configs = [f"BLOCK: {size}" for size in range(count)]
        self.base_fn = Tuner.tune
        self.configs_timings: dict[str, float] = {}

    def tune(self, choices: triton_calls.Choices, key: int) -> tuple[str, int]:
        """As its `run` does: the configuration, and how many were measured."""
        measured: list[str] = []
        if key not in choices:
            measured = choices.bound(self.configs)
            self.configs_timings = {one: choices.note(one, abs(int(one.split()[1]) - 40)) for one in measured}
            choices[key] = min(measured, key=self.configs_timings.__getitem__)
        return choices[key], len(measured)


def test_tuning_is_bounded_and_what_was_chosen_stays_chosen(tmp_path: Path):
    path, tuner = tmp_path / "autotuned.json", Tuner(64)
    filling = triton_calls.Choices(tuner, path, True)
    made = [tuner.tune(filling, key) for key in (10, 20, 10)]
    assert made == [("BLOCK: 40", 16), ("BLOCK: 40", 4), ("BLOCK: 40", 0)]
    other = Tuner(64)
    judged = triton_calls.Choices(other, path, False)
    assert [other.tune(judged, key) for key in (20, 10, 30)] == [("BLOCK: 40", 0)] * 3
    nowhere = Tuner(3)
    assert nowhere.tune(triton_calls.Choices(nowhere, None, False), 1) == ("BLOCK: 0", 0)


def test_each_configuration_that_ran_has_its_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(triton_calls, "tuned", [])
    path, tuner = tmp_path / "autotuned.json", Tuner(3)
    filling = triton_calls.Choices(tuner, path, True)
    filling.note("BLOCK: 7", [float("inf")] * 3)  # has no room
    tuner.tune(filling, 10)
    other = Tuner(3)
    judged = triton_calls.Choices(other, path, False)
    taken = []
    for turn in range(4):
        triton_calls.take_turn(turn)
        taken.append(other.tune(judged, 10)[0])
    assert taken == ["BLOCK: 2", "BLOCK: 0", "BLOCK: 1", "BLOCK: 2"] and triton_calls.take_turn(0) == 3
    assert other.tune(judged, 10)[0] == "BLOCK: 2"
    interpreted = Tuner(64)
    several = triton_calls.Choices(interpreted, None, False)
    assert interpreted.tune(several, 1)[0] == "BLOCK: 0" and triton_calls.take_turn(0) == triton_calls.MOST_FIRST


def test_a_wrong_configuration_is_found_though_the_tuner_took_another(evaluator: Evaluator):
    pytest.importorskip("triton")
    wrong = TUNED.replace("gate / (1 +", "gate / ((2 if BLOCK == 1024 else 1) +")
    verdict = evaluator.verify(evaluator.build(evaluator.store.put(wrong)), only=evaluator.suite()[0])
    assert verdict.outcome is Outcome.INCORRECT and "that its tuner measured" in verdict.reason, verdict.reason
