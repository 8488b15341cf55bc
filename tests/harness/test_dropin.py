"""The exported package, installed and tested as its user would; no GPU is needed for a CPU kernel's."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from harness.export import dropin, review
from harness.export.dropin import ExportError
from kernels import catalog
from kernels.catalog import Kernel
from kernels.spec import Device, Scalar, Size, Spec, Tensor, Workload
from tests import forked

EXPORTED = [name for name in catalog.names() if catalog.load(name).properties is None]
EVIDENCE = {"held_out_speedup": {"median": 1.25, "low": 1.2, "high": 1.3}, "kernel": "k"}


def exported(kernel: Kernel, to: Path, device: Device = "cpu") -> list[Path]:
    _, path = kernel.baseline(device)
    return dropin.export(kernel, path.read_text(), EVIDENCE, to, device)


def run(command: list[str], cwd: Path, target: Path) -> str:
    environment = os.environ | {"PYTHONPATH": str(target), "ASTROLABE_CACHE": str(target / "cache")}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("there", [False, True])
def test_a_full_disk_leaves_no_part_of_a_package(tmp_path: Path, full_disk, there: bool) -> None:
    package = tmp_path / "package"
    if there:
        package.mkdir()
    full_disk(3)
    with pytest.raises(OSError, match=re.escape(str(package))):
        exported(catalog.load("silu_and_mul"), package)
    assert list(tmp_path.rglob("*")) == [package] * there


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPORTED)
def test_the_package_installs_and_passes_its_own_tests(name: str, tmp_path: Path) -> None:
    """Against the reference, opcheck, torch.compile with the full graph, and each refusal."""
    package, target = tmp_path / "package", tmp_path / "site"
    exported(catalog.load(name), package)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    run([*pip, "--target", str(target), "."], package, target)
    said = run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"], package, target)
    assert re.search(r"\d+ passed", said) and "failed" not in said and "skipped" not in said
    # What is on the path is the installed one: it was built into the cache exactly once.
    assert len(list((target / "cache").glob(f"{name}-*.so"))) == 1
    assert not [path for path in (target / "cache").iterdir() if path.is_dir()]


def test_what_a_reviewer_gets_is_a_test_and_a_benchmark_that_run(tmp_path: Path) -> None:
    kernel, package = catalog.load("silu_and_mul"), tmp_path / "package"
    exported(kernel, package)
    quick = review.write(kernel, "cpu").replace("min_run_time=0.2", "min_run_time=0.001")
    (tmp_path / "test_silu_and_mul.py").write_text(quick)

    def told(what: str, **more: str) -> tuple[int, str]:
        code = f"import os, pytest, runpy, sys; os.chdir(sys.argv[1]); sys.path[:0] = sys.argv[1:]; {what}"
        environment = os.environ | {"ASTROLABE_CACHE": str(tmp_path / "cache"), **more}
        done = forked.run(code, tmp_path, package, environment=environment)
        return done.returncode, done.stdout + done.stderr

    tested = "sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', 'test_silu_and_mul.py']))"
    code, said = told(tested)
    assert code == 0 and re.search(r"\d+ passed", said), said
    code, said = told("runpy.run_path('test_silu_and_mul.py', run_name='__main__')")
    assert code == 0 and said.count("reference in torch") == len(dropin.cases(kernel.spec, "cpu")), said
    (tmp_path / "wrong.py").write_text("def twice(input):\n    return input[:, : input.shape[1] // 2] * 2\n")
    code, said = told(tested, KERNEL="wrong:twice")
    assert code == 1 and "Mismatched elements" in said, said


@pytest.mark.parametrize("name", EXPORTED)
def test_a_reviewers_file_is_python(name: str) -> None:
    for device in ("cpu", "cuda"):
        ast.parse(review.write(catalog.load(name), device))


UNBUILT = """
import importlib, os, shutil, sys, traceback
import pytest, torch

shutil.which = lambda *_: None  # no nvidia-smi, so nothing is built
torch._C._cuda_getDevice = lambda: None
torch._C._cuda_getCurrentRawStream = lambda _: 0


