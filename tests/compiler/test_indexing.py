"""Places that others name: slots of a cache of which some are none, state changed in place, sizes that divide one another."""

from __future__ import annotations

import re

import pytest

from compiler.compile import Meaning, source
from compiler.evaluate import check
from compiler.frontend import NoProgram
from kernels import catalog
from kernels.spec import Size, Spec, Tensor, Workload
from tests.nodes.rewrites.emulate.emulation import emulated

SPEC = """\
from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="slots",
    summary="slots",
    axes=("tokens", "heads", "kv_heads", "width", "slots"),
    dtypes=("float16",),
    arguments=(
        Tensor(name="x", role="input", shape=("tokens", "width")),
        Tensor(name="y", role="input", shape=("heads", "width")),
        Tensor(name="slot", role="input", shape=("tokens",), dtype="int64", values=("VALUES:slots",)),
        Tensor(name="state", role="inout", shape=("slots", "width", "3"), touched="tokens*width*3"),
        Tensor(name="out", role="output", shape=OUT),
        Size(name="tokens"),
        Size(name="heads"),
        Size(name="kv_heads"),
        Size(name="width"),
        Size(name="slots"),
    ),
    workloads=(
        Workload(axes={"tokens": 3, "heads": 4, "kv_heads": 2, "width": 64, "slots": 9}, dtype="float16", devices=("cuda", "cpu")),
        Workload(axes={"tokens": 5, "heads": 6, "kv_heads": 6, "width": 21, "slots": 11}, dtype="float16", devices=("cuda", "cpu")),
    ),
)
"""
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


def compiled(folder, reference: str, values="distinct", out='("tokens", "width")'):
    (folder / "spec.py").write_text(SPEC.replace("VALUES", values).replace("OUT", out))
    (folder / "reference.py").write_text(reference)
    return catalog.load(str(folder)).spec


@pytest.mark.parametrize("name", WRITES)
def test_nothing_is_written_for_a_slot_that_is_none(name, tmp_path):
    reference = STEP.format(write=WRITES[name])
    meaning = Meaning(compiled(tmp_path, reference), reference)
    for vector in (1, 8):
        program = meaning.program("float16", vector)
        assert any(member.when is not None for kernel in program.kernels for member in kernel.members)
        check(program, reference)


def test_a_window_of_state_moves_on_in_place(tmp_path):
    known = compiled(tmp_path, WINDOW, "permutation")
    text = source(known, WINDOW)
    assert "load_pack<24>(state + " in text, "three neighbours of eight channels are one window"
    (tmp_path / "candidate.cu").write_text(text)
    done = emulated(tmp_path, tmp_path / "candidate.cu", "0", "1")
    assert done.returncode == 0, done.stdout + done.stderr


def test_rows_of_a_permutation_as_tokens_have_several_each(tmp_path):
    reference = "def reference(x, slot):\n    return {'out': x[slot].sum(1)}\n"
    (tmp_path / "spec.py").write_text(
        "from kernels.spec import Size, Spec, Tensor, Workload\n\nSPEC = Spec(\n"
        '    name="sum_of_experts", summary="s", axes=("rows", "tokens", "each", "width"), dtypes=("float32",),\n'
        '    requires=("rows - tokens*each",),\n    arguments=(\n'
        '        Tensor(name="x", role="input", shape=("rows", "width")),\n'
        '        Tensor(name="slot", role="input", shape=("tokens", "each"), dtype="int64", values=("permutation:rows",)),\n'
        '        Tensor(name="out", role="output", shape=("tokens", "width")),\n'
        '        Size(name="rows"), Size(name="tokens"), Size(name="each"), Size(name="width"),\n    ),\n'
        '    workloads=(Workload(axes={"rows": 8, "tokens": 4, "each": 2, "width": 64}, dtype="float32", devices=("cuda",)),),\n)\n'
    )
    (tmp_path / "reference.py").write_text(reference)
    source(catalog.load(str(tmp_path)).spec, reference)


