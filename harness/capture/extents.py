"""Sizes of several calls as integer expressions of a few axes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import combinations, product

Sizes = tuple[int, ...]
"""One a call."""
FACTORS = (2, 3, 4, 8, 16, 32, 64, 128)


class Extents:
    """Axes, made as extents ask for them."""

    def __init__(self, named: Mapping[str, Sizes], calls: int, fixed: frozenset[str] = frozenset()) -> None:
        """`named`: what the calls' program calls some numbers, in the order in which they are preferred. `fixed`: names of axes that stay numbers."""
        self.fixed = fixed
        self.named = {axis_name(name): sizes for name, sizes in reversed(list(named.items()))}
        self.axes: dict[str, Sizes] = {}
        self.calls = calls

    def take(self, wanted: str, sizes: Sizes) -> str:
        """An expression for an extent of a tensor; a new axis of a name like the wanted one where there is none yet."""
        if (known := self.express(sizes)) is not None:
            return known
        name = next(
            (name for name, other in reversed(list(self.named.items())) if other == sizes and name not in self.axes),
            None,
        )
        if name is None and (found := self._of_named(sizes)) is not None:
            return found
        if name is None and len(set(sizes)) == 1 and self.calls > 1:
            return str(sizes[0])
        name = name or axis_name(wanted)
        if name in self.fixed:
            return str(sizes[0])
        while name in self.axes:
            name += "_"
        self.axes[name] = sizes
        return name

    def express(self, sizes: Sizes) -> str | None:
        """The extent by the axes that there are: one, a multiple, a part, a sum or a product of two."""
        return (
            self._by(self.axes, sizes)
            if len(set(sizes)) > 1 or self.calls == 1 or sizes in self.axes.values()
            else None
        )

    def _of_named(self, sizes: Sizes) -> str | None:
        """The extent by names that are no axes yet and become some."""
        if len(set(sizes)) == 1 and self.calls > 1:
            return None
        pool = {**self.axes, **dict(reversed(list(self.named.items())))}
        found = self._by({name: other for name, other in pool.items() if max(other) > 1}, sizes)
        if found is None:
            return None
        for name in re.findall(r"[a-z_]\w*", found):
            self.axes.setdefault(name, pool[name])
        return found

    def _by(self, axes: Mapping[str, Sizes], sizes: Sizes) -> str | None:
        for name, other in axes.items():
            if other == sizes:
                return name
        if self.calls == 1 and sizes[0] < 64:
            return None if sizes[0] > 1 else "1"
        many = len(set(sizes)) > 1
        factors = FACTORS if many else (2, 3, 4)
        for name, other in axes.items():
            if k := next((k for k in factors if all(a == k * b for a, b in zip(sizes, other, strict=True))), 0):
                return f"{k}*{name}"
        for name, other in axes.items():  # before parts: rows, not a quarter of what happens to be four a row
            more = sizes[0] - other[0]
            if many and abs(more) <= 2 and all(a - b == more for a, b in zip(sizes, other, strict=True)):
                return f"{name} {'+' if more > 0 else '-'} {abs(more)}"
        for name, other in axes.items():
            if k := next((k for k in factors if all(a * k == b for a, b in zip(sizes, other, strict=True))), 0):
                return f"{name}//{k}"
        if not many:
            return None
        for (first, one), (second, two) in combinations(axes.items(), 2):
            if all(a * b == size for a, b, size in zip(one, two, sizes, strict=True)):
                return f"{first}*{second}"
            if all(a + b == size for a, b, size in zip(one, two, sizes, strict=True)):
                return f"{first} + {second}"
            if all(a + 2 * b == size for a, b, size in zip(one, two, sizes, strict=True)):
                return f"{first} + 2*{second}"
            if all(2 * a + b == size for a, b, size in zip(one, two, sizes, strict=True)):
                return f"2*{first} + {second}"
        for (first, one), (second, two), (third, three) in product(axes.items(), repeat=3):
            if first != second and third not in (first, second):
                for k in (1, 2):
                    if all((a + k * b) * c == size for a, b, c, size in zip(one, two, three, sizes, strict=True)):
                        return f"({first} + {k}*{second})*{third}" if k > 1 else f"({first} + {second})*{third}"
        for name, other in axes.items():
            of = sizes[0] * other[0]
            if (
                1 < of <= 1 << 20
                and len(set(other)) > 1
                and all(a * b == of for a, b in zip(sizes, other, strict=True))
            ):
                return f"{of}//{name}"
        for (first, one), (second, two) in product(axes.items(), repeat=2):
            if max(two) > 1 and all(a == size * b for a, b, size in zip(one, two, sizes, strict=True)):
                return f"{first}//{second}"
        return None


def axis_name(text: str) -> str:
    """A name that a spec takes."""
    import keyword

    name = re.sub(r"[^a-z0-9_]", "_", text.lower()).lstrip("_0123456789")[:60] or "size"
    return f"{name}_" if keyword.iskeyword(name) else name
