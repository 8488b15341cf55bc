"""Every known cheat ends as its header says, and never in FASTER; every honest candidate passes.

A file here is one candidate, of silu_and_mul where its header names no other kernel. The header says what it does and
`Must end in:` the outcomes that are right for it; `Found by chance`, that on busy cores one look in many may miss it, so
that it is judged once more. `honest_*` are the candidates that look suspicious and are not. A cheat whose outcome may be
PASSED is one that the box or the protocol makes harmless: then it is measured, and must not be FASTER.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness import backends
from harness.evaluate import CALL_S, Evaluator
from harness.records import Comparison, Outcome, Verdict
from harness.store import Store
from kernels import catalog
from kernels.catalog import Kernel
from kernels.spec import Device

FOLDER = Path(__file__).parent
NO_CANDIDATES = ("test_cheats", "honest")
HANGS_S = 3.0
"""One that never answers is not waited for any longer."""
BY_CHANCE = "// Found by chance."
SHARED = {name: (FOLDER / name).read_text() for name in ("honest.h", "honest.cuh", "honest.py")}

# What is measured must not share the cores with another test.
pytestmark = pytest.mark.xdist_group("timing")


def cheats(suffix: str) -> list[str]:
    return sorted(path.stem for path in FOLDER.glob(f"*{suffix}") if path.stem not in NO_CANDIDATES)


def source(name: str, suffix: str) -> str:
    """The candidate as one file: what it includes from here is put in its place."""
    text = (FOLDER / f"{name}{suffix}").read_text()
    for shared, content in SHARED.items():
        text = text.replace(f'#include "{shared}"', content)
    return re.sub(r"^from honest import .*$", lambda _: SHARED["honest.py"], text, flags=re.MULTILINE)


def must_end_in(text: str, *, held_out: bool = False) -> set[Outcome]:
    phrase = "Held out, it must end in" if held_out else "Must end in"
    found = re.search(rf"^(?://|#) {phrase}: (.+)$", text, re.MULTILINE)
    return {Outcome(name.strip()) for name in found[1].split(",")} if found else set()


def kernel_of(text: str) -> str:
    found = re.search(r"^// Kernel: (\w+)$", text, re.MULTILINE)
    return found[1] if found else "silu_and_mul"


def small(kernel: Kernel, device: str, dtypes: tuple[str, ...]) -> Kernel:
    """The kernel with its smallest timed workload and those that are only checked, the held-out ones included."""
    spec = kernel.spec
    mine = [w for w in spec.workloads if device in w.devices and w.dtype in dtypes]
    timed = min((w for w in mine if w.timed and not w.held_out), key=lambda w: spec.read_bytes(w) + spec.write_bytes(w))
    kept = (timed, *(w for w in mine if not w.timed or w.held_out))
    return replace(kernel, spec=spec.model_copy(update={"workloads": kept}))


def evaluator(device: Device, folder: Path, dtypes: tuple[str, ...], kernel: str = "silu_and_mul") -> Evaluator:
    return Evaluator(small(catalog.load(kernel), device, dtypes), device, Store(folder))


@pytest.fixture(scope="module")
def cpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evaluator]:
    if reason := backends.get("cpu").why_unavailable():
        pytest.skip(reason)
    with evaluator("cpu", tmp_path_factory.mktemp("store"), ("float32", "float16", "bfloat16")) as one:
        yield one


@pytest.fixture(scope="module")
def in_place(tmp_path_factory: pytest.TempPathFactory, cpu: Evaluator) -> Iterator[Evaluator]:
    with evaluator("cpu", tmp_path_factory.mktemp("store"), ("float32",), "fused_add_rmsnorm") as one:
        yield one


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evaluator]:
    # Numpy has no bfloat16, and what is attacked does not depend on the dtype.
    for name in ("cpu", "python_module"):
        if reason := backends.get(name).why_unavailable():
            pytest.skip(reason)
    with evaluator("cpu", tmp_path_factory.mktemp("store"), ("float32",)) as one:
        yield one


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evaluator]:
    with evaluator("cuda", tmp_path_factory.mktemp("store"), ("float16", "bfloat16", "float32")) as one:
        yield one


def judge(evaluator: Evaluator, text: str, suffix: str) -> Verdict:
    """The verdict on the visible suite, measured where it passed, against the honest form of the same kernel."""
    baseline = evaluator.store.put(baseline_source(suffix, evaluator.kernel.spec.name))
    verdict = evaluator.verify(evaluator.build(evaluator.store.put(text)))
    return evaluator.measure(verdict, baseline=baseline) if verdict.passed else verdict


def baseline_source(suffix: str, kernel: str = "silu_and_mul") -> str:
    """What the cheats are built on, by itself: the catalog's baseline may differ from it by the 3 % that say FASTER."""
    if kernel == "fused_add_rmsnorm":
        return source("honest_in_place", ".cpp").replace("honest form", "baseline")
    if suffix == ".py":
        return source("honest_function", ".py")
    return {".cpp": SHARED["honest.h"], ".cu": SHARED["honest.cuh"]}[suffix] + "ENTRY_POINTS(compute)\n"


