"""torch.autocast of a GPU, followed on a machine that has none.

A module is exported with inputs of the CPU, whose autocast casts products and convolutions as a GPU's does, but has another list of what
is computed in float32. Here it gets the GPU's (PyTorch 2.11's aten/src/ATen/autocast_mode.h, AT_FORALL_FP32 and the like).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import torch
from torch.utils import _pytree as pytree

IN_FLOAT32 = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh", "tan",
    "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm", "native_layer_norm", "group_norm",
    "frobenius_norm.dim", "nuclear_norm", "cosine_similarity", "poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d",
    "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss", "margin_ranking_loss", "multilabel_margin_loss",
    "soft_margin_loss", "triplet_margin_loss", "multi_margin_loss", "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm",
    "logsumexp", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_linear1d", "upsample_bilinear2d",
    "upsample_trilinear3d", "upsample_bicubic2d",
)  # fmt: skip
ANSWERED_IN_FLOAT32 = (
    "prod",
    "prod.dim_int",
    "softmax.int",
    "log_softmax.int",
    "cumprod",
    "cumsum",
    "sum",
    "sum.dim_IntList",
)
"""They get float32 as the type of their answer where the caller names none."""
NARROWED = ("prelu", "addmv", "addr", "mv")
"""Cast by a GPU's autocast and not by a CPU's."""


class Casts(BaseException):
    """The module casts by torch.autocast. The exporter answers exceptions of the module's, and not this one."""


@contextlib.contextmanager
def noticed() -> Iterator[None]:
    """Meanwhile whoever makes a torch.autocast that is enabled is answered by Casts."""
    init = torch.autocast.__init__

    def made(
        self: torch.autocast,
        device_type: str,
        dtype: Any = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        if enabled:
            raise Casts
        init(self, "cpu" if device_type == "meta" else device_type, dtype, enabled, cache_enabled)

    with patch.object(torch.autocast, "__init__", made):
        yield


class _OfTheCPU(torch.autocast):
    """`torch.autocast` as a problem sees it."""

    def __init__(
        self,
        device_type: str = "cuda",
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ):
        super().__init__("cpu", dtype=dtype or torch.float16, enabled=enabled, cache_enabled=cache_enabled)


class _OfCUDA(_OfTheCPU):
    """torch.cuda.amp's, whose arguments stand otherwise."""

    def __init__(self, enabled: bool = True, dtype: torch.dtype = torch.float16, cache_enabled: bool = True):
        super().__init__("cuda", dtype, enabled, cache_enabled)


@contextlib.contextmanager
def of_a_gpu() -> Iterator[None]:
    """Meanwhile the CPU's autocast is a GPU's."""
    library = torch.library.Library("aten", "IMPL")  # what it holds goes with it
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

    def cast(operator: Any, answered: bool, narrowed: bool) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(keys):
                tensors = [one for one in pytree.tree_leaves((arguments, named)) if _is_narrow(one)]
                if answered:
                    return operator(*arguments, **({"dtype": torch.float32} | named if tensors else named))
                dtype = torch.get_autocast_dtype("cpu") if narrowed else torch.float32
                arguments, named = pytree.tree_map(
                    lambda one: one.to(dtype) if _is_narrow(one) or (narrowed and _is_single(one)) else one,
                    (arguments, named),
                )
                return operator(*arguments, **named)

        return called

    for names, answered, narrowed in (
        (IN_FLOAT32, False, False),
        (ANSWERED_IN_FLOAT32, True, False),
        (NARROWED, False, True),
    ):
        for name in names:
            packet, _, overload = name.partition(".")
            operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
            with contextlib.suppress(RuntimeError):  # the CPU's list has it, too, and says the same
                library.impl(name, cast(operator, answered, narrowed), "AutocastCPU")
    try:
        with (
            patch.object(torch, "autocast", _OfTheCPU),
            patch.object(torch.amp, "autocast", _OfTheCPU),
            patch.object(torch.cuda.amp, "autocast", _OfCUDA),
        ):
            yield
    finally:
        library._destroy()


def _is_narrow(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)


def _is_single(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.float32
