"""Random programs under random schedules, in the CUDA emulation, against the reference."""

from __future__ import annotations

import random
import re

import pytest

from compiler.compile import Meaning, source
from compiler.defaults import ScheduleDefaults, schedule
from compiler.frontend import NoProgram
from compiler.schedule import read_head
from kernels import catalog
from tests.nodes.rewrites.emulate.emulation import emulated

SPEC = """\
from kernels.spec import Scalar, Size, Spec, Tensor, Workload

SPEC = Spec(
    name="drawn",
    summary="drawn",
    axes=("rows", "cols"),
    dtypes=({dtype!r},),
    arguments=(
        Tensor(name="x", role={role!r}, shape=("rows", "cols")),
        Tensor(name="w", role="input", shape=("cols",)),
        Tensor(name="places", role="input", shape=("rows",), dtype="int64", values=("index:rows",)),
        Tensor(name="codes", role="input", shape=("rows", "cols//4"), dtype="int32", values=("integers:-40000:40000",)),
        {outputs}
        Size(name="rows"),
        Size(name="cols"),
        Scalar(name="eps", value=0.25),
    ),
    workloads=(
        {workloads}
    ),
)
"""
ELEMENT = (
    "x * w", "x + eps", "torch.exp(-x.abs())", "torch.sigmoid(x) * w", "torch.where(x > 0, x, eps * x)", "x.clamp(-1, 1)",
    "x * x[places]", "torch.relu(x) - w", "x * torch.rsqrt(x.square() + 1)",
)  # fmt: skip
REDUCED = (
    "{e} - ({e}).mean(-1, keepdim=True)", "torch.softmax({e}, -1)", "({e}) / (1 + ({e}).abs().amax(-1, keepdim=True))",
    "({e}) * torch.rsqrt(({e}).square().mean(-1, keepdim=True) + eps)", "torch.log_softmax({e}, -1) * w",
    "({e}) * ({e}).amax(-1, keepdim=True) - ({e}).amin(-1, keepdim=True)",
)  # fmt: skip
COLUMNS = (
    "({e}).sum(0)", "({e}).amax(0) * w", "({e}).mean(0) + ({e}).abs().amax(0)", "(({e}) * (places % 3)[:, None]).sum(0)",
)  # fmt: skip
BITS = (
    "x * ((codes[:, :, None] >> (4 * torch.arange(4))) & 15).reshape(x.shape)",
    "x * (((codes ^ 5) // 3) % 7 - (codes & 3 | 8)).repeat_interleave(4, dim=1)",
)  # fmt: skip
HALVES = "torch.cat((x[:, x.shape[1] // 2 :] * 2, x[:, : x.shape[1] // 2] - eps), -1)"


def drawn(seed: int, device: str = "cuda") -> tuple[str, str, ScheduleDefaults, list[str]]:
    """(spec.py, reference.py, a choice of numbers, workloads for the emulation)."""
    draw = random.Random(seed)
    dtype = draw.choice(("float16", "bfloat16", "float32"))
    form = ("elements", "rows", "bits", "columns", "halves", "rows")[seed % 6]
    element = draw.choice(ELEMENT)
    body = {
        "elements": element,
        "rows": draw.choice(REDUCED).format(e=element),
        "columns": draw.choice(COLUMNS).format(e=element),
        "halves": HALVES,
        "bits": draw.choice(BITS),
    }[form]
    in_place = form in ("elements", "rows") and "places" not in body and draw.random() < 0.4
    shape = '("cols",)' if form == "columns" else '("rows", "cols")'
    outputs = "" if in_place else f'Tensor(name="out", role="output", shape={shape}),'
    sizes = [(draw.choice((1, 3, 37)), draw.choice((8, 16, 64, 136, 520))) for _ in range(3)]
    fourths = form in ("halves", "bits")
    sizes.append((draw.choice((2, 5)), draw.choice((12, 20, 92, 260) if fourths else (5, 13, 37, 129, 263, 1029))))
    workloads = "\n        ".join(
        f'Workload(axes={{"rows": {rows}, "cols": {cols}}}, dtype={dtype!r}, devices=({device!r},)),'
        for rows, cols in dict.fromkeys(sizes)
    )
    spec = SPEC.format(dtype=dtype, role="inout" if in_place else "input", outputs=outputs, workloads=workloads)
    name = "x" if in_place else "out"
    reference = (
        "import torch\n\n\ndef reference(x, w, places, codes, eps):\n"
        f'    return {{"{name}": {body}}}\n'
    )  # fmt: skip
    choice = ScheduleDefaults(
        bytes=draw.choice((4, 8, 16)), items=draw.choice((0, 1, 2, 4, 8)), threads=draw.choice((64, 128, 256)),
        lanes=draw.choice((0, 4, 8, 16, 32, 128)), column_threads=draw.choice((128, 256)), unroll=draw.choice((1, 4, 8)),
        each=draw.choice((1, 2, 3)), held=draw.random() < 0.7, clusters=draw.random() < 0.7, element_threads=draw.choice((64, 128, 256)),
    )  # fmt: skip
    named = [f"{dtype}:rows={rows},cols={cols}" for rows, cols in dict.fromkeys(sizes)]
    return spec, reference, choice, named


