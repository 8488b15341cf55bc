"""Running maxima with sums: what is one, what vectorize_online_reduction and online_reduction make of it, and what they leave alone."""

from __future__ import annotations

import ctypes
import math
import re
from pathlib import Path

import pytest
import torch

from harness.judge.tunables import bake
from kernels import catalog
from nodes.policies.rules import apply_step
from nodes.rewrites import Facts
from nodes.rewrites.analysis.device_code import Code, code_of
from nodes.rewrites.reductions.online import Online, recurrence
from nodes.rewrites.syntax.source import Source, Unsupported
from nodes.rewrites.syntax.tree import statements
from tests.nodes.rewrites.emulate import emulation
from tests.nodes.rewrites.steps import FACTS, ROOT, after, body, flat, refused, stays

TREE = """\
  maxs[threadIdx.x] = m;
  sums[threadIdx.x] = s;
  __syncthreads();
  for (int d = blockDim.x / 2; d > 0; d /= 2) {
    if (threadIdx.x < d) {
      const float top = fmaxf(maxs[threadIdx.x], maxs[threadIdx.x + d]);
      sums[threadIdx.x] = sums[threadIdx.x] * expf(maxs[threadIdx.x] - top) + sums[threadIdx.x + d] * expf(maxs[threadIdx.x + d] - top);
      maxs[threadIdx.x] = top;
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) y[blockIdx.x] = maxs[0] + logf(sums[0]);
"""
ONLINE = """\
    const float v = x[blockIdx.x * n + i];
    const float old = m;
    m = fmaxf(m, v);
    s = s * expf(old - m) + expf(v - m);
"""
MERGE = """\
struct MD { float m; float d; };
__device__ MD merge(MD a, MD b) {
  if (a.m > b.m) return {a.m, a.d + b.d * expf(b.m - a.m)};
  return {b.m, b.d + a.d * expf(a.m - b.m)};
}
__device__ void push(float& m, float& s, const float v) {
  const float top = fmaxf(m, v);
  s = fmaf(s, expf(m - top), expf(v - top));
  m = top;
}
"""
KERNEL = f"""\
#include <math.h>
#define LOG2E 1.4426950408889634f
{MERGE}
__global__ void rows(const float* x, float* y, int n, float scale) {{
  __shared__ float maxs[256];
  __shared__ float sums[256];
  float m = -INFINITY, s = 0.0f, t = 0.0f, top;
  MD md = {{-INFINITY, 0.0f}};
  for (int i = threadIdx.x; i < n; i += blockDim.x) {{
{ONLINE}  }}
{TREE}}}

extern "C" void launch(const float* x, float* y, long rows_, long n, float scale, cudaStream_t stream) {{
  rows<<<rows_, 256, 0, stream>>>(x, y, n, scale);
}}
"""
V = "const float v = x[blockIdx.x * n + i];\n"
BRANCH = f"    {V}    if (v > m) {{ s = s * expf(m - v) + 1.0f; m = v; }} else {{ s += expf(v - m); }}\n"


def code_with(old: str, new: str) -> Code:
    assert old in KERNEL
    return code_of(Source(KERNEL.replace(old, new), "cuda"))


def recognised(lines: str) -> Online:
    code = code_with(ONLINE, lines)
    (kernel,) = code.kernels
    return recurrence(code, kernel, statements(kernel.loops[0].body))


@pytest.mark.parametrize(
    "lines",
    [
        ONLINE,
        f"{V} if (v > m) {{ s = s * expf(m - v) + 1.0f; m = v; }} else {{ s += expf(v - m); }}",
        f"{V} if (m < v) {{ s *= expf(m - v); m = v; }} s += expf(v - m);",
        f"{V} const float big = v > m ? v : m; s = expf(v - big) + expf(m - big) * s; m = big;",
        f"{V} push(m, s, v);",
        f"{V} MD e = {{v, 1.0f}}; md = merge(md, e);",
        f"{V} md = merge(md, MD{{v, 1.0f}});",
        f"{V} const float z = v * scale; const float o = m; m = max(m, z); s = s * exp2f(o - m) + exp2f(z - m);",
        f"{V} const float o = m; m = max(m, v); s = s * exp2f((o - m) * LOG2E) + exp2f(v * LOG2E - m * LOG2E);",
        f"{V} const float o = m; m = max(m, v); s = s * exp2f((o - m) * 1.4427f) + exp2f((v - m) * 1.4427f);",
        f"{V} const float o = m; m = fmaxf(m, v); if (o > -INFINITY) s *= __expf(o - m); if (m > -INFINITY) s += __expf(v - m);",
    ],
)  # fmt: skip
def test_a_recurrence_is_what_it_computes(lines: str) -> None:
    found = recognised(lines)
    assert found.maximum in {"m", "md.m"} and [path for path, _ in found.sums] in (["s"], ["md.d"])


