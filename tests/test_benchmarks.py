"""The scripts that measure the instrument still fit it: each is run once, on the CPU, at a size that takes no time."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from benchmarks import comparison, library, parts
from harness import backends
from kernels import catalog
from kernels.spec import Workload

pytestmark = [
    pytest.mark.xdist_group("evaluate"),
    pytest.mark.skipif(bool(backends.get("cpu").why_unavailable()), reason=backends.get("cpu").why_unavailable()),
]
SMALL = Workload(axes={"tokens": 8, "hidden": 512}, dtype="float32", devices=("cpu",))


@pytest.fixture
def small(monkeypatch):
    """silu_and_mul, which all three take by default, of one small workload."""
    kernel = catalog.load("silu_and_mul")
    kernel = replace(kernel, spec=kernel.spec.model_copy(update={"workloads": (SMALL,), "dtypes": ("float32",)}))
    monkeypatch.setattr(catalog, "load", lambda _name: kernel)
    return kernel


def run(module, monkeypatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", [module.__name__, *arguments])
    module.main()


@pytest.mark.slow
def test_the_parts_of_a_verdict_are_all_there(small, monkeypatch, capsys):
    before = {(owner, name): getattr(owner, name) for owner, names in parts.PARTS.items() for name in names}
    try:
        run(parts, monkeypatch, "--device", "cpu", "--verdicts", "1")
    finally:
        for (owner, name), function in before.items():
            setattr(owner, name, function)
    said = capsys.readouterr().out
    assert "PASSED" in said and "timing.timed_request" in said and "Contest.sample" in said


def test_a_kernel_beside_itself_and_beside_a_slower_one(small, monkeypatch, capsys):
    arguments = ("--kernel", "silu_and_mul", "--trials", "2", "--slowed", "1", "--slower", "900")
    run(comparison, monkeypatch, "--device", "cpu", *arguments)
    itself, slower = capsys.readouterr().out.split("made slower")
    assert "against itself" in itself and itself.count("silu_and_mul") == 1
    assert slower.count("900 %") == slower.count(" of 1") == 2


@pytest.mark.slow
def test_a_candidate_beside_the_library(small, monkeypatch, capsys):
    monkeypatch.setattr(library.torch, "compile", lambda function, dynamic: function)  # takes a minute, and is torch's
    run(library, monkeypatch, "--kernel", "silu_and_mul", str(small.baseline("cpu")[1]), "--device", "cpu")
    said = capsys.readouterr().out
    assert "beside the faster library, least" in said and said.count("hot") == said.count("cold") == 1
