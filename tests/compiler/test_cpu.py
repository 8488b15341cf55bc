"""What C++ alone has: small floats, vectors, tables, rows that are asked for ahead."""

from __future__ import annotations

import ctypes
import itertools
import math
import subprocess

import pytest
import torch

from compiler.codegen.cpu_host import cpu_prelude
from compiler.compile import source
from harness.records import DeviceFacts
from kernels import catalog
from nodes.compiling import STEP
from nodes.policies.rules import RulesPolicy
from nodes.roles import Finding, PlannerRequest
from tests.compiler.folders import built, check_text, folder_of, made
from tests.nodes.rewrites.emulate.emulation import run

FINDING = Finding(bound="memory", summary="")


def test_the_rules_propose_it_on_a_cpu_too():
    kernel = catalog.load("silu_and_mul")
    request = PlannerRequest(
        spec=kernel.spec, device=DeviceFacts(device="cpu", name="", architecture="avx2", units=2, last_level_cache_bytes=1 << 20),
        finding=FINDING, incumbent="0", source=kernel.baseline("cpu")[1].read_text(), attempts=(),
        reference=(kernel.folder / "reference.py").read_text(),
    )  # fmt: skip
    (plan,) = RulesPolicy().planner(request)
    assert plan.steps == (STEP,)


KINDS = {"_Float16": torch.float16, "bfloat16": torch.bfloat16, "fp8_e4m3": torch.float8_e4m3fn}
BEFORE = "#define STREAM 0\n#define PARALLEL_FROM 1\n"
ONE_BY_ONE = """
extern "C" void load_1_fp8_e4m3(const fp8_e4m3* from, float* to, int64_t n) { for (int64_t i = 0; i < n; ++i) to[i] = to_float(from[i]); }
extern "C" void store_1_fp8_e4m3(const float* from, fp8_e4m3* to, int64_t n) { for (int64_t i = 0; i < n; ++i) to[i] = ::to<fp8_e4m3>(from[i]); }
extern "C" void load_1__Float16(const uint16_t* from, float* to, int64_t n) { for (int64_t i = 0; i < n; ++i) to[i] = half_to_float(from[i]); }
extern "C" void store_1__Float16(const float* from, uint16_t* to, int64_t n) { for (int64_t i = 0; i < n; ++i) to[i] = float_to_half(from[i]); }
"""


