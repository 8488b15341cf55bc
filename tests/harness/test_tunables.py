from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.judge.tunables import bake, tunables

SOURCE = """#include <cstdint>
#define BLOCK 256  // tune: 64 128 256
  #define ROWS 1 // tune: 1 2
#define PLAIN 7
#define lower 1  // tune: 1 2
// #define COMMENTED 1  // tune: 1 2
int block() { return BLOCK * ROWS * PLAIN; }
"""


def test_finds_what_is_left_open():
    assert [(t.name, t.value, t.choices) for t in tunables(SOURCE)] == [
        ("BLOCK", 256, (64, 128, 256)),
        ("ROWS", 1, (1, 2)),
    ]


def test_a_name_defined_twice_is_refused():
    with pytest.raises(ValueError, match="defined twice"):
        tunables(SOURCE + "#define BLOCK 1 // tune: 1 2\n")


def test_an_unknown_name_is_refused():
    with pytest.raises(KeyError, match="PLAIN"):
        bake(SOURCE, {"PLAIN": 1})


@given(st.sampled_from((64, 128, 256)), st.sampled_from((1, 2)))
def test_baking_changes_the_values_and_nothing_else(block, rows):
    baked = bake(SOURCE, {"BLOCK": block, "ROWS": rows})
    assert [(t.name, t.value) for t in tunables(baked)] == [("BLOCK", block), ("ROWS", rows)]
    assert bake(baked, {"BLOCK": 256, "ROWS": 1}) == SOURCE
