"""An invented run, for tests of the views and for looking at them: no figure here was measured."""

from __future__ import annotations

from datetime import UTC, datetime

from harness.records import Comparison, DeviceFacts, Interval, Outcome
from harness.report.html import ExchangeView
from harness.report.result import AttemptRow, FindingRow, Light, PlanRow, Result, SpentRow, Versions, WorkloadRow
from harness.store import digest

BASELINE = """// One block a token, scalar loads.
#include <cuda_fp16.h>
#include <cstdint>

template <typename T>
__global__ void silu_and_mul_kernel(const T* __restrict__ input, T* __restrict__ out, int64_t hidden) {
  const int64_t token = blockIdx.x;
  const T* gate = input + token * 2 * hidden;
  const T* up = gate + hidden;
  for (int64_t i = threadIdx.x; i < hidden; i += blockDim.x) {
    const float x = static_cast<float>(gate[i]);
    out[token * hidden + i] = static_cast<T>(x / (1.0f + expf(-x)) * static_cast<float>(up[i]));
  }
}

extern "C" void silu_and_mul_float16(const __half* input, __half* out, int64_t tokens, int64_t hidden,
                                     cudaStream_t stream) {
  silu_and_mul_kernel<__half><<<tokens, 256, 0, stream>>>(input, out, hidden);
}
"""
FAST_MATH = BASELINE.replace("expf(-x)", "__expf(-x)").replace("scalar loads", "scalar loads, fast exponential")
WIDE = FAST_MATH.replace(
    """  for (int64_t i = threadIdx.x; i < hidden; i += blockDim.x) {
    const float x = static_cast<float>(gate[i]);
    out[token * hidden + i] = static_cast<T>(x / (1.0f + __expf(-x)) * static_cast<float>(up[i]));
  }
""",
    """  // 16 bytes a thread: eight halves in one load.
  constexpr int kWidth = 16 / sizeof(T);
  for (int64_t i = threadIdx.x * kWidth; i < hidden; i += blockDim.x * kWidth) {
    alignas(16) T g[kWidth], u[kWidth], o[kWidth];
    *reinterpret_cast<uint4*>(g) = *reinterpret_cast<const uint4*>(gate + i);
    *reinterpret_cast<uint4*>(u) = *reinterpret_cast<const uint4*>(up + i);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const float x = static_cast<float>(g[k]);
      o[k] = static_cast<T>(__fdividef(x, 1.0f + __expf(-x)) * static_cast<float>(u[k]));
    }
    *reinterpret_cast<uint4*>(out + token * hidden + i) = *reinterpret_cast<uint4*>(o);
  }
""",
)
BEST = WIDE.replace("<<<tokens, 256,", "<<<tokens, BLOCK,").replace(
    "#include <cstdint>\n", "#include <cstdint>\n#define BLOCK 512  // tune: 128 256 512 1024\n"
)
SOURCES = {digest(text): text for text in (BASELINE, FAST_MATH, WIDE, BEST)}


def interval(median: float, width: float = 0.02) -> Interval:
    return Interval(median=median, low=median * (1 - width), high=median * (1 + width))


def _attempt(
    round_: int,
    title: str,
    steps: tuple[str, ...],
    text: str,
    base: str,
    outcome: str,
    speedup: float | None,
    **more: object,
) -> AttemptRow:
    gain = more.pop("gain", None)
    return AttemptRow(
        round=round_,
        plan=PlanRow(
            id=f"r{round_}-{steps[0]}",
            title=title,
            steps=steps,
            rationale=str(more.pop("rationale", "")),
            base=digest(base),
            expected_speedup=1.2,
        ),
        candidate=digest(text) if text else "",
        outcome=outcome,
        speedup=interval(speedup, 0.03) if speedup else None,
        gain=gain,
        seconds=14.0 + round_,
        **more,
    )


ATTEMPTS = (
    _attempt(
        1, "Replace expf by the fast intrinsic", ("fast_math",), FAST_MATH, BASELINE, "PASSED", 1.04,
        comparison=Comparison.FASTER, against_incumbent=Comparison.FASTER, accepted=True, gain=1.04,
        rationale="The kernel is latency bound at small sizes, at 38 % of speed of light. expf costs 20 instructions.",
    ),
    _attempt(
        2, "Sixteen bytes a load", ("vectorise",), WIDE, FAST_MATH, "PASSED", 1.27,
        comparison=Comparison.FASTER, against_incumbent=Comparison.FASTER, accepted=True, gain=1.22, repairs=1,
        rationale="Loads are 2 bytes wide; the profiler counts 8 times the load instructions that are needed.",
    ),
    _attempt(
        3, "Two tokens a block", ("rows_per_block",), WIDE + "\n// two tokens\n", WIDE, "INCORRECT", None,
        reason="float16 tokens=1 hidden=4096, ordinary: largest error 41.3 times the tolerance\n"
        "  out[0, 2048] = 0.1162, expected 0.4830",
    ),
    _attempt(
        4, "Streaming stores", ("streaming",), WIDE + "\n// __stcs\n", WIDE, "PASSED", 1.21,
        comparison=Comparison.FASTER, against_incumbent=Comparison.SLOWER, gain=0.95,
        reason="slower than the incumbent with a hot L2 (0.88x)",
    ),
    _attempt(
        4, "Read through cp.async", ("pipeline",), "", WIDE, "COMPILE_ERROR", None, repairs=2,
        reason='kernel.cu(31): error: identifier "__pipeline_memcpy_asink" is undefined\n1 error detected',
    ),
    _attempt(
        5, "Search the numbers again", ("refine_search",), BEST, WIDE, "PASSED", 1.31,
        comparison=Comparison.FASTER, against_incumbent=Comparison.FASTER, accepted=True, gain=1.03,
        tuned={"BLOCK": 512},
    ),
)  # fmt: skip


