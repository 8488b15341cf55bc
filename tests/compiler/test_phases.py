"""Sorts, scans, counts and scatters: definitions one after another in memory of a block's own, on both devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from compiler import defaults
from compiler.compile import Meaning, source
from compiler.evaluate import check
from compiler.frontend import NoProgram
from kernels import catalog
from tests.compiler.folders import built, check_limits, check_text, folder_of, made
from tests.nodes.rewrites.emulate.emulation import run

FLOATS, IDS = ("ordered", "total", "most", "kept", "joined"), ("places", "back", "level", "ranks", "most_ids")
TENSORS = {
    "x": "in rows cols", "ids": "in rows cols int64 integers:0:9", "edge": "in cols", **dict.fromkeys(FLOATS, "out rows cols"),
    **dict.fromkeys(IDS, "out rows cols int64"), "counts": "out rows cols int32", "few": "out rows 9",
}  # fmt: skip
ROWS = """\
import torch


def reference(x, ids, edge):
    ordered, places = torch.sort(x * 2, dim=-1, descending=True, stable=True)
    total = torch.softmax(x, -1).sort(-1).values.cumsum(-1)
    counts = torch.zeros_like(ids).scatter_add(1, ids % x.shape[1], torch.ones_like(ids))
    kept = x.clone()
    kept[:, 0] = 7
    back = torch.empty_like(places).scatter_(1, places, torch.arange(x.shape[1]).expand_as(places))
    return {
        "ordered": ordered, "places": places, "total": total, "most": x.cummax(1)[0] + x.flip(1).cummin(1)[0].flip(1), "counts": counts,
        "kept": torch.where(total > 0.3, x, kept), "back": back, "level": torch.bucketize(x, edge.sort().values), "few": x.topk(9)[0],
        "ranks": (x * 1.5).argsort(dim=-1, stable=True), "joined": x.scatter_reduce(1, ids % x.shape[1], 2 * x, "mean"),
        "most_ids": ids.scatter_reduce(1, ids % x.shape[1], 2 * ids, "amax"),
    }
"""
WHOLE = """\
import torch


def reference(x, ids, edge):
    flat = ids.flatten() % x.shape[0]
    order = flat.argsort(stable=True)
    ends = torch.bincount(flat, minlength=x.shape[0]).cumsum(0)
    rows = torch.repeat_interleave(torch.arange(x.shape[0]), ends.diff(prepend=torch.zeros(1, dtype=torch.int64)), output_size=flat.numel())
    sums = torch.zeros_like(x).index_add(0, ids[:, 0] % x.shape[0], x)
    sums[flat[:2]] = x[0]
    added = torch.zeros(x.shape[1], dtype=torch.int64)
    added.index_put_((ids.flatten() % x.shape[1],), torch.ones_like(flat), accumulate=True)
    firsts = torch.bincount(ids[:, 0] % x.shape[0], minlength=x.shape[0]).cumsum(0)
    segments = torch.zeros_like(x).index_add(0, torch.searchsorted(firsts, torch.arange(x.shape[0]), right=True), x)
    one_hot = torch.nn.functional.one_hot(ids[:, 0] % 9, 9)
    row = ids[:, 0] % x.shape[0]
    highest = torch.full_like(x, -torch.inf).scatter_reduce(0, row[:, None].expand_as(x), x, "amax")
    means = x.index_reduce(0, row, x, "mean", include_self=False) + x.index_reduce(0, row, 2 * x, "amin")
    few = torch.zeros_like(ids).scatter_reduce(1, ids % x.shape[1], ids, "amax")
    return {
        "ordered": x.cumsum(0), "places": order.view(x.shape), "total": sums, "joined": torch.exp(x - highest[row]) + means, "most_ids": few, "most": x.sort(0)[0], "counts": added.expand_as(ids),
        "kept": segments + ends[-1], "back": rows.view(x.shape), "level": ids, "few": one_hot.cumsum(0),
        "ranks": (x * 1.5).argsort(dim=0, stable=True),
    }