@pytest.mark.parametrize(
    "lines",
    [
        f"{V} m = fmaxf(m, v); s = s + expf(v - m);",
        f"{V} const float old = m; m = fminf(m, v); s = s * expf(old - m) + expf(v - m);",
        f"{V} const float old = m; m = fmaxf(m, v); s = s * expf(m - old) + expf(v - m);",
        f"{V} const float old = m; m = fmaxf(m, v); s = s * expf(old - m) + expf(m - v);",
        f"{V} const float old = m; m = fmaxf(m, v); s = s * expf(old - m) + expf(v - m) + 1e-3f;",
        f"{V} const float old = m; m = fmaxf(m, v); s = s * expf(old - m) + expf((v - m) * scale);",
        f"{V} const float old = m; m = fmaxf(m, v); s = 0.99f * s * expf(old - m) + expf(v - m);",
        f"{V} const float old = m; if (v != 0.0f) {{ m = fmaxf(m, v); s = s * expf(old - m) + expf(v - m); }}",
        f"{V} const float old = m; if (v > -1e29f) {{ m = fmaxf(m, v); s = s * expf(old - m) + expf(v - m); }}",
        f"{V} const float old = m; if (!isnan(v)) {{ m = fmaxf(m, v); s = s * expf(old - m) + expf(v - m); }}",
        f"{V} if (v > m) {{ s = s * expf(m - v) + 1.0f; m = v; }} else if (v <= m) {{ s += expf(v - m); }}",
        f"{V} const float old = m; m = fmaxf(m, v); s = s * expf(old - m) + expf(v - m); y[i] = v;",
        f"{V} const float old = m; m = fmaxf(m, v); s = s * expf(old - m) + expf(v - m); s += t; t += v;",
        f"{V} const float old = m; m = fmaxf(m, v); s = s * expf(old - m) + __expf(v - m);",
        f"{V} const float old = m; m = fmaxf(m, v); s = s * expf(old - m) + expf(v - m); atomicAdd(y, v);",
        f"{V} if (v < 0.0f) continue; const float old = m; m = fmaxf(m, v); s = s * expf(old - m) + expf(v - m);",
        "m = fmaxf(m, s); s = s * expf(m - s) + 1.0f;",
        "m = fmaxf(m, x[i]); const float c = x[i]; s += expf(c - m) + s * 0.0f;",
        f"{V} if (v < 0.0f) {{ t += v; continue; }} {ONLINE.replace('const float v', 'const float w')}",
        f"{ONLINE} if (v < 0.0f) {{ t += v; m = 0.0f; }}",
    ],
)  # fmt: skip
def test_what_computes_something_else_is_none(lines: str) -> None:
    with pytest.raises(Unsupported):
        recognised(lines)


# A pack at once.


def test_a_pack_takes_one_maximum_and_an_exponential_an_element() -> None:
    new = after(KERNEL, "vectorize vectorize_online_reduction")
    assert "s += expf(v - m_so_far); } m = m_new; } else {" in flat(new)
    assert refused(new, "vectorize_online_reduction")


@pytest.mark.parametrize(
    ("begins", "packs"),
    [
        ("MD md;\n  md.m = -INFINITY;\n  md.d = 0.0f;", True),
        ("MD md;\n  md.m = -INFINITY;\n  md.d = threadIdx.x;", False),
        ("MD md;\n  if (n > 5) md.m = -INFINITY;", False),
        ("MD md;", False),
        ("MD md = {-INFINITY, 0.0f};", True),
    ],
)
def test_every_thread_begins_with_the_same(begins: str, packs: bool) -> None:
    text = (
        KERNEL.replace("MD md = {-INFINITY, 0.0f};", begins)
        .replace("] = m;", "] = md.m;")
        .replace("] = s;", "] = md.d;")
    )
    assert refused(text.replace(ONLINE, f"    {V}    md = merge(md, MD{{v, 1.0f}});\n"), "vectorize") != packs


