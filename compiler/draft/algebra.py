"""Rewrites of the exported graph that hold for all inputs. Each rule's docstring is the algebra that makes it true.

A rule gets a node and returns the node that stands for it from now on, or None where it does not apply. What follows from a shipped
input (that a matrix is symmetric, that a value is never negative) is no rule: it would be wrong for another input.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from .complex_numbers import complex_parts
from .inserting import insert

aten = torch.ops.aten
Rule = Callable[[fx.Node], fx.Node | None]
SCALING = ("aten.mul.Tensor", "aten.div.Tensor", "aten.mul.Scalar", "aten.div.Scalar")
PANELS = 4
"""Row panels of a triangular product. More panels leave out more products and keep fewer multiprocessors busy."""
SMALLEST_PANELS = 512


class Own:
    """An operator of the drafter's own, lowered by name as torch's are."""

    def __init__(self, name: str, like: Callable) -> None:
        self.name = name
        self.__name__ = f"draft_{name}"  # nodes are named after it, and inputs after their arguments
        self.__module__ = __name__
        self.like = like
        """The same in torch's operators: its shape and type."""

    def __str__(self) -> str:
        return f"draft.{self.name}"

    __repr__ = __str__

    def __call__(self, *arguments):
        return self.like(*arguments)


cumsum_backwards = Own("cumsum_backwards", lambda x, dim: aten.cumsum.default(x, dim))
cumsum_exclusive = Own("cumsum_exclusive", lambda x, dim: aten.cumsum.default(x, dim))
triangular_product = Own("triangular_product", lambda a, b, upper: aten.mm.default(a, b))
transposed_convolution_sums = Own(
    "transposed_convolution_sums", lambda x, parts: x.new_empty((x.shape[0], len(parts) * x.shape[1]))
)


def rewritten(graph: fx.Graph, rules: tuple[Rule, ...]) -> list[tuple[str, str]]:
    """Applies every rule wherever it holds; those that did, each with the first line of its algebra."""
    applied = []
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        for rule in rules:
            new = rule(node)
            if new is not None:
                node.replace_all_uses_with(new)
                applied.append((rule.__name__, (rule.__doc__ or "").splitlines()[0]))
                break
    graph.eliminate_dead_code()
    return applied


def _is(node, *names: str) -> bool:
    return isinstance(node, fx.Node) and str(node.target) in names


def _once(node: fx.Node) -> bool:
    return len(node.users) == 1


def _rank(node: fx.Node) -> int:
    return node.meta["val"].dim()


# ---------------------------------------------------------------------------------------------- products


def diagonal_product(node: fx.Node) -> fx.Node | None:
    """(diag(a) b)[i][j] = sum_k diag(a)[i][k] b[k][j] = a[i] b[i][j]; (b diag(a))[i][j] = b[i][j] a[j].

    Where another element of that column (row) of b is not finite its product with zero is NaN, and so is the sum.
    """
    if not _is(node, "aten.matmul.default", "aten.mm.default"):
        return None
    left, right = node.args
    for matrix, other, axis in ((left, right, 1), (right, left, 0)):
        diagonal = _is(matrix, "aten.diag.default", "aten.diag_embed.default") and matrix.args[1:] in ((), (0,))
        if not diagonal or _rank(matrix.args[0]) != 1 or _rank(other) != 2 or matrix.kwargs:
            continue
        product = insert(node, aten.mul.Tensor, other, insert(node, aten.unsqueeze.default, matrix.args[0], axis))
        if not other.meta["val"].dtype.is_floating_point:
            return product
        lost = insert(node, aten.ne.Scalar, insert(node, aten.mul.Scalar, other, 0), 0)
        all_lost = insert(node, aten.sum.dim_IntList, lost, [1 - axis], True)
        return insert(node, aten.where.ScalarSelf, insert(node, aten.gt.Tensor, all_lost, lost), float("nan"), product)
    return None


def triangle_of_product(node: fx.Node) -> fx.Node | None:
    """triu(a b) has zeros below the diagonal whatever a and b are, so the products below it need not be computed.

    Row panel r of the upper triangle is a[r] b[:, first column of r:]; of the lower one a[r] b[:, :last column of r].
    """
    if not _is(node, "aten.triu.default", "aten.tril.default") or node.args[1:] not in ((), (0,)):
        return None
    product = node.args[0]
    if not _is(product, "aten.matmul.default", "aten.mm.default") or not _once(product):
        return None
    sizes = [size for size in node.meta["val"].shape if isinstance(size, int)]
    if any(_rank(side) != 2 for side in product.args) or min(sizes, default=SMALLEST_PANELS) < SMALLEST_PANELS:
        return None
    upper = _is(node, "aten.triu.default")
    partial = insert(node, triangular_product, *product.args, upper)
    return insert(node, aten.triu.default if upper else aten.tril.default, partial)


