"""Sizes that nobody listed: many rows, other widths, other dtypes; none where sizes may depend on each other."""

from __future__ import annotations

import pytest

from harness.checks import crossings as crossings_module
from harness.checks.cases import make_case
from harness.checks.crossings import FEW_ROWS, MOST_BYTES, crossings
from harness.checks.drawing import distributions
from harness.problems.degenerate import holes
from kernels import catalog
from kernels.catalog import Kernel
from kernels.spec import Size, Spec, Tensor, Workload

pytestmark = pytest.mark.usefixtures("whole_checks")


def spec_of(values: tuple[str, ...], *sizes: tuple[int, int]) -> Spec:
    return Spec(
        name="some", summary="some", axes=("n", "m"), dtypes=("float16", "float32"),
        arguments=(
            Tensor(name="x", role="input", shape=("n", "m"), values=values), Size(name="n"), Size(name="m"),
            Tensor(name="y", role="output", shape=("n", "m")),
        ),
        workloads=tuple(Workload(axes={"n": n, "m": m}, dtype="float32") for n, m in sizes),
    )  # fmt: skip


def test_what_listed_sizes_leave_open_is_crossed():
    spec = spec_of(("ordinary",), (4, 64), (1000, 32), (7, 256))
    found = crossings(spec, "cpu", spec.dtypes)
    assert not {one.label for one in found} & {one.label for one in spec.workloads}
    assert any(one.dtype == "float16" and one.axes["n"] >= 100 for one in found), "16 bits with the largest sizes"
    assert any(one.axes["n"] == 999 for one in found), "many rows, an odd number"
    assert any(one.axes["m"] == 256 + 32 for one in found), "wider than any listed, by what all widths share"
    assert all(any(one.axes["n"] == few for one in found) for few in FEW_ROWS if few not in (4, 7)), "remainders"
    (beyond,) = [one for one in found if one.axes["n"] > 65_535]
    assert beyond.axes["m"] == 32, "as narrow as widths may be"
    moved = [spec.read_bytes(one) + spec.write_bytes(one) for one in found if one is not beyond]
    assert all(not one.timed for one in found) and max(moved) <= MOST_BYTES["cpu"]


def test_many_rows_meet_a_large_odd_width(monkeypatch: pytest.MonkeyPatch):
    """A source that was wrong from 600 rows on where the width was odd and above 900 had passed: odd widths came with few rows, many rows with even ones."""
    spec, met = catalog.load("silu_and_mul").spec, set[tuple[bool, bool]]()
    for bits in (0, 0b10101010, 255):
        monkeypatch.setattr(crossings_module, "DRAWN", bytes([bits] * 40))
        found = [one.axes for one in crossings(spec, "cpu", spec.dtypes)]
        odd = [
            axes
            for axes in found
            if axes["hidden"] % 2 and axes["tokens"] % 2 and axes["hidden"] * axes["tokens"] > 300_000
        ]
        met |= {(axes["tokens"] > 600, axes["hidden"] > 900) for axes in odd if axes["tokens"] < 60_000}
    assert {(True, True), (False, True)} <= met


def test_rows_that_come_in_groups_go_beyond_65535_in_whole_groups():
    spec = spec_of(("ordinary",), (6, 64), (30, 32))
    assert [one.axes["n"] for one in crossings(spec, "cpu", spec.dtypes) if one.axes["n"] > 65_535] == [65_538]


def test_each_remainder_of_a_width_meets_an_odd_and_an_even_number_of_rows():
    """A source that is wrong for an even number of rows whose width leaves 5 had passed: widths were crossed with one number of rows."""
    spec = spec_of(("ordinary",), (5, 33), (1001, 34))
    found = [one.axes for one in crossings(spec, "cpu", spec.dtypes) if one.axes["n"] in FEW_ROWS]
    pairs = {(axes["n"] % 2, (axes["m"] - 33) % 16) for axes in found}
    assert {(parity, more) for parity in (0, 1) for more in range(1, 16)} <= pairs


def test_widths_have_remainders_of_long_loops_that_nobody_knows_before(monkeypatch: pytest.MonkeyPatch):
    """A loop of 64 whose tail of up to 31 was wrong had passed: sixteen widths one after another are all that followed the smallest."""
    spec, widths = catalog.load("silu_and_mul").spec, list[set[int]]()
    for drawn in (bytes(40), bytes(range(40))):
        monkeypatch.setattr(crossings_module, "DRAWN", drawn)
        found = crossings(spec, "cpu", spec.dtypes)
        widths.append(
            {one.axes["hidden"] for one in found if one.axes["tokens"] in FEW_ROWS and one.axes["hidden"] < 1000}
        )
    assert {width % 16 for width in widths[0]} == {width % 16 for width in widths[1]} == set(range(16))
    assert len({width % 64 for width in widths[0]}) < 20 and len({width % 64 for width in widths[1]}) > 20


def test_held_out_sizes_are_crossed_only_where_they_are_asked_for():
    spec = catalog.load("silu_and_mul").spec
    widest = {
        held_out: max(one.axes["hidden"] for one in crossings(spec, "cpu", spec.dtypes, held_out=held_out))
        for held_out in (False, True)
    }
    assert widest[False] < 6144 < widest[True], "6144 is held out"


def test_sizes_that_may_depend_on_each_other_are_not_crossed():
    for name in ("relabel", "sample_neighbors", "gather_mean"):
        spec = catalog.load(name).spec
        assert not crossings(spec, "cpu", spec.dtypes)


def test_every_distribution_is_drawn_and_the_first_is_timed():
    assert distributions(spec_of(("range:0.1:0.9", "zeros"), (4, 4)), {}) == ["range:0.1:0.9", "zeros"]
    assert distributions(spec_of(("integers:0:9", "ordinary", "zeros"), (4, 4)), {})[0] == "integers:0:9"
    assert distributions(spec_of(("zeros",), (4, 4)), {"x": ("range:-1:1",)}) == ["zeros", "range:-1:1"]
    spec = catalog.load("merge_attn_states_lse").spec
    assert {value for tensor in spec.inputs for value in tensor.values} == {
        value
        for tensor in spec.inputs
        for value in tensor.values
        if value in (*distributions(spec, {}), "range:-10:10")
    }


def said(tmp_path, values: tuple[str, ...], formula: str) -> str:
    (tmp_path / "reference.py").write_text(f"def reference(x):\n    return {{'y': {formula}}}\n")
    kernel = Kernel(spec_of(values, (8, 16)), tmp_path)
    workload = kernel.spec.workloads[0]
    return "; ".join(
        holes(kernel.spec, [make_case(kernel, workload, one, {}, "cpu") for one in distributions(kernel.spec, {})])
    )


def test_what_no_distribution_shows_is_said(tmp_path):
    for at, (values, formula, word) in enumerate((
        (("uniform",), "x.relu()", "both signs"),
        (("normal:3:0",), "x * 2", "more than one value"),
        (("range:0.1:0.9",), "(x > 2).to(x.dtype)", "a constant would do"),
        (("range:-0.9:-0.1", "range:0.1:0.9"), "x.clamp(-1, 1)", "a copy would do"),
    )):  # fmt: skip
        folder = tmp_path / str(at)
        folder.mkdir()
        assert word in said(folder, values, formula)
    (tmp_path / "sound").mkdir()
    assert not said(tmp_path / "sound", ("ordinary", "large"), "x.relu()")
