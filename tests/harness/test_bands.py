from __future__ import annotations

import math
import random
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from harness.judge.bands import Band, Measure, Split, between, confirm, measures, propose
from harness.judge.search import _Proposals, search, spread_evenly
from harness.judge.tunables import Tunable
from harness.judge.variants import measure_ratios
from harness.records import Outcome
from harness.timing.interleaved import ArmFailure
from kernels.spec import Size, Spec, Tensor, Workload

SIZES = ((16, 4096), (32, 4096), (64, 8192), (256, 2048), (1024, 8192), (4096, 8192), (8192, 14336))


def at(rows: int, length: int, dtype: str = "float16") -> Workload:
    return Workload(axes={"rows": rows, "length": length}, dtype=dtype)  # type: ignore[arg-type]


SPEC = Spec(
    name="some",
    summary="a kernel with two sizes",
    axes=("rows", "length"),
    dtypes=("float16", "float32"),
    arguments=(
        Tensor(name="x", role="input", shape=("rows", "2*length")),
        Tensor(name="out", role="output", shape=("rows", "length")),
        Size(name="rows"),
        Size(name="length"),
    ),
    workloads=tuple(at(*size) for size in SIZES),
)
THREADS = Tunable(name="THREADS", value=256, choices=(64, 128, 256, 512))
STEPS = Tunable(name="STEPS", value=1, choices=(1, 2, 4))
WIDE = tuple(Tunable(name=f"N{i}", value=2, choices=(1, 2, 4, 8)) for i in range(4))


def timed(cost, noise: float = 0.003, seed: int = 0):
    """Measures variants of a source by `cost(values, workload)` with noise; the source came with `THREADS` and so on."""
    rng = random.Random(seed)

    def measure(evaluator, source, variants, cases, blocks):
        def ratios(values):
            if cost(values, cases[0][0]) is None:
                return None
            return [
                [
                    cost(evaluator.start, workload) / cost(values, workload) * math.exp(rng.gauss(0, noise))
                    for _ in range(blocks)
                ]
                for workload, *_ in cases
            ]

        return [ratios(values) for values in variants]

    return measure


def searched(
    cost, open_=(THREADS, STEPS), noise: float = 0.003, seed: int = 0, device: str = "cuda", of=timed, devices: int = 1
):
    evaluator = SimpleNamespace(
        spec=SPEC,
        device=device,
        builds_apart=False,
        suite=lambda: SPEC.workloads,
        caches=lambda workload: ("cold",),
        moved_bytes=lambda workload: SPEC.read_bytes(workload) + SPEC.write_bytes(workload),
        say=lambda text: None,
        start={tunable.name: tunable.value for tunable in open_},
    )
    lines = (f"#define {t.name} {t.value}  // tune: {' '.join(map(str, t.choices))}" for t in open_)
    return search(evaluator, "\n".join(lines), 60.0, of(cost, noise, seed), lambda: devices)  # type: ignore[arg-type]


def far(value: int, best: int) -> float:
    return 1 + 0.1 * abs(math.log2(value / best))


def test_one_choice_where_it_suits_all():
    found = searched(lambda values, workload: far(values["THREADS"], 128) * far(values["STEPS"], 1))
    assert found.values == {"THREADS": 128, "STEPS": 1} and found.split is None


def test_the_best_that_differs_in_one_number_is_found_by_itself():
    for best in ((512, 1), (64, 1), (256, 4)):
        found = searched(lambda values, _workload: 1.0 if (values["THREADS"], values["STEPS"]) == best else 1.5)  # noqa: B023
        assert found.values == {"THREADS": best[0], "STEPS": best[1]}


def test_numbers_that_gain_together_are_found_where_each_gains_a_little():
    found = searched(lambda values, _workload: far(values["THREADS"], 512) * far(values["STEPS"], 4))
    assert found.values == {"THREADS": 512, "STEPS": 4}


def test_a_search_ends_where_no_single_change_gains():
    found = searched(lambda values, _workload: math.prod(far(values[tunable.name], 2) for tunable in WIDE), WIDE)
    assert found.tried == 12 and "12 of 255" in found.reason
    fast_again = searched(lambda values, _workload: far(values["N0"], 8) * far(values["N1"], 8), WIDE)
    assert fast_again.values["N0"] == fast_again.values["N1"] == 8


