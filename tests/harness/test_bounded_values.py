"""Inputs that bound each other: where runs begin, and places below another input's value. Every draw of the one fits the
draw of the other that it is called with, in checks, in timed calls, and at the sizes that a tester thinks of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from harness.checks.cases import make_case
from harness.checks.drawing import draw
from harness.checks.layout import Layout
from harness.device import ArgumentBuffers, generator
from harness.evaluate import Evaluator
from harness.export import dropin
from harness.judge.staging import _values
from harness.store import Store
from harness.timing.mixtures import copies_together, group_persistent
from harness.timing.neighbours import InputProducer
from kernels import catalog
from kernels.spec import Spec, Tensor, Workload

SPEC = """\
from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="paged_sum",
    summary="Sum of some places of each sequence, which lie one behind another in `cache`; bags begin at `starts`.",
    axes=("rows", "picks", "room"),
    dtypes=("float32",),
    arguments=(
        Tensor(name="cache", role="input", shape=("rows * room",)),
        Tensor(name="lengths", role="input", shape=("rows",), dtype="int32", values=("integers:1:9",), constant=True),
        Tensor(name="places", role="input", shape=("rows", "picks"), dtype="int64", values=("below:lengths",), constant=True),
        Tensor(name="starts", role="input", shape=("rows",), dtype="int64", values=("starts:picks",), constant=True),
        Tensor(name="out", role="output", shape=("rows",)),
        Size(name="rows"), Size(name="picks"), Size(name="room"),
    ),
    workloads=(Workload(axes={"rows": 64, "picks": 16, "room": 8}, dtype="float32"),),
)
"""
REFERENCE = """\
import torch


def reference(cache, lengths, places, starts):
    rows, picks = places.shape
    assert bool((places >= 0).all()) and bool((places < lengths[:, None]).all())
    assert bool((starts.diff() >= 0).all()) and int(starts[0]) == 0 and int(starts[-1]) <= picks
    ends = torch.cat([starts[1:], starts.new_tensor([picks])])
    at = torch.arange(picks, device=cache.device)
    inside = (at >= starts[:, None]) & (at < ends[:, None])
    picked = cache.view(rows, -1).gather(1, places)
    return {"out": (picked * inside).sum(1)}
