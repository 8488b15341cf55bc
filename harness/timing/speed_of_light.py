"""Speed of light: the time that this device needs to move a workload's bytes, measured at that size and mix.

The bound is a kernel of ours that reads and writes as many bytes and does nothing else (probes/light.cu, light.cpp),
timed by the same comparison as candidates are, in the same cache state; the fastest of its variants counts. It is a
measured bound, not a datasheet's: a candidate may come out a little faster, and one far faster did not move the bytes.
"""

from __future__ import annotations

from pathlib import Path

from kernels.catalog import Kernel
from kernels.spec import Scalar, Size, Spec, Tensor, Workload

FOLDER = Path(__file__).parent.parent / "probes"
VARIANTS = {
    "cuda": tuple(f"light_{kind}" for kind in ["1", "4", "8", "chained_small", "chained_1", "chained_2", "chained_4"]),
    "cpu": ("light_cached", "light_around", "light_serial"),
}
PACK_BYTES = 16
FASTER_THAN_SOL = 0.5
"""A candidate in less than this share of the bound cannot have moved the bytes: CHEATED. Half, not all of it: the bound
is one kernel's, and a small working set may sit in a nearer cache for one of the two."""


def source(device: str) -> Path:
    return FOLDER / ("light.cu" if device == "cuda" else "light.cpp")


def kernel_for(spec: Spec, workload: Workload, device: str) -> tuple[Kernel, Workload]:
    """The streaming kernel's spec with the byte counts of this workload, rounded up to packs."""

    def packs(tensors: tuple[Tensor, ...]) -> int:
        return -(-sum(spec.tensor_bytes(tensor, workload) for tensor in tensors) // PACK_BYTES)

    elsewhere = tuple(tensor for tensor in spec.outputs if tensor.role == "output")
    inplace = packs(tuple(tensor for tensor in spec.outputs if tensor.role == "inout"))
    axes = {"read": max(1, packs(spec.inputs)), "write": max(1, packs(elsewhere))}
    light = Workload(axes=axes, dtype="uint8", devices=(device,))  # type: ignore[arg-type]
    described = Spec(
        name="light",
        summary="reads and writes packs of 16 bytes",
        axes=("read", "write"),
        dtypes=("uint8",),
        arguments=(
            Tensor(name="input", role="inout" if inplace else "input", shape=("read", "16"), values=("uniform",)),
            Tensor(name="out", role="output", shape=("write", "16")),
            Size(name="read"),
            Size(name="write"),
            Scalar(name="inplace", ctype="int64_t", value=min(inplace, axes["read"])),
        ),
        workloads=(light,),
    )
    return Kernel(described, FOLDER), light