SELECT = """\
import torch


def reference(x, w, places, codes, eps):
    weights, ids = torch.softmax(x * w, -1).topk(3, -1)
    largest, at = x.max(-1)
    return {"weights": weights / weights.sum(-1, keepdim=True), "ids": ids, "least": (x - eps).argmin(-1), "largest": largest, "at": at}
"""
SELECTED = "\n".join(
    f'Tensor(name="{name}", role="output", shape={shape}{kind}),'
    for name, shape, kind in (
        ("weights", '("rows", "3")', ""), ("ids", '("rows", "3")', ', dtype="int64"'), ("least", '("rows",)', ', dtype="int64"'),
        ("largest", '("rows",)', ""), ("at", '("rows",)', ', dtype="int64"'),
    )
)  # fmt: skip


def select_spec(device: str) -> str:
    sizes = ((3, 64), (5, 37), (2, 8), (2, 2056))
    workloads = [
        f'Workload(axes={{"rows": {r}, "cols": {c}}}, dtype="float32", devices=({device!r},)),' for r, c in sizes
    ]
    return SPEC.format(dtype="float32", role="input", outputs=SELECTED, workloads="\n".join(workloads))


def test_places_of_extremes_and_the_largest_few_are_right_in_the_emulation(tmp_path):
    (tmp_path / "spec.py").write_text(select_spec("cuda"))
    (tmp_path / "reference.py").write_text(SELECT)
    text = source(catalog.load(str(tmp_path)).spec, SELECT)
    assert "team_first<Threads" in text
    (tmp_path / "candidate.cu").write_text(text)
    done = emulated(tmp_path, tmp_path / "candidate.cu", "0", "1")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("seed", range(12))
def test_a_drawn_program_under_a_drawn_schedule_is_right(seed, tmp_path):
    spec, reference, choice, workloads = drawn(seed)
    (tmp_path / "spec.py").write_text(spec)
    (tmp_path / "reference.py").write_text(reference)
    kernel = catalog.load(str(tmp_path))
    meaning = Meaning(kernel.spec, reference)
    sized = {dtype: list(kernel.spec.workloads) for dtype in kernel.spec.dtypes}
    made = schedule(meaning.program, kernel.spec.dtypes, sized, choice, lean=seed % 2 == 0)
    text = meaning.text(made)
    candidate = tmp_path / "candidate.cu"
    candidate.write_text(text)
    done = emulated(tmp_path, candidate, "0", "1", *workloads)
    assert done.returncode == 0, f"{reference}\n{choice}\n{done.stdout}{done.stderr}"


SEARCHED = (
    (1, {"ITEMS": 2, "SPLIT": 4}), (5, {"ITEMS": 8, "SPLIT": 2}), (3, {"LANES": 4, "SPLIT": 8, "UNROLL": 4}),
    (9, {"LANES": 32, "SPLIT": 1, "THREADS": 128}), (81, {"SPLIT": 2, "UNROLL": 8}),
)  # fmt: skip
"""(seed of a program, numbers that a search may choose for it)."""


