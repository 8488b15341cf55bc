"""Attention of few queries: found by its form whatever it is written as, right in the emulation and in C++."""

from __future__ import annotations

import re

import pytest

from compiler.compile import Meaning, source
from compiler.evaluate import check
from compiler.streams import StreamKernel
from tests.compiler.folders import check_text, every_size, folder_of, made

SPEC = made(
    [
        {"seqs": 2, "heads": 6, "kv_heads": 2, "pages": 21, "table": 17},
        {"seqs": 3, "heads": 2, "kv_heads": 2, "pages": 9, "table": 3},
    ],
    ("float16",), ("cuda",), {"scale": 0.125}, nans=False,
    tensors={
        "query": "in seqs heads 64", "keys": "in pages 8 kv_heads 64", "values": "in pages 8 kv_heads 32",
        "pages_of": "in seqs table int32 index:pages", "lengths": "in seqs int32 integers:1:9", "out": "out seqs heads 32",
        "lse": "out seqs heads float32",
    },
)  # fmt: skip
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
    there = torch.arange(k.shape[1]) < lengths[:, None] - 1
    scores = torch.where(there[:, None, None], scores, -1e30)
    most = scores.amax(-1, keepdim=True)
    weight = torch.exp(scores - most)
    total = weight.sum(-1, keepdim=True)
    out = (torch.einsum("skgt,stkd->skgd", weight, v) / total).reshape(seqs, -1, 32)
    lse = (most + torch.log(total)).reshape(seqs, -1)
""",
    "shares after the sum, a softmax to each block": """\
    seqs, kv_heads = query.shape[0], keys.shape[2]
    q = query.view(seqs, kv_heads, -1, 64)
    k = keys[pages_of.long()].flatten(1, 2)
    v = values[pages_of.long()].flatten(1, 2)
    scores = (q[:, None] * k[:, :, :, None]).sum(-1).permute(0, 2, 3, 1) * scale
    scores = 5 * torch.tanh(scores / 5)
    there = torch.arange(k.shape[1]) < lengths[:, None] - 1
    scores = torch.where(there[:, None, None], scores, float("-inf"))
    most = scores.amax(-1, keepdim=True)
    weight = torch.exp(scores - most)
    total = weight.sum(-1, keepdim=True)
    out = (torch.einsum("skgt,stkd->skgd", weight, v) / total).reshape(seqs, -1, 32)
    lse = (most + torch.log(total)).reshape(seqs, -1)
""",
    "some masked by minus infinity, others then by zero": """\
    seqs, kv_heads = query.shape[0], keys.shape[2]
    k = keys[pages_of.long()].flatten(1, 2)
    at = torch.arange(k.shape[1])
    scores = torch.einsum("skgd,stkd->skgt", query.view(seqs, kv_heads, -1, 64), k) * scale
    scores = scores.masked_fill((at >= lengths[:, None] + 60)[:, None, None], float("-inf")).masked_fill(at >= 40, 0.0)
    most = scores.amax(-1, keepdim=True)
    weight = torch.exp(scores - most)
    total = weight.sum(-1, keepdim=True)
    out = (torch.einsum("skgt,stkd->skgd", weight, values[pages_of.long()].flatten(1, 2)) / total).reshape(seqs, -1, 32)
    lse = (most + torch.log(total)).reshape(seqs, -1)
""",
}


@pytest.mark.parametrize("form", FORMS)
def test_keys_and_values_stream_by_once_for_all_queries_of_a_head(form, tmp_path):
    reference = f"import torch\n\n\ndef reference(query, keys, values, pages_of, lengths, scale):\n{FORMS[form]}    return {{'out': out, 'lse': lse}}\n"
    program = Meaning(SPEC, reference).program("float16", 8)
    (kernel,) = program.kernels
    assert isinstance(kernel, StreamKernel) and str(kernel.group) == "heads_kv_heads" and kernel.masked is not None
    check(program, reference)
    text = source(SPEC, reference)
    assert ("shares[kMostParts]" in text) == ("each block" in form)
    assert re.search(r"bring\(&key_pack_\w+\[.*\], keys \+ ", text) and re.search(
        r"bring\(&value_pack_\w+\[.*\], values \+ ", text
    )
    check_text(folder_of(tmp_path, SPEC, reference), text, tmp_path)


MANY = {
    "of four bytes a pair": ("bfloat16", 128, 64, """\
    grouped = query.view(seqs, kv_heads, -1, 128) * scale
    scores = torch.einsum("skgd,sktd->skgt", grouped.float(), keys.float())
