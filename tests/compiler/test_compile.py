"""What the compiler says of a kernel folder, and where its candidate comes in."""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys

import pytest

from compiler.compile import Meaning, source
from compiler.evaluate import check
from compiler.frontend import NoProgram
from compiler.schedule import Schedule
from harness.judge.search import find_open_tunables
from harness.judge.variants import _spills
from harness.records import DeviceFacts
from kernels import catalog
from nodes import compiling
from nodes.compiling import STEP, Compilation
from nodes.policies.rules import RulesPolicy
from nodes.roles import CoderRequest, Finding, PlannerRequest

H100 = DeviceFacts(device="cuda", name="H100", architecture="sm_90", units=132, last_level_cache_bytes=50 << 20)
FINDING = Finding(bound="memory", summary="")


@pytest.fixture(scope="module")
def silu():
    kernel = catalog.load("silu_and_mul")
    return kernel, (kernel.folder / "reference.py").read_text()


def test_a_text_begins_with_its_schedule_and_ends_in_a_version_without_guards(silu):
    kernel, reference = silu
    text = source(kernel.spec, reference)
    schedule = Schedule.model_validate(json.loads(text.splitlines()[0].removeprefix("// schedule: ")))
    for dtype, versions in schedule.versions.items():
        assert versions[-1].vector == 1 and not versions[-1].narrow
        entry = text[text.index(f"void {kernel.spec.entry_name}_{dtype}(") :]
        last = entry[: entry.index("\n}\n")].splitlines()[-1]
        assert re.match(r"    launch_with<true>\(.*\);$", last), "the last version stands outside of every condition"


def test_kernels_wait_before_they_touch_memory_where_they_may_be_set_up_early(silu):
    kernel, reference = silu
    text = source(kernel.spec, reference)
    bodies = [part.split("\n}\n")[0] for part in text[text.index("  // tune:") :].split("__global__ ")[1:]]
    assert bodies and all(body.splitlines()[1].strip().startswith("wait_for_predecessor") for body in bodies)
    assert "int enable_pdl = 0;" in text and "launch_with<false>" not in text
    older = source(kernel.spec, reference, "sm_80")
    assert "wait_for_predecessor<1>();" not in older and "launch_with<true>" not in older


@pytest.mark.parametrize("name", ["rotary_query_key", "rotary_embedding"])
def test_no_guard_asks_a_size_that_the_entry_is_not_given(name):
    """The rows of a table: what is called like one may be a tensor, of whose address nvcc refused `positions % 64 == 0`."""
    kernel = catalog.load(f"tests/inputs/{name}")
    text = source(kernel.spec, (kernel.folder / "reference.py").read_text())
    assert "if (head_dim % 16 == 0 && " in text and not re.search(r"if \(.*\bpositions\b", text)


def test_a_program_that_means_something_else_has_no_text(silu):
    kernel, reference = silu
    program = Meaning(kernel.spec, reference).program("float16", 8)
    check(program, reference)
    with pytest.raises(NoProgram, match="disagrees with the reference about out"):
        check(
            program, reference.replace("return {", "return {k: v + 1e-3 for k, v in {").replace("}\n", "}.items()}\n")
        )


def test_only_numbers_that_matter_for_the_sizes_at_hand_are_open(silu):
    def names(kernel: str, **axes: int) -> set[str]:
        folder = catalog.load(kernel)
        workloads = tuple(w.model_copy(update={"axes": {**w.axes, **axes}}) for w in folder.spec.workloads)
        spec = folder.spec.model_copy(update={"workloads": workloads})
        return {t.name for t in find_open_tunables(source(spec, (folder.folder / "reference.py").read_text()))}

    norm = "fused_add_rmsnorm"
    assert names(norm, tokens=4096, hidden=8192) == {"ITEMS", "TRIGGER_WHEN"}
    assert names(norm, tokens=16, hidden=8192) == {"ITEMS", "SPLIT", "TRIGGER_WHEN"}
    assert names(norm, tokens=4096, hidden=512) == {"ITEMS", "THREADS", "TRIGGER_WHEN"}


@pytest.mark.parametrize("counted", ["x[x > 0].sum()", "torch.nonzero(x).sum()"])
def test_a_size_that_values_decide_is_no_program(silu, counted):
    kernel, _ = silu
    text = (
        f"import torch\ndef reference(**given):\n    x = given['input'][:, ::2]\n    return {{'out': x + {counted}}}\n"
    )
    with pytest.raises(NoProgram, match="as many elements as the inputs' values say"):
        source(kernel.spec, text)


def test_an_operator_without_a_kernel_is_named(silu):
    kernel, _ = silu
    unknown = "import torch\ndef reference(**given):\n    x = given['input']\n    return {'out': torch.special.bessel_j0(x)[:, ::2]}\n"
    with pytest.raises(NoProgram, match="bessel_j0"):
        source(kernel.spec, unknown)