def test_what_is_none_stays_as_it_was_in_the_emulation(tmp_path):
    reference = STEP.format(write=WRITES["a row behind"])
    (tmp_path / "candidate.cu").write_text(source(compiled(tmp_path, reference), reference))
    done = emulated(tmp_path, tmp_path / "candidate.cu", "0", "1")
    assert done.returncode == 0, done.stdout + done.stderr


def test_state_is_changed_in_place_only_where_no_two_name_one_slot(tmp_path):
    with pytest.raises(NoProgram, match="in place"):
        Meaning(compiled(tmp_path, WINDOW, "index"), WINDOW).program("float16", 1)


def test_an_axis_that_another_divides_in_every_workload_is_taken_for_its_multiple(tmp_path):
    reference = (
        "import torch\n\n\ndef reference(x, y, slot, state, kv_heads):\n"
        "    wide = x[:1].expand(kv_heads, -1).repeat_interleave(y.shape[0] // kv_heads, dim=0)\n"
        "    return {'out': y * wide, 'state': state * 2}\n"
    )  # fmt: skip
    program = Meaning(compiled(tmp_path, reference, out='("heads", "width")'), reference).program("float16", 1)
    assert program.guards() == ["heads % kv_heads == 0"]
    check(program, reference)


def test_a_row_that_is_changed_in_place_is_written_after_every_reduction_of_it(tmp_path):
    reference = (
        "def reference(x):\n"
        "    centred = x - x.mean(-1, keepdim=True)\n"
        "    return {'x': x * 2, 'out': centred.square().mean(-1)}\n"
    )  # fmt: skip
    text = (
        SPEC.replace('name="x", role="input"', 'name="x", role="inout"').replace("VALUES", "index").replace("OUT", '("tokens",)')
    )  # fmt: skip
    for name in ("y", "slot", "state"):
        text = re.sub(rf'        Tensor\(name="{name}".*\n', "", text)
    (tmp_path / "spec.py").write_text(text)
    (tmp_path / "reference.py").write_text(reference)
    spec = catalog.load(str(tmp_path)).spec
    (tmp_path / "candidate.cu").write_text(source(spec, reference))
    done = emulated(tmp_path, tmp_path / "candidate.cu", "0", "1")
    assert done.returncode == 0, done.stdout + done.stderr


GROUPS = """\
def reference(x, y, slot, state):
    groups = x.view(x.shape[0], 4, -1)
    best = groups.topk(2, dim=-1).values.sum(-1)
    taken = best >= best.topk(2, dim=-1).values[:, -1:]
    left = torch.where(taken[..., None], groups, float("-inf")).view(x.shape)
    return {"state": state, "out": left.topk(3, dim=-1).values}
"""


def test_the_largest_of_groups_are_reductions_of_the_row(tmp_path):
    reference = "import torch\n\n\n" + GROUPS
    spec = compiled(tmp_path, reference, out='("tokens", "3")')
    sizes = (tmp_path / "spec.py").read_text().replace('"width": 21', '"width": 36')
    (tmp_path / "spec.py").write_text(sizes)
    spec = catalog.load(str(tmp_path)).spec
    program = Meaning(spec, reference).program("float16", 1)
    assert [kernel.layout for kernel in program.kernels if kernel.reduced] == ["row"]
    check(program, reference)


def test_rows_of_a_table_whose_size_the_entry_is_not_told_are_gathered_at_any_width():
    """Aligned pieces around its rows may not reach beyond its end, which nobody knows there."""
    arguments = (
        Tensor(name="ids", role="input", shape=("tokens",), dtype="int64", values=("index:vocab",)),
        Tensor(name="table", role="input", shape=("vocab", "width"), touched="tokens*width"),
        Tensor(name="out", role="output", shape=("tokens", "width")),
        Size(name="tokens"),
        Size(name="width"),
    )
    workloads = tuple(Workload(axes={"tokens": 5, "vocab": 9, "width": width}, dtype="float32") for width in (2048, 11))
    spec = Spec(
        name="gathered", summary="rows", axes=("tokens", "vocab", "width"), dtypes=("float32",), arguments=arguments, workloads=workloads,
    )  # fmt: skip
    assert "vocab" not in source(spec, "def reference(ids, table):\n    return {'out': table[ids] * 2}\n")
