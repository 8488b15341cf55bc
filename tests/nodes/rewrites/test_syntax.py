"""Patterns with holes, and what is written in place of statements."""

from __future__ import annotations

import pytest

from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Edits, Source, Unsupported

TEXT = """\
void f(float* x, int n) {
  // counts
  int count = 0;
  for (int i = 0; (i < n /* all */); ++i) {
    x[i] = (x[i]) * 2.0f;
  }
  if (n > 8) count = n; else count = 8;
}
"""
SOURCE = Source(TEXT, "cuda")


def text_of(pattern: str, kind: str) -> dict[str, str] | None:
    found = match(SOURCE, next(SOURCE.walk(None, kind)), pattern)
    return None if found is None else {hole: SOURCE.of(node) for hole, node in found.items()}


@pytest.mark.parametrize(
    ("pattern", "kind", "holes"),
    [
        ("$x[$i] = $x[$i] * $by", "assignment_expression", {"x": "x", "i": "i", "by": "2.0f"}),
        ("$a = $a * $by", "assignment_expression", {"a": "x[i]", "by": "2.0f"}),
        ("$a = $b + $c", "assignment_expression", None),
        ("$a = $b * $a", "assignment_expression", None),
        ("$T $name = 0;", "declaration", {"T": "int", "name": "count"}),
        ("$T $name = 1;", "declaration", None),
        ("if ($a > $b) $v = $a; else $v = $b;", "if_statement", {"a": "n", "b": "8", "v": "count"}),
        ("if ($a > $b) $v = $a;", "if_statement", None),
    ],
)
def test_holes(pattern: str, kind: str, holes: dict[str, str] | None) -> None:
    assert text_of(pattern, kind) == holes


def test_every_place_of_a_hole_and_the_first_pattern_that_fits() -> None:
    loop = next(SOURCE.walk(None, "for_statement"))
    found = match(
        SOURCE, loop, "for ($T $i = $from; $i < $to; $i += $by) $body;", "for ($T $i = $from; $i < $to; ++$i) $body;"
    )
    assert found is not None and found.pattern.endswith("++$i) $body;")
    assert SOURCE.of(found["to"]) == "n" and found["body"].type == "compound_statement"
    assert [node.start_point[0] for node in found.every["i"]] == [3, 3, 3]
    assert match(SOURCE, None, "$a") is None


def test_a_pattern_that_is_no_cpp_is_a_mistake_of_ours() -> None:
    with pytest.raises(ValueError, match="no C"):
        match(SOURCE, SOURCE.root, "$a +* ;")


def test_a_statement_goes_with_its_line_and_its_comment() -> None:
    edits = Edits(SOURCE)
    edits.remove(next(SOURCE.walk(None, "declaration")), comment=True)
    assert edits.apply() == TEXT.replace("  // counts\n  int count = 0;\n", "")
    edits = Edits(SOURCE)
    edits.remove(next(SOURCE.walk(next(SOURCE.walk(None, "else_clause")), "expression_statement")), instead=";")
    assert "count = n; else ;\n" in edits.apply()


def test_an_attempt_that_fails_leaves_nothing() -> None:
    edits = Edits(SOURCE)
    with edits.attempt():
        edits.remove(next(SOURCE.walk(None, "for_statement")))
        raise Unsupported("on second thoughts")
    assert edits.apply() == TEXT