def check(name):
    package = importlib.import_module("astrolabe_" + name)
    operator = getattr(torch.ops.astrolabe, name).default
    calls = []

    class Entry:
        def __call__(self, *given):
            calls.append(given)

    package.build = lambda: type("Library", (), {symbol: Entry() for names in package._SYMBOLS.values() for symbol in names})

    def launch(*tensors):
        package._kernel(*tensors)
        for argument, tensor in zip(operator._schema.arguments, tensors):
            if argument.alias_info is not None:
                tensor.zero_()

    package._operator = launch
    tests = importlib.import_module("test_" + name)
    tests.operator = launch
    tests.test_the_function_returns_what_the_operator_writes()
    assert len(calls) == 2, calls
    for test in (tests.test_a_tensor_of_another_dtype_is_refused, tests.test_a_tensor_with_gaps_is_refused, tests.test_a_tensor_of_another_shape_is_refused):
        for one in test.pytestmark[0].args[1]:
            test(one)
    assert len(calls) == 2, calls


for name in sys.argv[2:]:
    folder = os.path.join(sys.argv[1], name)
    os.chdir(folder)
    before, sys.path[:0] = list(sys.path), [folder, os.path.join(folder, "tests")]
    sys.modules.pop("reference", None)
    try:
        check(name)
    except BaseException:
        print(name, traceback.format_exc())
    sys.path[:] = before
"""


def test_packages_of_a_gpu_s_kernels_hand_on_and_refuse_as_their_tests_say(tmp_path: Path) -> None:
    """All of them but the compiled library, on a CPU; in one process, for what each asks of PyTorch first takes a second."""
    for name in EXPORTED:
        exported(catalog.load(name), tmp_path / name, "cuda")
        tests = tmp_path / name / "tests" / f"test_{name}.py"
        tests.write_text(tests.read_text().replace('DEVICE = "cuda"', 'DEVICE = "cpu"'))
    done = forked.run(UNBUILT, tmp_path, *EXPORTED)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


@pytest.mark.slow
def test_two_processes_that_build_at_once_both_work(tmp_path: Path) -> None:
    package = tmp_path / "package"
    exported(catalog.load("silu_and_mul"), package)
    call = "import torch, astrolabe_silu_and_mul as a; print(a.silu_and_mul(torch.ones(1, 4)).shape)"
    environment = os.environ | {"PYTHONPATH": str(package), "ASTROLABE_CACHE": str(tmp_path / "cache")}
    both = [
        subprocess.Popen([sys.executable, "-c", call], env=environment, stdout=subprocess.PIPE, text=True) for _ in "ab"
    ]
    assert [process.communicate()[0].strip() for process in both] == ["torch.Size([1, 2])"] * 2
    assert len(list((tmp_path / "cache").iterdir())) == 1


@pytest.mark.slow
def test_a_source_that_does_not_compile_says_so_in_the_compilers_words(tmp_path: Path) -> None:
    kernel = catalog.load("silu_and_mul")
    dropin.export(kernel, "int broken(\n", EVIDENCE, tmp_path / "package", "cpu")
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "package"), "ASTROLABE_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-c", "import astrolabe_silu_and_mul"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert "astrolabe::silu_and_mul could not be built" in done.stderr and "kernel.cpp:1" in done.stderr
    assert not list((tmp_path / "cache").glob("*.so"))


@pytest.mark.parametrize("name", EXPORTED)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_kernel_becomes_a_whole_package(name: str, device: Device, tmp_path: Path) -> None:
    kernel = catalog.load(name)
    files = exported(kernel, tmp_path / "out", device)
    assert sorted(files) == sorted(path for path in (tmp_path / "out").rglob("*") if path.is_file())
    for path in files:
        text = path.read_text()
        assert not re.search(r"\{\{|\{%-? ", text), path  # a template's; `{%0` is an operand of PTX
        if path.suffix == ".py":
            ast.parse(text)
            assert (
                path.name in ("inputs.py", "reference.py")
                or path.parent.name == dropin.JUDGING
                or max(map(len, text.splitlines())) <= 120
            ), path
    project = tomllib.loads((tmp_path / "out" / "pyproject.toml").read_text())
    assert project["project"]["name"] == f"astrolabe_{name}"
    readme = (tmp_path / "out" / "README.md").read_text()
    assert "1.250x its baseline on the held-out workloads" in readme
    assert f"torch.ops.astrolabe.{name}" in readme
    assert ("serving.install()" in readme) == any(path.name == "serving.py" for path in files)


ROUNDS = """#include <cstdint>
#include <cstring>
static float widen(uint16_t bits) { uint32_t word = uint32_t(bits) << 16; float value; std::memcpy(&value, &word, 4); return value; }
static uint16_t narrow(float value) { uint32_t word; std::memcpy(&word, &value, 4); return (word + 0x7fff + ((word >> 16) & 1)) >> 16; }
extern "C" void there_and_back_bfloat16(const uint16_t* x, uint16_t* out, int64_t n) {
  for (int64_t i = 0; i < n * 64; ++i) out[i] = narrow(widen(narrow(widen(x[i]) + 4)) - 4);
}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ulps_of_row", "measured", "wrong"),
    [(4.0, {}, False), (None, {"errors allowed": "out: 3.0"}, False), (None, {}, True)],
    ids=["the row's", "the baseline's", "none"],
)
def test_the_package_s_tests_judge_as_the_verdict_does(
    tmp_path: Path, ulps_of_row: float | None, measured: dict[str, str], wrong: bool
) -> None:
    """A kernel that rounds to bfloat16 in between: right by what the spec allows of a row, or by what the baseline was seen to err."""
    (tmp_path / "reference.py").write_text("def reference(x):\n    return {'out': (x + 4) - 4}\n")
    out = Tensor(name="out", role="output", shape=("n", "64"), ulps_of_row=ulps_of_row)
    arguments = (Tensor(name="x", role="input", shape=("n", "64")), out, Size(name="n"))
    workloads = (Workload(axes={"n": 20}, dtype="bfloat16"),)
    made = {"name": "there_and_back", "axes": ("n",), "dtypes": ("bfloat16",), "arguments": arguments}
    kernel = Kernel(spec(**made, workloads=workloads), tmp_path)
    dropin.export(kernel, ROUNDS, {"measured": measured}, tmp_path / "package", "cpu")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests", "-k", "against_the_reference"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "package"), "ASTROLABE_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(command, cwd=tmp_path / "package", env=environment, capture_output=True, text=True)
    assert ("elements are wrong" in done.stdout, done.returncode) == (wrong, int(wrong)), done.stdout[-3000:]


