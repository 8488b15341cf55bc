"""CUDA sources of the catalog that nothing else runs here: run on the CPU thread by thread, before a GPU is asked."""

import subprocess
from pathlib import Path

import pytest

from kernels import catalog
from tests.kernels import test_kernel_contract as contract
from tests.kernels import wrong as the_wrong
from tests.nodes.rewrites.emulate import emulation
from tests.nodes.rewrites.emulate.tensor_cores import translated

NAMES = (
    "sample_neighbors",
    "relabel",
    "gather_rows_by_id",
    "gather_mean",
    "scatter_mean_backward",
    "prefill_attention",
    "grouped_moe_product",
    "block_scaled_fp8_product",
)
KERNELS = [catalog.load(name) for name in NAMES]
MOST_BYTES = {"sample_neighbors": 700_000}
"""Of a workload; fifteen seeds are only judged together where there are a thousand rows."""


def sources(*, wrong: bool) -> list:
    return [
        pytest.param(kernel, path, id=f"{kernel.spec.name}-{name}")
        for kernel in KERNELS
        for name, path in (the_wrong.wrong(kernel, "cuda") if wrong else kernel.baselines("cuda")).items()
    ]


def emulated(path: Path, folder: Path) -> Path:
    """The library of a CUDA source as the emulation runs it."""
    text = path.read_text()
    text = emulation.host_source(translated(text) if "asm volatile" in text else text)
    text = text.replace("cuda_emulation.h", "emulated_more.h")
    (folder / "source.cpp").write_text(text)
    includes = [*emulation.compiled_before(), f"-I{emulation.HERE}", f"-I{Path(emulation.__file__).parent}"]
    command = ["g++", "-std=c++17", "-O1", "-w", "-fno-strict-aliasing", "-shared", "-fPIC", *includes]
    built = subprocess.run(
        [*command, str(folder / "source.cpp"), "-o", str(folder / "source.so")], capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr[:3000]
    return folder / "source.so"


def complaints(kernel, path: Path, folder: Path) -> list[str]:
    """What is wrong on each small workload of the CUDA suite."""
    spec, most = kernel.spec, MOST_BYTES.get(kernel.spec.name, 400_000)
    small = [w for w in spec.suite("cuda") if spec.read_bytes(w) + spec.write_bytes(w) < most]
    assert {w.dtype for w in small} == set(spec.dtypes)
    return list(contract.complaints(kernel, emulated(path, folder), small, "cpu"))


@pytest.mark.parametrize(("kernel", "path"), sources(wrong=False))
def test_cuda_baselines_are_right_when_emulated(kernel, path, tmp_path):
    assert complaints(kernel, path, tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "path"), sources(wrong=True))
def test_wrong_cuda_candidates_are_refused_when_emulated(kernel, path, tmp_path):
    if path.stem == "overwrites":
        pytest.skip("threads that run one after another lose nothing where they write in turn")
    assert complaints(kernel, path, tmp_path)


def test_the_two_production_samplers_pick_the_same(tmp_path):
    # The application relies on it: what the CPU route samples for a seed the GPU route samples too.
    kernel = catalog.load("sample_neighbors")
    workload = next(w for w in kernel.spec.workloads if w.axes["rows"] == 2048)
    inputs = contract.make_case(kernel, workload, "bits", {}, "cpu").inputs
    cuda, cpp = (kernel.baselines(device)["production"] for device in ("cuda", "cpu"))
    subprocess.run(["g++", "-O2", "-shared", "-fPIC", str(cpp), "-o", str(tmp_path / "cpp.so")], check=True)
    libraries = (emulated(cuda, tmp_path), tmp_path / "cpp.so")
    picked = [contract.called(kernel, one, workload, inputs, "cpu")["picked"] for one in libraries]
    assert picked[0].equal(picked[1])
