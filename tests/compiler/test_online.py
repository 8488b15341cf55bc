"""Reductions below a running maximum, in one pass over memory, in the CUDA emulation against the reference."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from compiler.compile import Meaning, source
from kernels.spec import Spec
from tests.compiler.folders import check_text, folder_of, made
from tests.kernels import test_kernel_contract as contract
from tests.kernels import test_kernels_emulated as kernels_emulated

MEANS = """\
import torch


def reference(x):
    shifted = torch.where(x > -1, 3 * x, float("-inf"))
    log = torch.log_softmax(x, -1)
    weights = torch.softmax(shifted, -1)
    return {
        "lse": torch.logsumexp(x, -1), "masked": torch.logsumexp(shifted, -1), "entropy": torch.logsumexp(x, -1) - (log.exp() * x).sum(-1),
        "mean": (weights * x.square()).sum(-1), "largest": x.abs().amax(-1),
    }
"""
SOFTMAX = """\
import torch


def reference(x):
    return {"y": torch.softmax(x - x.mean(-1, keepdim=True), -1), "lse": torch.logsumexp(x, -1)}
"""
PER_ROW = ("lse", "masked", "entropy", "mean", "largest")
SIZES = ((3, 64), (37, 8), (2, 4424), (5, 1029), (7, 3))


def spec_of(dtype: str, outputs: Sequence[str] = PER_ROW, sizes=SIZES, timed: int = 99) -> Spec:
    tensors = {"x": "in rows cols"} | {n: "out rows cols" if n == "y" else "out rows float32" for n in outputs}
    return made([{"rows": r, "cols": c} for r, c in sizes], (dtype,), ("cuda",), timed=timed, tensors=tensors)


@pytest.mark.parametrize("resident", [1, 2])
@pytest.mark.parametrize(("dtype", "reference"), [("float32", MEANS), ("bfloat16", MEANS), ("float16", SOFTMAX)])
def test_sums_below_a_running_maximum_are_right(dtype, reference, resident, tmp_path):
    spec = spec_of(dtype, PER_ROW if reference == MEANS else ("y", "lse"))
    text, found = re.subn(r"#define RESIDENT 0", f"#define RESIDENT {resident}", source(spec, reference))
    assert found == 1
    check_text(folder_of(tmp_path, spec, reference), text, tmp_path)


def test_a_row_that_stays_meets_once_for_its_maximum_and_its_sum():
    text = source(
        spec_of("float16", ("y",)), "import torch\n\n\ndef reference(x):\n    return {'y': torch.softmax(x, -1)}\n"
    )
    kept = text[text.index("_rows_kept_by_8(") :]
    kept = kept[: kept.index("\n}\n")]
    assert kept.count("reduce_below<") == 1 and "team_reduce<" not in kept


def test_a_row_is_read_once_for_all_that_is_reduced_of_it():
    meaning = Meaning(spec_of("float32"), MEANS)
    text = meaning.text(meaning.first_schedule("sm_90", "cuda"))
    last = text[text.index("_rows_wide_by_1(") :]
    assert last[: last.index("\n}\n")].count("load_pack<1>(x") == 1


@pytest.mark.parametrize(
    "entropy",
    [
        "-(torch.log_softmax(x, -1).exp() * torch.log_softmax(x, -1)).sum(-1)",
        "-((x - torch.logsumexp(x, -1, keepdim=True)).exp() * (x - torch.logsumexp(x, -1, keepdim=True))).sum(-1)",
    ],
)
def test_logits_and_their_maximum_are_not_summed_apart(entropy, tmp_path):
    """Logits around a thousand with an entropy below one: the difference of two such sums would be off in its fourth digit."""
    reference = f"import torch\n\n\ndef reference(x):\n    return {{'entropy': {entropy}}}\n"
    small = ((5, 515), (4, 515), (6, 515), (3, 515))
    # the first is timed, the others are no band's
    kernel = folder_of(tmp_path, spec_of("bfloat16", ("entropy",), ((512, 8192), *small), timed=1), reference)
    (tmp_path / "candidate.cu").write_text(
        source(kernel.spec, reference).replace("#define RESIDENT 0", "#define RESIDENT 2")
    )
    library = kernels_emulated.emulated(tmp_path / "candidate.cu", tmp_path)
    few = [workload for workload in kernel.spec.suite("cuda") if not workload.timed]
    assert len(few) == len(small)
    assert list(contract.complaints(kernel, library, few, "cpu")) == []


BIASED = """\
import torch


def reference(x, table):
    at = torch.arange(x.shape[-1], device=x.device)
    bias = table[at[:, None] - at + x.shape[-1] - 1].permute(2, 0, 1)
    return {"y": torch.softmax(5 * torch.tanh(x / 5) + bias, -1)}
"""


def test_what_is_dear_is_computed_once_and_neighbours_read_a_table_side_by_side(tmp_path):
    tensors = {"x": "in heads cols cols", "table": "in 2*cols-1 heads", "y": "out heads cols cols"}
    spec = made([{"heads": 2, "cols": c} for c in (64, 5, 160)], ("bfloat16",), ("cuda",), tensors=tensors)
    text = source(spec, BIASED)
    kept = text[text.index("_rows_kept_by_1(") :]
    kept = kept[: kept.index("\n}\n")]
    assert kept.count("tanhf(") == kept.count("table[") == kept.count("exp(") == 1
    check_text(folder_of(tmp_path, spec, BIASED), text, tmp_path, offsets=(0,))


WINDOWED = """\
import torch


def reference(x, table, place):
    bias = table[place.view(-1)].view(*place.shape, -1).permute(2, 0, 1)
    return {"y": torch.softmax(x + bias, -1)}
"""


def test_rows_of_odd_length_that_read_a_table_are_taken_one_by_one(tmp_path):
    tensors = {
        "x": "in heads cols cols",
        "table": "in places heads",
        "place": "in cols cols int64 index:places",
        "y": "out heads cols cols",
    }
    sizes = [{"heads": 2, "cols": c, "places": 2 * c + 3} for c in (49, 5)]
    spec = made(sizes, ("float16",), ("cuda",), tensors=tensors)
    versions = Meaning(spec, WINDOWED).first_schedule("sm_90", "cuda").versions["float16"]
    sketch = next(version for version in versions if version.vector == 1).kernels[0].sketch
    assert sketch.team and not sketch.ragged
    check_text(folder_of(tmp_path, spec, WINDOWED), source(spec, WINDOWED), tmp_path, offsets=(0, 1))


def test_a_long_row_of_halves_is_computed_again_not_held(tmp_path):
    """More registers than the row itself would leave one block to a multiprocessor; eight packs a thread, and one, which are held."""
    spec = spec_of("float16", ("y",), ((2, 4096), (3, 200)))
    text = source(spec, "import torch\n\n\ndef reference(x):\n    return {'y': torch.softmax(x, -1)}\n")
    assert "if constexpr (Items * 32 <= 128) {" in text
    for items in (1, 8):
        numbers = text.replace("#define ITEMS 0", f"#define ITEMS {items}").replace(
            "#define RESIDENT 0", "#define RESIDENT 1"
        )
        folder = tmp_path / str(items)
        folder.mkdir()
        reference = "import torch\n\n\ndef reference(x):\n    return {'y': torch.softmax(x, -1)}\n"
        check_text(folder_of(folder, spec, reference), numbers, folder, offsets=(0,))
