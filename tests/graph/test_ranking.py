"""`run.py rank`: kernels of a trace by what could be gained."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import run as door
from graph.bringing.traces import add_workloads
from graph.ranking import rank, short_name
from kernels import catalog
from kernels.catalog import KernelError


def _event(name: str, cat: str, ts: float, dur: float, **args: object) -> dict[str, object]:
    return {"ph": "X", "name": name, "cat": cat, "ts": ts, "dur": dur, "tid": 1 if cat != "kernel" else 7, "args": args}


def _trace(tmp_path: Path, events: list[dict[str, object]], device: str = "NVIDIA H100 80GB HBM3") -> Path:
    path = tmp_path / "served.pt.trace.json.gz"
    path.write_bytes(
        gzip.compress(
            json.dumps(
                {"deviceProperties": [{"name": device}], "traceEvents": [{"ph": "M", "name": "x"}, *events]}
            ).encode()
        )
    )
    return path


SILU = "void sgl::act_and_mul_kernel<c10::BFloat16, silu_and_mul>(c10::BFloat16*, c10::BFloat16 const*, int)"


def _served(tmp_path: Path, device: str = "NVIDIA H100 80GB HBM3") -> Path:
    shape = {"Input Dims": [[1024, 8192], []], "Input type": ["c10::BFloat16", "Scalar"]}
    return _trace(
        tmp_path,
        [
            _event("sgl::silu_and_mul", "cpu_op", 0, 20, **{"External id": 3}, **shape),
            _event("cudaLaunchKernel", "cuda_runtime", 5, 2, correlation=9),
            _event(SILU, "kernel", 50, 10.0, correlation=9),
            _event(SILU, "kernel", 70, 14.0, **{"External id": 3}),
            _event("nvjet_tst_128x64_hmma", "kernel", 90, 60.0, correlation=999),
            _event("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "kernel", 200, 900.0),
            _event(
                "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::Half>>(int)",
                "kernel",
                2000,
                5.0,
            ),
        ],
        device,
    )


def test_what_can_be_gained_comes_first_and_a_collective_never(tmp_path: Path) -> None:
    found = rank(_served(tmp_path))
    first = found.rows[0]
    assert first.name == "sgl::act_and_mul_kernel" and first.calls == 2 and first.total_us == 24.0
    # 16 MiB at 3350 GB/s are 5.0 us of each call; both are known, one by its id and one by its launch.
    assert first.share_of_sol == pytest.approx(2 * 1024 * 8192 * 2 / 3350e3 / 24.0) and first.gain_us < 24.0
    assert first.kernel == "silu_and_mul" and first.taken == "rules" and first.shapes == {"bfloat16[1024, 8192]": 2}
    assert found.rows[-1].name.startswith("nccl") and found.rows[-1].gain_us == 0.0
    assert next(row for row in found.rows if row.name.startswith("nvjet")).taken == "library"


def test_calls_of_a_trace_become_workloads_with_weights(tmp_path: Path) -> None:
    events: list[dict[str, object]] = []
    for at, tokens in enumerate((1024, 16, 16, 7)):
        shape = {"Input Dims": [[tokens, 8192], []], "Input type": ["c10::BFloat16", "Scalar"]}
        events += [
            _event("sgl::silu_and_mul", "cpu_op", 100 * at, 20, **{"External id": at + 1}, **shape),
            _event(SILU, "kernel", 100 * at + 50, 10.0, **{"External id": at + 1}),
            _event("a second kernel of the same call", "kernel", 100 * at + 70, 10.0, **{"External id": at + 1}),
        ]
    folder, trace = tmp_path / "silu_and_mul", _trace(tmp_path, events)
    shutil.copytree(catalog.load("silu_and_mul").folder, folder)
    rows = [f"Workload(axes={{'tokens': {n}, 'hidden': 4096}}, dtype='bfloat16')," for n in (16, 3)]
    text = (folder / "spec.py").read_text()
    text = text[: text.index("    workloads=(")] + f"    workloads=({' '.join(rows)}),  # as a person writes them\n)\n"
    (folder / "spec.py").write_text(text.replace("import ", "import Workload, ", 1))
    assert add_workloads(folder, trace, "silu_and_mul").startswith("3 sizes of 4 calls of silu_and_mul are timed")
    found = catalog.load(str(folder)).spec.workloads
    assert [(w.axes["tokens"], w.weight, w.timed, w.held_out) for w in found] == [
        (7, 1, True, False), (16, 2, True, True), (1024, 1, True, False), (3, None, False, False)
    ]  # fmt: skip
    with pytest.raises(KernelError, match="no call of other has the spec's shapes"):
        add_workloads(folder, trace, "other")
    log = tmp_path / "sglang.log"
    call = (
        "[2026-11-27 12:00:00] SGLang Kernel API Call: sgl_kernel.silu_and_mul\nPositional input arguments:\n  arg[0]=Tensor(\n"
        "    shape=(48, 8192)\n    dtype=torch.bfloat16\n    device=cuda:0\n  )\nOutput:\n  return=Tensor(\n    shape=(48, 4096)\n    dtype=torch.bfloat16\n"
    )
    log.write_text(call * 5)
    assert add_workloads(folder, log, "silu_and_mul").startswith("1 sizes of 5 calls")
    assert [(w.axes["tokens"], w.weight) for w in catalog.load(str(folder)).spec.workloads if w.timed] == [(48, 5)]


def test_who_can_write_a_kernel_is_what_the_compiler_has_forms_for(tmp_path: Path) -> None:
    """Selections, scans, gating and attention of few queries, which it was said to have none for."""
    names = {
        "void at::native::sbtopk::gatherTopK<float>": "rules", "void at::native::tensor_kernel_scan_innermost_dim<float>": "rules",
        "void vllm::moe::moe_sum_kernel<c10::Half, 8>": "rules", "vllm::paged_attention_v2_kernel": "rules", "BatchDecodeWithPagedKVCacheKernel": "rules",
        "flash_fwd_kernel": "model", "fused_moe_kernel": "model", "at::native::nonzero_kernel": "model",
    }  # fmt: skip
    found = rank(_trace(tmp_path, [_event(name, "kernel", 9.0 * at, 5.0) for at, name in enumerate(names)]))
    assert sorted(row.taken for row in found.rows) == sorted(names.values()), [(r.name, r.taken) for r in found.rows]


def test_the_column_says_what_is_an_upper_bound_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert door.main(["rank", str(_served(tmp_path))]) == 0
    lines = capsys.readouterr().out.splitlines()
    known = next(line for line in lines if "act_and_mul" in line).split()
    assert known[0] == "0.014" and known[5:7] == ["rules", "sgl::act_and_mul_kernel"], known  # 24 us less 2 x 5.0
    assert next(line for line in lines if "nvjet" in line).split()[:2] == ["<", "0.060"]
    assert next(line for line in lines if "nccl" in line).split()[0] == "0.000" and any(
        "at most" in one for one in lines
    )


@pytest.mark.parametrize("category", ["Kernel", "mtia_ccp_events"])
def test_devices_events_by_other_names(category: str, tmp_path: Path) -> None:
    """Older profilers began categories with a capital; another maker's accelerator has its own."""
    found = rank(_trace(tmp_path, [_event("softmax", category, 0, 5.0), _event("aten::softmax", "cpu_op", 0, 90.0)]))
    assert found.on_gpu and [(row.name, row.total_us) for row in found.rows] == [("softmax", 5.0)]


