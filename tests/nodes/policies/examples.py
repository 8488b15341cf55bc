"""Requests of every role about one small operation that is in no catalog."""

from __future__ import annotations

import re

from harness.records import Comparison, DeviceFacts, Interval, Outcome, Timing
from harness.store import digest
from kernels.spec import Scalar, Size, Spec, Tensor, Workload
from nodes.roles import (
    Attempt,
    CoderRequest,
    Finding,
    Plan,
    PlannerRequest,
    ProfilerRequest,
    ReviewRequest,
    TesterRequest,
)

VISIBLE = Workload(axes={"rows": 64, "columns": 4096}, dtype="float16")
ODD = Workload(axes={"rows": 3, "columns": 77}, dtype="bfloat16", timed=False)
HIDDEN = Workload(axes={"rows": 512, "columns": 9999}, dtype="float16", held_out=True)

SPEC = Spec(
    name="scaled_add",
    summary="out = x + factor * y, row by row.",
    axes=("rows", "columns"),
    dtypes=("float16", "bfloat16"),
    arguments=(
        Tensor(name="x", role="inout", shape=("rows", "columns")),
        Tensor(name="y", role="input", shape=("rows", "columns"), values=("ordinary", "large")),
        Tensor(name="weights", role="input", shape=("columns",), dtype="float32"),
        Size(name="rows"),
        Size(name="columns"),
        Scalar(name="factor", value=0.5),
    ),
    workloads=(VISIBLE, ODD, HIDDEN),
)
PRIVATE = re.compile(
    r"\bincumbent\b|\bthe gates\b|(?<!speed )\bof light\b|\bcontest|\baim\b|\blight_us\b|drawn:", re.IGNORECASE
)
"""Words of ours, which a reader who has not seen the program would have to ask about."""

GPU = DeviceFacts(
    device="cuda", name="NVIDIA H200", architecture="sm_90", units=132, last_level_cache_bytes=62_914_560,
    bandwidth_gbps=4200,
)  # fmt: skip
CPU = DeviceFacts(device="cpu", name="a processor", architecture="avx2", units=2, last_level_cache_bytes=33_554_432)
SOURCE = """\
#include <cuda_fp16.h>

#define BLOCK 128  // tune: 64 128 256

__global__ void add(__half* x, const __half* y, int64_t n) {
    int64_t i = blockIdx.x * (int64_t)BLOCK + threadIdx.x;
    if (i < n) x[i] = __hadd(x[i], y[i]);
}
"""
OTHER = SOURCE.replace("BLOCK 128", "BLOCK 64")
FINDING = Finding(
    bound="latency", summary="Two bytes a load.", light_fraction=0.41, numbers={"cold_percent_of_sol": 41.0},
    slow_workloads=(VISIBLE.label,),
)  # fmt: skip
PLAN = Plan(
    id="p1", title="wider loads", steps=("Load 16 bytes at a time.",), rationale="Fewer requests.", base=digest(SOURCE)
)


def timing(time_us: float = 4.0, cache: str = "cold") -> Timing:
    return Timing(
        workload=VISIBLE, cache=cache, baseline_us=4.0, time_us=time_us, light_us=1.6, samples=50,
        speedup=Interval(median=4.0 / time_us, low=3.9 / time_us, high=4.1 / time_us), comparison=Comparison.SAME,
    )  # fmt: skip


ATTEMPTS = (
    Attempt(round=1, plan=PLAN.model_copy(update={"id": "p0", "title": "half the block"}), candidate=digest(OTHER),
            outcome=Outcome.PASSED, speedup=1.21, speedup_low=1.19, speedup_high=1.23, gain=1.21,
            against_incumbent="FASTER",
            tuned={"BLOCK": 64}, tuning="2 of 23 variants tried, the best 1.210x", reason="kept"),
    Attempt(round=2, plan=PLAN.model_copy(update={"id": "p2", "title": "packed halves"}), outcome=Outcome.INCORRECT,
            reason="error 7.1 times the tolerance at [1, 3]"),
)  # fmt: skip


def for_tester(**changes: object) -> TesterRequest:
    return TesterRequest(**{"spec": SPEC, "device": GPU, "baseline_source": SOURCE, **changes})


def for_profiler(**changes: object) -> ProfilerRequest:
    facts = {
        "spec": SPEC, "device": GPU, "source": SOURCE, "timings": (timing(), timing(3.2, "hot")),
        "probes": {"ptxas": {"add": "18 registers, 0 spills"}, "ncu": {"unavailable": "not installed"}},
    }  # fmt: skip
    return ProfilerRequest(**{**facts, **changes})


def for_planner(**changes: object) -> PlannerRequest:
    facts = {
        "spec": SPEC, "device": GPU, "finding": FINDING, "incumbent": digest(SOURCE), "source": SOURCE,
        "attempts": ATTEMPTS, "sources": {digest(SOURCE): SOURCE, digest(OTHER): OTHER}, "width": 2, "round": 3,
        "timings": (timing(), timing(3.2, "hot")),
    }  # fmt: skip
    return PlannerRequest(**{**facts, **changes})


def for_coder(**changes: object) -> CoderRequest:
    facts = {"spec": SPEC, "device": GPU, "finding": FINDING, "plan": PLAN, "source": SOURCE}
    return CoderRequest(**{**facts, **changes})


def for_review(**changes: object) -> ReviewRequest:
    facts = {
        "spec": SPEC,
        "device": GPU,
        "finding": FINDING,
        "plan": PLAN,
        "base": SOURCE,
        "attempts": ATTEMPTS,
        "round": 3,
    }
    return ReviewRequest(**{**facts, **changes})


def for_repair(**changes: object) -> CoderRequest:
    failure = (
        '/tmp/xyz/k.cu(7): error: identifier "y4" is undefined\n      x[i] = y4;\n             ^\n\n1 error detected'
    )
    return for_coder(**{"failure": failure, "outcome": Outcome.COMPILE_ERROR, "repair": 1, **changes})
