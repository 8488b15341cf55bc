"""Sources with torch's headers. Few are built: each takes g++ half a minute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness import backends
from harness.backends import cuda, torch_extension
from harness.evaluate import Evaluator
from harness.farside import forms
from harness.records import Outcome
from harness.store import Store
from kernels import catalog

PLAIN = """
#include <torch/extension.h>
#include <cmath>

void silu_and_mul(at::Tensor input, at::Tensor out, int64_t tokens, int64_t hidden) {
    TORCH_CHECK(input.is_contiguous() && out.size(1) == hidden);
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, input.scalar_type(), "silu_and_mul", [&] {
        const scalar_t* x = input.data_ptr<scalar_t>();
        scalar_t* y = out.data_ptr<scalar_t>();
        for (int64_t t = 0; t < tokens; ++t) {
            for (int64_t i = 0; i < hidden; ++i) {
                const float gate = x[t * 2 * hidden + i], up = x[t * 2 * hidden + hidden + i];
                y[t * hidden + i] = static_cast<scalar_t>(gate / (1.0f + std::exp(-gate)) * up);
            }
        }
    });
}
"""
# SGLang's way: an operator with its own order of arguments and no sizes. It lets torch do half of the work.
REGISTERED = """
#include <torch/library.h>
#include <ATen/ATen.h>

void silu_and_mul(at::Tensor out, const at::Tensor& input) {
    const int64_t hidden = out.size(1);
    out.copy_(at::silu(input.narrow(1, 0, hidden)).mul(input.narrow(1, hidden, hidden)));
}
TORCH_LIBRARY(own_kernels, m) { m.def("silu_and_mul(Tensor(a!) out, Tensor input) -> ()", &silu_and_mul); }
"""


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evaluator]:
    if reason := torch_extension.why_unavailable():
        pytest.skip(reason)
    kernel = catalog.load("silu_and_mul")
    kept = tuple(w for w in kernel.spec.suite("cpu") if not w.timed)
    kept += tuple(w for w in kernel.spec.suite("cpu") if w.timed and w.dtype == "float32")[-1:]
    kernel = replace(kernel, spec=kernel.spec.model_copy(update={"workloads": kept}))
    with Evaluator(kernel, "cpu", Store(tmp_path_factory.mktemp("store"))) as one:
        yield one


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_plain_function_of_tensors_gets_a_binding(evaluator: Evaluator) -> None:
    said: list[str] = []
    evaluator.say = said.append
    build = evaluator.build(evaluator.store.put(PLAIN))
    assert build.ok and build.backend == "torch_extension", build.log
    assert said == ["torch_extension compiles"]
    verdict = evaluator.verify(build)
    assert verdict.passed, verdict.reason


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_registered_operator_is_called_by_its_names_and_torch_does_not_do_its_work(evaluator: Evaluator) -> None:
    verdict = evaluator.verify(evaluator.build(evaluator.store.put(REGISTERED)))
    assert verdict.outcome is Outcome.CHEATED, verdict.reason
    assert "aten.silu" in verdict.reason


def test_torch_headers_choose_this_backend() -> None:
    for text in (PLAIN, REGISTERED, "  #  include <c10/util/Half.h>\nint f();\n", '#include "pybind11/pybind11.h"\n'):
        assert backends.for_source(text, "cpu") is torch_extension
    assert backends.for_source("// #include <torch/extension.h>\nint f();\n", "cpu") is not torch_extension


ARGUMENTS = [
    [kind, name, role, "", None]
    for kind, name, role in (
        ("tensor", "x", "input"),
        ("tensor", "y", "output"),
        ("size", "n", ""),
        ("scalar", "eps", ""),
    )
]


@pytest.mark.parametrize(
    ("names", "count", "picked", "returns"),
    [
        (["y", "x"], 2, [1, 0], False),  # by name, in its own order
        (["x", "eps"], 2, [0, 3], True),  # by name, and what it returns is the output
        (["a", "b", "c", "d"], 4, [0, 1, 2, 3], False),  # names of its own: by number
        (None, 4, [0, 1, 2, 3], False),
        (None, 3, [0, 1, 3], False),  # without sizes
        (None, 2, [0, 1], False),  # tensors only
        (None, 1, [0], True),
    ],
)
def test_which_arguments_an_extension_is_given(
    names: list[str] | None, count: int, picked: list[int], returns: bool
) -> None:
    form = forms.Signature(ARGUMENTS, "f").fitting(lambda *_: None, names, count)
    assert form.picked == picked
    assert (form.outputs is not None) is returns


@pytest.mark.parametrize("names", [["x"], None])
def test_nobody_looks_at_what_an_extension_returns_behind_the_outputs(names: list[str] | None) -> None:
    """pytorch_scatter's segment_csr, bound by the whole call, returns where a maximum was found, too."""
    x, out = torch.arange(4.0), torch.empty(4)
    form = forms.Signature(ARGUMENTS, "f").fitting(lambda x: (x + 1, None), names, 1)
    form.launch(form.prepare([x, out, 4, 0.5]))
    assert torch.equal(out, x + 1)
    few = forms.Signature(ARGUMENTS, "f").fitting(lambda x: (), names, 1)
    with pytest.raises(forms.CandidateRefused, match="returned 0 values, should be 1"):
        few.launch(few.prepare([x, out, 4, 0.5]))


