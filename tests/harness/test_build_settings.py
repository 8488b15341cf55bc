"""What a kernel's folder brings for its compiler: headers, include folders, flags, defines; and memory that it works in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness import jobs
from harness.backends import cpu
from harness.evaluate import Evaluator
from harness.export import dropin
from harness.export.dropin import ExportError
from harness.export.patch import patch_files
from harness.judge.verification import first_error
from harness.questions import Compile
from harness.records import Outcome
from harness.store import Store
from kernels import catalog
from kernels.catalog import KernelError
from tests import forked

SPEC = """
from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="twice", summary="out = 2 * x, by way of a workspace", axes=("n",), dtypes=("float32",),
    arguments=(
        Tensor(name="x", role="input", shape=("n",)), Tensor(name="out", role="output", shape=("n",)),
        Tensor(name="scratch", role="workspace", shape=("2*n",)), Size(name="n"),
    ),
    workloads=(Workload(axes={"n": 1000}, dtype="float32"), Workload(axes={"n": 7}, dtype="float32", timed=False)),
    build=BUILD,
)
"""
REFERENCE = "def reference(x):\n    return {'out': FACTOR * x}\n"
BASELINE = """
#include "near.h"
#include <far/wide.h>
#include <far/without_a_suffix>
extern "C" void twice(const float* x, float* out, float* scratch, int64_t n) {
    for (int64_t i = 0; i < n; ++i) scratch[2 * i] = near_value(x[i]);
    for (int64_t i = 0; i < n; ++i) out[i] = wide_value(scratch[2 * i]) * FACTOR;
}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made, checkout = tmp_path / "twice", tmp_path / "checkout" / "far"
    checkout.mkdir(parents=True)
    made.mkdir()
    (made / "reference.py").write_text(REFERENCE.replace("FACTOR", "2.0"))
    (made / "baseline.cpp").write_text(BASELINE)
    (made / "near.h").write_text(
        "#include <cstdint>\\ninline float near_value(float x) { return x; }\\n".replace("\\n", "\n")
    )
    (checkout / "wide.h").write_text("inline float wide_value(float x) { return x; }\n")
    (checkout / "without_a_suffix").write_text("#include <far/wider.h>\n")
    (checkout / "wider.h").write_text("inline float wider(float x) { return x; }\n")
    (made / "include").symlink_to(checkout.parent)
    build(made, include=("include",), defines={"FACTOR": "2.0f"})
    return made


def build(folder: Path, **settings: object) -> None:
    (folder / "spec.py").write_text(SPEC.replace("BUILD", repr(settings)))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    if reason := cpu.why_unavailable():
        pytest.skip(reason)
    return Store(tmp_path / "store")


def test_a_baseline_with_headers_a_define_and_a_workspace_is_right(folder: Path, store: Store) -> None:
    with Evaluator(catalog.load(str(folder)), "cpu", store) as evaluator:
        built = evaluator.build(store.put(BASELINE))
        verdict = evaluator.verify(built)
        assert verdict.passed, verdict.reason
        assert not (Path(built.artefact).parent / "kernel").exists()


@pytest.mark.parametrize("changed", ["header", "flag", "define"])
def test_what_is_brought_is_part_of_a_builds_name(folder: Path, store: Store, changed: str) -> None:
    def key() -> str:
        with Evaluator(catalog.load(str(folder)), "cpu", store) as evaluator:
            candidate = store.put(BASELINE)
            return evaluator.build_key(candidate, evaluator.backend(candidate))

    before = key()
    if changed == "header":
        (folder / "include" / "far" / "wide.h").write_text("inline float wide_value(float x) { return x + 0; }\n")
    else:
        more = {"flags": ("-ffast-math",)} if changed == "flag" else {"defines": {"FACTOR": "2.f"}}
        build(folder, **{"include": ("include",), "defines": {"FACTOR": "2.0f"}, **more})
    assert key() != before


def test_the_compiler_names_headers_as_the_user_does(folder: Path, store: Store) -> None:
    (folder / "include" / "far" / "wide.h").write_text("inline float wide_value(float x) { return y; }\n")
    with Evaluator(catalog.load(str(folder)), "cpu", store) as evaluator:
        log = evaluator.build(store.put(BASELINE)).log
    assert "include/far/wide.h:1:" in log and "kernel/" not in log


def test_headers_travel_with_the_kernel_and_with_a_build(folder: Path, tmp_path: Path, store: Store) -> None:
    kernel = catalog.load(str(folder))
    bundle, contents = jobs.bundle_kernel(kernel)
    assert {"near.h", "include/far/wide.h"} <= set(bundle.files)
    with Evaluator(kernel, "cpu", store) as evaluator:
        candidate = store.put(BASELINE)
        brought = evaluator.brought(candidate, cpu)
        headers = {name: bundle.files[name] for name in brought.headers}
        question = Compile(
            candidate=candidate, backend="cpu", entry={}, flags=brought.flags, include=brought.include, headers=headers
        )
        job = jobs.Job(question=question, asker="me", facts=evaluator.facts, memory_bytes=1 << 30, session=None)
        contents = {name: text for name, text in contents.items() if name in job.hashes} | {
            candidate: BASELINE.encode()
        }
    answer = jobs.EvaluationServer(tmp_path / "elsewhere").answer(job, contents, lambda _said: None)
    assert answer.error is None and answer.files, answer.record


