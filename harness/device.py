"""The devices of this machine: which are there, what they are, and memory on them that a worker can share."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import gc
import mmap
import os
import re
import secrets
import shutil
import subprocess
import sys
import threading
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


@functools.cache  # every start of a worker asks, and the toolkit has ten thousand files
def cuda_library() -> str:
    """The toolkit's libcudart, the one that candidates are linked to."""
    home = cuda_home()
    found = sorted(home.glob("**/libcudart.so.1[0-9]")) if home else []
    if not found:
        raise DeviceError("no libcudart.so in the CUDA toolkit; install it or set CUDA_HOME")
    return str(found[0])


def is_there() -> bool:
    """Whether this machine has an NVIDIA GPU, by the driver's files."""
    return Path("/dev/nvidiactl").exists() or Path("/dev/dxg").exists()


@functools.cache
def why_no_cuda() -> str:
    """An empty string where a GPU, its driver and nvcc are here; else what is missing, one clause."""
    if not is_there():
        return "no NVIDIA GPU was found"
    if cuda_home() is None:
        return "an NVIDIA GPU is here but nvcc is not; install the CUDA toolkit or set CUDA_HOME"
    import torch

    if not torch.cuda.is_available():
        return f"an NVIDIA GPU is here but PyTorch {torch.__version__} cannot use it; install a CUDA build of PyTorch"
    return ""


def bare_facts() -> DeviceFacts:
    """Of device 0 what builds depend on, by its driver alone, before torch is imported. Raises DeviceError."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DeviceError(f"the GPU's driver cannot be opened: {error}") from None
    found, gpu = [ctypes.c_int(), ctypes.c_int()], ctypes.c_int()
    code = driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(gpu), 0)
    for value, attribute in zip(found, (75, 76), strict=True):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
        code = code or driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, gpu)
    if code:
        raise DeviceError(f"the GPU's driver says CUDA error {code}")
    architecture = f"sm_{found[0].value}{found[1].value}"
    return DeviceFacts(device="cuda", name="", architecture=architecture, units=0, last_level_cache_bytes=0)


def warm_up() -> None:
    """Import torch and open the GPU in a thread, where there is one, beside what this process has to do first."""

    def open_device() -> None:
        with contextlib.suppress(Exception):  # `choose` says what is wrong
            import torch

            torch.zeros(1, device="cuda")

    if is_there():
        threading.Thread(target=open_device, name="device", daemon=True).start()


def choose(wanted: str) -> tuple[Device, str]:
    """`auto`, `cuda` or `cpu` -> (device, why). Raises DeviceError where the wanted one cannot be used."""
    if sys.platform != "linux":
        raise DeviceError(
            f"candidates run in a box of Linux's, and {sys.platform} has none: "
            "use a Linux machine, here or over SSH (docs/install.md)"
        )
    if wanted == "cpu":
        return "cpu", "asked for"
    missing = why_no_cuda()
    if wanted == "cuda":
        if missing:
            raise DeviceError(f"device cuda cannot be used: {missing} (or take --device cpu)")
        return "cuda", "asked for"
    return ("cpu", missing) if missing else ("cuda", "an NVIDIA GPU and nvcc are here")


CPUINFO = Path("/proc/cpuinfo")
CPU_FOLDER = Path("/sys/devices/system/cpu/cpu0")
VECTOR_BYTES = {"avx512f": 64, "avx2": 32, "avx": 32, "sse4_2": 16, "asimd": 16}
INSTRUCTIONS = (
    "fma", "f16c", "avx2", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16", "avx_vnni",
    "amx_tile", "amx_bf16", "amx_int8", "asimdhp", "asimddp", "sve", "bf16", "i8mm",
)  # fmt: skip
"""CPU features that a kernel may be written for."""


def _cpu_caches() -> dict[int, int]:
    """Level -> bytes of the caches that hold data and that one core sees."""
    sizes: dict[int, int] = {}
    for folder in sorted((CPU_FOLDER / "cache").glob("index*")):
        kind, level, size = ((folder / name).read_text().strip() for name in ("type", "level", "size"))
        if kind != "Instruction":
            number, unit = re.fullmatch(r"(\d+)([KMG])", size).groups()  # type: ignore[union-attr]
            sizes[int(level)] = int(number) << {"K": 10, "M": 20, "G": 30}[unit]
    return sizes


def _cpu_clock_mhz(model: str) -> int | None:
    """The highest clock, as the kernel or else the model's name has it; what /proc/cpuinfo says changes from call to call."""
    highest = CPU_FOLDER / "cpufreq" / "cpuinfo_max_freq"
    if highest.exists():
        return int(highest.read_text()) // 1000
    named = re.search(r"@ ([\d.]+)GHz", model)
    return round(float(named[1]) * 1000) if named else None


