"""Work of few units or one: the whole grid shares it, phases in kernels of their own beside those of all else."""

from __future__ import annotations

import pytest

from compiler import apart
from compiler.compile import source
from tests.compiler.folders import check_text, folder_of, made
from tests.compiler.test_phases import SEGMENT_TENSORS, SEGMENTS, WHOLE, kernel_of

VOXELS = """\
import torch


def reference(f, i, v):
    b, c, n = f.shape
    count = torch.zeros(b, v, dtype=f.dtype, device=f.device).scatter_add(1, i, torch.ones(b, n, dtype=f.dtype, device=f.device))
    total = torch.zeros(b, c, v, dtype=f.dtype, device=f.device).scatter_add(2, i[:, None].expand(b, c, n), f)
    return {"y": total / count.clamp(min=1)[:, None]}
"""
HISTOGRAM = """\
import torch


def reference(i, n, v):
    count = torch.zeros(i.shape[0], v, dtype=torch.int64, device=i.device).scatter_add(1, i, torch.ones_like(i))
    return {"y": count - torch.gather(count, 1, i[:, :1])}
"""


def _texts(tmp_path, reference: str, tensors: dict[str, str], sizes: list[dict[str, int]]) -> str:
    """A large size decides and is timed, the others are run."""
    tmp_path.mkdir(exist_ok=True)
    kernel = folder_of(tmp_path, made(sizes, timed=1, tensors=tensors), reference)
    text = source(kernel.spec, reference)
    check_text(kernel, text, tmp_path, offsets=(0,))
    check_text(kernel, source(kernel.spec, reference, device="cpu"), tmp_path, "cpu", (0,))
    return text


def test_few_units_of_much_work_keep_the_device_busy(tmp_path):
    """Voxels of eight clouds were eight blocks, 1126 us beside 124 of torch (H200)."""
    tensors = {"f": "in b c n", "i": "in b n int64 index:v", "y": "out b c v"}
    sizes = [
        {"b": 8, "c": 64, "n": 16384, "v": 4096},
        {"b": 2, "c": 3, "n": 40, "v": 5},
        {"b": 1, "c": 2, "n": 9, "v": 33},
    ]
    text = _texts(tmp_path, VOXELS, tensors, sizes)
    assert "(unit_2 / c)" in text, "each channel of a cloud is a unit, which counts the cloud's points for itself"
    more = {"i": "in b n int64 index:v", "y": "out b v int64"}
    text = _texts(tmp_path / "whole", HISTOGRAM, more, [{"b": 4, "n": 1 << 20, "v": 512}, {"b": 3, "n": 50, "v": 6}])
    assert "launch_one_unit" in text, "the grid shares every phase"


ONCE = """\
import torch


def reference(x, ids, cap):
    b, t, h = x.shape
    c = x.reshape(b, t // 4, 4, h).flip(2).cumsum(2).flip(2).reshape(b, t, h)
    hot = torch.nn.functional.one_hot(ids, 9)
    place = ((torch.cumsum(hot, 1) - 1) * hot).sum(-1)
    ordered = x.sort(1).values.cumsum(1)
    return {"y": c, "z": torch.where(place < cap, place, -1), "w": 2 * ordered + x}
"""


def test_what_follows_from_a_result_is_done_where_it_is_made(tmp_path):
    tensors = {"x": "in b 4*t h", "ids": "in b 4*t int64 integers:0:9", "cap": "in 1 int64 integers:0:5"}
    tensors |= {"y": "out b 4*t h", "z": "out b 4*t int64", "w": "out b 4*t h"}
    sizes = [{"b": 64, "t": 8, "h": 8}, {"b": 2, "t": 1, "h": 3}, {"b": 1, "t": 5, "h": 4}]
    text = _texts(tmp_path, ONCE, tensors, sizes)
    assert "NoPlaces{})" in text or "NoPlaces{}, " in text
    assert text.count(" phase_scan<") == 6 and text.count("_bytes = (int64_t(") == 4, (
        "in two widths: three scans; one order, one count is kept"
    )


