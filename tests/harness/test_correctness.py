"""Tolerances: an honest kernel passes, and what is known to slip through loose ones fails, on every kernel."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from harness.checks.cases import Cases, make_case
from harness.checks.correctness import judge_call
from harness.checks.drawing import distributions, draw_inputs
from harness.checks.expected import UNIT_ROUNDOFF, Expected
from harness.checks.fitting import OutOfDeviceMemory
from harness.checks.judging import judge
from harness.checks.layout import Layout
from harness.checks.tolerance import compute_expected, find_summed_dimensions, terms
from harness.device import ArgumentBuffers
from kernels import catalog
from kernels.catalog import KernelError
from kernels.spec import Size, Spec, Tensor, Workload

NARROWER = {"float32": torch.bfloat16, "float16": torch.bfloat16, "bfloat16": torch.float8_e4m3fn}
CASES = [(name, dtype) for name in catalog.names() for dtype in catalog.load(name).spec.dtypes if dtype in NARROWER]


@functools.cache
def case(name: str, dtype: str):
    """The largest workload of that dtype whose inputs take less than 1 MiB, with ordinary values."""
    kernel = catalog.load(name)
    sizes = [w for w in kernel.spec.workloads if w.dtype == dtype and kernel.spec.read_bytes(w) < 1 << 20]
    workload = max(sizes, key=kernel.spec.read_bytes)
    return kernel, workload, make_case(kernel, workload, distributions(kernel.spec, {})[0], {}, "cpu")


def error(spec: Spec, workload: Workload, tensor: Tensor, got: torch.Tensor, made) -> float:
    return judge(got, made.expected[tensor.name], spec.dtype(tensor, workload))[0]


def floats(spec: Spec, workload: Workload) -> list[Tensor]:
    return [tensor for tensor in spec.outputs if spec.dtype(tensor, workload) in UNIT_ROUNDOFF]


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_the_rounded_reference_passes(name, dtype):
    kernel, workload, made = case(name, dtype)
    for tensor in floats(kernel.spec, workload):
        exact = made.expected[tensor.name].value
        got = exact.to(getattr(torch, kernel.spec.dtype(tensor, workload)))
        assert error(kernel.spec, workload, tensor, got, made) <= 1.0


@pytest.mark.parametrize("mistake", ["zeros", "constant", "narrower", "last row", "nan", "shuffled"])
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_what_slips_through_loose_tolerances_fails(name, dtype, mistake):
    kernel, workload, made = case(name, dtype)
    failed = []
    for tensor in floats(kernel.spec, workload):
        exact = made.expected[tensor.name].value
        own = kernel.spec.dtype(tensor, workload)
        got = exact.to(getattr(torch, own))
        match mistake:
            case "zeros":
                got = torch.zeros_like(got)
            case "constant":
                got = torch.full_like(got, exact[exact.isfinite()].mean().item())
            case "narrower" if own not in NARROWER:
                continue
            case "narrower":
                got = got.to(NARROWER[own]).to(got.dtype)
            case "last row":
                got[int(exact.reshape(len(exact), -1).any(dim=1).nonzero()[-1])] = (
                    0  # the last that is not zeros anyway
                )
            case "nan":
                got.view(-1)[got.numel() // 2] = float("nan")
            case "shuffled":
                got = got.float().reshape(-1).flip(0).reshape(got.shape).to(got.dtype)
        failed.append(error(kernel.spec, workload, tensor, got, made) > 1.0)
    assert all(failed)


STATED = {"float64": (64, -53, -1022), "float32": (64, -24, -126), "float16": (3, -11, -24), "bfloat16": (3, -8, -126)}
"""As docs/trust.md and the reports have it: unit roundoffs of the value, their exponent of two, and the smallest step's."""