"""
SIZES = ((3, 16), (2, 301), (17, 9))


def kernel_of(tmp_path, reference: str, sizes=SIZES):
    return folder_of(tmp_path, made([{"rows": r, "cols": c} for r, c in sizes], tensors=TENSORS), reference)


@pytest.mark.parametrize("reference", [ROWS, WHOLE])
def test_what_goes_through_memory_is_right_on_both_devices(reference, tmp_path):
    kernel = kernel_of(tmp_path, reference)
    for device in ("cpu", "cuda"):
        check_text(kernel, source(kernel.spec, reference, device=device), tmp_path, device, (0,))


def test_the_whole_grid_shares_one_unit(tmp_path):
    """Where every place counts as one of few, and where none does."""
    kernel = kernel_of(tmp_path, WHOLE)
    text = source(kernel.spec, WHOLE)
    assert "phase_ranks(" in text, "where rows of a segment stand is found once for all of them"
    for few, many in (
        ("kSpreadFrom = 65536", "kSpreadFrom = 0"),
        ("kSortRun = 2048", "kSortRun = 8"),
        ("16 * places", "0 * places"),
        ("INT64_C(1) << 19", "1"),
    ):
        assert few in text
        text = text.replace(few, many)
    check_limits(kernel, text, tmp_path, "kFewPlaces", [0])


SHORT = """\
import torch


def reference(x, ids, edge):
    total = (x * 2).cumsum(-1)
    places = (ids > 2).long().cumprod(-1) + ids.flip(1).cumsum(1).flip(1)
    counts = torch.zeros_like(ids).scatter_add(1, ids % x.shape[1], torch.ones_like(ids))
    parts = torch.cat([torch.exp(total[:, :1]), total[:, :-1]], -1)[..., None] * torch.stack([x, edge * x, -x], -1)
    sums, outer = parts.sum(1), (total[:, None] * x[..., None]).sum(-1)
    return {
        "total": total, "places": places, "counts": counts, "most": x.cummax(1)[0] * sums[:, :1] + sums[:, 1:2] - sums[:, 2:],
        "kept": outer, "few": total.amax(-1, keepdim=True).expand(-1, 9), "joined": x.scatter_reduce(1, ids % x.shape[1], x, "amin"),
        "ordered": x, "back": ids, "level": ids, "ranks": ids, "most_ids": ids,
    }
"""


def test_short_units_are_had_by_teams_of_a_warp(tmp_path):
    kernel = kernel_of(tmp_path, SHORT, ((3, 16), (5, 301), (17, 9), (33, 5)))
    text = source(kernel.spec, SHORT)
    assert "<TeamSpan>" in text and "kTeamUnits = 512" in text
    check_limits(kernel, text, tmp_path, "kTeamUnits", [0])


def test_a_unit_of_more_memory_than_a_block_has_takes_the_streams(tmp_path):
    reference = ROWS.replace("* 2", "* 3")
    kernel = kernel_of(tmp_path, reference, ((2, 700),))
    text = source(kernel.spec, reference).replace("kPhaseBytes = 200 << 10", "kPhaseBytes = 1 << 10")
    check_text(kernel, text, tmp_path, offsets=(0,))


def test_rows_are_sorted_in_registers(tmp_path):
    reference = "import torch\n\n\ndef reference(x, ids):\n    values, places = torch.sort((x * 8).floor(), dim=-1, stable=True)\n    return {'y': values, 'i': places, 'j': torch.sort(ids, dim=-1, descending=True, stable=True)[1]}\n"
    tensors = {"x": "in rows cols", "ids": "in rows cols int32 integers:0:9", "y": "out rows cols", "i": "out rows cols int64", "j": "out rows cols int64"}  # fmt: skip
    kernel = folder_of(
        tmp_path, made([{"rows": 1, "cols": c} for c in (40, 300, 700, 1500)], tensors=tensors), reference
    )
    text = (
        source(kernel.spec, reference)
        .replace("kManyUnits = 512", "kManyUnits = 0")
        .replace("units >= kManyUnits && unit_bytes <= 8 << 10", "true")
    )
    check_text(kernel, text, tmp_path, offsets=(0,))


def test_moe_align_is_right_on_both_devices(tmp_path):
    kernel = catalog.load("moe_align")
    reference = (kernel.folder / "reference.py").read_text()
    library = built(source(kernel.spec, reference, device="cpu"), tmp_path)
    for sized in (w for w in kernel.spec.workloads if not w.timed and "cpu" in w.devices):
        assert run(kernel.spec, kernel, library, sized) == "", sized.label
    check_text(kernel, source(kernel.spec, reference), tmp_path, offsets=(0,))


def test_many_reductions_go_through_memory_on_a_gpu():
    kernel = catalog.load("grouped_topk_gating")
    text = source(kernel.spec, (kernel.folder / "reference.py").read_text())
    assert "phase_first<8, true" in text and ", tokens, most_of(" in text, "a block to a token"


def test_what_one_block_would_do_for_seconds_is_not_offered_on_a_gpu(monkeypatch):
    """An attention's two products, one after the other in a block, had not ended after 20 s where the baseline took 0.5 ms (H200)."""
    kernel = catalog.load("moe_align")
    reference = (kernel.folder / "reference.py").read_text()
    steps = max(w.axes["tokens"] for w in kernel.spec.suite("cuda") if w.timed)
    monkeypatch.setattr(defaults, "STEPS_A_SECOND", steps / 10)
    with pytest.raises(NoProgram, match="would follow each other in one block, for .* s or more at"):
        source(kernel.spec, reference)
    assert source(kernel.spec, reference, device="cpu")


