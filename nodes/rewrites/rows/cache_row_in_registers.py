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
from itertools import chain, repeat

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.device_code import Code, code_of, inside
from nodes.rewrites.analysis.insertions import require, without_unused
from nodes.rewrites.analysis.kernels import Kernel, Loop
from nodes.rewrites.analysis.launches import Launch, host_text
from nodes.rewrites.analysis.regions import row_loop, thread_loops
from nodes.rewrites.analysis.vectors import ELEMENT_BYTES, spelt_out
from nodes.rewrites.launch.grid_stride import headers
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.rows.row_kernels import RowKernel, by_items, unless_single
from nodes.rewrites.rows.rows_in_registers import RowReader, Value
from nodes.rewrites.syntax.source import Edits, Source, Unsupported, lifted
from nodes.rewrites.syntax.tree import field_of, one_variable, same, statements

ONE_REGISTER_EACH = frozenset(
    {*ELEMENT_BYTES, "float2", "float4", "int2", "int4", "unsigned", "uint2", "uint4", "double2"}
)
"""Types that have a register for every element anyway."""


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
            _BlockKeeper(code, kernel, early=argument != "late").write(edits)
    require(edits, code, "row_items", "hold_packed")
    return without_unused(code, edits.apply())


class RowKeeper(RowReader):
    """Works out what of one kernel can stay in registers, and writes the kernel that does so beside it, whoever shares a row: the
    threads of a block, or those of a warp (warp_per_row.py)."""

    suffix: str

    # What is written.

    def write(self, edits: Edits) -> None:
        kernel = self.kernel
        name = self.code.fresh(f"{kernel.name}_{self.suffix}")
        edits.insert(kernel.outer.end_byte, "\n\n" + self._new_kernel(name))
        for launch in kernel.launches:
            self._write_launch(edits, launch, name)

    def _new_kernel(self, name: str) -> str:
        kernel, source = self.kernel, self.source
        replaced: list[tuple[Node, str]] = [(kernel.name_node, name), *self._elsewhere()]
        if bounds := self._bounds():
            replaced.append(kernel.bounded(bounds))
        replaced += [(node, "") for node in [*self.gone, *self.moved]]
        slots = [(node, f"{row.name}_kept[{self.item}][{index}]") for row in self.rows for node, index in row.uses]
        for number, loop in enumerate(self.loops):
            replaced.append((loop.node, self._loop_text(number, loop, slots)))
        for pragma in source.walk(kernel.body, "preproc_call"):
            after = pragma.next_named_sibling
            if after is not None and any(same(after, loop.node) for loop in self.loops):
                replaced.append((pragma, "\n"))
        text = source.render(kernel.node, replaced)
        head = f"template <{self._numbers()}>\n"
        if kernel.template is not None:
            listed = field_of(kernel.template, "parameters")
            head = f"template {source.of(listed)[:-1]}, {self._numbers()}>\n"
        text = re.sub(r"(?m)^[ \t]+(?=#pragma)|^[ \t]+\n", "", text)
        return re.sub(r"\n[ \t]*\n[ \t]*\n", "\n\n", head + text)

    def _bounds(self) -> str:
        """The new kernel's launch bounds, "" for none."""
        raise NotImplementedError

    def _numbers(self) -> str:
        """Its own template parameters."""
        raise NotImplementedError

    def _elsewhere(self) -> list[tuple[Node, str]]:
        """What else of the kernel reads otherwise."""
        return []

    def _element(self, loop: Loop) -> str:
        """Which element of the row a thread's item is."""
        raise NotImplementedError

    def _write_launch(self, edits: Edits, launch: Launch, name: str) -> None:
        """The launch, in a choice between the new kernel and the old one."""
        raise NotImplementedError

    def _loop_text(self, number: int, loop: Loop, slots: list[tuple[Node, str]]) -> str:
        source, unit = self.source, self.source.unit(loop.node)
        outer = source.indent(loop.node)
        first = self._first_loads() if number == 0 else []
        in_front = [*first, *self.early] if number == 0 else []
        lines: list[str] = []
        if number == 0:
            lines += [lifted(self.source, declaration, source.of(declaration)) for declaration in self.moved]
            lines += self._arrays()
        if in_front:
            lines += self._around(loop, self._front(loop, first), unit)
        body: list[str] = []
        for statement in statements(loop.body):
            value = next((v for v in self.values if v.loop == number and same(v.statement, statement)), None)
            held = self.names.get(value.address) if value is not None and value.loads else None
            if value is None or held is None:
                body.append(self._declared_in_row(statement, number) or source.render(statement, slots))
            elif value in in_front or value in self.early or (value.address in self.kept and self._had_before(value)):
                constant = "" if self._changes(value, loop) else "const "
                bound = f"{constant}{value.type}& {value.variable} = {held}[{self.item}];"
                body.append(self._held(value, f"{held}[{self.item}]") + bound)
            elif number == 0 or value.address in self.kept:
                body += [
                    f"{value.type}& {value.variable} = {held}[{self.item}];",
                    f"{value.variable} = {self._loaded(statement)};",
                ]
            else:
                body.append(source.render(statement, slots))
        origins = chain(statements(loop.body), repeat(statements(loop.body)[-1]))
        body = self._without_unused([lifted(source, origin, text) for origin, text in zip(origins, body, strict=False)])
        lines += self._around(loop, body, unit)
        return f"\n{outer}".join(part for line in lines for part in line.split("\n")).replace(
            f"\n{outer}#pragma", "\n#pragma"
        )

    def _had_before(self, value: Value) -> bool:
        """Whether a loop before this one has left the element in its slot."""
        return any(v.address == value.address and v.loop < value.loop for v in self.values)

    def _held(self, value: Value, slot: str) -> str:
        """The line in front of a kept pack's use, "" for what needs none."""
        if value.type in ONE_REGISTER_EACH or value.type in self.kernel.template_names:
            return ""
        return f"hold_packed({slot});\n"

    def _bytes(self, launch: Launch | None = None) -> str:
        """What one step takes in registers, as the kernel's template parameters say it, or those of a launch."""
        counts: dict[str, int] = {}
        kept = {self.names[v.address]: v.type for v in [*self.values, *self.early] if v.address in self.names}
        for short in kept.values():
            kind = self._spelled(spelt_out(self.kernel, short))
            counts[f"sizeof({kind})"] = counts.get(f"sizeof({kind})", 0) + 1
        for row in self.rows:
            width = self._spelled(row.width)
            whole = re.fullmatch(r"[\w.]+|[(].*[)]", width)
            size = f"{width if whole else f'({width})'} * sizeof({row.element})"
            counts[size] = counts.get(size, 0) + 1
        text = " + ".join(size if n == 1 else f"{n} * {size}" for size, n in counts.items())
        if launch is not None:
            for name, argument in zip(self.kernel.template_names, launch.template_arguments, strict=False):
                text = re.sub(rf"\b{re.escape(name)}\b", argument, text)
        return text

    def _spelled(self, width: str) -> str:
        """A constant of the kernel's body in words that are known outside of it."""
        for declaration in reversed(list(self.source.walk(self.kernel.body, "declaration"))):
            constant = one_variable(declaration) if "constexpr" in self.source.of(declaration) else None
            if constant is not None:
                name, value = map(self.source.of, constant)
                width = re.sub(rf"\b{re.escape(name)}\b", value if value.isdigit() else f"({value})", width)
        return width

    def _declared_in_row(self, statement: Node, number: int) -> str | None:
        """`Pack out;` whose variable is stored to a kept address: the array's element under the same name."""
        for value in self.values:
            if value.loop != number or value.loads or value.address not in self.kept or statement.type != "declaration":
                continue
            declarators = statement.children_by_field_name("declarator")
            if len(declarators) == 1 and self.source.of(declarators[0]) == value.variable:
                return f"{value.type}& {value.variable} = {self.names[value.address]}[{self.item}];"
        return None

    def _arrays(self) -> list[str]:
        by_type: dict[str, list[str]] = {}
        for value in [*self.values, *self.early]:
            name = self.names.get(value.address)
            if name is not None and f"{name}[{self.count}]" not in by_type.setdefault(value.type, []):
                by_type[value.type].append(f"{name}[{self.count}]")
        lines = [f"{kind} {', '.join(names)};" for kind, names in by_type.items() if names]
        for row in self.rows:
            lines.append(f"{row.element} {row.name}_kept[{self.count}][{row.width}];")
        return lines

    def _front(self, loop: Loop, first: list[Value]) -> list[str]:
        """All loads, with the index declarations that they need."""
        lines = []
        for statement in self._leading():
            value = next((v for v in first if same(v.statement, statement)), None)
            if value is not None:
                lines.append(f"{self.names[value.address]}[{self.item}] = {self._loaded(statement)};")
            elif self._load_at(0, statement) is None and all(
                d.type == "init_declarator" for d in statement.children_by_field_name("declarator")
            ):
                lines.append(lifted(self.source, statement, self.source.of(statement)))
        lines += [
            f"{self.names[value.address]}[{self.item}] = {self._loaded(value.statement)};" for value in self.early
        ]
        return self._without_unused(lines)

    def _loaded(self, statement: Node) -> str:
        return self.source.of(field_of(statement, "declarator"), "value")

    def _changes(self, value: Value, loop: Loop) -> bool:
        """Whether the loop changes the variable after it was loaded."""
        words = re.compile(rf"(?<![\w.]){re.escape(value.variable)}\b")
        qualifiers = {self.source.of(c) for c in value.statement.children}
        return "const" not in qualifiers and len(words.findall(self.source.of(loop.body))) > 1

    def _without_unused(self, lines: list[str]) -> list[str]:
        """Without declarations of integers that the other lines do not name."""
        kept = list(lines)
        for line in reversed(lines):
            match = re.match(
                r"(?:const )?(?:auto|int|unsigned|int64_t|uint32_t|size_t|int32_t|uint64_t) (\w+) = [^\n]*;$", line
            )
            if match and not any(re.search(rf"\b{match[1]}\b", other) for other in kept if other is not line):
                kept.remove(line)
        return kept

    def _around(self, loop: Loop, body: list[str], unit: str) -> list[str]:
        bound = self.source.of(loop.bound_node)
        kind = loop.type if loop.type != "auto" else "int64_t"
        return [
            "#pragma unroll",
            f"for (int {self.item} = 0; {self.item} < {self.count}; ++{self.item}) {{",
            f"{unit}const {kind} {loop.name} = {self._element(loop)};",
            f"{unit}if ({loop.name} < {bound}) {{",
            *(line if line.startswith("#") else unit * 2 + line for text in body for line in text.split("\n")),
            f"{unit}}}",
            "}",
        ]


