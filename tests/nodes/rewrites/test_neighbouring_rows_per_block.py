"""Neighbouring rows of the index in which per-row values lie side by side share a block."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.judge.tunables import bake, tunables
from tests.nodes.rewrites.steps import ROOT, after, check, refused, stays

GROUPS = ROOT / "tests/inputs/rescale_groups"
MERGE = ROOT / "kernels/merge_attn_states_lse"
FLAT = (GROUPS / "baseline.plain.cu").read_text()
BODY = FLAT[FLAT.index("  const int64_t i =") : FLAT.index("}\n\ntemplate <typename T>\nvoid rescale")]
LAUNCH = "rescale_groups_kernel<T><<<(n + 255) / 256, 256, 0, stream>>>(x, scale, out, tokens, groups, size);"
SCALED = "static_cast<T>(static_cast<float>(x[i]) * scale[group * tokens + token])"


def flat(body: str, launch: str) -> str:
    """The input kernel with another body and launch."""
    assert LAUNCH in FLAT and BODY in FLAT
    return FLAT.replace(BODY, body).replace(LAUNCH, launch)


FORMS = {
    "packs": FLAT,
    "blocks over rows": flat(
        f"""\
  for (int64_t row = blockIdx.x; row < tokens * groups; row += gridDim.x) {{
    const int64_t token = row / groups, group = row % groups;
    for (int64_t k = threadIdx.x; k < size; k += blockDim.x) {{
      const int64_t i = row * size + k;
      out[i] = {SCALED};
    }}
  }}
""",
        LAUNCH.replace("(n + 255) / 256", "40"),
    ),
}
PREPARE = {"packs": ("vectorize",), "blocks over rows": ("vectorize", "grid_stride")}
SHAPES = ("float16:tokens=21,groups=3,size=64", "float16:tokens=33,groups=2,size=60", "bfloat16:tokens=17,groups=1,size=33",
          "float16:tokens=1,groups=4,size=64", "float16:tokens=19,groups=2,size=1030", "float16:tokens=4,groups=3,size=4")  # fmt: skip
MERGED = ("float16:tokens=21,heads=3,head_dim=64", "bfloat16:tokens=37,heads=1,head_dim=60", "float32:tokens=1,heads=4,head_dim=64",
          "float16:tokens=17,heads=5,head_dim=36")  # fmt: skip


def kernel(text: str, name: str = "_neighbours") -> str:
    start = text.index(f"{name}(")
    return text[text.index("{\n", start) : text.index("\n}", start)]


def test_a_thread_an_element_becomes_neighbouring_rows_a_block() -> None:
    new = after(FLAT, "neighbouring_rows_per_block")
    assert [(t.name, t.value, t.choices) for t in tunables(new)] == [("NEIGHBOUR_ROWS", 16, (4, 8, 16))]
    assert FLAT[FLAT.index("template") : FLAT.index("template <typename T>\nvoid")] in new, "the old kernel stays"
    assert refused(new, "neighbouring_rows_per_block")


TRAPS = [
    ("scale[group * tokens + token]", "scale[token * groups + group]"),  # neighbours in the order that they have
    ("scale[group * tokens + token]", "scale[token]"),
    ("scale[group * tokens + token]", "scale[group * tokens + token * 2]"),
    ("scale[group * tokens + token]", "scale[group * tokens + token + i]"),  # the element's own place
    ("scale[group * tokens + token]", "scale[group + token]"),
    ("  out[i] =", "  __syncwarp();\n  out[i] ="),
    ("  out[i] =", "  if (threadIdx.x == 0) atomicAdd(out, 1);\n  out[i] ="),
    ("  out[i] =", "  if (blockIdx.x == 3) return;\n  out[i] ="),  # which block has the element
    ("  if (i >= tokens * groups * size) return;\n", ""),
    ("i >= tokens * groups * size", "i >= tokens * groups"),  # not whole rows
    ("  if (i >= tokens * groups * size) return;\n", "  const float s = scale[i];\n  if (i >= tokens) return;\n"),
    ("if (i >= tokens * groups * size) return;", "if (i >= tokens * groups * size || scale[0] > 2) return;"),
    ("if (i >= tokens * groups * size) return;", "if (i > tokens * groups * size) return;"),
    ("const int64_t group =", "groups += 0;\n  const int64_t group ="),
    ("+ threadIdx.x;", "+ threadIdx.x + 1;"),
    ("threadIdx.x;\n", "threadIdx.x;\n  const int64_t other = threadIdx.x + i;\n"),
    ("<<<(n + 255) / 256, 256,", "<<<dim3((n + 255) / 256, 1), dim3(128, 2),"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new"), TRAPS)
def test_kernels_that_gain_nothing_or_need_their_order_keep_it(old: str, new: str) -> None:
    assert stays("neighbouring_rows_per_block", FLAT, old, new)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("const int64_t token", "if (scale[row] > 1) continue;\n    const int64_t token"),
        ("out[i] =", "tokens += 0; out[i] ="),
        ("    }\n  }\n}", "    }\n  }\n  out[0] = 0;\n}"),
    ],
)
def test_loops_that_do_more_than_a_row_stay(old: str, new: str) -> None:
    text = after(FORMS["blocks over rows"], "grid_stride")
    assert stays("neighbouring_rows_per_block", text, old, new)
    before = "  int seen = 0;\n  for (int64_t j = 0; j < 2; ++j) seen += j;\n  for (int64_t row"
    assert not refused(text.replace("  for (int64_t row", before, 1), "neighbouring_rows_per_block")


@pytest.mark.parametrize("form", FORMS)
def test_forms_compute_what_the_reference_says(form: str, tmp_path: Path) -> None:
    new = after(FORMS[form], *PREPARE.get(form, ()), "neighbouring_rows_per_block")
    check(bake(new, {"NEIGHBOUR_ROWS": 4}), tmp_path, GROUPS, "0", "1", *SHAPES)
