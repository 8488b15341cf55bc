"""Python candidates: what they are called with, what they may return, and that torch does not do their work."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness import backends
from harness.backends import python_module
from harness.device import facts
from harness.evaluate import Evaluator
from harness.farside.forms import take_inputs
from harness.farside.python_worker import LIBRARY_KERNEL
from harness.judge.comparisons import BASELINE_COPIES, SHARES, withhold_doubtful
from harness.judge.series import ComparisonRequest
from harness.judge.session import map_buffers
from harness.processes.fork_server import get_fork_server
from harness.records import Comparison, DeviceFacts, Interval, Outcome, Suite, Verdict
from harness.store import Store
from kernels import catalog

pytestmark = pytest.mark.usefixtures("few_samples")

NUMPY = """
import numpy as np
import torch


def wide(t):
    if t.dtype == torch.bfloat16:
        return (t.view(torch.int16).numpy().view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return t.numpy().astype(np.float32)


def narrow(values, t):
    if t.dtype == torch.bfloat16:
        bits = values.astype(np.float32).view(np.uint32)
        t.view(torch.int16).numpy()[:] = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).view(np.int16)
    else:
        t.numpy()[:] = values


def silu(input, out):
    hidden = out.shape[1]
    with np.errstate(over="ignore"):
        x = wide(input)
        gate, up = x[:, :hidden], x[:, hidden:]
        narrow(gate / (1 + np.exp(-gate)) * up, out)
