"""What is read along one axis and written along another goes through tiles; neighbours that fold into one element come in packs."""

from __future__ import annotations

import pytest

from compiler.compile import Meaning, source
from compiler.defaults import ScheduleDefaults, schedule, with_numbers
from compiler.legal import IllegalSchedule, check_schedule
from compiler.schedule import Turned, read_head
from tests.compiler.folders import check_text, every_size, folder_of, made

SIZES = ({"n": 2, "c": 40, "s": 72}, {"n": 1, "c": 19, "s": 33}, {"n": 2, "c": 67, "s": 16})
TURNED = {
    "to channels last, in bytes": (
        "in n c s", "out n s c int8", "torch.round(x.float() / (1 + w.abs())[:, None]).clamp(-128, 127).transpose(1, 2)"
    ),
    "beside what lies along": ("in n c s", "out n s c", "x.transpose(1, 2) * w + torch.relu(z)"),
    "two of them, one of bytes": ("in n c s", "out n s c", "(x * k.to(x.dtype)).transpose(1, 2)"),
    "three axes about": ("in n c s", "out s c n+15", "torch.nn.functional.pad(x, (0, 0, 0, 0, 0, 15)).permute(2, 1, 0)"),
    "one element many times": ("in n c s", "out c s n 16", "x.expand(16, -1, -1, -1).permute(2, 3, 1, 0)"),
    "a matrix of two axes": ("in n c s", "out s n*c", "(x.reshape(-1, x.shape[2]) * 2).T"),
    "normalised along what does not lie together": (
        "in n c s", "out n s c", "(lambda t: (t - t.mean(-1, keepdim=True)) * torch.rsqrt(t.var(-1, unbiased=False, keepdim=True) + 1e-2) * w)(x.float().transpose(1, 2))"
    ),
}  # fmt: skip
BY_ROWS = {"normalised along what does not lie together"}
BY_TILES = set(TURNED) - BY_ROWS - {"three axes about", "one element many times"}
"""Of the others one is guarded, where no tile would be loaded whole, and one is the same along what it writes."""


def text_of(kernel) -> str:
    return source(kernel.spec, (kernel.folder / "reference.py").read_text())


def of_one_input(form: list[str], sizes, dtype: str, tmp_path):
    """`form`: x, out and the value; the folder and its text."""
    x, out, value = form
    spec = made(sizes, (dtype,), ("cuda",), tensors={"x": x, "out": out})
    kernel = folder_of(tmp_path, spec, f'import torch\n\n\ndef reference(x):\n    return {{"out": {value}}}\n')
    return kernel, text_of(kernel)


def folder(form: str, dtype: str, tmp_path):
    x, out, value = TURNED[form]
    tensors = {"x": x, "w": "in c", "z": "in n s c", "k": "in n c s int8 integers:-3:4", "out": out}
    spec = made(
        SIZES, (dtype,), ("cuda",), tensors={n: t for n, t in tensors.items() if n in ("x", "out") or n in value}
    )
    names = ", ".join(t.name for t in spec.inputs)
    return folder_of(tmp_path, spec, f'import torch\n\n\ndef reference({names}):\n    return {{"out": {value}}}\n')


def sketches(text: str, dtype: str) -> list[str]:
    return [plan.sketch.sketch for plan in read_head(text).versions[dtype][0].kernels]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("form", TURNED)
def test_what_goes_across_is_right_in_the_emulation(form, dtype, tmp_path):
    kernel = folder(form, dtype, tmp_path)
    text = text_of(kernel)
    assert ("turned" in sketches(text, dtype), "row_tiles" in sketches(text, dtype)) == (
        form in BY_TILES,
        form in BY_ROWS,
    )
    check_text(kernel, text, tmp_path, sized=every_size(kernel.spec))


@pytest.mark.parametrize("along", [16, 32, 128])
def test_tiles_of_other_sizes_are_right(along, tmp_path):
    kernel = folder("two of them, one of bytes", "bfloat16", tmp_path)
    meaning = Meaning(kernel.spec, (kernel.folder / "reference.py").read_text())
    choice = ScheduleDefaults(along=along, tile_threads=along + 64, bytes=8 if along == 32 else 16)
    sized = {"bfloat16": list(kernel.spec.workloads)}
    check_text(kernel, meaning.text(schedule(meaning.program, ("bfloat16",), sized, choice)), tmp_path)