def test_an_output_that_a_call_does_not_name_is_returned_beside_one_that_it_writes() -> None:
    arguments = [["tensor", name, "output" if name in "yz" else "input", "", None] for name in "xyz"]
    x, y, z = torch.arange(4.0), torch.empty(4), torch.empty(4)
    form = forms.Signature(arguments, "f").fitting(lambda x, y: y.copy_(x).add(1), ["x", "y"], 2)
    form.launch(form.prepare([x, y, z]))
    assert torch.equal(y, x) and torch.equal(z, x + 1)


@pytest.mark.parametrize("names", [["x", "y"], None])
def test_an_inout_is_changed_in_place_beside_an_output_that_is_returned(names: list[str] | None) -> None:
    arguments = [["tensor", name, role, "", None] for name, role in (("x", "input"), ("y", "inout"), ("z", "output"))]
    x, y, z = torch.arange(4.0), torch.ones(4), torch.empty(4)
    form = forms.Signature(arguments, "f").fitting(lambda x, y: y.add_(x).mul(2), names, 2)
    form.launch(form.prepare([x, y, z]))
    assert torch.equal(y, x + 1) and torch.equal(z, 2 * y)


def test_a_number_of_arguments_that_fits_nothing_is_refused() -> None:
    with pytest.raises(forms.CandidateRefused, match="takes 7 arguments"):
        forms.Signature(ARGUMENTS, "f").fitting(lambda *_: None, None, 7)


@pytest.mark.parametrize(("count", "picked"), [(3, [0, 2, 3]), (2, [0, 3]), (1, [0])])
def test_a_function_that_returns_more_than_the_outputs_takes_sizes_too(count: int, picked: list[int]) -> None:
    """FlashRWKV2's key preparation takes tensors and a head's size, and returns what its backward needs behind the outputs."""
    x, out = torch.arange(4.0), torch.empty(4)
    form = forms.Signature(ARGUMENTS, "f").returning_more(lambda *_: (x + 1, torch.ones(7)), count)
    assert form.picked == picked
    form.launch(form.prepare([x, out, 4, 0.5]))
    assert torch.equal(out, x + 1)
    with pytest.raises(forms.CandidateRefused, match="takes 5 arguments, which fits neither 3"):
        forms.Signature(ARGUMENTS, "f").returning_more(lambda *_: None, 5)


def test_an_int8_that_becomes_a_half_needs_what_torchs_usual_flags_take_away() -> None:
    """omniserve's helpers, whose own build takes these flags away."""
    said = (
        'utils.cuh(261): error: no suitable constructor exists to convert from "int8_t" (aka "signed char") to "__half"'
    )
    assert torch_extension.NEEDS_OPERATORS.search(said)


def test_a_kernels_own_flags_stand_behind_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "nvcc", lambda: "nvcc")
    monkeypatch.setattr(torch_extension, "cuda_home", lambda: "/usr/local/cuda")
    facts = SimpleNamespace(device="cuda", architecture="sm_90")
    taken, theirs = ["-U__CUDA_NO_HALF_OPERATORS__"], ["-D__CUDA_NO_HALF_OPERATORS__"]
    command, _ = torch_extension.command_for(Path("a.cu"), Path("a.so"), facts, taken, [], theirs)  # type: ignore[arg-type]
    assert command.index(theirs[0]) < command.index(taken[0])


def _takes_two(a: Any, b: Any) -> None: ...


@pytest.mark.parametrize(
    ("function", "count"),
    [
        (_takes_two, 2),
        (lambda *_: None, None),
        (SimpleNamespace(__doc__="f(arg0: torch.Tensor, arg1: int, arg2: typing.SupportsFloat) -> None\n"), 3),
    ],
)
def test_the_number_of_arguments_is_read_from_pythons_or_pybind11s_signature(
    function: Callable, count: int | None
) -> None:
    assert forms.positional(function) == count