def seems_faster(verdict: Verdict) -> bool:
    return verdict.suite is not None and verdict.suite.comparison is Comparison.FASTER


def measured_again(text: str, suffix: str) -> str:
    """Another source to the store, and the same to a compiler."""
    return f"{text}\n{'#' if suffix == '.py' else '//'} measured again\n"


def examine(evaluator: Evaluator, name: str, suffix: str) -> None:
    text = source(name, suffix)
    allowed = must_end_in(text)
    assert allowed, f"{name}{suffix} has no header that says what must happen"
    evaluator.call_s = HANGS_S if allowed == {Outcome.TIMEOUT} else CALL_S
    verdict = judge(evaluator, text, suffix)
    if verdict.passed and BY_CHANCE in text:
        assert not seems_faster(verdict), verdict.suite
        verdict = judge(evaluator, measured_again(text, suffix), suffix)
    assert verdict.outcome in allowed, f"{verdict.outcome}: {verdict.reason}"
    if not name.startswith("honest_") and seems_faster(verdict):
        # Once in some hundred measurements on busy cores chance says FASTER, too; a cheat that works says it again.
        verdict = judge(evaluator, measured_again(text, suffix), suffix)
        faster = [t for t in verdict.timings if t.comparison is Comparison.FASTER]
        assert not seems_faster(verdict), (verdict.suite, faster)
    if held_out := must_end_in(text, held_out=True):
        outcome = evaluator.verify(evaluator.build(evaluator.store.put(text)), held_out=True).outcome
        assert outcome in held_out
    # One bad candidate never hurts the next: nothing is left of it, and the baseline still passes beside it.
    assert not list(Path("/tmp").glob("answer-*")) and not Path("/tmp/astrolabe-was-here").exists()


@pytest.mark.parametrize("name", cheats(".cpp"))
def test_on_a_cpu(cpu: Evaluator, in_place: Evaluator, name: str) -> None:
    kernel = kernel_of((FOLDER / f"{name}.cpp").read_text())
    examine(in_place if kernel == "fused_add_rmsnorm" else cpu, name, ".cpp")


@pytest.mark.parametrize("name", cheats(".py"))
def test_in_python(python: Evaluator, name: str) -> None:
    examine(python, name, ".py")


@pytest.mark.gpu
@pytest.mark.parametrize("name", cheats(".cu"))
def test_on_a_gpu(gpu: Evaluator, name: str) -> None:
    examine(gpu, name, ".cu")


@pytest.mark.parametrize("suffix", [".cpp", ".cu", ".py"])
def test_every_file_says_what_it_does(suffix: str) -> None:
    for name in cheats(suffix):
        text = (FOLDER / f"{name}{suffix}").read_text()
        first = text.splitlines()[0].lstrip('/#" ')
        assert len(first) > 20, f"{name}{suffix} begins without a sentence"
        assert must_end_in(text), f"{name}{suffix} does not say how it must end"


def test_there_are_enough_of_both_kinds() -> None:
    names = {name for suffix in (".cpp", ".cu", ".py") for name in cheats(suffix)}
    honest = {name for name in names if name.startswith("honest_")}
    assert len(names - honest) >= 30
    assert len(honest) >= 8


def test_a_verdict_does_not_depend_on_the_candidate_before(cpu: Evaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    text = source("honest_openmp", ".cpp")
    monkeypatch.setattr(cpu, "call_s", HANGS_S)
    for name in ("crash", "bomb_memory", "hang", "forge_answer"):
        before = cpu.verify(cpu.build(cpu.store.put(source(name, ".cpp") + "// before another\n")))
        assert not before.passed
        after = cpu.verify(cpu.build(cpu.store.put(f"{text}// after {name}\n")))  # a text that it was not asked for
        assert after.passed, f"after {name}: {after.reason}"