def _rows() -> tuple[WorkloadRow, ...]:
    table = (  # tokens, hidden, cold baseline and best, hot baseline and best, light cold and hot; all in microseconds
        (16, 4096, 1.97, 1.51, 1.96, 1.32, 0.52),
        (32, 5120, 2.77, 1.92, 2.09, 1.41, 0.58),
        (64, 8192, 3.36, 2.66, 2.63, 1.72, 0.97),
        (16, 12288, 4.79, 1.98, 4.00, 1.44, 0.63),
        (7, 4097, 2.01, 2.02, 1.91, 1.95, 0.52),
        (16384, 14336, 545.0, 331.0, 544.0, 330.5, 322.0),
    )
    held_out = ((48, 6144, 2.94, 2.21, 2.31, 1.61, 0.74), (4096, 11008, 106.0, 71.9, 104.2, 69.8, 64.1))
    rows = []
    for secret, lines in ((False, table), (True, held_out)):
        for tokens, hidden, cold_base, cold_best, hot_base, hot_best, light in lines:
            for dtype in ("float16", "bfloat16")[: 1 if secret or tokens > 64 else 2]:
                for cache, base, best in (("cold", cold_base, cold_best), ("hot", hot_base, hot_best)):
                    ratio = base / best
                    rows.append(
                        WorkloadRow(
                            axes={"tokens": tokens, "hidden": hidden},
                            dtype=dtype,
                            held_out=secret,
                            cache=cache,
                            baseline_us=base,
                            best_us=best,
                            speedup=interval(ratio, 0.015),
                            comparison="FASTER" if ratio > 1.02 else "SLOWER" if ratio < 0.985 else "SAME",
                            light=Light(us=light, fraction=light / best),
                            samples=400,
                        )
                    )
    return tuple(rows)


RESULT = Result(
    run_id="silu_and_mul-20261121-0214-k7",
    kernel="silu_and_mul",
    summary="out = silu(input[:, :hidden]) * input[:, hidden:]",
    device="cuda",
    device_name="NVIDIA H200",
    facts=DeviceFacts(
        device="cuda", name="NVIDIA H200", architecture="sm_90", units=132,
        last_level_cache_bytes=60 << 20, bandwidth_gbps=4203.0,
    ),
    policy="planner=chat, others rules",
    policies={"tester": "rules", "profiler": "rules", "planner": "chat", "coder": "rules"},
    baseline="production",
    status="finished",
    stop_reason="rounds",
    source=digest(BASELINE),
    best=digest(BEST),
    best_round=5,
    speedup=Interval(median=1.312, low=1.294, high=1.331),
    speedup_cold=Interval(median=1.268, low=1.25, high=1.29),
    speedup_hot=Interval(median=1.358, low=1.33, high=1.38),
    held_out_speedup=Interval(median=1.41, low=1.38, high=1.44),
    comparison=Comparison.FASTER,
    held_out_outcome=Outcome.PASSED,
    held_out_comparison=Comparison.FASTER,
    rounds=5,
    attempts=ATTEMPTS,
    workloads=_rows(),
    finding=FindingRow(
        bound="latency",
        summary="The decode shapes wait for their first loads: two bytes a load keep too few bytes in flight.",
        probes={
            "compiler": {"kernels": "3", "most registers": "32"},
            "ncu": {"unavailable": "the driver keeps the GPU's counters for administrators"},
        },
    ),
    spent=SpentRow(seconds=143.0, calls=7, tokens_in=41_208, tokens_out=9_117, money_usd=0.21),
    sandbox=("landlock", "seccomp", "no network", "rlimits"),
    notices=("Device cuda: an NVIDIA GPU and nvcc 13.0 are there.",),
    warnings=("The clock fell from 1980 to 1845 MHz during round 3; those timings were taken again.",),
    measured={
        "timing": "CUDA-graph replays, baseline and candidate interleaved, 400 samples a workload",
        "clocks": "1980 MHz, not locked, steady to 0.4 %",
        "tolerance": "3 unit roundoffs of float16 against a float64 reference",
    },
    command="python run.py --kernel silu_and_mul --baseline production --rounds 5 --policy rules",
    versions=Versions(
        astrolabe="0.1.0", python="3.11.2", torch="2.11.0+cu130", compiler="nvcc 13.0.88", driver="580.65.06"
    ),
    commit="3db05e6c0ffee",
    started=datetime(2026, 11, 21, 2, 14, tzinfo=UTC),
    finished=datetime(2026, 11, 21, 2, 17, tzinfo=UTC),
)  # fmt: skip
TRANSCRIPT = (
    ExchangeView(
        "planner",
        "round 1",
        "You plan one change to a CUDA kernel …",
        '{"title": "Replace expf …"}',
        "gpt-x, 5,120 + 803 tokens, 9 s",
    ),
)