def test_a_size_that_the_reference_unrolls_is_refused(silu, monkeypatch):
    kernel, _ = silu
    monkeypatch.setattr("compiler.frontend.MOST_CALLS", 60)  # each takes some 20 ms
    unrolled = (
        "import torch\ndef reference(input):\n"
        "    total = sum(input[:, row : row + 1] for row in range(input.shape[1] // 2))\n"
        "    return {'out': total.expand(-1, input.shape[1] // 2)}\n"
    )
    with pytest.raises(NoProgram, match="more than 60 calls"):
        source(kernel.spec, unrolled)


def test_a_defect_of_the_compiler_ends_no_run(silu, monkeypatch):
    kernel, reference = silu
    monkeypatch.setattr("compiler.compile.lower_program", lambda *_: 1 / 0)
    with pytest.warns(RuntimeWarning, match="the compiler failed"):
        found = Compilation(spec=kernel.spec, reference=reference + "# once", device=H100).source()
    assert found == ("", "the compiler failed on this reference: ZeroDivisionError")


def test_the_rules_propose_it_first_and_once(silu):
    kernel, reference = silu
    baseline = kernel.baseline("cuda")[1].read_text()
    request = PlannerRequest(
        spec=kernel.spec, device=H100, finding=FINDING, incumbent="0", source=baseline, attempts=(), width=2,
        reference=reference,
    )  # fmt: skip
    policy = RulesPolicy()
    first, second = policy.planner(request)
    assert first.steps == (STEP,) and STEP not in second.steps
    answer = policy.coder(
        CoderRequest(spec=kernel.spec, device=H100, finding=FINDING, plan=first, source=baseline, reference=reference)
    )
    assert "// tune:" in answer.source
    without = request.model_copy(update={"reference": ""})
    assert all(STEP not in plan.steps for plan in policy.planner(without))


def test_spilled_bytes_are_those_of_the_worst_kernel():
    assert _spills({"a": "registers=40 spills=0 shared=0", "b": "registers=64 spills=96 shared=0"}) == 96


@pytest.mark.parametrize("garbled", [False, True], ids=["it answers", "it dies"])
def test_another_process_compiles_ahead_what_this_one_would(silu, monkeypatch: pytest.MonkeyPatch, garbled: bool):
    kernel, reference = silu
    started: list[Process] = []
    ended: list[Process] = []

    class Process(contextlib.nullcontext):
        def __init__(self) -> None:
            super().__init__(self)
            started.append(self)

        def communicate(self, text: str, _seconds: float) -> tuple[str, None]:
            with monkeypatch.context() as patch:
                patch.setattr(sys, "stdin", io.StringIO(text))
                patch.setattr(sys, "stdout", out := io.StringIO())
                compiling.answer()
            return "Killed" if garbled else out.getvalue(), None

        def kill(self) -> None:
            ended.append(self)

    monkeypatch.setattr(compiling, "_start", Process)
    monkeypatch.setattr(compiling.os, "cpu_count", lambda: 64)
    renamed = kernel.spec.model_copy(update={"summary": f"{kernel.spec.summary}, {garbled}"})
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "torch")
        waiting = compiling.waiting_process()
        waiting.__enter__()
    assert len(started) == 1
    asked = Compilation(spec=renamed, reference=reference, device=H100)
    found = asked.source_ahead()
    assert found == (source(renamed, reference, "sm_90"), "") and ended == started, "the one that waited"
    assert asked.source() == found and len(started) == 1, "and nobody compiles it again"
    waiting.__exit__(None, None, None)


def test_a_process_that_nobody_asks_ends(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "torch")
    with compiling.waiting_process():
        (process,) = compiling._waiting
    assert process.poll() is not None
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    compiling.answer()  # whoever started it has gone


def test_a_reference_that_names_dtype_rounds_to_each_dtypes_own(silu):
    kernel, _ = silu
    rounding = (
        "import torch\ndef reference(input, dtype):\n    gate, up = input.chunk(2, -1)\n"
        "    return {'out': torch.nn.functional.silu(gate).to(dtype).to(input.dtype) * up}\n"
    )
    meaning = Meaning(kernel.spec, rounding)
    for dtype in ("float16", "bfloat16"):
        check(meaning.program(dtype, 8), rounding)


def test_a_layer_norm_is_compiled_from_its_function(silu):
    kernel, _ = silu
    norm = "import torch\ndef reference(input):\n    gate, up = input.chunk(2, -1)\n    return {'out': torch.nn.functional.layer_norm(gate * up, (up.shape[-1],))}\n"
    check(Meaning(kernel.spec, norm).program("float32", 4), norm)
