"""Schedules as tools: read as a record, changed by fields, refused in a sentence or built, checked and timed as any source is."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator

import pytest

from compiler.schedule import Schedule, read_head
from harness.evaluate import Evaluator
from harness.records import DeviceFacts, Outcome
from harness.store import Store
from kernels.spec import Device
from nodes import compiling, ledger
from nodes.policies import answers
from nodes.policies.replies import UnfitReply
from nodes.policies.rules import RulesPolicy
from nodes.roles import CoderRequest, Finding, PlannerRequest
from nodes.workbench.arguments import CompileArguments, ScheduleArguments, ScheduleEdit, TryScheduleArguments
from nodes.workbench.bench import Workbench
from tests.compiler.folders import made
from tests.nodes.test_workbench import KERNEL, kernel_of_few_rows

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed"),
    pytest.mark.usefixtures("few_samples"),
]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    store = Store(tmp_path_factory.mktemp("store"))
    kernel = kernel_of_few_rows()
    source = store.put((KERNEL / "baseline.cpp").read_text())
    with Evaluator(kernel, "cpu", store) as evaluator:
        visible = kernel.spec.model_copy(update={"workloads": evaluator.suite()})
        briefly = evaluator.compare_briefly
        evaluator.compare_briefly = lambda *given, **more: briefly(*given, **more | {"seconds": 0.1})  # type: ignore[method-assign]
        reference = (KERNEL / "reference.py").read_text()
        yield Workbench(evaluator, store, visible, baseline=source, incumbent=source, reference=reference)


def tried(bench: Workbench, where: str, value: int | bool | None, last: str = "", **more):
    return bench.do(TryScheduleArguments(edits=(ScheduleEdit(where=where, value=value),), **more), last)


def test_a_changed_schedule_is_built_checked_and_timed_and_can_be_changed_again(bench: Workbench) -> None:
    read = bench.do(ScheduleArguments(), "").text
    assert '"float32.0"' in read and "PARALLEL_FROM" in read
    made = tried(bench, "numbers.PARALLEL_FROM", 1024, note="threads sooner")
    assert made.outcome is Outcome.PASSED and made.checked and made.gain is not None, made.text
    text = bench.store.get(made.candidate)
    assert "#define PARALLEL_FROM 1024\n" in text and "// tune" not in text
    again = tried(bench, "float32.0", None, candidate=made.candidate, then=("check",))
    assert again.outcome is Outcome.PASSED, again.text
    before, after = (read_head(bench.store.get(name)) for name in (made.candidate, again.candidate))
    assert before is not None and after is not None and after.numbers == before.numbers
    assert after.versions["float32"] == before.versions["float32"][1:]
    assert any("threads sooner" in row for row in ledger.rows(ledger.every(bench.store), ()))


def test_a_whole_record_is_taken_as_json(bench: Workbench) -> None:
    first = read_head(bench.store.get(tried(bench, "numbers.STREAM", 1, then=()).candidate))
    assert isinstance(first, Schedule)
    made = bench.do(TryScheduleArguments(record=first.model_dump_json(), then=()), "")
    assert made.outcome is Outcome.PASSED and read_head(bench.store.get(made.candidate)) == first


def test_without_edits_the_compilers_own_source_is_built(bench: Workbench) -> None:
    made = bench.do(TryScheduleArguments(then=()), "")
    assert made.outcome is Outcome.PASSED and isinstance(read_head(bench.store.get(made.candidate)), Schedule), (
        made.text
    )


@pytest.mark.parametrize(
    ("where", "value", "why"),
    [
        ("float32.0.vector", 3, "float32.0.vector must be one of 1, 2, 4, 8, 16"),
        ("float32.9.vector", 8, "float32 has versions 0 to"),
        ("float32.0.0.wings", 8, "there is no such field; there are"),
        ("float64.0.vector", 8, "there is no float64"),
        ("numbers.STREAM", 7, "numbers.STREAM must be one of"),
        ("numbers.SPEED", 7, "numbers.SPEED is none of"),
    ],
)
def test_what_is_not_legal_is_said_in_one_sentence(bench: Workbench, where: str, value: int, why: str) -> None:
    refused = tried(bench, where, value)
    assert refused.outcome is None and not refused.candidate
    assert refused.text.startswith("try_schedule: ") and why in refused.text and "\n" not in refused.text


def test_a_version_that_takes_all_sizes_must_stay(bench: Workbench) -> None:
    record = read_head(bench.store.get(tried(bench, "numbers.STREAM", 0, then=()).candidate))
    assert record is not None
    last = len(record.versions["float32"]) - 1
    assert "total" in tried(bench, f"float32.{last}", None).text
    broken = json.loads(record.model_dump_json())
    broken["versions"]["float32"][0]["kernels"][0]["members"] = ["x"]
    assert "members must be" in bench.do(TryScheduleArguments(record=json.dumps(broken)), "").text
    assert "try_schedule: versions: " in bench.do(TryScheduleArguments(record="{}"), "").text


def test_a_source_that_the_compiler_did_not_write_has_no_schedule(bench: Workbench) -> None:
    mine = bench.do(CompileArguments(source=bench.store.get(bench.baseline) + "\n// mine\n"), "").candidate
    assert "did not write" in bench.do(ScheduleArguments(candidate=mine), "").text


def test_a_plan_may_set_fields_of_the_schedule(bench: Workbench) -> None:
    asked = compiling.Compilation(spec=bench.spec, reference=bench.reference, device=bench.evaluator.facts)
    text, why = asked.planned((compiling.STEP, "numbers.PARALLEL_FROM = 2048"))
    assert not why and "#define PARALLEL_FROM 2048\n" in text
    text, why = asked.planned((compiling.STEP, "float32.0.vector = 3"))
    assert not text and why.startswith("float32.0.vector must be one of")
    assert "goes with settings" in asked.planned((compiling.STEP, "use more threads"))[1]


@pytest.mark.parametrize(
    ("steps", "fits"),
    [
        ([compiling.STEP, "float32.0.0.lanes = 8"], True),
        (["float32.0.0.lanes = 8"], False),
        ([compiling.STEP, "use more threads"], False),
    ],
)
def test_a_model_s_plan_for_the_rules_may_name_them(steps: list[str], fits: bool) -> None:
    request = PlannerRequest.model_construct(width=1, attempts=(), objections=(), incumbent="a" * 64, sources={})
    reply = json.dumps(
        {
            "plans": [{"title": "a schedule", "steps": steps, "rationale": "", "base": "", "expected_speedup": 1.1}],
            "nothing_left": "",
        }
    )
    if fits:
        assert answers.plans(reply, request, {compiling.STEP: ""})[0].steps == tuple(steps)
    else:
        with pytest.raises(UnfitReply, match="is not the name of a rewrite"):
            answers.plans(reply, request, {compiling.STEP: ""})


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_an_exact_run_plans_the_compiler_s_text_without_approximate_functions(device: Device) -> None:
    """Bits of every float16 are those of a baseline that calls expf, or divides, where the text does so, too."""
    spec = made(
        [{"rows": 64, "cols": 64}], ("float16",), (device,), tensors={"x": "in rows cols", "out": "out rows cols"}
    )
    reference = (
        'import torch\n\n\ndef reference(x):\n    return {"out": torch.exp(x) * torch.sigmoid(x) / (1 + x * x)}\n'
    )
    facts = DeviceFacts(
        device=device, name="", architecture="sm_90", units=1, last_level_cache_bytes=1, bandwidth_gbps=1.0
    )
    about = {"spec": spec, "reference": reference, "device": facts, "finding": Finding(bound="memory", summary="")}
    texts = []
    for exact in (False, True):
        asked = PlannerRequest(**about, incumbent="b", source="", attempts=(), exact=exact)
        (plan, *_) = RulesPolicy().planner(asked)
        assert plan.steps == (compiling.STEP,)
        texts.append(RulesPolicy().coder(CoderRequest(**about, plan=plan, source="", exact=exact)).source)
    prelude_ends = "__global__" if device == "cuda" else "return exp(x);"
    calls = [set(re.findall(r"\b(\w*exp\w*|__fdividef)\(", text.partition(prelude_ends)[2])) for text in texts]
    assert calls == [{"fast_exp", "__fdividef"} if device == "cuda" else {"exponential"}, {"expf"}]
