"""Which workloads a machine can judge, decided from their sizes alone: nothing is drawn to find out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from kernels.catalog import KernelError
from kernels.spec import DTYPE_BYTES, SIGNIFICAND_BITS, Spec, Workload

Answer = TypeVar("Answer")


class OutOfDeviceMemory(KernelError):
    """A reference in another process found no memory on the device beside what is kept here."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the device's memory did not suffice, here or for a reference in another process."""
    return (
        isinstance(error, OutOfDeviceMemory) or type(error).__name__ == "OutOfMemoryError"
    )  # torch's, not imported for it


def retry_in_room(ask: Callable[[], Answer], make_room: Callable[[], None]) -> Answer:
    """What it answers; where the device's memory does not suffice once more, after room was made."""
    try:
        return ask()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    # Behind the handler: the error's traceback holds what was made so far, until it is left.
    make_room()
    return ask()


JUDGING_FACTOR = 24
"""A workload is left out where the device has not so many times the bytes that its tensors hold or that a call moves: its
reference in fp64, that one's intermediate results and the tolerance are up to twenty times as large."""
SLICED_FACTOR = 4
"""Multiple of the tensors' bytes that judging takes where the reference runs in slices (harness/checks/slices.py): an
argument set, inputs of two distributions, and one slice."""


def estimate_bytes(spec: Spec, workload: Workload) -> int:
    """Memory that judging one workload takes. A gather's table counts whole, however little of it a call touches."""
    held = sum(spec.span(tensor, workload.axes) * DTYPE_BYTES[spec.dtype(tensor, workload)] for tensor in spec.tensors)
    return JUDGING_FACTOR * max(held, spec.read_bytes(workload) + spec.write_bytes(workload))


def too_large(spec: Spec, workload: Workload, device_bytes: int, *, sliced: bool = False) -> str:
    """Why the device cannot judge it, "" where it can. `sliced`: in slices, which only what is not timed may be."""
    factor = SLICED_FACTOR if sliced and not workload.timed else JUDGING_FACTOR
    needed = estimate_bytes(spec, workload) // JUDGING_FACTOR * factor
    if needed <= device_bytes:
        return ""
    return (
        f"{workload.label} needs {needed / 2**30:,.1f} GiB to be judged ({factor} times its tensors), "
        f"and this device has {device_bytes / 2**30:,.1f} GiB"
    )


def explain_left_out(
    spec: Spec, on: str, dtypes: tuple[str, ...], device_bytes: int, *, sliced: bool = False
) -> tuple[str, ...]:
    """One sentence for each workload of the spec that the device cannot judge, held-out ones included."""
    suite = (*spec.suite(on), *spec.suite(on, held_out=True))
    wanted = [workload for workload in suite if workload.dtype in dtypes]
    reasons = [too_large(spec, workload, device_bytes, sliced=sliced) for workload in wanted]
    return tuple(f"left out, too large: {reason}" for reason in reasons if reason)


def explain_one_signed(spec: Spec) -> tuple[str, ...]:
    """A sentence where no float input ever holds values of both signs: the identity would pass for relu."""

    def signed(values: str) -> bool:
        kind, _, rest = values.partition(":")
        if kind == "range":
            low, high = (float(bound) for bound in rest.split(":"))
            return low < 0 < high
        if kind == "integers":
            low, high = (int(bound) for bound in rest.split(":"))
            return low < 0 < high - 1
        return kind not in ("uniform", "scaled")  # of `given` what is drawn tells (degenerate.holes)

    floats = [t for t in spec.inputs if t.dtype in ("T", *SIGNIFICAND_BITS)]
    if not floats or any(signed(values) for tensor in floats for values in tensor.values):
        return ()
    return (
        "no input of the spec ever holds values of both signs, so the identity would pass for relu or abs: let one name "
        "`ordinary` or a range around 0",
    )


def require_timed(spec: Spec, on: str, dtypes: tuple[str, ...], device_bytes: int) -> None:
    """Raises KernelError where no timed workload that agents may see is left for these dtypes."""
    suite = [workload for workload in spec.suite(on) if workload.dtype in dtypes and workload.timed]
    if not any(not too_large(spec, workload, device_bytes) for workload in suite):
        raise KernelError(
            f"{spec.name} has no timed workload that fits device {on} and dtype {', '.join(dtypes)}"
            + "".join(f"; {notice}" for notice in explain_left_out(spec, on, dtypes, device_bytes))
        )
