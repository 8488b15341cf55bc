"""An index that is worked down step by step becomes a variable for each of its values.

    int w = i % width;                     int w = i % width;
    i /= width;                     ->     const int i_2 = i / width;
    int h = i % height;                    int h = i_2 % height;

Applies to integers of the kernel, and its parameters, that are set anew by statements of the same block, one after another:
in no branch and no loop inside of it. Changes nothing by itself, but other steps follow only variables that keep their value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.device_code import Code, Definition, one_by_one
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.source import Edits, Source, inside
from nodes.rewrites.syntax.tree import field_of, is_integer, same, statements

_SIMPLE = {"identifier", "number_literal", "parenthesized_expression", "call_expression", "subscript_expression"}


@rule(
    "cuda",
    expected="nothing by itself: later steps can follow the index",
    normalizes=True,
    after=("fuse_kernels",),
    risks=(Outcome.INCORRECT,),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    return one_by_one(source, _settle, _targets, 32)  # one value at a time, the last ones first


def _targets(code: Code) -> Iterator[tuple[Kernel, Node]]:
    return ((kernel, node) for kernel in code.kernels for node in reversed(list(code.assigned(kernel.body))))


def _settle(edits: Edits, code: Code, kernel: Kernel, target: Node) -> bool:
    source, found = code.source, code.definition(target)
    block = _block(kernel, found) if found is not None else None
    if found is None or block is None:
        return False
    steps = [_step(code, kernel, t, found, block) for t in code.assigned(kernel.body) if _means(code, t, found)]
    uses = code.uses(found, kernel.body)
    if any(step is None for step in steps) or not _is_index(code, kernel, uses) or _is_seen_elsewhere(code, uses):
        return False
    statement, value = max((step for step in steps if step is not None), key=lambda step: step[0].start_byte)
    names = (f"{found.name}_{n}" for n in range(len(steps) + 1, 1000))
    new = next(name for name in names if name not in code.names())
    kind = source.of(found.declaration, "type")
    edits.replace(statement, f"const {kind} {new} = {value};")
    for use in uses:
        if use.start_byte >= statement.end_byte:
            edits.replace(use, new)
    return True


def _means(code: Code, name: Node, found: Definition) -> bool:
    here = code.definition(name) if code.source.of(name) == found.name else None
    return here is not None and here.where == found.where


def _block(kernel: Kernel, found: Definition) -> Node | None:
    """The block whose statements set the variable: the one that declares it, or the kernel's for a parameter."""
    source, declared = kernel.source, found.declaration
    plain = found.declarator is not None and (
        found.declarator.type == "identifier"
        or (found.declarator.type == "init_declarator" and field_of(found.declarator, "declarator").type == "identifier")
    )  # fmt: skip
    held = [c for c in declared.children if c.type in {"storage_class_specifier", "type_qualifier"}]
    if not plain or held or not is_integer(source.of(declared, "type")):
        return None
    if found.kind == "parameter":
        return kernel.body if kernel.parameter(found.name) is not None and inside(declared, kernel.node) else None
    block = declared.parent
    return block if found.kind == "local" and found.value is not None and block.type == "compound_statement" else None


def _step(code: Code, kernel: Kernel, target: Node, found: Definition, block: Node) -> tuple[Node, str] | None:
    """The statement that sets the variable, and the new value, where the statement is one of the block's own."""
    source, change = code.source, target.parent
    statement = change.parent if change is not None else None
    if change is None or statement is None or statement.type != "expression_statement":
        return None
    if not any(same(statement, own) for own in statements(block)):
        return None
    if change.type == "update_expression":
        sign = "+" if source.of(change).replace(found.name, "", 1).strip() == "++" else "-"
        return statement, f"{found.name} {sign} 1"
    right, operator = field_of(change, "right"), source.of(change, "operator")
    if change.type != "assignment_expression" or right is None or not same(field_of(change, "left"), target):
        return None
    if operator == "=":
        return statement, source.of(right)
    simple = right.type in _SIMPLE or (operator in {"+=", "-="} and source.of(right, "operator") in set("*/%"))
    value = source.of(right) if simple else f"({source.of(right)})"
    return statement, f"{found.name} {operator.removesuffix('=')} {value}"


def _is_seen_elsewhere(code: Code, uses: list[Node]) -> bool:
    """Whether the variable, and not its value, may be known under another name: to a reference, a lambda, a macro."""
    for use in uses:
        here, value = use, True
        while here.parent is not None and here.parent.type != "function_definition":
            parent = here.parent
            value = value and not here.type.endswith("statement")
            bound = parent.type == "init_declarator" and value
            if parent.type == "lambda_expression" or (
                bound and code.binds(parent.parent, field_of(parent, "declarator"))
            ):
                return True
            given = parent.type == "argument_list" and parent.parent.type == "call_expression" and same(here, use)
            if given and code.lends(parent.parent, use) != (False, False):
                return True
            here = parent
    bodies = [code.source.of(macro, "value") for macro in code.macros.values()]
    return bool({word for body in bodies for word in re.findall(r"\w+", body)} & {code.source.of(use) for use in uses})


def _is_index(code: Code, kernel: Kernel, uses: list[Node]) -> bool:
    """Whether elements are found by the variable, itself or through others that are computed from it."""
    source, names = code.source, {code.source.of(use) for use in uses}
    declared = [
        (source.of(d, "declarator"), {source.of(n) for n in source.walk(value, "identifier")})
        for d in source.walk(kernel.body, "init_declarator")
        if (value := field_of(d, "value")) is not None
    ]
    while more := {name for name, used in declared if used & names} - names:
        names |= more
    places = list(source.walk(kernel.body, "subscript_expression"))
    return any(source.of(n) in names for place in places for n in source.walk(place, "identifier"))
