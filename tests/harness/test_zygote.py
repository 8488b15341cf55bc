"""The fork server keeps CUDA untouched: torch refuses it to every process that is forked from one that has asked for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.problems.box import ProblemWorker
from harness.processes import fork_server, spares
from harness.processes.worker import LIMITS
from kernels.spec import Spec, Tensor, Workload

BOTH = """
import importlib.util, json, os, sys
spec = importlib.util.spec_from_file_location("python_worker", sys.argv[1])
python_worker = importlib.util.module_from_spec(spec); spec.loader.exec_module(python_worker)
python_worker.use_site(sys.argv[2])
import torch
for code in sys.argv[3:]:
    if not (child := os.fork()):
        exec(code)
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""
"""Each code in a process of its own, in which torch is imported and nothing is warm."""
DEVICES = """
asked = []
def count():
    asked.append("how many devices")
    return 1
def init():
    asked.append("initialise")
torch._C._cuda_getDeviceCount, torch._C._cuda_init = count, init  # where is_available and _lazy_init end
torch.version.cuda = torch.version.cuda or "13.0"
before = torch.cuda.is_available
python_worker.warm(False)
at_warming = list(asked)
print(json.dumps({"asked": at_warming, "same": torch.cuda.is_available is before, "now": torch.cuda.is_available(),
                  "then": asked, "ready": "torch.utils.cpp_extension" in sys.modules, "off": len(python_worker.OFF)}))
"""
IMPORTS = """
asked, threads = [], len(os.listdir("/proc/self/task"))
for name in ("device_count", "init", "_lazy_init", "get_device_properties", "current_device"):
    setattr(torch.cuda, name, lambda *_, name=name, **__: asked.append(name))
python_worker.warm(True)
before, grown = set(sys.modules), len(os.listdir("/proc/self/task")) - threads
problem = python_worker.load_sibling("problem")
with problem.convolutions_in_tf32():
    torch.nn.functional.conv1d(torch.rand(1, 1, 4), torch.rand(1, 1, 2))
assert python_worker.load_sibling("describe").Trial(torch.nn.Linear(3, 4), {"l": [{"t": 0}]}).shapes([torch.rand(2, 3)]) == [([2, 4], "float32")]
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
    torch.rand(4) + 1
late = [name for name in set(sys.modules) - before if name.startswith("torch.")]
print(json.dumps({"asked": asked, "threads": grown, "late": late}))
"""


FORKS = """
import importlib.util, os, socket, sys, tempfile
spec = importlib.util.spec_from_file_location("python_worker", sys.argv[1])
python_worker = importlib.util.module_from_spec(spec); spec.loader.exec_module(python_worker)
tempfile.gettempdir()  # as packages do that torch imports where they are installed
os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.gettempdir()  # as torch's compiler does
class Torch:
    threads = 40
    def get_num_threads():
        return Torch.threads
    def set_num_threads(count):
        Torch.threads = count
class Says:
    def __init__(self, channel):
        pass
    def serve(self):
        os.write(1, f"{tempfile.gettempdir()} {os.environ.get('TORCHINDUCTOR_CACHE_DIR')} {Torch.threads}".encode())
python_worker.PythonRequestLoop = Says
channel, _ours = socket.socketpair()
said, log = os.pipe()
sys.modules["torch"] = Torch
asked = {"folder": sys.argv[2], "environment": {"TMPDIR": sys.argv[2]}, "threads": 3}
pid = python_worker.forks.fork(asked, [channel.fileno(), log, log], python_worker.GIVEN, python_worker.work)
os.close(log)
print(os.read(said, 4096).decode(), os.waitpid(pid, 0)[1])
"""


def test_a_worker_s_temporary_files_lie_in_its_own_folder_and_its_threads_are_few(tmp_path: Path) -> None:
    """Elsewhere the box refuses them: what Triton and torch.compile make first of all."""
    command = [sys.executable, "-I", "-c", FORKS, str(fork_server.FAR_SIDE), str(tmp_path)]
    clean = {
        "PATH": os.environ["PATH"]
    }  # as the fork server's is: what runs the tests may have imported torch's compiler
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=clean)
    # With as many threads as whoever asks has cores.
    assert done.stdout.split() == [str(tmp_path), "None", "3", "0"], done.stderr[-2000:]


