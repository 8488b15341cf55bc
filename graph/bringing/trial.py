"""A written reference is tried: on the calls that were seen, and at sizes that none had."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from harness.capture.extents import axis_name
from harness.checks.cases import make_case
from harness.checks.drawing import distributions
from harness.checks.tolerance import run_reference
from kernels import catalog
from kernels.catalog import Kernel, KernelError

if TYPE_CHECKING:
    import torch

    from graph.bringing.calls import Calls
    from graph.watched_calls import SeenCall

MOST_ELEMENTS = 1 << 24
"""Of one call's tensors together; larger calls are not tried."""
CLOSE = 2e-2
"""Error that the same steps may show, as a share of the largest value: a test's reference rounds where the written one need not."""


def find_wrong_calls(brought: Calls, axes: dict[str, tuple[int, ...]]) -> dict[int, str]:
    """Call -> what the folder's reference.py makes of its inputs, where that is not what the test expects. Empty for a folder that cannot be loaded."""
    kernel = _load(brought)
    if kernel is None:
        return {}
    names = {seen: brought.name_of(seen, parameter) for seen, parameter in brought.order if seen}
    found = {}
    for at, call in enumerate(brought.calls):
        if sum(tensor.numel() for tensor in call.tensors.values()) > MOST_ELEMENTS:
            continue
        sizes = {name: values[at] for name, values in axes.items()}
        workload = kernel.spec.workloads[0].model_copy(update={"axes": sizes, "dtype": brought.series[at]})
        try:
            made = run_reference(kernel, workload, _inputs(brought, kernel, call), "float32")
        except KernelError as error:
            found[at] = str(error).partition("reference.py ")[2] or str(error)
            continue
        for seen, right in call.expected.items():
            name = names.get(seen, axis_name(seen))
            if name in made and (said := _differs(made[name], right)):
                found[at] = f"{name} {said}"
                break
    return found


def find_fixed_axes(brought: Calls, axes: dict[str, tuple[int, ...]]) -> Iterator[str]:
    """Axes of one size alone at which reference.py does not work at twice that: it holds numbers of its one call."""
    kernel = _load(brought)
    if kernel is None:
        return
    workload = kernel.spec.workloads[0]
    values = distributions(kernel.spec, {})[0]
    for axis, sizes in axes.items():
        if len(set(sizes)) > 1 or axis not in workload.axes:
            continue
        other = workload.model_copy(update={"axes": {**workload.axes, axis: 2 * workload.axes[axis]}})
        try:
            make_case(kernel, other, values, {}, "cpu")
        except (KernelError, ValueError):
            yield axis


ROUNDS = (
    "reference.py rounds to the workload's dtype before its last step, which is asked of no candidate so: where the kernel must round there, take `dtype` "
    "and write .to(dtype).to(x.dtype) (docs/kernels.md)"
)
"""A sentence for the user."""


MOVES = frozenset(
    (
        "_to_copy",
        "clone",
        "copy_",
        "detach",
        "index",
        "index_put",
        "index_put_",
        "index_copy_",
        "gather",
        "scatter",
        "scatter_",
        "cat",
        "stack",
        "repeat",
    )
)
"""Operators of which a rounded value comes out as it was, besides views."""


def rounds_between(brought: Calls, axes: dict[str, tuple[int, ...]]) -> bool:
    """Whether reference.py rounds floats to 16 bits and computes with them, as the first call of such a dtype shows. In the wider one by which is judged
    the same text rounds nothing."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    kernel, halves = _load(brought), (torch.float16, torch.bfloat16)
    at = next((n for n, one in enumerate(brought.series) if getattr(torch, one, None) in halves), None)
    if kernel is None or at is None or kernel.reference_asks_dtype:
        return False
    rounded: list[torch.Tensor] = []
    """Kept, so that no other tensor has their memory."""
    found = False

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, op: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            nonlocal found
            made = op(*args, **(kwargs or {}))
            name, places = op.overloadpacket.__name__, {one.untyped_storage().data_ptr() for one in rounded}
            is_read = any(isinstance(one, torch.Tensor) and one.untyped_storage().data_ptr() in places for one in args)
            if name == "_to_copy" and (
                is_read or (made.dtype in halves and args[0].dtype in (torch.float32, torch.float64))
            ):
                rounded.append(made)
            is_view = any(one.alias_info and not one.alias_info.is_write for one in op._schema.arguments)
            found |= is_read and not is_view and name not in MOVES
            return made

    workload = kernel.spec.workloads[0]
    sizes = {name: values[at] for name, values in axes.items()}
    seen = workload.model_copy(update={"axes": sizes, "dtype": brought.series[at]})
    with Watch(), suppress(KernelError):  # torch has not all operators in 16 bits
        run_reference(kernel, seen, _inputs(brought, kernel, brought.calls[at]))
    return found


def _inputs(brought: Calls, kernel: Kernel, call: SeenCall) -> dict[str, torch.Tensor]:
    """What that call gave for the spec's inputs."""
    names = {seen: brought.name_of(seen, parameter) for seen, parameter in brought.order if seen}
    return {
        tensor.name: call.tensors[seen].detach().clone()
        for tensor in kernel.spec.inputs
        for seen in call.tensors
        if names.get(seen, axis_name(seen)) == tensor.name
    }


def _load(brought: Calls) -> Kernel | None:
    try:
        return catalog.load(str(brought.to))
    except KernelError:
        return None


def _differs(made: torch.Tensor, right: torch.Tensor) -> str:
    """What is not the same of both, "" where nothing is."""
    import torch

    if made.numel() != right.numel():
        return f"has {tuple(made.shape)} for {tuple(right.shape)}"
    one, other = made.detach().reshape(-1), right.detach().reshape(-1)
    if not other.is_floating_point() and not other.is_complex():
        return "" if bool(one.to(other.dtype).eq(other).all()) else "differs"
    wide = torch.complex128 if other.is_complex() else torch.float64
    one, other = one.to(wide), other.to(wide)
    finite = other.abs()[other.isfinite()]
    scale = float(finite.max()) if finite.numel() else 0.0
    return "" if torch.allclose(one, other, rtol=CLOSE, atol=CLOSE * scale, equal_nan=True) else "differs"