@pytest.mark.parametrize(("seed", "numbers"), SEARCHED)
def test_numbers_that_a_search_chooses_are_right(seed, numbers, tmp_path):
    spec, reference, _, workloads = drawn(seed)
    (tmp_path / "spec.py").write_text(spec)
    (tmp_path / "reference.py").write_text(reference)
    text = source(catalog.load(str(tmp_path)).spec, reference)
    for name, value in numbers.items():
        text, found = re.subn(rf"#define {name} \d+", f"#define {name} {value}", text)
        assert found == 1, name
    (tmp_path / "candidate.cu").write_text(text)
    done = emulated(tmp_path, tmp_path / "candidate.cu", "0", "1", *workloads)
    assert done.returncode == 0, f"{reference}\n{done.stdout}{done.stderr}"


SCATTER_SPEC = """\
from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="scattered",
    summary="scattered",
    axes=("tokens", "blocks", "width"),
    dtypes=("float16",),
    arguments=(
        Tensor(name="key", role="input", shape=("tokens", "width")),
        Tensor(name="block", role="input", shape=("tokens",), dtype="int64", values=("distinct:blocks",)),
        Tensor(name="row", role="input", shape=("tokens",), dtype="int32", values=("index:2",)),
        Tensor(name="cache", role="inout", shape=("blocks", "2", "width")),
        Tensor(name="largest", role="output", shape=("tokens",)),
        Size(name="tokens"),
        Size(name="blocks"),
        Size(name="width"),
    ),
    workloads=(
        Workload(axes={"tokens": 3, "blocks": 9, "width": 64}, dtype="float16", devices=("cuda",)),
        Workload(axes={"tokens": 5, "blocks": 5, "width": 21}, dtype="float16", devices=("cuda",)),
    ),
)
"""
SCATTER = """\
def reference(key, block, row, cache):
    largest = key.abs().amax(-1)
    cache = cache.clone()
    cache[block, row] = key / (1 + largest[:, None])
    return {"cache": cache, "largest": largest}
"""