class Operation:
    """A reference without a folder."""

    has_reference, properties, reference_axes, reference_on = True, None, tuple, "cpu"
    reference_asks_dtype, allowed = False, ()

    def __init__(self, dtype: str, shape: tuple[int, int], function):
        inputs = Tensor(name="input", role="input", shape=("rows", "columns"))
        out = Tensor(
            name="out",
            role="output",
            shape=("rows", "columns") if function(torch.ones(shape)).dim() == 2 else ("rows",),
        )
        workload = Workload(axes={"rows": shape[0], "columns": shape[1]}, dtype=dtype)
        self.function, self.asked = function, []
        self.spec = Spec(
            name="operation", summary="some", axes=("rows", "columns"), dtypes=(dtype,), arguments=(inputs, out),
            workloads=(workload,),
        )  # fmt: skip

    def reference_in(self, dtype, /, input):
        self.asked.append((dtype, input.dtype))
        return {"out": self.function(input)}


def at_the_edge(right, stated: torch.Tensor, dtype: str) -> tuple[float, float]:
    """(error of outputs that are 0.9 of the stated tolerance off, of one element that is 1.1 of it off)."""
    off = right.value.clone()
    off.view(-1)[3] += 1.1 * stated.view(-1)[3]
    return judge(right.value - 0.9 * stated, right, dtype)[0], judge(off, right, dtype)[0]


@pytest.mark.parametrize("dtype", STATED)
def test_the_stated_tolerance_is_the_one_that_is_judged_by(dtype):
    """Of an exact operation: the roundings of the value, an eighth of two roundings inside, the type's smallest step."""
    ulps, exponent, smallest = STATED[dtype]
    operation = Operation(dtype, (4, 50), torch.neg)
    given = torch.randn(4, 50).to(getattr(torch, dtype))  # what fp32 holds, too
    right = compute_expected(operation, operation.spec.workloads[0], {"input": given})["out"]
    size = given.to(torch.float64).abs()
    inside = 2.0**-53 if dtype == "float64" else 2.0**-24
    stated = ulps * 2.0**exponent * size + 2 * inside / 8 * size.amax(1, keepdim=True) + 2.0**smallest
    within, beyond = at_the_edge(right, stated, dtype)
    # In float64 the answer that is so much off is itself rounded, by up to one part in 64 of the tolerance.
    assert within == pytest.approx(0.9, abs=1 / 64) and beyond == pytest.approx(1.1, abs=1 / 64)


def test_the_stated_share_of_the_noise_is_the_one_that_is_judged_by():
    """Where terms cancel: eight times the row's largest difference between the reference in fp64 and in fp32."""
    operation = Operation("float32", (6, 40), lambda x: (x + 4096.0) - 4096.0)
    given = torch.randn(6, 40)
    right = compute_expected(operation, operation.spec.workloads[0], {"input": given})["out"]
    assert operation.asked[:2] == [("float64", torch.float64), ("float32", torch.float32)]
    exact, rough = operation.function(given.to(torch.float64)), operation.function(given).to(torch.float64)
    rows = (exact - rough).abs().amax(1, keepdim=True)
    noise = torch.maximum(rows, rows.median())
    stated = 64 * 2.0**-24 * exact.abs() + 8 * noise + 2.0**-126
    within, beyond = at_the_edge(right, stated, "float32")
    assert within == pytest.approx(0.9, rel=1e-2) and beyond == pytest.approx(1.1, rel=1e-2)


def test_the_stated_share_of_a_long_sum_is_the_one_that_is_judged_by():
    """An eighth of as many times the noise as the sum has terms, where that is more than eight times."""
    operation = Operation("float32", (6, 800), lambda x: x.sum(1))
    given = torch.rand(6, 800) + 0.5
    right = compute_expected(operation, operation.spec.workloads[0], {"input": given})["out"]
    exact, rough = operation.function(given.to(torch.float64)), operation.function(given).to(torch.float64)
    noise = torch.maximum((exact - rough).abs().amax(), torch.tensor(2 * 2.0**-24) * exact.abs().amax())
    stated = 64 * 2.0**-24 * exact.abs() + 100 * noise + 2.0**-126
    within, beyond = at_the_edge(right, stated, "float32")
    assert within == pytest.approx(0.9, rel=1e-2) and beyond == pytest.approx(1.1, rel=1e-2)