"""
FUNCTION = f"{NUMPY}\ndef silu_and_mul(input, out, tokens, hidden):\n    assert out.shape == (tokens, hidden)\n    silu(input, out)\n"


def model(body: str) -> str:
    return f"{NUMPY}\nclass ModelNew(torch.nn.Module):\n    def forward(self, input):\n        {body}\n"


FRESH = "out = torch.empty(input.shape[0], input.shape[1] // 2, dtype=input.dtype)"


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evaluator]:
    """silu_and_mul with its two odd workloads and one that is timed."""
    if reason := backends.get("python_module").why_unavailable():
        pytest.skip(reason)
    kernel = catalog.load("silu_and_mul")
    kept = [w for w in kernel.spec.suite("cpu") if not w.timed or w.axes["tokens"] * w.axes["hidden"] < 2e5]
    kernel = replace(kernel, spec=kernel.spec.model_copy(update={"workloads": tuple(kept)}))
    with Evaluator(kernel, "cpu", Store(tmp_path_factory.mktemp("store"))) as one:
        yield one


def judge(evaluator: Evaluator, text: str) -> Verdict:
    return evaluator.verify(evaluator.build(evaluator.store.put(text)))


def zygote(evaluator: Evaluator) -> int:
    return get_fork_server(evaluator.device, libraries=False).process.pid


def test_a_python_source_is_told_from_a_native_one() -> None:
    assert backends.for_source(FUNCTION, "cpu").__name__.endswith("python_module")
    assert backends.for_source(FUNCTION, "cuda").__name__.endswith("python_module")
    assert backends.for_source("#include <torch/extension.h>\nint f();\n", "cpu").__name__.endswith("torch_extension")
    broken = "import torch\n\ndef f(:\n"
    assert backends.for_source(broken, "cpu").__name__.endswith("python_module")
    assert backends.for_source("import module;\nint f() { return 1 +; }\n", "cpu").__name__.endswith("cpu")
    assert backends.for_source("#include <cmath>\nint f();\n", "cpu").__name__.endswith("cpu")


def test_a_function_writes_its_outputs_in_every_dtype(evaluator: Evaluator) -> None:
    verdict = judge(evaluator, FUNCTION)
    assert verdict.passed, verdict.reason
    assert {check.workload.split()[0] for check in verdict.checks} == {"float32", "float16", "bfloat16"}
    assert verdict.build is not None and verdict.build.backend == "python_module"


def test_tensors_begin_where_torch_aligns_them_as_engines_vector_stores_need(evaluator: Evaluator) -> None:
    aligned = "assert input.data_ptr() % 64 == 0 == out.data_ptr() % 64"
    text = FUNCTION.replace("    assert out.shape", f"    {aligned}\n    assert out.shape")
    assert judge(evaluator, text).outcome is Outcome.PASSED
    assert judge(evaluator, text.replace("% 64", "% 128")).outcome is not Outcome.PASSED, (
        "all of them begin at one place"
    )


def test_a_model_returns_its_outputs(evaluator: Evaluator) -> None:
    verdict = judge(evaluator, model(f"{FRESH}; silu(input, out); return out"))
    assert verdict.passed, verdict.reason


def test_a_python_candidate_is_timed_beside_a_native_baseline(evaluator: Evaluator) -> None:
    _, path = evaluator.kernel.baseline("cpu")
    baseline = evaluator.store.put(path.read_text())
    measured = evaluator.measure(judge(evaluator, FUNCTION), baseline=baseline)
    assert measured.passed, measured.reason
    assert measured.timings and all(timing.time_us > 0 for timing in measured.timings)


def test_what_a_call_takes_the_host_is_told_by_native_and_python_workers_alike(evaluator: Evaluator) -> None:
    """Asked of a winner and its baseline on a GPU; one that does not know the question dies of it."""
    native = evaluator.kernel.baseline("cpu")[1].read_text()
    workload = evaluator.suite()[0]
    for text in (FUNCTION, native):
        worker = evaluator.pool.start(evaluator.build(evaluator.store.put(text)))
        bench = map_buffers(evaluator, worker, workload, 1)
        message = {"op": "host", "dtype": workload.dtype, "shapes": bench.layout.shapes(), "repeat": 3}
        message["calls"] = [bench.layout.arguments(bench.buffers, 0)]
        assert 0 < worker.request(message)["seconds"] < 60
        worker.close()


def test_after_the_first_a_candidate_costs_a_fork_and_not_an_import(evaluator: Evaluator) -> None:
    judge(evaluator, FUNCTION)
    before = zygote(evaluator)
    worker = evaluator.pool.start(evaluator.build(evaluator.store.put(f"{FUNCTION}\n# another\n")))
    try:
        parent = Path(f"/proc/{worker.process.pid}/stat").read_text().rpartition(")")[2].split()[1]
    finally:
        worker.close()
    assert int(parent) == before == zygote(evaluator)


@pytest.mark.parametrize(
    ("text", "outcome", "says"),
    [
        ("def silu_and_mul(input, out, tokens, hidden):\n    return +\n", Outcome.COMPILE_ERROR, "candidate.py:2: error"),
        ("def other(input):\n    return input\n", Outcome.MISSING_ENTRY, "neither a function silu_and_mul"),
        (model("return torch.empty(input.shape[0] + 1, input.shape[1] // 2, dtype=input.dtype)"),
         Outcome.WRONG_SHAPE, "should be ["),
        (model("return 7"), Outcome.WRONG_SHAPE, "out is a int, not a tensor"),
        (model("return input, input"), Outcome.WRONG_SHAPE, "returned 2 values"),
        (model("return torch.empty(input.shape[0], input.shape[1] // 2, dtype=torch.float64)"), Outcome.WRONG_DTYPE,
         "float64"),
        (model("return torch.empty(input.shape[0], input.shape[1] // 2, dtype=input.dtype, device='meta')"),
         Outcome.WRONG_SHAPE, "is on meta"),
        (model(f"{FRESH}; out.lazy = 1; return out"), Outcome.CHEATED, "attributes of its own: lazy"),
        (model(f"{FRESH}; return out.as_subclass(type('Lazy', (torch.Tensor,), {{}}))"), Outcome.CHEATED, "is a Lazy"),
        (model("return torch.nn.functional.silu(input.chunk(2, 1)[0]) * input.chunk(2, 1)[1]"), Outcome.CHEATED,
         "torch did the work: aten.silu"),
        (model(f"{FRESH}; raise ValueError('no luck')"), Outcome.RUNTIME_ERROR, "ValueError: no luck (candidate.py, line"),
        (f"{FUNCTION}\nraise SystemExit(0)", Outcome.RUNTIME_ERROR, "SystemExit"),
        ("import os\nos._exit(0)", Outcome.RUNTIME_ERROR, "exited with code 0"),
        (model(f"{FRESH}; return out"), Outcome.INCORRECT, "elements are wrong"),
    ],
    ids=lambda value: value.value if isinstance(value, Outcome) else None,
)  # fmt: skip
def test_what_is_wrong_with_a_candidate_is_said(evaluator: Evaluator, text: str, outcome: Outcome, says: str) -> None:
    verdict = judge(evaluator, text)
    assert verdict.outcome is outcome, verdict.reason
    assert says in verdict.reason


@pytest.mark.parametrize(
    "call",
    [
        "from torch.nn.functional import silu as work\ndef run(g, u): return work(g) * u",
        # On another thread, which no dispatch mode of this one sees.
        "import threading\ndef run(g, u):\n    a = []\n    t = threading.Thread(target=lambda: a.append(torch.sigmoid(g)))\n"
        "    t.start(); t.join()\n    return a[0]",
        # Below every mode.
        "def run(g, u):\n    with torch._C._DisableTorchDispatch():\n        return torch.sigmoid(g) * g * u",
        # A composite operator, an out= variant, TorchScript.
        "def run(g, u): return g.softmax(0)",
        "def run(g, u):\n    out = torch.empty_like(g)\n    return torch.mul(g, u, out=out)",
        "run = torch.jit.trace(lambda g, u: g * u, (torch.empty(2, 2), torch.empty(2, 2)), check_trace=False)",
        # In a format of its own.
        "def run(g, u): return g.to_mkldnn().relu().to_dense()",
    ],
    ids=["plain", "thread", "below the mode", "composite", "out variant", "TorchScript", "mkldnn"],
)
def test_torch_does_not_do_the_work(evaluator: Evaluator, call: str) -> None:
    verdict = judge(evaluator, f"{NUMPY}\n{call}\n" + model("g, u = input.chunk(2, 1); return run(g, u)"))
    assert verdict.outcome in (Outcome.CHEATED, Outcome.RUNTIME_ERROR), verdict.reason


def test_a_fallback_that_hides_its_failure_is_named(evaluator: Evaluator) -> None:
    body = "\n        ".join(
        ["g, u = input.chunk(2, 1)", "try:", "    return torch.sigmoid(g) * g * u", "except TypeError:", f"    {FRESH}",
         "    silu(input, out)", "    return out"]
    )  # fmt: skip
    verdict = judge(evaluator, model(body))
    assert verdict.outcome is Outcome.CHEATED and "aten.sigmoid" in verdict.reason


def test_a_static_output_is_accepted_with_a_warning(evaluator: Evaluator) -> None:
    kept = "KEPT = globals().setdefault('KEPT', {}); out = KEPT.setdefault((input.shape, input.dtype), None)"
    body = f"{kept}\n        if out is None:\n            {FRESH}; KEPT[(input.shape, input.dtype)] = out\n        "
    verdict = judge(evaluator, model(f"{body}silu(input, out); return out"))
    assert verdict.passed, verdict.reason
    assert any("same output tensor" in warning for warning in verdict.warnings)
    assert not judge(evaluator, model(f"{FRESH}; silu(input, out); return out")).warnings


def test_operators_that_only_move_memory_are_not_work(evaluator: Evaluator) -> None:
    body = "x = input.clone().contiguous().view(-1).reshape(input.shape).float().to(input.dtype)"
    verdict = judge(evaluator, model(f"{body}; {FRESH}; out.zero_(); silu(x, out); return out.clone()"))
    assert verdict.passed, verdict.reason


def test_a_candidate_cannot_end_its_zygote(evaluator: Evaluator) -> None:
    judge(evaluator, FUNCTION)
    before = zygote(evaluator)
    attack = "import os\nfor pid in (os.getppid(), 1, -1):\n    try:\n        os.kill(pid, 9)\n    except OSError:\n        pass\n"
    judge(evaluator, attack + FUNCTION)
    judge(evaluator, f"import ctypes\nctypes.string_at(0)\n{FUNCTION}")
    assert zygote(evaluator) == before
    assert judge(evaluator, f"{FUNCTION}\n# after the attack\n").passed


def test_a_candidate_has_no_descriptor_but_its_own(evaluator: Evaluator) -> None:
    """Nothing of the fork server's: neither its control socket nor the status sockets of others."""
    look = "[os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{n}')]"
    reason = judge(evaluator, f"{FUNCTION}\nimport os\nraise RuntimeError({look})\n").reason
    assert reason.count("socket:") == 1
    assert "pidfd" not in reason and "pipe:" not in reason