def summed_linear(node: fx.Node) -> fx.Node | None:
    """sum_n (x W^T + b)[n] = x (sum_n W[n]) + sum_n b[n], and a factor moves out of a sum: one product with a vector.

    The same for a mean, which divides by the number of outputs.
    """
    if not _is(node, "aten.sum.dim_IntList", "aten.mean.dim") or node.kwargs:
        return None
    summed, dims, keepdim = (*node.args, False)[:3]
    if [dim % _rank(summed) for dim in dims] != [_rank(summed) - 1]:
        return None
    factors, product = _unscaled(summed)
    parts = _linear(product)
    if parts is None or not _once(product):
        return None
    x, weight, axis, bias = parts
    total = insert(node, aten.matmul.default, x, insert(node, aten.sum.dim_IntList, weight, [axis]))
    if bias is not None:
        total = insert(node, aten.add.Tensor, total, insert(node, aten.sum.default, bias))
    for operator, factor in reversed(factors):
        total = insert(node, operator, total, factor)
    if _is(node, "aten.mean.dim"):
        total = insert(node, aten.div.Tensor, total, summed.meta["val"].shape[-1])
    return insert(node, aten.unsqueeze.default, total, -1) if keepdim else total


def _unscaled(node: fx.Node) -> tuple[list[tuple[Any, float]], fx.Node]:
    """(calls that scale it by numbers, the last one first; what they scale)."""
    factors = []
    while _is(node, *SCALING) and _once(node) and isinstance(node.args[1], (int, float)):
        factors.append((node.target, node.args[1]))
        node = node.args[0]
    return factors, node


def _linear(node) -> tuple[fx.Node, fx.Node, int, fx.Node | None] | None:
    """(x, W, the axis of W that counts outputs, bias) of a product with a matrix that the module keeps."""
    if _is(node, "aten.linear.default"):
        x, weight, bias = (*node.args, None)[:3]
        return (x, weight, 0, bias) if weight.op == "placeholder" else None
    if not _is(node, "aten.matmul.default", "aten.mm.default") or _rank(node.args[1]) != 2:
        return None
    x, weight = node.args
    if weight.op == "placeholder" and weight.name.startswith(("p_", "b_")):
        return x, weight, 1, None
    turned = _is(weight, "aten.permute.default", "aten.t.default", "aten.numpy_T.default", "aten.transpose.int")
    if turned and weight.args[0].op == "placeholder" and weight.args[0].name.startswith(("p_", "b_")):
        return x, weight.args[0], 0, None
    return None


def is_size(size: int | torch.SymInt, count: int) -> bool:
    """Whether a size is that number in every call."""
    return (size if isinstance(size, int) else size.node.expr) == count


def slice_of(node: fx.Node) -> tuple[fx.Node | None, int, int]:
    """(x, axis, place) of x's slice at that place."""
    if not _is(node, "aten.select.int") or isinstance(node.args[2], fx.Node):  # a place that depends on values
        return None, 0, 0
    x, axis, place = node.args
    while _is(x, "aten.slice.Tensor") and x.meta["val"].shape == x.args[0].meta["val"].shape and len(x.args) < 5:
        x = x.args[0]  # all of it
    size = x.meta["val"].shape[axis]
    return x, axis, place + int(size) if place < 0 and is_size(size, int(size)) else place


def stacked_rows(node: fx.Node) -> fx.Node | None:
    """stack_t(x[t] W^T + b) = x W^T + b: rows of a product do not depend on one another, so those of all steps are one product."""
    if not _is(node, "aten.stack.default") or node.kwargs:
        return None
    parts, axis = (*node.args, 0)[:2]
    axis %= _rank(node)
    first = parts[0]
    if not _is(first, "aten.linear.default") or axis == _rank(node) - 1:
        return None
    whole, _, _ = slice_of(first.args[0])
    if whole is None:
        return None
    for place, part in enumerate(parts):
        if not _is(part, "aten.linear.default") or part.args[1:] != first.args[1:] or not _once(part):
            return None
        if slice_of(part.args[0]) != (whole, axis, place):
            return None
    if not is_size(whole.meta["val"].shape[axis], len(parts)):
        return None
    return insert(node, aten.linear.default, whole, *first.args[1:])


def letters_of(equation: str) -> tuple[list[str], str] | None:
    """The letters of an einsum's operands and of its result; None where one comes twice in either, or some have no names."""
    inputs, arrow, out = equation.replace(" ", "").partition("->")
    names = inputs.split(",")
    plain = arrow and "." not in equation and all(len(set(name)) == len(name) for name in [*names, out])
    return (names, out) if plain else None