EDGES = """\
import torch


def reference(x, p, src, dst, seg):
    m = torch.relu(x[src] * p)
    total = torch.zeros_like(x).index_add(0, dst, m)
    most = torch.full_like(x, -torch.inf).scatter_reduce(0, dst[:, None].expand_as(m), m, "amax")
    alpha = m - m * total[dst]
    order = (dst * 2 - src).argsort(stable=True)
    upto = torch.softmax(p.sum(1), 0).cumsum(0)
    return {
        "y": total / (1 + x.square().sum(-1, keepdim=True)), "z": alpha, "most": torch.where(most == -torch.inf, 0, most),
        "places": order, "upto": upto, "level": torch.bucketize(seg, dst.sort().values),
    }
"""


def test_what_goes_through_memory_is_kernels_of_the_grid_beside_others_in_packs(tmp_path):
    tensors = {
        "x": "in n d", "p": "in e d", "src": "in e int64 index:n", "dst": "in e int64 index:n", "seg": "in e int64 index:n",
        "y": "out n d", "z": "out e d", "most": "out n d", "places": "out e int64", "upto": "out e", "level": "out e int64",
    }  # fmt: skip
    sizes = [
        {"n": 2048, "e": 8192, "d": 64},
        {"n": 3, "e": 20, "d": 8},
        {"n": 40, "e": 9, "d": 3},
        {"n": 1, "e": 1, "d": 4},
    ]
    text = _texts(tmp_path, EDGES, tensors, sizes)
    assert "_elements_by_4" in text and text.count("launch_one_unit<decltype") > 4


@pytest.mark.parametrize("reference", [WHOLE, SEGMENTS])
def test_what_the_grid_shares_is_right_in_kernels_of_its_own(reference, tmp_path, monkeypatch):
    monkeypatch.setattr(apart, "SPREAD_ELEMENTS", 0)
    reference += "# of another text, whose source is not remembered\n"
    sizes = [{"segments": s, "total": t, "cols": c} for s, t, c in ((3, 70, 5), (40, 33, 1), (2, 900, 8))]
    segments = folder_of(tmp_path, made(sizes, tensors=SEGMENT_TENSORS), reference) if SEGMENTS in reference else None
    kernel = segments or kernel_of(tmp_path, reference, ((3, 9), (40, 16)))
    text = source(kernel.spec, reference)
    assert "_elements_" in text
    for spread in (False, True):
        check_text(
            kernel, text.replace("kSpreadFrom = 65536", "kSpreadFrom = 0") if spread else text, tmp_path, offsets=(0,)
        )


def test_rows_of_a_run_are_joined_before_they_go_to_memory(tmp_path):
    tensors = {
        "x": "in n d",
        "p": "in e d",
        "src": "in e int64 index:n",
        "dst": "in e int64 index:n",
        "seg": "in e int64 index:n",
    }
    tensors |= {
        "y": "out n d",
        "z": "out e d",
        "most": "out n d",
        "places": "out e int64",
        "upto": "out e",
        "level": "out e int64",
    }
    sizes = [{"n": 2048, "e": 8192, "d": 64}, {"n": 3, "e": 40, "d": 8}, {"n": 30, "e": 19, "d": 4}]
    kernel = folder_of(tmp_path, made(sizes, timed=1, tensors=tensors), EDGES)
    text = source(kernel.spec, EDGES)
    assert "phase_join_all<Sums, true>" in text
    for few, many in (
        ("kSpreadFrom = 65536", "kSpreadFrom = 0"),
        ("INT64_C(1) << 19", "1"),
        ("16 * places", "INT64_MAX"),
    ):
        assert few in text
        text = text.replace(few, many)
    check_text(kernel, text, tmp_path, offsets=(0,))


TRIANGLES = """\
import torch


def reference(x):
    b, f, d = x.shape
    z = torch.bmm(x, x.transpose(1, 2))
    (i, j), (k, l) = torch.tril_indices(f, f, -1, device=x.device), torch.triu_indices(f, f, device=x.device)
    return {"y": torch.cat([x[:, 0], z[:, i, j]], 1), "z": z[:, k, l]}
"""


