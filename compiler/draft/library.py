"""Calls that stay torch's: matrix products, convolutions, attention, recurrent layers, randomness, and whatever else has no lowering."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from .expressions import COMPUTED, binary, cast
from .index import FloorDiv, Modulo
from .tensors import Buffer, Library, NoDraft, SizeNeeded, Value

CONVOLUTIONS = {f"aten.conv{rank}d.default": rank for rank in (1, 2, 3)}
TRANSPOSED = {f"aten.conv_transpose{rank}d.{form}": rank for rank, form in ((1, "default"), (2, "input"), (3, "input"))}
ROUNDING = ("aten.conv", "aten.lstm", "aten.gru", "aten.rnn")
"""Operators that cuDNN computes in TF32 where torch.backends.cudnn.allow_tf32 is True, as it is by default."""
IN_FLOAT32 = """\
def in_float32(call):
    allowed = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        return call()
    finally:
        torch.backends.cudnn.allow_tf32 = allowed
"""


def call(low, arguments, keywords) -> Any:
    """The node as a call of torch, its tensor arguments in memory."""
    name = str(low.node.target)
    if name == "draft.triangular_product":
        return _triangular(low, *arguments)
    if not name.startswith("aten."):
        of_sizes = getattr(low.node.target, "__module__", "") in ("_operator", "math")  # a number without open sizes
        raised = SizeNeeded if of_sizes else NoDraft
        raise raised(f"the module calls {name}, which no kernel and no captured call can stand for")
    if name in CONVOLUTIONS or name in TRANSPOSED:
        return _convolution(low, name, list(arguments))
    if (
        name == "aten.linear.default"
        and not low.is_exact
        and len(arguments) > 2
        and arguments[2] is not None
        and absorbed(low.node)
    ):
        return _with_bias(low, call_of(low, name, arguments[:2], {}), arguments[2], -1)
    if name == "aten.addmm.default" and not keywords and not low.is_exact and absorbed(low.node):
        return _with_bias(low, call_of(low, "aten.mm.default", arguments[1:], {}), arguments[0], -1)
    if name == "aten.native_dropout.default":
        return (_dropout(low, arguments), None)
    if name == "aten.scaled_dot_product_attention.default":
        return _attention(low, arguments, keywords)
    if torch.Tag.nondeterministic_seeded in low.node.target.tags and isinstance(low.meta, torch.Tensor):
        first, *rest = arguments
        if isinstance(first, Value) and first.shape == low.shape and not any(isinstance(one, Value) for one in rest):
            return _draw(low, first, lambda text: call_text(low, name, [first, *rest], keywords, text))
    return call_of(low, name, arguments, keywords)


def absorbed(node) -> bool:
    """Whether everything that reads the node is computed by kernels of our own, which then add the bias for nothing."""
    from .lowering import LOWERINGS

    views = ("view", "permute", "transpose", "unsqueeze", "squeeze", "reshape", "slice", "split", "select", "expand")
    for user in node.users:
        name = str(user.target)
        if name == "<built-in function getitem>" or (name in LOWERINGS and name.split(".")[1].startswith(views)):
            if not absorbed(user):
                return False
        elif name not in LOWERINGS or name.startswith(("aten.clone", "aten.cat", "aten.stack")):
            return False
    return bool(node.users)


def _with_bias(low, product_: Value, bias: Value, axis: int) -> Value:
    """The bias as a formula, so that whoever reads the product adds it."""
    type = COMPUTED[low.dtype]
    axis %= len(product_.shape)

    def formula(position):
        added = (
            bias.at([position[axis]]) if len(bias.shape) == 1 else bias.at(position[len(position) - len(bias.shape) :])
        )
        return binary("add", cast(product_.at(position), type), cast(added, type))

    return low.formula(formula)


def _convolution(low, name: str, arguments: list) -> Value:
    from .lower_windows import depthwise
    from .partition import SMALL_WINDOW

    rank = CONVOLUTIONS.get(name) or TRANSPOSED[name]
    ones, zeros = [1] * rank, [0] * rank
    defaults = (
        [None, None, None, ones, zeros, ones, 1] if name in CONVOLUTIONS else [None] * 3 + [ones, zeros, zeros, 1, ones]
    )
    arguments += defaults[len(arguments) :]
    a, weight, bias = arguments[:3]
    groups = arguments[6]
    if isinstance(arguments[4], str):
        return call_of(low, name, arguments, {})
    batched = len(a.shape) == len(weight.shape)
    own = not low.is_exact
    if name in CONVOLUTIONS and batched and groups != 1 and groups == a.shape[1]:
        wide = sympy.prod(weight.shape[2:]) > SMALL_WINDOW  # more taps a warp adds up, in another order
        if not own and (bias is not None or wide):
            return call_of(low, name, arguments, {})  # torch's kernel begins its sum with the bias
        return depthwise(low, a, weight, bias, arguments[3], arguments[4], arguments[5], CONVOLUTIONS[name])
    if batched and own:
        from .lower_convolutions import convolution

        transposed = name in TRANSPOSED
        dilation = arguments[7] if transposed else arguments[5]
        made = convolution(low, a, weight, bias, arguments[3], arguments[4], dilation, groups, transposed)
        if made is not None:
            return made
    if low.program.device == "cuda" and low.program.numerics == "eager":
        arguments[0] = _with_channels_last(low, a)
    if bias is None or not batched or not (low.program.device == "cuda" or absorbed(low.node)):
        return call_of(low, name, arguments, {})
    arguments[2] = None
    return _with_bias(low, call_of(low, name, arguments, {}), bias, 1)


def _with_channels_last(low, a: Value) -> Value:
    """What a convolution of images reads, in memory as eager has it: by the format cuDNN takes another algorithm, which rounds otherwise."""
    lies = low.node.args[0].meta["val"]
    if lies.dim() != 4 or lies.is_contiguous() or not lies.is_contiguous(memory_format=torch.channels_last):
        return a
    n, c, h, w = a.shape
    program = low.program
    laid = program.whole(program.realise(low.formula(lambda p: a.at([p[0], p[3], p[1], p[2]]), [n, h, w, c], a.dtype)))
    return program.strided(laid, [n, c, h, w], [laid.strides[axis] for axis in (0, 3, 1, 2)], laid.offset)


def batch_norm(low, a: Value, weight, bias, mean: Value, var: Value, momentum: float, eps: float) -> Value:
    """By the statistics of the batch, as torch.nn.BatchNorm calls it; the running ones are moved in place."""
    tensors = [a, weight, bias, mean, var]
    texts = [_text(low, value) for value in tensors]
    text = f"torch.batch_norm({', '.join(texts)}, True, {momentum!r}, {eps!r}, torch.backends.cudnn.enabled)"
    return _emitted(low, text, [value for value in tensors if value is not None], low.meta[0])


def _triangular(low, a: Value, b: Value, upper: bool) -> Value:
    """A product of which only one triangle is computed, panel by panel; the rest is left as it was in memory."""
    from .algebra import PANELS

    left, right = tensor_text(low.program, a), tensor_text(low.program, b)
    low.program.helpers["triangular_product"] = TRIANGULAR
    return _emitted(low, f"triangular_product({left}, {right}, {upper}, {PANELS})", [a, b], low.meta)


TRIANGULAR = """\
def triangular_product(a, b, upper, panels):
    \"\"\"One triangle of a @ b in row panels; what lies outside of the panels is not set.\"\"\"
    rows, columns = a.shape[0], b.shape[1]
    out = torch.empty((rows, columns), dtype=a.dtype, device=a.device)
    edges = [rows * panel // panels for panel in range(panels + 1)]
    for first, end in zip(edges[:-1], edges[1:]):
        start, stop = (min(first, columns), columns) if upper else (0, min(end, columns))
        if start < stop:
            torch.mm(a[first:end], b[:, start:stop], out=out[first:end, start:stop])
    return out
"""


def _dropout(low, arguments) -> Value:
    """Live dropout draws from torch's generator as eager does; with a share of zero it draws nothing and is the identity."""
    a, share, training = arguments
    if share == 0 or training is False:
        return a
    return _draw(low, a, lambda text: f"torch.dropout({text}, {share!r}, True)")


def _draw(low, a: Value, call: Callable[[str], str]) -> Value:
    """Draws for the elements of `a`, which go to them as they lie in memory: so ours lie there as eager's do."""
    program, axes = low.program, range(len(a.shape))
    meta = low.meta if isinstance(low.meta, torch.Tensor) else low.meta[0]
    strides = [int(stride) for stride in low.node.args[0].meta["val"].stride()]
    order = sorted(axes, key=lambda axis: -strides[axis])
    if order == [*axes]:
        return _emitted(low, call(tensor_text(program, a)), [a], meta)
    back = [order.index(axis) for axis in axes]
    shape = [a.shape[axis] for axis in order]
    laid = program.whole(program.realise(low.formula(lambda p: a.at([p[place] for place in back]), shape, a.dtype)))
    buffer = program.allocate(shape, meta.dtype, low.name)
    text = f"{call(f'{tensor_text(program, laid)}.permute({back})')}.permute({order})"
    record(low, text, [laid], [buffer], True)
    return low.formula(lambda p: program.whole(buffer).at([p[axis] for axis in order]), a.shape, meta.dtype)


def _attention(low, arguments, keywords) -> Value:
    """Attention's kernels write [batch, tokens, heads, width]; a transpose that follows is a view of that."""
    program = low.program
    plain_text = call_text(low, "aten.scaled_dot_product_attention.default", arguments, keywords)
    rank = len(low.shape)
    turned = [*range(rank - 3), rank - 2, rank - 3, rank - 1]
    follows = {str(user.target).split(".")[1] for user in low.node.users if user.op == "call_function"}
    if rank < 4 or not follows or not follows <= {"transpose", "permute"}:
        return _emitted(low, plain_text, _tensors((arguments, keywords)), low.meta)
    shape = [low.shape[axis] for axis in turned]
    buffer = program.allocate(shape, low.dtype, low.name)
    record(low, f"{plain_text}.transpose({rank - 3}, {rank - 2})", _tensors((arguments, keywords)), [buffer], True)
    whole = program.whole(buffer, origin=low.name)
    strides = [whole.strides[turned.index(axis)] for axis in range(rank)]
    return program.strided(whole, low.shape, strides, whole.offset)


def call_of(low, name: str, arguments, keywords):
    text = call_text(low, name, arguments, keywords)
    if low.program.numerics == "fp32" and low.program.device == "cuda" and name.startswith(ROUNDING):
        low.program.helpers["in_float32"] = IN_FLOAT32
        text = f"in_float32(lambda: {text})"
    reads = _tensors((arguments, keywords))
    if any(value.dtype.is_complex for value in reads) and isinstance(low.meta, torch.Tensor):
        text += ".resolve_conj()" if low.meta.is_complex() else ".resolve_neg()"
    if isinstance(low.meta, torch.Tensor):
        return _emitted(low, text, reads, low.meta)
    if not isinstance(low.meta, (tuple, list)) or not all(isinstance(m, torch.Tensor) or m is None for m in low.meta):
        raise NoDraft(f"{name} returns a {type(low.meta).__name__}, for which there is no draft")
    from .lowering import shape_of

    outs = [None if m is None else low.program.allocate(shape_of(m), m.dtype, low.node.name) for m in low.meta]
    used = {user.args[1] for user in low.node.users}
    kept = [out if place in used else None for place, out in enumerate(outs)]
    record(low, text, reads, kept, False)
    return tuple(None if out is None else low.program.whole(out, origin=low.name) for out in kept)


def bring(low, buffer: Buffer, strides, offset) -> Value:
    """A part of a tensor that the module keeps on another device, perhaps: the part alone is copied."""
    from .lowering import shape_of

    text = low.program.elsewhere[buffer]
    view = f"({_sizes(shape_of(low.meta))}), ({_sizes(strides)}), {text}.storage_offset() + {index_text(offset)}"
    return _emitted(low, f"{text}.as_strided({view}).to(device)", [], low.meta)


def _emitted(low, text: str, reads, meta) -> Value:
    from .lowering import shape_of

    buffer = low.program.allocate(shape_of(meta), meta.dtype, low.name)
    record(low, text, reads, [buffer], True)
    return low.program.whole(buffer, origin=low.name)


def record(low, text: str, reads, outs: Sequence[Buffer | None], single: bool) -> None:
    buffers = [value.buffer for value in reads]
    made = Library(low.program.next_order(), text, buffers, [*outs], low.name, single, node=low.node)
    for out in outs:
        if out is not None:
            out.written_by = made
    low.program.libraries.append(made)


DRAWN = """\
def random_state(device):
    return torch.get_rng_state() if device.type == "cpu" else torch.cuda.get_rng_state(device)


def draw_again(device, state):
    torch.set_rng_state(state) if device.type == "cpu" else torch.cuda.set_rng_state(state, device)
"""


def rewound(program) -> list[str]:
    """In front of the module's own forward, where draws came before it: it draws the same."""
    if not program.draws:
        return []
    program.helpers["random_state"] = DRAWN
    return ["    draw_again(device, state)"]


def read_number(program, value: Value, node) -> None:
    """The host waits for a number; the line behind the call names it."""
    if value.buffer is None or not value.is_whole:
        buffer = program.realise(value)
    else:
        buffer = value.buffer
    made = Library(program.next_order(), f"{{{buffer.name}}}.item()", [buffer], [], "item", node=node)
    program.libraries.append(made)


def _tensors(arguments) -> list[Value]:
    if isinstance(arguments, Value):
        return [arguments]
    if isinstance(arguments, dict):
        arguments = arguments.values()
    elif not isinstance(arguments, (list, tuple)):
        return []
    return [found for argument in arguments for found in _tensors(argument)]


def call_text(low, name: str, arguments, keywords, first: str | None = None) -> str:
    """`first`: what stands for the first argument."""
    parts = [_text(low, argument) if place or first is None else first for place, argument in enumerate(arguments)]
    parts += [f"{key}={_text(low, value, key)}" for key, value in keywords.items() if key != "layout"]
    return f"torch.ops.{name}({', '.join(parts)})"


def _text(low, argument: Any, key: str = "") -> str:
    if isinstance(argument, Value):
        return tensor_text(low.program, argument)
    if isinstance(argument, torch.device) or key == "device":
        return "device"
    if isinstance(argument, (list, tuple)):
        return f"[{', '.join(_text(low, part) for part in argument)}]"
    if isinstance(argument, sympy.Expr):
        return index_text(argument)
    if isinstance(argument, float) and argument in (float("inf"), float("-inf")):
        return f'float("{argument}")'
    if isinstance(argument, (bool, int, float, complex, str, type(None), torch.dtype, torch.memory_format)):
        return repr(argument)
    raise NoDraft(f"{low.node.target} takes a {type(argument).__name__}, which has no text in a candidate")


def tensor_text(program, value: Value) -> str:
    """The value as a tensor in Python: a buffer or a view of one; computed first if it is only a formula."""
    if value.buffer is None:
        program.realise(value)
    buffer = value.buffer
    assert buffer is not None
    if value.is_whole:
        if value.shape == buffer.shape:
            return f"{{{buffer.name}}}"
        return f"{{{buffer.name}}}.view({', '.join(map(index_text, value.shape))})"
    place = "" if value.offset == 0 else f", {{{buffer.name}}}.storage_offset() + {index_text(value.offset)}"
    return f"{{{buffer.name}}}.as_strided(({_sizes(value.shape)}), ({_sizes(value.strides)}){place})"


def _sizes(numbers) -> str:
    return "".join(index_text(number) + ", " for number in numbers)


def index_text(index) -> str:
    """An Index in Python; sizes are variables of `forward`."""
    index = sympy.sympify(index) if isinstance(index, int) else index
    if index.is_Integer or index.is_Symbol:
        return str(index)
    if index.is_Add:
        return " + ".join(index_text(part) for part in index.args).replace("+ -", "- ")
    if index.is_Mul:
        return " * ".join(f"({index_text(p)})" if p.is_Add else index_text(p) for p in index.args)
    if index.is_Pow:
        return " * ".join([index_text(index.base)] * int(index.exp))
    if isinstance(index, (FloorDiv, Modulo)):
        operator = "//" if isinstance(index, FloorDiv) else "%"
        return f"({index_text(index.args[0])}) {operator} ({index_text(index.args[1])})"
    raise NoDraft(f"the size {index} is no sum of products")
