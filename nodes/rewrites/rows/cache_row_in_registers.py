"""A block's row stays in registers between its passes, instead of being read again or kept in shared memory.

Applies where several loops of a block visit the same range, the same thread the same elements: what a later loop loads and
an earlier one loaded or stored, and rows in shared memory that each thread only reads where it wrote itself, become small
arrays that unrolled loops index. All loads stand in front, those of later loops' constant operands too, so that they are
in flight together. How many items a thread keeps, and with it the block's width, the host works out from the number and
the length of the rows, the kernel's registers and the device: the fewest waves of blocks; rows too long for registers
(more than 4096 steps of 48 bytes, 8192 of 16) take the kernel as it was.
"""

from __future__ import annotations

import re

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.device_code import Code, code_of, inside
from nodes.rewrites.analysis.insertions import require, without_unused
from nodes.rewrites.analysis.kernels import Kernel, Loop
from nodes.rewrites.analysis.launches import Launch, host_text
from nodes.rewrites.analysis.numbers import ELEMENT_BYTES
from nodes.rewrites.analysis.regions import row_loop, thread_loops
from nodes.rewrites.launch.grid_stride import headers
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.rows.row_kernels import RowKernel, by_items, unless_single
from nodes.rewrites.rows.rows_in_registers import RowReader, Value
from nodes.rewrites.syntax.insert import renamed, substituted
from nodes.rewrites.syntax.source import Edits, Lines, Source, Unsupported, levelled, lifted
from nodes.rewrites.syntax.tree import field_of, is_integer, one_variable, pragma_of, same, statements


@rule(
    "cuda",
    expected="each row is read once, all its loads in flight together; no shared memory between the passes",
    speedup=1.25,
    helps={"memory", "latency"},
    variants=("late",),
    risks=(Outcome.INCORRECT, Outcome.RUNTIME_ERROR, Outcome.OUT_OF_RESOURCES),
    once="row_items",
)
def rewrite(source: Source, facts: Facts, argument: str = "") -> str | None:
    code = code_of(source)
    edits = Edits(source)
    for kernel in code.kernels:
        with edits.attempt():
            _RowKeeper(code, kernel, early=argument != "late").write(edits)
    require(edits, code, "row_items", "hold_packed")
    return without_unused(code, edits.apply())


