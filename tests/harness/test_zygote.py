"""The zygote keeps CUDA untouched: torch refuses it to every process that is forked from one that has asked for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from harness import zygote

CODE = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("worker_python", sys.argv[1])
worker_python = importlib.util.module_from_spec(spec); spec.loader.exec_module(worker_python)
worker_python.use_site(sys.argv[2])
import torch
asked = []
def count():
    asked.append("how many devices")
    return 1
def init():
    asked.append("initialise")
torch._C._cuda_getDeviceCount, torch._C._cuda_init = count, init  # where is_available and _lazy_init end
torch.version.cuda = torch.version.cuda or "13.0"
before = torch.cuda.is_available
worker_python.warm(False)
at_warming = list(asked)
print(json.dumps({"asked": at_warming, "same": torch.cuda.is_available is before, "now": torch.cuda.is_available(),
                  "then": asked, "ready": "torch.utils.cpp_extension" in sys.modules, "off": len(worker_python.OFF)}))
"""


FORKS = """
import importlib.util, os, socket, sys, tempfile
spec = importlib.util.spec_from_file_location("worker_python", sys.argv[1])
worker_python = importlib.util.module_from_spec(spec); spec.loader.exec_module(worker_python)
tempfile.gettempdir()  # as packages do that torch imports where they are installed
class Says:
    def __init__(self, channel):
        pass
    def serve(self):
        os.write(1, tempfile.gettempdir().encode())
worker_python.PythonWorker = Says
channel, _ours = socket.socketpair()
said, log = os.pipe()
pid = worker_python.fork({"folder": sys.argv[2], "environment": {"TMPDIR": sys.argv[2]}}, [channel.fileno(), log, log])
os.close(log)
print(os.read(said, 4096).decode(), os.waitpid(pid, 0)[1])
"""


def test_a_worker_s_temporary_files_lie_in_its_own_folder(tmp_path: Path) -> None:
    """Elsewhere the box refuses them: what Triton and torch.compile make first of all."""
    command = [sys.executable, "-I", "-c", FORKS, str(zygote.FAR_SIDE), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == [str(tmp_path), "0"], done.stderr[-2000:]


def test_nothing_that_a_worker_needs_initialises_cuda_before_the_fork() -> None:
    """As on a GPU machine: a torch with CUDA, a CUDA_HOME, and no NVML to answer in the driver's place."""
    environment = {"PATH": os.environ["PATH"], "CUDA_HOME": "/usr/local/cuda", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-I", "-c", CODE, str(zygote.FAR_SIDE), zygote.site_packages()],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["asked"] == [] and said["same"]
    assert said["now"] and said["then"] == ["how many devices"]  # the question would have been seen
    assert said["ready"] and said["off"] > 500