def test_workers_die_with_their_zygote_and_the_next_one_gets_another(evaluator: Evaluator) -> None:
    worker = evaluator.pool.start(evaluator.build(evaluator.store.put(FUNCTION)))
    try:
        os.kill(zygote(evaluator), signal.SIGKILL)
        assert worker.process.wait(timeout=10) == -signal.SIGKILL
        assert not worker.alive
    finally:
        worker.close()
    with closing(evaluator.pool.start(evaluator.build(evaluator.store.put(FUNCTION)))) as another:
        assert another.alive


def test_scalars_and_tensors_in_place(tmp_path: Path) -> None:
    """fused_add_rmsnorm: two inout tensors, returned or changed in place, and a scalar that forward may take."""
    kernel = catalog.load("fused_add_rmsnorm")
    few = (w for w in kernel.spec.suite("cpu") if w.axes["tokens"] < 10)
    kept = tuple(w.model_copy(update={"timed": True}) for w in few)
    kernel = replace(kernel, spec=kernel.spec.model_copy(update={"workloads": kept}))
    compute = (
        "total = wide(input) + wide(residual)\n        "
        "scale = 1 / np.sqrt((total.astype(np.float64) ** 2).mean(-1, keepdims=True) + eps)\n        "
    )
    head = f"{NUMPY}\nclass ModelNew(torch.nn.Module):\n    def forward(self, input, residual, weight, eps):\n        {compute}"
    place = "narrow(total * scale * wide(weight), input); narrow(total, residual)\n"
    anew = (
        "a, b = torch.empty_like(input), torch.empty_like(residual); "
        "narrow(total * scale * wide(weight), a); narrow(total, b); return a, b\n"
    )
    with Evaluator(kernel, "cpu", Store(tmp_path)) as one:
        for tail in (place, anew):
            verdict = judge(one, head + tail)
            assert verdict.passed, verdict.reason


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_module_may_bring_an_extension(evaluator: Evaluator) -> None:
    """load_inline runs g++ in the compiler's box, a minute; the judged worker starts no process."""
    source = (
        "void silu(int64_t x, int64_t y, int64_t n, int64_t h) {\\n"
        "  for (int64_t t = 0; t < n; ++t) for (int64_t i = 0; i < h; ++i) {\\n"
        "    const float g = ((float*)x)[t * 2 * h + i], u = ((float*)x)[t * 2 * h + h + i];\\n"
        "    ((float*)y)[t * h + i] = g / (1.0f + std::exp(-g)) * u;\\n  }\\n}\\n"
    )
    text = (
        f"{NUMPY}\nfrom torch.utils.cpp_extension import load_inline\n"
        f'ext = load_inline("silu_ext", cpp_sources="{source}", functions=["silu"], extra_cflags=["-O1"])\n'
        "def silu_and_mul(input, out, tokens, hidden):\n"
        "    if input.dtype == torch.float32:\n"
        "        ext.silu(input.data_ptr(), out.data_ptr(), tokens, hidden)\n"
        "    else:\n        silu(input, out)\n"
    )
    verdict = judge(evaluator, text)
    assert verdict.passed, verdict.reason
    broken = judge(evaluator, text.replace("std::exp(-g)", "std::exp(-missing)"))
    assert broken.outcome is Outcome.COMPILE_ERROR and "missing" in broken.reason


