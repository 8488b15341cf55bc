"""Numbers that were picked are searched again, from there."""

from __future__ import annotations

import pytest

from harness.judge.tunables import tunables
from nodes.policies.rules import apply_step
from tests.nodes.rewrites.steps import FACTS

BODY = "int width() { return BLOCKS; }\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("66  // tune: 66 99 198", "66  // tune: 44 54 66 81 99"),
        ("99  // tune: 66 99 198", "99  // tune: 66 81 99 140 198"),
        ("198 // tune: 198 66 99", "198 // tune: 99 140 198 280 396"),
        ("512  // tune: 128 256 512", "512  // tune: 256 512 1024"),
        ("64  // tune: 128 64", "64  // tune: 32 64 128"),
        ("256  // tune: 32 64 128 256 512", "256  // tune: 128 256 512"),
        ("1  // tune: 1 2 4", "1  // tune: 1 2"),
    ],
)
def test_choices_lie_around_the_value(before: str, after: str) -> None:
    assert apply_step("refine_search", f"#define BLOCKS {before}\n{BODY}", FACTS) == f"#define BLOCKS {after}\n{BODY}"


@pytest.mark.parametrize("line", ["1  // tune: 0 1", "8  // tune: 8", "512", "256  // tune: 128 256 512"])
def test_what_has_no_scale_or_nothing_new_stays(line: str) -> None:
    assert apply_step("refine_search", f"#define BLOCKS {line}\n{BODY}", FACTS) is None


def test_it_comes_to_an_end() -> None:
    text, rounds = f"#define BLOCKS 1000  // tune: 100 1000 30000\n{BODY}", 0
    while (new := apply_step("refine_search", text, FACTS)) is not None:
        text, rounds = new, rounds + 1
        assert rounds < 40 and tunables(text)[0].value == 1000