def test_tiny_outputs_are_judged_by_their_own_size():
    """Softmax over a long row: every value is far below any fixed absolute tolerance."""
    value = torch.softmax(torch.randn(4, 100_000, dtype=torch.float64), -1)

    right = Expected(value, 3 * UNIT_ROUNDOFF["float16"] * value + 2.0**-24, "")
    assert judge(value.to(torch.float16), right, "float16")[0] <= 1.0
    assert judge(torch.zeros_like(value, dtype=torch.float16), right, "float16")[0] > 1.0


def test_every_term_of_a_sum_may_be_flushed_where_it_is_subnormal():
    """red.global.add.f32 does so: a sparse product by atomic additions was INCORRECT at 2e-38 (H200)."""
    kernel = catalog.load("moe_sum")
    workload = next(w for w in kernel.spec.workloads if w.axes["topk"] == 6)
    (x,), (out,) = kernel.spec.inputs, kernel.spec.outputs
    inputs = {x.name: torch.full(kernel.spec.shape(x, workload.axes), 1e-38, dtype=torch.bfloat16)}
    right = compute_expected(kernel, workload, inputs)[out.name]
    assert float(right.value.min()) > 4 * 2.0**-126
    assert judge(torch.zeros_like(right.value, dtype=torch.bfloat16), right, "bfloat16")[0] <= 1.0
    assert judge(torch.full_like(right.value, -4e-38, dtype=torch.bfloat16), right, "bfloat16")[0] > 1.0


def test_infinities_must_agree_in_sign_and_place():

    value = torch.tensor([1.0, float("inf"), float("-inf"), float("nan")], dtype=torch.float64)
    right = Expected(value, torch.full_like(value, 1e-3), "")
    assert judge(value.float(), right, "float32")[0] == 0.0
    for swapped in ([1, float("-inf"), float("inf"), float("nan")], [1, float("inf"), float("-inf"), 0.0]):
        assert judge(torch.tensor(swapped), right, "float32")[0] > 1.0


def test_what_a_type_cannot_hold_is_infinite_with_its_sign():
    """Judged as the call of a kernel is: 65,520 and more is infinite in float16, and less is not."""
    operation = Operation("float16", (1, 4), lambda x: x * x.abs())
    workload = operation.spec.workloads[0]
    given = torch.tensor([[300.0, -300.0, 250.0, 1.0]], dtype=torch.float16)
    right = compute_expected(operation, workload, {"input": given})

    def said(*values: float) -> str:
        return judge_call(operation.spec, workload, {"out": torch.tensor([values], dtype=torch.float16)}, right)[1]

    infinite = float("inf")
    assert said(infinite, -infinite, 62500, 1) == ""
    assert said(65504, -infinite, 62500, 1).startswith("out[0, 0] is 65504, should be 90000")
    assert said(-infinite, -infinite, 62500, 1).startswith("out[0, 0] is -inf")
    assert said(infinite, -infinite, infinite, 1).startswith("out[0, 2] is inf, should be 62500")


@pytest.mark.parametrize("name", catalog.names())
def test_tensors_of_a_layout_do_not_overlap(name):
    spec = catalog.load(name).spec
    workload = min(spec.suite("cpu"), key=spec.read_bytes)
    layout = Layout(spec, workload, 3)
    buffers = ArgumentBuffers("cpu", layout.size)
    buffers.view.zero_()
    for number, tensor in enumerate(spec.tensors, 1):
        layout.bytes_view(buffers, tensor).add_(number)
        layout.tail(buffers, tensor).add_(100 + number)
        layout.head(buffers, tensor).add_(200)
    written = sum(layout.slots * layout.strides[t.name] + 256 for t in spec.tensors)
    assert written == layout.size
    values = set(buffers.view[: layout.size].unique().tolist())
    numbers = range(1, len(spec.tensors) + 1)
    assert values == {*numbers, *(100 + n for n in numbers), 200}
    buffers.close()


def test_expected_names_a_missing_output():
    kernel, workload, made = case("silu_and_mul", "float32")

    class Forgetful:
        spec = kernel.spec
        has_reference, properties, reference_axes, reference_on = True, None, tuple, "cpu"
        reference_asks_dtype, allowed = False, ()

        def reference_in(self, _dtype, /, **_):
            return {}

    with pytest.raises(ValueError, match="returns no 'out'"):
        compute_expected(Forgetful(), workload, made.inputs)


