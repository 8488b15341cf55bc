"""Runs a Program with torch on small sizes, over its kernels' own loop variables: does it mean the reference?

Floats are computed in float64, so that only what the program means can differ from the reference in float64.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from typing import Any

import sympy
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from compiler.draft.expressions import COMPUTED, Expr
from compiler.draft.index import FloorDiv, Index, Modulo, flatten
from compiler.draft.partition import ROW, Member
from compiler.draft.split import IDENTITY
from compiler.draft.tensors import Buffer
from compiler.frontend import NoProgram
from compiler.phases import SCANS, SCATTERS, SORTS, PhasesKernel
from compiler.products import ProductKernel
from compiler.program import KernelProgram, PackedKernel
from compiler.steps import StepsDefinition, StepsKernel
from compiler.streams import StreamKernel
from kernels import catalog
from kernels.spec import Spec, Tensor

TYPES = {
    "float": torch.float64, "double": torch.float64, "int64_t": torch.int64, "int32_t": torch.int64, "bool": torch.bool
}  # fmt: skip
UNARY: dict[str, Callable[..., torch.Tensor]] = {
    "exp": torch.exp, "log": torch.log, "log1p": torch.log1p, "expm1": torch.expm1, "tanh": torch.tanh, "erf": torch.erf,
    "erfc": torch.erfc, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "sin": torch.sin, "cos": torch.cos, "atan": torch.atan,
    "log2": torch.log2, "log10": torch.log10, "exp2": torch.exp2, "floor": torch.floor, "ceil": torch.ceil, "trunc": torch.trunc,
    "round": torch.round, "sigmoid": torch.sigmoid, "neg": torch.neg, "not": torch.logical_not, "abs": torch.abs,
    "bits_of": lambda x: x.float().view(torch.int32).long(), "of_bits": lambda x: x.int().view(torch.float32).double(),
    **{name: getattr(torch, name) for name in ("tan", "sinh", "cosh", "asin", "acos", "asinh", "acosh", "atanh", "lgamma")},
}  # fmt: skip
BINARY: dict[str, Callable[..., torch.Tensor]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "pow": torch.pow, "atan2": torch.atan2,
    "fmod": torch.fmod, "hypot": torch.hypot, "fmax": torch.fmax, "fmin": torch.fmin, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge, "eq": torch.eq, "ne": torch.ne,
    "and": torch.logical_and, "or": torch.logical_or, "max": torch.maximum, "min": torch.minimum,
    "bit_and": torch.bitwise_and, "bit_or": torch.bitwise_or, "bit_xor": torch.bitwise_xor,
    "shift_right": torch.bitwise_right_shift, "shift_left": torch.bitwise_left_shift,
    "floor_quotient": torch.floor_divide, "floor_remainder": torch.remainder,
}  # fmt: skip
REDUCE: dict[str, Callable[..., torch.Tensor]] = {
    "sum": torch.sum, "prod": torch.prod, "max": torch.amax, "min": torch.amin, "any": torch.any, "all": torch.all
}  # fmt: skip
SCAN: dict[str, Callable[..., torch.Tensor]] = {
    "sum": torch.cumsum, "prod": torch.cumprod, "max": lambda x, dim: torch.cummax(x, dim)[0], "min": lambda x, dim: torch.cummin(x, dim)[0],
    "log_add": torch.logcumsumexp,
}  # fmt: skip


def evaluate(program: KernelProgram, inputs: dict[str, torch.Tensor], axes: dict[str, int]) -> dict[str, torch.Tensor]:
    """Every output of the spec, float64 or int64, from inputs by name. Sizes must be multiples of the program's packs."""
    return program.context.copy().run(_Evaluation(program, inputs, axes).run)


