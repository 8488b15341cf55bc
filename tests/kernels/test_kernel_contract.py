"""What every folder of the catalog must keep: one contract, all siblings."""

import ctypes
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from harness.checks import properties
from harness.checks.cases import make_case
from harness.checks.correctness import judge_closely, judge_several
from harness.checks.drawing import distributions
from harness.problems import compiled_reference
from kernels import catalog
from kernels.catalog import Kernel
from kernels.spec import Scalar, Size, Tensor, Workload
from tests.kernels import wrong as the_wrong

# Every dtype and every odd size is among these; the full suites are the harness's to run.
SMALL_BYTES = 1_000_000
NVCC = ("nvcc", "-std=c++17", "-O3")
GXX = ("g++", "-std=c++17", "-O1", "-march=native", "-fopenmp", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror")
KERNELS = [catalog.load(name) for name in catalog.names()]
INPUTS = [catalog.load(str(path.parent)) for path in sorted((Path(__file__).parents[1] / "inputs").glob("*/spec.py"))]


def sources(device: str, *, wrong: bool, marks=()) -> list:
    return [
        pytest.param(kernel, path, id=f"{kernel.spec.name}-{name}", marks=marks)
        for kernel in KERNELS
        for name, path in (the_wrong.wrong(kernel, device) if wrong else kernel.baselines(device)).items()
        if path.suffix != ".py"
    ]


def small(kernel: Kernel, device: str, *, held_out: bool = False) -> list[Workload]:
    spec = kernel.spec
    return [w for w in spec.suite(device, held_out=held_out) if spec.read_bytes(w) + spec.write_bytes(w) < SMALL_BYTES]


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Compiles a source into a shared library once: build(path, *command) -> path of the library."""
    place = tmp_path_factory.mktemp("libraries")

    def compiled(path: Path, *command: str) -> Path:
        library = place / f"{path.parent.parent.name}-{path.parent.name}-{path.name}.so"
        if not library.exists():
            done = subprocess.run(
                [*command, str(path), "-o", str(library)], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
        return library

    return compiled


def joined(sources: list[tuple[str, Path]], to: Path, entries: tuple[str, ...] = ()) -> Path:
    """One source of several, since headers cost more than kernels: each in a namespace of its own behind the `#include` lines of
    all. Of those `entries` the names begin with that of the namespace."""
    includes: dict[str, None] = {}
    texts = []
    for name, path in sources:
        text = path.read_text()
        includes |= dict.fromkeys(re.findall(r"^#include <.*>$", text, re.M))
        text = re.sub(r"^#include <.*>$", "", text, flags=re.M)
        for entry in entries:
            text = re.sub(rf"\b{entry}\(", f"{name}_{entry}(", text)
        texts.append(f'namespace {name} {{\n#line 1 "{path}"\n{text}\n}}\n')
    to.write_text("\n".join([*includes, *texts]))
    return to


@pytest.fixture(scope="module")
def cpu_library(build, tmp_path_factory):
    """All C++ sources of a kernel in one library: cpu_library(kernel) -> its path; entries begin with the source's name."""

    def compiled(kernel: Kernel) -> Path:
        sources = [*kernel.baselines("cpu").items(), *the_wrong.wrong(kernel, "cpu").items()]
        entries = tuple(
            dict.fromkeys(entry for dtype in kernel.spec.dtypes for entry in kernel.spec.entry_names(dtype))
        )
        folder = tmp_path_factory.getbasetemp() / "joined" / kernel.spec.name
        folder.mkdir(parents=True, exist_ok=True)
        return build(joined([(n, p) for n, p in sources if p.suffix == ".cpp"], folder / "all.cpp", entries), *GXX)

    return compiled


def called(
    kernel: Kernel, library: Path, workload: Workload, inputs: dict[str, torch.Tensor], device: str, of: str = ""
) -> dict[str, torch.Tensor]:
    """All tensors, by name, after one call on copies of these inputs; outputs were all ones bits before."""
    spec = kernel.spec
    tensors = {name: tensor.clone() for name, tensor in inputs.items()}
    for tensor in spec.poisoned:
        dtype = getattr(torch, spec.dtype(tensor, workload))
        poisoned = torch.empty(spec.shape(tensor, workload.axes), dtype=dtype, device=device)
        poisoned.view(torch.uint8).fill_(0xFF)
        tensors[tensor.name] = poisoned
    arguments: list = []
    for argument in spec.arguments:
        if isinstance(argument, Tensor):
            arguments.append(ctypes.c_void_p(tensors[argument.name].data_ptr()))
        elif isinstance(argument, Size):
            arguments.append(ctypes.c_int64(workload.axes[argument.name]))
        elif isinstance(argument, Scalar):
            ctype = {"float": ctypes.c_float, "double": ctypes.c_double, "int64_t": ctypes.c_int64}[argument.ctype]
            arguments.append(ctype(argument.value))
    if device == "cuda":
        arguments.append(ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
    loaded = ctypes.CDLL(str(library))
    names = [of + name for name in spec.entry_names(workload.dtype)]
    entry = next(getattr(loaded, name) for name in names if hasattr(loaded, name))
    entry.restype = None
    entry(*arguments)
    if device == "cuda":
        torch.cuda.synchronize()
    return tensors


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def complaint(kernel: Kernel, library: Path, workload: Workload, values: str, device: str, of: str = "") -> str:
    """Call the library on fresh inputs of that distribution: "" or the first thing that is wrong. `of`: what its entry's name begins with."""
    spec = kernel.spec
    case = make_case(kernel, workload, values, {}, device)
    tensors = called(kernel, library, workload, case.inputs, device, of)
    for tensor in spec.tensors:
        if tensor.role == "input" and not same_bits(tensors[tensor.name], case.inputs[tensor.name]):
            return f"changed its input {tensor.name}"
    outputs = {tensor.name: tensors[tensor.name] for tensor in spec.outputs}
    _, said, _ = judge_closely(spec, workload, outputs, case.expected)
    if said:
        return f"{workload.label}, {values}: {said}"
    calls = properties.several(kernel, workload, case.inputs)
    left = [called(kernel, library, workload, inputs, device, of) for inputs in calls]
    return judge_several(kernel, workload, calls, left)


def complaints(kernel: Kernel, library: Path, workloads: list[Workload], device: str, of: str = "") -> Iterator[str]:
    """What is wrong on each workload and distribution, one call at a time."""
    said = (complaint(kernel, library, w, v, device, of) for w in workloads for v in distributions(kernel.spec, {}))
    return (one for one in said if one)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.spec.name)
def test_a_folder_says_what_it_is(kernel):
    assert kernel.spec.name == kernel.folder.name
    assert (kernel.folder / "README.md").stat().st_size > 0
    for device in ("cuda", "cpu"):
        if not kernel.baselines(device):
            continue
        kernel.baseline(device)
        assert len(the_wrong.wrong(kernel, device)) >= 3
        visible, held_out = kernel.spec.suite(device), kernel.spec.suite(device, held_out=True)
        assert not {w.label for w in visible} & {w.label for w in held_out}
        for suite in (visible, held_out):
            assert any(w.timed for w in suite)
            assert any(not w.timed for w in suite), "no odd sizes"
        assert {w.dtype for w in (*visible, *held_out)} == set(kernel.spec.dtypes)


IN_CACHE = {"grouped_topk_gating", "moe_align"}
"""Kernels that nobody calls with more than fits into it."""


@pytest.mark.parametrize(
    "kernel", [k for k in KERNELS if k.spec.name not in IN_CACHE], ids=lambda kernel: kernel.spec.name
)
def test_some_workload_leaves_the_cache(kernel):
    # Last-level caches: 60 MB of an H200's L2, 32 MB of a server core complex.
    for device, cache in (("cuda", 60e6), ("cpu", 32e6)):
        timed = [w for w in kernel.spec.suite(device) if w.timed]
        assert not timed or max(kernel.spec.read_bytes(w) + kernel.spec.write_bytes(w) for w in timed) >= 2 * cache


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kernel", [*KERNELS, *INPUTS], ids=lambda kernel: kernel.spec.name)
def test_the_reference_gives_every_output_in_the_dtype_that_it_is_given(kernel, dtype):
    spec = kernel.spec
    if not kernel.has_reference:
        assert kernel.properties is not None
        pytest.skip("properties.py alone says what is right")
    for workload in small(kernel, "cpu") + small(kernel, "cuda"):
        drawn = make_case(kernel, workload, distributions(spec, {})[0], {}, "cpu").inputs
        inputs = {name: t.to(dtype) if t.dtype.is_floating_point else t for name, t in drawn.items()}
        given = {name: tensor.clone() for name, tensor in inputs.items()}
        sizes = {axis: workload.axes[axis] for axis in kernel.reference_axes()}
        got = kernel.reference(**given, **spec.scalars, **sizes)
        assert set(got) == {tensor.name for tensor in spec.outputs}
        for tensor in spec.outputs:
            assert got[tensor.name].dtype == dtype or tensor.dtype != "T"
            assert tuple(got[tensor.name].shape) == spec.shape(tensor, workload.axes)
            assert got[tensor.name].float().isfinite().all()
        assert all(torch.equal(given[name], inputs[name]) for name in inputs), "the reference changed its inputs"


@pytest.mark.parametrize("kernel", [*KERNELS, *INPUTS], ids=lambda kernel: kernel.spec.name)
def test_what_torch_compile_is_given_writes_what_is_right(kernel, monkeypatch):
    """But for torch's compiler, which takes half a minute here and is torch's affair."""
    if not kernel.has_reference:
        assert not compiled_reference.sources(kernel)
        pytest.skip("nothing to compile")
    monkeypatch.setitem(
        sys.modules, "astrolabe_farside.problem", SimpleNamespace(compile_model=lambda function, _mode: function)
    )
    space: dict = {}
    exec(compiled_reference.source(kernel, "compile"), space)
    spec = kernel.spec
    workload = small(kernel, "cpu" if kernel.baselines("cpu") else "cuda")[0]
    case = make_case(kernel, workload, distributions(spec, {})[0], {}, "cpu")
    given = {name: tensor.clone() for name, tensor in case.inputs.items()}
    for tensor in spec.poisoned:
        dtype = getattr(torch, spec.dtype(tensor, workload))
        given[tensor.name] = torch.zeros(spec.shape(tensor, workload.axes), dtype=dtype)
    space[spec.entry_name](*(({**workload.axes, **spec.scalars} | given)[one.name] for one in spec.arguments))
    axes = {axis: workload.axes[axis] for axis in kernel.reference_axes()}
    right = kernel.reference(**{name: t.clone() for name, t in case.inputs.items()}, **spec.scalars, **axes)
    assert all(torch.equal(given[name], right[name].to(given[name].dtype)) for name in right)


@pytest.mark.parametrize(("kernel", "path"), sources("cpu", wrong=False))
def test_cpu_baselines_agree_with_the_reference(kernel, path, cpu_library):
    workloads = small(kernel, "cpu") + small(kernel, "cpu", held_out=True)
    assert {w.dtype for w in workloads} == set(kernel.spec.dtypes)
    name = next(name for name, one in kernel.baselines("cpu").items() if one == path)
    assert list(complaints(kernel, cpu_library(kernel), workloads, "cpu", f"{name}_")) == []


@pytest.mark.parametrize(("kernel", "path"), sources("cpu", wrong=True))
def test_wrong_cpu_candidates_disagree_on_the_visible_suite(kernel, path, cpu_library):
    assert any(complaints(kernel, cpu_library(kernel), small(kernel, "cpu"), "cpu", f"{path.stem}_"))


TO_PTX = (*NVCC, "-arch=sm_90", "-ptx", "-Werror", "all-warnings")
"""A quarter of the time, and all that can go wrong in the source shows there."""
CUDA = [(kernel, *one) for kernel in KERNELS for one in kernel.baselines("cuda").items() if one[1].suffix == ".cu"]


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
@pytest.mark.parametrize("baseline", sorted({name for _, name, _ in CUDA}))
def test_cuda_baselines_compile_without_a_warning(baseline, build, tmp_path):
    named = [(kernel.spec.name, path) for kernel, name, path in CUDA if name == baseline]
    build(joined(named, tmp_path / f"{baseline}.cu"), *TO_PTX)


@pytest.mark.slow  # also on a GPU
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
@pytest.mark.parametrize(("kernel", "path"), sources("cuda", wrong=True))
def test_wrong_cuda_candidates_compile_without_a_warning(kernel, path, build):
    build(path, *TO_PTX)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available() or shutil.which("nvcc") is None, reason="no CUDA device or no nvcc")
