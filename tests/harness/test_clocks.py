"""A GPU's clocks are held where that may be, and let go of whatever happens. The driver here is a double that keeps a log."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness import device
from harness.device import DeviceError
from harness.timing import clocks

DRIVER = """
import os, pathlib
NVML_CLOCK_SM = 1
class NVMLError(Exception): pass
class NVMLError_NoPermission(NVMLError): pass
def _log(line):
    with open(os.environ["NVML_LOG"], "a") as file: file.write(line + "\\n")
def nvmlInit():
    if os.environ.get("NVML") == "none": raise NVMLError("Driver Not Loaded")
def nvmlDeviceGetHandleByUUID(uuid): return uuid
def nvmlDeviceGetDefaultApplicationsClock(handle, kind):
    if os.environ.get("NVML") == "new": raise NVMLError("Not Supported")
    return 1410
def nvmlDeviceGetMaxClockInfo(handle, kind): return 1980
def nvmlDeviceSetGpuLockedClocks(handle, low, high):
    if os.environ.get("NVML") == "user": raise NVMLError_NoPermission("Insufficient Permissions")
    _log(f"lock {handle} {low} {high}")
def nvmlDeviceResetGpuLockedClocks(handle): _log("reset")
"""
DEADLINE_S = 60.0


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pynvml.py").write_text(DRIVER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("NVML_LOG", str(tmp_path / "log"))
    monkeypatch.setattr(clocks, "_uuid", lambda: "GPU-1")
    return tmp_path / "log"


@pytest.mark.parametrize(("kind", "mhz", "wanted"), [("", 1200, 1200), ("", 0, 1410), ("new", 0, 1320)])
def test_clocks_are_held_inside_and_let_go_of(log: Path, monkeypatch, kind: str, mhz: int, wanted: int):
    monkeypatch.setenv("NVML", kind)
    with clocks.lock(mhz, "cuda"):
        assert (
            log.read_text() == f"lock GPU-1 {wanted} {wanted}\n" and clocks.describe_lock() == f"locked at {wanted} MHz"
        )
    assert log.read_text().splitlines()[1:] == ["reset"] and clocks.describe_lock() == ""


def test_an_exception_lets_go_of_them(log: Path):
    with pytest.raises(KeyboardInterrupt), clocks.lock(0, "cuda"):
        raise KeyboardInterrupt
    assert log.read_text().splitlines()[-1] == "reset"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_process_that_is_killed_lets_go_of_them(log: Path, how: signal.Signals):
    program = (
        "import signal, sys, time\nfrom harness.timing import clocks\nclocks._uuid = lambda: 'GPU-1'\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background jobs ignore it
        "with clocks.lock(0, 'cuda'):\n    print('here', flush=True)\n    time.sleep(600)\n"
    )
    environment = os.environ | {"PYTHONPATH": f"{log.parent}:{Path(__file__).parents[2]}"}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "here\n"
        holder.send_signal(how)
        holder.wait(DEADLINE_S)
    until = time.monotonic() + DEADLINE_S
    while "reset" not in log.read_text() and time.monotonic() < until:
        time.sleep(0.02)
    assert log.read_text().splitlines() == ["lock GPU-1 1410 1410", "reset"]


@pytest.mark.parametrize(
    ("kind", "said"),
    [("user", "this user may not lock the GPU's clocks"), ("none", "the driver refuses: Driver Not Loaded")],
)
def test_where_they_may_not_be_held_it_is_one_sentence(log: Path, monkeypatch, kind: str, said: str):
    monkeypatch.setenv("NVML", kind)
    with pytest.raises(DeviceError, match=said), clocks.lock(0, "cuda"):
        pytest.fail("went on")
    assert not log.exists()


def test_without_the_package_or_a_gpu_it_is_one_sentence(log: Path):
    (log.parent / "pynvml.py").write_text("raise ModuleNotFoundError('pynvml')")
    with (
        pytest.raises(DeviceError, match=r"the package nvidia-ml-py is missing: pip install"),
        clocks.lock(0, "cuda"),
    ):
        pytest.fail("went on")
    with pytest.raises(DeviceError, match="this is the CPU"), clocks.lock(0, "cpu"):
        pytest.fail("went on")
    with pytest.raises(DeviceError, match="the engine dask:2 times where it likes"), clocks.lock(0, "cuda", "dask:2"):
        pytest.fail("went on")
    with clocks.lock(None, "cpu"):
        assert clocks.describe_lock() == ""


def test_what_was_seen_at_several_looks_is_a_range():
    looks = [{"clocks.sm": f"{rate} MHz", "power.draw": "300.10 W", "reasons": "0x0"} for rate in (1980, 900, 1755)]
    assert device.ranges(looks) == "clocks.sm 900 - 1980 MHz, power.draw 300.10 W, reasons 0x0"
    assert device.ranges(looks[:1]) == "clocks.sm 1980 MHz, power.draw 300.10 W, reasons 0x0"
    assert device.ranges([{"power.draw": "[N/A]"}, {"power.draw": "3.5 W"}]) == "power.draw 3.5 W"