SEARCHED = ({"THREADS": 512, "ALONG": 128}, {"THREADS": 256, "ALONG": 32, "ITEMS": 2})


@pytest.mark.parametrize("form", ["beside what lies along", "normalised along what does not lie together"])
@pytest.mark.parametrize("numbers", SEARCHED)
def test_numbers_that_a_search_chooses_are_legal_and_right(numbers, form, tmp_path):
    kernel = folder(form, "float32", tmp_path)
    meaning = Meaning(kernel.spec, (kernel.folder / "reference.py").read_text())
    wanted = with_numbers(meaning.first_schedule("sm_90", "cuda"), numbers)
    check_text(kernel, meaning.scheduled(wanted, "sm_90"), tmp_path)


def test_a_tile_that_has_no_room_is_no_schedule(tmp_path):
    kernel = folder("to channels last, in bytes", "float32", tmp_path)
    meaning = Meaning(kernel.spec, (kernel.folder / "reference.py").read_text())
    first = meaning.first_schedule("sm_90", "cuda")
    version = first.versions["float32"][0]

    def with_tile(**sides: int):
        sketch = version.kernels[0].sketch.model_copy(update=sides)
        changed = version.model_copy(update={"kernels": (version.kernels[0].model_copy(update={"sketch": sketch}),)})
        return first.model_copy(update={"versions": {"float32": (changed, *first.versions["float32"][1:])}})

    assert isinstance(version.kernels[0].sketch, Turned)
    assert version.vector == 8, "of bytes that are written, as many as both axes are whole packs of"
    check_schedule(with_tile(along=32, across=64), first, meaning.program)
    with pytest.raises(IllegalSchedule, match="128 by 128 have no room"):
        check_schedule(with_tile(along=128, across=128), first, meaning.program)
    with pytest.raises(IllegalSchedule, match="along must be one of"):
        check_schedule(with_tile(along=48), first, meaning.program)


ROWS = {
    "a scale of each column, and what it is for": (
        "out n s c int8", "(lambda t: torch.round(t / t.abs().amax(-1, keepdim=True).clamp(min=1e-3) * 127))(x.float().transpose(1, 2))"
    ),
    "two tensors": ("out n s c", "torch.softmax((x * z).float().transpose(1, 2), -1)"),
    "sums alone": ("out n s float32", "x.float().transpose(1, 2).square().sum(-1)"),
}  # fmt: skip


@pytest.mark.parametrize("form", ROWS)
def test_rows_that_lie_apart_are_whole_in_a_block_that_has_room_for_them(form, tmp_path):
    out, value = ROWS[form]
    tensors = {"x": "in n c s", "z": "in n c s", "out": out}
    sizes = [{"n": n, "c": c, "s": s} for n, c, s in ((1, 64, 24), (3, 37, 19), (1, 2000, 19), (1, 12000, 3))]
    spec = made(
        sizes, ("float16",), ("cuda",), tensors={n: t for n, t in tensors.items() if n != "z" or n in value}, timed=1
    )
    names = ", ".join(t.name for t in spec.inputs)
    kernel = folder_of(tmp_path, spec, f'import torch\n\n\ndef reference({names}):\n    return {{"out": {value}}}\n')
    text = text_of(kernel)
    assert sketches(text, "float16") == ["row_tiles"]
    check_text(kernel, text, tmp_path, sized=every_size(spec))
    older = source(kernel.spec, (kernel.folder / "reference.py").read_text(), "sm_80")
    assert "row_tiles" not in older, "its blocks have less shared memory"


COLOURS = {
    "to planes": ("in n s 3 uint8", "out n 3 s", "x.transpose(1, 2) / 255", "load_inside<24, 8>(x"),
    "from planes": ("in n 3 s", "out n s 3", "(x * 2).transpose(1, 2)", "store_rounded(out + "),
    "from planes to bytes": ("in n 3 s", "out n s 3 uint8", "x.abs().clamp(0, 1).mul(255).round().to(torch.uint8).transpose(1, 2)", "store_parts<8>(out"),
    "from planes to small floats": ("in n 3 s", "out n s 3 float8_e4m3fn", "x.transpose(1, 2)", "store_rounded_parts<8>(out"),
}  # fmt: skip


