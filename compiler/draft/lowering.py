"""From torch's operators to a Program: a table of one function an operator, filled by the `lower_*` files.

A lowering takes the Lowering (the program and the node's result) and the operator's arguments, tensors as Values, sizes as
Indexes or ints; it returns a Value, a tuple of them, or None where it leaves this call to torch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import sympy
import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from . import library
from .expressions import COMPUTED, Expr, cast, constant, index_value, loads_of, make
from .index import FloorDiv, Index, Ranges, divide, number, size_symbol
from .numerics import is_safe
from .tensors import NoDraft, Position, Program, SizeNeeded, Value

LOWERINGS: dict[str, Callable[..., Any]] = {}
PRODUCTS: dict[str, Callable[..., Any]] = {}
"""Lowerings of what a library may do better: each says by itself whether it wants to be one of our own kernels."""

CHECKS = ("aten._assert", "aten.sym_constrain", "<built-in function", "aten.sym_size")
"""Operators that look at sizes and types only, and that the forward's own checks stand for."""
SAME_IN_LIBRARY = ("aten._native_batch_norm_legit_functional.default",)
"""Lowerings that call the library themselves where they are to have eager's bits."""
ITEMS = ("aten._local_scalar_dense.default", "aten.item.default")
MANY = 1024
"""What a size that depends on values is taken for where it matters for speed."""
COSTLY = 48
"""Instructions an element from which on a value with several readers is computed once and kept in memory."""
MANY_LOADS = 6
"""The same in loads: reading the kept value is one."""


def lowers(*names: str, table: dict[str, Callable[..., Any]] = LOWERINGS):
    """Registers a function for operators such as `aten.add.Tensor`, each of which has one."""

    def register(function):
        for name in names:
            if name in table:
                raise ValueError(f"{name} has two lowerings")
            table[name] = function
        return function

    return register


def extend(function: Callable[..., Any], *names: str) -> None:
    """Puts a function in front of what lowers these operators now, which it gets as its first argument and may call."""
    for name in names:
        LOWERINGS[name] = functools.partial(function, LOWERINGS.get(name, _nothing))


def _nothing(*_: Any, **__: Any) -> None:
    """The lowering of an operator that has none."""


SIZES: ContextVar[dict[str, Index]] = ContextVar("SIZES", default={})  # noqa: B039 -- nobody changes it
"""What torch's open sizes are, by torch's name, where whoever lowers knows it."""


class Quotients(dict[Index, sympy.Symbol]):
    """Names of sizes' quotients; `hints` gets what each is at the sizes that were shipped."""

    def __init__(self, hints: dict[sympy.Symbol, int]) -> None:
        super().__init__()
        self.hints = hints

    def __missing__(self, quotient: Index) -> sympy.Symbol:
        symbol = self[quotient] = size_symbol(f"quotient_{len(self)}")
        self.hints[symbol] = max(1, int(quotient.subs(self.hints)))
        return symbol


QUOTIENTS: ContextVar[Quotients | None] = ContextVar("QUOTIENTS", default=None)
"""Names of sizes that are quotients of others, where those may be sizes of their own."""


def name_quotients(size: Index) -> Index:
    """The size with names in place of its quotients, where these are to have some."""
    named = QUOTIENTS.get()
    if named is None or not size.has(FloorDiv):
        return size
    return sympy.expand(size.replace(FloorDiv, lambda *args: named[FloorDiv(*args)]))


def _divided(expression: sympy.Expr) -> sympy.Expr:
    """torch's quotients of sizes as ours, which know that 8 * n is divided by 2."""
    args, name = [_divided(arg) for arg in expression.args], type(expression).__name__
    if name in ("FloorDiv", "CleanDiv"):
        return divide(sympy.expand(args[0]), args[1], Ranges())
    if name == "ToFloat":
        return args[0]
    if name in ("TruncToInt", "FloorToInt"):  # a size times a factor
        exact = args[0].xreplace({one: sympy.Rational(float(one)) for one in args[0].atoms(sympy.Float)})
        top, bottom = sympy.fraction(sympy.together(exact))
        return divide(sympy.expand(top), bottom, Ranges())
    return expression.func(*args) if args else expression


