"""Rows that do not begin and end with a pack move in packs all the same, but for their first and last elements.

Applies to what pack leaves, and to what later steps make of it: loops over the packs of one row, or of a flat array. Where the
host launched packs of one element, since a width does not divide or a pointer is not aligned, it now launches the kernel for
whole packs once more, with RAGGED: packs then begin where 16 aligned bytes do, which the kernel finds from the row's
address, and the first and the last ones are smaller. A pack that is whole and aligned moves in one piece. One that is not
aligned like the row, of a weight, is put together from the aligned pieces around it, if these are inside; all else moves
element by element. So it is right for every address; but the host asks that pointers to rows of the same offset be aligned
alike, and that rows be longer than a few packs, since it gains nothing there.

Kernels for whole packs are compiled as before: all that is new in them is a constant there.

Planned where the spec names such rows, if only to check them: the kernel of packs is slower than the source there, by up to
four times (docs/results.md), where it gave each thread a step of 16 bytes that is one element now.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from tree_sitter import Node

from harness.records import Outcome
from kernels.spec import DTYPE_BYTES, Spec
from nodes.rewrites.analysis.device_code import Code, code_of, inside
from nodes.rewrites.analysis.insertions import require
from nodes.rewrites.analysis.launches import Launch, host_text
from nodes.rewrites.memory.vectorized_loops import Change, PackLoops, in_lanes, packs_in, template_argument, uses_of
from nodes.rewrites.prelude import text_of
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import children_of, field_of, names_declared, same

SPEEDUP = 1.3

PACK_BYTES = 16
"""A load's, and so what rows are aligned to."""
FEWEST_PACKS = 4
"""Shorter rows are mostly their first and last packs."""


def speedup(facts: Facts) -> float:
    """Workloads that are only checked show no gain, so there it must not wait for one."""
    return SPEEDUP if facts.share_of_workloads(lambda _, row_bytes: row_bytes % PACK_BYTES != 0) else 1.02