def test_elements_in_memory_are_not_read_twice() -> None:
    assert refused(KERNEL, "vectorize_online_reduction")
    lanes = ONLINE.replace("x[blockIdx.x * n + i]", "x[blockIdx.x * n + 4 * i + k]")
    inner = KERNEL.replace(ONLINE, f"    for (int k = 0; k < 4; ++k) {{\n{lanes}    }}\n")
    assert refused(inner, "vectorize_online_reduction")
    loads = "    float e[4];\n    for (int j = 0; j < 4; ++j) e[j] = x[4 * i + j];\n    for (int k"
    held = inner.replace("    for (int k", loads).replace("x[blockIdx.x * n + 4 * i + k]", "e[k]")
    assert "m_so_far" in after(held, "vectorize_online_reduction")
    assert refused(held.replace("k < 4", "k < n"), "vectorize_online_reduction")


# Over the block.


SHUFFLES = """\
  for (int d = 16; d > 0; d /= 2) {
    const float m2 = __shfl_xor_sync(0xffffffffu, m, d), s2 = __shfl_xor_sync(0xffffffffu, s, d);
    const float top2 = fmaxf(m, m2);
    s = s * expf(m - top2) + s2 * expf(m2 - top2);
    m = top2;
  }
  if (threadIdx.x % 32 == 0) { maxs[threadIdx.x / 32] = m; sums[threadIdx.x / 32] = s; }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < 8; ++w) {
      const float top2 = fmaxf(m, maxs[w]);
      s = s * expf(m - top2) + sums[w] * expf(maxs[w] - top2);
      m = top2;
    }
    y[blockIdx.x] = m + logf(s);
  }
"""
STRUCTS = """\
  MD mine = {m, s};
  for (int d = 16; d > 0; d /= 2) {
    MD other;
    other.m = __shfl_down_sync(0xffffffffu, mine.m, d);
    other.d = __shfl_down_sync(0xffffffffu, mine.d, d);
    mine = merge(mine, other);
  }
  __shared__ MD of_warp[8];
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = mine;
  __syncthreads();
  MD all = of_warp[0];
  for (int w = 1; w < 8; ++w) all = merge(all, of_warp[w]);
  if (threadIdx.x == 0) y[blockIdx.x] = all.m + logf(all.d);
"""


FIRST_JOINS = """\
#include <math.h>
struct MD { float m; float d; };
__device__ MD merge(MD a, MD b) {
  const bool larger = a.m > b.m;
  const MD big = larger ? a : b;
  const MD small = larger ? b : a;
  return {big.m, big.d + small.d * expf(small.m - big.m)};
}
__global__ void rows(const float* x, float* y, int n) {
  __shared__ MD partials[8];
  MD md{-1e30f, 0.0f};
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    MD one;
    one.m = x[blockIdx.x * n + i];
    one.d = 1.0f;
    md = merge(md, one);
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) {
    MD other;
    other.m = __shfl_xor_sync(0xffffffffu, md.m, offset);
    other.d = __shfl_xor_sync(0xffffffffu, md.d, offset);
    md = merge(md, other);
  }
  if (threadIdx.x % 32 == 0) partials[threadIdx.x / 32] = md;
  __syncthreads();
  if (threadIdx.x == 0) {
    MD total = partials[0];
    for (int w = 1; w < 8; ++w) total = merge(total, partials[w]);
    y[blockIdx.x] = total.m + logf(total.d);
  }
}
extern "C" void launch(const float* x, float* y, long rows_, long n, float scale, cudaStream_t stream) {
  rows<<<rows_, 256, 0, stream>>>(x, y, n);
}
"""