def test_what_a_program_does_not_mean_is_found(tmp_path):
    kernel = kernel_of(tmp_path, ROWS)
    program = Meaning(kernel.spec, ROWS).program("float32", 1)
    check(program, ROWS)
    with pytest.raises(NoProgram, match="disagrees"):
        check(program, ROWS.replace("x * 2", "x * 3"))


def test_what_no_phase_does_is_one_sentence():
    kernel = catalog.load(str(Path(__file__).parents[1] / "inputs" / "tools" / "half_product"))
    other = (kernel.folder / "reference.py").read_text().replace("a @ b", "torch.special.bessel_j0(a) @ b")
    with pytest.raises(NoProgram, match="the reference calls special_bessel_j0, which has no kernel of the compiler's"):
        source(kernel.spec, other)


CODES = """\
import torch


def reference(state, code, book):
    levels = book.sort().values
    now = state + levels[code.long()]
    top = now.abs().amax(1, keepdim=True)
    middle = (levels[1:] + levels[:-1]) / 2
    return {"state": now, "code": torch.searchsorted(middle, (now / top).contiguous()).to(torch.uint8)}
"""


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_what_changes_in_place_beside_a_sort_is_copied_first(device, tmp_path):
    """An optimiser's state in codes of a table that is sorted here."""
    tensors = {"state": "inout n 32", "code": "inout n 32 uint8 integers:0:16", "book": "in 16 range:-1:1"}
    spec = made([{"n": 37}, {"n": 1}], devices=(device,), tensors=tensors)
    check_text(folder_of(tmp_path, spec, CODES), source(spec, CODES, device=device), tmp_path, device, offsets=(0,))


