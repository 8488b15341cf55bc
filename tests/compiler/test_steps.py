"""Loops over steps in a reference stay loops: one thread to each element of what is carried."""

from __future__ import annotations

import pytest

from compiler import steps
from compiler.compile import Meaning, source
from compiler.frontend import NoProgram
from compiler.steps import StepsKernel
from kernels import catalog
from tests.compiler.folders import check_text, every_size
from tests.nodes.rewrites.emulate.emulation import emulated

SPEC = """\
from kernels.spec import Scalar, Size, Spec, Tensor, Workload

SPEC = Spec(
    name="recurrence",
    summary="recurrence",
    axes=("rows", "times"),
    dtypes=("float32",),
    arguments=(
        Tensor(name="x", role="input", shape=("rows", "times", "3")),
        Tensor(name="a", role="input", shape=("3",), values=("range:0:1",)),
        Tensor(name="y", role="output", shape=("rows", "times", "3")),
        Tensor(name="last", role="output", shape=("rows", "3")),
        Size(name="rows"),
        Size(name="times"),
        Scalar(name="rate", value=0.25),
    ),
    workloads=(
        Workload(axes={"rows": 30, "times": 9}, dtype="float32", devices=("cuda", "cpu")),
        Workload(axes={"rows": 2, "times": 2}, dtype="float32", devices=("cuda", "cpu")),
    ),
)
"""
FORMS = {
    "appended": """\
    last, out = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        last = a * last + (1 - a) * x[:, t]
        out.append(last.tanh())
    y = torch.stack(out, dim=1) + x
""",
    "written, two carried": """\
    y = torch.empty_like(x)
    last = x.new_zeros(x.shape[0], 3)
    most = torch.full_like(last, -1e30)
    for i in range(x.shape[1]):
        most = torch.maximum(most, x[:, i, :])
        last = last * rate + torch.exp(x[:, i, :] - most)
        y[:, i] = last / (1 + most.abs())
""",
    "backwards, between sums": """\
    last, out = x.sum(1), []
    for t in range(x.shape[1] - 1, -1, -1):
        last = x[:, t] + rate * last
        out.append(last)
    y = torch.stack(out[::-1], dim=1) / (1 + x.abs().amax(1, keepdim=True))
""",
    "written backwards, all but the first": """\
    y = x * 2
    last = torch.zeros_like(x[:, 0])
    for t in range(x.shape[1] - 1, 0, -1):
        last = x[:, t] + rate * last
        y[:, t] = last
""",
    "from the second on": """\
    last, trend = x[:, 0], torch.zeros_like(x[:, 0])
    out = [last]
    for t in range(1, x.shape[1]):
        before = last
        last = rate * x[:, t] + (1 - rate) * (before + trend)
        trend = a * (last - before) + (1 - a) * trend
        out.append(last)
    y = torch.stack(out, 1)
""",
    "read beside what was there before the first step": """\
    last = x[:, 0]
    out = [last]
    for t in range(1, x.shape[1]):
        last = rate * x[:, t] + (1 - rate) * last
        out.append(last)
    y = (x / (torch.stack(out, 1).abs() + 1)).tanh()
""",
}


def written(folder, form: str):
    reference = f"import torch\n\n\ndef reference(x, a, rate):\n{form}    return {{'y': y, 'last': last}}\n"
    (folder / "spec.py").write_text(SPEC)
    (folder / "reference.py").write_text(reference)
    return catalog.load(str(folder)).spec, reference


@pytest.mark.parametrize("form", FORMS)
def test_a_loop_over_an_open_size_is_a_loop_of_a_thread(form, tmp_path):
    spec, reference = written(tmp_path, FORMS[form])
    assert any(isinstance(k, StepsKernel) for k in Meaning(spec, reference).program("float32", 1).kernels)
    candidate = tmp_path / "candidate.cu"
    candidate.write_text(source(spec, reference))
    done = emulated(tmp_path, candidate, "0", "1")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("form", ["written, two carried", "written backwards, all but the first", "from the second on"])
def test_a_loop_over_an_open_size_is_one_in_cpp(form, tmp_path):
    """Of 90 elements, which sixteen do not divide."""
    spec, reference = written(tmp_path, FORMS[form])
    text = source(spec, reference, device="cpu")
    assert "heldOf0[lane] = nextOf0;" in text
    check_text(catalog.load(str(tmp_path)), text, tmp_path, "cpu", sized=every_size(spec))


def test_what_one_element_leaves_for_another_is_refused(tmp_path):
    mixing = FORMS["appended"].replace("a * last", "last.flip(-1)")
    with pytest.raises(NoProgram, match="another element has carried"):
        source(*written(tmp_path, mixing))


def test_a_loop_of_a_known_number_is_unrolled_as_before(tmp_path):
    text = (
        FORMS["appended"]
        .replace("range(x.shape[1])", "range(2)")
        .replace("torch.stack(out, dim=1) + x", "x + out[0][:, None] + out[1][:, None]")
    )
    spec, reference = written(tmp_path, text)
    assert steps.LOOPED in steps.rewritten(reference)
    assert not any(isinstance(k, StepsKernel) for k in Meaning(spec, reference).program("float32", 1).kernels)
    source(spec, reference)


@pytest.mark.parametrize("change", ["if t > 3:\n            break", "last.mul_(2.0)\n        kept = x[:, t]"])
def test_a_body_that_ends_a_loop_or_whose_names_are_read_later_stays(change):
    form = f"    last = x[:, 0]\n    for t in range(x.shape[1]):\n        last = last + x[:, t]\n        {change}\n    y = kept if last is None else x\n"
    reference = f"import torch\n\n\ndef reference(x):\n{form}    return {{'y': y}}\n"
    assert steps.rewritten(reference) == reference