class _BlockKeeper(RowKeeper):
    """Of a row that a block's threads share."""

    suffix = "in_registers"

    def __init__(self, code: Code, kernel: Kernel, *, early: bool) -> None:
        super().__init__(code, kernel, thread_loops(kernel), early=early)
        RowKernel(code, kernel, self.gone)  # there may be more threads a row than the source has, or fewer

    def _bounds(self) -> str:
        return f"__launch_bounds__(row_width({self.count}, {self._bytes()}))"

    def _numbers(self) -> str:
        return f"int {self.count}"

    def _element(self, loop: Loop) -> str:
        return f"threadIdx.x + {self.item} * blockDim.x"

    def _write_launch(self, edits: Edits, launch: Launch, name: str) -> None:
        source, kernel = self.source, self.kernel
        statement = launch.statement
        rows = row_loop(kernel)
        if launch.extents(launch.block)[1:] != ("1", "1") or (self._is_wide(launch) and rows is not None):
            raise Unsupported("a launch of more than one dimension")
        count = host_text(kernel, launch, rows.bound_node) if rows is not None else self._blocks(launch)
        steps = host_text(kernel, launch, self.loops[0].bound_node)
        items, run, length = (
            self.code.fresh("items"),
            self.code.fresh("launch_kept"),
            self.code.fresh("steps", "row_steps"),
        )
        ask = self.code.fresh("ask", "ask_kernel")
        inner = f"decltype({items})::value"
        function = re.sub(rf"\b{re.escape(kernel.name)}\b", name, launch.with_arguments(inner), count=1)
        grid = source.of(launch.grid)
        if rows is not None and all(any(inside(use, h) for h in headers([rows])) for use in kernel.block_indices()):
            grid = f"static_cast<unsigned>({count})"
        call = launch.rendered(function=function, grid=grid, block=f"row_threads({length}, {inner})", shared="0")
        chosen = f"row_items({count}, {length}, {self._bytes(launch)}, {ask})"
        lines = [
            f"const int64_t {length} = {steps};",
            f"const auto {ask} = [](auto {items}, cudaFuncAttributes* of) {{",
            [f"cudaFuncGetAttributes(of, {function});"],
            "};",
            *by_items(run, items, [f"{call};"], chosen, source.of(statement)),
        ]
        edits.write(statement, unless_single(launch, lines))

    def _is_wide(self, launch: Launch) -> bool:
        """Whether its grid has more than one dimension."""
        return launch.extents(launch.grid)[1:] != ("1", "1")

    def _blocks(self, launch: Launch) -> str:
        """How many blocks there are, and so rows, as an expression of the host's."""
        extents = launch.extents(launch.grid)
        if not self._is_wide(launch):
            return extents[0]
        plain = [e if e.isidentifier() or e.isdigit() else f"({e})" for e in extents if e != "1"]
        return " * ".join(["int64_t{1}", *plain])
