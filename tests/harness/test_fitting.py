"""What a machine cannot judge is refused before anything is drawn, and never left out in silence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness import device
from harness.checks.fitting import explain_left_out, explain_one_signed, too_large
from harness.evaluate import Evaluator
from harness.store import Store
from kernels import catalog
from kernels.catalog import KernelError
from kernels.spec import Size, Spec, Tensor, Workload

SMALL = Workload(axes={"tokens": 8, "hidden": 512}, dtype="float32")
HUGE = Workload(axes={"tokens": 10**9, "hidden": 10**9}, dtype="float32")


def kernel_of(*workloads: Workload):
    kernel = catalog.load("silu_and_mul")
    return replace(kernel, spec=kernel.spec.model_copy(update={"workloads": workloads, "dtypes": ("float32",)}))


@pytest.fixture
def nothing_is_drawn(monkeypatch):
    monkeypatch.setattr("harness.checks.cases.make_case", lambda *_: pytest.fail("inputs were drawn"))


def test_an_addition_that_the_machine_cannot_hold_is_refused_before_it_is_drawn(tmp_path, nothing_is_drawn):
    added = Workload(axes={"tokens": 3, "hidden": 2 * 10**9 + 8}, dtype="float32", timed=False)
    with Evaluator(kernel_of(SMALL), "cpu", Store(tmp_path)) as evaluator:
        with pytest.raises(ValueError, match=r"hidden=2000000008 .* GiB"):
            evaluator.extend((added,), {})
        assert evaluator.extra_workloads == ()


def test_what_is_left_out_is_named_with_the_reason(tmp_path):
    hidden = HUGE.model_copy(update={"held_out": True, "axes": {"tokens": 10**9, "hidden": 10**8}})
    with Evaluator(kernel_of(SMALL, HUGE, hidden), "cpu", Store(tmp_path)) as evaluator:
        assert evaluator.suite() == (SMALL,) and evaluator.suite(held_out=True) == ()
        first, second = evaluator.notices
        assert HUGE.label in first and "left out" in first and "GiB" in first
        assert hidden.label in second
        evaluator.verify(evaluator.build(evaluator.store.put(evaluator.kernel.baseline("cpu")[1].read_text())))
        assert evaluator.notices[:2] == (first, second)  # the sandbox's are added to them


@pytest.mark.parametrize("others", [(), (SMALL.model_copy(update={"timed": False}),)], ids=["nothing", "nothing timed"])
def test_a_suite_of_which_nothing_is_left_is_an_error(tmp_path, others):
    with pytest.raises(KernelError, match=r"silu_and_mul has no timed workload that fits .*hidden=1000000000"):
        Evaluator(kernel_of(HUGE, *others), "cpu", Store(tmp_path))


def test_a_required_sandbox_is_not_refused_for_a_workload_that_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr("harness.farside.sandbox.missing", lambda _active: ())
    with Evaluator(kernel_of(SMALL, HUGE), "cpu", Store(tmp_path), sandbox_mode="require") as evaluator:
        build = evaluator.build(evaluator.store.put(evaluator.kernel.baseline("cpu")[1].read_text()))
        assert evaluator.verify(build).passed


def test_a_table_of_which_a_call_touches_little_is_held_whole():
    spec = Spec(
        name="gather", summary="rows of a table", axes=("rows", "table"), dtypes=("float32",),
        arguments=(
            Tensor(name="table_rows", role="input", shape=("table", "1024"), touched="rows*1024"),
            Tensor(name="out", role="output", shape=("rows", "1024")),
            Size(name="rows"),
        ),
        workloads=(Workload(axes={"rows": 4, "table": 10**8}, dtype="float32"),),
    )  # fmt: skip
    (workload,) = spec.workloads
    assert spec.read_bytes(workload) < 1 << 20
    assert too_large(spec, workload, 1 << 40).startswith(f"{workload.label} needs ")
    assert explain_left_out(spec, "cpu", ("float32",), 1 << 40) and not explain_left_out(
        spec, "cpu", ("float32",), 1 << 44
    )


def test_every_kernel_of_the_catalog_fits_on_a_small_machine():
    """24 GB, of which a laptop has so much: nothing of the catalog's CPU suites is left out there."""
    for name in catalog.names():
        spec = catalog.load(name).spec
        assert explain_left_out(spec, "cpu", spec.dtypes, 16 << 30) == (), name


def test_the_machine_that_decides_is_this_one(tmp_path, monkeypatch):
    monkeypatch.setattr(device, "memory_bytes", lambda _on: 1 << 20)
    larger = SMALL.model_copy(update={"axes": {"tokens": 64, "hidden": 512}})
    with Evaluator(
        kernel_of(SMALL.model_copy(update={"axes": {"tokens": 2, "hidden": 512}}), larger), "cpu", Store(tmp_path)
    ) as made:
        assert len(made.suite()) == 1 and larger.label in made.notices[0]


@pytest.mark.parametrize(
    ("values", "warned"),
    [
        (("uniform",), True),
        (("range:0.5:2", "uniform"), True),
        (("range:-1:1",), False),
        (("uniform", "ordinary"), False),
        (("given:stored",), False),  # what is stored is looked at (harness/problems/degenerate.py)
    ],
)
def test_inputs_of_one_sign_are_warned_of(values, warned):
    spec = kernel_of(SMALL).spec
    inputs = tuple(t.model_copy(update={"values": values}) if t.role == "input" else t for t in spec.tensors)
    others = tuple(argument for argument in spec.arguments if isinstance(argument, Size))
    found = explain_one_signed(spec.model_copy(update={"arguments": (*inputs, *others)}))
    assert bool(found) is warned
    assert not warned or "relu" in found[0]
