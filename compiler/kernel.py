"""A kernel whose elements go in packs."""

from __future__ import annotations

from dataclasses import dataclass, field

import sympy

from compiler.draft.index import Index
from compiler.draft.partition import Kernel


@dataclass(eq=False)
class PackedKernel(Kernel):
    """A kernel whose innermost loop steps over packs of `width` neighbouring elements."""

    pack: Index = field(default_factory=lambda: sympy.Integer(0))
    """The variable that counts packs."""
    width: int = 1
