"""Attention of few queries: found by its form whatever it is written as, right in the emulation and in C++."""

from __future__ import annotations

import pytest

from compiler.compile import Meaning, source
from compiler.evaluate import check
from compiler.streams import StreamKernel
from kernels import catalog
from tests.nodes.rewrites.emulate.emulation import emulated

SPEC = """\
from kernels.spec import Scalar, Size, Spec, Tensor, Workload

SPEC = Spec(
    name="decode",
    summary="decode",
    axes=("seqs", "heads", "kv_heads", "pages", "table"),
    dtypes=("float16",),
    nans=False,
    arguments=(
        Tensor(name="query", role="input", shape=("seqs", "heads", "64")),
        Tensor(name="keys", role="input", shape=("pages", "8", "kv_heads", "64")),
        Tensor(name="values", role="input", shape=("pages", "8", "kv_heads", "32")),
        Tensor(name="pages_of", role="input", shape=("seqs", "table"), dtype="int32", values=("index:pages",)),
        Tensor(name="lengths", role="input", shape=("seqs",), dtype="int32", values=("integers:1:9",)),
        Tensor(name="out", role="output", shape=("seqs", "heads", "32")),
        Tensor(name="lse", role="output", shape=("seqs", "heads"), dtype="float32"),
        Size(name="seqs"),
        Size(name="heads"),
        Size(name="kv_heads"),
        Size(name="pages"),
        Size(name="table"),
        Scalar(name="scale", value=0.125),
    ),
    workloads=(
        Workload(axes={"seqs": 2, "heads": 6, "kv_heads": 2, "pages": 21, "table": 17}, dtype="float16", devices=("cuda",)),
        Workload(axes={"seqs": 3, "heads": 2, "kv_heads": 2, "pages": 9, "table": 3}, dtype="float16", devices=("cuda",)),
    ),
)
"""
FORMS = {
    "softmax of repeated heads": """\
    groups = query.shape[1] // keys.shape[2]
    k = keys[pages_of.long()].flatten(1, 2).repeat_interleave(groups, dim=2)
    v = values[pages_of.long()].flatten(1, 2).repeat_interleave(groups, dim=2)
    scores = torch.einsum("shd,sthd->sht", query, k) * scale
    scores = scores.masked_fill(torch.arange(k.shape[1])[None, None] >= lengths[:, None, None], float("-inf"))
    out = torch.einsum("sht,sthd->shd", torch.softmax(scores, -1), v)
    lse = torch.logsumexp(scores, -1)
""",
    "shares after the sum, scores capped": """\
    seqs, kv_heads = query.shape[0], keys.shape[2]
    q = query.view(seqs, kv_heads, -1, 64)
    k = keys[pages_of.long()].flatten(1, 2)
    v = values[pages_of.long()].flatten(1, 2)
    scores = (q[:, None] * k[:, :, :, None]).sum(-1).permute(0, 2, 3, 1) * scale
    scores = 5 * torch.tanh(scores / 5)
    there = torch.arange(k.shape[1]) < lengths[:, None]
    scores = torch.where(there[:, None, None], scores, -1e30)
    most = scores.amax(-1, keepdim=True)
    weight = torch.exp(scores - most)
    total = weight.sum(-1, keepdim=True)
    out = (torch.einsum("skgt,stkd->skgd", weight, v) / total).reshape(seqs, -1, 32)
    lse = (most + torch.log(total)).reshape(seqs, -1)
""",
}


def written(folder, form: str) -> tuple:
    reference = f"import torch\n\n\ndef reference(query, keys, values, pages_of, lengths, scale):\n{FORMS[form]}    return {{'out': out, 'lse': lse}}\n"
    (folder / "spec.py").write_text(SPEC)
    (folder / "reference.py").write_text(reference)
    return catalog.load(str(folder)).spec, reference


@pytest.mark.parametrize("form", FORMS)
def test_keys_and_values_stream_by_once_for_all_queries_of_a_head(form, tmp_path):
    spec, reference = written(tmp_path, form)
    program = Meaning(spec, reference).program("float16", 8)
    (kernel,) = program.kernels
    assert isinstance(kernel, StreamKernel) and str(kernel.group) == "heads_kv_heads" and kernel.masked is not None
    check(program, reference)
    text = source(spec, reference)
    (tmp_path / "candidate.cu").write_text(text)
    assert "load_pack<8>(keys + " in text and "load_pack<8>(values + " in text
    done = emulated(tmp_path, tmp_path / "candidate.cu", "0", "1")
    assert done.returncode == 0, done.stdout + done.stderr
