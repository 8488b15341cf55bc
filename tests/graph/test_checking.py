"""`run.py check`: every fault of a folder in one sentence, without a GPU."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch

import run
from graph import checking
from harness import capture
from harness.backends import cpu
from harness.records import Build

SPEC = """from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="twice", summary="out = 2 * x", axes=("rows", "n"), dtypes=("float32",),
    arguments=(
        Tensor(name="x", role="input", shape=("rows", "n")), Tensor(name="out", role="output", shape=("rows", "n")),
        Size(name="rows"), Size(name="n"),
    ),
    workloads=(Workload(axes={"rows": 4096, "n": 96}, dtype="float32"),),
    build={"flags": ("--expt-relaxed-constexpr",)},
)
"""
CUDA = """#include "twice.cuh"
extern "C" void twice(const float* x, float* out, int64_t rows, int64_t n, cudaStream_t stream) {
    twice_kernel<<<rows, 96, 0, stream>>>(x, out, n);
}
"""
MODULE = """import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2


def get_inputs():
    return [torch.randn(8, 16)]


def get_init_inputs():
    return []
"""
HEADER = """#include <cuda.h>
#include <stdint.h>
__global__ void twice_kernel(const float* x, float* out, int64_t n) {
    out[blockIdx.x * n + threadIdx.x] = 2.0f * x[blockIdx.x * n + threadIdx.x];
}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in {
        "spec.py": SPEC, "reference.py": "def reference(x):\n    return {'out': 2 * x}\n", "baseline.cu": CUDA, "twice.cuh": HEADER,
    }.items():  # fmt: skip
        (tmp_path / name).write_text(text)
    return tmp_path


def lines(folder: Path) -> list[checking.CheckLine]:
    if reason := cpu.why_unavailable():
        pytest.skip(reason)
    return list(checking.check(str(folder), None, lambda _said: None))


def faults(folder: Path) -> list[str]:
    return [line.said for line in lines(folder) if line.kind == "fault"]


def test_a_captured_folder_and_a_module_are_looked_at_too(tmp_path: Path) -> None:
    """They have no spec.py, and every command but this one took them."""

    @capture.into(tmp_path / "captured")
    def double(x):
        return x * 2

    for rows in (8, 12):
        double(torch.randn(rows, 32)[:, :16])
    double.save()
    module = tmp_path / "3_Doubled.py"
    module.write_text(MODULE)
    assert [line.kind for line in lines(module)] == ["right"] * 3
    found = lines(tmp_path / "captured")
    assert [line.kind for line in found] == ["right"] * 3 and "x had strides" in found[-1].said
    module.write_text(MODULE.replace("x * 2", "x * two"))
    (fault,) = faults(module)
    assert "two" in fault and "3_Doubled.py" in fault


@pytest.fixture
def without_nvcc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.backends.cuda.cuda_home", lambda: None)


@pytest.mark.usefixtures("without_nvcc")
def test_a_cuda_folder_with_a_header_is_right_without_a_gpu_or_nvcc(folder: Path) -> None:
    found = lines(folder)
    said = "\n".join(f"{line.kind} {line.said}" for line in found)
    assert not [line for line in found if line.kind == "fault"], said
    assert "emulated, it computes what the reference says at float32 rows=3 n=96" in said
    assert "skipped it was not compiled: nvcc was not found" in said and "first plan" in said


@pytest.mark.gpu
def test_where_a_gpu_is_a_cuda_baseline_runs_on_it(folder: Path) -> None:
    """It was emulated there, and other forms were said not to be run because no GPU was."""
    lines = list(checking.check(str(folder), "cuda", lambda _said: None))
    assert any(line.said.startswith("it computes what the reference says") for line in lines), lines


