"""What names mean outside of the statements of a kernel that run on the syntax tree."""

from __future__ import annotations

import random

from tree_sitter import Node

from nodes.rewrites.analysis.block_arithmetic import UNKNOWN, Memory
from nodes.rewrites.analysis.block_shape import value_in
from nodes.rewrites.analysis.block_values import Block
from nodes.rewrites.analysis.device_code import Code, Definition
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.analysis.launches import Launch
from nodes.rewrites.reductions.uses import slots_of
from nodes.rewrites.syntax.source import Unsupported
from nodes.rewrites.syntax.tree import field_of


class Surroundings:
    """Of a block of one launch, `block`, that goes on from here. `element` and `reduced`: the type of the value that is reduced,
    and the variable that holds it, where there is one."""

    def __init__(
        self,
        code: Code,
        kernel: Kernel,
        launch: Launch,
        width: int,
        element: str = "float",
        reduced: Definition | None = None,
    ) -> None:
        self.code, self.kernel, self.launch, self.reduced = code, kernel, launch, reduced
        self.block = Block(code, width, element, self)
        self.memories: dict[int, Memory] = {}
        self.settling = 0

    def __call__(self, name: Node) -> object:
        code, found = self.code, self.code.definition(name)
        if found is None:
            return UNKNOWN
        if self.reduced is not None and found.where == self.reduced.where:
            return UNKNOWN if self.settling else self.block.singles()
        number = value_in(code, self.kernel, self.launch, name)
        if number is not None:
            return number
        plain = found.declarator is not None and found.declarator.type == "identifier"
        if found.kind == "macro":
            return _number(code.source.of(found.declaration, "value"))
        if found.kind == "parameter" and code.source.of(found.declaration, "type") == "float":
            return random.Random(found.name).uniform(0.5, 1.5) if plain else UNKNOWN
        if found.kind == "local" and found.where not in self.memories and (element := slots_of(code, found)):
            self.memories[found.where] = Memory(found.name, element, scalar=plain)
        if found.where in self.memories:
            return self.memories[found.where]
        declared = field_of(found.declarator, "declarator")
        if found.value is None or code.mutated(found) or declared is None or declared.type != "identifier":
            return UNKNOWN
        self.settling += 1
        try:
            return self.block.value(found.value, self.block.frame(), self.block.everyone)
        except Unsupported:
            return UNKNOWN
        finally:
            self.settling -= 1

    def left_in_memory(self) -> list[Memory]:
        """The memories of which the first place has been written."""
        return [memory for memory in [*self.memories.values(), *self.block.shared.values()] if 0 in memory.held]


def _number(text: str) -> object:
    """Of a macro."""
    try:
        return float(text.split("//")[0].strip(" ()").rstrip("fF"))
    except ValueError:
        return UNKNOWN
