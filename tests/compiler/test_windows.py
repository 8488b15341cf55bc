"""Windows of images, sums over what overlaps, and rows with a few elements more behind them."""

from __future__ import annotations

import pytest

from compiler.compile import Meaning, source
from compiler.draft.expressions import loads_of
from compiler.draft.partition import ROW
from tests.compiler.folders import check_text, folder_of, made

HEAD = "import torch\nimport torch.nn.functional as F\n\n\n"
FORMS = {
    "columns of windows": ("def reference(x): return {'y': F.unfold(x, (3, 2), dilation=(1, 2), padding=(1, 0), stride=(2, 1)).transpose(1, 2)}", "x in n c 2*h w", "y out n h*(w-2) c*6"),
    "a large pool": ("def reference(x): return {'y': F.avg_pool2d(x, 7, 1, 3)}", "x in n c h w", "y out n c h w"),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_windows_are_told_by_where_one_stands(form, tmp_path):
    reference, x, y = FORMS[form]
    sizes = [{"n": 2, "c": 3, "h": 9, "w": 16}, {"n": 1, "c": 2, "h": 8, "w": 7}]
    spec = made(sizes, ("float32",), ("cuda",), tensors=dict(one.split(" ", 1) for one in (x, y)))
    text = source(spec, HEAD + reference + "\n")
    assert (
        "_elements_by_" in text
        and "_rows_" not in text
        and "floor_remainder<int64_t>(" not in text.split("}  // namespace")[-2]
    )
    check_text(folder_of(tmp_path, spec, HEAD + reference + "\n"), text, tmp_path, offsets=(0,))


def test_frames_that_overlap_are_summed_where_they_stand(tmp_path):
    reference = (
        HEAD
        + """\
def reference(x, w):
    n, f, _ = x.shape
    return {"y": F.fold((x * w).transpose(1, 2), (1, f * 4 + 12), (1, 16), stride=(1, 4)).reshape(n, -1)}
"""
    )
    tensors = {"x": "in n f 16", "w": "in 16", "y": "out n f*4+12"}
    spec = made([{"n": 2, "f": 5}, {"n": 3, "f": 1}], ("float32",), ("cuda",), tensors=tensors)
    text = source(spec, reference)
    assert "_phases_" not in text and "_elements_by_4" in text
    check_text(folder_of(tmp_path, spec, reference), text, tmp_path)


def test_a_sink_behind_a_row_leaves_the_row_in_packs(tmp_path):
    reference = (
        HEAD
        + """\
def reference(s, sink):
    whole = torch.cat([s, sink[None, :, None].expand(s.shape[0], -1, 1)], -1)
    return {"y": torch.softmax(whole, -1)[..., :-1], "lse": torch.logsumexp(whole, -1)}
"""
    )
    tensors = {"s": "in n h k", "sink": "in h", "y": "out n h k", "lse": "out n h"}
    spec = made([{"n": 2, "h": 3, "k": 16}, {"n": 3, "h": 2, "k": 5}], ("float32",), ("cuda",), tensors=tensors)
    (kernel,) = Meaning(spec, reference).program("float32", 4).kernels
    assert kernel.width == 4 and {load.args[0].text for load in loads_of(kernel.roots)} >= {"s", "sink"}
    check_text(folder_of(tmp_path, spec, reference), source(spec, reference), tmp_path)


def test_the_largest_few_of_what_lies_across_are_rows_of_their_own(tmp_path):
    reference = (
        HEAD
        + """\
def reference(x):
    w, i = torch.softmax(x, -1).t().topk(3, -1)
    return {"w": w, "i": i}
"""
    )
    tensors = {"x": "in tokens experts", "w": "out experts 3", "i": "out experts 3 int64"}
    sizes = [{"tokens": 4096, "experts": 64}, {"tokens": 9, "experts": 5}, {"tokens": 40, "experts": 4}]
    spec = made(sizes, ("float32",), ("cuda",), timed=1, tensors=tensors)
    assert [kernel.layout for kernel in Meaning(spec, reference).program("float32", 1).kernels] == [ROW, ROW]
    check_text(folder_of(tmp_path, spec, reference), source(spec, reference), tmp_path, offsets=(0,))


def test_columns_of_windows_are_written_by_rows_that_lie_beside_each_other(tmp_path):
    reference = HEAD + "def reference(x): return {'y': F.unfold(x, 3, padding=1).transpose(1, 2)}\n"
    sizes = [{"n": 1, "c": 16, "h": 10, "w": 14}, {"n": 2, "c": 4, "h": 8, "w": 8}, {"n": 1, "c": 3, "h": 2, "w": 5}]
    spec = made(sizes, ("float32",), ("cuda",), tensors={"x": "in n c h w", "y": "out n h*w c*9"})
    text = source(spec, reference)
    assert text.count(" = turned_in_rows(") == 1
    check_text(folder_of(tmp_path, spec, reference), text, tmp_path, offsets=(0,))


def test_bags_of_rows_are_told_by_where_they_begin(tmp_path):
    reference = HEAD + (
        "def reference(table, ids, first, shares):\n"
        "    given = {'mode': 'sum', 'per_sample_weights': shares}\n"
        "    return {'y': F.embedding_bag(ids, table, first, **given), 'z': F.embedding_bag(ids, table, first)}\n"
    )
    tensors = {
        "table": "in rows cols", "ids": "in n int64 index:rows", "first": "in bags int64 starts:n", "shares": "in n",
        "y": "out bags cols", "z": "out bags cols",
    }  # fmt: skip
    sizes = [{"rows": 30, "cols": 8, "n": 40, "bags": 7}, {"rows": 5, "cols": 3, "n": 9, "bags": 4}]
    spec = made(sizes, ("float32",), ("cuda",), tensors=tensors)
    check_text(folder_of(tmp_path, spec, reference), source(spec, reference), tmp_path, offsets=(0,))
