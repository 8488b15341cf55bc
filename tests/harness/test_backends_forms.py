"""Forms in which engines hold kernels, each called as its engine calls it: one contract for all. Few are built: g++ takes some seconds each."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness import backends
from harness.backends import cpu, python_module, stable_abi, torch_extension, tvm_ffi
from harness.evaluate import Evaluator
from harness.processes.fork_server import PythonWorker, get_fork_server
from harness.records import Outcome
from harness.store import Store
from kernels import catalog

ROWS = """
template <typename T>
static void rows_of(const T* x, T* y, int64_t tokens, int64_t hidden) {
    for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t i = 0; i < hidden; ++i) {
            const float gate = x[t * 2 * hidden + i], up = x[t * 2 * hidden + hidden + i];
            y[t * hidden + i] = static_cast<T>(gate / (1.0f + std::exp(-gate)) * up);
        }
    }
}
"""
TVM_FFI = f"""#include <cmath>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
{ROWS}
template <typename T>
struct SiluAndMul {{
    static void run(tvm::ffi::Tensor input, tvm::ffi::TensorView out) {{
        if (input.shape()[1] != 2 * out.shape()[1]) TVM_FFI_THROW(ValueError) << "input is not twice as wide";
        rows_of(static_cast<const T*>(input.data_ptr()), static_cast<T*>(out.data_ptr()), out.shape()[0], out.shape()[1]);
    }}
}};
"""
STABLE = f"""#include <cmath>
#include <torch/csrc/stable/tensor.h>
{ROWS}
void silu_and_mul(torch::stable::Tensor& out, const torch::stable::Tensor& input) {{  // the engine's own order
    rows_of(static_cast<const float*>(input.const_data_ptr()), static_cast<float*>(out.mutable_data_ptr()), out.size(0), out.size(1));
}}
"""
PLAIN = f"""#include <cmath>
#include <cstdint>
{ROWS}
extern "C" void silu_and_mul_float32(const float* input, float* out, int64_t tokens, int64_t hidden) {{ rows_of(input, out, tokens, hidden); }}
"""
TORCH = f"""#include <torch/extension.h>
#include <cmath>
{ROWS}
void silu_and_mul(at::Tensor input, at::Tensor out, int64_t tokens, int64_t hidden) {{
    rows_of(input.data_ptr<float>(), out.data_ptr<float>(), tokens, hidden);
}}
"""
PYTHON = """import numpy as np


def silu_and_mul(input, out, tokens, hidden):
    gate, up = np.split(input.numpy(), 2, -1)
    out.numpy()[:] = gate / (1 + np.exp(-gate)) * up
"""
FORMS = {
    "tvm_ffi": (tvm_ffi, TVM_FFI, {"binding": {"float32": "SiluAndMul<float>::run"}}),
    "stable_abi": (stable_abi, STABLE, {}),
}
ALL_FORMS = FORMS | {
    "cpu": (cpu, PLAIN, {}),
    "torch_extension": (torch_extension, TORCH, {}),
    "python_module": (python_module, PYTHON, {}),
}
ON_A_GPU = {"cuda", "cute_dsl", "model_new"}
"""cuda: the text of `cpu` by nvcc; cute_dsl: test_backends_cute_dsl.py; model_new: a form of python_module's."""


