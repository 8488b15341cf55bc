"""Kernels as the rewrites see them: parameters, loops, accesses to memory, barriers, launches."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from tree_sitter import Node

from nodes.rewrites.analysis.launches import Launch
from nodes.rewrites.syntax.algebra import Polynomial, Symbol
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Source, Unsupported
from nodes.rewrites.syntax.tree import children_of, declared_name, enclosing, field_of, same, template_of

if TYPE_CHECKING:
    from nodes.rewrites.analysis.device_code import Code


@dataclass(frozen=True)
class Parameter:
    name: str
    node: Node
    element: str
    """Type without const, pointer, restrict: `T`, `__half`, `int64_t`."""
    pointer: bool
    const: bool
    restrict: bool

    @property
    def symbol(self) -> Symbol:
        """What its value is called."""
        return Symbol(self.name, field_of(self.node, "declarator").start_byte)

    @property
    def reference(self) -> bool:
        return field_of(self.node, "declarator").type == "reference_declarator"

    @property
    def behind(self) -> bool:
        """Whether something is reached through it."""
        return self.pointer or self.reference


TALKS = re.compile(r"(__(sync|shfl|ballot|any|all|reduce|match|activemask)|atomic|cooperative).*|sync|Reduce|Sum")
"""Functions by which threads talk to each other."""
_FORS = "for ($T $i = $start; $i < $bound; {}) $body;"
_STEPS = {"update_expression": ("++$i", "$i++"), "assignment_expression": ("$i += $step",)}


@dataclass(frozen=True)
class Loop:
    """`for (int i = start; i < bound; i += step)`."""

    node: Node
    name: str
    symbol: Symbol
    type: str
    start_node: Node
    bound_node: Node
    step_node: Node | None
    """None for `++i`."""
    start: Polynomial
    bound: Polynomial
    step: Polynomial
    name_nodes: tuple[Node, ...]
    """The loop variable's occurrences in the header."""

    @property
    def body(self) -> Node:
        return field_of(self.node, "body")


@dataclass(frozen=True)
class Access:
    """One place where a kernel reads or writes an element behind a pointer."""

    node: Node
    """The whole lvalue or read, `__ldg(...)` included; the pointer itself where a helper reads or writes through it."""
    base: Symbol
    root: str
    """The kernel's parameter that the pointer comes from, "" for arrays of the thread or block, "?" where unknown."""
    offset: Polynomial
    """In elements."""
    element: str
    reads: bool
    writes: bool
    address: bool = False
    """The node is a pointer that a helper function takes."""
    wide: bool = False
    """Several elements from the offset on, as through a vector type."""


