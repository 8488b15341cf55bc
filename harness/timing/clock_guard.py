"""`python clock_guard.py UUID MHZ`: locks a GPU's clocks until standard input ends, which it also does when its parent is killed.

A process of its own, so that nothing that happens to the parent leaves the clocks locked. Answers one line: `locked MHZ` or
`no REASON`. MHZ of 0: the default application clock, which a chip sustains, or two thirds of its highest one.
"""

from __future__ import annotations

import signal
import sys


def main(uuid: str, mhz: int) -> None:
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(
            one, signal.SIG_IGN
        )  # a terminal sends them to the whole group: the end of the parent is what counts
    try:
        import pynvml
    except ModuleNotFoundError:
        print("no the package nvidia-ml-py is missing: pip install -e '.[clocks]' -c constraints.txt", flush=True)
        return
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        wanted = mhz or _sustained(pynvml, handle)
        pynvml.nvmlDeviceSetGpuLockedClocks(handle, wanted, wanted)
    except pynvml.NVMLError_NoPermission:
        print("no this user may not lock the GPU's clocks (it takes root): leave --lock-clocks away", flush=True)
        return
    except pynvml.NVMLError as error:
        print(f"no the driver refuses: {' '.join(str(error).split())}", flush=True)
        return
    try:
        print(f"locked {wanted}", flush=True)
        sys.stdin.read()
    finally:
        pynvml.nvmlDeviceResetGpuLockedClocks(handle)


def _sustained(pynvml, handle) -> int:
    try:
        return pynvml.nvmlDeviceGetDefaultApplicationsClock(handle, pynvml.NVML_CLOCK_SM)
    except pynvml.NVMLError:  # newer drivers have no application clocks
        return pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM) * 2 // 3


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