def slice_of_einsum(node: fx.Node) -> fx.Node | None:
    """einsum(...)[i] along an axis that is not summed is the einsum of its operands' slices at i."""
    whole, axis, place = slice_of(node)
    if (
        whole is None
        or not _is(whole, "aten.einsum.default")
        or whole.kwargs
        or not _once(whole)
        or not _once(next(iter(whole.users)))
    ):
        return None
    letters = letters_of(whole.args[0])
    if letters is None:
        return None
    names, out = letters
    letter, slices = out[axis], []
    for name, operand in zip(names, whole.args[1], strict=True):
        if letter in name:
            if is_size(operand.meta["val"].shape[name.index(letter)], 1):
                return None  # of all its slices that one is read
            operand = insert(node, aten.select.int, operand, name.index(letter), place)
        slices.append(operand)
    return insert(node, aten.einsum.default, f"{','.join(names)}->{out}".replace(letter, ""), slices)


# ---------------------------------------------------------------------------------------------- scans


def backwards_scan(node: fx.Node) -> fx.Node | None:
    """flip(cumsum(flip(x)))[i] = sum of x[j] over j >= i: a scan that starts at the other end."""
    if not _is(node, "aten.flip.default") or not _is(node.args[0], "aten.cumsum.default") or not _once(node.args[0]):
        return None
    scan, rank = node.args[0], _rank(node)
    inner, axes = scan.args[0], [axis % rank for axis in node.args[1]]
    if not _is(inner, "aten.flip.default") or [axis % rank for axis in inner.args[1]] != axes or scan.kwargs:
        return None
    return insert(node, cumsum_backwards, inner.args[0], axes[0]) if axes == [scan.args[1] % rank] else None


def exclusive_scan(node: fx.Node) -> fx.Node | None:
    """A zero in front of the scan of all but the last element: each element's sum of those before it."""
    if not _is(node, "aten.cat.default") or len(node.args[0]) != 2:
        return None
    first, scan = node.args[0]
    rank = _rank(node)
    axis = (node.args[1] if len(node.args) > 1 else 0) % rank
    if not _is(scan, "aten.cumsum.default") or scan.args[1] % rank != axis or not _is_zeros(first, axis):
        return None
    kept = scan.args[0]
    if not _is(kept, "aten.slice.Tensor") or len(kept.args) != 4 or scan.kwargs:
        return None
    whole, along, start, end = kept.args
    size = whole.meta["val"].shape[axis]
    if along % rank != axis or start not in (0, None) or end not in (-1, size - 1):
        return None
    return insert(node, cumsum_exclusive, whole, axis)


def _is_zeros(node: fx.Node, axis: int) -> bool:
    zeros = _is(node, "aten.zeros_like.default", "aten.zeros.default", "aten.new_zeros.default")
    filled = _is(node, "aten.full_like.default", "aten.full.default") and node.args[1] == 0
    return (zeros or filled) and node.meta["val"].shape[axis] == 1


# ---------------------------------------------------------------------------------------------- convolutions


def mean_of_transposed_convolution(node: fx.Node) -> fx.Node | None:
    """The sum over all places of a transposed convolution needs no convolution.

    out[o] = sum over i, k with o = i*stride - padding + k*dilation of x[i] w[k], so sum_o out[o] = sum_k w[k] S[k], where S[k] sums x over
    those i whose o lies in the output: a range of i for each k, along each axis. Ks with the same range share one sum, and
    their weights are added beforehand. The bias adds itself once a place.
    """
    if not _is(node, "aten.mean.dim", "aten.sum.dim_IntList") or node.kwargs:
        return None
    summed, dims, keepdim = (*node.args, False)[:3]
    rank = _rank(summed) - 2
    if sorted(d % _rank(summed) for d in dims) != list(range(2, rank + 2)):
        return None
    factors, product = _unscaled(summed)
    name = f"aten.conv_transpose{rank}d." + ("default" if rank == 1 else "input")
    if not _is(product, name) or not _once(product) or _rank(product.args[0]) != rank + 2:
        return None
    defaults: list[Any] = [None, [1] * rank, [0] * rank, [0] * rank, 1, [1] * rank]
    given: list[Any] = list(product.args)
    x, weight, *rest = given
    bias, stride, padding, _, groups, dilation = [*rest, *defaults[len(rest) :]]
    stride, padding, dilation = (
        [n] * rank if isinstance(n, int) else (list(n) * rank)[:rank] for n in (stride, padding, dilation)
    )
    places = list(product.meta["val"].shape[2:])
    sizes = list(x.meta["val"].shape[2:])
    if groups != 1 or not all(isinstance(n, int) for n in [*places, *sizes]):
        return None
    parts = _same_ranges(list(weight.meta["val"].shape[2:]), sizes, places, stride, padding, dilation)
    sums = insert(node, transposed_convolution_sums, x, tuple(ranges for ranges, _ in parts))
    weights = [
        insert(node, aten.sum.dim_IntList, _window(node, weight, ks), list(range(2, rank + 2))) for _, ks in parts
    ]
    total = insert(node, aten.mm.default, sums, insert(node, aten.cat.default, weights, 0))
    count = 1
    for size in places:
        count *= size
    if bias is not None:
        total = insert(node, aten.add.Tensor, total, insert(node, aten.mul.Tensor, bias, float(count)))
    for operator, factor in reversed(factors):
        total = insert(node, operator, total, factor)
    if _is(node, "aten.mean.dim"):
        total = insert(node, aten.div.Tensor, total, float(count))
    for _ in range(rank if keepdim else 0):
        total = insert(node, aten.unsqueeze.default, total, -1)
    return total