class Kernel:
    """A `__global__` function with a body."""

    def __init__(self, code: Code, node: Node) -> None:
        self.code, self.node, self.source = code, node, code.source
        declarator = field_of(node, "declarator")
        body = field_of(node, "body")
        name = declared_name(declarator)
        parameters = field_of(declarator, "parameters")
        if name is None or parameters is None:
            raise Unsupported("a kernel without a name")
        self.name = self.source.of(name)
        self.name_node, self.parameter_list, self.body = name, parameters, body
        self.template = template_of(node)
        kinds = {"parameter_declaration", "optional_parameter_declaration"}
        self.parameters = [self._parameter(p) for p in parameters.named_children if p.type in kinds]
        self.has_defaults = any(p.type == "optional_parameter_declaration" for p in parameters.named_children)
        """Whether a launch may leave arguments out, and no parameter can come behind the last one."""

    def _parameter(self, node: Node) -> Parameter:
        text = self.source.of
        declarator = field_of(node, "declarator")
        name = declared_name(declarator)
        if name is None or declarator is None:
            raise Unsupported(f"a parameter without a name: {text(node)}")
        qualifiers = [text(c) for c in node.children if c.type == "type_qualifier"]
        pointer = declarator.type == "pointer_declarator"
        head = text(declarator).removesuffix(text(name))
        return Parameter(
            name=text(name), node=node, element=text(node, "type"), pointer=pointer,
            const="const" in qualifiers, restrict="__restrict__" in head or "__restrict" in head,
        )  # fmt: skip

    @cached_property
    def launches(self) -> list[Launch]:
        """Every launch; none where there may be others, see `Code.launches_of`, or where one leaves arguments out."""
        found = self.code.launches_of(self.name)
        return found if all(len(launch.arguments) == len(self.parameters) for launch in found) else []

    @property
    def outer(self) -> Node:
        """With `template <...>` in front, where it has one."""
        return self.template or self.node

    @property
    def launch_bounds(self) -> Node | None:
        return next((child for child in self.node.children if child.type == "launch_bounds"), None)

    def bounded(self, bounds: str) -> tuple[Node, str]:
        """What of the kernel to replace by what, so that it has these launch bounds."""
        kind = field_of(self.node, "type")
        return (
            (self.launch_bounds, bounds)
            if self.launch_bounds is not None
            else (kind, f"{self.source.of(kind)} {bounds}")
        )

    @property
    def template_parameters(self) -> list[Node]:
        return children_of(self.template, "parameters")

    @property
    def template_names(self) -> list[str]:
        return [template_name(self.source, p) for p in self.template_parameters]

    def parameter(self, name: str) -> Parameter | None:
        return next((p for p in self.parameters if p.name == name), None)

    def identifiers(self) -> set[str]:
        return {self.source.of(n) for n in self.source.walk(self.outer, "identifier", "type_identifier")}

    @cached_property
    def loops(self) -> list[Loop]:
        """Every for loop of the form that Loop describes, outer before inner."""
        found = (counting_loop(self.code, node) for node in self.source.walk(self.body, "for_statement"))
        return [loop for loop in found if loop is not None]

    def calls(self, *names: str) -> list[Node]:
        """Calls of functions of these names in the body."""
        return [
            call for call in self.source.walk(self.body, "call_expression")
            if self.source.of(call, "function").split("<")[0] in names
        ]  # fmt: skip

    @cached_property
    def synchronises(self) -> bool:
        """Whether its threads talk to each other: barriers, shuffles, votes, shared memory, atomics, unseen helpers."""
        kinds = ("call_expression", "type_qualifier", "asm_statement", "gnu_asm_expression")
        for function in (self.node, *self.helpers):
            for node in self.source.walk(function, *kinds):
                if node.type == "type_qualifier":
                    if self.source.of(node) == "__shared__":
                        return True
                elif node.type != "call_expression" or TALKS.fullmatch(self.source.called(node).split(".")[-1]):
                    return True
        return False

    @cached_property
    def accesses(self) -> list[Access]:
        """Reads and writes through pointers and arrays, in source order. See `escapes` for what this cannot see."""
        return sorted(self._memory[0], key=lambda access: access.node.start_byte)

    @cached_property
    def escapes(self) -> list[tuple[Node, str]]:
        """Calls that get a pointer and may do anything behind it, with the parameter that the pointer comes from."""
        return self._memory[1]

    @cached_property
    def _memory(self) -> tuple[list[Access], list[tuple[Node, str]]]:
        found, escapes = [], []
        for node in self.source.walk(self.body, "subscript_expression", "pointer_expression"):
            access = access_at(self.code, node)
            if access is not None:
                found.append(access)
        for call in self.source.walk(self.body, "call_expression"):
            name = self.source.called(call)
            arguments = children_of(call, "arguments")
            if name in {"reinterpret_cast", "static_cast", "const_cast"}:
                continue
            effects = self.code.pointer_effects(name, len(arguments))
            for argument, effect in zip(arguments, effects, strict=True):
                pointer = self.code.polynomial(argument)
                base = self.code.pointer_base(pointer)
                if base is None:
                    continue
                root, element = self.code.root_of(base), self.code.element_of(base)
                if effect is None:
                    escapes.append((call, root))
                    continue
                offset, load = pointer - Polynomial.symbol(base), self.code.loads(name)
                node, wide = call if load else argument, effect.lower() != effect
                reads, writes = (sign in effect.lower() for sign in "rw")
                found.append(Access(node, base, root, offset, element, reads, writes, address=not load, wide=wide))
        return found, escapes

    @cached_property
    def barriers(self) -> list[int]:
        """Where all of the block's threads wait for each other, in any case: bytes of calls that no branch skips."""
        waiting = {"__syncthreads", "Reduce", "Sum", "sync"} | {
            name for name, functions in self.code.overloads.items() if any("__syncthreads" in self.source.of(f) for f in functions)
        }  # fmt: skip
        found = []
        for call in self.source.walk(self.body, "call_expression"):
            name = self.source.called(call).split(".")[-1]
            here = enclosing(call.parent, "if_statement", "conditional_expression", "function_definition")
            if name in waiting and here is not None and here.type == "function_definition":
                found.append(call.start_byte)
        return found

    @cached_property
    def shared(self) -> list[Node]:
        """The declarations of its body in shared memory."""
        return [n for n in self.source.walk(self.body, "declaration") if self.source.says(n, "__shared__")]

    @cached_property
    def helpers(self) -> list[Node]:
        """Functions of the file that the kernel calls, and those that these call."""
        return self.code.reached(*map(self.source.called, self.source.walk(self.node, "call_expression")))

    def block_indices(self, axis: str = "x") -> list[Node]:
        """Where the kernel asks which block it is, or how many there are, along one dimension of the grid."""
        names = {f"blockIdx.{axis}", f"gridDim.{axis}"}
        return [n for n in self.source.walk(self.body, "field_expression") if self.source.of(n) in names]

    def changes_within(self, polynomial: Polynomial, nodes: list[Node]) -> bool:
        """Whether a variable of the polynomial is assigned to below one of the nodes."""
        wheres = {symbol.where for symbol in polynomial.variables()}
        changed = (self.code.definition(target) for node in nodes for target in self.code.assigned(node))
        return any(found is not None and found.where in wheres for found in changed)

    def global_accesses(self) -> list[Access]:
        """Through pointer parameters, and through pointers of unknown origin."""
        return [access for access in self.accesses if access.root]