@pytest.mark.parametrize(("kernel", "path"), sources("cuda", wrong=False))
def test_cuda_baselines_agree_with_the_reference(kernel, path, build):
    library = build(path, *NVCC, "-arch=native", "-shared", "-Xcompiler", "-fPIC", "-cudart", "shared")
    workloads = [*kernel.spec.suite("cuda"), *kernel.spec.suite("cuda", held_out=True)]
    assert list(complaints(kernel, library, workloads, "cuda")) == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available() or shutil.which("nvcc") is None, reason="no CUDA device or no nvcc")
@pytest.mark.parametrize(("kernel", "path"), sources("cuda", wrong=True))
def test_wrong_cuda_candidates_disagree_on_the_visible_suite(kernel, path, build):
    library = build(path, *NVCC, "-arch=native", "-shared", "-Xcompiler", "-fPIC", "-cudart", "shared")
    assert any(complaints(kernel, library, list(kernel.spec.suite("cuda")), "cuda"))


@pytest.fixture(scope="module")
def documented(tmp_path_factory) -> Kernel:
    """The folder of docs/kernels.md, from the fenced blocks that begin with a file's name."""
    at = tmp_path_factory.mktemp("documented")
    page = (catalog.FOLDER.parent / "docs" / "kernels.md").read_text()
    for block in page.split("```")[1::2]:
        _, first, _ = block.split("\n", 2)
        name = first.split()[-1]
        if Path(name).name == name and name.endswith((".py", ".cpp", ".cu")):  # not those about other people's formats
            (at / name).write_text(block.partition("\n")[2])
    return catalog.load(str(at))


def test_the_documented_kernel_agrees_with_its_reference(documented, build):
    _, path = documented.baseline("cpu")
    assert list(complaints(documented, build(path, *GXX), small(documented, "cpu"), "cpu")) == []


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
def test_the_documented_cuda_source_compiles(documented, build):
    build(documented.baseline("cuda")[1], *NVCC, "-arch=sm_90", "-ptx", "-Werror", "all-warnings")
