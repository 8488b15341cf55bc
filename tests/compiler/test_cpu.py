"""The C++ of random programs, built by g++ and compared with the reference."""

from __future__ import annotations

import ctypes
import itertools
import math
import subprocess

import pytest
import torch

from compiler.codegen.cpu import CPU_NUMBERS, PRELUDE
from compiler.compile import Meaning, source
from compiler.defaults import cpu_schedule
from harness.judge.tunables import bake
from harness.records import DeviceFacts
from kernels import catalog
from nodes.compiling import STEP
from nodes.policies.rules import RulesPolicy
from nodes.roles import Finding, PlannerRequest
from tests.compiler.test_texts import SCATTER_SPEC, SELECT, drawn, select_spec
from tests.nodes.rewrites.emulate.emulation import emulated, run, workload

FLAGS = (
    "-std=c++17",
    "-O1",
    "-march=native",
    "-fopenmp",
    "-shared",
    "-fPIC",
    "-Wall",
    "-Werror",
    "-Wno-unknown-pragmas",
)
FINDING = Finding(bound="memory", summary="")


def built(text: str, folder) -> ctypes.CDLL:
    (folder / "candidate.cpp").write_text(text)
    command = ["g++", *FLAGS, str(folder / "candidate.cpp"), "-o", str(folder / "candidate.so")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:3000]
    return ctypes.CDLL(str(folder / "candidate.so"))


@pytest.mark.parametrize("seed", range(6))
def test_a_drawn_program_is_right_in_cpp(seed, tmp_path):
    spec, reference, _, workloads = drawn(seed, "cpu")
    (tmp_path / "spec.py").write_text(spec)
    (tmp_path / "reference.py").write_text(reference)
    kernel = catalog.load(str(tmp_path))
    meaning = Meaning(kernel.spec, reference)
    made = cpu_schedule(
        meaning.cpu_program, kernel.spec.dtypes, {d: list(kernel.spec.workloads) for d in kernel.spec.dtypes}
    )
    text = bake(meaning.text(made, CPU_NUMBERS), {"PARALLEL_FROM": 8192 if seed % 2 else 262144, "STREAM": seed % 2})
    library = built(text, tmp_path)
    for named in workloads:
        for offset in (0, 1):
            assert run(kernel.spec, kernel, library, workload(named), offset) == "", f"{reference}\n{named}"


def test_places_of_extremes_and_the_largest_few_are_right_in_cpp(tmp_path):
    (tmp_path / "spec.py").write_text(select_spec("cpu"))
    (tmp_path / "reference.py").write_text(SELECT)
    kernel = catalog.load(str(tmp_path))
    library = built(source(kernel.spec, SELECT, device="cpu"), tmp_path)
    for sized in kernel.spec.workloads:
        assert run(kernel.spec, kernel, library, sized) == "", sized.label


def test_the_rules_propose_it_on_a_cpu_too():
    kernel = catalog.load("silu_and_mul")
    request = PlannerRequest(
        spec=kernel.spec, device=DeviceFacts(device="cpu", name="", architecture="avx2", units=2, last_level_cache_bytes=1 << 20),
        finding=FINDING, incumbent="0", source=kernel.baseline("cpu")[1].read_text(), attempts=(),
        reference=(kernel.folder / "reference.py").read_text(),
    )  # fmt: skip
    (plan,) = RulesPolicy().planner(request)
    assert plan.steps == (STEP,)


def test_eight_bit_floats_are_right_in_cpp(tmp_path):
    kernel = catalog.load("quantize_fp8_per_group")
    library = built(source(kernel.spec, (kernel.folder / "reference.py").read_text(), device="cpu"), tmp_path)
    for sized in (w for w in kernel.spec.workloads if not w.timed and "cpu" in w.devices):
        assert run(kernel.spec, kernel, library, sized) == "", sized.label


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
    text = BEFORE + PRELUDE.read_text() + ONE_BY_ONE
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
LINES_SPEC = """\
from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="drawn", summary="drawn", axes=("rows", "nodes", "half"), dtypes=("float32", "float16", "bfloat16"),
    arguments=(
        Tensor(name="table", role="input", shape=("nodes", "2*half")),
        Tensor(name="places", role="input", shape=("rows",), dtype="int32", values=("index:nodes",)),
        Tensor(name="cos", role="input", shape=("half",)),
        Tensor(name="codes", role="input", shape=("rows", "half"), dtype="uint8", values=("integers:0:255",)),
        Tensor(name="out", role="output", shape=("rows", "2*half")),
        Tensor(name="told", role="output", shape=("rows", "2*half"), dtype="float32"),
        Size(name="rows"), Size(name="nodes"), Size(name="half"),
    ),
    workloads=tuple(
        Workload(axes={"rows": rows, "nodes": 29, "half": half}, dtype=dtype)
        for dtype in ("float32", "float16", "bfloat16") for rows, half in ((40, 32), (37, 13), (1, 1))
    ),
)
"""


