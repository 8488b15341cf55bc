"""compute-sanitizer and Nsight Compute on a real GPU, in their box: what is wrong is found, what is right passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.backends import cuda
from harness.device import facts
from harness.probes import ncu, stalls
from harness.records import Build
from harness.tools import sanitizer
from kernels.spec import Workload
from tests.harness import stand_in

pytestmark = pytest.mark.gpu

SPEC = stand_in.twice(*(Workload(axes={"n": n}, dtype="float32") for n in (1000, 4096)))
SOURCE = """
#include <cstdint>
__global__ void twice(const float* in, float* out, int64_t n) {
  __shared__ float shared[256];
  const int64_t i = blockIdx.x * 256 + threadIdx.x;
  BODY
}
extern "C" void twice_float32(const float* input, float* out, int64_t n, cudaStream_t stream) {
  twice<<<(n + 255) / 256, 256, 0, stream>>>(input, out, n);
}
"""
EXCHANGE = "shared[threadIdx.x] = i < n ? in[i] : 0.f; BARRIER const float other = shared[255 - threadIdx.x];"
WITH_OTHER = "if (i < n) out[i] = 2 * in[i] + 1e-30f * other;"


def built(body: str, folder: Path) -> Build:
    (folder / "candidate.cu").write_text(SOURCE.replace("BODY", body))
    done = cuda.compile(folder / "candidate.cu", folder / "candidate.so", facts("cuda"), 60)
    assert done.ok, done.log
    return Build(candidate="0" * 64, backend="cuda", ok=True, artefact=str(folder / "candidate.so"))


@pytest.mark.parametrize(
    ("body", "finder"),
    [
        ("if (i < n) out[i] = 2 * in[i];", ""),
        (EXCHANGE.replace("BARRIER", "__syncthreads();") + WITH_OTHER, ""),
        ("if (i < n) out[i] = 2 * in[i] + 1e-30f * in[i + 1];", "memcheck"),
        (EXCHANGE.replace("BARRIER", "") + WITH_OTHER, "racecheck"),
        ("if (i < n) out[i] = 2 * in[i] + 1e-30f * out[i];", "initcheck"),
    ],
    ids=["right", "right with a barrier", "reads one too far", "races", "reads what nobody wrote"],
)
def test_compute_sanitizer_finds_what_is_wrong(body: str, finder: str, tmp_path: Path) -> None:
    reports = sanitizer.watch(SPEC, built(body, tmp_path), SPEC.workloads, "cuda")
    assert next((report.tool for report in reports if report.errors), "") == finder, sanitizer.describe(reports)
    if not finder:
        assert all(report.errors is not None for report in reports), sanitizer.describe(reports)


def test_nsight_compute_reads_its_counters(tmp_path: Path) -> None:
    build = built("if (i < n) out[i] = 2 * in[i];", tmp_path)
    readings = ncu.read(build, facts("cuda"), SPEC, SPEC.workloads[:1])
    assert "unavailable" not in readings, readings["unavailable"]
    assert [metric for metric in ncu.METRICS if not any(name.endswith(metric) for name in readings)] == []


def test_nsight_compute_writes_a_report_for_its_window(tmp_path: Path) -> None:
    build = built("if (i < n) out[i] = 2 * in[i];", tmp_path)
    made = ncu.report(build, facts("cuda"), SPEC, SPEC.workloads[-1])
    assert made[:3] == b"NVR" and len(made) > 10_000, made[:16]


def test_nsight_computes_samples_are_put_to_lines(tmp_path: Path) -> None:
    body = "float x = i < n ? in[i] : 0.f;\n  for (int k = 0; k < 2000; ++k) x = sqrtf(x * x);\n  if (i < n) out[i] = 2 * x;"
    readings = stalls.read(built(body, tmp_path), facts("cuda"), SPEC, SPEC.workloads)
    assert "unavailable" not in readings, readings["unavailable"]
    first = next(name for name in readings if name.startswith(("line", "instruction")))
    assert "for (int k = 0" in first, readings
