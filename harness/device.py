"""The devices of this machine: which are there, what they are, and memory on them that a worker can share."""

from __future__ import annotations

import ctypes
import fcntl
import functools
import mmap
import os
import re
import secrets
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.records import DeviceFacts
from kernels.spec import Device

if TYPE_CHECKING:
    import torch

# torch's OpenMP threads otherwise spin for milliseconds after each operation, on the cores that a worker is timed on.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


class DeviceError(Exception):
    """The device that was asked for cannot be used; the message says why and what to do."""


@functools.cache
def cuda_home() -> Path | None:
    """The CUDA toolkit: where CUDA_HOME says, else beside nvcc, else /usr/local/cuda."""
    nvcc = shutil.which("nvcc")
    places = [os.environ.get("CUDA_HOME"), nvcc and Path(nvcc).resolve().parent.parent, "/usr/local/cuda"]
    return next((Path(place) for place in places if place and (Path(place) / "bin" / "nvcc").exists()), None)


def cuda_library() -> str:
    """The toolkit's libcudart, the one that candidates are linked to."""
    home = cuda_home()
    found = sorted(home.glob("**/libcudart.so.1[0-9]")) if home else []
    if not found:
        raise DeviceError("no libcudart.so in the CUDA toolkit; install it or set CUDA_HOME")
    return str(found[0])


@functools.cache
def why_no_cuda() -> str:
    """An empty string where a GPU, its driver and nvcc are here; else what is missing, one clause."""
    if not Path("/dev/nvidiactl").exists() and not Path("/dev/dxg").exists():
        return "no NVIDIA GPU was found"
    if cuda_home() is None:
        return "an NVIDIA GPU is here but nvcc is not; install the CUDA toolkit or set CUDA_HOME"
    import torch

    if not torch.cuda.is_available():
        return f"an NVIDIA GPU is here but PyTorch {torch.__version__} cannot use it; install a CUDA build of PyTorch"
    return ""


def choose(wanted: str) -> tuple[Device, str]:
    """`auto`, `cuda` or `cpu` -> (device, why). Raises DeviceError where the wanted one cannot be used."""
    if wanted == "cpu":
        return "cpu", "asked for"
    missing = why_no_cuda()
    if wanted == "cuda":
        if missing:
            raise DeviceError(f"device cuda cannot be used: {missing} (or take --device cpu)")
        return "cuda", "asked for"
    return ("cpu", missing) if missing else ("cuda", "an NVIDIA GPU and nvcc are here")


def _cpu_instructions() -> str:
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    have = set(flags[1].split()) if flags else set()
    return next((name for name in ("avx512f", "avx2", "avx", "sse4_2", "asimd") if name in have), os.uname().machine)


def _cpu_cache_bytes() -> int:
    """The largest cache that one core sees."""
    sizes = [0]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        number, unit = re.fullmatch(r"(\d+)([KMG])\s*", path.read_text()).groups()  # type: ignore[union-attr]
        sizes.append(int(number) << {"K": 10, "M": 20, "G": 30}[unit])
    return max(sizes) or 32 << 20


def facts(device: str) -> DeviceFacts:
    """What is known of the device before anything was measured."""
    if device == "cpu":
        text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
        model = re.search(r"^model name\s*:\s*(.*)$", text, re.MULTILINE)
        return DeviceFacts(
            device="cpu",
            name=model[1] if model else os.uname().machine,
            architecture=_cpu_instructions(),
            units=len(os.sched_getaffinity(0)),
            last_level_cache_bytes=_cpu_cache_bytes(),
        )
    import torch

    properties = torch.cuda.get_device_properties(0)
    return DeviceFacts(
        device="cuda",
        name=properties.name,
        architecture=f"sm_{properties.major}{properties.minor}",
        units=properties.multi_processor_count,
        last_level_cache_bytes=properties.L2_cache_size,
    )


def memory_bytes(device: str) -> int:
    """All the memory of the device, used or not."""
    if device == "cpu":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    import torch

    return torch.cuda.get_device_properties(0).total_memory


def clocks() -> dict[str, str]:
    """Clocks, temperature and throttle reasons of the GPU as nvidia-smi gives them; empty where it is not there."""
    if shutil.which("nvidia-smi") is None:
        return {}
    which = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0"
    names = "clocks.sm,clocks.mem,temperature.gpu,power.draw,clocks_event_reasons.active"
    done = subprocess.run(
        ["nvidia-smi", "-i", which, f"--query-gpu={names}", "--format=csv,noheader"], capture_output=True, text=True
    )
    values = done.stdout.strip().split(", ")
    return dict(zip(names.split(","), values, strict=True)) if len(values) == 5 else {}


PAGE_BYTES = 32 << 20


class _Bytes:
    """Device memory as torch takes it without a copy."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}


def throttled(reasons: str) -> bool:
    """Whether nvidia-smi's clock event reasons, a hexadecimal mask, name more than idling and clocks that were set."""
    idle, application_clocks, display = 0x1, 0x2, 0x100
    return bool(int(reasons, 16) & ~(idle | application_clocks | display))


class Arena:
    """Device memory that the parent owns and a worker maps: `view` is a flat uint8 tensor over all of it."""

    _next = 0

    def __init__(self, device: str, size: int) -> None:
        # CUDA IPC maps an allocation that does not end on a 2 MiB page with small pages in the other process: on an
        # H200 a worker then moved 2.3 TB/s where it moves 4.2 otherwise.
        size = -(-size // PAGE_BYTES) * PAGE_BYTES if device == "cuda" else size
        self.device, self.size = device, size
        Arena._next += 1
        self.id = Arena._next
        self._open(size)

    view: torch.Tensor

    def _open(self, size: int) -> None:
        import torch

        if self.device == "cpu":
            self.fd = os.memfd_create("astrolabe", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(self.fd, size)
            # A worker that shrank the file would make our own next read a SIGBUS.
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            self.mapping = mmap.mmap(self.fd, size)
            self.view = torch.frombuffer(self.mapping, dtype=torch.uint8)
            return
        torch.cuda.init()
        self._runtime = ctypes.CDLL(cuda_library())
        pointer = ctypes.c_void_p()
        if code := self._runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size)):
            raise DeviceError(f"cudaMalloc of {size / 1e9:.2f} GB failed with CUDA error {code}; is the GPU shared?")
        self.pointer = pointer
        handle = (ctypes.c_ubyte * 64)()
        if code := self._runtime.cudaIpcGetMemHandle(handle, pointer):
            raise DeviceError(f"this machine refuses CUDA IPC (error {code}), by which workers share memory")
        self.handle = bytes(handle).hex()

        self.view = torch.as_tensor(_Bytes(pointer.value or 0, size), device="cuda")

    def description(self) -> tuple[dict[str, Any], list[int]]:
        """What a worker's `map` request needs: the message, and the file descriptors that go with it."""
        if self.device == "cpu":
            return {"kind": "memfd", "id": self.id, "size": self.size}, [self.fd]
        return {"kind": "ipc", "id": self.id, "size": self.size, "handle": self.handle}, []

    def close(self) -> None:
        if not hasattr(self, "view"):
            return
        del self.view
        if self.device == "cpu":
            os.close(self.fd)  # the mapping goes with its last tensor
        else:
            self._runtime.cudaFree(self.pointer)


def generator(device: str) -> torch.Generator:
    """A generator with a seed that nobody can know before."""
    import torch

    return torch.Generator(device=device).manual_seed(secrets.randbits(63))
