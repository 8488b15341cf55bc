"""What a kernel is called with: buffers that it reads and writes, open sizes, numbers."""

from __future__ import annotations

import sympy
import torch

from .expressions import indices_of, loads_of, walk
from .index import Index, index_is_divided
from .partition import ROW, Kernel, Partition
from .printing import STORED
from .tensors import Buffer

HALVES = {
    "cuda": {torch.float16: "__half", torch.bfloat16: "__nv_bfloat16"},
    "cpu": {torch.float16: "_Float16", torch.bfloat16: "bfloat16"},
}


class Interface:
    """Of one kernel."""

    def __init__(self, kernel: Kernel, partition: Partition, device: str) -> None:
        self.kernel, self.partition, self.device = kernel, partition, device
        self.stored = partition.stored(kernel)
        """What reaches memory."""

    def reads(self) -> list[Buffer]:
        made = self.kernel.made
        found = [load.args[0] for load in loads_of(self.kernel.roots)]
        return list(dict.fromkeys(b for b in found if b not in made))

    def writes(self) -> list[Buffer]:
        return [b for member in self.kernel.members for b in member.definition.outs if b in self.stored]

    def sizes(self) -> list[sympy.Symbol]:
        """The open sizes that its text names."""
        known = set(self.partition.program.hints)
        symbols: set[sympy.Symbol] = set()
        divided = self.kernel.layout != ROW and index_is_divided(self.indices())
        named = [self.kernel.rows, *(end for _, end in self.kernel.inner), *self.indices()]
        for expression in [*named, *(self.largest() if divided else [])]:  # these decide about the indices' type
            symbols |= expression.free_symbols & known
        return sorted(symbols, key=str)

    def indices(self) -> list[Index]:
        return [*indices_of(self.kernel.roots), *(place for member in self.kernel.members for place in member.places)]

    def scalars(self) -> list[tuple[str, str]]:
        """(name, type) of the numbers that the call brings."""
        found = {expr.args[0]: expr.type for expr in walk(self.kernel.roots) if expr.op == "scalar"}
        return list(found.items())

    @property
    def aliased(self) -> set[str]:
        """The texts of buffers that it reads and writes in place."""
        return {b.text for b in self.reads()} & {b.text for b in self.writes()}

    def largest(self) -> list[Index]:
        """The sizes that its indices stay below."""
        sizes = [b.elements for b in [*self.reads(), *self.writes()]] + [self.kernel.rows]
        numbers = [int(size) for size in sizes if size.is_Integer]
        open_ones = list(dict.fromkeys(size for size in sizes if not size.is_Integer))
        return [*([sympy.Integer(max(numbers))] if numbers else []), *open_ones]

    def element_type(self, dtype: torch.dtype) -> str:
        return STORED.get(dtype) or HALVES[self.device][dtype]

    def parameters(self, restricted: bool = False) -> list[str]:
        """`restricted`: pointers to what no other one points to say so."""

        def pointer(b: Buffer) -> str:
            return f"{self.element_type(b.dtype)}* {'__restrict__ ' if restricted and b.text not in self.aliased else ''}{b.name}"

        reads, writes = ([pointer(b) for b in buffers] for buffers in (self.reads(), self.writes()))
        sizes = [f"int64_t {symbol}" for symbol in self.sizes()]
        return [f"const {read}" for read in reads] + writes + sizes + [f"double {name}" for name, _ in self.scalars()]

    def arguments(self) -> list[str]:
        named = [b.name for b in self.reads()] + [b.name for b in self.writes()]
        return named + [str(s) for s in self.sizes()] + [name for name, _ in self.scalars()]