"""),
    "scored, then scaled": ("float16", 64, 128, """\
    grouped = query.view(seqs, kv_heads, -1, 64)
    scores = torch.einsum("skgd,sktd->skgt", grouped, keys) * scale
"""),
}  # fmt: skip


@pytest.mark.parametrize("fill", ["-1e30", 'float("-inf")'])
@pytest.mark.parametrize("form", MANY)
def test_tensor_cores_take_the_queries_of_a_group(form, fill, tmp_path):
    """Groups of 8, 7, 5 and 1; keys that no stage divides; a row that is masked whole, whose values are all read. Where what is masked has no
    weight beside anything, blocks of a cluster have a softmax each."""
    dtype, depths, columns, scored = MANY[form]
    spec = made(
        [
            {"seqs": 2, "heads": 16, "kv_heads": 2, "tokens": 150}, {"seqs": 1, "heads": 7, "kv_heads": 1, "tokens": 33},
            {"seqs": 1, "heads": 10, "kv_heads": 2, "tokens": 64}, {"seqs": 2, "heads": 2, "kv_heads": 2, "tokens": 5},
        ],
        (dtype,), ("cuda",), {"scale": 0.125}, nans=False,
        tensors={
            "query": f"in seqs heads {depths}", "keys": f"in seqs kv_heads tokens {depths}", "values": f"in seqs kv_heads tokens {columns}",
            "lengths": "in seqs int32 integers:0:5", "out": f"out seqs heads {columns}",
        },
    )  # fmt: skip
    reference = f"""import torch


def reference(query, keys, values, lengths, scale):
    seqs, kv_heads = keys.shape[:2]
{scored}    behind = torch.arange(keys.shape[2]) >= (lengths[:, None] - 2) * 40
    weights = torch.softmax(scores.masked_fill(behind[:, None, None], {fill}), -1)
    return {{"out": torch.einsum("skgt,sktd->skgd", weights, values.to(weights.dtype)).reshape(seqs, -1, {columns})}}
"""
    text = source(spec, reference)
    assert "_tiles<1, 8>" in text and "multiply_halves" in text and ("shares[kMostParts]" in text) == ("inf" in fill)
    check_text(
        folder_of(tmp_path, spec, reference),
        text,
        tmp_path,
        offsets=(0,),
        sized=every_size(spec),
    )


LATENT = {
    "576, of which 512 are the value": (576, 512, 0, "bfloat16", [
        {"seqs": 2, "heads": 16, "pages": 5, "blocks": 9}, {"seqs": 1, "heads": 128, "pages": 3, "blocks": 1}, {"seqs": 2, "heads": 2, "pages": 3, "blocks": 2},
    ]),
    "128, of which the last 64 are the value": (128, 64, 64, "float16", [{"seqs": 2, "heads": 11, "pages": 5, "blocks": 9}]),
}  # fmt: skip


@pytest.mark.parametrize("form", LATENT)
def test_a_value_that_is_a_slice_of_its_key_is_read_once(form, tmp_path):
    """All queries of a sequence read the same key. Sequences of no key, of one and of a part of their last page."""
    depths, columns, first, dtype, sizes = LATENT[form]
    spec = made(
        sizes, (dtype,), ("cuda",), {"scale": 0.0417}, nans=False,
        tensors={
            "query": f"in seqs heads {depths}", "cache": f"in pages 16 {depths}", "table": "in seqs blocks int32 index:pages",
            "lengths": "in seqs int32 integers:0:5", "out": f"out seqs heads {columns}",
        },
    )  # fmt: skip
    reference = f"""import torch


def reference(query, cache, table, lengths, scale):
    keys = cache[table.long()].view(query.shape[0], -1, {depths})
    scores = torch.einsum("shd,std->sht", query, keys) * scale
    behind = torch.arange(keys.shape[1]) >= lengths[:, None] * 37
    weights = torch.softmax(scores.masked_fill(behind[:, None], float("-inf")), -1)
    return {{"out": torch.einsum("sht,std->shd", weights, keys[..., {first} : {first + columns}])}}
"""
    text = source(spec, reference)
    assert "_tiles<0, 8>" in text and "bring_or_zero(key_pack" in text and "bring_or_zero(value_pack" not in text
    check_text(folder_of(tmp_path, spec, reference), text, tmp_path, offsets=(0,), sized=every_size(spec))
