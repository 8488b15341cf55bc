"""What threads hold after each statement behind a loop of an online recurrence: the statements run on numbers."""

from __future__ import annotations

from tree_sitter import Node

from nodes.rewrites.analysis.block_arithmetic import UNKNOWN, Memory
from nodes.rewrites.analysis.device_code import Code
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.analysis.launches import Launch
from nodes.rewrites.analysis.numbers import close
from nodes.rewrites.reductions.surroundings import Surroundings
from nodes.rewrites.syntax.source import Unsupported
from nodes.rewrites.syntax.tree import field_of

Threads = dict[str, list[float]]
"""What each thread has of the state, by its names."""


class Run:
    """A block that has run some of the statements, from what each of its threads has of the state."""

    def __init__(self, code: Code, kernel: Kernel, launch: Launch, width: int, threads: Threads) -> None:
        self.around = Surroundings(code, kernel, launch, width)
        self.block = self.around.block
        self.frame, self.active = self.block.holding(threads), self.block.everyone

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

    def value(self, node: Node) -> object:
        """What the first thread has of it, outside of the statements."""
        try:
            return self.block.of_thread(self.block.value(node, self.block.frame(), self.block.everyone), 0)
        except Unsupported:
            return UNKNOWN

    def number(self, node: Node) -> float:
        """Raises Unsupported for what is not known."""
        value = self.value(node)
        if not isinstance(value, (int, float)):
            raise Unsupported("a scale of unknown value")
        return float(value)

    def places(self) -> dict[str, tuple[object, bool]]:
        """What the first thread finds where, and whether the others find the same; structs field by field."""
        block, found = self.block, dict[str, tuple[object, bool]]()
        for memory in self.around.left_in_memory():
            value, everywhere = memory.held[0][0], self._is_readable(memory)
            place = memory.name if memory.scalar else f"{memory.name}[0]"
            parts = {f"{place}.{part}": v for part, v in value.items()} if isinstance(value, dict) else {place: value}
            found |= {name: (v, everywhere) for name, v in parts.items()}
        for name, value in {n: v for scope in self.frame.scopes for n, v in scope.items()}.items():
            values = value if isinstance(value, list) else [value] * block.width
            for part in values[0] if isinstance(values[0], dict) else [""]:
                mine = [v.get(part, UNKNOWN) if isinstance(v, dict) else v for v in values] if part else values
                found[f"{name}.{part}" if part else name] = (mine[0], all(close(v, mine[0]) for v in mine))
        return found

    def found(self, expected: dict[str, float]) -> dict[tuple[str, str], bool]:
        """Where each of the numbers is, `m`, `md.m`, `maxs[0]` or `total.m`, once threads have met, and whether every thread may
        read it there."""
        places = self.places().items() if self.block.barriers else ()
        return {(path, p): all_ for path, want in expected.items() for p, (v, all_) in places if close(v, want)}

    def _is_readable(self, memory: Memory) -> bool:
        try:
            self.block._read(memory, 0, self.block.everyone)
        except Unsupported:
            return False
        return True