LINKS = """
import os
# cpp_extension
CPP_SOURCE = "int overwritten;"
for folder in (".", ".."):
    for name in ("native.cpp", "native.so", "candidate", "candidate.py", "triton_calls.json"):
        try:
            if os.path.lexists(f"{{folder}}/{{name}}"):
                os.unlink(f"{{folder}}/{{name}}")
            os.symlink({victim!r}, f"{{folder}}/{{name}}")
        except OSError:
            pass
os.makedirs("extensions/x")
os.symlink({victim!r}, "extensions/x/x.so")
"""


def test_links_that_a_module_leaves_while_it_is_imported_to_be_built_lead_nowhere(tmp_path: Path) -> None:
    """The parent would write the candidate's text, or copy what it must not see, with its own rights."""
    if reason := backends.get("model_new").why_unavailable():
        pytest.skip(reason)
    victim, folder = tmp_path / "victim", tmp_path / "build"
    victim.write_text("the person's own")
    folder.mkdir()
    source, artefact = folder / "candidate.py", folder / "candidate"
    artefact.mkdir()
    for place in (artefact / "native.so", artefact / "candidate.py"):
        place.symlink_to(victim)  # of a build that was killed: it may be made again in the same folder
    source.write_text(LINKS.format(victim=str(victim)))
    done = backends.get("model_new").compile(source, artefact, facts("cpu"), 300.0, "x")
    assert done.ok, done.log
    assert victim.read_text() == "the person's own"
    files = [path for path in artefact.rglob("*") if path.is_file()]
    assert {path.name for path in files} == {"candidate.py", "native.so"}
    assert not any(path.is_symlink() or b"person" in path.read_bytes() for path in files)


