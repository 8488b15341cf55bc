"""Places that others name: slots of a cache of which some are none, state changed in place, sizes that divide one another."""

from __future__ import annotations

import pytest
import sympy

from compiler.compile import Meaning, source
from compiler.draft.expressions import Expr, index_value, walk
from compiler.evaluate import check
from compiler.frontend import NoProgram
from compiler.indexing import read_at
from kernels.spec import Spec
from tests.compiler.folders import check_text, folder_of, made

SIZES = (
    {"tokens": 3, "heads": 4, "kv_heads": 2, "width": 64, "slots": 9},
    {"tokens": 5, "heads": 6, "kv_heads": 6, "width": 21, "slots": 11},
)


def slotted(values: str = "distinct", out: str = "out tokens width", sizes=SIZES) -> Spec:
    tensors = {
        "x": "in tokens width", "y": "in heads width", "slot": f"in tokens int64 {values}:slots",
        "state": "inout slots width 3 @tokens*width*3", "out": out,
    }  # fmt: skip
    return made(sizes, ("float16",), tensors=tensors)


ENTRY = 'extern "C" void'
WRITES = {
    "a row behind": "torch.cat([state, state[:1]]).index_put((slot,), new)[:-1]",
    "a mask": "state.clone().index_put((slot[slot >= 0],), new[slot >= 0])",
    "nonzero": "state.clone().index_copy(0, slot[(slot >= 0).nonzero()[:, 0]], new[(slot >= 0).nonzero()[:, 0]])",
}
STEP = """\
import torch


def reference(x, y, slot, state):
    new = torch.stack((x, 2 * x, x - 1), -1)
    state = {write}
    return {{"state": state, "out": x * y[0]}}
"""
WINDOW = """\
import torch


def reference(x, y, slot, state):
    held = state[slot]
    state = state.clone()
    state[slot] = torch.cat((held[..., 1:], x[..., None]), -1)
    return {"state": state, "out": (held * held).sum(-1) + x}
"""


@pytest.mark.parametrize("name", WRITES)
def test_nothing_is_written_for_a_slot_that_is_none(name):
    reference = STEP.format(write=WRITES[name])
    meaning = Meaning(slotted(), reference)
    for vector in (1, 8):
        program = meaning.program("float16", vector)
        assert any(member.when is not None for kernel in program.kernels for member in kernel.members)
        check(program, reference)


def test_a_window_of_state_moves_on_in_place(tmp_path):
    spec = slotted("permutation")
    text = source(spec, WINDOW)
    assert "load_pack<24>(state + " in text, "three neighbours of eight channels are one window"
    check_text(folder_of(tmp_path, spec, WINDOW), text, tmp_path)


def test_rows_of_a_permutation_as_tokens_have_several_each():
    tensors = {
        "x": "in rows width",
        "slot": "in tokens each int64 permutation:rows",
        "out": "out tokens width",
    }
    spec = made([{"rows": 8, "tokens": 4, "each": 2, "width": 64}], requires=("rows - tokens*each",), tensors=tensors)
    source(spec, "def reference(x, slot):\n    return {'out': x[slot].sum(1)}\n")


def test_what_is_none_stays_as_it_was_in_the_emulation(tmp_path):
    reference = STEP.format(write=WRITES["a row behind"])
    spec = slotted()
    check_text(folder_of(tmp_path, spec, reference), source(spec, reference), tmp_path)


def test_what_is_gathered_of_a_slice_is_read_where_it_lies(tmp_path):
    reference = (
        "import torch\n\n\ndef reference(x, y, slot):\n"
        "    part = x[:, 1:].T\n"
        "    at = (slot % (y.shape[1] - 1))[None].expand(y.shape[0] - 1, -1)\n"
        "    return {'out': part.index_select(0, slot % part.shape[0]) % -0.75, 'taken': y[1:, :-1].gather(1, at) % 0.75}\n"
    )  # fmt: skip
    tensors = {
        "x": "in tokens width",
        "y": "in heads width",
        "slot": "in tokens int64 permutation:slots",
        "out": "out tokens tokens",
        "taken": "out heads-1 tokens",
    }
    spec = made(SIZES, ("float32",), ("cuda",), tensors=tensors)
    text = source(spec, reference)
    assert "cudaMallocAsync" not in text[text.index(ENTRY) :], "no copy of a slice"
    check_text(folder_of(tmp_path, spec, reference), text, tmp_path)


def test_what_is_added_where_no_two_name_one_place_is_a_map(tmp_path):
    reference = "def reference(state, x, slot):\n    return {'state': state.index_add(0, slot, x * 2, alpha=0.5)}\n"
    tensors = {"state": "inout slots width", "x": "in tokens width"}
    for values in ("permutation", "index"):
        spec = made(SIZES, ("float16",), ("cuda",), tensors=tensors | {"slot": f"in tokens int64 {values}:slots"})
        text = source(spec, reference)
        assert ("_phases_" in text[text.index(ENTRY) :]) == (values == "index")
        if values == "permutation":
            check_text(folder_of(tmp_path, spec, reference), text, tmp_path)