@pytest.mark.parametrize("form", COLOURS)
def test_a_thread_has_all_colours_of_its_elements(form, tmp_path):
    *given, moved = COLOURS[form]
    kernel, text = of_one_input(given, ({"n": 2, "s": 64}, {"n": 3, "s": 21}), "float16", tmp_path)
    assert moved in text and sketches(text, "float16") == ["elements"]
    check_text(kernel, text, tmp_path)


FOLDED = {
    "bits to bytes": ("in rows k*8 bool", "out rows k uint8", "(x.reshape(x.shape[0], -1, 8).int() << torch.arange(8)).sum(-1).to(torch.uint8)", "load_pack<32>(x"),
    "digits to the base four": ("in rows k*4 int8 integers:0:4", "out rows k uint8", "(x.reshape(x.shape[0], -1, 4).int() * 4 ** torch.arange(4, dtype=torch.int32)).sum(-1).to(torch.uint8)", "load_pack<16>(x"),
    "largest of four": ("in rows k*4", "out rows k", "x.reshape(x.shape[0], -1, 4).abs().amax(-1) * 2", "load_pack<8>(x"),
    "windows side by side": ("in rows 2*k 16", "out rows k 8", "torch.nn.functional.avg_pool2d(x[:, None], 2)[:, 0]", "load_pack<8>(x"),
    "a window of channels": ("in rows k 6 6", "out rows k 6 6", "torch.nn.functional.local_response_norm(x, 3)", "load_pack<4>(x"),
}  # fmt: skip
"""(x, out, the value, what the text loads it by)."""


@pytest.mark.parametrize("form", FOLDED)
def test_neighbours_that_one_thread_folds_come_in_packs(form, tmp_path):
    *given, load = FOLDED[form]
    kernel, text = of_one_input(given, ({"rows": 5, "k": 16}, {"rows": 3, "k": 5}), "float32", tmp_path)
    assert load in text
    check_text(kernel, text, tmp_path)


def test_groups_of_channels_that_lie_apart_go_in_packs_of_two(tmp_path):
    spec = made(
        [{"n": 2, "hw": 24, "c": 6}, {"n": 1, "hw": 700, "c": 10}, {"n": 2, "hw": 9, "c": 3}], ("float16",), ("cuda",), timed=2,
        tensors={"x": "in n hw c*8", "w": "in c*8", "y": "out n hw c*8"},
    )  # fmt: skip
    reference = """import torch


def reference(x, w):
    g = x.reshape(*x.shape[:2], 8, -1)
    mean = g.mean((1, 3), keepdim=True)
    var = (g - mean).square().mean((1, 3), keepdim=True)
    return {"y": ((g - mean) * torch.rsqrt(var + 1e-5)).reshape(x.shape) * w}
"""
    text = source(spec, reference)
    assert "load_pack<2>(x" in text and "c % 2 == 0" in text
    check_text(folder_of(tmp_path, spec, reference), text, tmp_path)


PAIRS = {
    "forces": ("(m[None, :, None] * d * (1 / (d.square().sum(-1) + 0.01).sqrt())[..., None]).sum(1)", True),
    "the furthest, weighed": ("(d * torch.exp(-d.square().sum(-1))[..., None]).amax(1)", True),
    "nothing in common": ("(d * m[None, :, None]).sum(1)", False),
}


@pytest.mark.parametrize("form", PAIRS)
def test_what_a_vectors_elements_have_in_common_is_computed_once_for_each_pair(form, tmp_path):
    value, together = PAIRS[form]
    spec = made(
        [{"n": 64}, {"n": 21}], ("float32",), ("cuda",), timed=1, tensors={"p": "in n 3", "m": "in n", "f": "out n 3"}
    )
    reference = f"""import torch


def reference(p, m):
    d = p[None] - p[:, None]
    return {{"f": {value}}}
"""
    text = source(spec, reference)
    assert ("Pack<float, 12> f_out_pack;" in text) == together
    check_text(folder_of(tmp_path, spec, reference), text, tmp_path)