class _RowKeeper(RowReader):
    """Works out what of one kernel can stay in registers, and writes the kernel that does so beside it."""

    def __init__(self, code: Code, kernel: Kernel, *, early: bool) -> None:
        super().__init__(code, kernel, thread_loops(kernel), early=early)
        RowKernel(code, kernel, self.gone)  # there may be more threads a row than the source has, or fewer

    def write(self, edits: Edits) -> None:
        name = self.code.fresh(f"{self.kernel.name}_in_registers")
        edits.insert(self.kernel.outer.end_byte, "\n\n" + self._new_kernel(name))
        for launch in self.kernel.launches:
            self._write_launch(edits, launch, name)

    def _new_kernel(self, name: str) -> str:
        kernel, source = self.kernel, self.source
        bounds = f"__launch_bounds__(row_width({self.count}, {self._bytes()}))"
        replaced = [(kernel.name_node, name), kernel.bounded(bounds)]
        replaced += [(node, "") for node in [*self.gone, *self.moved]]
        replaced += [(loop.node, self._loop_text(number, loop)) for number, loop in enumerate(self.loops)]
        replaced += [(pragma, "\n") for loop in self.loops if (pragma := pragma_of(loop.node)) is not None]
        listed = field_of(kernel.template, "parameters")
        head = f"{source.of(listed)[:-1]}, " if listed is not None else "<"
        text = re.sub(r"(?m)^[ \t]+(?=#pragma)|^[ \t]+\n", "", source.render(kernel.node, replaced))
        return re.sub(r"\n[ \t]*\n[ \t]*\n", "\n\n", f"template {head}int {self.count}>\n{text}")

    def _loop_text(self, number: int, loop: Loop) -> str:
        source, lines, replaced = self.source, list[Lines](), self._slots(number, loop)
        if number == 0:
            lines += [part for d in self.moved for part in lifted(source, d, source.of(d)).split("\n")]
            lines += self._arrays()
            if self.front:
                lines += self._around(loop, self._loads())
        lines += self._around(loop, [lifted(source, s, source.render(s, replaced)) for s in statements(loop.body)])
        outer = source.indent(loop.node)
        return f"\n{outer}".join(levelled(lines, source.unit(loop.node))).replace(f"\n{outer}#pragma", "\n#pragma")

    def _around(self, loop: Loop, body: list[str]) -> Lines:
        kind = loop.type if loop.type != "auto" else "int64_t"
        return [
            "#pragma unroll",
            f"for (int {self.item} = 0; {self.item} < {self.count}; ++{self.item}) {{",
            [
                f"const {kind} {loop.name} = threadIdx.x + {self.item} * blockDim.x;",
                f"if ({loop.name} < {self.source.of(loop.bound_node)}) {{",
                [part for text in self._without_unused(body) for part in text.split("\n")],
                "}",
            ],
            "}",
        ]

    def _slots(self, number: int, loop: Loop) -> list[tuple[Node, str]]:
        """What of a loop's body is a register now: loads, variables that are stored, and elements of rows in shared memory."""
        found = [(node, f"{row.name}_kept[{self.item}][{index}]") for row in self.rows for node, index in row.uses]
        for value in (v for v in self.values if v.loop == number and v.address in self.names):
            slot, kept = f"{self.names[value.address]}[{self.item}]", value.address in self.kept
            bound = f"{value.type}& {value.variable} = {slot};"
            if value.loads and (kept or value in self.front):
                constant = "" if self._changes(value, loop) else "const "
                # Elements have a register each anyway.
                single = value.type in ELEMENT_BYTES or value.type in self.kernel.template_names
                held = "" if single else f"hold_packed({slot});\n"
                found.append((value.statement, f"{held}{constant}{bound}"))
            elif kept and value.bare is not None:
                found.append((value.bare, bound))
        return found

    def _changes(self, value: Value, loop: Loop) -> bool:
        """Whether the loop changes the variable after it was loaded."""
        words = re.compile(rf"(?<![\w.]){re.escape(value.variable)}\b")
        return not self.source.says(value.statement, "const") and len(words.findall(self.source.of(loop.body))) > 1

    def _bytes(self, launch: Launch | None = None) -> str:
        """What one step takes in registers, as the kernel's template parameters say it, or those of a launch."""
        counts: dict[str, int] = {}
        kept = {self.names[v.address]: v.type for v in self.values if v.address in self.names}
        sizes = [f"sizeof({self._spelled(short)})" for short in kept.values()]
        for row in self.rows:
            width = self._spelled(row.width)
            width = width if re.fullmatch(r"\w+|[(].*[)]", width) else f"({width})"
            sizes.append(f"{width} * sizeof({row.element})")
        for size in sizes:
            counts[size] = counts.get(size, 0) + 1
        text = " + ".join(size if n == 1 else f"{n} * {size}" for size, n in counts.items())
        given = zip(self.kernel.template_names, launch.template_arguments if launch is not None else [], strict=False)
        return substituted(text, dict(given))

    def _spelled(self, width: str) -> str:
        """A constant of the kernel's body in words that are known outside of it."""
        for declaration in reversed(list(self.source.walk(self.kernel.body, "declaration"))):
            constant = one_variable(declaration) if "constexpr" in self.source.of(declaration) else None
            if constant is not None:
                name, value = map(self.source.of, constant)
                width = substituted(width, {name: value if value.isdigit() else f"({value})"})
        return width

    def _arrays(self) -> list[str]:
        by_type: dict[str, dict[str, None]] = {}
        for value in self.values:
            if value.address in self.names:
                by_type.setdefault(value.type, {})[f"{self.names[value.address]}[{self.count}]"] = None
        rows = [f"{row.element} {row.name}_kept[{self.count}][{row.width}];" for row in self.rows]
        return [f"{kind} {', '.join(names)};" for kind, names in by_type.items()] + rows

    def _loads(self) -> list[str]:
        """All loads in front, with the index declarations that they need."""
        lines, source = [], self.source
        for statement in [*self.leading, *(v.statement for v in self.front if v.loop)]:
            value = next((v for v in self.front if same(v.statement, statement)), None)
            if value is not None:
                loaded = source.of(one_variable(statement)[1])
                lines.append(f"{self.names[value.address]}[{self.item}] = {loaded};")
            elif source.has(statement, "init_declarator"):
                lines.append(lifted(source, statement, source.of(statement)))
        return lines

    def _without_unused(self, lines: list[str]) -> list[str]:
        """Without declarations of integers that the other lines do not name."""
        kept = list(lines)
        for line in reversed(lines):
            found = re.match(r"(?:const )?(\w+) (\w+) = [^\n]*;$", line)
            index = found is not None and (found[1] == "auto" or is_integer(found[1]))
            if index and not any(re.search(rf"\b{found[2]}\b", other) for other in kept if other is not line):
                kept.remove(line)
        return kept

    def _write_launch(self, edits: Edits, launch: Launch, name: str) -> None:
        source, kernel, fresh = self.source, self.kernel, self.code.fresh
        rows = row_loop(kernel)
        if any(launch.extents(node)[1:] != ("1", "1") for node in (launch.grid, launch.block)):
            raise Unsupported("a launch of more than one dimension")
        grid, count = source.of(launch.grid), launch.extents(launch.grid)[0]
        if rows is not None:
            count = host_text(kernel, launch, rows.bound_node)
            if all(any(inside(use, header) for header in headers([rows])) for use in kernel.block_indices()):
                grid = f"static_cast<unsigned>({count})"
        steps = host_text(kernel, launch, self.loops[0].bound_node)
        items, run, length, ask = (
            fresh("items"), fresh("launch_kept"), fresh("steps", "row_steps"), fresh("ask", "ask_kernel")
        )  # fmt: skip
        inner = f"decltype({items})::value"
        function = renamed(launch.with_arguments(inner), kernel.name, name)
        call = launch.rendered(function=function, grid=grid, block=f"row_threads({length}, {inner})", shared="0")
        chosen = f"row_items({count}, {length}, {self._bytes(launch)}, {ask})"
        lines = [
            f"const int64_t {length} = {steps};",
            f"const auto {ask} = [](auto {items}, cudaFuncAttributes* of) {{",
            [f"cudaFuncGetAttributes(of, {function});"],
            "};",
            *by_items(run, items, [f"{call};"], chosen, source.of(launch.statement)),
        ]
        edits.write(launch.statement, unless_single(launch, lines))