def test_a_workspace_holds_nothing_from_the_call_before(folder: Path, store: Store) -> None:
    counting = BASELINE.replace(
        "near_value(x[i]);", "near_value(x[i]) + (scratch[2 * i + 1] == 7.f ? 1.f : 0.f);"
    ).replace("FACTOR;", "FACTOR, scratch[2 * i + 1] = 7.f;")
    reads = BASELINE.replace(
        "scratch[2 * i] = near_value(x[i])", "scratch[2 * i] = near_value(x[i]) + 0 * scratch[2 * i + 1]"
    )
    with Evaluator(catalog.load(str(folder)), "cpu", store) as evaluator:
        for text in (counting, reads):
            assert evaluator.verify(evaluator.build(store.put(text))).outcome is Outcome.INCORRECT


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"flags": ("-I/etc",)}, "is no flag that a kernel may bring"),
        ({"flags": ("-fplugin=x.so",)}, "is no flag"),
        ({"flags": ("-include /etc/passwd",)}, "is no flag"),
        ({"flags": ("@/etc/passwd",)}, "is no flag"),
        ({"flags": ("-Xcompiler=-fplugin=x",)}, "is no flag"),
        ({"flags": ("-Xcompiler -wrapper,sh",)}, "is no flag"),
        ({"flags": ("-ccbin=/tmp/sh",)}, "is no flag"),
        ({"flags": ("-Wp,-MD,/tmp/x",)}, "is no flag"),
        ({"flags": ("-gencode=arch=compute_80,code=sm_80",)}, "architectures are the device's"),
        ({"flags": ("-DX=$(touch /tmp/x)",)}, "is no flag"),
        ({"defines": {"X": "`id`"}}, "defines: 'X'"),
        ({"include": ("../other",)}, "is not below the kernel's folder"),
        ({"include": ("/usr/include",)}, "make a link there"),
        ({"include": ("missing",)}, "is no folder"),
    ],
)  # fmt: skip
def test_what_reads_elsewhere_or_runs_programs_is_refused(folder: Path, settings: dict, said: str) -> None:
    build(folder, **settings)
    with pytest.raises(KernelError, match="build") as refused:
        kernel = catalog.load(str(folder))
        assert kernel.headers
    assert said in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("flag", "on_cuda", "on_cpu"),
    [
        ("--expt-relaxed-constexpr", ("--expt-relaxed-constexpr",), ()),
        ("-Xptxas -O3", ("-Xptxas=-O3",), ()),
        ("-std=c++20", ("-std=c++20",), ("-std=c++20",)),
        ("-ffast-math", ("-Xcompiler", "-ffast-math"), ("-ffast-math",)),
        ("-Xcompiler -fopenmp", ("-Xcompiler", "-fopenmp"), ("-fopenmp",)),
        ("-U__CUDA_NO_HALF_OPERATORS__", ("-U__CUDA_NO_HALF_OPERATORS__",), ("-U__CUDA_NO_HALF_OPERATORS__",)),
        ("-D NAME=3", ("-DNAME=3",), ("-DNAME=3",)),
        ("-maxrregcount 64", ("-maxrregcount=64",), ()),
    ],
)  # fmt: skip
def test_flags_go_to_the_compiler_that_knows_them(folder: Path, flag: str, on_cuda: tuple, on_cpu: tuple) -> None:
    build(folder, include=("include",), flags=(flag,))
    settings = catalog.load(str(folder)).spec.build
    assert settings.flags_on("cuda") == on_cuda and settings.flags_on("cpu") == on_cpu


def test_an_exported_package_builds_with_what_the_kernel_brought(folder: Path, tmp_path: Path) -> None:
    kernel, package = catalog.load(str(folder)), tmp_path / "package"
    dropin.export(kernel, BASELINE, {}, package, "cpu", baseline=BASELINE)
    assert (
        dropin.read(package).folder is not None
        and catalog.load(str(dropin.read(package).folder)).headers == kernel.headers
    )
    environment = os.environ | {"ASTROLABE_CACHE": str(tmp_path / "cache")}
    call = "import sys; sys.path.insert(0, sys.argv[1]); import torch, astrolabe_twice as a; print(a.twice(torch.ones(3)).tolist())"
    done = forked.run(call, package, environment=environment)
    assert done.stdout.strip() == "[2.0, 2.0, 2.0]", done.stderr


LAUNCHER = """
#include "near.h"
namespace far_away {
template <typename T> void twice_of(T* out, const T* x, int n) { for (int i = 0; i < n; ++i) out[i] = near_value(x[i]); }
}
"""


def test_a_launcher_of_another_name_and_types_is_bound_by_a_call(folder: Path, store: Store) -> None:
    (folder / "baseline.cpp").write_text(LAUNCHER)
    spec = (folder / "spec.py").read_text()
    (folder / "spec.py").write_text(
        spec.partition("build=")[0] + 'build={"binding": "far_away::twice_of<float>(out, x, n)"})\n'
    )
    kernel = catalog.load(str(folder))
    with Evaluator(kernel, "cpu", store) as evaluator:
        build = evaluator.build(store.put(LAUNCHER))
        assert build.ok, build.log
        own = evaluator.build(store.put('extern "C" void twice(const float*, float*, float*, long) {}'))
        assert own.ok, own.log  # a candidate with an entry of its own is left alone
        calls_others = LAUNCHER.replace("template", "int engine_device();\ntemplate", 1).replace(
            "{ for", "{ n -= engine_device(); for"
        )
        lacking = evaluator.build(store.put(calls_others))
        assert not lacking.ok and "undefined reference to `far_away::engine_device()'" in first_error(lacking.log)
    with pytest.raises(ExportError, match="the tensor scratch is no argument of what is bound"):
        patch_files(kernel.spec, LAUNCHER, LAUNCHER, 'extern "C" void twice(float*) {}', "my.cpp", "cpu")
