"""What this device reaches at most, measured here: a large copy's bandwidth, and FLOPs a second by dtype.

Two kinds of arithmetic have a roof each. Vector units: a kernel of ours that does nothing but multiply-adds on registers
(probes/roof.cu, roof.cpp). Matrix units (tensor cores; on a CPU what its library uses): torch's product of two square
matrices, so what a good library reaches and not what a datasheet says. The fastest of several tries counts.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from harness import device as devices
from harness import machine
from harness.records import Build, DeviceFacts, Roof
from harness.store import Store, digest
from harness.timing import load
from kernels.spec import Spec, Workload, expression

if TYPE_CHECKING:
    import torch


FOLDER = Path(__file__).parent.parent / "probes"
VECTOR_DTYPES = {"cuda": ("float64", "float32", "float16", "bfloat16"), "cpu": ("float64", "float32")}
"""A CPU widens 16-bit floats: their roof is float32's."""
MATRIX_SIZE = {
    "cuda": {"float64": 4096, "float32": 4096, "tf32": 8192, "float16": 8192, "bfloat16": 8192, "float8_e4m3fn": 8192},
    "cpu": {"float64": 768, "float32": 1024},
}
"""Rows and columns. A CPU's float16 product takes torch seconds where there is no instruction for it, so it is left out."""
TRIES = 5
COPY_FACTOR, COPY_SHARE = 4, 64
"""Bytes copied: so many last-level caches, and of the memory at most such a part."""
PROBE_S = 60.0
INTENSITY = 2
"""FLOPs a byte below which no device is bound by arithmetic: an H200's vector units do 14 in float32, two busy cores 4."""
OVERCOUNTED = 1.1
_CALL = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
for name in sys.argv[2:]:
    roof = getattr(library, name)
    roof.restype = ctypes.c_double
    print(roof(), flush=True)