def size_of(value: Any) -> Index:
    """A size of torch's as an Index."""
    if isinstance(value, int):
        return sympy.Integer(value)
    expression, known = value.node.expr, SIZES.get()
    symbols = {symbol: known.get(symbol.name, size_symbol(symbol.name)) for symbol in expression.free_symbols}
    expression = name_quotients(sympy.expand(_divided(expression.xreplace(symbols))))
    if not expression.is_polynomial(*expression.free_symbols):
        raise SizeNeeded(
            f"a size of this module is {expression}, which is no product or sum of its leading sizes", expression
        )
    return expression


def shape_of(tensor: torch.Tensor) -> tuple[Index, ...]:
    return tuple(size_of(size) for size in tensor.shape)


class Lowering:
    """One node on its way into the program."""

    def __init__(self, program: Program, node: fx.Node, uses: int) -> None:
        self.program, self.node, self.uses = program, node, uses
        self.meta = node.meta.get("val")
        self.name = str(node.target).removeprefix("aten.").removeprefix("draft.").split(".")[0].strip("_")

    def part(self, meta: Any) -> Lowering:
        """The same for one of what the node returns."""
        part = Lowering(self.program, self.node, self.uses)
        part.meta = meta
        return part

    @property
    def is_exact(self) -> bool:
        """Whether it is to have eager's bits."""
        return self.node in self.program.exact

    @property
    def is_rounded(self) -> bool:
        """Whether its elements are computed as eager's CUDA kernels do."""
        return self.node in self.program.rounded

    @property
    def shape(self) -> tuple[Index, ...]:
        return shape_of(self.meta)

    @property
    def dtype(self) -> torch.dtype:
        return self.meta.dtype

    def formula(self, function: Callable[[Position], Expr], shape=None, dtype: torch.dtype | None = None) -> Value:
        shape = self.shape if shape is None else shape
        return self.program.formula(shape, dtype or self.dtype, function, self.name)

    def as_value(self, thing: Any, type: str) -> Callable[[Position, tuple[Index, ...]], Expr]:
        """A reader of a tensor or number at a position of a shape that it broadcasts to, in a type."""
        if isinstance(thing, Value):
            return lambda position, shape: cast(thing.at(broadcast(thing, position)), type)
        if isinstance(thing, (sympy.Expr, torch.SymInt)):
            size = thing if isinstance(thing, sympy.Expr) else size_of(thing)
            return lambda position, shape: index_value(size, type)
        return lambda position, shape: constant(thing, type)

    def settle(self, value: Value, reads: int = 2) -> Value:
        """Keeps a value in memory if computing it `reads` times costs more than a store and the loads."""
        if value.buffer is None and self.program.settles:
            expr = self.probe(value)
            if expr.cost * (reads - 1) > COSTLY or len(loads_of([expr])) * (reads - 1) > MANY_LOADS:
                self.program.realise(value)
        return value

    def probe(self, value: Value) -> Expr:
        """What an element of the value takes, at a position that no kernel uses."""
        return value.at(self.program.ranges.probe(value.shape, "probe"))


def broadcast(value: Value, position: Position) -> list[Index]:
    """The position in `value` that a position of the shape it broadcasts to reads."""
    own = list(position)[len(position) - len(value.shape) :]
    return [sympy.Integer(0) if size == 1 else place for size, place in zip(value.shape, own, strict=True)]


def axes_of(axes: Any, rank: int) -> list[int]:
    """Axes as non-negative numbers; all of them where none is named."""
    if axes is None or (isinstance(axes, (list, tuple)) and not axes):
        return list(range(rank))
    chosen = [axes] if isinstance(axes, int) else list(axes)
    return sorted({axis % rank for axis in chosen}) if rank else []


def keep_dims(program: Program, value: Value, axes: list[int], rank: int, keepdim: bool) -> Value:
    """The result of a fold with its folded axes back as ones, where asked for."""
    if not keepdim:
        return value
    sizes = iter(value.shape)
    return program.reshape(value, [1 if axis in axes else next(sizes) for axis in range(rank)])