SOFTMAX = str(Path(__file__).parent.parent / "inputs" / "thread_softmax")
LAYER_NORM = str(Path(__file__).parent.parent / "inputs" / "cpu_layernorm")


def in_turn(terms: torch.Tensor) -> torch.Tensor:
    """The sum along rows as one float32 accumulator takes it, float32 [rows, 1]."""
    return torch.from_numpy(np.cumsum(terms.numpy(), axis=1, dtype=np.float32)[:, -1:])


@pytest.mark.parametrize("values", ["ordinary", "large", "tiny", "zeros", "outliers"])
@pytest.mark.parametrize("width", [1024, 8192])
def test_one_accumulator_for_a_long_row_is_honest(width, values):
    """The plain loop that everybody writes first drifts further from fp64 than a pairwise sum does."""
    kernel = catalog.load(LAYER_NORM)
    for dtype in ("float32", "float16"):
        workload = Workload(axes={"rows": 64, "width": width}, dtype=dtype)
        made = make_case(kernel, workload, values, {}, "cpu")
        x, gamma, beta = (made.inputs[name].float() for name in ("x", "gamma", "beta"))
        centred = x - in_turn(x) / width
        deviation = torch.sqrt(in_turn(centred * centred) / width + kernel.spec.scalars["eps"])
        got = (centred / deviation * gamma + beta).to(getattr(torch, dtype))
        assert judge(got, made.expected["y"], dtype) == (pytest.approx(0.5, abs=0.5), "")


@pytest.mark.parametrize("values", ["ordinary", "zeros", "outliers"])
@pytest.mark.parametrize("n", [128, 1024, 8192])
def test_one_accumulator_of_many_equal_terms_is_honest(n, values):
    """Where half of a row is equal, a plain loop rounds the same way again and again, and a pairwise sum is exact."""
    kernel = catalog.load(SOFTMAX)
    for dtype in ("float32", "float16"):
        made = make_case(kernel, Workload(axes={"rows": 256, "n": n}, dtype=dtype), values, {}, "cpu")
        x = made.inputs["x"].float()
        top = x.amax(1, keepdim=True)
        exponentials = torch.exp(x - top)
        total = in_turn(exponentials)
        got = (exponentials / total).to(getattr(torch, dtype))
        assert judge(got, made.expected["y"], dtype) == (pytest.approx(0.5, abs=0.5), "")
        assert judge((top + torch.log(total)).squeeze(1), made.expected["lse"], "float32")[1] == ""


