"""What must hold of outputs that have many right answers: a random sample, a numbering in any order.

A kernel's `properties.py`, executed in the parent only and hidden from candidates as the reference is, defines

- `violated(inputs, outputs, sizes) -> str`: of one call, "" or which property is violated, one sentence. Tensors by
  name, `sizes` the workload's axes and the spec's scalars; an output whose used length another one states (`Tensor.used`) is cut to it. Outputs may hold anything:
  look at ranges before you index with them;
- and, for what shows only over many calls (every position equally likely, the same seed twice), both of
  `several(inputs, sizes) -> list[dict]`: the inputs of each call, made from drawn ones of the same shapes and dtypes; an
  empty list where this workload is not the one to ask, and
  `violated_together(calls, sizes) -> str`: of `[(inputs, outputs), ...]` in the same order.

- and, for what shows in calls that nobody arranged, both of `evidence(inputs, outputs, sizes, secret)`: the little that is kept of a
  call, tensors that are all empty where it shows nothing, by an integer that is the same for calls that are looked at together, and
  `unlikely(seen, sizes) -> str`: of what was kept of several, which chance would not have let come out so; each is right by itself.

A test that can fail by chance says how often: kernels/chance.py has the rate and the two tests that samplers need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kernels.catalog import Kernel, KernelError
from kernels.spec import Spec, Workload

if TYPE_CHECKING:
    import torch


def law(
    kernel: Kernel, workload: Workload, inputs: dict[str, torch.Tensor]
) -> Callable[[dict[str, torch.Tensor]], str] | None:
    """Outputs by name -> "" or which property is violated; None where the kernel has no properties.py."""
    module = kernel.properties
    if module is None:
        return None
    sizes = workload.axes | kernel.spec.scalars
    return lambda outputs: _said(kernel, "violated", module.violated(inputs, outputs, sizes))


def several(kernel: Kernel, workload: Workload, inputs: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """The inputs of the calls that are judged together; empty where there are none."""
    module = kernel.properties
    if module is None or not hasattr(module, "several"):
        return []
    calls = module.several(inputs, workload.axes | kernel.spec.scalars)
    for call in calls:
        for name, values in call.items():
            if name not in inputs or values.shape != inputs[name].shape or values.dtype != inputs[name].dtype:
                raise KernelError(f"{kernel.folder / 'properties.py'}: several() changed the shape or dtype of {name}")
    return calls


def find_joint_violation(
    kernel: Kernel, workload: Workload, calls: list[dict[str, torch.Tensor]], outputs: list[dict[str, torch.Tensor]]
) -> str:
    """ "" or what is violated of several calls, each of which is right by itself."""
    module = kernel.properties
    assert module is not None
    pairs = [(inputs, cut_to_used(kernel.spec, left)) for inputs, left in zip(calls, outputs, strict=True)]
    said = module.violated_together(pairs, workload.axes | kernel.spec.scalars)
    return _said(kernel, "violated_together", said)


def looks_at_timed_calls(kernel: Kernel) -> bool:
    return hasattr(kernel.properties, "unlikely")


def evidence(
    kernel: Kernel, workload: Workload, inputs: dict[str, torch.Tensor], outputs: dict[str, torch.Tensor], secret: int
) -> Any:
    """What is kept of a timed call, where `looks_at_timed_calls`."""
    assert kernel.properties is not None
    sizes = workload.axes | kernel.spec.scalars
    with _one_thread():
        return kernel.properties.evidence(inputs, cut_to_used(kernel.spec, outputs), sizes, secret)


def unlikely(kernel: Kernel, workload: Workload, seen: list[Any]) -> str:
    """ "" or what chance would not have let come out of the calls of which that was kept."""
    assert kernel.properties is not None
    with _one_thread():
        return _said(kernel, "unlikely", kernel.properties.unlikely(seen, workload.axes | kernel.spec.scalars))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Many small operators: beside other processes torch's threads wait for each other ten times as long as one works, 45 ms and 4."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def cut_to_used(spec: Spec, outputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The outputs, those with a stated length (`Tensor.used`) cut to what their call says, within their capacity."""
    lengths = {t.name: max(int(outputs[t.used]), 0) for t in spec.outputs if t.used is not None}
    return {name: values[: lengths.get(name, len(values))] for name, values in outputs.items()}


def _said(kernel: Kernel, function: str, answer: object) -> str:
    if not isinstance(answer, str):
        raise KernelError(f"{kernel.folder / 'properties.py'}: {function}() returned {answer!r}, not a sentence or ''")
    return answer