def test_a_pair_that_the_first_thread_joins_for_itself() -> None:
    assert stays("online_reduction", FIRST_JOINS, "int w = 1", "int w = 2")
    assert stays("online_reduction", FIRST_JOINS, "    y[blockIdx.x] =", "    total.d += 1.0f;\n    y[blockIdx.x] =")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("fmaxf(maxs[threadIdx.x], maxs[threadIdx.x + d])", "fminf(maxs[threadIdx.x], maxs[threadIdx.x + d])"),
        (" * expf(maxs[threadIdx.x] - top)", ""),
        ("sums[threadIdx.x + d] * expf(maxs[threadIdx.x + d] - top)", "sums[threadIdx.x + d] * expf(maxs[threadIdx.x] - top)"),
        ("d = blockDim.x / 2; d > 0", "d = blockDim.x / 4; d > 0"),
        ("d = blockDim.x / 2; d > 0", "d = blockDim.x / 2; d > 1"),
        ("maxs[threadIdx.x] = top;", ""),
        ("    }\n    __syncthreads();\n  }\n  if", "    }\n  }\n  if"),
        ("maxs[0] + logf(sums[0])", "maxs[0] + logf(sums[1])"),
        ("sums[threadIdx.x] = s;", "sums[threadIdx.x] = s * 2.0f;"),
        ("<<<rows_, 256,", "<<<rows_, 250,"),
        ("<<<rows_, 256,", "<<<rows_, n,"),
        ("sums[threadIdx.x] * expf", "fmaxf(sums[threadIdx.x], 0.0f) * expf"),  # a NaN gets lost
    ],
)  # fmt: skip
def test_another_reduction_stays(old: str, new: str) -> None:
    assert stays("online_reduction", KERNEL, old, new)


def test_results_that_some_threads_have_and_what_a_thread_has_of_its_own() -> None:
    for_all = SHUFFLES.replace("    y[blockIdx.x] = m + logf(s);\n  }\n", "  }\n  y[threadIdx.x] = m + logf(s);\n")
    assert refused(KERNEL.replace(TREE, for_all), "online_reduction")
    assert "logf(of_block.sum) + m;" in after(KERNEL.replace("logf(sums[0])", "logf(sums[0]) + m"), "online_reduction")


def test_slots_and_names_may_serve_again() -> None:
    again = (
        "maxs[threadIdx.x] = x[threadIdx.x]; __syncthreads(); { const float s = 2.0f; y[threadIdx.x] = s * maxs[0]; }"
    )
    for tree in (TREE, SHUFFLES):
        new = body(
            after(KERNEL.replace(TREE, f"{tree}  __syncthreads();\n  {again}\n"), "online_reduction"), "void rows"
        )
        assert again in new


def test_rows_in_turn_keep_apart() -> None:
    rows = "for (int r = blockIdx.x; r < n; r += gridDim.x) {\n  float m = -INFINITY"
    lines = KERNEL.replace("float m = -INFINITY", rows).replace(
        "logf(sums[0]);\n", "logf(sums[0]);\n  __syncthreads();\n  }\n"
    )
    new = body(after(lines, "online_reduction"), "void rows")
    assert "block_shifted_sum<0>(m, s, expf);" in new and "__syncthreads();" in new


def test_a_wider_block_is_tried_where_rows_are_few_and_long() -> None:
    spec = catalog.load(str(ROOT / "tests/inputs/cross_entropy")).spec
    text = (ROOT / "tests/inputs/cross_entropy/baseline.plain.cu").read_text()
    facts = Facts(spec=spec, device=FACTS.device)
    assert apply_step("tune_block_size", text, facts) is None
    text = after(text, "online_reduction", "vectorize", "vectorize_online_reduction")
    wide = apply_step("tune_block_size", text, facts)
    assert wide is not None and "#define BLOCK_THREADS 256  // tune: 64 128 256 512 1024" in wide
    short = spec.model_copy(update={"workloads": tuple(w for w in spec.workloads if w.axes["rows"] > 1000)})
    narrow = apply_step("tune_block_size", text, Facts(spec=short, device=FACTS.device))
    assert narrow is not None and "// tune: 64 128 256 512\n" in narrow


# What comes out.

NAN, INF = math.nan, math.inf


