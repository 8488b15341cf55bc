"""What kind of operation a kernel is: what is known of one kernel holds for others of its family. Here by its spec's words and shapes, for
what has no reference that could be run (compiler/families.py): a PyTorch module."""

from __future__ import annotations

import re
from typing import Literal

from kernels.spec import Spec

Family = Literal[
    "elementwise",
    "row reduction",
    "column reduction",
    "matrix product",
    "quantised product",
    "attention",
    "decode attention",
    "gather",
    "scatter",
    "histogram",
    "scan",
    "sort",
    "select",
    "state update",
    "convolution",
]
_NAMED: dict[Family, str] = {
    "convolution": r"conv\w*|depthwise|pool\w*",
    "decode attention": r"decode|mqa|paged",
    "attention": r"attn|attention|sdpa|mha|gqa|mla",
    "histogram": r"histogram|bincount",
    "sort": r"sort\w*|argsort|unique|dedup\w*|relabel",
    "select": r"topk|select\w*|argmax|argmin|gate|router|routing",
    "scan": r"scan\w*|cumsum|cumprod|cumulative|running|prefix|selective",
    "elementwise": r"rotary",
    "scatter": r"scatter\w*",
    "gather": r"gather\w*|embedding\w*|sample\w*|neighbors?|indexed",
    "quantised product": r"w8a16|w4a16|w8a8|awq|gptq|marlin",
    "matrix product": r"gemm|gemv|products?|matmul\w*|bmm|linear|matrix|mm",
    "column reduction": r"batchnorm\w*|columns?",
    "row reduction": r"\w*norm\w*|normalize|softmax|logsumexp|entropy|sum\w*|mean|reduce\w*|max|min|variance|"
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
            "attention" not in kind or spec.problem or _reduced(spec)
        ):  # two halves that are merged attend to nothing
            return kind
    if any(
        value.partition(":")[0] in ("index", "padded", "offsets") for tensor in spec.inputs for value in tensor.values
    ):
        return "gather"
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