def test_state_is_changed_in_place_only_where_no_two_name_one_slot():
    with pytest.raises(NoProgram, match="in place"):
        Meaning(slotted("index"), WINDOW).program("float16", 1)


def test_an_axis_that_another_divides_in_every_workload_is_taken_for_its_multiple():
    reference = (
        "import torch\n\n\ndef reference(x, y, slot, state, kv_heads):\n"
        "    wide = x[:1].expand(kv_heads, -1).repeat_interleave(y.shape[0] // kv_heads, dim=0)\n"
        "    return {'out': y * wide, 'state': state * 2}\n"
    )  # fmt: skip
    program = Meaning(slotted(out="out heads width"), reference).program("float16", 1)
    assert program.guards() == ["heads % kv_heads == 0"]
    check(program, reference)


def test_a_row_that_is_changed_in_place_is_written_after_every_reduction_of_it(tmp_path):
    reference = (
        "def reference(x):\n"
        "    centred = x - x.mean(-1, keepdim=True)\n"
        "    return {'x': x * 2, 'out': centred.square().mean(-1)}\n"
    )  # fmt: skip
    spec = made(SIZES, ("float16",), ("cuda",), tensors={"x": "inout tokens width", "out": "out tokens"})
    check_text(folder_of(tmp_path, spec, reference), source(spec, reference), tmp_path)


def test_a_column_that_is_changed_in_place_is_written_by_who_reads_it(tmp_path):
    reference = (
        "def reference(x, mean):\n"
        "    now = x.mean(0)\n"
        "    return {'mean': 0.9 * mean + 0.1 * now, 'out': x - now}\n"
    )  # fmt: skip
    tensors = {"x": "in tokens width", "mean": "inout width float32", "out": "out tokens width"}
    spec = made(SIZES, ("float16",), ("cuda",), tensors=tensors)
    check_text(folder_of(tmp_path, spec, reference), source(spec, reference), tmp_path)


def test_named_axes_with_others_between_them_come_first_and_nine_are_stacked(tmp_path):
    reference = (
        "import torch\n\n\ndef reference(x, slot):\n"
        "    row, column = slot[:, None] % x.shape[0], slot[None] % x.shape[2]\n"
        "    nine = torch.stack([x[0, 0, :1] * n for n in range(9)])\n"
        "    return {'out': x[row, :, column] + nine[slot % 9, 0][:, None, None]}\n"
    )  # fmt: skip
    tensors = {
        "x": "in heads kv_heads width",
        "slot": "in tokens int64 index:heads",
        "out": "out tokens tokens kv_heads",
    }
    spec = made(SIZES, devices=("cuda",), tensors=tensors)
    check_text(folder_of(tmp_path, spec, reference), source(spec, reference), tmp_path)


GROUPS = """\
def reference(x, y, slot, state):
    groups = x.view(x.shape[0], 4, -1)
    best = groups.topk(2, dim=-1).values.sum(-1)
    taken = best >= best.topk(2, dim=-1).values[:, -1:]
    left = torch.where(taken[..., None], groups, float("-inf")).view(x.shape)
    return {"state": state, "out": left.topk(3, dim=-1).values}
"""


def test_the_largest_of_groups_are_reductions_of_the_row():
    reference = "import torch\n\n\n" + GROUPS
    spec = slotted(out="out tokens 3", sizes=[SIZES[0], SIZES[1] | {"width": 36}])
    program = Meaning(spec, reference).program("float16", 1)
    assert [kernel.layout for kernel in program.kernels if kernel.reduced] == ["row"]
    check(program, reference)


def test_rows_of_a_table_whose_size_the_entry_is_not_told_are_gathered_at_any_width():
    """Aligned pieces around its rows may not reach beyond its end, which nobody knows there."""
    tensors = {"ids": "in tokens int64 index:vocab", "table": "in vocab width @tokens*width", "out": "out tokens width"}
    spec = made(
        [{"tokens": 5, "vocab": 9, "width": width} for width in (2048, 11)], unknown=("vocab",), tensors=tensors
    )
    assert "vocab" not in source(spec, "def reference(ids, table):\n    return {'out': table[ids] * 2}\n")


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_row_becomes_places_in_a_written_table_and_comes_back(tmp_path, device):
    """The table has no power of two of numbers, and what is sought is found once, not in each step of the search."""
    reference = (
        "import torch\n\n\ndef reference(x):\n"
        "    codes = torch.tensor([n * abs(n) / 1e4 for n in range(-100, 101)], dtype=x.dtype, device=x.device)\n"
        "    most = x.abs().amax(-1, keepdim=True)\n"
        "    level = torch.searchsorted(codes, x / most)\n"
        "    return {'level': level.to(torch.uint8), 'back': codes[level] * most}\n"
    )  # fmt: skip
    tensors = {"x": "in tokens width", "level": "out tokens width uint8", "back": "out tokens width"}
    spec = made(SIZES, devices=(device,), tensors=tensors)
    text = source(spec, reference, device=device)
    assert "width = 128; width > 0" in text and "beyond < " not in text and "201]" in text
    check_text(folder_of(tmp_path, spec, reference), text, tmp_path, device)