def _same_ranges(window, sizes, places, stride, padding, dilation):
    """[(range of i along each axis, range of k along each axis)]: neighbouring ks with one range of i are one."""
    axes = []
    for k_count, size, place, s, p, d in zip(window, sizes, places, stride, padding, dilation, strict=True):
        found: list[tuple[tuple[int, int], tuple[int, int]]] = []
        for k in range(k_count):
            first = max(0, -((k * d - p) // s))
            last = min(size - 1, (place - 1 + p - k * d) // s)
            if found and found[-1][0] == (first, last + 1):
                found[-1] = (found[-1][0], (found[-1][1][0], k + 1))
            else:
                found.append(((first, last + 1), (k, k + 1)))
        axes.append(found)
    parts: list[tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]] = [((), ())]
    for axis in axes:
        parts = [((*ranges, r), (*ks, k)) for ranges, ks in parts for r, k in axis]
    return parts


def _window(node: fx.Node, weight: fx.Node, ks) -> fx.Node:
    for axis, (first, end) in enumerate(ks):
        if (first, end) != (0, weight.meta["val"].shape[axis + 2]):
            weight = insert(node, aten.slice.Tensor, weight, axis + 2, first, end)
    return weight


RULES: tuple[Rule, ...] = (
    diagonal_product,
    triangle_of_product,
    summed_linear,
    stacked_rows,
    slice_of_einsum,
    backwards_scan,
    exclusive_scan,
    mean_of_transposed_convolution,
    complex_parts,
)


# ---------------------------------------------------------------------------------------------- what only weights decide


def prepared(graph: fx.Graph, held: dict[fx.Node, str], changing: set[fx.Node]) -> dict[fx.Node, list[str]]:
    """Calls of torch that read nothing but what the module keeps, as lines for its constructor; by the node they replace.

    Weights do not depend on the input, so what is computed of them alone is the same in every call. What a forward pass changes
    (`changing`: running statistics) is left out, and so is what only views.
    """
    texts = {node: text for node, text in held.items() if node not in changing}
    found: dict[fx.Node, list[str]] = {}
    for node in graph.nodes:
        if (
            node.op != "call_function"
            or not str(node.target).startswith("aten.")
            or not isinstance(node.meta.get("val"), torch.Tensor)
        ):
            continue
        reads = node.all_input_nodes
        if (
            not reads
            or not all(read in texts for read in reads)
            or any(word in node.name for word in ("rand", "dropout", "bern"))
        ):
            continue
        texts[node] = _text(node, texts)
    for node in texts:
        outside = [user for user in node.users if user not in texts]
        if node not in held and outside and not _only_views(node):
            found[node] = [texts[node]]
    return found


def _only_views(node: fx.Node) -> bool:
    views = (
        "permute",
        "view",
        "unsqueeze",
        "slice",
        "select",
        "expand",
        "transpose",
        "t",
        "squeeze",
        "reshape",
        "alias",
        "detach",
    )
    name = str(node.target).split(".")[1]
    return name in views and (node.args[0].op == "placeholder" or _only_views(node.args[0]))


def _text(node: fx.Node, texts: dict[fx.Node, str]) -> str:
    def one(argument) -> str:
        if isinstance(argument, fx.Node):
            return texts[argument]
        if isinstance(argument, (list, tuple)):
            return f"[{', '.join(map(one, argument))}]"
        if isinstance(argument, float) and argument in (float("inf"), float("-inf")):
            return f'float("{argument}")'
        return "None" if isinstance(argument, torch.device) else repr(argument)

    parts = [one(a) for a in node.args] + [
        f"{k}={one(v)}" for k, v in node.kwargs.items() if k not in ("device", "layout")
    ]
    return f"torch.ops.{node.target}({', '.join(parts)})"