def _threads_per_core() -> int | None:
    path = CPU_FOLDER / "topology" / "thread_siblings_list"
    if not path.exists():
        return None
    ranges = (part.partition("-") for part in path.read_text().strip().split(","))
    return sum(int(last or first) - int(first) + 1 for first, _, last in ranges)


def _generation(text: str) -> str:
    """What /proc/cpuinfo says beside the name, which on rented machines is often a brand alone."""
    found = (
        re.search(rf"^{name}\s*:\s*(.*)$", text, re.MULTILINE)
        for name in ("vendor_id", "cpu family", "model", "stepping")
    )
    vendor, family, model, stepping = (one[1].strip() if one else "" for one in found)
    return f"{vendor} family {family}, model {model}, stepping {stepping}" if family and model else ""


def _huge_pages() -> str:
    path = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    found = re.search(r"\[(\w+)\]", path.read_text()) if path.exists() else None
    return found[1] if found else ""


def facts(device: str) -> DeviceFacts:
    """What is known of the device before anything was measured."""
    if device == "cpu":
        text = CPUINFO.read_text() if CPUINFO.exists() else ""
        model = re.search(r"^model name\s*:\s*(.*)$", text, re.MULTILINE)
        name = model[1] if model else os.uname().machine
        flags = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
        have = set(flags[1].split()) if flags else set()
        architecture = next((known for known in VECTOR_BYTES if known in have), os.uname().machine)
        caches = _cpu_caches()
        return DeviceFacts(
            device="cpu",
            name=name,
            architecture=architecture,
            units=len(os.sched_getaffinity(0)),
            last_level_cache_bytes=max(caches.values(), default=32 << 20),
            l1_bytes=caches.get(1),
            l2_bytes=caches.get(2),
            clock_mhz=_cpu_clock_mhz(name),
            vector_bytes=VECTOR_BYTES.get(architecture),
            threads_per_core=_threads_per_core(),
            generation=_generation(text),
            huge_pages=_huge_pages(),
            instructions=tuple(known for known in INSTRUCTIONS if known in have),
        )
    import torch

    properties = torch.cuda.get_device_properties(0)
    return DeviceFacts(
        device="cuda",
        name=properties.name,
        architecture=f"sm_{properties.major}{properties.minor}",
        units=properties.multi_processor_count,
        last_level_cache_bytes=properties.L2_cache_size,
        l2_bytes=properties.L2_cache_size,
        shared_bytes=getattr(properties, "shared_memory_per_multiprocessor", None),
        shared_block_bytes=getattr(properties, "shared_memory_per_block_optin", None),
        registers=getattr(properties, "regs_per_multiprocessor", None),
        threads=getattr(properties, "max_threads_per_multi_processor", None),
        clock_mhz=_highest_clock_mhz(),
    )


def memory_bytes(device: str) -> int:
    """All the memory of the device, used or not."""
    if device == "cpu":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    import torch

    return torch.cuda.get_device_properties(0).total_memory


def give_back_memory(over: int = 1 << 30) -> None:
    """To the GPU, where torch keeps more than so many bytes here for later: no other process could have them.

    With 0 also what only the garbage collector would find: a tensor in a circle of objects can hold gigabytes for minutes.
    """
    import torch

    if not over:
        gc.collect()
    if torch.cuda.memory_reserved() - torch.cuda.memory_allocated() > over:
        torch.cuda.empty_cache()