def test_small_floats_are_torchs(tmp_path):
    """All of them as floats, and floats around all of them back, in packs and one by one: NaNs, infinities, subnormals, ties."""
    text = BEFORE + cpu_prelude() + ONE_BY_ONE
    for kind, lanes in itertools.product(KINDS, (8, 16)):
        step = f"for (int64_t i = 0; i < count; i += {lanes}) store_pack(to + i, load_pack<{lanes}>(from + i));"
        text += f'extern "C" void load_{lanes}_{kind}(const {kind}* from, float* to, int64_t count) {{ {step} }}\n'
        text += f'extern "C" void store_{lanes}_{kind}(const float* from, {kind}* to, int64_t count) {{ {step} }}\n'
    library = built(text, tmp_path)

    def called(name, given, to):
        getattr(library, name)(*(ctypes.c_void_p(t.data_ptr()) for t in (given, to)), ctypes.c_int64(len(given)))

    for kind, lanes in [*itertools.product(KINDS, (8, 16)), ("fp8_e4m3", 1), ("_Float16", 1)]:
        dtype = KINDS[kind]
        every = torch.arange(1 << 8 * dtype.itemsize).to({1: torch.uint8, 2: torch.uint16}[dtype.itemsize]).view(dtype)
        wide = torch.empty(len(every))
        called(f"load_{lanes}_{kind}", every, wide)
        assert torch.equal(wide.nan_to_num(7e30), every.float().nan_to_num(7e30)), (kind, lanes)
        known = every.float()[every.float().isfinite()].sort().values
        between = (known[1:] + known[:-1]) / 2
        edges = torch.tensor([65519.9, 65520.0, 1e9, -1e9, math.inf, -math.inf, 1e-9, math.nan])
        given = torch.cat([every.float(), edges, between, between.nextafter(known[1:]), between.nextafter(known[:-1])])
        given = given[: len(given) // 16 * 16].contiguous()
        narrow = torch.empty(len(given), dtype=dtype)
        called(f"store_{lanes}_{kind}", given, narrow)
        assert torch.equal(narrow.float().nan_to_num(7e30), given.to(dtype).float().nan_to_num(7e30)), (kind, lanes)


LINES = """\
import torch

CODES = [-1.0, -0.7, -0.5, -0.4, -0.3, -0.2, -0.1, 0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 1.0]


def reference(table, places, cos, codes):
    rows = table[places.long()]
    a, b = rows[:, 0::2], rows[:, 1::2]
    turned = torch.stack((a * cos - b, a + b * cos), -1).flatten(1)
    numbers = torch.stack((codes >> 4, codes & 15), -1).flatten(1).long()
    return {"out": turned, "told": torch.tensor(CODES, dtype=torch.float32, device=codes.device)[numbers]}
"""
TABLE = {"table": "in nodes 2*half", "places": "in rows int32 index:nodes", "out": "out rows 2*half"}
LINE_TENSORS = TABLE | {
    "cos": "in half",
    "codes": "in rows half uint8 integers:0:255",
    "told": "out rows 2*half float32",
}
SIZES = ((40, 32), (37, 13), (1, 1))
DTYPES = ("float32", "float16", "bfloat16")


def test_lanes_told_apart_tables_and_rows_asked_for_ahead_are_right_in_cpp(tmp_path):
    spec = made([{"rows": rows, "nodes": 29, "half": half} for rows, half in SIZES], DTYPES, tensors=LINE_TENSORS)
    text = source(spec, LINES, device="cpu")
    assert "prefetch_row(table" in text and "static const float table" in text
    check_text(folder_of(tmp_path, spec, LINES), text, tmp_path, "cpu")


BAGS = """\
import torch


def reference(table, places):
    return {"out": table[places].mean(1)}
"""


def test_rows_of_bags_are_read_whole_and_the_next_bags_are_asked_for(tmp_path):
    sizes = [{"rows": rows, "nodes": 29, "half": half, "each": 5} for rows, half in SIZES]
    spec = made(sizes, DTYPES, tensors=TABLE | {"places": "in rows each int64 index:nodes"})
    text = source(spec, BAGS, device="cpu")
    assert "prefetch_row(table" in text and "elements" in text
    check_text(folder_of(tmp_path, spec, BAGS), text, tmp_path, "cpu", (1,))


@pytest.mark.parametrize(
    ("name", "offset", "words"), [("gated_delta_rule_step", 1, "prefetch_row(state"), ("quantize_fp8_per_group", 0, "fp8_e4m3")]
)  # fmt: skip
def test_kernels_of_the_catalog_are_right_in_cpp(name, offset, words, tmp_path):
    """What was asked for ahead named a loop's variable, so that g++ refused the one's text; the other has floats of eight bits."""
    kernel = catalog.load(name)
    text = source(kernel.spec, (kernel.folder / "reference.py").read_text(), device="cpu")
    assert words in text
    library = built(text, tmp_path)
    every = kernel.spec.suite("cpu")
    for sized in [w for w in every if not w.timed] or [min(every, key=kernel.spec.read_bytes)]:
        assert run(kernel.spec, kernel, library, sized, offset) == "", sized.label


def test_square_roots_go_in_vectors(tmp_path):
    text = BEFORE + cpu_prelude()
    text += (
        'extern "C" void roots(float* x, int64_t count) { for (int64_t i = 0; i < count; ++i) x[i] = sqrtf(x[i]); }\n'
    )
    (tmp_path / "roots.cpp").write_text(text)
    command = ["g++", "-O3", "-march=native", "-S", str(tmp_path / "roots.cpp"), "-o", str(tmp_path / "roots.s")]
    subprocess.run(command, check=True)
    assembly = (tmp_path / "roots.s").read_text()
    assert "sqrtps" in assembly or "fsqrt" in assembly
    assert "call" not in assembly.split("roots:")[1].split(".cfi_endproc")[0]


FUNCTIONS = {
    "exponential": (torch.exp, 1),
    "tanhf": (torch.tanh, 4),
    "erff": (torch.erf, 4),
    "logf": (torch.log, 4),
    "log1pf": (torch.log1p, 4),
}
"""Of the vectors, and how many units of the last place they may be off: 4 is what the C library says of its own."""


def test_functions_in_vectors_are_as_exact_as_is_said(tmp_path):
    text = BEFORE + cpu_prelude()
    for name in FUNCTIONS:
        step = f"#pragma omp simd\n    for (int64_t i = 0; i < count; ++i) to[i] = {name}(from[i]);"
        text += f'extern "C" void many_{name}(const float* from, float* to, int64_t count) {{\n    {step}\n}}\n'
    library = built(text, tmp_path)
    generator = torch.Generator().manual_seed(0)
    given = torch.cat([torch.randn(4000, generator=generator) * by for by in (1e-3, 1, 10, 60)])
    given = torch.cat(
        [given, torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 88.7, 89.0, -87.4, -103.0, -104.5])]
    )
    for name, (function, most) in FUNCTIONS.items():
        made, exact = torch.empty_like(given), function(given.double())
        getattr(library, f"many_{name}")(
            *(ctypes.c_void_p(t.data_ptr()) for t in (given, made)), ctypes.c_int64(len(given))
        )
        right = exact.float()
        assert torch.equal(made.isnan(), right.isnan()) and torch.equal(made.isinf(), right.isinf()), name
        finite = right.isfinite()
        unit = torch.nextafter(right.abs(), torch.tensor(math.inf)) - right.abs()
        off = ((made.double() - exact).abs() / unit.double())[finite].max().item()
        assert off <= most, (name, off)