def test_lanes_told_apart_tables_and_rows_asked_for_ahead_are_right_in_cpp(tmp_path):
    (tmp_path / "spec.py").write_text(LINES_SPEC)
    (tmp_path / "reference.py").write_text(LINES)
    kernel = catalog.load(str(tmp_path))
    text = source(kernel.spec, LINES, device="cpu")
    assert "prefetch_row(table" in text and "static const float table" in text
    library = built(text, tmp_path)
    for sized in kernel.spec.workloads:
        for offset in (0, 1):
            assert run(kernel.spec, kernel, library, sized, offset) == "", sized.label


BAGS = """\
import torch


def reference(table, places):
    return {"out": table[places].mean(1)}
"""


def test_rows_of_bags_are_read_whole_and_the_next_bags_are_asked_for(tmp_path):
    spec = LINES_SPEC.replace('("rows", "nodes", "half")', '("rows", "nodes", "half", "each")').replace(
        'shape=("rows",), dtype="int32"', 'shape=("rows", "each"), dtype="int64"'
    )
    kept = [
        line
        for line in spec.splitlines()
        if not any(f'"{name}"' in line and "Tensor" in line for name in ("cos", "codes", "told"))
    ]
    text = (
        "\n".join(kept)
        .replace('"half": half}', '"half": half, "each": 5}')
        .replace('Size(name="half"),', 'Size(name="half"), Size(name="each"),')
    )
    (tmp_path / "spec.py").write_text(text)
    (tmp_path / "reference.py").write_text(BAGS)
    kernel = catalog.load(str(tmp_path))
    made = source(kernel.spec, BAGS, device="cpu")
    assert "prefetch_row(table" in made and "elements" in made
    library = built(made, tmp_path)
    for sized in kernel.spec.workloads:
        assert run(kernel.spec, kernel, library, sized, 1) == "", sized.label


def test_a_state_that_a_slot_names_is_asked_for_ahead_outside_of_the_loop_over_its_rows(tmp_path):
    """What it asked for named the loop's variable, so that g++ refused the text."""
    kernel = catalog.load("gated_delta_rule_step")
    made = source(kernel.spec, (kernel.folder / "reference.py").read_text(), device="cpu")
    assert "prefetch_row(state" in made
    library = built(made, tmp_path)
    sized = min(kernel.spec.suite("cpu"), key=kernel.spec.read_bytes)
    assert run(kernel.spec, kernel, library, sized, 1) == "", sized.label


def test_square_roots_go_in_vectors(tmp_path):
    text = BEFORE + PRELUDE.read_text()
    text += (
        'extern "C" void roots(float* x, int64_t count) { for (int64_t i = 0; i < count; ++i) x[i] = sqrtf(x[i]); }\n'
    )
    (tmp_path / "roots.cpp").write_text(text)
    command = ["g++", "-O3", "-march=native", "-S", str(tmp_path / "roots.cpp"), "-o", str(tmp_path / "roots.s")]
    subprocess.run(command, check=True)
    assembly = (tmp_path / "roots.s").read_text()
    assert "sqrtps" in assembly or "fsqrt" in assembly
    assert "call" not in assembly.split("roots:")[1].split(".cfi_endproc")[0]


STATE = """\
def reference(key, block, row, cache, level):
    now = level[block] + key.square().mean(-1)
    cache, level = cache.clone(), level.clone()
    cache[block, 1] = cache[block, 1] - key / (now.sqrt() + 1)[:, None]
    level[block] = now
    return {"cache": cache, "level": level, "largest": key.amax(-1)}
"""


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_what_a_row_reads_of_a_state_and_replaces_is_read_before(device, tmp_path):
    level = 'Tensor(name="level", role="inout", shape=("blocks",), values=("range:0.1:1",)),'
    spec = SCATTER_SPEC.replace('"distinct:blocks"', '"permutation:blocks"').replace('"index:2"', '"integers:0:2"')
    spec = spec.replace('        Tensor(name="largest"', f'        {level}\n        Tensor(name="largest"').replace(
        '"cuda"', f'"{device}"'
    )
    (tmp_path / "spec.py").write_text(spec)
    (tmp_path / "reference.py").write_text(STATE)
    kernel = catalog.load(str(tmp_path))
    text = source(kernel.spec, STATE, device=device)
    if device == "cpu":
        library = built(text, tmp_path)
        assert not any(run(kernel.spec, kernel, library, sized) for sized in kernel.spec.workloads)
        return
    assert text.index("= to_float(level[") < text.index("team_reduce<Threads, Team, Split>(mean"), (
        "before the row meets"
    )
    (tmp_path / "candidate.cu").write_text(text)
    done = emulated(tmp_path, tmp_path / "candidate.cu", "0", "1")
    assert done.returncode == 0, done.stdout + done.stderr
