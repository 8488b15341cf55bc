"""Rows that warps take: before and after, what is left alone, and what comes out when it runs."""

from __future__ import annotations

import pytest

from tests.nodes.rewrites.steps import after, flat, refused, same, stays

CENTRE = """\
#include <stdint.h>

__device__ float warp_max(float v) {
  for (int offset = 16; offset > 0; offset >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffff, v, offset));
  return v;
}

__global__ void shift(const float* x, float* y, float* top, int rows, int n) {
  const int lane = threadIdx.x & 31;
  const int row = blockIdx.x * (blockDim.x / 32) + (threadIdx.x >> 5);
  if (row >= rows) return;
  float most = -1e30f;
  for (int i = lane; i < n; i += 32) {
    const float v = x[row * n + i];
    most = fmaxf(most, v);
  }
  most = warp_max(most);
  if (lane == 0) top[row] = most;
  for (int i = lane; i < n; i += 32) {
    const float v = x[row * n + i];
    y[row * n + i] = v - most;
  }
}

extern "C" void fuzz_float32(const float* x, float* y, float* out, int64_t rows, int64_t n, cudaStream_t stream) {
  shift<<<(rows + 3) / 4, 128, 0, stream>>>(x, y, out, rows, n);
}
"""
PLANE = CENTRE.replace("  const int lane = threadIdx.x & 31;\n", "").replace("lane", "threadIdx.x").replace(
    "blockIdx.x * (blockDim.x / 32) + (threadIdx.x >> 5)", "blockIdx.x * blockDim.y + threadIdx.y").replace("128, 0", "dim3(32, 4), 0")  # fmt: skip


def test_blocks_that_only_count_teams_keep_their_width() -> None:
    new = flat(after(CENTRE, "warp_per_row"))
    assert "if (blockIdx.x * (blockDim.x / TEAM) + threadIdx.x / TEAM >= teams) return;" in new
    assert (
        "TEAM_THREADS / decltype(team)::value)), TEAM_THREADS, 0, stream>>>" in new
        and "__launch_bounds__(TEAM_THREADS)" in new
    )
    new = after(PLANE.replace("i += 32", "i += blockDim.x"), "warp_per_row")
    assert (
        "const int i = threadIdx.x + item * TEAM;" in new
        and "(rows + 3) / 4, dim3(decltype(team)::value, 4), 0, stream>>>" in new
    )


NUMBERED = CENTRE.replace("(blockDim.x / 32)", "4")
NAMED = NUMBERED.replace("blockIdx.x * 4 +", "static_cast<int64_t>(blockIdx.x) * WARPS +")
COUNTED = {
    "a number": NUMBERED,
    "a constant": NAMED.replace("__device__", "constexpr int WARPS = 4;\n__device__"),
    "a macro": NAMED.replace("__device__", "#define WARPS 4\n__device__").replace("128, 0", "32 * WARPS, 0"),
    "a template": NAMED.replace("__global__", "template <int WARPS>\n__global__").replace("shift<<<", "shift<4><<<"),
    "another name": NUMBERED.replace("(threadIdx.x >> 5)", "warp").replace("  const int row", "  const int warp = threadIdx.x / 32;\n  const int row"),
}  # fmt: skip


def test_warps_that_a_number_counts() -> None:
    same({name: (text, after(text, "symbolic_block_size warp_per_row")) for name, text in COUNTED.items()})
    for old, new in (("128, 0", "256, 0"), ("x * 4", "x * 8"), (">> 5", ">> 4"), ("128, 0", "dim3(32, 4), 0")):
        assert stays("symbolic_block_size", NUMBERED, old, new)
    long = COUNTED["a constant"].replace("int WARPS", "int64_t WARPS")
    assert refused(long, "symbolic_block_size"), "places would be of fewer bits"