def test_the_largest_few_of_a_row_are_those_of_a_stable_sort(tmp_path):
    """Equal ones, infinities and NaN among them; whole sixteens and what is left of them."""
    entry = 'extern "C" void firsts(const float* values, int64_t count, float* to, int64_t* at) {'
    entry += " row_firsts(values, count, *reinterpret_cast<float(*)[5]>(to), *reinterpret_cast<int64_t(*)[5]>(at)); }\n"
    library = built(BEFORE + cpu_prelude() + entry, tmp_path)
    generator = torch.Generator().manual_seed(0)
    for count in (5, 16, 37, 300):
        for odd in (0.0, math.nan, math.inf, -math.inf):
            row = torch.randint(-3, 4, (count,), generator=generator).float()
            row[torch.randint(0, count, (3,), generator=generator)] = odd
            to, at = torch.empty(5), torch.empty(5, dtype=torch.int64)
            library.firsts(
                ctypes.c_void_p(row.data_ptr()),
                ctypes.c_int64(count),
                *(ctypes.c_void_p(t.data_ptr()) for t in (to, at)),
            )
            right = row.sort(descending=True, stable=True)
            assert torch.equal(at, right.indices[:5]) and torch.equal(
                to.nan_to_num(9), right.values[:5].nan_to_num(9)
            ), (count, odd)


ATTENTION = """\
def reference(query, key, value, rows, keys):
    import torch

    scores = query @ key.transpose(-1, -2) * 0.0625
    ahead = torch.arange(keys, device=query.device) > torch.arange(rows, device=query.device)[:, None]
    return {"out": scores.masked_fill(ahead, -float("inf")).softmax(-1) @ value, "most": (query @ query.transpose(-1, -2)).relu()}
"""


def test_products_go_by_panels_in_phases_and_beside_them(tmp_path):
    """Rows, columns and steps that are no multiples of a tile's, and more steps than a panel has."""
    tensors = {
        "query": "in batch rows width", "key": "in batch keys width", "value": "in batch keys width", "out": "out batch rows width",
        "most": "out batch rows rows float32",
    }  # fmt: skip
    sizes = [
        {"batch": 3, "rows": rows, "keys": keys, "width": width}
        for rows, keys, width in ((7, 300, 20), (13, 17, 261), (1, 2, 3))
    ]
    spec = made(sizes, ("float32", "bfloat16"), devices=["cpu"], tensors=tensors)
    text = source(spec, ATTENTION, device="cpu")
    assert text.count(" multiply_panels<") >= 6
    check_text(folder_of(tmp_path, spec, ATTENTION), text, tmp_path, "cpu", (0,))


BESIDE = """\
def reference(x, down, up):
    import torch

    gate = torch.sigmoid((x.mean(-1) @ down).relu() @ up)
    features = torch.exp(x)
    state = (features @ x.transpose(1, 2)) / features.sum(-1, keepdim=True)
    return {"out": x * gate[..., None], "state": state}
"""


def test_what_is_made_of_a_product_reads_reductions_beside_it_and_waits_for_it(tmp_path):
    """The reductions were dropped, as nobody's; a map was computed with the mean of which the product that it reads is made."""
    tensors = {
        "x": "in images channels area",
        "down": "in channels hidden",
        "up": "in hidden channels",
        "out": "out images channels area",
        "state": "out images channels channels",
    }
    spec = made([{"images": 3, "channels": 5, "area": 37, "hidden": 4}], devices=["cpu"], tensors=tensors)
    check_text(folder_of(tmp_path, spec, BESIDE), source(spec, BESIDE, device="cpu"), tmp_path, "cpu", (0,))


SHARES = """\
def reference(tile, left):
    mass = tile.abs().sum(0)
    return {"first": mass, "count": (tile.abs() / mass).square().sum(0) + left}
"""


@pytest.mark.parametrize("axes", [("block", "columns"), ("columns", "block_end"), ("column", "lane"), ("begin", "end")])
def test_axes_and_tensors_may_be_called_what_the_text_calls_its_own_variables(axes, tmp_path):
    """An axis `columns`, which is a natural one, was hidden by a number of columns: a sum over rows read beyond its inputs."""
    rows, columns = axes
    tensors = {
        "tile": f"in {rows} {columns}",
        "left": f"in {columns}",
        "first": f"out {columns}",
        "count": f"out {columns}",
    }
    spec = made([{rows: 70, columns: 48}, {rows: 3, columns: 37}], devices=["cpu"], tensors=tensors)
    check_text(folder_of(tmp_path, spec, SHARES), source(spec, SHARES, device="cpu"), tmp_path, device="cpu")
