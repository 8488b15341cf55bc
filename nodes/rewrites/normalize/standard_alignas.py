"""Shared memory says in standard words what it is aligned to, for the grammar does not know CUDA's own there.

    extern __shared__ __align__(16) char bytes[];    ->    alignas(16) extern __shared__ char bytes[];

Changes nothing by itself, but a function with such a declaration is not understood at all.
"""

from __future__ import annotations

import re

from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.source import Source

_WORDS = r"((?:(?:extern|static|__shared__|volatile|const)\s+)*)"
_ALIGNED = re.compile(rf"(?<=[;{{}}])(\s*){_WORDS}__align__(\((?:[^()]|\([^()]*\))*\))\s*{_WORDS}")


@rule("cuda", expected="nothing by itself: later steps can read the function", normalizes=True)
def rewrite(source: Source, facts: Facts) -> str | None:
    return _ALIGNED.sub(_moved, source.text)


def _moved(found: re.Match[str]) -> str:
    """The front of a declaration in shared memory; nothing happens to any other."""
    space, before, given, behind = found.groups()
    return f"{space}alignas{given} {before}{behind}" if "__shared__" in before + behind else found[0]
