"""The whole instrument on the CPU, with real compilers and real workers."""

from __future__ import annotations

import shutil
import threading
import weakref
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness import backends
from harness.checks.drawing import distributions
from harness.checks.fitting import OutOfDeviceMemory
from harness.device import facts
from harness.evaluate import Evaluator, begin_building
from harness.farside import sandbox
from harness.judge import comparisons, many_calls, series, verification
from harness.judge.series import ComparisonRequest
from harness.judge.session import CACHES, MissingTool
from harness.judge.variants import measure_ratios
from harness.questions import CheckToolchain, ToolchainFacts
from harness.records import Build, Check, Comparison, DeviceFacts, Interval, Outcome, Timing
from harness.store import Store, digest
from harness.timing import interleaved
from harness.timing.sampling import PROTOCOLS, ArmFailure
from kernels import catalog
from kernels.spec import Workload

pytestmark = pytest.mark.usefixtures("few_samples")


@pytest.fixture(scope="module")
def small():
    """silu_and_mul in float32 on two workloads that take milliseconds."""
    kernel = catalog.load("silu_and_mul")
    workloads = (
        Workload(axes={"tokens": 3, "hidden": 129}, dtype="float32", timed=False),
        Workload(axes={"tokens": 8, "hidden": 512}, dtype="float32"),
        Workload(axes={"tokens": 5, "hidden": 320}, dtype="float32", held_out=True),
    )
    return replace(kernel, spec=kernel.spec.model_copy(update={"workloads": workloads, "dtypes": ("float32",)}))


@pytest.fixture(scope="module")
def source(small):
    return small.baseline("cpu")[1].read_text()


@pytest.fixture(scope="module")
def built(small, source, tmp_path_factory):
    """What nearly every test would begin with, and none is about: the builds of these sources, and the bound of light."""
    with Evaluator(small, "cpu", Store(tmp_path_factory.mktemp("built"))) as one:
        for text in (source, source + "\n// another\n", source + "\n// incumbent\n"):
            assert one.build(one.store.put(text)).ok
        for cache in CACHES:
            one.sol_us(small.spec.workloads[1], cache)
    return one.store


@pytest.fixture
def store(built, tmp_path):
    """A store of the test's own that has them, as a fork has its origin's."""
    built.link_to(tmp_path / "store")
    return Store(tmp_path / "store")


@pytest.fixture
def evaluator(small, store):
    with Evaluator(small, "cpu", store) as made:
        yield made


def judged(evaluator: Evaluator, text: str):
    return evaluator.verify(evaluator.build(evaluator.store.put(text)))


