"""The host chooses numbers by size: how the source reads, which instance runs, and what is refused."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

from harness.judge.bands import Band, Measure, Split
from harness.judge.tunables import tunables
from harness.store import digest
from kernels import catalog
from kernels.spec import Size, Spec, Tensor, Workload
from nodes.policies.rules import RulesPolicy, apply_step
from nodes.rewrites import Facts
from nodes.rewrites.specialize.dispatch import dispatched
from nodes.rewrites.syntax.source import Unsupported
from nodes.roles import Attempt, Finding, Plan, PlannerRequest
from tests.nodes.rewrites.steps import H200

SPEC = Spec(
    name="some",
    summary="an operation with one size",
    axes=("n",),
    dtypes=("float32",),
    arguments=(Tensor(name="out", role="output", shape=("n",)), Size(name="n")),
    workloads=(Workload(axes={"n": 1}, dtype="float32"),),
)
BYTES = Measure(sizes=("n",), tensor="out")
ENTRY = 'extern "C" void some_float32(float* y, int64_t count)'


def split(*bands: tuple[int | None, dict[str, int]], measure: Measure = BYTES) -> Split:
    return Split(measure=measure, bands=tuple(Band(below=below, values=values) for below, values in bands))


TWO = split((64, {"STEP": 1, "BLOCK": 8}), (None, {"STEP": 5, "BLOCK": 8}))
THREE = split((64, {"STEP": 1, "BLOCK": 8}), (128, {"STEP": 5, "BLOCK": 8}), (None, {"STEP": 3, "BLOCK": 2}))
HEAD = "#include <cstdint>\n#define STEP 1  // tune: 1 3 5\n#define BLOCK 4  // tune: 2 4 8\n"
FORMS = {
    "only a call": "static void run(float* y, int64_t n) { y[0] = STEP * 10 + BLOCK; }\n" + ENTRY + " { run(y, count); }\n",
    "the entry's own body": ENTRY + " {\n    if (count < 1) return;\n    y[0] = STEP * 10 + BLOCK;\n}\n",
    "a template, its numbers named": "template <typename T, int N>\nvoid run(T* y) { y[0] = STEP * N + BLOCK; }\n"
    + ENTRY + " { run<float, 10>(y); }\n",
    "a macro of a macro": "#define SUM (TENS + BLOCK)\n#define TENS (STEP * 10)\nvoid run(float* y) { y[0] = SUM; }\n"
    + ENTRY + " { run(y); }\n",
    "a pragma": "static void run(float* y, int64_t n) {\n    y[0] = BLOCK;\n#pragma omp parallel for if (n >= STEP)\n"
    "    for (int64_t i = 0; i < 1; ++i) y[0] += STEP * 10;\n}\n" + ENTRY + " { run(y, count); }\n",
    "a variable": "int tens = STEP * 10;\nvoid run(float* y) { y[0] = tens + BLOCK; }\n" + ENTRY + " { run(y); }\n",
    "an entry that returns": "void run(float* y) { y[0] = STEP * 10 + BLOCK; }\n" + ENTRY.replace("void", "int") + " { run(y); return 0; }\n",
    "a block of C linkage": "static void run(float* y) { y[0] = STEP * 10 + BLOCK; }\nextern \"C\" {\n"
    + ENTRY.removeprefix('extern "C" ') + " { run(y); y[0] += 0; }\n}\n",
}  # fmt: skip


def call(text: str, folder: Path, *counts: int) -> list[float]:
    """What a source writes to the first element for so many elements of float."""
    (folder / "some.cpp").write_text(text)
    flags = ["-std=c++17", "-O1", "-fopenmp", "-shared", "-fPIC", "-Wall", "-Werror"]
    subprocess.run(["g++", *flags, "-o", folder / "some.so", folder / "some.cpp"], check=True)
    entry = ctypes.CDLL(str(folder / "some.so")).some_float32
    found = []
    for count in counts:
        y = (ctypes.c_float * 1)()
        entry(y, ctypes.c_int64(count))
        found.append(y[0])
    return found


@pytest.mark.parametrize("form", FORMS)
def test_every_size_runs_with_the_numbers_of_its_band(form: str, tmp_path: Path) -> None:
    new = dispatched(HEAD + FORMS[form], "cpu", SPEC, THREE)
    assert call(new, tmp_path, 1, 15, 16, 31, 32, 10**9) == [18, 18, 58, 58, 32, 32]


def test_thresholds_and_numbers_are_left_open_again() -> None:
    bands = (
        Band(below=64, values={"STEP": 1, "BLOCK": 2}, others=(256, 16)),
        Band(below=None, values={"STEP": 3, "BLOCK": 2}),
    )
    new = dispatched(HEAD + FORMS["only a call"], "cpu", SPEC, Split(measure=BYTES, bands=bands))
    assert {t.name: t.choices for t in tunables(new)} == {
        "SMALL_BELOW": (16, 64, 256), "STEP_SMALL": (1, 3, 5), "STEP": (1, 3, 5), "BLOCK": (2, 4, 8),
    }  # fmt: skip
    again = split(
        (64, {t.name: t.choices[0] for t in tunables(new)}), (None, {t.name: t.choices[-1] for t in tunables(new)})
    )
    with pytest.raises(Unsupported):
        dispatched(new, "cpu", SPEC, again)


@pytest.mark.parametrize(
    "text",
    [
        "void run(float* y) { y[0] = STEP; }\n" + ENTRY.replace("y, int64_t count", ", int64_t") + " { }\n",
        "void run(float* y) { y[0] = STEP; }\n" + ENTRY + " { y[0] = 1; }\n",
        "void run(float* y) { y[0] = STEP; }\n" + ENTRY.replace(", int64_t count", "") + " { run(y); }\n",
    ],
    ids=["nameless", "unused", "no size"],
)
def test_what_it_does_not_understand_is_refused(text: str) -> None:
    with pytest.raises(Unsupported):
        dispatched(HEAD + text, "cpu", SPEC, TWO)


@pytest.mark.slow
def test_what_came_back_by_size_is_not_planned_again() -> None:
    """Its source reads otherwise than the plan's, so it is known by the plan."""
    kernel = catalog.load("silu_and_mul")
    root = kernel.baseline("cuda", "extracted")[1].read_text()
    facts = Facts(spec=kernel.spec, device=H200)
    packed = apply_step("vectorize", root, facts)
    assert packed is not None
    spread = apply_step("grid_stride", packed, facts)
    assert spread is not None
    numbers = tunables(spread)
    first, last = ({t.name: t.choices[end] for t in numbers} for end in (0, -1))
    by = Measure(sizes=("tokens", "hidden"), tensor="out")
    by_size = dispatched(spread, "cuda", kernel.spec, split((1 << 16, first), (None, last), measure=by))

    def attempt(steps: tuple[str, ...], candidate: str, speedup: float) -> Attempt:
        plan = Plan(id="+".join(steps), title="", steps=steps, base=digest(root))
        return Attempt(round=1, plan=plan, candidate=digest(candidate), outcome="PASSED", speedup=speedup)

    request = PlannerRequest(
        spec=kernel.spec, device=H200, finding=Finding(bound="latency", summary="slow"), incumbent=digest(packed),
        source=packed, sources={digest(text): text for text in (root, packed, by_size)}, width=30, round=3,
        attempts=(attempt(("vectorize",), packed, 3.0), attempt(("vectorize", "grid_stride"), by_size, 2.0)),
    )  # fmt: skip
    plans = RulesPolicy().planner(request)
    assert len(plans) == 30
    assert (digest(packed), ("grid_stride",)) not in {(plan.base, plan.steps) for plan in plans}
