"""What engines' kernels need said of their inputs, one small folder each: a right file passes, and one that misses just that is INCORRECT."""

from __future__ import annotations

from pathlib import Path

import pytest

from graph.checking import check
from harness.evaluate import Evaluator
from harness.records import Outcome
from harness.store import Store
from kernels import catalog

HEAD = "#include <cstdint>\n#include <cmath>\n"
WORDS = {
    "permutation": (
        "Tensor(name='x', role='input', shape=('m', 'n')),\n"
        "Tensor(name='order', role='input', shape=('m',), dtype='int64', values=('permutation:m',)),\n"
        "Tensor(name='out', role='output', shape=('m', 'n')),\n"
        "Size(name='m'),\n"
        "Size(name='n')",
        "m n",
        (5, 7),
        "def reference(x, order):\n    out = torch.empty_like(x)\n    out[order] = x\n    return {'out': out}\n",
        'extern "C" void permutation_float32(const float* x, const int64_t* order, float* out, int64_t m, int64_t n) {\n'
        "  for (int64_t i = 0; i < m; ++i) for (int64_t k = 0; k < n; ++k) out[order[i] * n + k] = x[i * n + k];\n"
        "}\n",
        ("out[order[i] * n + k] = x[i * n + k]", "out[i * n + k] = x[order[i] * n + k]"),
        "",
    ),
    "distinct": (
        "Tensor(name='x', role='input', shape=('m', 'n')),\n"
        "Tensor(name='slot', role='input', shape=('m',), dtype='int32', values=('distinct:slots',)),\n"
        "Tensor(name='cache', role='inout', shape=('slots', 'n'), touched='m*n'),\n"
        "Size(name='m'),\n"
        "Size(name='n'),\n"
        "Size(name='slots')",
        "m n slots",
        (5, 8, 9),
        "def reference(x, slot, cache):\n"
        "    cache = cache.clone()\n"
        "    at = slot >= 0\n"
        "    cache[slot[at].long()] = x[at]\n"
        "    return {'cache': cache}\n",
        'extern "C" void distinct_float32(const float* x, const int32_t* slot, float* cache, int64_t m, int64_t n, int64_t slots) {\n'
        "  for (int64_t i = 0; i < m; ++i) if (slot[i] >= 0) for (int64_t k = 0; k < n; ++k) cache[slot[i] * n + k] = x[i * n + k];\n"
        "}\n",
        ("if (slot[i] >= 0)", "if (slot[i] > 0)"),
        "",
    ),
    "padded": (
        "Tensor(name='x', role='input', shape=('p', 'n')),\n"
        "Tensor(name='ids', role='input', shape=('m', 'f'), dtype='int32', values=('padded:p',)),\n"
        "Tensor(name='out', role='output', shape=('m', 'n')),\n"
        "Size(name='m'),\n"
        "Size(name='f'),\n"
        "Size(name='n')",
        "m f n p",
        (9, 6, 3, 11),
        "def reference(x, ids):\n"
        "    known = (ids >= 0).unsqueeze(2)\n"
        "    return {'out': (x[ids.clamp(min=0).long()] * known).sum(1) / known.sum(1).clamp(min=1)}\n",
        'extern "C" void padded_float32(const float* x, const int32_t* ids, float* out, int64_t m, int64_t f, int64_t n) {\n'
        "  for (int64_t i = 0; i < m; ++i) for (int64_t k = 0; k < n; ++k) { double s = 0; int64_t c = 0;\n"
        "    for (int64_t j = 0; j < f; ++j) if (ids[i * f + j] >= 0) { s += x[ids[i * f + j] * n + k]; ++c; }\n"
        "    out[i * n + k] = s / (c ? c : 1); }\n"
        "}\n",
        ("(c ? c : 1)", "c"),
        "",
    ),
    "offsets": (
        "Tensor(name='x', role='input', shape=('p',)),\n"
        "Tensor(name='at', role='input', shape=('m + 1',), dtype='int32', values=('offsets:p',)),\n"
        "Tensor(name='out', role='output', shape=('m',)),\n"
        "Size(name='m')",
        "m p",
        (9, 200),
        "def reference(x, at):\n"
        "    ends = at.tolist()\n"
        "    return {'out': torch.stack([x[a:b].sum() for a, b in zip(ends[:-1], ends[1:])])}\n",
        'extern "C" void offsets_float32(const float* x, const int32_t* at, float* out, int64_t m) {\n'
        "  for (int64_t i = 0; i < m; ++i) { double s = 0; for (int64_t k = at[i]; k < at[i + 1]; ++k) s += x[k]; out[i] = s; }\n"
        "}\n",
        ("double s = 0;", "double s = i ? 0 : x[0]; if (!i) at[1] > 0 ? s -= x[0] : 0;"),
        "",
    ),
    "level_offsets": (
        "Tensor(name='x', role='input', shape=('m',)),\n"
        "Tensor(name='starts', role='input', shape=('4',), dtype='int64', values=('drawn:levels',)),\n"
        "Tensor(name='out', role='output', shape=('3',)),\n"
        "Size(name='m')",
        "m",
        (84,),
        "def reference(x, starts):\n"
        "    ends = starts.tolist()\n"
        "    return {'out': torch.stack([x[a:b].sum() for a, b in zip(ends[:-1], ends[1:])])}\n",
        'extern "C" void level_offsets_float32(const float* x, const int64_t* starts, float* out, int64_t m) {\n'
        "  for (int l = 0; l < 3; ++l) { double s = 0; for (int64_t i = starts[l]; i < starts[l + 1]; ++i) s += x[i]; out[l] = s; }\n"
        "}\n",
        ("starts[l + 1]", "m"),
        "def levels(shape, sizes, generator):\n    m = sizes['m']\n    return torch.tensor([0, 64 * m // 84, 80 * m // 84, m])\n",
    ),
    "depends_on_axis": (
        "Tensor(name='x', role='input', shape=('m', 'n')),\n"
        "Tensor(name='lengths', role='input', shape=('m',), dtype='int32', values=('drawn:lengths',)),\n"
        "Tensor(name='out', role='output', shape=('m',)),\n"
        "Size(name='m'),\n"
        "Size(name='n')",
        "m n",
        (5, 7),
        "def reference(x, lengths):\n    at = torch.arange(x.shape[1], device=x.device) < lengths[:, None]\n    return {'out': (x * at).sum(1)}\n",
        'extern "C" void depends_on_axis_float32(const float* x, const int32_t* lengths, float* out, int64_t m, int64_t n) {\n'
        "  for (int64_t i = 0; i < m; ++i) { double s = 0; for (int64_t k = 0; k < lengths[i]; ++k) s += x[i * n + k]; out[i] = s; }\n"
        "}\n",
        ("k < lengths[i]", "k < n"),
        "def lengths(shape, sizes, generator):\n    return torch.randint(1, sizes['n'] + 1, shape, generator=generator)\n",
    ),
    "structs": (
        "Tensor(name='blocks', role='input', shape=('m', '34'), dtype='uint8', values=('drawn:q8',)),\n"
        "Tensor(name='out', role='output', shape=('m', '32')),\n"
        "Size(name='m')",
        "m",
        (5,),
        "def reference(blocks):\n"
        "    d = blocks[:, :2].contiguous().view(torch.float16).double()\n"
        "    q = blocks[:, 2:].contiguous().view(torch.int8).double()\n"
        "    return {'out': d * q}\n",
        "struct Block { _Float16 d; int8_t q[32]; };\n"
        'extern "C" void structs_float32(const uint8_t* blocks, float* out, int64_t m) {\n'
        "  const Block* b = (const Block*)blocks;\n"
        "  for (int64_t i = 0; i < m; ++i) for (int k = 0; k < 32; ++k) out[i * 32 + k] = (float)b[i].d * b[i].q[k];\n"
        "}\n",
        ("* b[i].q[k]", "* (uint8_t)b[i].q[k]"),
        "def q8(shape, sizes, generator):\n"
        "    d = (torch.rand(shape[0], 1, generator=generator) * 0.1).half().view(torch.uint8)\n"
        "    q = torch.randint(0, 256, (shape[0], 32), generator=generator, dtype=torch.uint8)\n"
        "    return torch.cat([d, q], 1)\n",
    ),
    "of_fp4": (
        "Tensor(name='packed', role='input', shape=('m', '16'), dtype='uint8', values=('bits',)),\n"
        "Tensor(name='out', role='output', shape=('m', '32')),\n"
        "Size(name='m')",
        "m",
        (5,),
        "TABLE = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]\n"
        "\n"
        "\n"
        "def reference(packed):\n"
        "    table = torch.tensor(TABLE + [-one for one in TABLE], dtype=torch.float64, device=packed.device)\n"
        "    both = torch.stack([packed & 15, packed >> 4], -1).flatten(1)\n"
        "    return {'out': table[both.long()]}\n",
        "static const float table[16] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.f, -.5f, -1, -1.5f, -2, -3, -4, -6};\n"
        'extern "C" void of_fp4_float32(const uint8_t* packed, float* out, int64_t m) {\n'
        "  for (int64_t i = 0; i < m * 16; ++i) { out[2 * i] = table[packed[i] & 15]; out[2 * i + 1] = table[packed[i] >> 4]; }\n"
        "}\n",
        ("table[packed[i] >> 4]", "table[(packed[i] >> 4) & 7]"),
        "",
    ),
    "zero_rows": (
        "Tensor(name='x', role='input', shape=('m', 'n'), values=('ordinary', 'zero_rows')),\n"
        "Tensor(name='out', role='output', shape=('m', 'n')),\n"
        "Size(name='m'),\n"
        "Size(name='n')",
        "m n",
        (5, 7),
        "def reference(x):\n    return {'out': x / x.abs().amax(1, keepdim=True).clamp(min=1e-12)}\n",
        'extern "C" void zero_rows_float32(const float* x, float* out, int64_t m, int64_t n) {\n'
        "  for (int64_t i = 0; i < m; ++i) { float a = 0; for (int64_t k = 0; k < n; ++k) a = fmaxf(a, fabsf(x[i * n + k]));\n"
        "    for (int64_t k = 0; k < n; ++k) out[i * n + k] = x[i * n + k] / fmaxf(a, 1e-12f); }\n"
        "}\n",
        ("/ fmaxf(a, 1e-12f)", "/ a"),
        "",
    ),
    "scalar_float": (
        "Tensor(name='x', role='input', shape=('m',), values=('drawn:edges',)),\n"
        "Tensor(name='out', role='output', shape=('m',)),\n"
        "Scalar(name='low', value=0.1),\n"
        "Size(name='m')",
        "m",
        (5,),
        "def reference(x, low):\n    return {'out': torch.where(x >= low, 1.0, 0.0)}\n",
        'extern "C" void scalar_float_float32(const float* x, float* out, float low, int64_t m) {\n'
        "  for (int64_t i = 0; i < m; ++i) out[i] = x[i] >= low;\n"
        "}\n",
        ("x[i] >= low", "x[i] >= 0.1"),
        "def edges(shape, sizes, generator):\n"
        "    return torch.where(torch.rand(shape, generator=generator) < 0.5, torch.tensor(0.1), torch.randn(shape, generator=generator))\n",
    ),
}
"""Name -> arguments, axes, sizes, reference, baseline, what a wrong one has in place of what, inputs.py."""


