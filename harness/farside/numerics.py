"""A Model in fp64 as eager computes it: Python numbers, convolutions in TF32, random draws."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


COMPARING = frozenset(("gt", "ge", "lt", "le", "eq", "ne"))
OF_NUMBERS = frozenset(
    "add sub rsub mul div floor_divide remainder fmod threshold hardshrink clamp clamp_min clamp_max hardtanh full full_like fill "  # noqa: SIM905
    "masked_fill where scalar_tensor new_full maximum minimum heaviside".split()
)
"""Operators of aten whose numbers eager torch rounds to fp32 (no sizes follow from them), and which decide or are compared."""


KEPT = ("running_mean", "running_var")
"""Arguments that native_batch_norm and its likes change, whatever their schema says."""


def numbers_as(narrow: torch.dtype) -> Any:
    """A context in which Python's floats are those that eager torch computes with: of fp32, and what is compared with a tensor
    of its dtype, `narrow`.

    In fp64 an input of fp32's 0.3 is larger than 0.3, and what eager decides by x > 0.3 comes out otherwise.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    def narrowed(value: Any, dtype: torch.dtype) -> Any:
        if type(value) is not float:
            return value
        near = float(torch.tensor(value, dtype=dtype))
        # What torch.finfo says of fp64 is no number of eager's.
        return near if math.isfinite(near) and bool(near) == bool(value) else value

    class Narrowed(TorchDispatchMode):
        def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            name = operator._schema.name.removeprefix("aten::").rstrip("_")
            if name == "lift_fresh" and args[0].dtype == torch.float64:  # torch.tensor(0.3)
                return operator(args[0].to(torch.float32).to(torch.float64))
            if name in COMPARING or name in OF_NUMBERS:
                dtype = narrow if name in COMPARING else torch.float32
                args = tuple(narrowed(one, dtype) for one in args)
                kwargs = {key: narrowed(one, dtype) for key, one in kwargs.items()}
            return operator(*args, **kwargs)

    return Narrowed()


PLACES = (
    "index", "_index_put", "gather", "scatter", "embedding", "take", "put", "nll_loss", "bincount", "repeat_interleave", "one_hot",
    "_local_scalar_dense", "bitwise_left_shift", "bitwise_right_shift", "__lshift__", "__rshift__",
)  # fmt: skip
"""How operators of aten begin that take integers as places, or count by them."""


def watch_places() -> Any:
    """A context whose `seen` says afterwards whether an operator in it has taken integers of a tensor as places."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Watch(TorchDispatchMode):
        seen = False

        def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = operator._schema.name.removeprefix("aten::")
            if name.startswith(PLACES):
                taken = tree_leaves(args[1:] if len(args) > 1 else args)  # 2 of x >> 2 is no tensor
                self.seen |= any(isinstance(one, torch.Tensor) and "int" in str(one.dtype) for one in taken)
            return operator(*args, **kwargs or {})

    return Watch()


def convolutions_in_tf32() -> Any:
    """A context in which fp32 convolutions take operands of TF32, as torch's defaults let them on a GPU.

    cuDNN does so or not by size and memory format: a small one is fp32 in eager torch, and TF32 as torch.compile lays it out.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    def rounded(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype != torch.float32:
            return tensor
        ten_bits = ((tensor.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
        return torch.where(tensor.isfinite(), ten_bits, tensor)

    class Rounding(TorchDispatchMode):
        def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if operator is torch.ops.aten.convolution.default:
                args = (rounded(args[0]), rounded(args[1]), *args[2:])
            return operator(*args, **kwargs or {})

    return Rounding()


def wide_but_for_draws() -> Any:
    """A context in which every operator of fp32 tensors computes in fp64 and rounds its result, but for those that draw.

    What a module drops depends on the dtype that it is asked in, so one that draws has no fp64 form; its sums have.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_map

    def cast(given: Any, before: torch.dtype, after: torch.dtype) -> Any:
        return tree_map(
            lambda one: one.to(after) if isinstance(one, torch.Tensor) and one.dtype == before else one, given
        )

    class Wide(TorchDispatchMode):
        def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            draws = torch.Tag.nondeterministic_seeded in operator.tags
            if draws or operator._schema.is_mutable or operator.is_view or kwargs.get("dtype") is not None:
                return operator(*args, **kwargs)
            widened = cast(args, torch.float32, torch.float64)
            try:
                wide = operator(*widened, **cast(kwargs, torch.float32, torch.float64))
            except RuntimeError:  # it has no fp64 form
                return operator(*args, **kwargs)
            for argument, own, made in zip(operator._schema.arguments, args, widened, strict=False):
                if argument.name in KEPT and own is not made and own is not None:
                    own.copy_(made)
            return cast(wide, torch.float64, torch.float32)

    return Wide()
