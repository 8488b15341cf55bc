"""Blocks of a launch that run statements of a kernel, on numbers that each thread is given, and what they leave where."""

from __future__ import annotations

import random

from tree_sitter import Node

from nodes.rewrites.analysis.block_arithmetic import UNKNOWN, Memory
from nodes.rewrites.analysis.block_shape import value_in
from nodes.rewrites.analysis.block_values import Block
from nodes.rewrites.analysis.device_code import Code, Definition
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.analysis.launches import Launch
from nodes.rewrites.analysis.numbers import close
from nodes.rewrites.syntax.source import Unsupported, operands
from nodes.rewrites.syntax.tree import conditions_of, field_of

Threads = dict[str, list[float]]
"""What each thread has in variables and fields of structs, by their names."""


class Run:
    """A block that has run some of the statements."""

    def __init__(self, code: Code, kernel: Kernel, launch: Launch, width: int, threads: Threads) -> None:
        self.code, self.kernel, self.launch = code, kernel, launch
        self.block = Block(code, width, self._outside)
        self.memories: dict[int, Memory] = {}
        self.frame, self.active = self.block.holding(threads), self.block.everyone

    def _outside(self, name: Node) -> object:
        """What a name stands for that the statements did not make."""
        code, found = self.code, self.code.definition(name)
        if found is None:
            return UNKNOWN
        number = value_in(code, self.kernel, self.launch, name)
        if number is not None:
            return number
        plain = found.declarator is not None and found.declarator.type == "identifier"
        if found.kind == "macro":
            return _number(code.source.of(found.declaration, "value"))
        if found.kind == "parameter" and code.source.of(found.declaration, "type") == "float":
            return random.Random(found.name).uniform(0.5, 1.5) if plain else UNKNOWN
        if found.kind == "local" and found.where not in self.memories and slots_of(code, found):
            self.memories[found.where] = Memory(found.name, code.source.of(found.declaration, "type"), scalar=plain)
        if found.where in self.memories:
            return self.memories[found.where]
        declared = field_of(found.declarator, "declarator")
        if found.value is None or code.mutated(found) or declared is None or declared.type != "identifier":
            return UNKNOWN
        try:
            return self.block.value(found.value, self.block.frame(), self.block.everyone)
        except Unsupported:
            return UNKNOWN

    def step(self, statement: Node) -> None:
        self.block.run(statement, self.frame, self.active)

    def enter(self, branch: Node) -> None:
        """The threads for which a condition holds go on alone."""
        condition = field_of(branch, "condition", "value")
        holds = self.block.value(condition, self.frame, self.active)
        self.active = self.block.those(holds, self.active)
        self.frame.scopes.append({})

    def leave(self) -> None:
        self.active = self.block.everyone
        self.frame.scopes.pop()

    def reaching(self, node: Node, until: Node | None = None) -> tuple[list[int], bool]:
        """The threads that get to a node by what of the conditions around it says which thread it is, and whether all do."""
        block, threads, sure = self.block, self.block.everyone, True
        for condition in conditions_of(node, until):
            for part in operands(self.code.source, condition, "&&"):
                try:
                    threads = block.those(block.value(part, block.frame(), block.everyone), threads)
                except Unsupported:
                    sure = False
        return threads, sure

    def number(self, node: Node) -> float:
        """What the first thread has of it, outside of the statements. Raises Unsupported for what is not known."""
        value = self.block.of_thread(self.block.value(node, self.block.frame(), self.block.everyone), 0)
        if not isinstance(value, (int, float)):
            raise Unsupported("a scale of unknown value")
        return float(value)

    def places(self) -> dict[str, tuple[object, bool]]:
        """What the first thread finds where, `m`, `md.m`, `maxs[0]` or `total.m`, and whether the others find the same."""
        block, found, scopes = self.block, dict[str, tuple[object, bool]](), self.frame.scopes
        own = {n: v for scope in scopes for n, v in scope.items() if sum(n in other for other in scopes) == 1}
        for memory in [*self.memories.values(), *own.values()]:
            if not isinstance(memory, Memory) or 0 not in memory.held:
                continue
            value, everywhere = memory.held[0][0], self._is_readable(memory)
            place = memory.name if memory.scalar else f"{memory.name}[0]"
            parts = {f"{place}.{part}": v for part, v in value.items()} if isinstance(value, dict) else {place: value}
            found |= {name: (v, everywhere) for name, v in parts.items()}
        for name, value in own.items():
            if isinstance(value, Memory):
                continue
            values = value if isinstance(value, list) else [value] * block.width
            for part in values[0] if isinstance(values[0], dict) else [""]:
                mine = [v.get(part, UNKNOWN) if isinstance(v, dict) else v for v in values] if part else values
                found[f"{name}.{part}" if part else name] = (mine[0], all(close(v, mine[0]) for v in mine))
        return found

    def found(self, expected: dict[str, float]) -> dict[tuple[str, str], bool]:
        """Where each of the numbers is, and whether every thread may read it there."""
        places = self.places().items()
        return {(result, p): all_ for result, want in expected.items() for p, (v, all_) in places if close(v, want)}

    def _is_readable(self, memory: Memory) -> bool:
        try:
            self.block._read(memory, 0, self.block.everyone)
        except Unsupported:
            return False
        return True


def slots_of(code: Code, found: Definition) -> Definition | None:
    """The array, or the variable, in shared memory that a local name is or points into; None where it does not."""
    declarator = found.declarator
    if declarator is None or found.kind != "local":
        return None
    if code.source.says(found.declaration, "__shared__"):
        return found if declarator.type in {"array_declarator", "identifier"} else None
    if declarator.type != "init_declarator" or field_of(declarator, "declarator").type != "pointer_declarator":
        return None
    named = (code.definition(name) for name in code.source.walk(found.value, "identifier"))
    inner = (slots_of(code, other) for other in named if other is not None and other.where != found.where)
    return next((base for base in inner if base is not None), None)


def _number(text: str) -> object:
    """Of a macro."""
    try:
        return float(text.split("//")[0].strip(" ()").rstrip("fF"))
    except ValueError:
        return UNKNOWN