def test_more_numbers_than_a_byte_has_are_no_table():
    reference = "import torch\n\n\ndef reference(x):\n    return {'out': x * torch.tensor(list(range(257)))[:1]}\n"
    with pytest.raises(NoProgram, match="more than 256 numbers"):
        source(made(SIZES, tensors={"x": "in tokens", "out": "out tokens"}), reference)


def test_rows_of_a_table_are_on_their_way_before_the_first_of_a_thread_is_stored():
    """Numbers and what they name lie one behind the other: mini-sglang's index had 1.05 of its own kernel's time with a pack a thread (H200)."""
    spec = made(
        [{"rows": 8192, "nodes": 32768}, {"rows": 64, "nodes": 32768}], ("float16",), devices=("cuda",),
        tensors={"table": "in nodes 4096", "ids": "in rows int32 index:nodes", "out": "out rows 4096"},
    )  # fmt: skip
    text = source(spec, "def reference(table, ids):\n    return {'out': table[ids.long()]}\n")
    assert "#define EACH 4" in text and "#define THREADS 128" in text
    body = text.partition("made_out_elements_by_8(")[2]
    assert 0 < body.index("table_ahead[item] = load_pack<8>(") < body.index("store_rounded(")
    assert "launch_made_out_elements_by_8<THREADS, 1>" in text, "few rows are shared by more threads"


def test_a_number_for_each_element_is_as_it_was():
    """Eight of a pack are on their way at once already (vLLM's permute_cols)."""
    tensors = {"a": "in rows width", "perm": "in width int32 permutation:width", "out": "out rows width"}
    spec = made([{"rows": 544, "width": 4096}], ("bfloat16",), devices=("cuda",), tensors=tensors)
    assert "#define EACH 1" in source(spec, "def reference(a, perm):\n    return {'out': a[:, perm.long()]}\n")


GRID = """
import torch


def reference(pos, size, start, end):
    number = ((end - start) / size).long() + 1
    step = torch.cat([torch.ones_like(number[:1]), number.cumprod(0)[:-1]])
    return {"out": (((pos - start) / size).long() * step).sum(1)}
"""


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_few_numbers_are_scanned_by_who_reads_them_and_whole_numbers_are_divided_exactly(tmp_path, device):
    """pytorch_cluster's grid: three numbers of cells were scanned in a phase of their own (0.28x of it, H200), and a cell is what a quotient says."""
    spec = made(
        [{"points": 8000}, {"points": 33}], devices=(device,),
        tensors={"pos": "in points 3 range:1:4", "size": "in 3 range:0.25:0.5", "start": "in 3 range:0:1", "end": "in 3 range:4:5", "out": "out points int64"},
    )  # fmt: skip
    text = source(spec, GRID, device=device)
    assert "phase_scan<" not in text
    if device == "cuda":
        assert "__fdividef(" not in text.rpartition("namespace {")[2]
    check_text(folder_of(tmp_path, spec, GRID), text, tmp_path, device)


def test_places_are_divided_by_squares_of_sizes(tmp_path):
    """`pack / n * n` stood for `pack / (n * n)` in the version whose sizes are numbers of 64 bits."""
    reference = "def reference(z):\n    return {'out': z.reshape(-1, z.shape[-1]).t().reshape(z.shape[-1], z.shape[0], z.shape[0])}\n"
    tensors = {"z": "in n n c", "out": "out c n n"}
    spec = made([{"n": n, "c": c} for n, c in ((3, 5), (4, 8), (2, 3))], devices=("cuda",), tensors=tensors)
    check_text(folder_of(tmp_path, spec, reference), source(spec, reference), tmp_path)


def test_where_places_lie_in_memory_does_not_order_their_terms():
    """Texts of one reference differed from process to process, so caches had none of them (DLRM's pairs of features)."""
    rows = sympy.Symbol("rows", integer=True, nonnegative=True)
    value = type("Value", (), {"at": staticmethod(lambda at: index_value(at[0] * rows + at[0] + at[1]))})
    pairs = [[Expr("scalar", (name,), "int64_t") for name in ("first", "second")] for _ in range(100)]
    firsts, seconds = (sorted(each, key=id) for each in zip(*pairs, strict=True))
    rising, falling = (read_at(value, at) for at in ([firsts[0], seconds[-1]], [firsts[-1], seconds[0]]))
    assert id(firsts[0]) < id(seconds[-1]) and id(firsts[-1]) > id(seconds[0])
    assert [e.args for e in walk([rising]) if e.op == "scalar"] == [e.args for e in walk([falling]) if e.op == "scalar"]
