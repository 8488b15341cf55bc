"""Rules of algebra.py for complex numbers: each is two floats, as view_as_real has them, so that their arithmetic is that of kernels.

Transforms, products of matrices and whatever else has no rule here stay calls of torch, which get them as complex numbers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from .inserting import insert

aten = torch.ops.aten
PARTS = (torch.complex64, torch.complex128)
LINEAR = {
    f"aten.{name}"
    for name in (
        "view.default", "_unsafe_view.default", "reshape.default", "unsqueeze.default", "squeeze.dim", "squeeze.dims", "permute.default",
        "transpose.int", "slice.Tensor", "select.int", "expand.default", "clone.default", "alias.default", "sum.default", "sum.dim_IntList",
        "mean.dim", "neg.default",
    )
}  # fmt: skip
"""Operators that do to a complex tensor what they do to its two parts, with the same other arguments."""


def complex_parts(node: fx.Node) -> fx.Node | None:
    """(a + bi)(c + di) = (ac - bd) + (ad + bc)i, and so on: what is made of complex numbers is two formulas of their parts."""
    name, value = str(node.target), node.meta.get("val")
    if name in ("aten.view_as_real.default", "aten.real.default", "aten.imag.default", "aten.abs.default"):
        return _real_of(node, name)
    if not isinstance(value, torch.Tensor) or value.dtype not in PARTS:
        return None
    pair = _pair_of(node, name)
    if pair is None or any(part.meta["val"].shape != value.shape for part in pair):
        return None
    return insert(node, aten.view_as_complex.default, insert(node, aten.stack.default, list(pair), -1))


def _is_complex(argument: Any) -> bool:
    if isinstance(argument, fx.Node):
        return isinstance(argument.meta.get("val"), torch.Tensor) and argument.meta["val"].dtype in PARTS
    return isinstance(argument, complex)


def _made_here(argument: Any) -> bool:
    return isinstance(argument, fx.Node) and argument.target is aten.view_as_complex.default


def _split(node: fx.Node, argument: Any) -> tuple[Any, Any]:
    """The real and the imaginary part, before `node`; of a real number the second is None."""
    if not _is_complex(argument):
        return argument, None
    if isinstance(argument, complex):
        return argument.real, argument.imag
    pairs = argument.args[0] if _made_here(argument) else insert(node, aten.view_as_real.default, argument)
    if pairs.target is aten.stack.default:
        return tuple(pairs.args[0])
    return tuple(insert(node, aten.select.int, pairs, -1, at) for at in (0, 1))


def _real_of(node: fx.Node, name: str) -> fx.Node | None:
    (of,) = node.args
    if not _made_here(of):
        return None
    if name == "aten.view_as_real.default":
        return of.args[0]
    real, imaginary = _split(node, of)
    if name == "aten.abs.default":
        larger, smaller = (
            insert(node, pick, *(insert(node, aten.abs.default, one) for one in (real, imaginary)))
            for pick in (aten.maximum.default, aten.minimum.default)
        )
        # Neither square overflows: larger * sqrt(1 + (smaller / larger)^2), 0 for 0.
        quotient = insert(
            node,
            aten.div.Tensor,
            smaller,
            insert(node, aten.clamp_min.default, larger, torch.finfo(larger.meta["val"].dtype).tiny),
        )
        root = insert(
            node,
            aten.sqrt.default,
            insert(node, aten.add.Scalar, insert(node, aten.mul.Tensor, quotient, quotient), 1.0),
        )
        return insert(node, aten.mul.Tensor, larger, root)
    return real if name == "aten.real.default" else imaginary


PLACED = ("aten.where.self", "aten.slice_scatter.default", "aten.select_scatter.default", "aten.copy.default")
"""Operators that put one complex tensor into another, as they do with the two parts."""


def _operands(node: fx.Node) -> list[Any]:
    return list(node.args[1:3] if "where" in str(node.target) else node.args[:2])


def _filled(node: fx.Node, number: float) -> fx.Node:
    """A part of a complex tensor that is filled with a number."""
    value = node.meta["val"].real
    with node.graph.inserting_before(node):
        made = node.graph.call_function(
            node.target, (node.args[0], float(number)), {**node.kwargs, "dtype": value.dtype}
        )
    made.meta["val"] = torch.empty_like(value)
    return made


def _pair_of(node: fx.Node, name: str) -> tuple[fx.Node, fx.Node] | None:
    def times(a: Any, b: Any) -> fx.Node:
        return insert(node, aten.mul.Tensor, *((a, b) if isinstance(a, fx.Node) else (b, a)))

    if name == "aten.full.default" and not isinstance(node.args[1], complex):
        return _filled(node, node.args[1]), _filled(node, 0.0)
    if node.kwargs and name != "aten.clone.default":
        return None
    if name in PLACED and all(map(_is_complex, _operands(node))):
        pairs = iter([_split(node, one) for one in _operands(node)])
        parts = [next(pairs) if _is_complex(one) else (one, one) for one in node.args]
        return tuple(insert(node, node.target, *(pair[at] for pair in parts)) for at in (0, 1))
    if (
        name == "aten.einsum.default"
        and len(node.args) == 2
        and len(node.args[1]) == 2
        and all(map(_is_complex, node.args[1]))
    ):
        (a, b), (c, d) = (_split(node, one) for one in node.args[1])
        ac, bd, ad, bc = (insert(node, node.target, node.args[0], [*two]) for two in ((a, c), (b, d), (a, d), (b, c)))
        return insert(node, aten.sub.Tensor, ac, bd), insert(node, aten.add.Tensor, ad, bc)
    first, *others = node.args
    if name == "aten.polar.default":
        return times(first, insert(node, aten.cos.default, others[0])), times(
            first, insert(node, aten.sin.default, others[0])
        )
    if name == "aten.complex.default":
        return first, others[0]
    if name in LINEAR and _made_here(first):
        operator: Any = aten.reshape.default if "view" in name else node.target
        return tuple(insert(node, operator, part, *others) for part in _split(node, first))
    if name in ("aten._conj.default", "aten.conj_physical.default"):
        real, imaginary = _split(node, first)
        return real, insert(node, aten.neg.default, imaginary)
    if name == "aten.exp.default":
        real, imaginary = _split(node, first)
        size = insert(node, aten.exp.default, real)
        return times(size, insert(node, aten.cos.default, imaginary)), times(
            size, insert(node, aten.sin.default, imaginary)
        )
    if name not in ("aten.mul.Tensor", "aten.add.Tensor", "aten.sub.Tensor", "aten.div.Tensor"):
        return None
    (a, b), (c, d) = _split(node, first), _split(node, others[0])
    if name == "aten.div.Tensor":
        return None if d is not None or b is None else tuple(insert(node, node.target, part, c) for part in (a, b))
    if name == "aten.mul.Tensor":
        if d is None:
            return times(a, c), times(b, c)
        if b is None:
            return times(a, c), times(a, d)
        return insert(node, aten.sub.Tensor, times(a, c), times(b, d)), insert(
            node, aten.add.Tensor, times(a, d), times(b, c)
        )
    if b is None or d is None:  # beside a real number the imaginary part is as it was, but for its shape
        return None
    return insert(node, node.target, a, c), insert(node, node.target, b, d)