"""


class RoofsSession(Protocol):
    """What is asked of whoever builds here (harness/judge/session.py)."""

    spec: Spec
    facts: DeviceFacts
    store: Store
    measured: dict[str, str]
    say: Callable[[str], None]

    def build(self, candidate: str) -> Build: ...

    def measure_facts(self) -> DeviceFacts: ...


def source(device: str) -> Path:
    return FOLDER / ("roof.cu" if device == "cuda" else "roof.cpp")


def measure_roofs(session: RoofsSession) -> DeviceFacts:
    """The session's facts with its roofs: seconds at the first call on a device, kept in its store.

    What was measured while other processes were at work is too low, so it is noted and not kept. Where a probe of ours fails
    the facts are as they were, and why is noted: roofs are shown beside verdicts and decide none.
    """
    import torch

    facts = session.facts
    texts = (path.read_text() for path in (source(facts.device), Path(__file__)))
    key = digest("roofs", facts.model_dump_json(), torch.__version__, *texts)
    everywhere = machine.store()
    if (kept := machine.find_record(session.store, everywhere, "roofs", key, DeviceFacts)) is not None:
        return kept
    session.say("measuring what this device reaches at most")
    others = load.LoadWatch()
    try:
        found = _found(session, facts)
    except (RuntimeError, OSError, ValueError, subprocess.TimeoutExpired) as error:
        session.measured["roofs"] = f"not measured: {' '.join(str(error).split())[:300]}"
        session.say(f"roofs {session.measured['roofs']}")
        return facts
    if disturbed := others.warnings():
        session.measured["roofs"] = disturbed[0].replace("it was timed", "the roofs were measured")
    else:
        for store in filter(None, (session.store, everywhere)):
            store.keep("roofs", key, found)
    return found


def _found(session: RoofsSession, facts: DeviceFacts) -> DeviceFacts:
    build = session.build(session.store.put(source(facts.device).read_text()))
    if not build.ok:
        raise RuntimeError(f"the compute roof's probe does not compile: {build.log}")
    compute = (*_vector(build.artefact, facts), *_matrix(facts))
    more = {}
    if facts.device == "cpu":
        more = _probed(build.artefact, "core_gbps", "region_us")
    return facts.model_copy(update={"bandwidth_gbps": _copy_gbps(facts), "compute": compute, **more})


def weighs(spec: Spec, workload: Workload) -> bool:
    """Whether arithmetic may be what bounds a call."""
    moved_bytes = spec.read_bytes(workload) + spec.write_bytes(workload)
    return expression(spec.flops, workload.axes) >= INTENSITY * moved_bytes


def compute_us(session: RoofsSession, workload: Workload, fastest_us: float) -> float | None:
    """What one call's operations need at the highest roof of its dtype; None where moving its bytes surely needs longer.

    `fastest_us`: what some kernel has needed. None too where that is far less: then the spec counts too many, or the roof was
    measured while others were at work, and nobody is at a limit by it.
    """
    if not weighs(session.spec, workload):
        return None
    flops = expression(session.spec.flops, workload.axes)
    gflops = max(session.measure_facts().compute_roofs(workload.dtype).values(), default=0.0)
    needed = flops / gflops * 1e-3 if gflops else None
    return None if needed is None or needed > OVERCOUNTED * fastest_us else needed


def _copy_gbps(facts: DeviceFacts) -> float:
    """Bytes read and as many written, of torch's copy of what does not fit the last-level cache."""
    import torch

    size = min(COPY_FACTOR * facts.last_level_cache_bytes, devices.memory_bytes(facts.device) // COPY_SHARE)
    here, there = (torch.ones(size, dtype=torch.uint8, device=facts.device) for _ in range(2))
    return 2 * size / _fastest_s(facts.device, lambda: there.copy_(here)) * 1e-9


def _vector(artefact: str, facts: DeviceFacts) -> list[Roof]:
    reached = _probed(artefact, *VECTOR_DTYPES[facts.device])
    return [Roof(kind="vector", dtype=one, gflops=gflops) for one, gflops in reached.items()]


def _probed(artefact: str, *names: str) -> dict[str, float]:
    """What the probe reaches in each; in a process of its own, whose threads and context go with it: on a GPU most of a second is its start."""
    command = [sys.executable, "-I", "-c", _CALL, artefact, *(f"roof_{name}" for name in names)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_S, check=False)
    reached = [float(line) for line in done.stdout.split()]
    for name, value in itertools.zip_longest(names, reached, fillvalue=0.0):
        if value <= 0:
            said = " ".join((done.stderr or done.stdout).split())[-300:]
            raise RuntimeError(f"the compute roof's probe fails in {name}: {said or f'exit code {done.returncode}'}")
    return dict(zip(names, reached, strict=True))


def _matrix(facts: DeviceFacts) -> list[Roof]:
    import torch

    sizes = dict(MATRIX_SIZE[facts.device])
    if facts.device == "cuda" and torch.cuda.get_device_capability() < (8, 9):
        del sizes["float8_e4m3fn"]
    before = torch.get_float32_matmul_precision()
    try:
        taken = {dtype: _product_s(facts.device, dtype, size) for dtype, size in sizes.items()}
    finally:
        torch.set_float32_matmul_precision(before)
        if facts.device == "cuda":
            torch.cuda.empty_cache()  # candidates are asked how much of the memory they take
    return [Roof(kind="matrix", dtype=one, gflops=2e-9 * sizes[one] ** 3 / seconds) for one, seconds in taken.items()]


def _product_s(device: str, dtype: str, size: int) -> float:
    """Seconds of the fastest product of two square matrices."""
    import torch

    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    kind = torch.float32 if dtype == "tf32" else getattr(torch, dtype)
    wide = torch.float32 if kind.itemsize < 2 else kind
    a, b = (torch.rand(size, size, device=device, dtype=wide).to(kind) for _ in range(2))
    product: Callable[[], torch.Tensor] = lambda: a @ b  # noqa: E731
    if dtype == "float8_e4m3fn":
        one = torch.ones((), device=device)
        product = lambda: torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16)  # noqa: E731
    return _fastest_s(device, product)


def _fastest_s(device: str, work: Callable[[], object]) -> float:
    work()
    return min(_timed_s(device, work) for _ in range(TRIES))


def _timed_s(device: str, work: Callable[[], object]) -> float:
    import torch

    if device == "cpu":
        start = time.perf_counter()
        work()
        return time.perf_counter() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e-3