def test_rows_that_go_to_computed_places_leave_the_others_as_they_are(tmp_path):
    (tmp_path / "spec.py").write_text(SCATTER_SPEC.replace('"index:2"', '"integers:0:2"'))
    (tmp_path / "reference.py").write_text(SCATTER)
    spec = catalog.load(str(tmp_path)).spec
    text = source(spec, SCATTER)
    assert "store_rounded(cache + " in text, "elements of a row go in packs"
    (tmp_path / "candidate.cu").write_text(text)
    done = emulated(tmp_path, tmp_path / "candidate.cu", "0", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    for wrong in (
        "cache[block, row] += key; key",
        "cache[row] = key[:2]; cache",
        "cache[block, row] = key; cache[block, row]",
    ):
        with pytest.raises(NoProgram):
            source(spec, SCATTER.replace("return {", f"{wrong}; return {{"))


def test_a_thread_never_reads_what_another_writes_in_place(tmp_path):
    spec = SPEC.format(
        dtype="float32", role="inout", outputs="",
        workloads='Workload(axes={"rows": 3, "cols": 8}, dtype="float32", devices=("cuda",)),',
    )  # fmt: skip
    (tmp_path / "spec.py").write_text(spec)
    (tmp_path / "reference.py").write_text(
        "def reference(x, w, places, codes, eps):\n    return {'x': x[places] + x}\n"
    )
    kernel = catalog.load(str(tmp_path))
    with pytest.raises(NoProgram, match="in place"):
        Meaning(kernel.spec, (tmp_path / "reference.py").read_text()).program(kernel.spec.dtypes[0], 1)


def test_pairs_of_neighbours_are_turned_in_place_and_the_rest_is_left_alone(tmp_path):
    sizes = " ".join(
        f'Workload(axes={{"rows": {rows}, "cols": 48}}, dtype="float16", devices=("cuda",)),' for rows in (3, 70)
    )
    (tmp_path / "spec.py").write_text(SPEC.format(dtype="float16", role="inout", outputs="", workloads=sizes))
    reference = """\
import torch


def reference(x, w, places, codes, eps):
    a, b = x[:, :32:2], x[:, 1:32:2]
    turned = torch.stack((a * w[:16] - b * w[16:32], a * w[16:32] + b * w[:16]), -1)
    return {"x": torch.cat((turned.flatten(1), x[:, 32:]), -1)}
"""
    (tmp_path / "reference.py").write_text(reference)
    text = source(catalog.load(str(tmp_path)).spec, reference)
    kernels = read_head(text).versions["float16"][0].kernels
    assert len(kernels) == 1, "what stays is not written"
    (tmp_path / "candidate.cu").write_text(text)
    done = emulated(tmp_path, tmp_path / "candidate.cu", "0", "1")
    assert done.returncode == 0, done.stdout + done.stderr


OF_PARTS = {
    "a group of neighbours is its largest's part": (
        '("rows", "cols//32", "32")', "", "(lambda g: g / g.abs().amax(-1, keepdim=True).clamp(min=1e-3))(x.view(x.shape[0], -1, 32))", 64, "rows",
    ),
    "pieces side by side": (
        '("rows", "cols + 24")', "", "torch.cat((x, x[:, 8:16] * 2, w[:16].expand(x.shape[0], 16)), -1)", 40, "elements",
    ),
    "two values in a byte": (
        '("rows", "cols//2")', ', dtype="uint8"',
        "(lambda a, b: a | b << 4)(*(x - x.amin(-1, keepdim=True)).mul(4).floor().clamp(0, 15).to(torch.uint8).chunk(2, -1))", 64, "rows",
    ),
    "groups of columns over all rows": (
        '("rows", "cols")', "", "(lambda g: (g - g.mean((0, 2), keepdim=True)).reshape(x.shape) * w)(x.view(x.shape[0], 4, -1))", 40, "rows",
    ),
    "turned round": ('("rows", "cols")', "", "torch.roll(x.float(), (1, -1), (0, 1)) + w", 40, "elements"),
    "running sums": ('("rows", "cols")', "", "(x * 0.125).cumsum(-1)", 264, "phases"),
    "a byte of bits": (
        '("rows", "cols//8")', ', dtype="uint8"', "((x > 0).view(x.shape[0], -1, 8).int() * 2 ** torch.arange(8, dtype=torch.int32)).sum(-1).to(torch.uint8)", 64, "rows",
    ),
    "steps beside a pack": (
        '("rows", "cols")', "", "sum(torch.nn.functional.pad(x, (3, 2))[:, k : k + x.shape[1]] * (k - 2) for k in range(6))", 40, "elements",
    ),
    "rows that a column picks": (
        '("rows", "cols")', "", "(lambda a, b: torch.cat((a[:, :16] * 2, b[:, 16:]), -1))(x[places], x[places.flip(0)])", 40, "elements",
    ),
    "a small table": (
        '("rows",)', "", "(more['table'][((codes[:, :, None] >> torch.tensor((0, 4, 8, 12))) & 15).long()].reshape(x.shape) * x).sum(-1)", 64, "rows",
    ),
}  # fmt: skip
IN_TEXT = {
    "steps beside a pack": "load_inside<24, 8>(x", "rows that a column picks": "const int64_t v1 = places[", "a small table": "__shared__ float table_table[16]",
}  # fmt: skip
TABLE = 'Tensor(name="table", role="input", shape=("16",)),'


@pytest.mark.parametrize("form", OF_PARTS)
def test_what_a_pack_or_a_row_writes_in_parts_is_right_in_the_emulation(form, tmp_path):
    shape, kind, value, columns, sketch = OF_PARTS[form]
    output = f'{TABLE if "more" in value else ""}Tensor(name="out", role="output", shape={shape}{kind}),'
    at = 'Workload(axes={{"rows": {}, "cols": {}}}, dtype="float16", devices=("cuda",)),'
    sizes = " ".join(at.format(rows, columns) for rows in (3, 70))
    (tmp_path / "spec.py").write_text(SPEC.format(dtype="float16", role="input", outputs=output, workloads=sizes))
    reference = f'import torch\n\n\ndef reference(x, w, places, codes, eps, **more):\n    return {{"out": {value}}}\n'
    (tmp_path / "reference.py").write_text(reference)
    text = source(catalog.load(str(tmp_path)).spec, reference)
    assert read_head(text).versions["float16"][0].kernels[-1].sketch.sketch == sketch
    assert IN_TEXT.get(form, "") in text
    if form == "steps beside a pack":
        lane = text[text.index("load_inside<24, 8>(x") :].split("#pragma unroll", 2)[2].split("store_rounded", 1)[0]
        assert "if (" not in lane and "? to_float" not in lane, "no lane jumps around a conversion"
    (tmp_path / "candidate.cu").write_text(text)
    done = emulated(tmp_path, tmp_path / "candidate.cu", "0", "1")
    assert done.returncode == 0, done.stdout + done.stderr
