"""What goes through torch on a real GPU: a Python candidate, a torch extension, an exported package. Slow: torch's headers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness.evaluate import Evaluator
from harness.export import dropin
from harness.records import Outcome
from harness.store import Store
from kernels import catalog
from tests.harness.test_dropin import EXPORTED

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(400)]

KERNEL = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cstdint>
__device__ inline float wide(float v) { return v; }
__device__ inline float wide(__half v) { return __half2float(v); }
__device__ inline float wide(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ inline void put(float* p, float v) { *p = v; }
__device__ inline void put(__half* p, float v) { *p = __float2half(v); }
__device__ inline void put(__nv_bfloat16* p, float v) { *p = __float2bfloat16(v); }
template <typename T> __global__ void silu_kernel(const T* x, T* y, int64_t hidden) {
  const T* g = x + (int64_t)blockIdx.x * 2 * hidden;
  for (int64_t i = threadIdx.x; i < hidden; i += blockDim.x) {
    const float a = wide(g[i]);
    put(y + (int64_t)blockIdx.x * hidden + i, a / (1.0f + expf(-a)) * wide(g[hidden + i]));
  }
}
"""
EXTENSION = f"""#include <torch/extension.h>
#include <c10/cuda/CUDAStream.h>
{KERNEL}
void silu_and_mul(at::Tensor input, at::Tensor out, int64_t tokens, int64_t hidden) {{
  auto s = c10::cuda::getCurrentCUDAStream();
  auto x = input.data_ptr(); auto y = out.data_ptr();
  if (input.scalar_type() == at::kHalf) silu_kernel<<<tokens, 256, 0, s>>>((const __half*)x, (__half*)y, hidden);
  else if (input.scalar_type() == at::kBFloat16)
    silu_kernel<<<tokens, 256, 0, s>>>((const __nv_bfloat16*)x, (__nv_bfloat16*)y, hidden);
  else silu_kernel<<<tokens, 256, 0, s>>>((const float*)x, (float*)y, hidden);
}}
"""
MODULE = f'''
import torch
from torch.utils.cpp_extension import load_inline

CUDA = r"""{KERNEL}
void run(int64_t x, int64_t y, int64_t tokens, int64_t hidden, int64_t kind, int64_t stream) {{
  auto s = (cudaStream_t)stream;
  if (kind == 0) silu_kernel<<<tokens, 256, 0, s>>>((const float*)x, (float*)y, hidden);
  if (kind == 1) silu_kernel<<<tokens, 256, 0, s>>>((const __half*)x, (__half*)y, hidden);
  if (kind == 2) silu_kernel<<<tokens, 256, 0, s>>>((const __nv_bfloat16*)x, (__nv_bfloat16*)y, hidden);
}}
"""
HEAD = "void run(int64_t x, int64_t y, int64_t tokens, int64_t hidden, int64_t kind, int64_t stream);"
ext = load_inline("silu_inline", cpp_sources=HEAD, cuda_sources=CUDA, functions=["run"])
KINDS = {{torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}}


class ModelNew(torch.nn.Module):
    def forward(self, input):
        tokens, hidden = input.shape[0], input.shape[1] // 2
        out = torch.empty(tokens, hidden, dtype=input.dtype, device=input.device)
        stream = torch.cuda.current_stream().cuda_stream
        ext.run(input.data_ptr(), out.data_ptr(), tokens, hidden, KINDS[input.dtype], stream)
        return out
'''
LIBRARY = """
import torch


class ModelNew(torch.nn.Module):
    def forward(self, input):
        gate, up = input.chunk(2, -1)
        return torch.nn.functional.silu(gate) * up
"""
WRONG = "import torch\n\n\ndef silu_and_mul(input, out, tokens, hidden):\n    out.zero_()\n"
IN_A_GRAPH = """
import torch
from astrolabe_silu_and_mul import silu_and_mul

x = torch.randn(16, 8192, device="cuda", dtype=torch.float16)
compiled = torch.compile(lambda x: silu_and_mul(x * 2) + 1, fullgraph=True, mode="reduce-overhead")
for _ in range(3):
    found = compiled(x).clone()
gate, up = (x * 2).float().chunk(2, 1)
torch.testing.assert_close(found.float(), torch.nn.functional.silu(gate) * up + 1, rtol=2e-3, atol=2e-3)
"""


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evaluator]:
    kernel = catalog.load("silu_and_mul")
    kept = tuple(w for w in kernel.spec.suite("cuda") if not w.timed or w.axes["tokens"] < 20)
    kernel = replace(kernel, spec=kernel.spec.model_copy(update={"workloads": kept}))
    with Evaluator(kernel, "cuda", Store(tmp_path_factory.mktemp("store"))) as one:
        yield one


@pytest.mark.parametrize(
    ("text", "backend", "outcome"),
    [
        (WRONG, "python_module", Outcome.INCORRECT),
        (LIBRARY, "python_module", Outcome.CHEATED),
        (MODULE, "python_module", Outcome.PASSED),
        (EXTENSION, "torch_extension", Outcome.PASSED),
    ],
    ids=["wrong", "torch does the work", "a module with its own kernel", "an extension"],
)
def test_a_verdict(evaluator: Evaluator, text: str, backend: str, outcome: Outcome) -> None:
    build = evaluator.build(evaluator.store.put(text))
    assert build.ok and build.backend == backend, build.log
    verdict = evaluator.verify(build)
    if verdict.passed:
        baseline = evaluator.store.put(evaluator.kernel.baseline("cuda")[1].read_text())
        verdict = evaluator.measure(verdict, baseline=baseline)
    assert verdict.outcome is outcome, verdict.reason


@pytest.mark.parametrize("name", EXPORTED)
def test_an_exported_package_passes_its_own_tests(name: str, tmp_path: Path) -> None:
    kernel = catalog.load(name)
    dropin.export(kernel, kernel.baseline("cuda")[1].read_text(), {}, tmp_path / "package", "cuda")
    environment = os.environ | {"ASTROLABE_CACHE": str(tmp_path / "cache")}
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path / "package"), os.environ.get("PYTHONPATH", "")])
    commands = [["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]]
    if name == "silu_and_mul":
        commands.append(["-c", IN_A_GRAPH])
    for command in commands:
        done = subprocess.run(
            [sys.executable, *command], env=environment, cwd=tmp_path / "package", capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
