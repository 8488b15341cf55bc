"""What is read of a device before anything is measured: the same in every process, for verdicts are kept by it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness import device

CPUINFO = """\
processor\t: 0
model name\t: A Processor CPU @ 2.60GHz
cpu MHz\t\t: {mhz}
flags\t\t: fpu sse4_2 avx avx2 fma f16c avx512f avx512_bf16 amx_tile
"""


def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mhz: str = "1200.000") -> None:
    (tmp_path / "cpuinfo").write_text(CPUINFO.format(mhz=mhz))
    for index, (level, kind, size) in enumerate(
        [(1, "Data", "48K"), (1, "Instruction", "32K"), (2, "Unified", "2048K"), (3, "Unified", "105M")]
    ):
        folder = tmp_path / "cpu0" / "cache" / f"index{index}"
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in (("level", str(level)), ("type", kind), ("size", size)):
            (folder / name).write_text(text + "\n")
    monkeypatch.setattr(device, "CPU_FOLDER", tmp_path / "cpu0")
    monkeypatch.setattr(device, "CPUINFO", tmp_path / "cpuinfo")


def test_a_cpu_is_known_by_its_caches_vectors_and_instructions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(tmp_path, monkeypatch)
    found = device.facts("cpu")
    assert (found.l1_bytes, found.l2_bytes, found.last_level_cache_bytes) == (48 << 10, 2 << 20, 105 << 20)
    assert (found.architecture, found.vector_bytes, found.clock_mhz) == ("avx512f", 64, 2600)
    assert found.instructions == ("fma", "f16c", "avx2", "avx512f", "avx512_bf16", "amx_tile")
    (tmp_path / "cpu0" / "cpufreq").mkdir()
    (tmp_path / "cpu0" / "cpufreq" / "cpuinfo_max_freq").write_text("3500000\n")
    assert device.facts("cpu").clock_mhz == 3500


def test_the_clock_of_the_moment_is_no_fact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(tmp_path, monkeypatch)
    before = device.facts("cpu")
    machine(tmp_path, monkeypatch, mhz="3391.512")
    assert device.facts("cpu") == before


def test_a_machine_that_tells_nothing_still_has_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "CPU_FOLDER", tmp_path / "cpu0")
    monkeypatch.setattr(device, "CPUINFO", tmp_path / "cpuinfo")
    found = device.facts("cpu")
    assert found.last_level_cache_bytes == 32 << 20 and found.l1_bytes is found.clock_mhz is found.vector_bytes is None


def test_the_highest_clock_is_that_of_the_gpu_which_is_device_0_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidia-smi").write_text('#!/bin/sh\n[ "$2" = 1 ] && echo 1980 || echo 1410\n')
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for visible, mhz in (("1,0", 1980), ("0", 1410)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert device._highest_clock_mhz.__wrapped__() == mhz


@pytest.mark.gpu
def test_a_gpu_is_known_by_what_its_multiprocessors_hold() -> None:
    found = device.facts("cuda")
    assert (
        found.l2_bytes == found.last_level_cache_bytes
        and found.registers == 65536
        and found.threads in (1024, 1536, 2048)
    )
    assert (
        found.shared_bytes and found.shared_block_bytes and 48 << 10 <= found.shared_block_bytes <= found.shared_bytes
    )
    assert found.clock_mhz and 500 < found.clock_mhz < 5000
    assert device.facts("cuda") == found


def test_what_torch_keeps_for_later_is_given_back_each_time_that_it_is_much(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    kept, given = [2 << 30, 1, 2 << 30], []
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: kept.pop(0))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 0)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: given.append(len(kept)))
    for _ in range(3):
        device.give_back_memory()
    assert given == [2, 0]