def test_a_fork_server_leaves_cuda_alone_and_has_imported_what_its_workers_need() -> None:
    """As on a GPU machine: a torch with CUDA, a CUDA_HOME, and no NVML to answer in the driver's place. A profile and a dispatch mode are
    used once by a worker of a problem, as fake tensors are by every one that is described, and would import a thousand modules there."""
    environment = {"PATH": os.environ["PATH"], "CUDA_HOME": "/usr/local/cuda", "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-I",
        "-c",
        BOTH,
        str(fork_server.FAR_SIDE),
        fork_server.site_packages(),
        DEVICES,
        IMPORTS,
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    devices, imports = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    assert devices["asked"] == [] and devices["same"]
    assert devices["now"] and devices["then"] == ["how many devices"]  # the question would have been seen
    assert devices["ready"] and devices["off"] > 500
    assert imports["asked"] == [] and imports["threads"] == 0
    assert len(imports["late"]) < 20, sorted(imports["late"])


PROBLEM = "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return x + 1\n"
PROBLEM += "def get_inputs():\n    return [torch.rand(8, 16)]\n"


@pytest.fixture(scope="module")
def waited() -> Iterator[fork_server.ForkServer]:
    made = fork_server.ForkServer("cpu", libraries=True, waiting=1)
    yield made
    made.close()


def described(by: fork_server.ForkServer, path: Path) -> ProblemWorker:
    spec = Spec(
        name="problem", summary="described", axes=("one",), dtypes=("float32",),
        arguments=(Tensor(name="nothing", role="output", shape=("1",)),),
        workloads=(Workload(axes={"one": 1}, dtype="float32"),),
    )  # fmt: skip
    path.write_text(PROBLEM)
    problem = {"role": "describe", "text": PROBLEM, "far": 0}
    return ProblemWorker(by, spec, device="cpu", artefact=path, problem=problem)


def test_none_is_begun_while_something_is_timed_and_what_was_taken_is_begun_by_the_next(
    waited: fork_server.ForkServer, tmp_path: Path
) -> None:
    described(waited, tmp_path / "problem.py").close()
    waited.spares.settle()
    with spares.resting():
        (_, waiting), *_ = waited.spares.begun
        pid = waiting.result().process.pid
        taken = described(waited, tmp_path / "problem.py")
        assert taken.process.pid == pid and not waited.spares.begun
        own = described(waited, tmp_path / "problem.py")  # none waits: it starts its own
        assert own.found == taken.found and not waited.spares.begun
    assert not waited.spares.begun, "behind the last measurement nobody asks for another"
    assert waited.spares.take(LIMITS, more=False) is None and not waited.spares.begun, "nor who takes no more"
    next_one = described(waited, tmp_path / "problem.py")
    assert len(waited.spares.begun) == 1
    for one in (taken, own, next_one):
        one.close()


def test_a_worker_that_waits_is_the_next_one_and_another_is_begun_in_its_place(
    waited: fork_server.ForkServer, tmp_path: Path
) -> None:
    first = described(waited, tmp_path / "problem.py")
    waited.spares.settle()
    (_, waiting), *_ = waited.spares.begun
    pid = waiting.result().process.pid
    second = described(waited, tmp_path / "problem.py")
    assert second.process.pid == pid != first.process.pid and second.found == first.found
    assert second.active == first.active  # the same box
    second.close()
    assert not second.scratch.exists() and not second.code.exists()
    waited.spares.settle()
    (_, waiting), *_ = waited.spares.begun
    waiting.result().kill()
    waiting.result().process.wait()
    third = described(waited, tmp_path / "problem.py")  # the one that waited is no more: it starts its own
    assert third.found == first.found
    waited.spares.settle()
    (_, waiting), *_ = waited.spares.begun
    last = waiting.result()
    waited.close()
    assert last.process.returncode is not None and not last.scratch.exists()
    first.close()
    third.close()


def test_triton_is_told_to_interpret_before_torch_imports_it():
    """torch._dynamo imports it: its own functions (tl.max) are made for a compiler then, and no interpreted kernel may call them."""
    server = fork_server.get_fork_server("cpu", libraries=True)
    found = b""
    while not found and server.alive:  # the kernel says nothing of a process whose program it is just loading
        found = Path(f"/proc/{server.process.pid}/environ").read_bytes()
    assert b"TRITON_INTERPRET=1" in found.split(b"\0")