COMPOSED = """\
import torch


def reference(x, ids, edge):
    places = ids % x.shape[1]
    total = x.kthvalue(3, -1, keepdim=True).values * edge + x.median(-1, keepdim=True).values + x.median(0).values + x.median()
    total = total + torch.quantile(x, 0.3, dim=-1, keepdim=True) + x.unfold(1, 4, 2).sum(-1)[:, :1] + torch.copysign(x, edge)
    total = total + torch.diag_embed(x).sum(-1) + x.masked_scatter(x > 0, x.flip(0)) + torch.histc(x, 4, -1, 1).sum()
    total = total + torch.linalg.cross(x[:, :3], x[:, 3:6]).sum(-1, keepdim=True) + x.logcumsumexp(-1)
    return {name: total if name == "joined" else x if TYPES[name] else ids for name in TYPES} | {"few": x[:, :9]}
"""
WINDOWS = """\
import torch


def reference(x, ids, edge):
    image, weight = x[:, None, :8].unflatten(2, (2, 4)), edge[:6].view(1, 1, 2, 3)
    mixed = torch.nn.functional.conv2d(image, weight, padding=(1, 1)).flatten(1)[:, :1]
    found = torch.nn.functional.max_pool2d(image, 2, stride=1, padding=1, return_indices=True)[1].flatten(1)[:, :1]
    grid = edge[:8].view(1, 1, 4, 2).expand(x.shape[0], 1, 4, 2)
    sampled = torch.nn.functional.grid_sample(image, grid, align_corners=True).flatten(1)[:, :1]
    turned = torch.bmm(x[:, :4].unflatten(1, (2, 2)), x[:, 4:8].unflatten(1, (2, 2))).flatten(1)[:, :1]
    one, other = (torch.view_as_complex(part.contiguous()) for part in (x[:, :8].unflatten(1, (4, 2)), edge[:8].view(4, 2)))
    spun = torch.view_as_real(one * other / (1 + other.abs())).flatten(1)[:, 3:4]
    total = (mixed + sampled + turned + spun).expand(x.shape)
    return {name: total if name == "joined" else x if TYPES[name] else found.expand(ids.shape) for name in TYPES} | {"few": x[:, :9]}
"""


@pytest.mark.parametrize("reference", [COMPOSED, WINDOWS])
def test_functions_by_others_that_are_lowered_are_right(reference, tmp_path):
    types = {name: name in FLOATS for name in (*FLOATS, *IDS, "counts")}
    reference = reference.replace("\n\n\ndef", f"\n\nTYPES = {types}\n\n\ndef")
    kernel = kernel_of(tmp_path, reference)
    check_text(kernel, source(kernel.spec, reference), tmp_path, offsets=(0,))


@pytest.mark.parametrize("drawn", ["normal:0:3", "integers:-3:4"])
def test_values_of_some_rank_are_found_by_counting(drawn, tmp_path):
    """Rows longer than are ordered by asking all of each; equal values; the first rank; by a block or a cluster (from 32 elements)."""
    spec = made(
        [{"rows": 3, "cols": 300}, {"rows": 2, "cols": 1025}], ("float32",), ("cuda",),
        tensors={"x": f"in rows cols {drawn}", "y": "out rows"},
    )  # fmt: skip
    reference = """import torch


def reference(x):
    return {"y": x.median(-1).values + 10 * (x - 1).kthvalue(1, -1).values + x.abs().quantile(0.9, -1)}
"""
    text = source(spec, reference)
    assert "phase_nth<" in text and "ClusterSpan span;" in text and "kLeastOfBlock = 4096" in text
    check_limits(folder_of(tmp_path, spec, reference), text, tmp_path, "kLeastOfBlock", [32])


REACHED = """\
import torch


def reference(x, share):
    falling = x.sort(-1, descending=True).values
    reached = falling.cumsum(-1) >= share[:, None]
    least = falling.gather(1, reached.int().argmax(-1, keepdim=True))
    kept = torch.where(x >= least, x, 0)
    return {"y": kept, "z": kept.sum(-1)}
"""


@pytest.mark.parametrize(("drawn", "share"), [("integers:-3:4", "integers:-9:300"), ("integers:-3:1", "integers:-2:2")])
def test_where_a_running_sum_is_enough_is_found_without_an_order(drawn, share, tmp_path):
    """Sums that are exact: so it is the same value in whatever order they are added. Shares that none, or nothing, reaches; zeros; equal values."""
    spec = made(
        [{"rows": 3, "cols": 300}, {"rows": 9, "cols": 35}, {"rows": 2, "cols": 4100}], ("float32",),
        tensors={"x": f"in rows cols {drawn}", "share": f"in rows {share}", "y": "out rows cols", "z": "out rows"},
    )  # fmt: skip
    kernel = folder_of(tmp_path, spec, REACHED)
    text = source(spec, REACHED)
    assert "phase_reach(span" in text
    check_limits(kernel, text, tmp_path, "kLeastOfBlock", [32])
    cpu = source(spec, REACHED, device="cpu")
    assert "phase_reach(1, " in cpu
    check_text(kernel, cpu, tmp_path, "cpu", (0,))