def test_an_unknown_device_has_no_speed_of_light(tmp_path: Path) -> None:
    found = rank(_served(tmp_path, "Something New"))
    assert all(row.share_of_sol is None for row in found.rows) and any(
        "in no data sheet" in note for note in found.notes
    )


def test_a_trace_of_a_cpu_is_ranked_by_its_operators_own_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = torch.randn(64, 256)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
        for _ in range(20):
            torch.softmax(torch.nn.functional.silu(x), -1)
    path = tmp_path / "cpu.json"
    seen.export_chrome_trace(str(path))
    assert door.main(["rank", str(path), "--json", "--top", "3"]) == 0
    said = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in said["rows"]}
    assert rows["aten::silu"]["calls"] == 20 and rows["aten::silu"]["shapes"] == [
        {"operands": "float[64, 256]", "calls": 20}
    ]
    assert rows["aten::_softmax"]["taken"] == "rules"
    assert door.main(["rank", str(path)]) == 0
    assert "aten::silu" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "why"),
    [("{", "is no trace in JSON"), ("[]", "holds no kernels"), ('{"a": 1}', "has no traceEvents"), ('{"nodes": []}', "is an execution trace, which holds no times"), ('{"traceEvents": [3, {"ph": "X"}]}', "holds no kernels")],
)  # fmt: skip
def test_what_is_no_trace_is_one_sentence(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(KernelError, match=why):
        rank(path)


def test_names_are_short() -> None:
    long = "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, at::native::MulFunctor<float>>, std::array<char*, 3>>(int)"
    assert short_name(long) == "vectorized_elementwise_kernel Binary"
    assert short_name("triton_poi_fused_add_silu_3") == "triton_poi_fused_add_silu"


def test_a_trace_that_is_not_there_is_said_before_anything_is_brought(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "k.cu").touch()
    words = [
        "--args",
        "a.py:b",
        "--kernel-file",
        str(tmp_path / "k.cu"),
        "--symbol",
        "s",
        "--to",
        str(tmp_path / "made"),
    ]
    assert door.main(["bring", "no_such_module:f", *words, "--trace", str(tmp_path / "none.json")]) == 2
    assert "none.json is not there" in capsys.readouterr().err and not (tmp_path / "made").exists()