@rule(
    "cuda",
    expected="16 bytes a load also where rows do not divide into packs, instead of one element",
    speedup=speedup,
    helps={"memory", "latency", "compute"},
    after=("programmatic_dependent_launch",),
    risks=(Outcome.INCORRECT,),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    if text_of("lanes") not in source.text or not has_ragged_rows(facts.spec):
        return None
    code = code_of(source)
    edits = Edits(source, _changes(code, code.fresh("RAGGED")))
    require(edits, code, "ragged_packs", "aligned_alike")
    return edits.apply()


def has_ragged_rows(spec: Spec) -> bool:
    """Whether the rows of the largest tensor of some visible workload do not divide into loads of 16 bytes."""
    for workload in spec.suite("cuda"):
        largest = max(spec.tensors, key=lambda tensor: spec.tensor_bytes(tensor, workload))
        row_bytes = spec.shape(largest, workload.axes)[-1] * DTYPE_BYTES[spec.dtype(largest, workload)]
        if row_bytes % PACK_BYTES and row_bytes >= FEWEST_PACKS * PACK_BYTES:
            return True
    return False


def _changes(code: Code, ragged: str) -> list[Change]:
    """To every choice of the host, and to its kernels, none of which is launched elsewhere."""
    choices = list(_choices(code))
    names = {name for choice in choices for name in choice.kernels}
    found = [kernel for kernel in code.kernels if kernel.name in names]
    kernels = {kernel.name: PackLoops(kernel, _place(kernel.name, code, choices), ragged) for kernel in found}
    of_choices = [change for choice in choices for change in choice.changes(kernels, ragged)]
    return [change for name in sorted(names) for change in kernels[name].changes()] + of_choices


def _place(name: str, code: Code, choices: list[_Choice]) -> int:
    """The place of the pack's width among a kernel's template arguments, the same wherever it is named."""
    found = [place for choice in choices for kernel, place, _ in choice.mentions if kernel == name]
    named = [n for n in code.source.walk(None, "template_function") if code.source.of(n, "name") == name]
    elsewhere = len(found) != len(named) or name in code.words_of_macros
    if elsewhere or len(set(found)) != 1 or len(code.overloads.get(name, [])) != 1:
        raise Unsupported("a kernel that is launched elsewhere too")
    return found[0]


_CHOICE = "if ($asked) { $run(std::integral_constant<int, $pack>{}); } else { $run(std::integral_constant<int, 1>{}); }"


def _choices(code: Code) -> Iterator[_Choice]:
    source = code.source
    for branch in source.walk(None, "if_statement"):
        form = match(source, branch, _CHOICE)
        run = code.variable(form["run"]) if form is not None else None
        if run is None or run.value is None or run.value.type != "lambda_expression":
            continue
        first = next(iter(children_of(run.value, "body")), None)
        made, parameters = match(source, first, _WIDTH), field_of(run.value, "declarator", "parameters")
        if made is not None and source.of(parameters) == f"(auto {source.of(made['lanes'])})":
            calls = [named.parent for named in form.every["run"]]
            yield _Choice(
                code, branch, calls, source.of(form["pack"]), run.value, parameters, source.of(made["width"]), first
            )


_WIDTH = "constexpr int $width = decltype($lanes)::value;"


@dataclass(frozen=True)
class _Choice:
    """Where the host launches packs, or else single elements, as pack writes it."""

    code: Code
    branch: Node
    """`if (...) { run(PACK); } else { run(1); }`"""
    calls: list[Node]
    pack: str
    """What the first one calls the number of elements of a pack."""
    run: Node
    """The lambda that launches."""
    parameters: Node
    width: str
    """What it calls that number."""
    declaration: Node
    """`constexpr int WIDTH = decltype(lanes)::value;`"""

    @cached_property
    def mentions(self) -> list[tuple[str, int, Node]]:
        """Kernel, place among its template arguments, and argument, wherever the width is one."""
        found = []
        for use in uses_of(self.code.source, self.run, self.width):
            argument = template_argument(use)
            if argument is None or in_lanes(self.code.source, argument):
                continue
            if argument.parent.parent.type == "template_function":
                place = [c.id for c in argument.parent.named_children].index(argument.id)
                found.append((self.code.source.of(argument.parent.parent, "name"), place, argument))
        return found

    @property
    def kernels(self) -> set[str]:
        return {name for name, _, _ in self.mentions}

    def changes(self, kernels: dict[str, PackLoops], ragged: str) -> list[Change]:
        """Raises Unsupported where a kernel is not understood, or something that is no number of packs depends on the width."""
        code, source, edits = self.code, self.code.source, Edits(self.code.source)
        if not self.kernels or not self.kernels <= kernels.keys():
            raise Unsupported("a kernel that is not understood")
        self._check_launches(kernels)
        lengths = {_bare(length) for length in self._lengths(kernels)}
        counted = False
        for use in uses_of(source, self.run, self.width):
            argument, divided = template_argument(use), match(source, use.parent, f"$n / {self.width}")
            if any(same(argument, mentioned) for _, _, mentioned in self.mentions):
                edits.insert(argument.end_byte, f", {ragged}")
            elif divided is not None and _bare(source.of(divided["n"])) in lengths:
                edits.replace(use.parent, packs_in(source, divided["n"], self.width, ragged))
                counted = True
            elif not (
                inside(use, self.declaration)
                or in_lanes(source, argument)
                or source.of(use.parent) == f"{self.width} == 1"
            ):
                raise Unsupported("another number that the width divides, or a type that depends on it")
        if not counted and any(kernels[name].guards for name in self.kernels):
            raise Unsupported("a launch that may not reach the last pack")
        parameter = code.fresh("ragged")
        edits.insert(self.parameters.end_byte - 1, f", auto {parameter}")
        edits.behind(self.declaration, f"constexpr bool {ragged} = decltype({parameter})::value;")
        self._choose(edits, kernels)
        return edits.changes

    def _choose(self, edits: Edits, kernels: dict[str, PackLoops]) -> None:
        source, otherwise = self.code.source, field_of(self.branch, "alternative")
        indent, unit = source.indent(self.branch), source.unit(self.branch)
        for call in self.calls:
            edits.insert(call.end_byte - 1, ", std::false_type{}")
        call = source.of(self.calls[0]).removesuffix(")")
        condition = " && ".join(self._conditions(kernels))
        lines = [f"else if ({condition}) {{", f"{unit}{call}, std::true_type{{}});", "} "]
        edits.insert(otherwise.start_byte, f"\n{indent}".join(lines))

    def _conditions(self, kernels: dict[str, PackLoops]) -> list[str]:
        """What makes packs worth it for ragged rows, in the words of the function around the choice."""
        source = self.code.source
        found = {f"{length} >= {FEWEST_PACKS} * {self.pack}": None for length in self._lengths(kernels)}
        for kernel, launch in self._launches(kernels):
            found.update(dict.fromkeys(kernel.alike(launch)))
        own = {source.of(name) for node in source.walk(self.run, "declaration") for name in names_declared(node)}
        if any(own & set(re.findall(r"\w+", condition)) for condition in found):
            raise Unsupported("a size that only the launch knows")
        return list(found)

    def _check_launches(self, kernels: dict[str, PackLoops]) -> None:
        """Kernels that are launched in other ways take the same rows as one that is launched plainly."""
        plain = {self._rows_of(kernel) for kernel, _ in self._launches(kernels)}
        if not plain or any(self._rows_of(kernels[name]) not in plain for name in self.kernels):
            raise Unsupported("a kernel that is launched in unknown ways")

    def _rows_of(self, kernel: PackLoops) -> tuple[str, ...]:
        return (self.code.source.of(kernel.length), *(self.code.source.of(p.node) for p in kernel.kernel.parameters))

    def _launches(self, kernels: dict[str, PackLoops]) -> Iterator[tuple[PackLoops, Launch]]:
        for kernel in (kernels[name] for name in sorted(self.kernels)):
            for launch in kernel.kernel.launches:
                if inside(launch.node, self.run):
                    yield kernel, launch

    def _lengths(self, kernels: dict[str, PackLoops]) -> list[str]:
        """Of the rows, in the host's words."""
        found = [host_text(kernel.kernel, launch, kernel.length) for kernel, launch in self._launches(kernels)]
        return list(dict.fromkeys(found))


def _bare(text: str) -> str:
    return text.translate(str.maketrans("", "", "() "))