def rows_of(columns: int) -> torch.Tensor:
    """float32 [rows, columns]: one row a kind of value that the recurrence could get wrong."""
    made = torch.Generator().manual_seed(3)
    normal = torch.randn(columns, generator=made)
    rows = [normal, 30 * normal, 1e-30 * normal, torch.zeros(columns), torch.full((columns,), -INF), 1e4 * normal.sort().values,
            1e4 * normal.sort(descending=True).values, 1e38 * normal]  # fmt: skip
    at = torch.arange(columns)
    rows += [torch.where(at < max(1, columns // 3), normal, -INF), torch.where(at % 7 == 3, -INF, normal)]
    for place in {0, columns // 2, columns - 1}:
        for special in (NAN, INF, -INF):
            rows.append(torch.where(at == place, special, normal))
    return torch.stack(rows)


def built(text: str, folder: Path) -> ctypes.CDLL:
    folder.mkdir()
    return emulation.library(bake(text, {}), folder)


def computed(library: ctypes.CDLL, rows: torch.Tensor) -> torch.Tensor:
    result = torch.full((rows.shape[0], 1), 77.0)
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (rows, result)]
    library.launch(*pointers, *map(ctypes.c_int64, rows.shape), ctypes.c_float(0.5), ctypes.c_void_p(0))
    return result


UNGUARDED = KERNEL.replace("* scale", "* 1.0f")
GUARDED = KERNEL.replace(TREE, SHUFFLES).replace(
    "expf(maxs[w] - top2)", "(maxs[w] > -INFINITY ? expf(maxs[w] - top2) : 0.0f)"
)
GUARDED = GUARDED.replace("s2 * expf(m2 - top2)", "s2 * (m2 > -INFINITY ? expf(m2 - top2) : 0.0f)")
GUARDED = GUARDED.replace("s * expf(m - top2)", "s * (m > -INFINITY ? expf(m - top2) : 0.0f)")
GUARDED = GUARDED.replace(
    "expf(old - m) + expf(v - m)", "(m > -INFINITY ? expf(old - m) : 1.0f) + (v == -INFINITY ? 0.0f : expf(v - m))"
)


TEXTS = {
    "unguarded": UNGUARDED,
    "guarded": GUARDED,
    "a branch": KERNEL.replace(ONLINE, BRANCH).replace(TREE, STRUCTS),
    "structs": KERNEL.replace(TREE, STRUCTS),
    "the first thread joins": FIRST_JOINS,
}


@pytest.mark.parametrize("name", TEXTS)
def test_special_values_come_out_as_they_did(name: str, tmp_path: Path) -> None:
    """Infinities, NaN, rows and threads with nothing: what was a number is that number, a NaN of an input stays one, and what
    the source made a NaN of by itself (-inf - -inf) may be right instead."""
    text = TEXTS[name]
    new = after(text, "online_reduction vectorize vectorize_online_reduction")
    before, behind = built(text, tmp_path / "before"), built(new, tmp_path / "behind")
    for columns in (1, 36, 515, 1032):
        rows = rows_of(columns)
        was, now = (computed(library, rows) for library in (before, behind))
        want = torch.logsumexp(rows.double(), -1, keepdim=True)
        near = ((now - was).abs() <= 1e-5 + 1e-4 * was.abs()) | (now == was) | (now.isnan() & was.isnan())
        right = (((now - want).abs() <= 1e-5 + 1e-4 * want.abs()) & want.isfinite()) | (now == want)
        wrong = ~(near | (was.isnan() & right))
        assert not wrong.any(), (columns, wrong.nonzero()[0], was[wrong][:3], now[wrong][:3], want[wrong][:3])
        lost = rows.isnan().any(1)
        assert now[lost].isnan().all()
        assert name != "guarded" or not now[~lost & ~(rows == INF).any(1)].isnan().any()


def test_several_sums_and_several_kernels() -> None:
    new = after((ROOT / "tests/inputs/row_entropy/baseline.plain.cu").read_text(), "online_reduction")
    assert re.findall(r"block_(?:max|sum)<(\d+)>", new) == ["0", "1", "2"], "no site is used twice"
    other = KERNEL[KERNEL.index("__global__") :].replace("rows(", "others(").replace("rows<<<", "others<<<")
    text = after(KERNEL + other.replace("launch(", "launch_others("), "online_reduction")
    assert re.findall(r"block_shifted_sum<(\d+)>", text) == ["0", "1"]
