"""The gate that gives rows that packs do not fit back to the source: what it measures, what it writes, and when it lets it be."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.evaluate import Evaluator
from harness.judge.quick import Quick
from harness.records import Interval, Outcome, Timing
from harness.store import Store
from harness.timing.comparison import compare
from kernels import catalog
from kernels.spec import Size, Spec, Tensor, Workload
from nodes import fallback as gate
from nodes.fallback import beside_the_source, fallback
from nodes.rewrites.specialize.uneven import longer, remainders, row_axis, slower
from nodes.rewrites.specialize.version import Uneven, Version
from nodes.rewrites.syntax.source import Unsupported
from nodes.state import Incumbent, State, Stop
from tests.graph.doubles import BASELINE, PaperEvaluator, settings

MARGIN = 0.01


# --- for which rows -------------------------------------------------------------------------------------------------


SPEC = Spec(
    name="some",
    summary="an operation with rows of pairs",
    axes=("rows", "pairs"),
    dtypes=("float16", "bfloat16"),
    arguments=(
        Tensor(name="bias", role="input", shape=("2*pairs",)),
        Tensor(name="out", role="output", shape=("rows", "2*pairs")),
        Size(name="rows"),
        Size(name="pairs"),
    ),
    workloads=tuple(Workload(axes={"rows": rows, "pairs": 1024}, dtype="float16") for rows in (16, 512, 8192)),
)


def test_longer_rows_leave_what_they_are_asked_to() -> None:
    (workload, *_), axis = SPEC.workloads, row_axis(SPEC, SPEC.workloads[-1])
    assert axis == "pairs" and remainders(SPEC) == (1, 2, 4)
    assert remainders(SPEC.model_copy(update={"dtypes": ("float32",)})) == (1, 2)
    assert [longer(workload, axis, one).axes["pairs"] for one in remainders(SPEC)] == [1025, 1026, 1028]
    odd = longer(workload, axis, 1)
    assert [longer(odd, axis, one).axes["pairs"] for one in remainders(SPEC)] == [1027, 1026, 1028]
    fixed = Tensor(name="out", role="output", shape=("rows", "128"))
    assert row_axis(SPEC.model_copy(update={"arguments": (fixed,)}), workload) is None


def timings(speedups: dict[int, tuple[float, ...]], noise: float = 0.002) -> list[Timing]:
    """remainder -> speedup over the source of each size, smallest first; 0 are the sizes that the spec names."""
    found = []
    for remainder, each in speedups.items():
        for workload, value in zip(SPEC.workloads, each, strict=True):
            at = longer(workload, "pairs", remainder) if remainder else workload
            interval = Interval(median=value, low=value * (1 - noise), high=value * (1 + noise))
            found.append(
                Timing(
                    workload=at, cache="cold", baseline_us=9.0, time_us=9.0 / value, speedup=interval,
                    comparison=compare(interval, MARGIN), samples=7,
                )
            )  # fmt: skip
    return found


@pytest.mark.parametrize(
    ("speedups", "condition"),
    [
        ({0: (2, 2, 2), 1: (1, 1.3, 2)}, ""),
        ({0: (2, 2, 2), 1: (0.7, 0.8, 0.9)}, "pairs % 2 != 0"),
        ({0: (0.9, 2, 2), 1: (0.995, 1, 1.1)}, ""),  # at the named sizes it is no business of this gate
        ({0: (2, 2, 2), 1: (0.6, 1.3, 1.6)}, "pairs % 2 != 0 && rows < 96"),
        ({0: (2, 2, 2), 1: (1.4, 1.3, 0.7)}, "pairs % 2 != 0 && rows >= 2048"),
        ({0: (2, 2, 2), 1: (0.7, 0.8, 0.9), 2: (0.7, 0.8, 0.9), 4: (1.5, 1.5, 1.5)}, "pairs % 4 != 0"),
        ({0: (2, 2, 2), 1: (0.7, 0.8, 0.9), 2: (1, 1, 1), 4: (1, 1, 1)}, "pairs % 2 != 0"),
        ({0: (2, 2, 2), 2: (0.7, 0.8, 0.9)}, "pairs % 4 != 0"),  # rows of pairs of pairs: there is no odd one
        ({0: (2, 2, 2), 1: (1, 0.995, 0.99)}, ""),
    ],
)
def test_the_source_gets_the_uneven_sizes_at_which_it_is_clearly_faster(
    speedups: dict[int, tuple[float, ...]], condition: str
) -> None:
    version = slower(SPEC, "pairs", timings(speedups), MARGIN)
    said = version.condition({}) if version else ""
    rows = said.replace("sizeof(*out) * rows * pairs", "rows")
    assert rows.split(" && ")[0] == condition.split(" && ")[0]
    assert version is None or version.takes(SPEC, longer(SPEC.workloads[0], "pairs", 1)) == (">=" not in condition)
    assert version is None or ("&&" in said) == ("&&" in condition)


def test_what_is_noise_is_no_reason() -> None:
    assert slower(SPEC, "pairs", timings({1: (0.96, 0.98, 0.97)}, noise=0.2), MARGIN) is None


def test_a_version_says_its_condition_in_the_words_of_the_entry_point() -> None:
    version = Version(candidate="", dtypes=("float16",), uneven=Uneven(size="pairs", by=4))
    assert version.condition({"pairs": "n"}) == "n % 4 != 0" and version.asked == {"pairs"}
    assert version.said(SPEC) == "float16 with pairs % 4 != 0"
    takes = [version.takes(SPEC, longer(SPEC.workloads[0], "pairs", one)) for one in (1, 2, 4)]
    assert takes == [True, True, False]
    assert not version.takes(SPEC, longer(SPEC.workloads[0], "pairs", 1).model_copy(update={"dtype": "bfloat16"}))


# --- on this machine ------------------------------------------------------------------------------------------------

SPEC_TEXT = """
from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="scale",
    summary="out = 2 * x",
    axes=("rows", "columns"),
    dtypes=("float32",),
    arguments=(
        Tensor(name="x", role="input", shape=("rows", "columns"), values=("ordinary",)),
        Tensor(name="out", role="output", shape=("rows", "columns")),
        Size(name="rows"),
        Size(name="columns"),
    ),
    workloads=(
        Workload(axes={"rows": 4, "columns": 1024}, dtype="float32"),
    ),
)
"""
REFERENCE = "def reference(x):\n    return {'out': 2 * x}\n"
SOURCE = """\
#include <cstdint>
static float twice(float x) { return 2 * x; }
extern "C" void scale(const float* x, float* out, int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows * columns; ++i) {
    asm volatile("" ::: "memory");  // as slow as a loop that nothing is known of
    out[i] = twice(x[i]);
  }
}
"""
WINNER = """\
#include <cstdint>
extern "C" void scale(const float* x, float* out, int64_t rows, int64_t n) {
  if (n % 4 == 0) {
    for (int64_t i = 0; i < rows * n; ++i) out[i] = 2 * x[i];
    return;
  }
  for (int64_t i = 0; i < rows * n; ++i) {
    for (volatile int wait = 0; wait < 32;) wait = wait + 1;
    out[i] = 2 * x[i];
  }
}
"""


@pytest.fixture
def evaluator(tmp_path: Path) -> Iterator[Evaluator]:
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    folder = tmp_path / "scale"
    folder.mkdir()
    (folder / "spec.py").write_text(SPEC_TEXT)
    (folder / "reference.py").write_text(REFERENCE)
    (folder / "baseline.cpp").write_text(SOURCE)
    with Evaluator(catalog.load(str(folder)), "cpu", Store(tmp_path / "store")) as made:
        yield made


def test_a_winner_that_loses_at_uneven_rows_takes_the_sources_own_launch_there(evaluator: Evaluator) -> None:
    """Both are right at all sizes then, and both forms were called: whether it is kept is a question of noise, on paper below."""
    source, winner = evaluator.store.put(SOURCE), evaluator.store.put(WINNER)
    found = beside_the_source(evaluator, evaluator.verify(evaluator.build(winner)), source)
    assert found is not None
    candidate, version, cases = found
    assert version.candidate == source and version.said(evaluator.spec) == "columns % 4 != 0"
    text = evaluator.store.get(candidate)
    assert "if (n % 4 != 0) {\n    scale_uneven(x, out, rows, n);\n    return;" in text
    assert "static void scale_uneven(const float* x" in text and "twice" in text
    assert {workload.axes["columns"] for workload, _ in cases} == {1025, 1026}
    assert evaluator.verify(evaluator.build(candidate)).passed


# --- on paper -------------------------------------------------------------------------------------------------------


class Paper(PaperEvaluator):
    """One whose comparisons at longer rows end as they are told to."""

    again: Any = None

    def compare_briefly(self, build: Any, rivals: dict[str, str], cases: Any = ()) -> Quick:
        if isinstance(self.again, Exception):
            raise self.again
        return self.again if self.again is not None else super().compare_briefly(build, rivals, cases)


def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, again: Any = None, **of: Any) -> dict:
    store = Store(tmp_path / "store")
    evaluator = Paper(store, tmp_path / "log")
    evaluator.again = again
    source, winner, both = store.put(BASELINE), store.put("speed 1.3\nthe winner"), store.put(text)
    first = evaluator.measure(evaluator.verify(evaluator.build(winner)), baseline=source)
    version = Version(candidate=source, dtypes=("float32",), uneven=Uneven(size="n", by=2))
    cases = [(longer(evaluator.suite()[0], "n", 1), "cold")]
    monkeypatch.setattr(gate, "beside_the_source", lambda *_: (both, version, cases))
    state = State(settings=settings(), round=1, attempts=[], incumbent=Incumbent(candidate=winner, verdict=first))
    state |= of  # type: ignore[typeddict-item]
    context = SimpleNamespace(evaluator=evaluator, say=lambda *_: None)
    return fallback(state, SimpleNamespace(context=context))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("speed 1.3\nboth", ""),
        ("speed 1.4", ""),
        ("compile error", "no such thing"),
        ("speed 1.3\nincorrect", "9 times the tolerance"),
        ("speed 1.2", "slower than the winner: 0.923x"),
        ("speed 1.9\nagainst 0.9", "slower than the baseline on float32 n=4096"),
    ],
)
def test_both_in_one_file_take_the_winners_place_where_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, reason: str
) -> None:
    update = judged(tmp_path, monkeypatch, text)
    (attempt,) = update["attempts"]
    assert reason in attempt.reason and bool(attempt.reason) == bool(reason)
    assert attempt.accepted == ("incumbent" in update) == (not reason)


def test_it_must_not_be_slower_than_the_source_where_it_is_said_to_be_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (slow,) = timings({1: (0.8, 1, 1)})[:1]
    update = judged(tmp_path, monkeypatch, "speed 1.3\nboth", Quick(timings=(slow,)))
    assert "incumbent" not in update and "with its own launch, too" in update["attempts"][0].reason


@pytest.mark.parametrize("again", [Quick(outcome=Outcome.INCORRECT, reason="odd"), RuntimeError("the source crashed")])
def test_one_that_fails_at_uneven_rows_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: Any
) -> None:
    update = judged(tmp_path, monkeypatch, "speed 1.3\nboth", again)
    assert "incumbent" not in update and not update["attempts"][0].accepted


def test_nothing_is_asked_without_a_winner_or_without_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert judged(tmp_path, monkeypatch, "speed 1.3\nboth", stop=Stop.SECONDS) == {}
    assert judged(tmp_path, monkeypatch, "speed 1.3\nboth", settings=settings(kernel="level1/1_A.py")) == {}
    baseline = Incumbent(candidate=settings().source, verdict=PaperEvaluator(Store(tmp_path), tmp_path / "l").verify(
        PaperEvaluator(Store(tmp_path), tmp_path / "l").build(Store(tmp_path).put(BASELINE))))  # fmt: skip
    assert judged(tmp_path, monkeypatch, "speed 1.3\nboth", incumbent=baseline) == {}


@pytest.mark.parametrize("speed", [0.7, 1.3])
def test_one_contest_is_enough_where_nothing_is_lost(tmp_path: Path, speed: float) -> None:
    text = 'extern "C" void twice(const float* x, float* y, long n) { y[0] = %s * x[0]; }\n'
    store = Store(tmp_path / "store")
    evaluator = PaperEvaluator(store, tmp_path / "log")
    winner = evaluator.verify(evaluator.build(store.put(f"/*\nspeed {speed}\n*/\n{text % 2}")))
    found = beside_the_source(evaluator, winner, store.put(text % 3))  # type: ignore[arg-type]
    assert evaluator.log.read_text().count("contend") == (2 if speed < 1 else 1), (
        "the other remainders only where it is slower"
    )
    assert (found is None) == (speed > 1)
    if found is not None:
        candidate, version, cases = found
        assert "if (n % 4 != 0)" in store.get(candidate) and version.condition({}) == "n % 4 != 0"
        assert cases == [(longer(one, "n", left), "cold") for left in (1, 2) for one in evaluator.suite()]


def test_texts_that_do_not_go_together_cost_no_contest(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    evaluator = PaperEvaluator(store, tmp_path / "log")
    verdict = evaluator.verify(evaluator.build(store.put("speed 1.3")))
    with pytest.raises(Unsupported):
        beside_the_source(evaluator, verdict, store.put(BASELINE))  # type: ignore[arg-type]
    assert "contend" not in evaluator.log.read_text()
