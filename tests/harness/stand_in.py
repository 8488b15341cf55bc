"""A machine for the tools without a GPU: a CUDA runtime over the host's memory, a candidate in C, a tool in shell."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from harness.judge import staging
from harness.records import Build
from kernels.spec import Size, Spec, Tensor, Workload

RUNTIME = Path(__file__).with_name("runtime_stand_in.c")


def twice(*workloads: Workload) -> Spec:
    """out = 2 * input, float32 [n]."""
    tensors = (Tensor(name="input", role="input", shape=("n",)), Tensor(name="out", role="output", shape=("n",)))
    return Spec(
        name="twice",
        summary="out = 2 * input",
        axes=("n",),
        dtypes=("float32",),
        arguments=(*tensors, Size(name="n")),
        workloads=workloads,
    )


def compiled(source: Path, target: Path) -> Path:
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(target), str(source)], check=True)
    target.chmod(0o755)
    return target


def open_folder(path: Path) -> Path:
    """A folder that the box's user may read, whatever the umask here."""
    path.mkdir()
    path.chmod(0o755)
    return path


def runtime(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Built into a folder that everyone may read, and taken for the toolkit's libcudart from now on."""
    library = compiled(RUNTIME, open_folder(folder / "lib") / "libcudart.so.13")
    monkeypatch.setattr(staging, "cuda_library", lambda: str(library))
    monkeypatch.setattr(staging, "cuda_home", lambda: None)


def candidate(folder: Path, text: str) -> Build:
    (folder / "candidate.c").write_text(text)
    artefact = compiled(folder / "candidate.c", folder / "candidate.so")
    return Build(candidate="c", backend="cuda", ok=True, artefact=str(artefact))


def tool(folder: Path, name: str, script: str) -> Path:
    """An executable in a folder of its own, in which a test may leave answers for it."""
    path = open_folder(folder / "bin") / name
    path.write_text(script)
    path.chmod(0o755)
    return path