def test_an_order_that_others_read_stays(tmp_path):
    """Who reads the running sum, or its end where the values rise, gets both."""
    spec = made(
        [{"rows": 3, "cols": 70}], ("float32",),
        tensors={"x": "in rows cols integers:-3:4", "share": "in rows integers:-9:90", "y": "out rows cols", "z": "out rows"},
    )  # fmt: skip
    for there, instead in (("kept.sum(-1)", "falling.cumsum(-1)[:, 3]"), ("descending=True", "descending=False")):
        reference = REACHED.replace(there, instead)
        text = source(spec, reference)
        assert "phase_reach(span" not in text and reference != REACHED
        check_text(folder_of(tmp_path, spec, reference), text, tmp_path, offsets=(0,))


def test_places_in_large_windows_are_refused(tmp_path):
    reference = """\
import torch


def reference(x, ids, edge):
    image = x[:, None, :32].unflatten(2, (4, 8))
    found = torch.nn.functional.max_pool2d(image, (4, 5), stride=1, return_indices=True)[1].flatten(1)[:, :1].expand(ids.shape)
    return {name: x for name in ("ordered", "total", "most", "kept", "joined")} | {
        name: found for name in ("places", "counts", "back", "level", "ranks", "most_ids")
    } | {"few": x[:, :9]}
"""
    kernel = kernel_of(tmp_path, reference, ((3, 64),))
    with pytest.raises(NoProgram, match="max_pool2d"):
        source(kernel.spec, reference)


HANDED_ON = """\
import torch


def reference(x):
    scale = x.abs().amax(0).clamp(min=1e-6)
    rows = x - torch.logsumexp(x, 1, keepdim=True)
    return {"scaled": x / scale, "balanced": rows - torch.logsumexp(rows, 0), "unit": x / x.square().sum().sqrt()}
"""
LARGE, SMALL = {"rows": 4096, "cols": 4096}, [{"rows": 3, "cols": 17}, {"rows": 70, "cols": 64}, {"rows": 1, "cols": 4}]
OWN = {"x": "in rows cols", **dict.fromkeys(("scaled", "balanced", "unit"), "out rows cols")}


def test_large_reductions_are_kernels_of_their_own_that_hand_on_in_memory(tmp_path):
    """A block for all of it took 150 us for balanced rows of 256 x 256, and a thread to a column 3 ms for 4096 x 4096 (H200)."""
    kernel = folder_of(tmp_path, made([LARGE, *SMALL], timed=1, tensors=OWN), HANDED_ON)
    for device in ("cpu", "cuda"):
        text = source(kernel.spec, HANDED_ON, device=device)
        check_text(kernel, text, tmp_path, device, (1, 2, 3))
        if device == "cpu":  # by several threads
            check_text(kernel, text, tmp_path, device, (1,), ("float32:rows=600,cols=512",))
    meaning = Meaning(kernel.spec, HANDED_ON)
    schedule = meaning.first_schedule("sm_90", "cuda")
    sketches = [plan.sketch.sketch for plan in schedule.versions["float32"][0].kernels]
    # The largest of columns; of rows two sums in one pass, the whole's in parts; two reductions of columns; the parts' sum; the maps.
    assert sketches == ["columns", "rows", "columns", "columns", "rows", "elements"]


def test_what_one_block_does_at_once_stays_in_one(tmp_path):
    spec = made([{"rows": 8, "cols": 64}], tensors=OWN)
    schedule = Meaning(spec, HANDED_ON).first_schedule("sm_90", "cuda")
    assert [plan.sketch.sketch for plan in schedule.versions["float32"][0].kernels] == ["phases"]


