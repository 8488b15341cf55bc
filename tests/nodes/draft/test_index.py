"""Index arithmetic means what Python's integers mean, whatever the shapes."""

import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.draft.index import (
    FloorDiv,
    Modulo,
    Ranges,
    divide,
    flatten,
    joined,
    modulo,
    size_symbol,
    unflatten,
    viewed_strides,
)

SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=4)


def positions(shape):
    found = [()]
    for size in shape:
        found = [(*position, at) for position in found for at in range(size)]
    return found


def value(expression, at: dict) -> int:
    return int(sympy.sympify(expression).subs(at))


@given(SIZES, st.integers(1, 40), st.integers(0, 30))
@settings(max_examples=25, deadline=None)
def test_quotients_and_remainders_of_an_element_number(shape, divisor, offset):
    ranges = Ranges()
    variables = [ranges.variable(f"a{axis}", size) for axis, size in enumerate(shape)]
    element = flatten(variables, [sympy.Integer(s) for s in shape]) + offset
    quotient, rest = divide(element, divisor, ranges), modulo(element, divisor, ranges)
    for position in positions(shape):
        at = {v: p for v, p in zip(variables, position, strict=True) if v.is_Symbol}
        number = value(element, at)
        assert (value(quotient, at), value(rest, at)) == divmod(number, divisor)


@given(SIZES, st.data())
@settings(max_examples=40, deadline=None)
def test_a_reshape_that_comes_back_is_the_plain_index(shape, data):
    total = 1
    for size in shape:
        total *= size
    first = data.draw(st.sampled_from([n for n in range(1, total + 1) if total % n == 0]))
    other = [sympy.Integer(first), sympy.Integer(total // first)]
    shape = [sympy.Integer(s) for s in shape]
    ranges = Ranges()
    element = ranges.variable("element", total)
    there = unflatten(element, other, ranges)
    assert joined(flatten(there, other)) == element
    back = unflatten(joined(flatten(there, other)), shape, ranges)
    assert joined(flatten(back, shape)) == element


def test_what_two_reshapes_took_apart_is_joined():
    column = Ranges().variable("column", 4 * 126 * 126)
    plane, row, inner = FloorDiv(column, 15876), FloorDiv(Modulo(column, 15876), 126), Modulo(column, 126)
    assert joined(plane * 15876 + row * 126 + inner) == column
    apart = FloorDiv(Modulo(column, 100), 12) * 12 + Modulo(column, 12)  # 12 does not divide 100
    assert joined(apart) == apart


def test_open_sizes_divide_out():
    ranges, batch = Ranges(), size_symbol("batch")
    row, column = ranges.variable("row", batch), ranges.variable("column", 12)
    element = flatten([row, column], [batch, sympy.Integer(12)])
    assert divide(element, 12, ranges) == row
    assert modulo(element, 4, ranges) == Modulo(column, 4)
    assert divide(element, 24, ranges) == FloorDiv(row, 2)
    turned = column * batch + row
    assert (divide(turned, batch, ranges), modulo(turned, batch, ranges)) == (column, row)


@given(SIZES, SIZES)
@settings(max_examples=60, deadline=None)
def test_strides_of_a_view_read_the_same_elements(old, new):
    size = {1: 1}
    for shape in (old, new):
        total = 1
        for extent in shape:
            total *= extent
        size[len(size) + 1] = total
    if size[2] != size[3]:
        new = [*new[:0], size[2]]
    strides, step = [], 1
    for extent in reversed(old):
        strides.insert(0, sympy.Integer(step))
        step *= extent + 1  # rows with a gap behind them
    found = viewed_strides([sympy.Integer(s) for s in old], strides, [sympy.Integer(s) for s in new])
    if found is None:
        return
    for number, position in enumerate(positions(new)):
        rest, at = number, 0
        for extent, stride in zip(reversed(old), reversed(strides), strict=True):
            rest, digit = divmod(rest, extent)
            at += digit * int(stride)
        assert at == sum(p * int(s) for p, s in zip(position, found, strict=True))
