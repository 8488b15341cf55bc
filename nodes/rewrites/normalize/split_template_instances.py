"""A kernel whose launches name different sides of a branch becomes one kernel for each side.

`if (IS_NEOX) { ... } else { ... }` with `rotate<T, true><<<...>>>` here and `rotate<T, false><<<...>>>` there: the second kernel
is called `rotate_not_is_neox`, so that fold_branches can leave either with its own statements. Changes nothing by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodes.rewrites.analysis.device_code import Code, one_by_one
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.source import Edits, Source
from nodes.rewrites.syntax.tree import field_of

MOST = 8
"""Kernels that are added to a file."""


@rule(
    "cuda",
    expected="nothing by itself: later steps see which statements a launch runs",
    normalizes=True,
)
def rewrite(source: Source, facts: Facts) -> str | None:
    return one_by_one(source, _part, _flags, MOST)


def _flags(code: Code) -> Iterator[tuple[Kernel, int]]:
    named = ((kernel, at) for kernel in code.kernels for at in range(len(kernel.template_names)))
    return (flag for flag in named if _is_flag(code, *flag))


def _is_flag(code: Code, kernel: Kernel, at: int) -> bool:
    """Whether a template parameter is a bool that decides between statements, true for some launches and false for some."""
    source, name = code.source, kernel.template_names[at]
    mentions = sum(source.of(n) == kernel.name for n in source.walk(None, "identifier"))
    passed = {"".join(launch.template_arguments[at : at + 1]) for launch in kernel.launches}
    if source.of(kernel.template_parameters[at], "type") != "bool" or passed != {"true", "false"}:
        return False
    conditions = [field_of(node, "condition") for node in source.walk(kernel.body, "if_statement")
                  if field_of(node, "alternative") is not None]  # fmt: skip
    decides = any(source.of(word) == name for c in conditions for word in source.walk(c, "identifier"))
    return decides and mentions == 1 + len(
        kernel.launches
    )  # no attributes that are set for it, no declaration in front


def _part(edits: Edits, code: Code, kernel: Kernel, at: int) -> None:
    """The kernel twice; launches that pass false get the second."""
    source, outer = code.source, kernel.outer
    other = code.fresh(f"{kernel.name}_not_{kernel.template_names[at].lower()}")
    edits.insert(outer.end_byte, "\n\n" + source.render(outer, [(kernel.name_node, other)]))
    for launch in kernel.launches:
        if launch.template_arguments[at] == "false":
            names = source.walk(launch.function, "identifier")
            edits.replace(next(name for name in names if source.of(name) == kernel.name), other)
