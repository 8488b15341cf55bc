"""What a draft computes bit for bit as eager does, because eager rounds what is made of it.

On a GPU torch lets cuDNN round the operands of a float32 convolution to TF32 (torch.backends.cudnn.allow_tf32 is True). Before such an operator
one unit of float32's last place decides for about one operand in 4,000 to which side it is rounded, and then it is 2^-11 of itself away: an order of
sums of our own, as exact as eager's, is off from eager's result by 1e-4 to 1e-3 behind a normalisation, where KernelBench allows 1e-4, and further
normalisations by the batch amplify that (measured on an H100, docs/results.md: MobileNetV2 0.01, EfficientNetB2 0.8). The same operators in the same
library give the same bits. So what is summed before a convolution stays with the library where the network normalises; all that is computed element by
element, and what no convolution reads any more, is ours. A mean that a convolution reads, as a channel's weight is made of, stays with it in any network:
RCAN's group was off by 2.5e-4 (H200), since one unit of it moves a whole channel.

Element by element, too, eager's kernels round where one kernel of ours would not (ATen's CUDA sources): each operator rounds its product before another
adds to it, where nvcc makes one multiply-add of both; a division by a number is a product with its reciprocal; SiLU is a division by 1 + exp(-x); rsqrt
is the device's. What a convolution reads is computed in that way (`is_rounded`). GhostNet's block, which divides by six in front of one, was off by 6e-4.

On any device one unit may decide how many elements a mask holds (`nodes_that_decide`): shares that are made to sum to a whole number and are compared
with it, as Paraformer's integrate and fire has them.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import fx

Numerics = Literal["eager", "fp32"]
CONVOLUTIONS = tuple(f"aten.conv{form}{rank}d." for rank in (1, 2, 3) for form in ("", "_transpose"))
SAFE = ("lower_pointwise", "lower_views")
"""Whose operators have one result: each of their elements takes no sum."""
RANKS = ("aten.topk", "aten.sort", "aten.argsort", "aten.arg")
SELECTING = (
    "where",
    "relu",
    "clamp",
    "maximum",
    "minimum",
    "neg",
    "abs",
    "masked_fill",
    "clone",
    "full",
    "zeros",
    "ones",
    "copy",
    "_to_copy",
    "scatter",
)
MEANS = ("aten.adaptive_avg_pool", "aten.mean")
EXTREMES = ("aten.max", "aten.min", "aten.amax", "aten.amin", "aten.arg", "aten.adaptive_max", "aten.any", "aten.all")
"""Those have one, too, in whatever order."""


def is_depthwise(node: fx.Node) -> bool:
    """Torch's own kernel, in float32 and in the order of the window's taps, as ours."""
    arguments = list(node.args)
    groups = arguments[6] if len(arguments) > 6 and "transpose" not in str(node.target) else 1
    return groups != 1 and groups == arguments[0].meta["val"].shape[1]


def _rounds(node: fx.Node) -> bool:
    """Whether eager may round its operands to TF32."""
    if node.op != "call_function" or not str(node.target).startswith(CONVOLUTIONS):
        return False
    return node.meta["val"].dtype == torch.float32 and not is_depthwise(node)


def read_by_convolutions(graph: fx.Graph) -> set[fx.Node]:
    """Calls whose values a convolution that rounds reads, at once or later."""
    read: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "call_function" and any(user in read or _rounds(user) for user in node.users):
            read.add(node)
    return read


def exact_nodes(graph: fx.Graph) -> set[fx.Node]:
    """Calls of which a convolution reads what a normalisation has to do with (before it, behind it or being it), and means that it reads."""
    nodes = [node for node in graph.nodes if node.op == "call_function"]
    read = read_by_convolutions(graph)
    behind: set[fx.Node] = set()
    """A normalisation comes later."""
    for node in reversed(nodes):
        for user in node.users:
            if user in behind or _normalises(user):
                behind.add(node)
    before: set[fx.Node] = set()
    """A normalisation came before, or is this one."""
    for node in nodes:
        if _normalises(node) or any(source in before for source in node.all_input_nodes):
            before.add(node)
    return {
        node
        for node in nodes
        if node in read and (node in behind or node in before or str(node.target).startswith(MEANS))
    }


def nodes_that_decide(graph: fx.Graph) -> set[fx.Node]:
    """Calls before an operator that asks their values how many elements there are. What is ranked is none: places are whole numbers."""
    read: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        asks = any(user in read or _counts(user) for user in node.users)
        if asks and node.op == "call_function" and not str(node.target).startswith(RANKS):
            read.add(node)
    return read


def _counts(node: fx.Node) -> bool:
    """Whether how much it returns, or what it says of how much there is, depends on its operands."""
    return bool(node.meta.get("unbacked_bindings")) and isinstance(node.meta.get("val"), (torch.Tensor, torch.SymInt))


def _normalises(node: fx.Node) -> bool:
    return "norm" in str(node.target).split(".")[1] if str(node.target).startswith("aten.") else False


def is_safe(name: str, lowering, meta: object, device: str) -> bool:
    """Whether a kernel of ours gives the same bits as eager's operator: on a CPU, whose functions are vectorised and whose compiler joins products and
    sums, what computes no float."""
    if name.startswith(EXTREMES):
        return True
    kind = lowering.__module__.rpartition(".")[2]
    if device == "cpu" and kind == "lower_pointwise" and isinstance(meta, torch.Tensor) and meta.is_floating_point():
        return name.split(".")[1] in SELECTING
    return kind in SAFE