def template_name(source: Source, node: Node) -> str:
    """Of a template's parameter."""
    if node.type == "optional_type_parameter_declaration":
        return source.of(node, "name")
    if node.type == "template_template_parameter_declaration":
        node = node.named_children[-1]
    if node.type == "type_parameter_declaration":
        return source.of(node.named_children[-1])
    declarator = field_of(node, "declarator") or node.named_children[-1]
    return source.of(declared_name(declarator) or declarator)


def counting_loop(code: Code, node: Node) -> Loop | None:
    """A for statement of the form that Loop describes, whose body leaves the variable alone; None for any other."""
    update, body = field_of(node, "update"), field_of(node, "body")
    steps = _STEPS.get(update.type, ()) if update is not None else ()
    found = match(code.source, node, *(_FORS.format(step) for step in steps))
    if found is None or found["i"].type != "identifier":
        return None
    name, declared = code.source.of(found["i"]), found["i"].parent
    if declared is None or any(code.source.of(n) == name for n in code.assigned(body)):
        return None
    step_node = found.get("step")
    step = code.polynomial(step_node) if step_node is not None else Polynomial.constant(1)
    symbol = Symbol(name, declared.start_byte, node=found["i"])
    return Loop(
        node, name, symbol, code.source.of(found["T"]), found["start"], found["bound"], step_node,
        code.polynomial(found["start"]), code.polynomial(found["bound"]), step, tuple(found.every["i"]),
    )  # fmt: skip


def use_of(code: Code, node: Node) -> tuple[bool, bool, bool] | None:
    """Whether an lvalue is read, whether it is written, and whether its neighbours may be too; None where only its address is
    taken."""
    source, target, owner = code.source, node, node.parent
    while owner.type == "parenthesized_expression":
        target, owner = owner, owner.parent
    if owner.type == "pointer_expression" and source.of(owner.children[0]) == "&":
        return None
    reads, writes = True, False
    # A store to one field, or one element, of a struct in memory leaves the others: it reads as far as we know.
    whole = True
    while owner.type in {"field_expression", "subscript_expression"} and same(field_of(owner, "argument"), target):
        target, owner, whole = owner, owner.parent, False
    if owner.type == "assignment_expression" and same(field_of(owner, "left"), target):
        writes, reads = True, source.of(owner, "operator") != "=" or not whole
    elif owner.type == "update_expression":
        writes = True
    elif owner.type == "pointer_expression" and not whole:
        writes = True  # the address of a field: anything may happen to it
    elif owner.type == "init_declarator":
        writes = code.binds(owner.parent, field_of(owner, "declarator"))
    wide = False
    if owner.type == "argument_list" and owner.parent.type == "call_expression":
        writes, wide = code.lends(owner.parent, target)
    return reads, writes, wide


def access_at(code: Code, node: Node) -> Access | None:
    """The access that `p[i]` or `*p` is, None where it is none, or where the pointer is not known."""
    pointer, use = code.place_of(node), use_of(code, node)
    base = code.pointer_base(pointer) if pointer is not None else None
    if base is None or use is None:
        return None
    offset, (reads, writes, wide) = pointer - Polynomial.symbol(base), use
    return Access(node, base, code.root_of(base), offset, code.element_of(base), reads, writes, wide=wide)