@pytest.mark.parametrize("columns", [2, 784])
def test_rows_that_show_little_of_their_noise_earn_the_typical_one(columns):
    """Behind a ReLU few elements of a row may be left, and in rows of two there are no more: none of them need be far off
    in the reference in fp32, where another order of the same operations is."""
    inputs = [Tensor(name="x", role="input", shape=("rows", "columns"))]
    inputs += [Tensor(name=name, role="input", shape=("rows",)) for name in ("scale", "mean", "shift")]
    out = Tensor(name="y", role="output", shape=("rows", "columns"))
    sizes = [Size(name="rows"), Size(name="columns")]
    workload = Workload(axes={"rows": 1_600_000 // columns, "columns": columns}, dtype="float32")
    spec = Spec(
        name="scaled_relu", axes=("rows", "columns"), dtypes=("float32",), flops="4*rows*columns", summary="relu((x - mean) * scale + shift)",
        arguments=(*inputs, out, *sizes), workloads=(workload,),
    )  # fmt: skip

    class Kernel:
        has_reference, properties, reference_axes, reference_on = True, None, tuple, "cpu"
        reference_asks_dtype, allowed = False, ()

        def __init__(self):
            self.spec = spec

        def reference_in(self, _dtype, /, x, scale, mean, shift):
            return {"y": torch.relu((x - mean[:, None]) * scale[:, None] + shift[:, None])}

    rng = torch.Generator().manual_seed(5)
    drawn = {t.name: torch.randn(spec.shape(t, workload.axes), generator=rng) for t in spec.inputs}
    right = compute_expected(Kernel(), workload, drawn)["y"]
    x, scale, mean, shift = (t.reshape(len(t), -1) for t in drawn.values())
    fused = torch.relu(((x - mean).double() * scale.double() + shift.double()).float())
    folded = torch.relu(x * scale + (shift - mean * scale))
    honest = fused if columns == 2 else folded
    assert judge(honest, right, "float32") == (pytest.approx(0.5, abs=0.5), "")
    assert judge(honest.half().float(), right, "float32")[0] > 1


@pytest.mark.parametrize("values", ["ordinary", "zeros", "outliers"])
def test_long_sums_earn_no_narrower_type(values):
    kernel = catalog.load(LAYER_NORM)
    for dtype, narrow in (("float32", torch.float16), ("float16", torch.bfloat16)):
        made = make_case(kernel, Workload(axes={"rows": 64, "width": 16384}, dtype=dtype), values, {}, "cpu")
        own = getattr(torch, dtype)
        got = made.expected["y"].value.to(own)
        assert judge(got, made.expected["y"], dtype)[0] <= 1
        assert judge(got.to(narrow).to(own), made.expected["y"], dtype)[0] > 1


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("silu_and_mul", {}),
        ("merge_attn_states_lse", {}),
        ("fused_add_rmsnorm", {"input": (1,), "residual": (1,)}),
        (LAYER_NORM, {"x": (1,)}),
        (SOFTMAX, {"x": (1,)}),
    ],
)
def test_what_is_summed_is_found_by_asking_the_reference(name, found):
    kernel = catalog.load(name)
    assert find_summed_dimensions(kernel) == found
    workload = kernel.spec.workloads[0]
    assert terms(kernel, workload) == (kernel.spec.shape(kernel.spec.inputs[0], workload.axes)[1] if found else 1)


@pytest.mark.parametrize("fault", [torch.OutOfMemoryError, OutOfDeviceMemory])
def test_a_case_that_does_not_fit_is_made_again_with_no_other_in_memory_and_else_refused(fault, monkeypatch):
    kernel = catalog.load("silu_and_mul")
    small, other = (Workload(axes={"tokens": n, "hidden": 16}, dtype="float32") for n in (2, 3))
    kept = Cases(kernel, "cpu", 1 << 30)
    first = kept.get(small, "ordinary", {})
    room: list[int] = []

    def made(*arguments):
        room.append(len(kept.kept))
        if len(room) < fails + 1:
            raise fault("CUDA out of memory. Tried to allocate 8 GiB. GPU 0 has ...")
        return make_case(*arguments)

    monkeypatch.setattr("harness.checks.cases.make_case", made)
    fails = 1
    assert kept.get(other, "ordinary", {}).workload == other and room == [1, 0]
    assert kept.get(small, "ordinary", {}) is not first  # that one was let go of
    fails, room[:] = 2, []
    with pytest.raises(KernelError, match=r"tokens=5 .*too much for this device's memory: CUDA out of memory$"):
        kept.get(Workload(axes={"tokens": 5, "hidden": 16}, dtype="float32"), "ordinary", {})


@pytest.mark.parametrize(("elements", "off", "times", "right"), [
    (10_000_000, 1.5, 1, True), (10_000_000, 1.5, 2, False), (10_000_000, 2.5, 1, False), (9_000_000, 1.5, 1, False),
])  # fmt: skip
def test_of_ten_million_elements_one_may_be_off_by_up_to_two_tolerances(
    elements: int, off: float, times: int, right: bool
) -> None:
    """Eager torch's own was, by 8 %, one of 277 million; of fewer none may."""
    value = torch.zeros(elements, dtype=torch.float64)
    got = torch.zeros(elements)
    got[:times] = off
    error, message = judge(got, Expected(value, torch.ones_like(value), "one"), "float32")
    assert error == off and (not message) is right


