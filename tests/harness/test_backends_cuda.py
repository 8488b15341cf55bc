"""What is kept of nvcc's words, and what it is asked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.backends import cuda
from harness.records import Build, DeviceFacts
from nodes.workbench import shown

GPU = DeviceFacts(device="cuda", name="a GPU", architecture="sm_90", units=132, last_level_cache_bytes=1 << 26)
SERIALIZED = (
    "ptxas info    : (C7515) Potential Performance Loss: wgmma.mma_async instructions are serialized due to non wgmma "
    "instructions defining accumulator registers of a wgmma between start and end of the pipeline stage in the function 'f'"
)
LOG = f"""\
candidate.cu(3): warning #177-D: variable "x" was declared but never referenced
ptxas info    : 0 bytes gmem
{SERIALIZED}
ptxas info    : Compiling entry function 'f' for 'sm_90a'
ptxas info    : Function properties for f
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 33280 bytes smem
"""


def test_what_ptxas_advises_reaches_the_model_and_its_bookkeeping_does_not() -> None:
    kept = cuda.warnings(LOG)
    assert kept.splitlines() == [LOG.splitlines()[0], SERIALIZED]
    assert cuda.resources(LOG) == {"f": "registers=168 spills=16 shared=33280"}
    build = Build(candidate="0" * 64, backend="cuda", ok=True, artefact="f.so", log=kept, resources=cuda.resources(LOG))
    text = shown.describe_build(build, GPU)
    assert "are serialized" in text and "never referenced" in text and "gmem" not in text


@pytest.mark.parametrize(
    ("says", "asked"), [("--split-compile <number>  (-split-compile)", True), ("--threads <number>", False)]
)
def test_nvcc_optimises_kernels_side_by_side_where_its_release_can(says: str, asked: bool, tmp_path: Path) -> None:
    compiler = tmp_path / "nvcc"
    compiler.write_text(f"#!/bin/sh\necho '{says}'\n")
    compiler.chmod(0o755)
    several = len(os.sched_getaffinity(0)) > 1
    assert bool(cuda._optimizer_threads(str(compiler))) is (asked and several)


@pytest.mark.skipif(bool(cuda.why_unavailable()), reason="nvcc is not here")
def test_bare_kernels_of_an_engine_that_builds_ptx_alone(tmp_path: Path) -> None:
    """candle's header fills in what chips before sm_80 lack: where __CUDA_ARCH__ says nothing, in nvcc's pass for the host, it defined twice."""
    source, artefact = tmp_path / "candidate.cu", tmp_path / "candidate.so"
    source.write_text(
        "#include <cuda_fp16.h>\n#if __CUDA_ARCH__ < 800\n"
        "__device__ __half __hmax_nan(__half a, __half b) { return __hmax(a, b); }\n#endif\n"
        'extern "C" __global__ void f(__half* x) { x[0] = __hmax_nan(x[1], x[2]); }\n'
    )
    entries = 'extern "C" __attribute__((visibility("default"))) void f_float16(__half* x, cudaStream_t stream) { f<<<1, 1, 0, stream>>>(x); }'
    done = cuda.compile(source, artefact, GPU, 60, entries=entries)
    assert done.ok and "f" in done.resources, done.log