REFUSED = {
    "warps that a number counts": ("(blockDim.x / 32)", "4"),
    "a lane that does more": ("if (lane == 0)", "if (lane < 2)"),
    "a lane in an address": ("top[row] = most", "top[row + lane] = most"),
    "a share that is not reduced": ("  most = warp_max(most);\n", ""),
    "a share beside its sum": ("most = warp_max(most);", "const float all = warp_max(most);"),
    "part of a warp": ("offset = 16", "offset = 8"),
    "the first lane alone": ("__shfl_xor_sync", "__shfl_down_sync"),
    "another shuffle": ("float most =", "const float old = __shfl_sync(0xffffffff, x[row], 0);\n  float most ="),
    "shared memory": ("float most =", "__shared__ float held[4];\n  float most ="),
    "a barrier": ("float most =", "__syncwarp();\n  float most ="),
    "an atomic": ("top[row] = most", "atomicAdd(top, most)"),
    "a block of two dimensions": ("128, 0", "dim3(128, 2), 0"),
    "a block that is no warps": ("128, 0", "120, 0"),
    "a block of unknown width": ("128, 0", "n, 0"),
    "the thread itself": ("float most =", "const int t = threadIdx.x * 2;\n  float most = t +"),
    "a row that is written elsewhere": ("top[row] = most", "top[row] = most, y[row] = 0"),
    "a loop that is left": ("    most = fmaxf", "    if (v > 9) break;\n    most = fmaxf"),
    "an order of elements": ("most = fmaxf(most, v);", "most = most * 0.5f + v;"),
    "a stride of its own": ("i += 32) {\n    const float v = x[row * n + i];\n    y", "i += 64) {\n    const float v = x[row * n + i];\n    y"),
    "nothing that is read twice": ("x[row * n + i];\n    y[row", "x[row * n + n - i];\n    y[row"),
    "a length that changes": ("  if (lane == 0)", "  n = n / 2;\n  if (lane == 0)"),
    "the row moves": ("  if (lane == 0)", "  x += 1;\n  if (lane == 0)"),
    "already": ("fuzz_float32(", "run_with_team("),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new"), REFUSED.values(), ids=REFUSED)
def test_what_other_kernels_do_with_their_warps_is_left_alone(old: str, new: str) -> None:
    assert stays("warp_per_row", CENTRE, old, new)


SUMS = (
    CENTRE.replace("most = -1e30f", "most = 0.0f").replace("fmaxf(most, v)", "most + v").replace("fmaxf(v, ", "(v + ")
)
ROUNDS = [("  if (row >= rows) return;\n", "  for (; row < rows; row += 4 * gridDim.x) {\n"), ("const int row", "int row"), ("\n}\n\nextern", "\n  }\n}\n\nextern")]  # fmt: skip
NO_SUMS = {
    "a share that begins with more": [("most = 0.0f", "most = 1.0f")],
    "a sum of sums": [("  if (lane", "  most = warp_max(most);\n  if (lane")],  # 32 times the sum
    "a sum of what every lane has": [("  if (lane", "  float one = 1.0f;\n  one = warp_max(one);\n  if (lane")],
    "a share of the round before": [*ROUNDS, ("  float most", "  if (row == 3) top[0] = most;\n  most"), ("  for (; row", "  float most = 0.0f;\n  for (; row")],
}  # fmt: skip


@pytest.mark.parametrize("changes", NO_SUMS.values(), ids=NO_SUMS)
def test_warps_stay_as_wide_as_their_sums_count(changes: list[tuple[str, str]]) -> None:
    """In a loop, what stands in front of it in the text reads what it left."""
    text = SUMS
    assert not refused(text, "warp_per_row")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    assert refused(text, "warp_per_row")


def test_shuffles_that_are_written_out_and_broadcast() -> None:
    shuffle = "most = fmaxf(most, __shfl_down_sync(0xffffffff, most, offset));"
    loop = f"#pragma unroll\n  for (int offset = 16; offset > 0; offset /= 2) {shuffle}\n"
    text = CENTRE.replace("  most = warp_max(most);", f"{loop}  most = __shfl_sync(0xffffffff, most, 0);")
    new = after(text, "warp_per_row")
    made = new[new.index("template <int TEAM, int ITEMS>") : new.index('extern "C"')]
    assert "\n  most = team_max<TEAM>(most);\n" in made and "shfl" not in made
    alone = text.replace("  most = __shfl_sync(0xffffffff, most, 0);", "")
    assert refused(alone, "warp_per_row"), "only the first lane has it"


def test_loads_of_the_second_loop_take_what_they_need_along() -> None:
    """keep_row's too: the place that an early load names is computed in front of it, or the load stays late."""
    text = CENTRE.replace("float* top,", "float* top, const int* __restrict__ place, const float* __restrict__ bias,")
    text = text.replace("(x, y, out, ", "(x, y, out, q, w, ").replace(
        "float* out, int64_t", "float* out, const int* q, const float* w, int64_t"
    )
    text = text.replace("  if (lane == 0)", "  const int start = place[row] * n;\n  if (lane == 0)")
    text = text.replace(
        "    y[row * n + i] = v - most;", "    const float b = bias[start + i];\n    y[row * n + i] = v - most + b;"
    )
    made = after(text, "warp_per_row").partition("template <int TEAM, int ITEMS>")[2]
    assert (
        made.index("int start = place[row] * n;")
        < made.index("b_row[item] = bias[start + i];")
        < made.index("team_max")
    )
    late = after(text.replace("place[row] * n;", "place[row] * n + static_cast<int>(most);"), "warp_per_row")
    assert "b_row" not in late and "const float b = bias[start + i];" in late[late.index("team_max<TEAM>(most)") :]
    left = after(text.replace("  const int start", "  if (most > 9) return;\n  const int start"), "warp_per_row")
    assert "b_row" not in left, "a load that a return was to spare"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("dim3(32, 4)", "dim3(64, 4)"),
        ("dim3(32, 4)", "dim3(n, 4)"),
        ("blockIdx.x * blockDim.y + threadIdx.y", "blockIdx.x * blockDim.x + threadIdx.y"),
        ("threadIdx.x == 0", "threadIdx.x < 2"),
        ("top[row]", "top[row + threadIdx.x]"),
        ("dim3(32, 4)", "dim3(32, 4, 2)"),
    ],
)
def test_other_planes_are_left_alone(old: str, new: str) -> None:
    assert stays("warp_per_row", PLANE, old, new)


def test_teams_compute_what_warps_did() -> None:
    """Also where every lane has two items at least."""
    texts = {"counted": CENTRE, "plane": PLANE}
    made = {name: after(text, "warp_per_row") for name, text in texts.items()}
    two = {f"{name}, two": (texts[name], text.replace("TEAM_ITEMS 1 ", "TEAM_ITEMS 2 ")) for name, text in made.items()}
    same({name: (texts[name], text) for name, text in made.items()} | two)