@pytest.mark.parametrize("name", WORDS)
def test_it_is_drawn_so_and_judged(name: str, tmp_path: Path) -> None:
    arguments, axes, sizes, reference, code, wrong, inputs = WORDS[name]
    names = tuple(axes.split())
    folder = tmp_path / name
    folder.mkdir()
    (folder / "spec.py").write_text(
        "from kernels.spec import Scalar, Size, Spec, Tensor, Workload\n\n"
        f"SPEC = Spec(name={name!r}, summary='s', axes={names!r}, dtypes=('float32',), arguments=({arguments},), "
        f"workloads=(Workload(axes={dict(zip(names, sizes, strict=True))!r}, dtype='float32', devices=('cpu',)),))\n"
    )
    (folder / "reference.py").write_text(f"import torch\n\n\n{reference}")
    if inputs:
        (folder / "inputs.py").write_text(f"import torch\n\n\n{inputs}")
    (folder / "baseline.cpp").write_text(HEAD + code)
    lines = list(check(str(folder), None, lambda _said: None))
    assert not [line for line in lines if line.kind == "fault"], lines
    assert any("computes what the reference says" in line.said for line in lines), lines
    with Evaluator(catalog.load(str(folder)), "cpu", Store(tmp_path / "store")) as evaluator:
        found = evaluator.verify(evaluator.build(evaluator.store.put(HEAD + code.replace(*wrong, 1))))
    assert wrong[0] in code and found.outcome is Outcome.INCORRECT, found.reason
