"""The CPU rewrites on whole kernels: compiled, run, and compared with the fp64 reference. No time is asserted."""

from __future__ import annotations

import math

import pytest

from harness.checks.drawing import distributions
from harness.judge.tunables import bake, tunables
from kernels.catalog import Kernel
from kernels.spec import Workload
from tests.nodes.rewrites.native import FACTS, Native, apply, kernels, order

NOTHING_APPLIES = {"gather_rows_by_id", "relabel"}
"""Kernels of the catalog that no rewrite for the CPU fits: one copies rows already, one is a hash table."""
KERNELS = {kernel.spec.name: kernel for kernel in kernels() if kernel.spec.name not in NOTHING_APPLIES}
SMALL_CACHE = FACTS.model_copy(update={"last_level_cache_bytes": 1 << 12})
TOO_LARGE = 1 << 20
"""Elements of a workload from which on the reference would take longer than all the rest of the test."""


def workloads(kernel: Kernel) -> list[Workload]:
    both = (*kernel.spec.suite("cpu"), *kernel.spec.suite("cpu", held_out=True))
    return [workload for workload in both if math.prod(workload.axes.values()) <= TOO_LARGE]


def wrong(kernel: Kernel, native: Native) -> list[str]:
    """Of every workload as it is drawn first, and of the smallest one of each dtype for all distributions."""
    first, *others = distributions(kernel.spec, {})
    sized = sorted(workloads(kernel), key=lambda workload: math.prod(workload.axes.values()))
    smallest = {workload.dtype: workload for workload in reversed(sized)}.values()
    asked = [(workload, first) for workload in sized] + [(w, values) for w in smallest for values in others]
    return [message for case in asked if (message := native.check(*case))]


def baseline(kernel: Kernel) -> str:
    return kernel.baseline("cpu")[1].read_text()


@pytest.mark.parametrize("name", sorted(NOTHING_APPLIES))
def test_what_nothing_fits_stays_as_it_is(name):
    kernel = next(kernel for kernel in kernels() if kernel.spec.name == name)
    text = baseline(kernel)
    assert apply(kernel, text, order(), SMALL_CACHE) == (text, [])


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_the_whole_bundle(name, tmp_path):
    kernel = KERNELS[name]
    text, applied = apply(kernel, baseline(kernel), order(), SMALL_CACHE)
    assert applied, "each of these kernels has something to rewrite"
    # Threads and stores past the cache at any size, so that small workloads go every way.
    text = bake(text, {t.name: 0 for t in tunables(text) if t.name in {"PARALLEL_FROM", "STREAM_FROM_MB"}})
    assert wrong(kernel, Native.build(kernel, text, tmp_path)) == []


def test_sources_that_are_fast_already_stay_right(tmp_path):
    """The best of one round is the start of the next: nothing applies twice, and the result is stable."""
    kernel = KERNELS["silu_and_mul"]
    once, _ = apply(kernel, baseline(kernel), order())
    twice, applied = apply(kernel, once, order())
    assert (twice, applied) == (once, [])
