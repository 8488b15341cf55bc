"""Problems on a GPU: whose kernels worked, TF32 in the tolerance, torch.compile beside eager, KernelBench's protocol."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import evaluate, protocol_kernelbench
from harness.evaluate import Evaluator
from harness.problems.pytorch import open_problem
from harness.records import Outcome
from harness.store import Store

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(400)]

PROBLEM = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 16, 3, padding=1)
        self.gain = nn.Parameter(torch.rand(16, 1, 1))

    def forward(self, x):
        return torch.tanh(self.conv(x)) * self.gain


def get_inputs():
    return [torch.randn(16, 8, 64, 64)]


def get_init_inputs():
    return []
"""
HEAD = PROBLEM.partition("    def forward")[0].replace("class Model", "class ModelNew")
KERNEL = '''
CUDA_SOURCE = r"""
#include <cstdint>
__global__ void gained(const float* x, const float* gain, float* out, int64_t n, int64_t plane, int64_t channels) {
  int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  if (i < n) out[i] = tanhf(x[i]) * gain[i / plane % channels];
}
extern "C" void launch(const float* x, const float* gain, float* out, int64_t n, int64_t plane, int64_t channels,
                       cudaStream_t stream) {
  gained<<<(n + 255) / 256, 256, 0, stream>>>(x, gain, out, n, plane, channels);
}
"""
native = load_native(globals())
'''
HONEST = (
    KERNEL.join(HEAD.split("\n\n\n", 1))
    + """    def forward(self, x):
        x = self.conv(x)
        out = torch.empty_like(x)
        native.launch(x.contiguous(), self.gain, out, x.numel(), x.shape[2] * x.shape[3], x.shape[1])
        return out
"""
)
BY_TORCH = HEAD + "    def forward(self, x):\n        return self.conv(x).tanh() * self.gain\n"
DECOY = HONEST.replace("        return out\n", "        return torch.tanh(x) * self.gain\n").replace("x.numel(),", "1,")


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evaluator]:
    folder = tmp_path_factory.mktemp("problem")
    (folder / "problem.py").write_text(PROBLEM)
    with Evaluator(open_problem(folder / "problem.py", "cuda"), "cuda", Store(folder / "store")) as found:
        yield found


def test_the_eager_module_and_an_honest_candidate_pass(evaluator: Evaluator):
    """The eager convolution uses TF32: a tolerance that only fp32 earns would refuse the baseline itself."""
    for source in (PROBLEM, HONEST):
        build = evaluator.build(evaluator.store.put(source))
        for held_out in (False, True):
            verdict = evaluator.verify(build, held_out=held_out)
            assert verdict.passed, verdict.reason
    assert any("of its own" in note for note in verdict.notes), verdict.notes


@pytest.mark.parametrize(("source", "said"), [(BY_TORCH, "no kernel of its own"), (DECOY, "replaces nothing")])
def test_where_libraries_do_the_work_it_is_no_candidate(evaluator: Evaluator, source: str, said: str):
    verdict = evaluator.verify(evaluator.build(evaluator.store.put(source)))
    assert verdict.outcome is Outcome.CHEATED and said in verdict.reason


def test_it_is_timed_against_eager_and_compiled(evaluator: Evaluator):
    base = evaluator.store.put(PROBLEM)
    verdict = evaluator.verify(evaluator.build(evaluator.store.put(HONEST)))
    measured = evaluator.measure(verdict, baseline=base)
    assert measured.passed and measured.suite is not None, measured.reason
    found = evaluate.measure_against(evaluator, measured, "compile")  # type: ignore[arg-type]
    assert "compile" in found.against, "\n".join(found.notes)


def test_what_a_run_asks_of_its_incumbent_and_of_its_winner(evaluator: Evaluator):
    base = evaluator.store.put(PROBLEM)
    build = evaluator.build(evaluator.store.put(HONEST))
    probes = evaluator.probes(build)
    assert int(probes["sass"]["instructions"]) > 0 and "unavailable" in probes["ncu"], probes
    assert "no machine code" in evaluator.probes(evaluator.build(base))["sass"]["unavailable"]
    drawn = evaluator.draw_again(evaluator.verify(build), baseline=base, count=4)
    assert drawn.passed and drawn.launch is not None and drawn.launch.time_us > 0, drawn.reason
    found = evaluator.measure_other_contexts(drawn, baseline=base)
    assert found.passed and found.elsewhere, found.reason


LOOKUP = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, table, index):
        return table.gather(1, index)


def get_inputs():
    return [torch.randn(64, 4096), torch.randint(0, 4096, (64, 16))]


def get_init_inputs():
    return []
"""
LOOKED_UP = """
import torch
from torch import nn
CUDA_SOURCE = r'''
#include <cstdint>
__global__ void look_up(const float* table, const int64_t* index, float* out, int64_t width) {
  out[blockIdx.x * 16 + threadIdx.x] = table[blockIdx.x * width + index[blockIdx.x * 16 + threadIdx.x]];
}
extern "C" void launch(const float* table, const int64_t* index, float* out, int64_t rows, int64_t width,
                       cudaStream_t stream) {
  look_up<<<rows, 16, 0, stream>>>(table, index, out, width);
}
'''
native = load_native(globals())


class ModelNew(nn.Module):
    def forward(self, table, index):
        out = torch.empty(index.shape, device=table.device)
        native.launch(table.contiguous(), index.contiguous(), out, table.shape[0], table.shape[1])
        return out
"""


def test_launches_of_a_kernel_that_takes_an_index_are_timed(tmp_path: Path):
    """Draws of several sizes lie one over the other in an arena: what one left is no index of the next."""
    (tmp_path / "problem.py").write_text(LOOKUP)
    with Evaluator(open_problem(tmp_path / "problem.py", "cuda"), "cuda", Store(tmp_path / "store")) as evaluator:
        base = evaluator.store.put(LOOKUP)
        verdict = evaluator.verify(evaluator.build(evaluator.store.put(LOOKED_UP)))
        drawn = evaluator.draw_again(verdict, baseline=base, count=9)
    assert verdict.passed and drawn.passed and drawn.launch is not None, verdict.reason or drawn.reason


def test_kernelbenchs_protocol(evaluator: Evaluator):
    found = protocol_kernelbench.evaluate(evaluator, evaluator.kernel, HONEST)  # type: ignore[arg-type]
    assert found.correctness and found.runtime_stats["num_trials"] == 100 and found.ref_runtime > 0, found.metadata


LARGE = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4096, 4112)

    def forward(self, x):
        return torch.relu(self.linear(x))


def get_inputs():
    return [torch.randn(64, 4096)]
"""


def test_large_weights_are_constructed_on_the_device_alike_for_all(tmp_path: Path) -> None:
    path = tmp_path / "large.py"
    path.write_text(LARGE)
    problem = open_problem(path, "cuda")
    assert problem.describe_for_worker("candidate")["made_there"]
    other = LARGE.replace("Model", "ModelNew").replace("torch.relu(", "torch.clamp_min(").replace("(x))", "(x), 0)")
    with Evaluator(problem, "cuda", Store(tmp_path / "store"), own_kernels="some") as evaluator:
        assert evaluator.verify(evaluator.build(evaluator.store.put(LARGE))).passed
        assert evaluator.verify(evaluator.build(evaluator.store.put(other))).outcome is Outcome.CHEATED, "all library"