@pytest.mark.parametrize(
    ("name", "before", "after", "said"),
    [
        ("spec.py", '"rows", "n")), Tensor', '"row", "n")), Tensor', "names 'row', which is no axis"),
        ("spec.py", 'role="output"', 'rol="output"', "field rol: is no field"),
        ("spec.py", "relaxed", "strange", "is no flag that a kernel may bring"),
        ("reference.py", "2 * x", "2 * y", "NameError"),
        ("reference.py", "2 * x", "2 * x[0]", "of shape"),
        ("reference.py", "{'out': 2 * x}", "{'y': 2 * x}", "returned no 'out'"),
        ("twice.cuh", "2.0f", "2.1f", "emulated, .* elements are wrong"),
        ("twice.cuh", "n + threadIdx.x] = ", "n + threadIdx.x + 1] = ", "emulated, "),
        ("baseline.cu", "void twice(", "void twin(", 'exports no extern "C" twice'),
    ],
)
def test_each_fault_is_one_sentence(folder: Path, name: str, before: str, after: str, said: str) -> None:
    text = (folder / name).read_text()
    assert before in text
    (folder / name).write_text(text.replace(before, after))
    (only,) = faults(folder)
    assert re.search(said, only) and "\n" not in only, only


@pytest.mark.parametrize(
    ("value", "width", "is_fault"), [("nan", 96, True), ("-inf", 96, True), ("nan", 3, True), ("-inf", 3, False)]
)
def test_a_few_elements_may_all_be_masked_away(folder: Path, value: str, width: int, is_fault: bool) -> None:
    (folder / "spec.py").write_text(SPEC.replace('"rows": 4096, "n": 96', f'"rows": 4, "n": {width}'))
    (folder / "reference.py").write_text(f"def reference(x):\n    return {{'out': x * 0 + float('{value}')}}\n")
    assert any("has no finite value" in one for one in faults(folder)) == is_fault


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
def test_what_nvcc_says_is_a_fault_under_the_users_own_name(folder: Path) -> None:
    (folder / "twice.cuh").write_text(HEADER.replace("int64_t n", "int65_t n"))
    (only,) = faults(folder)
    assert "it does not compile: twice.cuh(3): error" in only


def test_a_fault_of_the_spec_comes_before_the_gpu_that_is_not_there(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.device.why_no_cuda", lambda: "no NVIDIA GPU was found")
    command = ["evaluate", "--kernel", str(folder), str(folder / "baseline.cu"), "--device", "cuda"]
    assert run.main(command) != 0
    assert f"run.py check {folder}" in capsys.readouterr().err
    (folder / "spec.py").write_text(SPEC.replace("role=", "rol="))
    assert run.main(command) != 0
    said = capsys.readouterr().err
    assert "rol" in said and "GPU" not in said


def test_a_compiler_that_was_stopped_is_no_fault_of_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of torch's headers, on a machine with other work."""
    log = "error: the compiler was killed: it took longer than 300 s"
    monkeypatch.setattr(checking, "_built", lambda *_: Build(candidate="", backend="cuda", ok=False, log=log))
    monkeypatch.setattr("harness.backends.cuda.why_unavailable", lambda: "")
    (last,) = [line for line in lines(folder) if line.what == "baseline.cu"]
    assert last.kind == "skipped" and "took longer than 300 s" in last.said


@pytest.mark.parametrize(
    ("takes", "fault"),
    [
        ("x, out", ""),
        ("x", ""),
        ("a, b, rows, n", ""),
        ("x, shape, out", "takes shape, which"),
        ("out, x", "takes out, x, which"),
    ],
)
def test_what_a_python_function_takes_beside_the_specs_arguments_is_said(folder: Path, takes: str, fault: str) -> None:
    (folder / "baseline.cu").unlink()
    (folder / "twice.cuh").unlink()
    (folder / "baseline.py").write_text(f"import triton\n\n\ndef twice({takes}):\n    return x * 2\n")
    said = [line.said for line in checking.check(str(folder), "cuda", lambda _said: None) if line.kind == "fault"]
    assert (not fault and not said) or (fault and fault in said[0]), said


@pytest.mark.usefixtures("without_nvcc")
def test_branches_by_architecture_may_share_a_brace(folder: Path) -> None:
    lines_of_it = "#if __CUDA_ARCH__ >= 800 || __CUDA_ARCH__ == 600\n    if (threadIdx.x < n) {\n#else\n    if (n < 0) {\n#endif\n"
    (folder / "twice.cuh").write_text(
        HEADER.replace("int64_t n) {\n", f"int64_t n) {{\n{lines_of_it}").replace("\n}\n", "\n}\n}\n")
    )
    assert any("emulated, it computes what the reference says" in line.said for line in lines(folder))
