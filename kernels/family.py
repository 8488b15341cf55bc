"""What kind of operation a kernel is, from its spec: what is known of one kernel holds for others of its family."""

from __future__ import annotations

import re
from typing import Literal

from kernels.spec import Spec

Family = Literal[
    "elementwise",
    "row reduction",
    "matrix product",
    "attention",
    "gather and scatter",
    "scan",
    "sort and select",
    "convolution",
]
_NAMED: dict[Family, str] = {
    "convolution": r"conv\w*|depthwise|pool\w*",
    "attention": r"attn|attention|sdpa|mha|mqa|gqa|mla",
    "sort and select": r"sort\w*|argsort|topk|select\w*|unique|dedup\w*|histogram|relabel",
    "scan": r"scan\w*|cumsum|cumprod|cumulative|running|prefix|selective",
    "elementwise": r"rotary",
    "gather and scatter": r"gather\w*|scatter\w*|embedding\w*|sample\w*|neighbors?|indexed|paged",
    "matrix product": r"gemm|gemv|matmul\w*|bmm|linear|matrix|mm",
    "row reduction": r"\w*norm\w*|normalize|softmax|logsumexp|entropy|sum\w*|mean|reduce\w*|argmax|argmin|max|min|variance|"
    r"extremes|loss|quanti[sz]e\w*",
}
"""Family -> pattern of a kernel's name; the first that fits counts. A sum over gathered rows is a gather: that is where
its time goes."""
_REDUCING = re.compile(r"\b(\w*norm|softmax|reduc\w+|log-?sum-?exp|variance|rms)\b")


def family(spec: Spec) -> Family:
    """The kernel's family by its name's words, then by its shapes, then by its summary; what is none of the others is
    elementwise."""
    words = re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", spec.name).lower())
    for kind, pattern in _NAMED.items():
        named = any(re.fullmatch(pattern, word) for word in words)
        if named and (
            kind != "attention" or spec.problem or _reduced(spec)
        ):  # two halves that are merged attend to nothing
            return kind
    if any(
        value.partition(":")[0] in ("index", "padded", "offsets") for tensor in spec.inputs for value in tensor.values
    ):
        return "gather and scatter"
    if _contracted(spec):
        return "matrix product"
    return "row reduction" if _reduced(spec) or _REDUCING.search(spec.summary.lower()) else "elementwise"


def _axes(shape: tuple[str, ...]) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", " ".join(shape)))


def _reduced(spec: Spec) -> set[str]:
    """Axes that are read and not written."""
    written = set().union(*(_axes(tensor.shape) for tensor in spec.outputs))
    return set().union(*(_axes(tensor.shape) for tensor in spec.inputs)) - written


def _contracted(spec: Spec) -> bool:
    """Two inputs share an axis that is not written, and each has one of its own that is."""
    reduced = _reduced(spec)
    shapes = [_axes(tensor.shape) for tensor in spec.inputs]
    return any(
        one & other & reduced and one - other - reduced and other - one - reduced for one in shapes for other in shapes
    )