def test_each_form_is_in_the_contract() -> None:
    files = {path.stem for path in Path(cpu.__file__).parent.glob("*.py")} - {"__init__"}
    assert files == ALL_FORMS.keys() | ON_A_GPU


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_a_kernel_sees_the_runtime_of_tvm_ffi_wherever_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of `pip install --target`, or of PYTHONPATH, it lies in another folder than torch."""
    package = tmp_path / "elsewhere" / "tvm_ffi"
    (package / "lib").mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(package.parent)
    library = package / "lib" / "libtvm_ffi.so"
    subprocess.run(["g++", "-shared", "-o", library, "-x", "c++", "-"], input=b"", check=True)
    kernel = catalog.load("silu_and_mul")
    (module := tmp_path / "module").mkdir()
    (module / "candidate.py").write_text(
        f"import ctypes\n\nctypes.CDLL({str(library)!r})\n\n\ndef silu_and_mul(*given): ...\n"
    )
    server = get_fork_server("cpu", libraries=False)
    PythonWorker(server, kernel.spec, "python_module", device="cpu", artefact=module, dtypes=("float32",)).close()


@pytest.fixture(params=sorted(FORMS))
def form(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str, Evaluator]]:
    yield from in_form(request.param, tmp_path)


@pytest.fixture(params=sorted(ALL_FORMS))
def any_form(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str, Evaluator]]:
    yield from in_form(request.param, tmp_path)


def in_form(name: str, tmp_path: Path) -> Iterator[tuple[str, str, Evaluator]]:
    module, text, settings = ALL_FORMS[name]
    if reason := module.why_unavailable():
        pytest.skip(reason)
    kernel = catalog.load("silu_and_mul")
    kept = [w for w in kernel.spec.suite("cpu") if w.dtype == "float32"]
    kept = [*(w for w in kept if not w.timed), *[w for w in kept if w.timed][:1]]
    spec = kernel.spec.model_copy(
        update={"workloads": tuple(kept), "dtypes": ("float32",), "build": kernel.spec.build.model_validate(settings)}
    )
    with Evaluator(replace(kernel, spec=spec), "cpu", Store(tmp_path / "store")) as evaluator:
        yield name, text, evaluator


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_host_function_in_its_engines_form_is_right_and_a_wrong_one_is_not(
    any_form: tuple[str, str, Evaluator],
) -> None:
    name, text, evaluator = any_form
    build = evaluator.build(evaluator.store.put(text))
    assert build.ok and build.backend == name, build.log
    verdict = evaluator.verify(build)
    assert verdict.passed, verdict.reason
    verdict = evaluator.measure(verdict, baseline=evaluator.store.put(text))
    assert verdict.passed and verdict.timings, verdict.reason
    wrong = evaluator.verify(evaluator.build(evaluator.store.put(text.replace("-gate", "-up"))))
    assert wrong.outcome is Outcome.INCORRECT, wrong.reason


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_what_such_a_function_throws_is_said(form: tuple[str, str, Evaluator]) -> None:
    name, text, evaluator = form
    if name != "tvm_ffi":
        pytest.skip("only TVM-FFI's throws by itself here")
    verdict = evaluator.verify(evaluator.build(evaluator.store.put(text.replace("!= 2 *", "== 2 *"))))
    assert verdict.outcome is Outcome.RUNTIME_ERROR and "ValueError: input is not twice as wide" in verdict.reason


HOSTILE = {
    "skips every other call": (
        "    for (int64_t t = 0;",
        "    static int64_t calls;\n    if (calls++ & 1) return;\n    for (int64_t t = 0;",
    ),
    "keeps answers by the address": (
        "    for (int64_t t = 0;",
        "    static const void* seen[1 << 14];\n    const void*& kept = seen[(reinterpret_cast<uintptr_t>(x) >> 6) & 16383];\n"
        "    if (kept == x) return;\n    kept = x;\n    for (int64_t t = 0;",
    ),
    "writes behind its output": ("    for (int64_t t = 0;", "    y[tokens * hidden] = T(1);\n    for (int64_t t = 0;"),
    "changes its input": ("    for (int64_t t = 0;", "    const_cast<T*>(x)[0] += T(1);\n    for (int64_t t = 0;"),
    "leaves its rows to a thread": (
        "    for (int64_t t = 0;",
        "    if (tokens > 1) {\n        std::thread([=] {\n            for (int64_t t = 1; t < tokens; ++t) rows_of(x + t * 2 * hidden, y + t * hidden, 1, hidden);\n"
        "        }).detach();\n        tokens = 1;\n    }\n    for (int64_t t = 0;",
    ),
}
"""What a hostile torch extension does, too: (text in ROWS, what stands in its place)."""
BY_TORCH = """
void silu_and_mul(torch::stable::Tensor& out, const torch::stable::Tensor& input) {
    using torch::stable::narrow;
    auto gate = input, up = input;
    StableIValue stack[2] = {torch::stable::detail::from(narrow(gate, 1, 0, out.size(1))), 0};
    STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_call_dispatcher("aten::silu", "", stack));
    auto left = torch::stable::detail::to<torch::stable::Tensor>(stack[0]);
    stack[0] = torch::stable::detail::from(left), stack[1] = torch::stable::detail::from(narrow(up, 1, out.size(1), out.size(1)));
    STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_call_dispatcher("aten::mul", "Tensor", stack));
    torch::stable::copy_(out, torch::stable::detail::to<torch::stable::Tensor>(stack[0]));
}
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("how", HOSTILE)
def test_a_hostile_source_in_an_engines_form_is_found(form: tuple[str, str, Evaluator], how: str) -> None:
    _, text, evaluator = form
    before, after = HOSTILE[how]
    hostile = text.replace(before, after, 1).replace(
        "#include <cmath>", "#include <cmath>\n#include <cstdint>\n#include <thread>", 1
    )
    build = evaluator.build(evaluator.store.put(hostile))
    assert build.ok, build.log
    verdict = evaluator.verify(build)
    if verdict.passed:
        verdict = evaluator.measure(verdict, baseline=evaluator.store.put(text))
    assert verdict.outcome in (Outcome.CHEATED, Outcome.INCORRECT), verdict.reason


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("form", ["stable_abi"], indirect=True)
def test_torch_does_not_do_the_work_of_a_source_of_the_stable_abi(form: tuple[str, str, Evaluator]) -> None:
    """Its dispatcher is the one whose kernels were taken away."""
    _, text, evaluator = form
    head = "#include <torch/csrc/inductor/aoti_torch/c/shim.h>\n#include <torch/csrc/stable/ops.h>\n"
    build = evaluator.build(
        evaluator.store.put(text.partition("void silu_and_mul")[0].replace("#include", f"{head}#include", 1) + BY_TORCH)
    )
    assert build.ok, build.log
    verdict = evaluator.verify(build)
    assert verdict.outcome in (Outcome.CHEATED, Outcome.RUNTIME_ERROR), (verdict.outcome, verdict.reason)
    assert "silu" in verdict.reason