def test_several_devices_measure_the_starts_neighbours_then_a_batch_each_and_the_last_few_with_it(monkeypatch):
    monkeypatch.setattr("harness.judge.search.batch_size", lambda: 8)
    three = (
        *(Tunable(name=f"N{i}", value=4, choices=(1, 2, 4)) for i in range(3)),
        THREADS,
    )  # 108, nine beside the start

    def sizes(devices: int, open_=three) -> list[int]:
        asked = []

        def counted(*words):
            measure = timed(*words)
            return lambda *told: asked.append(len(told[2])) or measure(*told)

        cost = lambda values, _workload: math.prod(far(values[t.name], 1) for t in open_[:3])  # noqa: E731
        found = searched(cost, open_, of=counted, devices=devices)
        assert all(found.values[t.name] == 1 for t in open_[:3])
        return asked

    wide, one = sizes(4), sizes(1)
    assert wide[:2] == [9, 32] and one[:3] == [8, 8, 8]
    small = (*three[:2], Tunable(name="N2", value=4, choices=(1, 4)), STEPS)  # 54
    assert sizes(5, small)[:2] == [8, 45]


def test_the_cases_of_a_search_arespread_from_the_first_to_the_last():
    assert spread_evenly(list("abcdefghi"), 3) == ["a", "e", "i"]
    assert spread_evenly(list("abcdefghi"), 8) == list("abcdfghi") and spread_evenly(list("ab"), 2) == ["a", "b"]


SIDES = "#define THREADS 256  // tune: 64 128 256\n"


class Bench:
    """As much of an evaluator as measures variants: `wrong` ones do not compile, `late` fail while they are timed, so often."""

    device = "cpu"

    def __init__(self, wrong: tuple[int, ...] = (), late: dict[int, int] | None = None) -> None:
        self.wrong, self.late, self.contests = wrong, dict(late or {}), 0
        self.store, self.ended = SimpleNamespace(put=lambda text: text), []
        self.say = lambda text: None
        self.pool = SimpleNamespace(start=self.start, end=lambda worker: worker.close(), only=lambda _candidate: None)

    def build(self, text: str):
        threads = int(text.split()[2])
        return SimpleNamespace(ok=threads not in self.wrong, threads=threads, resources={})

    def start(self, build):
        return SimpleNamespace(threads=build.threads, close=lambda: self.ended.append(build.threads))

    def suite(self):
        return ()

    def open_comparison(self, *case):
        self.contests += 1

    def run(self, _contest, sides, *, blocks, confirm):
        assert not confirm, "what wins here is measured again before anybody believes it"
        for side in sides:
            if self.late.get(side.worker.threads, 0):
                self.late[side.worker.threads] -= 1
                raise ArmFailure(side.name, Outcome.TIMEOUT, "20 s")
        return SimpleNamespace(ratios={side.name: [256 / side.worker.threads] * blocks[0] for side in sides})


@pytest.mark.parametrize(
    ("bench", "found"),
    [
        (Bench(), {64: 4.0, 128: 2.0}),
        (Bench(wrong=(64,)), {64: None, 128: 2.0}),
        (Bench(late={64: 1}), {64: 4.0, 128: 2.0}),
        (Bench(late={64: 9}), {64: None, 128: 2.0}),
        (Bench(wrong=(256,)), {64: None, 128: None}),
        (Bench(late={256: 9}), {64: None, 128: None}),
    ],
    ids=[
        "all",
        "one does not compile",
        "once by accident",
        "one that fails",
        "the source does not compile",
        "the source",
    ],
)
def test_a_variant_that_fails_leaves_and_without_the_source_there_is_nothing_to_compare_with(bench, found):
    cases = [(at(16, 4096), "cold", "plain"), (at(32, 4096), "cold", "plain")]
    said = measure_ratios(bench, SIDES, [{"THREADS": threads} for threads in found], cases, 3)
    assert said == [None if ratio is None else [[ratio] * 3] * 2 for ratio in found.values()]
    begun = {256, *found} - set(bench.wrong)
    assert begun <= set(bench.ended) and len(bench.ended) >= len(begun), "every process that was begun is ended"