@functools.cache
def _highest_clock_mhz() -> int | None:
    """Highest clock of the GPU's multiprocessors in MHz by nvidia-smi; None where it does not say."""
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", "-i", first_visible(), "--query-gpu=clocks.max.sm", "--format=csv,noheader,nounits"]
    said = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return int(said) if said.isdigit() else None


def first_visible() -> str:
    """What nvidia-smi, which lists all GPUs, calls the one that is device 0 here."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip() or "0"


def clocks() -> dict[str, str]:
    """Clocks, temperature and throttle reasons of the GPU as nvidia-smi gives them; empty where it is not there."""
    if shutil.which("nvidia-smi") is None:
        return {}
    names = "clocks.sm,clocks.mem,temperature.gpu,power.draw,clocks_event_reasons.active"
    done = subprocess.run(
        ["nvidia-smi", "-i", first_visible(), f"--query-gpu={names}", "--format=csv,noheader"],
        capture_output=True,
        text=True,
    )
    values = done.stdout.strip().split(", ")
    return dict(zip(names.split(","), values, strict=True)) if len(values) == 5 else {}


def cpu_clocks() -> dict[str, str]:
    """The fastest core's clock at this moment and the frequency governor; what Linux does not say here is left out."""
    path, governor = Path("/proc/cpuinfo"), Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    rates = re.findall(r"^cpu MHz\s*:\s*([\d.]+)", path.read_text() if path.exists() else "", re.MULTILINE)
    found = {"clock": f"{max(map(float, rates)):.0f} MHz"} if rates else {}
    return found | ({"governor": governor.read_text().strip()} if governor.exists() else {})


def ranges(looks: list[dict[str, str]]) -> str:
    """What was seen at several looks, `clocks.sm 1755 - 1980 MHz, ...`: the smallest and the largest where it is a number."""
    said = []
    for name in looks[-1]:
        values = [look[name] for look in looks if name in look]
        numbers = sorted({(float(match[0]), value) for value in values if (match := re.match(r"[\d.]+(?= )", value))})
        if len(numbers) > 1 and len(values) == sum(bool(re.match(r"[\d.]+ ", value)) for value in values):
            low, high = numbers[0][1], numbers[-1][1]
            said.append(f"{name} {low.partition(' ')[0]} - {high}")
        else:
            said.append(f"{name} {values[-1]}")
    return ", ".join(said)


PAGE_BYTES = 32 << 20


class _Bytes:
    """Device memory as torch takes it without a copy."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}


def is_throttled(reasons: str) -> bool:
    """Whether nvidia-smi's clock event reasons, a hexadecimal mask, name more than idling and clocks that were set."""
    idle, application_clocks, display = 0x1, 0x2, 0x100
    return bool(int(reasons, 16) & ~(idle | application_clocks | display))


class ArgumentBuffers:
    """Device memory that the parent owns and a worker maps: `view` is a flat uint8 tensor over all of it."""

    _next = 0

    def __init__(self, device: str, size: int) -> None:
        # CUDA IPC maps an allocation that does not end on a 2 MiB page with small pages in the other process: on an
        # H200 a worker then moved 2.3 TB/s where it moves 4.2 otherwise.
        size = -(-size // PAGE_BYTES) * PAGE_BYTES if device == "cuda" else size
        self.device, self.size = device, size
        ArgumentBuffers._next += 1
        self.id = ArgumentBuffers._next
        self.laid_out = 0
        """How often argument sets were laid out in it, each in place of those before."""
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


def synchronize(device: str) -> None:
    """Wait until the device has done all that this process asked of it: another process reads what was written here."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def generator(device: str) -> torch.Generator:
    """A generator with a seed that nobody can know before."""
    import torch

    return torch.Generator(device=device).manual_seed(secrets.randbits(63))