def test_triangles_of_products_of_an_open_size_are_picked_behind_tiles(tmp_path):
    tensors = {"x": "in b f d", "y": "out b d+(f*(f-1)//2)", "z": "out b (f*(f+1)//2)"}
    sizes = [{"b": 8192, "f": 27, "d": 64}, {"b": 2, "f": 3, "d": 8}, {"b": 3, "f": 2, "d": 5}]
    text = _texts(tmp_path, TRIANGLES, tensors, sizes)
    assert "_tiles_by_" in text


TAIL = """\
import torch


def reference(q, cs, p):
    c, s = cs[p][:, None].chunk(2, -1)
    a, b = q[..., 16::2], q[..., 17::2]
    return {"y": torch.cat([q[..., :16], torch.stack([a * c - b * s, b * c + a * s], -1).flatten(-2)], -1)}
"""


def test_an_interleaved_rotation_of_a_heads_tail_goes_in_packs(tmp_path):
    tensors = {"q": "in t h 24", "cs": "in pos 8", "p": "in t int64 index:pos", "y": "out t h 24"}
    text = _texts(
        tmp_path, TAIL, tensors, [{"t": 64, "h": 8, "pos": 9}, {"t": 3, "h": 2, "pos": 4}, {"t": 1, "h": 1, "pos": 1}]
    )
    assert "load_pack<4>(q + pack * 4)" in text, "both halves read the pack that is written"


DOWN = """\
import torch


def reference(x, ids):
    return {"y": x.cumsum(0), "z": (3 * x).logcumsumexp(0), "w": x.cummax(0)[0] - x, "i": torch.nn.functional.one_hot(ids, 17).cumsum(0)}
"""


def test_long_columns_side_by_side_are_scanned_in_parts(tmp_path):
    tensors = (
        {"x": "in t h", "ids": "in t int64 integers:0:17"} | dict.fromkeys("yzw", "out t h") | {"i": "out t 17 int64"}
    )
    sizes = [{"t": 16384, "h": 64}, {"t": 301, "h": 20}, {"t": 70, "h": 33}, {"t": 5, "h": 16}, {"t": 100, "h": 3}]
    kernel = folder_of(tmp_path, made(sizes, timed=1, tensors=tensors), DOWN)
    text = source(kernel.spec, DOWN)
    assert text.count(", true>(span") >= 4 and "kSpreadFrom = 65536" in text
    for whole in (text, text.replace("kSpreadFrom = 65536", "kSpreadFrom = 0")):
        check_text(kernel, whole, tmp_path, offsets=(0,))


ROWS_ADDED = """\
import torch


def reference(x, p, src, dst):
    m = torch.relu(x[src] * p)
    return {"y": torch.zeros_like(x).index_add(0, dst, m) * 2, "z": x.index_add(0, dst, m, alpha=0.5), "w": torch.cat([x, x]).index_add(0, dst * 2, m)}
"""


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rows_that_go_to_one_place_are_summed_by_whoever_writes_it(dtype, tmp_path):
    tensors = {"x": "in n d", "p": "in e d", "src": "in e int64 index:n", "dst": "in e int64 index:n"}
    tensors |= {"y": "out n d", "z": "out n d", "w": "out 2*n d"}
    sizes = [
        {"n": 131072, "e": 2097152, "d": 64},
        {"n": 2, "e": 300, "d": 8},
        {"n": 40, "e": 19, "d": 3},
        {"n": 1, "e": 1, "d": 4},
    ]
    kernel = folder_of(tmp_path, made(sizes, (dtype,), timed=1, tensors=tensors), ROWS_ADDED)
    text = source(kernel.spec, ROWS_ADDED)
    assert text.count("phase_add_rows<int, 64, 4>") == 2 and text.count("phase_add_rows<int, 32, 4>") == 1, (
        "in packs; what there is before is read where the sums begin"
    )
    for whole in (text, text.replace("kSpreadFrom = 65536", "kSpreadFrom = 0")):
        check_text(kernel, whole, tmp_path, offsets=(0, 1))
