"""Programs said in data: texts with choices and holes, which an author fills in as they are drawn.

A choice of words is in backquotes, `a|b`; a hole, @name, is what the caller says it is, or else a new name of that stem. In a
text of several lines one that begins with an order (`loop`, `round`, `join`, `store`) stands for what the author writes for it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hypothesis import strategies as st


class Author:
    """Who draws words, names and expressions."""

    operations: Sequence[str] = ()
    """Expressions of two operands, @a and @b, and of @e, which no reduction has touched. Those with a ~ in front may differ
    in their last digits."""
    needs: dict[str, Sequence[str]] = {}  # noqa: RUF012, read only
    """What a word needs to be defined, in one of several ways."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.arrays: set[str] = set()
        self.written: set[str] = set()
        """Outputs that a pass has stored to."""
        self.helpers: dict[str, str] = {}
        self.scalars: list[str] = []
        """Results of reductions, and what was made of them, in sight of the passes that follow over the same row."""
        self.exact: set[str] = set()
        """Names and elements that no reduction has touched, which conditions may ask for."""
        self.counted = 0
        self.summed = self.inexact = False

    def one_of(self, *choices: str) -> str:
        return self.draw(st.sampled_from(choices))

    def chance(self, one_in: int = 2) -> bool:
        return self.draw(st.integers(1, one_in)) == one_in

    def fresh(self, stem: str) -> str:
        self.counted += 1
        return f"{stem}{self.counted}"

    def said(self, text: str, words: dict[str, str] | None = None) -> str:
        """The text with its choices made and its holes filled."""
        known = {} if words is None else words
        text = re.sub(r"`([^`]*)`", lambda choice: self.one_of(*choice[1].split("|")), text)
        return re.sub(
            r"@(\w+)", lambda hole: known.get(hole[1]) or known.setdefault(hole[1], self.fresh(hole[1])), text
        )

    def run(self, text: str, words: dict[str, str] | None = None) -> list[str]:
        """The lines of a text, its orders carried out one after another."""
        words = {} if words is None else words
        found, left = list[str](), text.strip("\n").split("\n")
        while left:
            line = self.said(left.pop(0), words)
            order, *operands = line.split(maxsplit=2)
            inner = 0
            while inner < len(left) and left[inner].startswith("  ") and order in ("loop", "round"):
                inner += 1
            if inner:
                body = self.run("\n".join(one[2:] for one in left[:inner]), words)
                found += getattr(self, order)(operands[0], operands[-1], body)
            elif order == "join":
                lines, words[operands[1]] = self.joined(words[operands[1]], operands[0])
                found += lines
            elif order == "store":
                found.append(f"{self.at(words['output'], operands[0])} = {self.stored(operands[1])}")
            else:
                found.append(line)
            del left[:inner]
        return found

    def loop(self, index: str, bound: str, body: list[str]) -> list[str]:
        raise NotImplementedError

    def joined(self, name: str, operator: str) -> tuple[list[str], str]:
        raise NotImplementedError

    def at(self, array: str, index: str) -> str:
        raise NotImplementedError

    def stored(self, value: str) -> str:
        raise NotImplementedError

    def exact_among(self, names: list[str]) -> list[str]:
        return [name for name in names if name in self.exact]

    def expression(self, names: list[str], depth: int = 2) -> str:
        if depth == 0:
            return self.one_of(*names, *self.scalars, "0.5f", "1.25f")
        text, exact = self.one_of(*self.operations), self.exact_among(names)
        if "@e" in text and not exact:
            text = "@a"
        self.inexact |= text.startswith("~")
        words = {"e": self.one_of(*exact)} if "@e" in text else {}
        text = self.said(text.removeprefix("~"), {"a": "@a", "b": "@b"} | words)
        for word in re.findall("[ab]", "".join(re.findall("@([ab])", text))):
            words.setdefault(word, self.expression(names, depth - 1))
        for word, ways in self.needs.items():
            if f"{word}(" in text:
                self.helpers[word] = self.one_of(*ways)
        return self.said(text, words)


def folded(operator: str, name: str, other: str) -> str:
    """The statement that takes another value in."""
    return f"{name} += {other};" if operator == "+" else f"{name} = {operator}({name}, {other});"