NEAREST = """\
import torch


def reference(q, k):
    values, places = ((q[:, None] * k[None]).sum(-1) * torch.rsqrt(k.square().sum(-1) + 1e-6)).topk(4, -1)
    return {"v": values, "i": places}
"""


def test_short_rows_beside_long_ones_are_taken_by_teams(tmp_path):
    tensors = {"q": "in rows d", "k": "in n d", "v": "out rows 4", "i": "out rows 4 int64"}
    large, small = {"rows": 8, "n": 16384, "d": 128}, [{"rows": 2, "n": 40, "d": 8}, {"rows": 3, "n": 9, "d": 5}]
    kernel = folder_of(tmp_path, made([large, *small], timed=1, tensors=tensors), NEAREST)
    meaning = Meaning(kernel.spec, NEAREST)
    first = meaning.first_schedule("sm_90", "cuda").versions["float32"][0]
    sketches = [plan.sketch for plan in first.kernels]
    assert [(bool(one.team), one.by_size) for one in sketches] == [(True, False), (True, False), (False, True)]
    check_text(kernel, source(kernel.spec, NEAREST), tmp_path, offsets=(0,))


SEGMENTS = """\
import torch


def reference(x, start, other):
    rows = torch.repeat_interleave(torch.arange(start.shape[0] - 1), start.diff(), output_size=x.shape[0])
    at = rows[:, None].expand_as(x)
    most = torch.full((start.shape[0] - 1, x.shape[1]), -torch.inf, dtype=x.dtype).scatter_reduce(0, at, x, "amax")
    least = torch.full((start.shape[0] - 1, x.shape[1]), torch.inf, dtype=x.dtype).scatter_reduce(0, at, x, "amin")
    e = torch.exp(x - most[rows])
    total = torch.zeros_like(most).index_add(0, rows, e)
    first = torch.zeros(start.shape[0] - 1, dtype=x.dtype).index_add(0, rows, x[:, 0])
    return {"y": e / total[rows], "least": least, "first": first, "other": other.logcumsumexp(-1)}
"""
SEGMENT_TENSORS = {
    "x": "in total cols", "start": "in segments+1 int64 offsets:total", "other": "inout segments 300",
    "y": "out total cols", "least": "out segments cols", "first": "out segments",
}  # fmt: skip


@pytest.mark.parametrize("shared", [False, True])
def test_segments_are_found_once_and_summed_where_they_lie_side_by_side(shared, tmp_path):
    sizes = [{"segments": s, "total": t, "cols": c} for s, t, c in ((3, 70, 5), (40, 33, 1), (2, 900, 8))]
    kernel = folder_of(tmp_path, made(sizes, tensors=SEGMENT_TENSORS), SEGMENTS)
    text = source(kernel.spec, SEGMENTS)
    assert text.count(" phase_ranks(span") == 1 and "phase_scan<int64_t>(span" not in text, (
        "offsets are not summed again"
    )
    for few, many in (
        ("kSpreadFrom = 65536", "kSpreadFrom = 0"),
        ("INT64_C(1) << 19", "1"),
        ("16 * places", "0 * places"),
    ):
        text = text.replace(few, many) if shared else text
    check_text(kernel, text, tmp_path, offsets=(0,))


RISING = """\
import torch


def reference(x, steep):
    flat = torch.where(steep > 0, x * 400, x)
    return {"y": flat.logcumsumexp(-1), "z": torch.where(steep > 1, -torch.inf, flat).logcumsumexp(-1)}
"""


def test_running_logarithms_of_sums_are_right_where_numbers_lie_far_apart(tmp_path):
    tensors = {"x": "in rows cols", "steep": "in rows cols", "y": "out rows cols", "z": "out rows cols"}
    kernel = folder_of(tmp_path, made([{"rows": 2, "cols": 700}, {"rows": 3, "cols": 31}], tensors=tensors), RISING)
    text = source(kernel.spec, RISING)
    assert "LogAdd{}" in text
    check_text(kernel, text, tmp_path, offsets=(0,))