def test_small_workloads_meet_all_values_and_two_calls_in_flight_large_ones_the_first_and_another(
    evaluator, source, monkeypatch
):
    known = distributions(evaluator.spec, {})

    def met(text: str) -> list[tuple[set[str], bool]]:
        """Of each visible workload: whose values its outputs were checked on, and whether of two calls at a time."""
        checks = judged(evaluator, text).checks
        by_workload = [[c.name for c in checks if c.workload == w.label] for w in evaluator.suite()]
        return [
            ({one for one in known if one in names}, any("two calls in flight" in name for name in names))
            for names in by_workload
        ]

    assert len(known) > 2
    assert met(source) == [(set(known), True)] * 2
    monkeypatch.setattr(verification, "SMALL_BYTES", 0)
    drawn = set()
    for number in range(-(-(len(known) - 1) // 2)):  # two workloads each
        for values, in_flight in met(f"{source}\n// another, {number}\n"):
            assert known[0] in values and len(values) == 2 and not in_flight
            drawn |= values
    assert drawn == set(known), "in turn, so that none is left to chance"


def test_where_no_workload_is_small_the_smallest_is_called_often(small, tmp_path, whole_checks, monkeypatch):
    """Who was right for its first calls passed where every size moved more than 1 MiB. Who leaks is told by its memory, before any limit;
    addresses that malloc reserves for one more thread, 64 MiB, are none, for which an honest OpenMP candidate was refused on 32 cores."""
    monkeypatch.setattr(many_calls, "LONG_S", 0.0)
    workload = Workload(axes={"tokens": 64, "hidden": 2048}, dtype="float32", devices=("cpu",))
    spec = small.spec.model_copy(update={"workloads": (workload,), "dtypes": ("float32",)})
    text = small.baseline("cpu")[1].read_text()
    spoiled = text.replace("silu_and_mul_float32", "right") + (
        '\nextern "C" void silu_and_mul_float32(const float* input, float* out, int64_t tokens, int64_t hidden) {\n'
        "  static int calls = 0;\n  right(input, out, tokens, hidden);\n  if (++calls > 200) out[0] = 0;\n}\n"
    )
    leaking = "#include <cstdlib>\n" + spoiled.replace(
        "if (++calls > 200) out[0] = 0;", "void* volatile kept = malloc(1 << 20); (void)kept;"
    )
    reserving = "#include <sys/mman.h>\n" + spoiled.replace(
        "if (++calls > 200) out[0] = 0;", "if (++calls % 20 == 0) mmap(nullptr, 64 << 20, PROT_NONE, 0x4022, -1, 0);"
    )
    with Evaluator(replace(small, spec=spec), "cpu", Store(tmp_path / "store"), dtypes=("float32",)) as evaluator:
        assert evaluator.moved_bytes(workload) > verification.SMALL_BYTES
        built = [evaluator.build(evaluator.store.put(one)) for one in (text, spoiled, leaking, reserving)]
        found = [evaluator.verify(one) for one in built]
    assert found[3].passed, found[3].reason
    assert found[2].outcome is Outcome.OUT_OF_RESOURCES and "MiB more in" in found[2].reason, found[2].reason
    assert found[0].passed and found[1].outcome is Outcome.INCORRECT and "call" in found[1].reason, found[1].reason


def test_others_on_the_machine_are_a_warning_beside_the_times(evaluator, source, monkeypatch):
    monkeypatch.setattr("harness.timing.load.LoadWatch.share", lambda _self: 0.6)
    verdict = judged(evaluator, source)
    measured = evaluator.measure(verdict, baseline=verdict.candidate)
    assert "other processes took 60% of this machine's CPU while it was timed" in measured.warnings
    assert "at most 60% of the CPU" in evaluator.measured["load"]
    assert "-O3" in evaluator.measured["build, cpu"]


def test_several_contests_count_as_one_each_in_fresh_processes_and_are_kept_apart_from_one(
    evaluator, source, monkeypatch
):
    baseline, other = judged(evaluator, source), judged(evaluator, source + "\n// another\n")
    started, start = [], evaluator.pool.start
    monkeypatch.setattr(evaluator.pool, "start", lambda build: started.append(build.candidate) or start(build))
    twice = evaluator.measure(other, baseline=baseline.candidate, contests=2)
    assert twice.passed, twice.reason
    assert min(timed.samples for timed in twice.timings) >= 2 * PROTOCOLS["cpu"].blocks[0]
    assert started.count(other.candidate) >= len(twice.timings)
    monkeypatch.setattr(comparisons, "time_cases", lambda *_: pytest.fail("timed"))
    assert evaluator.measure(other, baseline=baseline.candidate, contests=2) == twice
    with pytest.raises(pytest.fail.Exception, match="timed"):
        evaluator.measure(other, baseline=baseline.candidate)


def test_a_candidate_is_built_ahead_beside_the_variants_of_a_search_and_by_itself_where_cores_are_few(
    evaluator, source, monkeypatch
):
    candidate = evaluator.store.put(f"#define UNROLL 2  // tune: 1 2 4\n{source}")
    asked, all_asked = [], threading.Barrier(3, timeout=20)
    monkeypatch.setattr(evaluator, "build", lambda name: asked.append(name) or all_asked.wait())
    monkeypatch.setattr("harness.judge.search.has_idle_cores", lambda _session: True)
    begin_building(evaluator, make=lambda: candidate).join()
    assert len(asked) == 3 and candidate in asked
    monkeypatch.setattr("harness.judge.search.has_idle_cores", lambda _session: False)
    monkeypatch.setattr(evaluator, "build", asked.append)
    begin_building(evaluator, make=lambda: candidate).join()
    begin_building(evaluator, make=lambda: candidate, variants=False).join()
    begin_building(evaluator, make=lambda: "").join()
    assert asked[3:] == [candidate, candidate]


@pytest.mark.parametrize("raised", [OSError, SystemExit, GeneratorExit, BaseExceptionGroup("many", [SystemExit()])])
def test_a_thread_that_builds_ahead_keeps_silent_on_whatever_a_users_code_raises(raised, monkeypatch):
    said = []
    monkeypatch.setattr("threading.excepthook", said.append)

    def make() -> str:
        raise raised

    begin_building(None, make=make).join()
    assert not said


def test_where_nothing_is_timed_no_process_is_begun_for_checks_after_it(small, store, source, monkeypatch):
    unseen = [w.model_copy(update={"timed": False}) if w.held_out else w for w in small.spec.workloads]
    kernel = replace(small, spec=small.spec.model_copy(update={"workloads": tuple(unseen)}))
    with Evaluator(kernel, "cpu", store) as evaluator:
        verdict = judged(evaluator, source + "\n// another\n")
        monkeypatch.setattr(evaluator.pool, "start", lambda *_: pytest.fail("begun"))
        baseline = evaluator.build(evaluator.store.put(source)).candidate
        measured = evaluator.measure(verdict, baseline=baseline, held_out=True)
    assert measured.passed and not measured.timings and measured.checks == verdict.checks


def test_the_incumbent_again_is_the_same(evaluator, source):
    baseline, again = judged(evaluator, source), judged(evaluator, source + "\n// incumbent\n")
    measured = evaluator.measure(again, baseline=baseline.candidate, incumbent=again.candidate)
    assert measured.suite_incumbent.comparison is Comparison.SAME and measured.suite_incumbent.speedup.median == 1


def test_a_closed_evaluator_holds_no_inputs(small, source, store):
    with Evaluator(small, "cpu", store) as one:
        judged(one, source)
        cases = [weakref.ref(case) for case in one.cases.kept.values()]
        assert cases and all(case() for case in cases)
    assert not any(case() for case in cases)


def test_a_closed_evaluator_gives_a_gpus_memory_back_to_other_processes(tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr("harness.checks.cases.give_back_memory", lambda over: given.append((len(one.cases.kept), over)))
    gpu = DeviceFacts(device="cuda", name="H", architecture="sm_90", units=132, last_level_cache_bytes=50 << 20)
    kernel = catalog.load("silu_and_mul")
    for held in (0, 1):
        one = Evaluator(kernel, "cuda", Store(tmp_path), facts=gpu, memory_bytes=80 << 30)
        one.cases.kept |= {(str(at), ""): object() for at in range(held)}
        one.close()
        assert given == [(0, 0)] * held, (
            "all of it, once they are let go of; one that judges elsewhere leaves this machine's GPU alone"
        )


def test_a_question_that_finds_no_memory_is_asked_again_with_no_case_kept(evaluator, monkeypatch):
    """Seen on a GPU of 140 GiB: a session kept 115 GiB, and Model "failed" at a size that it had passed before."""
    evaluator.cases.get(evaluator.suite()[0], "ordinary", {})
    kept: list[int] = []

    def answer(self, session):
        kept.append(len(session.cases.kept))
        if len(kept) <= fails:
            raise OutOfDeviceMemory("Model fails at lead=1021: CUDA out of memory")
        return ToolchainFacts(missing="", identity="here")

    monkeypatch.setattr(CheckToolchain, "answer", answer)
    fails = 1
    assert evaluator.ask(CheckToolchain(backend="cpu")).identity == "here" and kept == [1, 0]
    fails = 9
    with pytest.raises(OutOfDeviceMemory):
        evaluator.ask(CheckToolchain(backend="cpu"))


def test_rivals_are_of_one_age_at_every_verdict(small, source, store, monkeypatch):
    with Evaluator(small, "cpu", store) as one:
        started, start = [], one.pool.start
        monkeypatch.setattr(
            one.pool, "start", lambda build, **how: (started.append(build.candidate), start(build, **how))[1]
        )
        baseline = one.store.put(source)
        for name in ("another", "incumbent"):
            verdict = judged(one, f"{source}\n// {name}\n")
            started.clear()
            assert one.measure(verdict, baseline=baseline).timings
            assert {baseline, verdict.candidate} <= set(started), "an older process has memory at hand"


TWICE = """

_right = reference


def reference(*, input):
    return {"out": 2 * _right(input=input)["out"]}
"""


@pytest.mark.parametrize("changed", ["the compiler", "the flags", "the architecture"])
def test_a_build_is_not_taken_for_that_of_another_toolchain(evaluator, source, monkeypatch, changed):
    cpu = backends.get("cpu")
    name = evaluator.store.put(source)
    first = evaluator.build(name)
    assert evaluator.build(name) == first
    cpu.identity.cache_clear()
    if changed == "the compiler":
        monkeypatch.setenv("CXX", "c++")
        monkeypatch.setattr(cpu.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout="g++ 99\n"))
    elif changed == "the flags":
        monkeypatch.setattr(cpu, "FLAGS", (*cpu.FLAGS, "-fno-math-errno"))
    else:
        evaluator.facts = evaluator.facts.model_copy(update={"architecture": "sse4_2"})
    try:
        key = digest(name, cpu.__name__, cpu.identity(evaluator.facts))
    finally:
        cpu.identity.cache_clear()
    assert evaluator.store.find_record("build", key, Build) is None
    monkeypatch.setattr(cpu, "identity", lambda facts: f"another: {changed}")
    assert evaluator.build(name).artefact != first.artefact


@pytest.mark.skipif(bool(backends.get("cuda").why_unavailable()), reason="nvcc is not here")
def test_a_build_that_names_its_librarys_folder_is_not_used_once_that_has_moved(monkeypatch, tmp_path):
    """A right candidate was a RUNTIME_ERROR: its build was the one of an environment that is gone."""
    tvm_ffi = backends.get("tvm_ffi")
    monkeypatch.setattr(tvm_ffi.importlib.metadata, "version", lambda name: "0.1")
    here, said = facts("cpu"), []
    for folder in (tmp_path / "old", tmp_path / "new"):
        monkeypatch.setattr(tvm_ffi, "_package", lambda folder=folder: folder)
        tvm_ffi.identity.cache_clear()
        said.append(tvm_ffi.identity(here))
    tvm_ffi.identity.cache_clear()
    assert said[0] != said[1]


def test_nvccs_identity_is_its_version_its_flags_and_the_chip(monkeypatch):
    cuda = backends.get("cuda")
    chip = facts("cpu").model_copy(update={"device": "cuda", "architecture": "sm_90"})
    said = cuda.identity(chip)
    assert "release" in said or "Build" in said
    assert all(flag in said for flag in cuda.FLAGS) and cuda.architecture_flag("sm_90") in said
    assert cuda.identity(chip.model_copy(update={"architecture": "sm_80"})) != said


@pytest.mark.parametrize(
    ("file", "changed"),
    [
        ("reference.py", lambda text: text + TWICE),
        ("spec.py", lambda text: text.replace("axes=(", 'entry="other", axes=(', 1)),
    ],
)
def test_an_answer_under_another_reference_or_spec_is_not_taken(small, source, tmp_path, file, changed):
    """What was right by the one may be wrong by the other."""

    def answered(folder):
        kernel = catalog.load(str(folder))
        update = {"workloads": small.spec.workloads, "dtypes": small.spec.dtypes}
        kernel = replace(kernel, spec=kernel.spec.model_copy(update=update))
        with Evaluator(kernel, "cpu", Store(tmp_path / "store")) as one:
            return judged(one, source)

    folders = [shutil.copytree(small.folder, tmp_path / name) for name in ("before", "after")]
    text = (folders[1] / file).read_text()
    assert changed(text) != text
    (folders[1] / file).write_text(changed(text))
    assert answered(folders[0]).passed
    assert answered(folders[1]).outcome is {"reference.py": Outcome.INCORRECT, "spec.py": Outcome.MISSING_ENTRY}[file]
    assert answered(folders[0]).passed


@pytest.mark.parametrize(
    ("cold", "hot", "says"),
    [
        (1.0, 2.0, Comparison.UNCLEAR),
        (1.03, 2.0, Comparison.UNCLEAR),
        (1.1, 2.0, Comparison.FASTER),
        (1.1, 1.1, Comparison.FASTER),
    ],
)
def test_a_suite_is_not_faster_by_its_hot_cases_alone(evaluator, cold, hot, says):
    workload = evaluator.suite()[1]
    one = Interval(median=1, low=1, high=1)
    timings = [
        Timing(
            workload=workload, cache=cache, baseline_us=1, time_us=1, speedup=one, comparison=Comparison.SAME, samples=8
        )
        for cache in ("cold", "hot", "hot")
    ]
    suite = comparisons.suite_of(evaluator, [[cold] * 8, [hot] * 8, [hot] * 8], timings)
    assert suite.comparison is says
    assert suite.speedup.median == pytest.approx((cold * hot * hot) ** (1 / 3))


@pytest.mark.parametrize(("share", "accused"), [(0.37, True), (0.49, True), (0.51, False), (1.2, False)])
def test_what_is_faster_than_half_of_light_did_not_move_the_bytes(evaluator, source, monkeypatch, share, accused):
    """And the bound is measured once more before anybody is accused."""
    verdict = judged(evaluator, source + "\n// another\n")
    light_us, asked = 8.0, []

    def bound(_workload, _cache, _on, *, again=False):
        asked.append(again)
        return light_us

    times = {"baseline": 10.0, "candidate": share * light_us}
    checks = {"candidate": [Check(workload="w", name="8 timed calls, hot", passed=True)]}
    result = interleaved.ComparisonTimes(
        times, {"candidate": [10 / times["candidate"]] * 8}, checks, 8, dict.fromkeys(times, True), {}
    )
    monkeypatch.setattr(evaluator, "sol_us", bound)
    monkeypatch.setattr(evaluator, "open_comparison", lambda *_: SimpleNamespace())
    monkeypatch.setattr(evaluator, "run", lambda *_, **__: result)
    baseline = judged(evaluator, source).candidate
    request, case = (
        ComparisonRequest(verdict.build, {"baseline": baseline}),
        (evaluator.suite()[1], "hot", "plain"),
    )
    if accused:
        with pytest.raises(ArmFailure, match=r"moving its bytes takes 8.00 us here") as failure:
            comparisons.time_cases(evaluator, request, [case])
        assert failure.value.outcome is Outcome.CHEATED and failure.value.arm == "candidate"
    else:
        (timed,) = comparisons.time_cases(evaluator, request, [case])
        assert timed.timing.light_fraction == pytest.approx(1 / share)
    assert asked == [False, True] if accused else [False]


def test_the_tester_can_add_and_not_remove(evaluator):
    before = {w.label for w in evaluator.suite()}
    added = Workload(axes={"tokens": 2, "hidden": 64}, dtype="float32", timed=False)
    evaluator.extend((added,), {"input": ("uniform",)})
    assert before < {w.label for w in evaluator.suite()}
    with pytest.raises(ValueError, match="no input"):
        evaluator.extend((), {"out": ("uniform",)})
    with pytest.raises(ValueError, match="dtype"):
        evaluator.extend((Workload(axes={"tokens": 2, "hidden": 64}, dtype="float16"),), {})


def test_an_added_workload_is_checked_alone(evaluator, source):
    """Also where it is where a candidate fails, and the whole suite afterwards says the same."""
    added = Workload(axes={"tokens": 2, "hidden": 64}, dtype="float32", timed=False)
    build = evaluator.build(evaluator.store.put(source.replace("token < tokens", "token < tokens - (hidden == 64)")))
    with pytest.raises(ValueError, match="in the suite already"):
        evaluator.verify(build, only=added)
    assert evaluator.verify(build).passed
    evaluator.extend((added,), {})
    alone = evaluator.verify(build, only=added)
    assert alone.outcome is Outcome.INCORRECT and {check.workload for check in alone.checks} == {added.label}
    assert evaluator.verify(build).reason.partition(":")[0] == alone.reason.partition(":")[0]
    assert evaluator.verify(build, only=evaluator.suite()[-1]).passed


def test_a_workload_that_the_reference_does_not_take_is_not_added(small, tmp_path, monkeypatch):
    def picky(self, **inputs):
        if inputs["input"].shape[1] % 4:
            raise RuntimeError("pairs only\nand a trace")
        return {"out": inputs["input"].chunk(2, dim=1)[0]}

    with Evaluator(small, "cpu", Store(tmp_path)) as made:
        monkeypatch.setattr(type(small), "reference", picky)
        before = made.extra_workloads
        odd = Workload(axes={"tokens": 2, "hidden": 63}, dtype="float32", timed=False)
        with pytest.raises(ValueError, match=r"reference.py fails at .*hidden=63: RuntimeError: pairs only$"):
            made.extend((odd,), {})
        assert made.extra_workloads == before


@pytest.mark.parametrize(("failures", "measured"), [(1, True), (9, False)])
def test_a_variant_that_fails_while_it_is_timed_is_started_afresh_once(
    evaluator, source, monkeypatch, failures, measured
):
    text = source.replace("#include <cstdint>", "#include <cstdint>\n#define SIZE 1  // tune: 1 2\n", 1)
    timed, left = interleaved.run, [failures]

    def fails_first(contest, sides, **more):
        if left[0] and any(side.name == "1" for side in sides):
            left[0] -= 1
            raise ArmFailure("1", Outcome.CHEATED, "its clock disagrees")
        return timed(contest, sides, **more)

    monkeypatch.setattr(interleaved, "run", fails_first)
    cases = [(evaluator.suite()[1], "hot")]
    (ratios,) = measure_ratios(evaluator, text, [{"SIZE": 2}], cases, 3)
    assert (ratios is not None) == measured


def test_numbers_left_open_are_searched(evaluator, source):
    """WAIT = 1 waits a millisecond, many times what the kernel takes: the search must move away from it on a busy machine too."""
    slow = source.replace(
        "#include <cstdint>", "#include <cstdint>\n#define WAIT 1  // tune: 1 0\nstatic volatile int sink;\n", 1
    )
    assert slow != source
    entry = 'extern "C" void silu_and_mul_float32'
    head, _, tail = slow.partition(entry)
    body_at = tail.index("{") + 1
    slow = head + entry + tail[:body_at] + " for (int i = 0; i < WAIT * 2000000; ++i) sink = i; " + tail[body_at:]
    tuned = evaluator.tune(evaluator.store.put(slow), seconds=20)
    assert tuned.values == {"WAIT": 0}, tuned.reason
    assert "#define WAIT 0" in evaluator.store.get(tuned.candidate)


def test_what_is_said_of_the_box_is_what_it_is(small, source, store, monkeypatch):
    """By the kernel of this machine's own account of a worker's process; what is missing is said, or ends the run."""
    with Evaluator(small, "cpu", store) as one:
        judged(one, source)
        worker = one.pool.start(one.build(one.store.put(source)))
        status = Path(f"/proc/{worker.process.pid}/status").read_text()
        worker.close()
        assert ("seccomp" in one.layers) == ("Seccomp:\t2" in status)
        assert "limits" in one.layers and set(one.notices) == set(sandbox.missing(list(one.layers)))
    monkeypatch.setattr(sandbox, "missing", lambda active: ["no lid on the box"])
    before = watched()
    with Evaluator(small, "cpu", store, sandbox_mode="require") as strict:
        with pytest.raises(MissingTool, match="--sandbox require: no lid on the box"):
            strict.pool.start(strict.build(strict.store.put(source)))
        assert watched() <= before, "the worker that was refused is still there"


def watched() -> set[int | None]:
    """The workers that are alive, by the threads that watch them."""
    return {thread.ident for thread in threading.enumerate() if thread.name.startswith("watchdog-")}


@pytest.mark.parametrize(("failures", "ends"), [(1, False), (99, True)])
def test_a_rival_that_fails_while_it_is_timed_is_started_afresh(evaluator, source, monkeypatch, failures, ends):
    """It has passed before: a busy machine may have accused it, and a run must not end for that."""
    baseline = judged(evaluator, source)
    other = judged(evaluator, source + "\n// another\n")
    contested, left = series.compare_case, [failures]

    def fails_first(*arguments, **how):
        if left[0]:
            left[0] -= 1
            raise ArmFailure("baseline", Outcome.CHEATED, "its clock disagrees")
        return contested(*arguments, **how)

    monkeypatch.setattr(series, "compare_case", fails_first)
    if ends:
        with pytest.raises(RuntimeError, match="the baseline failed while it was timed: its clock disagrees"):
            evaluator.measure(other, baseline=baseline.candidate)
    else:
        assert evaluator.measure(other, baseline=baseline.candidate).passed
