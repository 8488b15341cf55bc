"""On a GPU: the kernels of probes/company.cu make what the parent makes once more, and find who does not wait for them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from harness import backends
from harness.evaluate import Evaluator
from harness.processes.worker import WorkerFailure
from harness.records import DeviceFacts, Outcome
from harness.store import Store
from harness.timing.sampling import PAIR, ABComparison, Arm
from kernels import catalog
from kernels.spec import Workload

SPEC = """
from kernels.spec import Size, Spec, Tensor, Workload

DTYPES = ("uint8", "int16", "int64", "float8_e4m3fn", "float16", "bfloat16", "float32", "float64")
SPEC = Spec(
    name="copy",
    summary="out = input; a table that is kept and one in place ride along",
    axes=("n",),
    dtypes=DTYPES,
    arguments=(
        Tensor(name="input", role="input", shape=("n",), values=("ordinary", "zeros")),
        Tensor(name="table", role="input", shape=("7",), dtype="float16", constant=True),
        Tensor(name="other", role="inout", shape=("n",), dtype="float32", values=("uniform", "infinities")),
        Tensor(name="out", role="output", shape=("n",)),
        Size(name="n"),
    ),
    workloads=tuple(Workload(axes={"n": 4099}, dtype=dtype, devices=("cuda",)) for dtype in DTYPES),
)
"""
REFERENCE = "def reference(*, input, table, other):\n    return {'out': input.clone(), 'other': -other}\n"
CODE = """
#include <cstdint>
#include <cuda_runtime.h>
extern "C" { int enable_pdl = 0; }
template <typename T> __global__ void copy_kernel(const T* from, float* other, T* to, int64_t n) {
  %(wait)s
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i < n) to[i] = from[i], other[i] = -other[i];
}
template <typename T> void copy(const void* from, float* other, void* to, int64_t n, cudaStream_t stream) {
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = %(allowed)s;
  cudaLaunchConfig_t config = {};
  config.gridDim = unsigned((n + 255) / 256);
  config.blockDim = 256;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = 1;
  cudaLaunchKernelEx(&config, copy_kernel<T>, static_cast<const T*>(from), other, static_cast<T*>(to), n);
}
"""
ENTRY = """extern "C" void copy_%s(const void* from, const void*, float* other, void* to, int64_t n, cudaStream_t stream) {
  copy<uint%d_t>(from, other, to, n, stream);
}
"""
WIDTHS = {"uint8": 8, "int16": 16, "int64": 64, "float8_e4m3fn": 8, "float16": 16, "bfloat16": 16, "float32": 32, "float64": 64}  # fmt: skip
WAIT, NO_WAIT = "cudaGridDependencySynchronize();", ""
DTYPES = tuple(WIDTHS)


def code(wait: str, allowed: str) -> str:
    return CODE % {"wait": wait, "allowed": allowed} + "".join(ENTRY % entry for entry in WIDTHS.items())


def folder(tmp_path: Path) -> Path:
    made = tmp_path / "copy"
    made.mkdir()
    (made / "spec.py").write_text(SPEC)
    (made / "reference.py").write_text(REFERENCE)
    (made / "baseline.cu").write_text(code(WAIT, "enable_pdl"))
    return made


@pytest.fixture(scope="module")
def copying(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evaluator]:
    root = tmp_path_factory.mktemp("copying")
    with Evaluator(catalog.load(str(folder(root))), "cuda", Store(root / "store")) as one:
        yield one


def built(evaluator: Evaluator, text: str) -> Any:
    build = evaluator.build(evaluator.store.put(text))
    assert build.ok, build.log
    return build


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def require_equal_inputs(comparison: ABComparison) -> None:
    """Of every call: what lies in the arena is what the parent makes, and its consumer has read the outputs."""
    for slot in range(comparison.layout.slots):
        made = comparison.production.inputs(slot)
        for tensor in comparison.kernel.spec.inputs:
            if tensor.role == "input":
                assert torch.equal(bits(made[tensor.name]), bits(comparison.bench.read(slot, tensor))), (
                    slot,
                    tensor.name,
                )
        assert comparison.production.digests_agree(slot), slot


@pytest.mark.gpu
@pytest.mark.parametrize("cache", ["hot", "cold"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 13, 4099, 5_000_003])
def test_what_the_producer_writes_the_parent_makes_again(copying: Evaluator, dtype: str, n: int, cache: Any) -> None:
    """Sizes of one element, odd ones, and one beyond what `b` goes round after."""
    if cache == "cold" and n not in (13, 5_000_003):
        pytest.skip("eviction does not depend on the size")
    workload = Workload(axes={"n": n}, dtype=dtype, devices=("cuda",))  # type: ignore[arg-type]
    comparison = copying.open_comparison(workload, cache)
    arm = Arm("side", copying.pool.get(built(copying, code(WAIT, "enable_pdl"))))
    comparison.prepare(arm)
    assert arm.graph
    seen: list[torch.Tensor] = []
    for _ in range(2):
        comparison.sample(arm, look=True)
        require_equal_inputs(comparison)
        for slot in random.sample(comparison.called, 2):
            comparison.look(arm, slot)  # `other` too, by what it has become
            seen.append(comparison.production.inputs(slot)["other"].clone())
    assert comparison.finish(arm).passed and arm.looked == 6
    if n > 100:
        assert all(float((one == other).float().mean()) < 0.1 for at, one in enumerate(seen) for other in seen[:at])


@pytest.mark.gpu
@pytest.mark.parametrize("on", ["plain", "pdl", "early"])
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float64"])
def test_in_every_company_each_call_has_its_own_inputs(copying: Evaluator, dtype: str, on: Any) -> None:
    workload = Workload(axes={"n": 4099}, dtype=dtype, devices=("cuda",))  # type: ignore[arg-type]
    comparison = copying.open_comparison(workload, "hot", on)
    arm = Arm("side", copying.pool.get(built(copying, code(WAIT, "enable_pdl"))))
    comparison.prepare(arm)
    for _ in range(3):
        comparison.sample(arm, look=True)
        require_equal_inputs(comparison)


@pytest.mark.gpu
def test_the_neighbours_alone_do_the_same(copying: Evaluator) -> None:
    workload = Workload(axes={"n": 4099}, dtype="float16", devices=("cuda",))
    comparison = copying.open_comparison(workload, "hot")
    pair = Arm(PAIR, copying.pool.ours(PAIR, copying._neighbours(), {PAIR: ("company_nothing",)}), PAIR)  # type: ignore[arg-type]
    comparison.prepare(pair)
    comparison.sample(pair)
    require_equal_inputs(comparison)
    out = comparison.layout.bytes_view(
        comparison.buffers, next(t for t in comparison.kernel.spec.outputs if t.name == "out")
    )
    assert bool((out == 0xFF).all()), "poisoned, and by nobody written"


@pytest.mark.gpu
@pytest.mark.parametrize("name", catalog.names())
def test_a_kernel_of_the_catalog_in_company(name: str, tmp_path: Path) -> None:
    kernel = catalog.load(name)
    with Evaluator(kernel, "cuda", Store(tmp_path)) as evaluator:
        build = built(evaluator, kernel.baseline("cuda")[1].read_text())
        for workload in evaluator.suite()[:3]:
            comparison = evaluator.open_comparison(workload, "hot")
            arm = Arm("side", evaluator.pool.get(build))
            comparison.prepare(arm)
            comparison.sample(arm, look=True)
            require_equal_inputs(comparison)
            assert comparison.finish(arm).passed


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("wait", "allowed", "outcome"),
    [
        (WAIT, "enable_pdl", Outcome.PASSED),
        (WAIT, "1", Outcome.PASSED),
        (NO_WAIT, "0", Outcome.PASSED),
        (NO_WAIT, "enable_pdl", Outcome.INCORRECT),
        (NO_WAIT, "1", Outcome.INCORRECT),
    ],
    ids=["waits where it is enabled", "always waits", "plain", "never waits where it is enabled", "never waits"],
)
def test_who_does_not_wait_for_what_it_reads_is_wrong(
    copying: Evaluator, wait: str, allowed: str, outcome: Any
) -> None:
    build = built(copying, code(wait, allowed))
    verdict = copying.verify(build)
    assert verdict.outcome is outcome, verdict.reason
    if outcome is Outcome.INCORRECT:
        assert "behind a producer that triggers before it stores" in verdict.reason
    else:
        assert sum(check.name == "early trigger" for check in verdict.checks) == len(DTYPES)


@pytest.mark.gpu
def test_who_writes_over_what_was_read_is_accused(copying: Evaluator) -> None:
    """What the consumer has read is not what lies there any more: here changed by the parent, in a cheat by a late kernel."""
    workload = Workload(axes={"n": 4099}, dtype="float16", devices=("cuda",))
    comparison = copying.open_comparison(workload, "hot")
    arm = Arm("side", copying.pool.get(built(copying, code(WAIT, "enable_pdl"))))
    comparison.prepare(arm)
    comparison.sample(arm)
    out = comparison.layout.bytes_view(
        comparison.buffers, next(t for t in comparison.kernel.spec.outputs if t.name == "out")
    )
    out[1, 8197] ^= 1
    for slot in (1, 2):  # its own, and the one whose inputs follow from it
        with pytest.raises(WorkerFailure, match="changed its outputs after they were read") as failure:
            comparison.look(arm, slot)
        assert failure.value.outcome is Outcome.CHEATED


@pytest.mark.gpu
@pytest.mark.parametrize("on", ["plain", "pdl"])
def test_a_binary_beside_itself_is_not_faster(copying: Evaluator, on: Any) -> None:
    workload = Workload(axes={"n": 5_000_003}, dtype="float32", devices=("cuda",))
    text = code(WAIT, "enable_pdl")
    arms = [Arm(name, copying.pool.start(built(copying, text))) for name in ("one", "other")]
    try:
        result = copying.run(copying.open_comparison(workload, "hot", on), arms, check=("other",))
    finally:
        for arm in arms:
            arm.worker.close()
    assert 0.9 < result.speedup("other").median < 1.1
    assert result.median_us["one"] > 1 and result.checks["other"][0].passed


ALLOCATING = """  void* scratch = nullptr;
  cudaMallocAsync(&scratch, n * sizeof(T), stream);
  cudaMemcpyAsync(scratch, from, n * sizeof(T), cudaMemcpyDeviceToDevice, stream);
  from = scratch;
  cudaLaunchAttribute overlap"""


@pytest.mark.gpu
def test_who_allocates_from_the_streams_pool_is_timed_in_a_graph(copying: Evaluator) -> None:
    """A graph with allocations has no copy, so it is moved into the one that is timed."""
    workload = Workload(axes={"n": 4099}, dtype="float16", devices=("cuda",))
    text = code(WAIT, "0").replace("  cudaLaunchAttribute overlap", ALLOCATING, 1)
    before, end, after = text.rpartition("cudaLaunchKernelEx(")
    text = before + end + after.replace("}", "  cudaFreeAsync(scratch, stream);\n}", 1)
    arms = [Arm("one", copying.pool.start(built(copying, text)))]
    try:
        result = copying.run(copying.open_comparison(workload, "hot"), arms, check=("one",))
    finally:
        arms[0].worker.close()
    assert result.checks["one"][0].passed and 1 < result.median_us["one"] < 100


def test_the_candidates_of_this_file_compile(tmp_path: Path) -> None:
    """Also where they cannot be run."""
    if reason := backends.get("cuda").why_unavailable():
        pytest.skip(reason)
    hopper = DeviceFacts(device="cuda", name="H100", architecture="sm_90", units=132, last_level_cache_bytes=50 << 20)
    assert catalog.load(str(folder(tmp_path))).spec.name == "copy"
    (tmp_path / "candidate.cu").write_text(code(WAIT, "enable_pdl"))
    done = backends.get("cuda").compile(tmp_path / "candidate.cu", tmp_path / "candidate.so", hopper, 200.0)
    assert done.ok, done.log