def test_small_and_large_workloads_get_their_own():
    def cost(values, workload):
        large = workload.axes["rows"] * workload.axes["length"] > 2**22
        return far(values["THREADS"], 512 if large else 128) * far(values["STEPS"], 4 if large else 1)

    found = searched(cost)
    assert found.split is not None and found.split.measure == Measure(sizes=("rows", "length"), tensor="out")
    assert [band.values for band in found.split.bands] == [{"STEPS": 1, "THREADS": 128}, {"STEPS": 4, "THREADS": 512}]
    (below,) = [band.below for band in found.split.bands if band.below is not None]
    assert 2 * 256 * 2048 < below <= 2 * 1024 * 8192
    # Sizes that nobody measured fall to a side as well, by their bytes rather than their elements.
    assert found.split.values(SPEC, at(3, 1000)) == {"STEPS": 1, "THREADS": 128}
    assert found.split.values(SPEC, at(100000, 9999)) == {"STEPS": 4, "THREADS": 512}
    assert found.split.values(SPEC, at(1, below // 4 + 1, "float32")) == {"STEPS": 4, "THREADS": 512}


def test_the_axis_that_decides_is_found():
    found = searched(lambda values, workload: far(values["THREADS"], 512 if workload.axes["length"] > 4096 else 64))
    assert found.split is not None and found.split.measure.sizes == ("length",)
    assert [band.below for band in found.split.bands] == [6144, None]
    assert [band.values["THREADS"] for band in found.split.bands] == [64, 512]


def test_three_bands():
    best = {16: 64, 32: 64, 64: 64, 256: 256, 1024: 256, 4096: 64, 8192: 64}
    found = searched(lambda values, workload: far(values["THREADS"], best[workload.axes["rows"]]))
    assert found.split is not None
    assert [band.values["THREADS"] for band in found.split.bands] == [64, 256, 64]


@pytest.mark.parametrize("seed", range(4))
def test_noise_makes_no_bands(seed):
    found = searched(lambda values, workload: 1.0, noise=0.02, seed=seed)
    assert found.split is None


def test_a_gain_below_the_margin_makes_no_bands():
    def cost(values, workload):
        return 1.0 if values["THREADS"] == (512 if workload.axes["rows"] > 500 else 256) else 1.008

    assert searched(cost).split is None


@pytest.mark.parametrize("seed", range(4))
def test_a_winner_by_noise_alone_leaves_the_numbers_as_they_came(seed):
    """Of eleven variants that are all alike one is always the fastest; less than half of the margin is no gain."""
    found = searched(lambda values, workload: 1.0, noise=0.003, seed=seed)
    assert found.values == {"THREADS": 256, "STEPS": 1} and "none" in found.reason
    slightly = searched(lambda values, workload: 1.0 if values["THREADS"] == 64 else 1.003, noise=0.0, seed=seed)
    assert slightly.values == {"THREADS": 256, "STEPS": 1}
    clearly = searched(lambda values, workload: 1.0 if values["THREADS"] == 64 else 1.03, noise=0.0, seed=seed)
    assert clearly.values["THREADS"] == 64


def test_a_large_space_is_searched_for_every_size():
    def cost(values, workload):
        best = 8 if workload.axes["rows"] > 500 else 1
        return math.prod(far(values[tunable.name], best) for tunable in WIDE[:2])

    found = searched(cost, WIDE)
    assert found.split is not None and found.tried > 12
    small, large = (math.prod(far(band.values[t.name], best) for t in WIDE[:2]) for band, best in
                    zip(found.split.bands, (1, 8), strict=True))  # fmt: skip
    assert small < 1.25 and large < 1.25


def test_variants_that_fail_are_not_chosen():
    found = searched(lambda values, workload: None if values["THREADS"] < 256 else far(values["THREADS"], 64))
    assert found.values == {"THREADS": 256, "STEPS": 1} and found.split is None and found.tried == 8


def test_a_band_that_loses_when_it_is_measured_again_falls_to_the_single_choice():
    workloads = [at(*size) for size in SIZES]
    proposal = Measure(sizes=("rows",)), [(0, (("N", 1),)), (4, (("N", 2),))]
    measured = {(("N", 1),): [[1.0] * 9 for _ in workloads], (("N", 2),): [[1.002] * 9 for _ in workloads]}
    assert confirm(SPEC, workloads, proposal, measured, (("N", 1),), 0.01) is None
    measured[("N", 2),] = [[0.5 if rank == 5 else 2.0] * 9 for rank in range(len(workloads))]
    assert confirm(SPEC, workloads, proposal, measured, (("N", 1),), 0.01) is None, "one size is slower"
    measured[("N", 2),] = [[1.2] * 9 for _ in workloads]
    split = confirm(SPEC, workloads, proposal, measured, (("N", 1),), 0.01)
    assert split is not None and split.bands[0] == Band(below=512, values={"N": 1}, others=(128, 2048))


def test_a_variant_that_failed_when_it_was_measured_again_has_no_band():
    workloads = [at(*size) for size in SIZES]
    proposal = Measure(sizes=("rows",)), [(0, (("N", 1),)), (4, (("N", 2),))]
    assert confirm(SPEC, workloads, proposal, {(("N", 1),): [[1.0] * 9] * 7}, (("N", 1),), 0.01) is None


@pytest.mark.parametrize(("cut", "below", "others"), [(1, 24, (48,)), (2, 48, (24, 128)), (6, 6144, (2048,))])
def test_a_threshold_may_be_moved_to_the_gaps_beside_it_where_there_are_any(cut, below, others):
    workloads = [at(*size) for size in SIZES]
    proposal = Measure(sizes=("rows",)), [(0, (("N", 1),)), (cut, (("N", 2),))]
    measured = {(("N", 1),): [[1.0] * 9] * 7, (("N", 2),): [[1.2] * 9] * 7}
    split = confirm(SPEC, workloads, proposal, measured, (("N", 1),), 0.01)
    assert (split.bands[0].below, split.bands[0].others) == (below, others)


def test_a_gap_that_is_another_bands_threshold_is_left_to_it():
    workloads = [at(*size) for size in SIZES]
    proposal = Measure(sizes=("rows",)), [(0, (("N", 2),)), (3, (("N", 1),)), (4, (("N", 2),))]
    measured = {(("N", 1),): [[1.0] * 9] * 7, (("N", 2),): [[1.2] * 9] * 7}
    split = confirm(SPEC, workloads, proposal, measured, (("N", 1),), 0.01)
    first, second, last = split.bands
    assert (first.below, second.below, last.below) == (128, 512, None)
    assert first.others == (48,) and second.others == (2048,) and last.others == ()


@pytest.mark.parametrize(("gain", "split"), [(0.8, False), (1.2, True)])
def test_each_further_band_must_promise_half_a_margin(gain, split):
    """Of two sizes each is faster by `gain` margins with numbers of its own; one choice for both has half of that."""
    ratio = math.exp(gain * 0.01)
    measured = {(("N", 1),): [[1.0] * 3, [ratio] * 3], (("N", 2),): [[ratio] * 3, [1.0] * 3]}
    found = propose(SPEC, [at(16, 4096), at(32, 4096)], measured, 0.01)
    assert (found is not None) == split
    if found is not None:
        assert found[1] == [(0, (("N", 2),)), (1, (("N", 1),))]


@pytest.mark.parametrize(
    ("low", "high", "threshold"),
    [
        (16, 32, 24),
        (100, 400, 192),
        (110, 500, 256),
        (64, 256, 128),
        (7, 8, 8),
        (1, 2, 2),
        (130, 140, 135),
        (4, 1000, 64),
    ],
)
def test_a_threshold_is_a_round_number_between_two_sizes(low, high, threshold):
    """A power of two or one and a half of one, near the middle; where there is none, the middle."""
    assert between(low, high) == threshold


def test_a_measure_is_said_in_the_words_of_the_host():
    names = {"rows": "n", "out": "result"}
    assert Measure(sizes=("rows", "length"), tensor="out").words() == "sizeof(*out) * rows * length"
    assert Measure(sizes=("rows", "length"), tensor="out").words(names) == "sizeof(*result) * n * length"
    assert Measure(sizes=("rows", "length")).words(names) == "1LL * n * length", "two ints would overflow"
    assert Measure(sizes=("length",)).words() == "length"


def test_nothing_to_propose_for_a_single_size():
    measured = {(("N", 1),): [[1.0] * 3], (("N", 2),): [[1.5] * 3]}
    assert propose(SPEC, [at(16, 4096)], measured, 0.01) is None


def test_measures_are_what_the_entry_point_is_given():
    assert measures(SPEC) == (
        Measure(sizes=("rows", "length"), tensor="out"),
        Measure(sizes=("rows",)),
        Measure(sizes=("length",)),
    )
    assert measures(SPEC.model_copy(update={"arguments": SPEC.arguments[:2]})) == ()


def test_bands_that_do_not_ascend_are_refused():
    open_end = Band(below=None, values={})
    for bands in ((open_end, open_end), (Band(below=4, values={}), Band(below=8, values={})),
                  (Band(below=8, values={}), Band(below=4, values={}), open_end)):  # fmt: skip
        with pytest.raises(ValidationError, match="ascend"):
            Split(measure=Measure(sizes=("rows",)), bands=bands)


def test_what_is_built_ahead_is_what_is_asked_for_next() -> None:
    proposals = _Proposals([THREADS, STEPS], 1)
    while proposals.left:
        proposals.ask(3)
        ahead = proposals.next_of(3)
        assert ahead == proposals.ask(3)