@pytest.mark.parametrize(
    ("parameters", "needed", "wanted"),
    [
        (["x", "scale"], 2, [0, 2]),
        (["X", "Scale"], 2, [0, 2]),
        (["x", "scale", "dtype"], 1, [0, 2]),
        (["x"], 1, [0]),
        (["x", "out"], 2, None),
        (["a", "b"], 2, None),
        (["x", "residual"], 2, None),
        (["scale"], 1, None),
    ],
)
def test_a_function_that_takes_inputs_by_name_returns_its_outputs(parameters, needed, wanted) -> None:
    arguments = [["tensor", "x", "input"], ["tensor", "out", "output"], ["scalar", "scale", ""], ["size", "n", ""]]
    assert take_inputs(parameters, needed, arguments) == wanted


def test_one_in_cute_dsl_is_refused_in_one_sentence(tmp_path) -> None:
    source = tmp_path / "candidate.py"
    source.write_text("import cutlass\nimport cutlass.cute as cute\n")
    facts = DeviceFacts(device="cuda", name="", architecture="sm_90", units=1, last_level_cache_bytes=1)
    done = python_module.compile(source, tmp_path / "made", facts, 60, "f")
    assert not done.ok and "CuTe DSL" in done.log


def test_kernels_in_an_engine_s_namespace_are_the_candidate_s_own_and_torch_s_are_not():
    """FlashInfer's own source, brought as the baseline, was CHEATED: "torch did the work: void flashinfer::norm::RMSNormKernel"."""
    for own in (
        "void flashinfer::norm::RMSNormKernel<8u, __nv_bfloat16>(__nv_bfloat16*)",
        "sgl_kernel::silu(float*)",
        "void cutlass::device_kernel<engine::Gemm<cutlass::arch::Sm90> >(engine::Gemm::Params)",
        "own_sgemm_kernel(float*)",
        "_matmul_kernel",
    ):
        assert not LIBRARY_KERNEL.search(own)
    for theirs in (
        "void at::native::vectorized_elementwise_kernel<4>(int)",
        "nvjet_tst_128x64",
        "void cublasLt::splitK()",
        "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nn_align1>(cutlass_80_simt_sgemm_128x64_8x5_nn_align1::Params)",
        "ampere_sgemm_32x128_nn",
        "void gemv2T_kernel_val<int, int, float, float, cublasGemvParamsEx<int, float> >(float)",
    ):
        assert LIBRARY_KERNEL.search(theirs)


