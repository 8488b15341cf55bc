"""Packs of one element: where the loops over them take constant steps, and where they stay as they are."""

from __future__ import annotations

from pathlib import Path

from harness.bands import Band, Measure, Split
from harness.tunables import tunables
from kernels import catalog as kernels
from nodes.policies.rules import applied_step
from nodes.rewrites import Facts
from nodes.rewrites.dispatch import dispatched
from tests.nodes.rewrites.emulate.emulation import emulated
from tests.nodes.rewrites.test_cuda_rewrites import H200, ROOT
from tests.nodes.rewrites.test_ragged_rows import RAGGED, ROWS, at, spec

ENTROPY = ROOT / "tests/inputs/row_entropy"
STEPS = ("block_extent", "online_reduce", "fast_math", "pack", "online_pack", "block_size", "dependent_launch")


def after(text: str, *steps: str, facts: Facts = RAGGED) -> str:
    for step in steps:
        text = applied_step(step, text, facts) or text
    return text


def entropy(*steps: str) -> str:
    kernel = kernels.load(str(ENTROPY))
    return after(kernel.baseline("cuda", "plain")[1].read_text(), *steps, facts=Facts(spec=kernel.spec, device=H200))


def test_packs_of_one_step_by_the_number_that_every_launch_has() -> None:
    packed = after(ROWS, "pack")
    loop = "for (int pack = threadIdx.x; pack < n / VEC; pack += blockDim.x) {"
    new = applied_step("constant_step", packed, RAGGED)
    assert packed.count(loop) == 1
    assert new == packed.replace(loop, loop.replace("blockDim.x)", "VEC > 1 ? blockDim.x : 256)"))
    assert applied_step("constant_step", new, RAGGED) is None


def test_the_number_may_be_one_that_is_searched() -> None:
    assert "pack += VEC > 1 ? blockDim.x : BLOCK_THREADS) {" in entropy(*STEPS, "constant_step")


def test_loops_stay_where_the_number_is_not_known() -> None:
    packed = after(ROWS, "pack")
    other = packed.replace(", 256,", ", n < 256 ? 128 : 256,")
    assert other != packed
    assert applied_step("constant_step", other, RAGGED) is None
    assert applied_step("constant_step", after(ROWS, "restrict"), RAGGED) is None


def test_loops_stay_where_rows_divide_or_ragged_rows_took_the_others() -> None:
    packed = after(ROWS, "pack")
    assert applied_step("constant_step", packed, Facts(spec=spec(at(4096)), device=H200)) is None
    ragged = applied_step("ragged_rows", packed, RAGGED)
    assert ragged is not None
    assert applied_step("constant_step", ragged, RAGGED) is None


def test_the_host_may_still_choose_the_number_by_size() -> None:
    text = entropy(*STEPS, "constant_step")
    low, high = ({t.name: t.value for t in tunables(text)} | {"BLOCK_THREADS": n} for n in (128, 512))
    split = Split(measure=Measure(sizes=("rows",)), bands=(Band(below=64, values=low), Band(below=None, values=high)))
    assert "template <int BLOCK_THREADS, typename T, int kThreads, int VEC>\n__global__" in dispatched(
        text, "cuda", kernels.load(str(ENTROPY)).spec, split
    )


def test_what_it_leaves_computes_the_same(tmp_path: Path) -> None:
    candidate = tmp_path / "candidate.cu"
    candidate.write_text(entropy(*STEPS, "constant_step"))
    ran = emulated(
        ENTROPY, candidate, "bfloat16:rows=2,vocab=1031", "float32:rows=1,vocab=5", "float32:rows=2,vocab=1032"
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
