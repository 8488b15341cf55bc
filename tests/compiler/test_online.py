"""Reductions below a running maximum, in one pass over memory, in the CUDA emulation against the reference."""

from __future__ import annotations

import re

import pytest

from compiler.compile import Meaning, source
from kernels import catalog
from tests.kernels import test_kernel_contract as contract
from tests.kernels import test_kernels_emulated as kernels_emulated
from tests.nodes.rewrites.emulate.emulation import emulated

SPEC = """\
from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="online",
    summary="online",
    axes=("rows", "cols"),
    dtypes=({dtype!r},),
    arguments=(
        Tensor(name="x", role="input", shape=("rows", "cols")),
        {outputs}
        Size(name="rows"),
        Size(name="cols"),
    ),
    workloads=(
        {workloads}
    ),
)
"""
MEANS = """\
import torch


def reference(x):
    shifted = torch.where(x > -1, 3 * x, float("-inf"))
    log = torch.log_softmax(x, -1)
    weights = torch.softmax(shifted, -1)
    return {
        "lse": torch.logsumexp(x, -1), "masked": torch.logsumexp(shifted, -1), "entropy": torch.logsumexp(x, -1) - (log.exp() * x).sum(-1),
        "mean": (weights * x.square()).sum(-1), "largest": x.abs().amax(-1),
    }
"""
SOFTMAX = """\
import torch


def reference(x):
    return {"y": torch.softmax(x - x.mean(-1, keepdim=True), -1), "lse": torch.logsumexp(x, -1)}
"""
PER_ROW = ("lse", "masked", "entropy", "mean", "largest")


def spec_of(
    dtype: str, reference: str, sizes: tuple[tuple[int, int], ...] = ((3, 64), (37, 8), (2, 4424), (5, 1029), (7, 3))
) -> str:
    names = PER_ROW if reference == MEANS else ("y", "lse")
    shape = {"y": '("rows", "cols")'}
    outputs = [
        f'Tensor(name="{n}", role="output", shape={shape.get(n, """("rows",)""")}, dtype={"float32" if n != "y" else "T"!r}),'
        for n in names
    ]
    workloads = [f'Workload(axes={{"rows": {r}, "cols": {c}}}, dtype={dtype!r}, devices=("cuda",)),' for r, c in sizes]
    return SPEC.format(dtype=dtype, outputs="\n".join(outputs), workloads="\n".join(workloads))


@pytest.mark.parametrize(("dtype", "reference"), [("float32", MEANS), ("bfloat16", MEANS), ("float16", SOFTMAX)])
def test_sums_below_a_running_maximum_are_right(dtype, reference, tmp_path):
    (tmp_path / "spec.py").write_text(spec_of(dtype, reference))
    (tmp_path / "reference.py").write_text(reference)
    text, found = re.subn(
        r"#define RESIDENT 0", "#define RESIDENT 2", source(catalog.load(str(tmp_path)).spec, reference)
    )
    assert found == 1
    (tmp_path / "candidate.cu").write_text(text)
    done = emulated(tmp_path, tmp_path / "candidate.cu", "0", "1")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_row_is_read_once_for_all_that_is_reduced_of_it(tmp_path):
    (tmp_path / "spec.py").write_text(spec_of("float32", MEANS))
    (tmp_path / "reference.py").write_text(MEANS)
    meaning = Meaning(catalog.load(str(tmp_path)).spec, MEANS)
    text = meaning.text(meaning.first_schedule("sm_90", "cuda"))
    last = text[text.index("_rows_wide_by_1(") :]
    assert last[: last.index("\n}\n")].count("load_pack<1>(x") == 1


@pytest.mark.parametrize(
    "entropy",
    [
        "-(torch.log_softmax(x, -1).exp() * torch.log_softmax(x, -1)).sum(-1)",
        "-((x - torch.logsumexp(x, -1, keepdim=True)).exp() * (x - torch.logsumexp(x, -1, keepdim=True))).sum(-1)",
    ],
)
def test_logits_and_their_maximum_are_not_summed_apart(entropy, tmp_path):
    """Logits around a thousand with an entropy below one: the difference of two such sums would be off in its fourth digit."""
    reference = f"import torch\n\n\ndef reference(x):\n    return {{'entropy': {entropy}}}\n"
    small = ((5, 515), (4, 515), (6, 515), (3, 515))
    spec = spec_of("bfloat16", MEANS, ((512, 8192), *small))  # the first is timed, the others are no band's
    for rows, columns in small:
        size = f'"cols": {columns}}}, dtype="bfloat16", devices=("cuda",)'.replace('"bfloat16"', "'bfloat16'")
        spec = spec.replace(f'"rows": {rows}, {size}', f'"rows": {rows}, {size}, timed=False')
    lines = [line for line in spec.splitlines() if 'role="output"' not in line or "entropy" in line]
    (tmp_path / "spec.py").write_text("\n".join(lines))
    (tmp_path / "reference.py").write_text(reference)
    kernel = catalog.load(str(tmp_path))
    (tmp_path / "candidate.cu").write_text(
        source(kernel.spec, reference).replace("#define RESIDENT 0", "#define RESIDENT 2")
    )
    library = kernels_emulated.emulated(tmp_path / "candidate.cu", tmp_path)
    few = [workload for workload in kernel.spec.suite("cuda") if not workload.timed]
    assert len(few) == len(small)
    assert list(contract.complaints(kernel, library, few, "cpu")) == []