def test_a_gain_over_a_baseline_whose_outputs_are_copied_in_its_time_is_not_called_faster(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen on a GPU: a torch extension that returns lost 1.96x to the same kernel that writes, by the copy alone."""
    returning = evaluator.build(evaluator.store.put(model(f"{FRESH}; silu(input, out); return out")))
    writing = evaluator.build(evaluator.store.put(evaluator.kernel.baseline("cpu")[1].read_text()))
    assert evaluator.verify(returning).passed
    verdict = evaluator.verify(writing)
    assert evaluator.pool.returned(returning.candidate) == frozenset(), "on a CPU the copy is in nobody's time"
    faster = Suite(speedup=Interval(median=2, low=1.9, high=2.1), comparison=Comparison.FASTER)
    timed = Verdict.model_construct(**dict(verdict.model_copy(update={"suite": faster})))
    said = []
    for what, why in (("copies", BASELINE_COPIES), ("shares", SHARES)):  # as on a GPU; a view of an input
        known = {returning.candidate: frozenset({what})}
        monkeypatch.setattr(
            evaluator.pool, "returned", lambda candidate, known=known: known.get(candidate, frozenset())
        )
        for baseline, candidate in ((returning, writing), (writing, returning)):
            held = withhold_doubtful(evaluator, ComparisonRequest(candidate, {"baseline": baseline.candidate}), timed)
            said.append(why in held.warnings)
    assert said == [True, False, False, True]


TRANSPOSED = "out = torch.empty(input.shape[1] // 2, input.shape[0], dtype=input.dtype).t()"


@pytest.mark.parametrize(
    ("body", "kinds"),
    [
        (f"{FRESH}; silu(input, out); return out", {"copied"}),
        (f"{TRANSPOSED}; silu(input, out); return out", {"copied_otherwise"}),
        ("return input[:, :input.shape[1] // 2]", {"copied_otherwise"}),
        ("return input.view(-1)[:input.numel() // 2].view(input.shape[0], -1)", {"copied_otherwise"}),
    ],
)
def test_a_worker_tells_the_copy_of_new_memory_from_one_that_does_work(
    evaluator: Evaluator, body: str, kinds: set[str]
) -> None:
    """What a call that writes its outputs does itself is not left to the copy: views of an input, another layout."""
    answer = timed(evaluator, model(body))
    assert answer["shares"] == ("input." in body.partition("return")[2] or "input[" in body.partition("return")[2])
    told = {name for name in ("copied", "copied_otherwise") if answer[name] > 0}
    assert answer["seconds"] > 0 and told == kinds


def test_a_function_that_writes_its_outputs_has_no_copy(evaluator: Evaluator) -> None:
    answer = timed(evaluator, FUNCTION)
    assert answer["seconds"] > 0 and not answer.keys() & {"copied", "copied_otherwise"} and not answer["shares"]


def timed(evaluator: Evaluator, text: str) -> dict[str, Any]:
    """What its worker answers of two calls."""
    workload = next(w for w in evaluator.suite() if w.timed)
    worker = evaluator.pool.start(evaluator.build(evaluator.store.put(text)))
    try:
        bench = map_buffers(evaluator, worker, workload, 2)
        worker.request(bench.layout.message(bench.buffers, 2, op="plan") | {"dtype": workload.dtype})
        return worker.request({"op": "time", "order": [0, 1], "repeat": 1})
    finally:
        worker.close()