@pytest.mark.parametrize(
    ("text", "backend"),
    [
        ("#include <tvm/ffi/container/tensor.h>\nvoid f(tvm::ffi::TensorView x) {}\n", "tvm_ffi"),
        ('#include "tvm_ffi_utils.h"\nvoid f(TensorView x) {}\n', "tvm_ffi"),
        ("#include <torch/csrc/stable/tensor.h>\nvoid f() {}\n", "stable_abi"),
        ('#include "torch_utils.h"\nvoid f(torch::stable::Tensor& x) {}\n', "stable_abi"),
        ("#include <torch/csrc/inductor/aoti_torch/c/shim.h>\nvoid f(torch::stable::Tensor& x) {}\n", "stable_abi"),
        ('#include "ops.h"\nvoid f(torch::Tensor& x) {}\n', "torch_extension"),
        ("// like torch::Tensor, tvm::ffi::TensorView\nvoid f(float* x) {}\n", "cpu"),
    ],
)
def test_a_source_says_its_form(text: str, backend: str) -> None:
    assert backends.for_source(text, "cpu").__name__.endswith(f".{backend}")


@pytest.mark.parametrize(
    ("parameters", "wanted"),
    [
        ("torch::stable::Tensor& out, const torch::stable::Tensor& x, double eps", "f(Tensor(a!) out, Tensor x, float eps) -> ()"),
        ("torch::stable::Tensor& a, torch::stable::Tensor& b, int64_t n", "f(Tensor(a!) a, Tensor(b!) b, int n) -> ()"),
        ("std::optional<torch::stable::Tensor> w,\n    bool neox  // the other\n", "f(Tensor? w, bool neox) -> ()"),
    ],
)  # fmt: skip
def test_an_operators_schema_is_read_from_its_definition(parameters: str, wanted: str) -> None:
    assert stable_abi.schema(f"void g(int);\nvoid f({parameters})\n{{ }}\n", "f", "f") == wanted


@pytest.mark.parametrize(
    ("returns", "wanted"),
    [
        ("torch::stable::Tensor", "Tensor"),
        ("static std::tuple<torch::stable::Tensor, torch::stable::Tensor>", "(Tensor, Tensor)"),
    ],
)
def test_what_a_function_of_the_stable_abi_returns(returns: str, wanted: str) -> None:
    text = f"{returns} f(torch::stable::Tensor const& x) {{ }}\n"
    assert stable_abi.schema(text, "f", "f") == f"f(Tensor x) -> {wanted}"


def test_a_parameter_without_a_type_in_schemas_is_named() -> None:
    with pytest.raises(ValueError, match="parameter 'cudaStream_t s'"):
        stable_abi.schema("void f(cudaStream_t s) {}", "f", "f")


@pytest.mark.parametrize(
    ("parameters", "given"),
    [("x, out, eps, rows", 4), ("x, out, eps", 3), ("x, out", 2), ("x, out, eps, BLOCK=128", 3), ("*everything", 4)],
)
def test_a_python_function_is_given_what_it_takes(parameters: str, given: int) -> None:
    from harness.farside.forms import Signature

    kinds = [("tensor", "x", "input"), ("tensor", "out", "output"), ("scalar", "eps", ""), ("size", "rows", "")]
    arguments = [[*one, "", None] for one in kinds]
    found = dict[str, object]()
    exec(f"def f({parameters}): pass", found)
    adapter = Signature(arguments, "f").writing(found["f"])  # type: ignore[arg-type]
    assert len(adapter.picked) == given


def test_a_macro_of_torch_says_the_form_where_the_engines_header_names_its_types() -> None:
    text = '#include "engine_helper.hpp"\nvoid gather(const Tensor x, Tensor out) {\n  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "gather", [&] {});\n}\n'
    assert backends.form_of(text) == "torch" and backends.form_of(text.replace("AT_DISPATCH", "MY_DISPATCH")) == "plain"
