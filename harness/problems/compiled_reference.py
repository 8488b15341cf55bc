"""torch.compile of a kernel's reference: the rival that a user would try first, as a Python candidate of our own.

The reference's outputs are copied to the kernel's within what is compiled, so that the compiler may write there at once. A
reference computes in the dtype of its inputs; torch's compiler keeps what lies between operators in float32. It is compiled as a
problem's Model is, by `compile_model` of the worker (harness/farside/problem.py).
"""

from __future__ import annotations

from harness.problems.pytorch import COMPILE_MODES
from harness.store import digest
from kernels.catalog import Kernel, KernelError
from kernels.spec import Scalar, Size

_WRAPPER = """

import sys as _sys


def _into({names}):
    _made = reference(**{{{given}}})
{copies}


_compiled = _sys.modules["astrolabe_farside.problem"].compile_model(_into, {mode!r})


def {entry}({names}):
    _compiled({names})
"""


def source(kernel: Kernel, mode: str) -> str:
    """The module's text; `mode`: a key of COMPILE_MODES. Raises KernelError where the kernel has no reference."""
    if not kernel.has_reference:
        raise KernelError(f"{kernel.spec.name} has no reference.py: there is nothing to compile")
    arguments = kernel.spec.arguments
    written = [tensor.name for tensor in kernel.spec.outputs]
    given = [one.name for one in arguments if isinstance(one, Scalar) or one in kernel.spec.inputs]
    given += kernel.reference_axes()
    if unknown := sorted(set(given) - {one.name for one in arguments}):
        raise KernelError(
            f"{kernel.spec.name}: its reference asks for {', '.join(unknown)}, which its entry is not given"
        )
    names = {at: f"_{at}" for at in range(len(arguments))}  # a tensor may be called `in`, or as an axis is
    tensors_last = sorted(names, key=lambda at: not isinstance(arguments[at], Size))
    own = {arguments[at].name: names[at] for at in tensors_last}
    text = (kernel.folder / "reference.py").read_text()
    return text + _WRAPPER.format(
        names=", ".join(names.values()),
        given=", ".join(f"{name!r}: {own[name]}" for name in given),
        copies="\n".join(f"    {own[name]}.copy_(_made[{name!r}])" for name in written),
        mode=COMPILE_MODES[mode],
        entry=kernel.spec.entry_name,
    )


def sources(kernel: Kernel) -> frozenset[str]:
    """Hashes of the texts that `source` gives."""
    try:
        return frozenset(digest(source(kernel, mode)) for mode in COMPILE_MODES)
    except KernelError:
        return frozenset()