def lower(program: Program, graph: fx.Graph, values: dict[fx.Node, Any]) -> None:
    """Lowers every call of the graph; `values` holds the placeholders' Values and gets the others'."""
    for node in graph.nodes:
        if node.op != "call_function" or node in values:
            continue
        name, meta = str(node.target), node.meta.get("val")
        if name.startswith(CHECKS) and not node.users:
            continue
        if name in ITEMS:
            _item(program, node, values)
            continue
        if isinstance(meta, (torch.SymInt, int, torch.SymBool, bool)):
            continue
        if isinstance(meta, torch.SymFloat) and (found := _number(program, node, values)) is not None:
            values[node] = found
            continue
        arguments = fx.map_arg(node.args, lambda n: _argument(n, values))
        keywords = fx.map_arg(node.kwargs, lambda n: _argument(n, values))
        if name == "<built-in function getitem>":
            values[node] = arguments[0][arguments[1]]
            continue
        lowering = Lowering(program, node, len(node.users))
        program.operator = lowering.name
        values[node] = result = _lowered(lowering, name, arguments, keywords)
        _name_sizes(program, node)
        if name in SHAPED_BY_VALUES and isinstance(meta, torch.Tensor) and not has_hidden_sizes(meta):
            _check_shape(program, node, meta)
        if isinstance(result, Value) and lowering.uses > 1:
            lowering.settle(result, reads=lowering.uses)


def _check_place(program: Program, node: fx.Node) -> None:
    """A place that was read of a tensor lies within the axis; where it does not, the module says what is wrong, or counts from the end."""
    of, axis, at = node.args
    place, size = size_of(at.meta["val"]), shape_of(of.meta["val"])[axis]
    makers = [call for call in program.libraries if place.free_symbols & set(call.names)]
    text = f"0 <= {library.index_text(place)} < {library.index_text(size)}"
    makers[-1].after += [f"if not ({text}):", f"    return self.as_written({program.call})"]


SHAPED_BY_VALUES = ("aten.index.Tensor", "aten.nonzero.default", "aten.masked_select.default", "aten.unique_consecutive.default", "aten._unique2.default")  # fmt: skip


def _check_shape(program: Program, node: fx.Node, meta: torch.Tensor) -> None:
    """What depends on values was found to be a certain size, for what comes later takes no other."""
    call = program.libraries[-1] if program.libraries else None
    choices = [one for one in node.args[1] if one is not None] if len(node.args) > 1 else []
    by_place = choices and not any(one.meta["val"].dtype in (torch.bool, torch.uint8) for one in choices)
    if by_place or call is None or call.node is not node or call.outs[0] is None:
        return
    shape = ", ".join(library.index_text(size) for size in shape_of(meta))
    call.after += [f"if {{{call.outs[0].name}}}.shape != ({shape},):", f"    return self.as_written({program.call})"]


def _lowered(low: Lowering, name: str, arguments, keywords) -> Any:
    if any(dtype not in COMPUTED or dtype in low.program.foreign for dtype in _dtypes((arguments, keywords, low.meta))):
        return library.call_of(low, name, arguments, keywords)  # complex numbers, bytes of eight bits
    found = LOWERINGS.get(name)
    if (
        low.is_exact
        and found
        and not is_safe(name, found, low.meta, low.program.device)
        and name not in SAME_IN_LIBRARY
    ):
        found = None
    result = found(low, *arguments, **keywords) if found else None
    if result is None and has_hidden_sizes(low.meta):  # of which our products would have to know whether they are zero
        return library.call_of(low, name, arguments, keywords)
    if result is None:
        own = None if low.is_exact else PRODUCTS.get(name)
        result = own(low, *arguments, **keywords) if own else None
    return library.call(low, arguments, keywords) if result is None else result


def _dtypes(tree: Any) -> set[torch.dtype]:
    """Of all tensors in it."""
    if isinstance(tree, (Value, torch.Tensor)):
        return {tree.dtype}
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, (list, tuple)) else ()
    return set().union(*map(_dtypes, parts))