def test_a_kernel_with_many_right_answers_is_not_exported(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="has many right answers"):
        exported(catalog.load("sample_neighbors"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def spec(**changes: object) -> Spec:
    given = {
        "name": "scatter_rows",
        "summary": "rows of x to where index says",
        "axes": ("rows", "width", "slots", "chunk"),
        "dtypes": ("float32",),
        "arguments": (
            Scalar(name="scale", ctype="double", value=0.5),
            Tensor(name="x", role="input", shape=("rows", "4*width+2")),
            Tensor(name="index", role="input", shape=("rows",), dtype="int32", values=("index:slots",)),
            Tensor(name="out", role="output", shape=("slots", "4*width+2")),
            Size(name="chunk"),
            Size(name="slots"),
            Scalar(name="mode", ctype="int64_t", value=3),
        ),
        "workloads": (Workload(axes={"rows": 3, "width": 2, "slots": 5, "chunk": 2}, dtype="float32"),),
    }
    return Spec.model_validate(given | changes)


def test_sizes_come_from_shapes_and_only_the_others_are_asked_for() -> None:
    found = dropin.describe(spec(), "cuda")
    assert found["schema"] == (
        "scatter_rows(Tensor x, Tensor index, Tensor(a!) out, int chunk, float scale=0.5, int mode=3) -> ()"
    )
    assert found["inference"] == ["rows = x.shape[0]", "width = (x.shape[1] - 2) // 4", "slots = out.shape[0]"]
    assert ", ".join(found["call"][:-1]) == "scale, _at_x, _at_index, _at_out, chunk, slots, mode"
    assert "RawStream" in found["call"][-1]
    assert found["ctypes"] == [
        "ctypes.c_double", "ctypes.c_void_p", "ctypes.c_void_p", "ctypes.c_void_p",
        "ctypes.c_int64", "ctypes.c_int64", "ctypes.c_int64", "ctypes.c_void_p",
    ]  # fmt: skip


def test_an_axis_that_nothing_tells_is_refused() -> None:
    arguments = (Tensor(name="x", role="inout", shape=("rows*width",)),)
    with pytest.raises(dropin.ExportError, match="'rows' can be read from no tensor's shape"):
        dropin.describe(spec(arguments=arguments), "cpu")


def test_names_that_python_or_the_package_need_are_refused() -> None:
    for name in ("lambda", "torch", "rows"):
        arguments = (Tensor(name=name, role="inout", shape=("rows",)),)
        with pytest.raises(dropin.ExportError, match=f"'{name}' cannot be the name"):
            dropin.describe(spec(arguments=arguments), "cpu")


def test_what_cannot_be_exported_is_said_in_one_sentence(tmp_path: Path) -> None:
    kernel = catalog.load("silu_and_mul")
    for source in ("def silu_and_mul(input, out, tokens, hidden): pass\n", "#include <torch/extension.h>\n"):
        with pytest.raises(dropin.ExportError, match="plain C entry points"):
            dropin.export(kernel, source, {}, tmp_path / "new", "cpu")
    assert not (tmp_path / "new").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("precious")
    with pytest.raises(dropin.ExportError, match="not empty"):
        exported(kernel, tmp_path / "full")


def test_evidence_without_a_speedup_claims_none(tmp_path: Path) -> None:
    assert "evidence/result.json" in dropin.headline({})
    verdict = {"suite": {"speedup": {"median": 1.1, "low": 1.05, "high": 1.2}}}
    assert "1.100x" in dropin.headline(verdict)
    assert "evidence/result.json" in dropin.headline({"suite": None, "speedup": None})
    rows = [{"speedup": {"median": median}, "held_out": held_out} for median, held_out in ((0.45, False), (1.2, True))]
    said = dropin.headline({**EVIDENCE, "workloads": [*rows, {"speedup": None, "held_out": True}]})
    assert "1.250x" in said and "0.450x on the workload that gains least" in said, "whichever suite it is in"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("x.requires_grad_(); a.silu_and_mul(x)", "has no backward"),
        ("torch.func.jvp(a.silu_and_mul, (x,), (x,))", "nor a forward derivative"),
        (
            "o = torch.empty(4, 2); step = lambda x: (torch.ops.astrolabe.silu_and_mul(x, o), o.sum() + x.sum())[1]; "
            "torch.compile(step, backend='aot_eager')(x.requires_grad_()).backward()",
            "has no backward",
        ),
        ("a.silu_and_mul(x, x.view(-1)[:8].view(4, 2))", "out, which is written, overlaps input in memory"),
        ("a._MOST_BYTES = 63; a.silu_and_mul(x)", "input has 64 bytes, and no tensor above 63 was judged"),
    ],
)
def test_a_call_that_was_never_judged_is_refused_in_one_sentence(call: str, said: str, tmp_path: Path) -> None:
    exported(catalog.load("silu_and_mul"), tmp_path / "package")
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "package"), "ASTROLABE_CACHE": str(tmp_path / "cache")}
    code = f"import torch, astrolabe_silu_and_mul as a; x = torch.ones(4, 4); {call}"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and said in done.stderr.rpartition("Error")[2], done.stderr


@pytest.mark.slow
def test_a_cache_that_cannot_be_written_is_said_and_done_without(tmp_path: Path) -> None:
    exported(catalog.load("silu_and_mul"), tmp_path / "package")
    (tmp_path / "file").write_text("")
    environment = os.environ | {
        "PYTHONPATH": str(tmp_path / "package"),
        "ASTROLABE_CACHE": str(tmp_path / "file" / "x"),
    }
    code = "import torch, astrolabe_silu_and_mul as a; print(a.silu_and_mul(torch.ones(1, 4)).shape)"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout == "torch.Size([1, 2])\n" and "set ASTROLABE_CACHE" in done.stderr
