"""What a device reaches at most is measured, kept, and never mistaken while others are at work."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.evaluate import Evaluator
from harness.records import Comparison, DeviceFacts, Interval, Roof, Timing
from harness.store import Store
from harness.timing import load, roofs
from kernels import catalog
from kernels.spec import Size, Spec, Tensor, Workload


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Roofs of small products are for nobody else."""
    monkeypatch.setenv("ASTROLABE_CACHE", str(tmp_path / "cache"))


def evaluator(folder: Path, on: str = "cpu") -> Evaluator:
    timed = {"cpu": "float32", "cuda": "float16"}
    return Evaluator(catalog.load("silu_and_mul"), on, Store(folder.resolve()), dtypes=(timed[on],))


def quick(monkeypatch: pytest.MonkeyPatch, busy: float) -> None:
    """Small products, and other processes that take such a share."""
    monkeypatch.setattr(roofs, "MATRIX_SIZE", {"cpu": {"float32": 64}})
    monkeypatch.setattr(roofs, "COPY_SHARE", 1 << 14)
    monkeypatch.setattr(load.LoadWatch, "share", lambda _self: busy)


def test_a_cpu_has_a_copy_and_two_kinds_of_arithmetic_and_keeps_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    quick(monkeypatch, 0.0)
    with evaluator(tmp_path) as one:
        found = one.measure_facts()
        assert one.facts.bandwidth_gbps is None  # what verdicts are kept by does not change with a measurement
    assert found.bandwidth_gbps
    assert found.device != "cpu" or (found.core_gbps and found.region_us)
    assert {(roof.kind, roof.dtype) for roof in found.compute} == {
        ("vector", "float64"), ("vector", "float32"), ("matrix", "float32"),
    }  # fmt: skip
    monkeypatch.setattr(roofs, "_found", lambda *_: pytest.fail("measured again"))
    for folder in (tmp_path, tmp_path / "another run"):
        with evaluator(folder) as two:
            assert two.measure_facts() == found and "roofs" not in two.measured


def test_roofs_that_others_disturbed_are_said_to_be_and_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    measured = []
    monkeypatch.setattr(roofs, "_copy_gbps", lambda _facts: measured.append(1) or 5.0)
    for _ in range(2):
        quick(monkeypatch, 0.7)
        with evaluator(tmp_path) as one:
            assert one.measure_facts() is one.measure_facts()
            assert (
                one.measured["roofs"] == "other processes took 70% of this machine's CPU while the roofs were measured"
            )
    assert len(measured) == 2


def test_a_probe_that_fails_says_why(tmp_path: Path):
    with evaluator(tmp_path) as one:
        build = one.build(one.store.put(roofs.source("cpu").read_text()))
    with pytest.raises(RuntimeError, match="probe fails in int3: .*roof_int3"):
        roofs._probed(build.artefact, "int3")


def test_a_device_whose_roofs_cannot_be_measured_is_worked_on_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    quick(monkeypatch, 0.0)
    monkeypatch.setattr(roofs, "VECTOR_DTYPES", {"cpu": ("int3",)})
    with evaluator(tmp_path) as one:
        assert one.measure_facts() == one.facts
        assert one.measured["roofs"].startswith("not measured: the compute roof's probe fails in int3: ")


def test_a_dtype_without_a_roof_of_its_own_is_computed_in_float32():
    facts = DeviceFacts(
        device="cuda", name="", architecture="sm_90", units=1, last_level_cache_bytes=1,
        compute=(
            Roof(kind="vector", dtype="float32", gflops=60e3), Roof(kind="matrix", dtype="bfloat16", gflops=700e3),
        ),
    )  # fmt: skip
    assert facts.compute_roofs("bfloat16") == {"vector": 60e3, "matrix": 700e3}
    assert facts.compute_roofs("int32") == {"vector": 60e3} and not DeviceFacts(
        device="cpu", name="", architecture="", units=1, last_level_cache_bytes=1
    ).compute_roofs("float32")


def product(flops: str) -> SimpleNamespace:
    spec = Spec(
        name="product", summary="c = a b", axes=("n",), dtypes=("float32",), flops=flops,
        arguments=(*(Tensor(name=name, role="input", shape=("n", "n")) for name in "ab"),
                   Tensor(name="c", role="output", shape=("n", "n")), Size(name="n")),
        workloads=(Workload(axes={"n": 1000}, dtype="float32"),),
    )  # fmt: skip
    roof = (Roof(kind="vector", dtype="float32", gflops=50.0), Roof(kind="matrix", dtype="float32", gflops=100.0))
    facts = DeviceFacts(device="cpu", name="", architecture="", units=2, last_level_cache_bytes=1, compute=roof)
    return SimpleNamespace(spec=spec, measure_facts=lambda: facts)


def test_a_product_is_held_against_arithmetic_and_what_moves_bytes_is_not():
    (workload,) = product("0").spec.workloads
    needed = roofs.compute_us(product("2*n*n*n"), workload, fastest_us=23_000.0)
    assert needed == pytest.approx(20_000.0), "2 GFLOP at 100 GFLOP/s, the higher roof"
    timing = Timing(
        workload=workload, cache="hot", baseline_us=80_000, time_us=23_000, light_us=900, compute_us=needed, samples=9,
        speedup=Interval(median=3.5, low=3.4, high=3.6), comparison=Comparison.FASTER,
    )  # fmt: skip
    assert timing.light_fraction == pytest.approx(20 / 23), "not 4 % of what moving its bytes takes"
    assert timing.model_copy(update={"compute_us": None}).light_fraction == pytest.approx(9 / 230)
    assert roofs.compute_us(product("n*n"), workload, fastest_us=900.0) is None
    assert roofs.compute_us(product("20*n*n*n"), workload, fastest_us=23_000.0) is None, "it counts too many"


@pytest.mark.gpu
def test_a_gpu_has_tensor_cores_above_its_vector_units(tmp_path: Path):
    with evaluator(tmp_path, "cuda") as one:
        facts = one.measure_facts()
    vector, matrix = (
        {roof.dtype: roof.gflops for roof in facts.compute if roof.kind == kind} for kind in ("vector", "matrix")
    )
    assert set(vector) == {"float64", "float32", "float16", "bfloat16"}
    assert facts.bandwidth_gbps and 100 < facts.bandwidth_gbps < 20_000
    # Per multiprocessor and cycle at most 256 FLOPs in float32; no chip of today runs above 3 GHz.
    assert 0.02 < vector["float32"] / (facts.units * 256 * 3.0) < 1.0
    assert matrix["bfloat16"] > vector["float32"] and matrix["tf32"] > 1.2 * matrix["float32"]