def has_hidden_sizes(meta: Any) -> bool:
    """Whether how much it is depends on values."""
    parts = meta if isinstance(meta, (list, tuple)) else [meta]
    return any(isinstance(part, torch.Tensor) and bool(free_unbacked_symbols(part)) for part in parts)


def _item(program: Program, node: fx.Node, values: dict[fx.Node, Any]) -> None:
    """A number that the host reads of a tensor: an integer may be a size, another number stays where it is, in a tensor without axes."""
    (of,) = node.args
    if not isinstance(values.get(of), Value):
        raise NoDraft(f"the module calls {node.target} on what is no tensor")
    bound = {symbol.name for symbol in node.meta.get("unbacked_bindings") or {}}
    asked = any(bound & supposed.names for supposed in program.supposed)
    is_size = isinstance(node.meta.get("val"), torch.SymInt)
    if not is_size:
        values[node] = program.reshape(values[of], ())
    if is_size or asked:
        library.read_number(program, values[of], node)
        _name_sizes(program, node)


def _name_sizes(program: Program, node: fx.Node) -> None:
    """Sizes that depend on values have names from the call on that makes what they are sizes of."""
    bindings = node.meta.get("unbacked_bindings") or {}
    if not any(size_symbol(symbol.name) not in program.chosen for symbol in bindings):
        return
    if str(node.target) == "aten.select.int":  # what depends on values is where it begins
        _check_place(program, node)
        return
    call = program.libraries[-1] if program.libraries else None
    if call is None or call.node is not node:
        raise NoDraft(f"the module calls {node.target}, and how much that returns depends on values")
    for symbol, path in bindings.items():
        text = call.text_of(path)
        if text is None:
            raise NoDraft(f"the module calls {node.target}, and how that lies in memory depends on values")
        program.hints[size_symbol(symbol.name)] = MANY
        program.hidden.add(size_symbol(symbol.name))
        call.names.append(size_symbol(symbol.name))
        call.after.append(f"{symbol}: int = {text}")  # no statement of a native forward (harness/problems/host.py)
    known = {str(symbol) for symbol in program.hidden}
    ready = [supposed for supposed in program.supposed if supposed.names <= known]
    for supposed in ready:
        program.supposed.remove(supposed)
        call.after += [
            f"if not ({supposed.text}):",
            *library.rewound(program),
            f"    return self.as_written({supposed.call})",
        ]


NUMBERS = {"pow": "pow", "mul": "mul", "truediv": "div", "add": "add", "sub": "sub", "sym_sqrt": "sqrt"}


def _number(program: Program, node: fx.Node, values: dict[fx.Node, Any]) -> Value | None:
    """A number that is computed of sizes (`d ** -0.5`), as a tensor without axes; None where it is something else."""

    def part(of: Any) -> Expr | None:
        if isinstance(of, fx.Node) and isinstance(values.get(of), Value):
            return values[of].at([])
        of = of.meta.get("val") if isinstance(of, fx.Node) else of
        return index_value(size_of(of), "double") if isinstance(of, torch.SymInt) else None if isinstance(of, torch.SymFloat) else constant(of, "double")  # fmt: skip

    name = getattr(node.target, "__name__", "").strip("_")
    parts = [found for of in node.args if (found := part(of)) is not None]
    if len(parts) < len(node.args) or (name not in NUMBERS and name != "sym_float"):
        return None
    value = parts[0] if name == "sym_float" else make(NUMBERS[name], *parts, type="double")
    return program.formula((), torch.float64, lambda _: value, "size")


def _argument(node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    if node in values:
        return values[node]
    value = node.meta.get("val")
    if isinstance(value, torch.SymInt):
        return size_of(value)
    if isinstance(value, (int, float, bool)):
        return value
    raise NoDraft(f"the argument {node.name} of the graph is a {type(value).__name__}, which has no place in a kernel")


def plain(index: Index | int) -> int:
    """An Index that must be a number."""
    value = number(index)
    if not value.is_Integer:
        raise SizeNeeded(f"the size {value} is needed as a number and depends on the call")
    return int(value)