"""
BASELINE = """\
#include <cstdint>
#include <cstdlib>
extern "C" void paged_sum(const float* cache, const int32_t* lengths, const int64_t* places, const int64_t* starts,
                          float* out, int64_t rows, int64_t picks, int64_t room) {
    for (int64_t r = 0; r < rows; ++r) {
        float sum = 0;
        int64_t end = r + 1 < rows ? starts[r + 1] : picks;
        if (starts[r] < 0 || end > picks || end < starts[r]) abort();
        for (int64_t k = starts[r]; k < end; ++k) {
            if (places[r * picks + k] < 0 || places[r * picks + k] >= lengths[r]) abort();
            sum += cache[r * room + places[r * picks + k]];
        }
        out[r] = sum;
    }
}
"""


@pytest.fixture
def kernel(tmp_path: Path) -> catalog.Kernel:
    folder = tmp_path / "paged_sum"
    folder.mkdir()
    for name, text in (("spec.py", SPEC), ("reference.py", REFERENCE), ("baseline.cpp", BASELINE)):
        (folder / name).write_text(text)
    return catalog.load(str(folder))


def fits(inputs: dict[str, torch.Tensor]) -> bool:
    lengths, places = inputs["lengths"], inputs["places"]
    return bool((places >= 0).all()) and bool((places < lengths[:, None]).all())


def test_every_value_below_the_bound_is_drawn() -> None:
    rng, workload = torch.Generator().manual_seed(1), Workload(axes={"n": 1}, dtype="int32")
    places = torch.empty((4, 4000), dtype=torch.int32)
    draw(places, "below:bound", workload, rng, torch.tensor([1, 3, 0, 7]))
    assert [sorted(set(row.tolist())) for row in places] == [[0], [0, 1, 2], [0], [0, 1, 2, 3, 4, 5, 6]]
    draw(places, "below:bound", workload, rng, torch.tensor([2]))
    assert places.unique().tolist() == [0, 1]
    starts = torch.empty(100, dtype=torch.int64)
    draw(starts, "starts:n", Workload(axes={"n": 5000}, dtype="int32"), rng)
    assert int(starts[0]) == 0 and int(starts.diff().min()) >= 0 and 1000 < int(starts[-1]) <= 5000


def test_what_is_drawn_for_a_check_fits(kernel: catalog.Kernel) -> None:
    (workload,) = kernel.spec.workloads
    assert all(fits(make_case(kernel, workload, values, {}, "cpu").inputs) for values in ("ordinary", "large"))
    drawn = _values(kernel.spec, kernel.spec.inputs[2], workload, "cpu", torch.tensor([5, 2, 9]))
    assert drawn.unique().tolist() == [0, 1], "a tool's inputs may be cut, so they lie below the least"
    assert dropin.inputs(kernel.spec)[2]["draw"] == "below(found['lengths'], shape, generator)"


def test_timed_calls_get_draws_that_fit_each_other(kernel: catalog.Kernel) -> None:
    spec, (workload,) = kernel.spec, kernel.spec.workloads
    copies = copies_together(spec, {"lengths": 3, "places": 2, "starts": 4})
    assert copies == {"lengths": 2, "places": 2, "starts": 4}
    assert [[tensor.name for tensor in group] for group in group_persistent(spec)] == [
        ["lengths", "places"],
        ["starts"],
    ]
    layout = Layout(spec, workload, 5, copies)
    production, buffers = InputProducer(spec, workload, layout, "cpu", 0), ArgumentBuffers("cpu", layout.size)
    try:
        production.open(buffers, generator("cpu"))
        production.produce(list(range(5)))
        before = [production.inputs(slot)["lengths"].clone() for slot in range(2)]
        for _ in range(60):
            production.produce(list(range(5)))
            production.renew()
            assert all(fits(production.inputs(slot)) for slot in range(5))
        after = [production.inputs(slot)["lengths"] for slot in range(2)]
        assert not any(torch.equal(one, other) for one, other in zip(before, after, strict=True)), "nothing was redrawn"
    finally:
        del production
        buffers.close()


def test_a_testers_sizes_do_not_crash_the_baseline(kernel: catalog.Kernel, tmp_path: Path) -> None:
    sizes = (
        {"rows": 1, "picks": 1, "room": 8},
        {"rows": 3, "picks": 77, "room": 9},
        {"rows": 500, "picks": 2, "room": 8},
    )
    with Evaluator(kernel, "cpu", Store((tmp_path / "store").resolve())) as evaluator:
        evaluator.extend(tuple(Workload(axes=axes, dtype="float32", timed=False) for axes in sizes), {})
        verdict = evaluator.verify(evaluator.build(evaluator.store.put(BASELINE)))
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"places": {"values": ("below:nothing",)}}, "which is no input that stands before it"),
        ({"places": {"values": ("below:out",)}}, "which is no input that stands before it"),
        ({"places": {"constant": False}}, "both must be constant"),
        ({"lengths": {"constant": False}}, "both must be constant"),
        ({"places": {"values": ("below:lengths", "ordinary")}}, "its only distribution"),
        ({"lengths": {"dtype": "float32", "values": ("ordinary",)}}, "so lengths must be of an integer dtype"),
        ({"lengths": {"shape": ("picks",)}}, "whose shape must be"),
        ({"starts": {"values": ("starts:places",)}}, "which is no axis"),
    ],
)  # fmt: skip
def test_a_spec_that_cannot_be_drawn_is_refused(
    kernel: catalog.Kernel, changed: dict[str, Any], complaint: str
) -> None:
    arguments = [
        one.model_dump() | changed.get(one.name, {}) if isinstance(one, Tensor) else one.model_dump()
        for one in kernel.spec.arguments
    ]
    with pytest.raises(ValidationError) as caught:
        Spec.model_validate({**kernel.spec.model_dump(), "arguments": arguments})
    assert complaint in str(caught.value)
