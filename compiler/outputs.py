"""The definitions that write a kernel's outputs: whole, in the parts of a concatenation, or at places that other tensors give."""

from __future__ import annotations

import sympy
import torch

from compiler import indexing
from compiler.draft.expressions import COMPUTED, Expr, cast
from compiler.draft.index import Index, joined, unflatten
from compiler.draft.tensors import Buffer, Definition, Piece, Scatter, Value
from compiler.draft.tensors import Program as Lowered
from compiler.selects import SelectedProgram
from compiler.steps import STEPS
from kernels.spec import Tensor


def write_output(lowered: SelectedProgram, tensor: Tensor, value: Value, shape, dtype: torch.dtype, taken) -> Buffer:
    """A buffer for an output, and the definitions that write it: one for each piece of a concatenation."""
    type, own = COMPUTED[dtype], value.buffer if value.is_whole else None
    if own is not None and own not in taken and isinstance(made := own.written_by, Definition):
        alone = made.reduced and len(made.outs) == 1
        alone = own.dtype == dtype in (torch.float32, torch.int64) if lowered.in_memory else alone
        if alone and COMPUTED[own.dtype] == type and tuple(value.shape) == tuple(shape):
            own.dtype, own.text = dtype, tensor.name
            return own
    buffer = Buffer(lowered.name(f"{tensor.name}_out"), shape, dtype, text=tensor.name)
    lowered.buffers.append(buffer)
    pieces = value.pieces if value.buffer is None else ()
    alike = len({part.value.shape for part in pieces}) == 1 or any(d.kind == STEPS for d in lowered.definitions)
    if tensor.role == "inout":  # parts of parts, too: so each thread reads what it writes itself
        pieces, alike = _moved(lowered, tensor.name, _parts(lowered, pieces)), True
    if pieces and alike:
        for piece in pieces:
            write_map(lowered, piece.value, buffer, tensor.name, type, piece.place)
    else:
        write_map(lowered, lowered.reshape(value, shape), buffer, tensor.name, type)
    return buffer


def _parts(lowered: Lowered, pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """Of parts that are concatenations themselves their parts."""

    def within(outer: Piece, inner: Piece) -> Piece:
        def place(position):
            return outer.place(unflatten(inner.place(position), outer.value.shape, lowered.ranges))

        return Piece(inner.value, place)

    found: list[Piece] = []
    for piece in pieces:
        own = piece.value.pieces if piece.value.buffer is None else ()
        found += [within(piece, one) for one in _parts(lowered, own)] or [piece]
    return tuple(found)


def _moved(lowered: Lowered, name: str, pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """Without those that stay what the tensor of that name held, if others are left."""

    def stays(piece: Piece) -> bool:
        at = [lowered.ranges.named(f"read{axis}", size) for axis, size in enumerate(piece.value.shape)]
        element = piece.value.at(at)
        while element.op == "cast":
            element = element.args[0]
        return element.op == "load" and element.args[0].text == name and joined(element.args[1] - piece.place(at)) == 0

    return tuple(piece for piece in pieces if not stays(piece)) or pieces


MOST_COLUMNS = 8
"""Elements of a last axis up to which one thread writes all of them at a computed place."""


def is_given(scatter: Scatter, whole: Value | None) -> bool:
    """Whether what is written at computed places is a tensor of the call, which was `whole`."""
    now, given = scatter.now, whole and whole.buffer
    same = whole is not None and (now.shape, now.strides, now.offset) == (whole.shape, whole.strides, whole.offset)
    return given is not None and same and now.buffer is given and scatter.base.buffer is given


def write_scattered(lowered: Lowered, tensor: Tensor, scatter: Scatter, in_pieces: bool) -> Buffer:
    """A tensor that is changed in place at places which others name."""
    given = scatter.now.buffer
    assert given is not None
    buffer = Buffer(lowered.name(f"{tensor.name}_out"), given.shape, given.dtype, text=tensor.name)
    lowered.buffers.append(buffer)
    for part, within in _parts_of(lowered, scatter) if in_pieces else [(scatter.source, list)]:
        _write_at(lowered, scatter, part, within, buffer)
    return buffer


def _parts_of(lowered: Lowered, scatter: Scatter):
    """What is written, in parts: (its value, the position in the whole of one in the part)."""
    source, shape = scatter.source, scatter.shape
    last = len(shape) - 1
    pieces = [p for p in source.pieces if len(p.value.shape) == len(shape)]
    if shape and shape[-1].is_Integer and 1 < shape[-1] <= MOST_COLUMNS:
        for column in range(int(shape[-1])):
            holder = next((p for p in pieces if p.axis == last and _holds(p, column)), Piece(source, lambda _: _, last))

            def element(position, holder=holder, column=column):
                return holder.value.at([*position, sympy.Integer(column - int(holder.start))])

            value = lowered.formula(shape[:-1], source.dtype, element, source.origin)
            yield value, lambda position, column=column: [*position, sympy.Integer(column)]
    elif pieces:
        for piece in pieces:
            yield piece.value, lambda p, piece=piece: [at + piece.start if n == piece.axis else at for n, at in enumerate(p)]  # fmt: skip
    else:
        yield source, list


def _holds(piece: Piece, column: int) -> bool:
    size = piece.value.shape[piece.axis]
    return bool(piece.start.is_Integer and size.is_Integer and piece.start <= column < piece.start + size)


def _write_at(lowered: Lowered, scatter: Scatter, part: Value, within, buffer: Buffer) -> None:
    base = scatter.base

    def split(position) -> tuple[Index, list[tuple[Expr, Index]]]:
        return indexing.split_place(scatter.at(within(position)), base.strides, base.offset)

    write_map(
        lowered, part, buffer, buffer.text, COMPUTED[buffer.dtype], lambda position: split(position)[0],
        by=lambda position: indexing.together(split(position)[1]),
        when=(lambda position: scatter.when(within(position))) if scatter.is_partial else None,
    )  # fmt: skip


def write_map(lowered: Lowered, value: Value, buffer: Buffer, origin: str, type: str, place=None, **where) -> None:
    """A map that puts the value's elements where `place` says."""
    definition = Definition(
        lowered.next_order(), "map", value.shape, frozenset(), lambda position: cast(value.at(position), type), [buffer],
        origin, type, place=place, **where,
    )  # fmt: skip
    lowered.definitions.append(definition)