class Scalar(Operation):
    """A loss: the difference of two sums that nearly cancel."""

    def __init__(self) -> None:
        super().__init__("float32", (3, 512), lambda x: x.sum(1))
        rows = Tensor(name="input", role="input", shape=("rows", "columns"), values=("ordinary", "large"))
        out = Tensor(name="out", role="output", shape=("1",))
        self.spec = self.spec.model_copy(update={"arguments": (rows, out)})
        self.function = lambda x: 0.5 + (self.length(x) - self.length(x.flip(1))).sum().reshape(1)

    @staticmethod
    def length(x: torch.Tensor) -> torch.Tensor:
        return (x * x).sum(1).sqrt()


def test_of_a_single_number_the_noise_is_that_of_several_draws() -> None:
    """The reference in fp32 may meet it by chance, and an honest kernel was called wrong at the sixtieth draw of 200."""
    kernel = Scalar()
    (workload,) = kernel.spec.workloads
    wrong = []
    for judged_by_one in (True, False):
        wrong.append(0)
        for _ in range(100):
            made = make_case(kernel, workload, "large", {}, "cpu")
            right = compute_expected(kernel, workload, made.inputs) if judged_by_one else made.expected
            x = made.inputs["input"]
            there, back = ((one * one).reshape(3, 32, 16).sum(1).sum(1).sqrt() for one in (x, x.flip(1)))
            got = 0.5 + (there - back).sum()  # in another order
            wrong[-1] += bool(judge(got.reshape(1), right["out"], "float32")[1])
    assert wrong[0] > wrong[1] == 0


def test_a_sum_is_found_behind_a_threshold_that_usual_values_do_not_reach() -> None:
    kernel = Operation("float32", (8, 64), lambda x: torch.relu(x.sum(1) - 60.0))
    kernel.spec = kernel.spec.model_copy(
        update={
            "arguments": (
                Tensor(name="input", role="input", shape=("rows", "columns"), values=("uniform", "large")),
                Tensor(name="out", role="output", shape=("rows",)),
            )
        }
    )
    assert find_summed_dimensions(kernel) == {"input": (1,)}