class _Evaluation:
    def __init__(self, program: KernelProgram, inputs: dict[str, torch.Tensor], axes: dict[str, int]) -> None:
        self.program, self.axes = program, axes
        self.sizes = program.values(axes)
        self.memory: dict[Buffer, torch.Tensor] = {}
        for name, buffer in program.inputs.items():
            value = self._laid_out(name, inputs[name])
            self.memory[buffer] = value.double() if value.is_floating_point() else value.clone()
        self.scalars = program.spec.scalars
        self.loops: dict[sympy.Symbol, torch.Tensor] = {}
        self.made: dict[Buffer, Member] = {}
        self.results: dict[int, torch.Tensor] = {}
        self.known: dict[int, Any] = {}

    def run(self) -> dict[str, torch.Tensor]:
        for name, buffer in self.program.outputs.items():
            if name in self.program.inputs:  # what is not written stays
                self.memory[buffer] = self.memory[self.program.inputs[name]].clone()
                continue
            wide = torch.float64 if buffer.dtype.is_floating_point else torch.int64
            self.memory[buffer] = torch.full((self._count(buffer.elements),), -77, dtype=wide)
        for buffer in self.program.scratch:
            self.memory[buffer] = torch.zeros(self._count(buffer.elements), dtype=TYPES[COMPUTED[buffer.dtype]])
        for kernel in self.program.kernels:
            self._kernel(kernel)
        spec = self.program.spec
        return {
            tensor.name: self.memory[self.program.outputs[tensor.name]].as_strided(
                spec.shape(tensor, self.axes), spec.strides(tensor, self.axes)
            )
            for tensor in spec.outputs
        }

    def _laid_out(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """An input as it lies in memory, flat."""
        spec = self.program.spec
        tensor = next(tensor for tensor in spec.inputs if tensor.name == name)
        if not tensor.strides:
            return value.reshape(-1)
        memory = value.new_zeros(spec.span(tensor, self.axes))
        places = torch.zeros(value.shape, dtype=torch.int64)
        for axis, stride in enumerate(spec.strides(tensor, self.axes)):
            steps = torch.arange(value.shape[axis]) * stride
            places += steps.view(*(-1 if axis == dim else 1 for dim in range(value.dim())))
        memory[places.reshape(-1)] = value.reshape(-1)
        return memory

    def _count(self, index: Index) -> int:
        return int(index.subs(self.sizes))

    def _one_by_one(self, kernel: StreamKernel | PhasesKernel | ProductKernel | StepsKernel) -> None:
        """Each definition over its own axes."""
        for member in kernel.members:
            definition = member.definition
            ends = [self._count(size) for size in definition.ranges]
            at = [self.program.lowered.ranges.named(f"at{axis}", end) for axis, end in enumerate(ends)]
            self.made, self.results, self.known = {}, {}, {}
            self.loops = {
                symbol: torch.arange(end).reshape([-1 if a == axis else 1 for a in range(len(ends))])
                for axis, (symbol, end) in enumerate(zip(at, ends, strict=True))
            }
            if isinstance(definition, StepsDefinition):
                self._steps(definition, at, ends)
                continue
            value = torch.broadcast_to(torch.as_tensor(self.value(definition.element(at))), ends)
            (buffer, *more), kind, axis = definition.outs, definition.kind, next(iter(definition.reduced), 0)
            if kind in SORTS:
                value, places = torch.sort(value, dim=axis, descending=kind == "sort_falling", stable=True)
                self.memory[more[0]] = places.reshape(-1)
            elif kind in SCANS:
                value = SCAN[SCANS[kind]](value, axis)
            else:
                for axis in definition.reduced:
                    value = REDUCE[kind](value, dim=axis, keepdim=True)
            if definition.place is None:
                self.memory[buffer] = value.reshape(-1).clone()
                continue
            place = self.index(definition.place(at))
            if definition.by is not None:
                by, stride = definition.by(at)
                place = place + self.value(by) * self.index(stride)
            when = torch.tensor(True) if definition.when is None else self.value(definition.when(at))
            place, value, when = torch.broadcast_tensors(torch.as_tensor(place), value, when)
            memory = self.memory[buffer]
            given = value[when].to(memory.dtype)
            if (join := SCATTERS[kind]) in ("", "sum"):
                memory.index_put_((place[when],), given, accumulate=bool(join))
            else:
                memory.scatter_reduce_(0, place[when], given, f"a{join}")

    def _steps(self, definition: StepsDefinition, at: list, ends: list[int]) -> None:
        """One step after another: in each, what is carried and the rows are computed of what the one before has left."""
        loop = definition.loop
        assert loop is not None

        def whole(values) -> list[torch.Tensor]:
            self.known = {}
            return [torch.broadcast_to(torch.as_tensor(self.value(one.at(at))), ends).clone() for one in values]

        self.carried = whole(loop.start)
        rows: list[list[torch.Tensor]] = [[] for _ in loop.rows]
        for step in range(self._count(loop.count)):
            self.loops[loop.variable] = torch.tensor(step)
            now, made = whole(loop.now), whole(loop.rows)
            self.carried = now
            for row, one in zip(rows, made, strict=True):
                row.append(one)
        for buffer, one in zip(
            definition.outs, [*self.carried, *(torch.stack(row) for row in rows if row)], strict=False
        ):
            self.memory[buffer] = one.reshape(-1).clone()

    def _kernel(self, kernel: PackedKernel) -> None:
        if isinstance(kernel, StreamKernel | PhasesKernel | ProductKernel | StepsKernel):
            self._one_by_one(kernel)
            return
        lane = self.program.lane
        if kernel.layout == ROW:
            loops = [(kernel.row, kernel.rows), (kernel.pack, kernel.length / kernel.width), *kernel.parts.items()]
        else:
            loops = [(kernel.pack, kernel.rows / kernel.width), *kernel.inner]
        if kernel.width > 1:
            loops.append((lane, sympy.Integer(kernel.width)))
        self.loops = {}
        for axis, (variable, end) in enumerate(loops):
            if variable.is_Symbol:
                shape = [1] * len(loops)
                shape[axis] = -1
                self.loops[variable] = torch.arange(self._count(end)).reshape(shape)
        whole = [self._count(end) if variable.is_Symbol else 1 for variable, end in loops]
        folded = [
            axis
            for axis, (variable, _) in enumerate(loops)
            if (variable in (kernel.pack, lane) if kernel.layout == ROW else variable in dict(kernel.inner))
        ]
        self.made, self.results, self.known = kernel.made, {}, {}
        written: list[tuple[Buffer, torch.Tensor, torch.Tensor]] = []
        inside = torch.tensor(True)
        if kernel.chunked is not None:
            inside = self.index(flatten(kernel.axes, kernel.ranges)) < torch.tensor(self._count(kernel.chunked))
        for member in kernel.members:
            value = self.value(member.value)
            if member.definition.reduced:
                kind = member.definition.kind
                if kernel.chunked is not None:
                    value = torch.where(inside, value, IDENTITY[kind])
                value = torch.broadcast_to(torch.as_tensor(value), whole)
                if folded:
                    for axis in folded:
                        value = REDUCE[kind](value, dim=axis, keepdim=True)
                self.results[id(member)] = value
            else:
                self.results[id(member)] = value
            for buffer, place in zip(member.definition.outs, member.places, strict=True):
                if buffer in self.memory:
                    by = 0 if member.by is None else self.value(member.by[0]) * self.index(member.by[1])
                    own = inside if not (member.per_row or member.definition.reduced) else torch.tensor(True)
                    when = own if member.when is None else self.value(member.when) & own
                    where = torch.as_tensor(self.index(place) + by)
                    at, here, done = torch.broadcast_tensors(where, torch.as_tensor(value), when)
                    written.append((buffer, at[done], here[done]))
        for buffer, at, here in written:
            memory = self.memory[buffer]
            memory[at] = here.to(memory.dtype)
        for name, buffer in self.program.inputs.items():  # what is changed in place
            out = self.program.outputs.get(name)
            if out is not None and any(out in m.definition.outs for m in kernel.members):
                self.memory[buffer] = self.memory[out].clone()

    def index(self, index: Index) -> Any:
        if index.is_Integer:
            return int(index)
        if index.is_Symbol:
            return self.loops[index] if index in self.loops else self.sizes[index]
        parts = [self.index(arg) for arg in index.args]
        if isinstance(index, FloorDiv):
            return parts[0] // parts[1]
        if isinstance(index, Modulo):
            return parts[0] % parts[1]
        if index.is_Add:
            return sum(parts)
        if index.is_Mul:
            return math.prod(parts)
        return parts[0] ** parts[1]

    def value(self, expr: Expr) -> Any:
        found = self.known.get(id(expr))
        if found is None:
            found = self.known[id(expr)] = self._value(expr)
        return found

    def _value(self, expr: Expr) -> Any:
        op, args, dtype = expr.op, expr.args, TYPES[expr.type]
        if op == "const":
            return torch.tensor(args[0], dtype=dtype)
        if op == "index":
            return torch.as_tensor(self.index(args[0])).to(dtype)
        if op == "scalar":
            return torch.tensor(self.scalars[args[0]], dtype=dtype)
        if op == "load":
            if args[0] in self.made:
                return self.results[id(self.made[args[0]])]
            return self._read(args[0], torch.as_tensor(self.index(args[1]))).to(dtype)
        if op == "load_at":
            buffer, base, stride, place = args
            return self._read(buffer, self.index(base) + self.index(stride) * self.value(place)).to(dtype)
        if op == "carried":
            return self.carried[args[0]]
        if op == "repeated":
            kind, step, end, value = args
            known, found = self.known, []
            for place in range(self._count(end)):
                self.loops[step], self.known = torch.tensor(place), dict(known)
                found.append(self.value(value))
            self.known = known
            return REDUCE[kind](torch.stack(torch.broadcast_tensors(*found)), dim=0)
        if op == "halved":
            step, end, condition = args
            known, count = self.known, torch.tensor(0)
            for place in range(self._count(end)):
                self.loops[step], self.known = torch.tensor(place), dict(known)
                count = count + self.value(condition).long()
            self.known = known
            return count
        parts = [self.value(arg) for arg in args if isinstance(arg, Expr)]
        if op == "cast":
            return (
                parts[0].trunc().to(dtype)
                if dtype == torch.int64 and parts[0].is_floating_point()
                else parts[0].to(dtype)
            )
        if op == "round_to":
            kind = getattr(torch, args[1])
            return parts[0].to(kind).to(dtype) if not kind.is_floating_point else parts[0].float().to(kind).to(dtype)
        if op == "pick":
            return torch.stack(parts[1:])[parts[0].clamp(0, len(parts) - 2)]
        if op in ("where", "masked"):
            return torch.where(*torch.broadcast_tensors(*parts))
        return UNARY[op](*parts) if op in UNARY else BINARY[op](*parts)

    def _read(self, buffer: Buffer, place: torch.Tensor) -> torch.Tensor:
        """Elements; a place outside, which only a condition that does not hold can name, reads the nearest one."""
        memory = self.memory[buffer]
        return memory[place.clamp(0, memory.numel() - 1)]


SMALL = 9
"""An axis at which a program is tried: nothing but a pack's width divides it, where it must be a multiple of that."""


class _InDoubles(TorchDispatchMode):
    """A reference that asks for float32 by itself (`x.float()`) is none of less precision for it."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if kwargs.get("dtype") is torch.float32:
            kwargs["dtype"] = torch.float64
        if function is torch.ops.aten.view.dtype and args[0].dtype == torch.float64:
            args = args[0].float(), *args[1:]  # whose bits are asked for
        return function(*args, **kwargs)


def check(program: KernelProgram, reference: str) -> None:
    """Compares the program with the reference at a small size of its own. Raises NoProgram where they disagree."""
    axes = {axis: (3 if program.packs.get(axis) else SMALL) * program.packs.get(axis, 1) for axis in program.spec.axes}
    axes |= {axis: 2 * axes[by] for axis, by in program.symbols.values() if isinstance(by, str)}
    if not _lay_apart(program.spec, axes) or not _has_room(program.spec, axes):
        return  # windows of one row, as many different numbers as it has: no size of its own; the gates try those of the spec
    inputs = {t.name: _drawn(program, t, axes, seed) for seed, t in enumerate(program.spec.inputs)}
    found: dict[str, Any] = {}
    exec(compile(reference, "reference.py", "exec"), found)
    asked = inspect.signature(found["reference"]).parameters
    sizes = {axis: size for axis, size in axes.items() if axis in asked and axis not in inputs}
    given = {name: value.clone() for name, value in inputs.items()}
    told = {"dtype": getattr(torch, program.dtype)} if "dtype" in asked else {}
    try:
        with _InDoubles():
            wanted = found["reference"](**given, **program.spec.scalars, **sizes, **told)
    except Exception:  # noqa: BLE001 -- no size of the reference's own; the gates try those of the spec
        return
    got = evaluate(program, inputs, axes)
    for name, value in got.items():
        want = wanted[name].reshape(value.shape)
        value = value.to(torch.int32) if want.dtype == torch.int32 else value  # a word's highest bit is its sign
        if not torch.allclose(value.double(), want.double(), rtol=1e-6, atol=1e-9, equal_nan=True):
            raise NoProgram(
                f"the compiler's program disagrees with the reference about {name} at {axes}: what depends on the dtype itself (bits of x, "
                "nan_to_num without numbers) is not what it is in float64"
            )


def _lay_apart(spec: Spec, axes: dict[str, int]) -> bool:
    """Enlarge the axes that are strides alone until no rows overlap, and once more, so that something lies between them; whether they do."""
    extents = {name for t in spec.tensors for extent in t.shape for name in re.findall(r"[a-z_]\w*", extent)}
    alone = {stride for t in spec.tensors for stride in t.strides if stride in spec.axes} - extents
    for _ in range(16):
        apart = not any(t.strides and spec.overlaps(t, axes) for t in spec.tensors)
        for axis in alone:
            axes[axis] *= 2
        if apart:
            return True
    return False


def _has_room(spec: Spec, axes: dict[str, int]) -> bool:
    """Enlarge axes until tensors whose entries are all different find as many numbers below theirs; whether they do."""
    for tensor in spec.inputs:
        kind, _, axis = tensor.values[0].partition(":")
        for _ in range(16):
            if kind not in ("distinct", "permutation") or axes[axis] >= math.prod(spec.shape(tensor, axes)):
                break
            axes[axis] *= 2
        else:
            return False
    return True


def _drawn(program: KernelProgram, tensor: Tensor, axes: dict[str, int], seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape, dtype = program.spec.shape(tensor, axes), program.inputs[tensor.name].dtype
    kind, _, rest = tensor.values[0].partition(":")
    if kind in ("distinct", "permutation"):
        drawn = torch.randperm(axes[rest], generator=generator)[: math.prod(shape)].reshape(shape).to(dtype)
        return (
            drawn
            if kind == "permutation"
            else drawn.masked_fill(torch.arange(drawn.numel()).reshape(shape) % 4 == 1, -1)
        )
    if kind in ("offsets", "starts"):
        drawn = torch.randint(0, axes[rest] + 1, shape, generator=generator).sort().values
        return (drawn - drawn[0]).to(dtype)
    if kind in ("index", "padded"):
        return torch.randint(0, axes[rest], shape, generator=generator).to(dtype)
    if kind == "drawn":
        return catalog.draw_by_function(rest, axes, shape, generator).to(dtype)
    if not dtype.is_floating_point:
        return torch.randint(0, 2, shape, generator=generator).to(dtype)
    low, high = (float(x) for x in rest.split(":")) if kind == "range" else (-1.0, 1.0)
    return torch.rand(shape, generator=generator, dtype=torch.float64) * (high - low) + low