def test_a_sum_is_found_in_a_reference_that_takes_numbers_of_a_range_only() -> None:
    """torch's binary cross entropy raises for what is not between 0 and 1: the folder had a fault."""

    def entropy(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.binary_cross_entropy(x, 1 - x, reduction="none").sum(1)

    kernel = Operation("float32", (8, 64), entropy)
    tensors = (
        Tensor(name="input", role="input", shape=("rows", "columns"), values=("range:0.1:0.9",)),
        Tensor(name="out", role="output", shape=("rows",)),
    )
    kernel.spec = kernel.spec.model_copy(update={"arguments": tensors})
    assert find_summed_dimensions(kernel) == {"input": (1,)}


def rows_of(folder: Path, columns: int, formula: str) -> tuple[catalog.Kernel, Workload]:
    """A kernel of one number a row of `x`."""
    folder.mkdir()
    (folder / "reference.py").write_text(f"import torch\n\n\ndef reference(x):\n    return {{'out': {formula}}}\n")
    workload = Workload(axes={"n": 400}, dtype="float32")
    spec = Spec(
        name="rows", summary="a number a row", axes=("n",), dtypes=("float32",), workloads=(workload,),
        arguments=(
            Tensor(name="x", role="input", shape=("n", str(columns))),
            Tensor(name="out", role="output", shape=("n", "1")),
        ),
    )  # fmt: skip
    return catalog.Kernel(spec=spec, folder=folder), workload


def test_an_output_is_called_wrong_only_after_its_row_was_looked_at_more_closely(tmp_path: Path) -> None:
    """Two scores that are about equal: what fp32 makes of them is right by chance, and an honest kernel is off by far more."""
    kernel, workload = rows_of(tmp_path / "share", 2, "torch.sigmoid((x[:, :1] - x[:, 1:]) * 64)")
    x = torch.full((400, 2), 0.0)
    x[7] = 1000.3
    right = compute_expected(kernel, workload, {"x": x})
    honest, wrong = torch.full((400, 1), 0.5), torch.full((400, 1), 0.5)
    honest[7] = torch.sigmoid(torch.tensor(64 * 1000 * 2.0**-23))
    wrong[7] = 0.6
    assert judge_call(kernel.spec, workload, {"out": honest}, right)[1], "the first look shows no noise at all"
    assert right.doubted is not None
    closer = right.doubted()
    assert closer is not None and closer.doubted is None
    assert not judge_call(kernel.spec, workload, {"out": honest}, closer)[1]
    assert judge_call(kernel.spec, workload, {"out": wrong}, closer)[1]


def test_noise_of_what_is_nothing_for_all_inputs_is_that_of_several_draws(tmp_path: Path) -> None:
    """The mean of what is normalised: zero but for rounding, of which a kernel that sums in another order shows another draw."""
    formula = "(x - x.mean(dim=1, keepdim=True)).mean(dim=1, keepdim=True)"
    kernel, workload = rows_of(tmp_path / "nothing", 1000, formula)
    x = torch.randn(400, 1000, generator=torch.Generator().manual_seed(3)) + 1
    right = compute_expected(kernel, workload, {"x": x})
    assert right.doubted is not None
    closer = right.doubted()
    assert closer is not None
    grown = closer["out"].tolerance / right["out"].tolerance
    assert float(grown.min()) >= 1 and float(grown.median()) > 1.5
    assert judge_call(kernel.spec, workload, {"out": torch.full((400, 1), 1e-4)}, closer)[1], "far beyond rounding"


def test_an_error_relative_to_the_row_is_allowed_where_the_spec_says_so() -> None:
    kernel = catalog.load("silu_and_mul")
    workload = min(kernel.spec.suite("cpu"), key=kernel.spec.read_bytes)
    loose = tuple(
        a.model_copy(update={"ulps_of_row": 4.0}) if getattr(a, "role", "") == "output" else a
        for a in kernel.spec.arguments
    )
    wider = replace(kernel, spec=kernel.spec.model_copy(update={"arguments": loose}))
    inputs = draw_inputs(kernel.spec, workload, "ordinary", {}, "cpu")
    one, other = (compute_expected(k, workload, inputs)["out"] for k in (kernel, wider))
    more = other.tolerance - one.tolerance
    dtype = kernel.spec.dtype(kernel.spec.outputs[0], workload)
    wanted = 4 * UNIT_ROUNDOFF[dtype] * one.value.abs().amax(-1, keepdim=True)
    assert torch.allclose(more, wanted.expand_as(more), rtol=1e-3)


@pytest.mark.parametrize(("formula", "fp32"), [("x.mean(dim=1).double()", True), ("x.double().mean(dim=1)", False)])
def test_a_number_of_fp64_is_as_rough_as_what_its_reference_computes_it_from(formula: str, fp32: bool) -> None:
    """A running mean of fp64 of fp32's means: Model itself was called wrong by 1e-8. In fp64 all the way nothing is forgiven."""
    workload = Workload(axes={"n": 100}, dtype="float32")
    spec = Spec(
        name="mean", summary="a running mean", axes=("n",), dtypes=("float32",), workloads=(workload,),
        arguments=(
            Tensor(name="x", role="input", shape=("n", "100")),
            Tensor(name="mean", role="input", shape=("n",), dtype="float64"),
            Tensor(name="after", role="output", shape=("n",), dtype="float64"),
        ),
    )  # fmt: skip

    class Kernel:
        has_reference, properties, reference_axes, reference_on = True, None, tuple, "cpu"
        reference_asks_dtype, allowed = False, ()

        def __init__(self):
            self.spec = spec

        def reference_in(self, _dtype, /, x, mean):
            return {"after": 0.9 * mean + 0.1 * eval(formula, {"x": x})}

    x, mean = torch.rand(100, 100), torch.rand(100, dtype=torch.float64)
    right = compute_expected(Kernel(), workload, {"x": x, "mean": mean})
    assert not judge_call(spec, workload, Kernel().reference_in("", x, mean), right)[1]
    other_order = 0.9 * mean + 0.1 * (x[:, ::2].sum(dim=1) + x[:, 1::2].sum(dim=1)).div(100).double()
    assert bool(judge_call(spec, workload, {"after": other_order}, right)[1]) == (not fp32)
    off = {"after": 0.9 * mean + 0.10001 * x.mean(dim=1)}
    assert judge_call(spec, workload, off, right)[1]
