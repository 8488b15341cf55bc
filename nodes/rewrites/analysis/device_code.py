"""What the rewrites ask of a CUDA source: kernels, parameters, loops over threads, memory accesses, launches."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from tree_sitter import Node

from nodes.rewrites.syntax.algebra import Polynomial, Symbol
from nodes.rewrites.syntax.insert import free
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Edits, Source, Unsupported, inside, repeated
from nodes.rewrites.syntax.tree import children_of, enclosing, field_of, is_integer

COORDINATES = ("threadIdx", "blockIdx", "blockDim", "gridDim")
_DECLARATORS = {"pointer_declarator", "reference_declarator", "array_declarator", "init_declarator"}
ATTRIBUTES = {"cudaFuncGetAttributes", "cudaFuncSetAttribute", "cudaFuncSetCacheConfig"}
"""Host functions that take a kernel and do not launch it."""
ABOUT_GRIDS = {"wait_for_predecessor", "is_among_last_blocks"}
"""What programmatic_dependent_launch writes."""
GRID_CALLS = ("wait_for_predecessor", "cudaGridDependencySynchronize", "cudaTriggerProgrammaticLaunchCompletion")
"""A kernel waits for the grid before its own, or lets the next one begin to."""
LOADS = {"__ldg", "__ldcs", "__ldcg", "__ldca", "__ldlu", "__ldcv"}
_SKIPPED_CALLS = ("static_cast", "int", "int64_t", "size_t", "unsigned", "long", "uint32_t", "int32_t", "uint64_t")


LOOPS = frozenset({"for_statement", "while_statement", "do_statement", "for_range_loop"})


def same(a: Node | None, b: Node | None) -> bool:
    return a is not None and b is not None and a.id == b.id


def declared_name(declarator: Node) -> Node | None:
    """The identifier in `*x`, `x[4]`, `x = 1`, `&x`."""
    while declarator.type in _DECLARATORS | {"function_declarator", "parenthesized_declarator"}:
        inner = field_of(declarator, "declarator")
        if inner is None:
            inner = next((c for c in declarator.named_children if c.type in _DECLARATORS | {"identifier"}), None)
        if inner is None:
            return None
        declarator = inner
    return declarator if declarator.type in {"identifier", "field_identifier", "type_identifier"} else None


def is_zero(literal: str) -> bool:
    """Whether the text is a number, and that 0."""
    try:
        return float(literal.rstrip("fFlLuU")) == 0.0
    except ValueError:
        return False


def statement_around(node: Node) -> Node:
    """The declaration around a node, or the statement."""
    here = node
    while here.parent is not None and here.type != "declaration" and not here.type.endswith("_statement"):
        here = here.parent
    return here


def only_argument(call: Node) -> Node:
    """A call's one argument. Raises Unsupported for a call of several."""
    listed = field_of(call, "arguments")
    if listed is None or listed.named_child_count != 1:
        raise Unsupported("a call of more than one argument")
    return listed.named_children[0]


def statements(body: Node) -> list[Node]:
    """The statements of a block, or the one statement that stands in its place. Comments are left out."""
    if body.type != "compound_statement":
        return [body]
    return children_of(body)


@dataclass(frozen=True)
class Definition:
    """Where a name comes from: a parameter, a local or global variable, a template parameter, a macro."""

    name: str
    kind: str
    """parameter, local, loop, global, template, macro"""
    declaration: Node
    declarator: Node | None
    value: Node | None
    """The initialiser, where there is one."""

    @property
    def where(self) -> int:
        return self.declaration.start_byte if self.declarator is None else self.declarator.start_byte


@dataclass(frozen=True)
class Parameter:
    name: str
    node: Node
    element: str
    """Type without const, pointer, restrict: `T`, `__half`, `int64_t`."""
    pointer: bool
    const: bool
    restrict: bool


_FORS = [f"for ($T $i = $start; $i < $bound; {step}) $body;" for step in ("++$i", "$i++", "$i += $step")]


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


class Launch:
    """A kernel's launch in a host function, written `name<args><<<grid, block, shared, stream>>>(arguments)` or
    `launch_dependent(name<args>, grid, block, shared, stream, arguments)`, as the rewrite of that name leaves it."""

    def __init__(self, code: Code, node: Node) -> None:
        self.code, self.node = code, node
        config = next((c for c in node.children if c.type == "kernel_call_syntax"), None)
        listed = field_of(node, "arguments")
        function = field_of(node, "function")
        arguments = children_of(listed)
        self.dependent = config is None
        if config is not None:
            self.config_nodes = children_of(config)
        else:
            function, self.config_nodes, arguments = arguments[0], arguments[1:5], arguments[5:]
        self.function, self.arguments = function, arguments
        named = function
        while named.type == "qualified_identifier" and (inside_of := field_of(named, "name")) is not None:
            named = inside_of
        self.kernel_name = code.source.of(field_of(named, "name") or named)
        self.template_list = field_of(named, "arguments") if named.type == "template_function" else None
        inner = self.template_list.named_children if self.template_list else []
        self.template_arguments = [code.source.of(c) for c in inner]

    def rendered(
        self,
        function: str | None = None,
        grid: str | None = None,
        block: str | None = None,
        shared: str | None = None,
        arguments: list[str] | None = None,
        dependent: bool | None = None,
    ) -> str:
        """The launch as text, without the semicolon, with some of its parts replaced."""
        text = self.code.source.of
        function = text(self.function) if function is None else function
        config = [grid or text(self.grid), block or text(self.block), shared or self.shared_text, self.stream_text]
        arguments = [text(a) for a in self.arguments] if arguments is None else arguments
        # NULL may be a number, where an argument's type is deduced.
        arguments = ["nullptr" if a == "NULL" else a for a in arguments]
        if self.dependent if dependent is None else dependent:
            return f"launch_dependent({', '.join([function, *config, *arguments])})"
        return f"{function}<<<{', '.join(config)}>>>({', '.join(arguments)})"

    def with_arguments(self, *added: str) -> str:
        """The function with more template arguments behind its own. Raises Unsupported where these are deduced."""
        text, kernel = self.code.source.of(self.function), self.code.functions[self.kernel_name]
        if self.template_list is not None:
            return f"{text[: text.rindex('>')].rstrip()}, {', '.join(added)}>"
        if kernel.parent is not None and kernel.parent.type == "template_declaration":
            raise Unsupported("a launch that leaves its types to be deduced")
        return f"{text}<{', '.join(added)}>"

    @property
    def statement(self) -> Node:
        node = self.node
        if node.parent is None or node.parent.type != "expression_statement":
            raise Unsupported("a launch that is no statement of its own")
        return node.parent

    @property
    def grid(self) -> Node:
        return self.config_nodes[0]

    @property
    def block(self) -> Node:
        return self.config_nodes[1]

    @property
    def shared_text(self) -> str:
        return self.code.source.of(self.config_nodes[2]) if len(self.config_nodes) > 2 else "0"

    @property
    def stream_text(self) -> str:
        return self.code.source.of(self.config_nodes[3]) if len(self.config_nodes) > 3 else "0"

    def extents(self, node: Node) -> tuple[str, str, str]:
        """x, y, z of a grid or block expression, seen through `dim3` variables; "1" where not given."""
        parts = self._dim3(node)
        if parts is None:
            return (self.code.source.of(node), "1", "1")
        texts = [self.code.source.of(p) for p in parts] + ["1", "1", "1"]
        later = self._set_later(node)
        x, y, z = (f"{self.code.source.of(node)}.{c}" if c in later else t for c, t in zip("xyz", texts, strict=False))
        return (x, y, z)

    def along_x(self, node: Node) -> Node:
        """The expression that x is, of a grid or block. Raises Unsupported where it is assigned to later."""
        parts = self._dim3(node)
        if parts is not None and (not parts or "x" in self._set_later(node)):
            raise Unsupported("a launch shape that is assigned to, or 1")
        return parts[0] if parts else node

    def _set_later(self, node: Node) -> set[str]:
        """Which of a `dim3` variable's fields are assigned to behind its declaration."""
        source, found = self.code.source, self.code.definition(node) if node.type == "identifier" else None
        targets = [t for t in self.code.assigned(source.root) if source.of(t) == source.of(node)] if found else []
        targets = [t for t in targets if (here := self.code.definition(t)) is not None and here.where == found.where]
        fields = {source.of(t.parent, "field") for t in targets if t.parent.type == "field_expression"}
        if any(t.parent is None or t.parent.type != "field_expression" for t in targets):
            raise Unsupported("a launch shape that is assigned to")
        return fields

    def _dim3(self, node: Node, depth: int = 0) -> list[Node] | None:
        source = self.code.source
        if node.type == "call_expression" and source.of(node, "function") == "dim3":
            arguments = field_of(node, "arguments")
            return children_of(arguments) if arguments else []
        if node.type == "compound_literal_expression" or node.type == "initializer_list":
            holder = field_of(node, "value") or node
            return children_of(holder)
        if node.type == "identifier" and depth < 3:
            found = self.code.definition(node)
            if found is None or found.kind != "local" or found.declarator is None:
                return None
            if "dim3" not in source.of(found.declaration, "type") and found.value is None:
                return None
            self._set_later(node)
            if found.value is not None:
                if found.value.type == "argument_list" or found.value.type == "initializer_list":
                    return children_of(found.value)
                return self._dim3(found.value, depth + 1)
            if found.declarator.type == "function_declarator":  # `dim3 grid(tokens)` parses as a function
                listed = field_of(found.declarator, "parameters")
                return children_of(listed) if listed else []
            if found.declarator.type == "identifier":  # `dim3 grid;`, set field by field
                return []
        return None


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
        parent = node.parent
        self.template = parent if parent is not None and parent.type == "template_declaration" else None
        kinds = {"parameter_declaration", "optional_parameter_declaration"}
        self.parameters = [self._parameter(p) for p in parameters.named_children if p.type in kinds]
        self.has_defaults = any(p.type == "optional_parameter_declaration" for p in parameters.named_children)
        """Whether a launch may leave arguments out, and no parameter can come behind the last one."""

    def _parameter(self, node: Node) -> Parameter:
        text = self.source.of
        declarator = field_of(node, "declarator")
        name = declared_name(declarator) if declarator is not None else None
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
    def template_parameters(self) -> list[Node]:
        return children_of(self.template, "parameters")

    @property
    def template_names(self) -> list[str]:
        return [_template_name(self.source, p) for p in self.template_parameters]

    def parameter(self, name: str) -> Parameter | None:
        return next((p for p in self.parameters if p.name == name), None)

    @property
    def text(self) -> str:
        return self.source.of(self.node)

    def identifiers(self) -> set[str]:
        return {self.source.of(n) for n in self.source.walk(self.outer, "identifier", "type_identifier")}

    @cached_property
    def loops(self) -> list[Loop]:
        """Every for loop of the form that Loop describes, outer before inner."""
        found = (self._loop(node) for node in self.source.walk(self.body, "for_statement"))
        return [loop for loop in found if loop is not None]

    def _loop(self, node: Node) -> Loop | None:
        code, found = self.code, match(self.source, node, *_FORS)
        body = field_of(node, "body")
        if found is None or found["i"].type != "identifier":
            return None
        name, declared = self.source.of(found["i"]), found["i"].parent
        if declared is None or any(self.source.of(n) == name for n in code.assigned(body)):
            return None
        step_node = found.get("step")
        step = code.polynomial(step_node) if step_node is not None else Polynomial.constant(1)
        symbol = Symbol(name, declared.start_byte, node=found["i"])
        return Loop(
            node, name, symbol, self.source.of(found["T"]), found["start"], found["bound"], step_node,
            code.polynomial(found["start"]), code.polynomial(found["bound"]), step, tuple(found.every["i"]),
        )  # fmt: skip

    def calls(self, *names: str) -> list[Node]:
        """Calls of functions of these names in the body."""
        return [
            call for call in self.source.walk(self.body, "call_expression")
            if self.source.of(call, "function").split("<")[0] in names
        ]  # fmt: skip

    @cached_property
    def synchronises(self) -> bool:
        """Whether its threads talk to each other: barriers, shuffles, votes, shared memory, atomics, unseen helpers."""
        reached, stack = set(), [self.node]
        while stack:
            for node in self.source.walk(
                stack.pop(), "call_expression", "type_qualifier", "asm_statement", "gnu_asm_expression"
            ):
                text = self.source.of(node)
                if node.type == "type_qualifier":
                    if text == "__shared__":
                        return True
                    continue
                if node.type != "call_expression":
                    return True
                name = self.source.called(node)
                if re.match(r"__(sync|shfl|ballot|any|all|reduce|match|activemask)|atomic|cooperative", name) or name in {
                    "sync", "Reduce", "Sum",
                }:  # fmt: skip
                    return True
                helper = self.code.functions.get(name)
                if helper is not None and name not in reached:
                    reached.add(name)
                    stack.append(helper)
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
            access = self._access(node)
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
                offset = pointer - Polynomial.symbol(base)
                load = self.code.loads(name)
                node = call if load else argument
                found.append(
                    Access(
                        node,
                        base,
                        root,
                        offset,
                        element,
                        bool(set("rR") & set(effect)),
                        bool(set("wW") & set(effect)),
                        address=not load,
                        wide=effect.lower() != effect,
                    )
                )
        return found, escapes

    def _access(self, node: Node) -> Access | None:
        source, code = self.source, self.code
        argument = field_of(node, "argument")
        if argument is None:
            return None
        if node.type == "pointer_expression":
            if source.of(node.children[0]) != "*":
                return None
            pointer = code.polynomial(argument)
        else:
            inner = children_of(node, "indices")
            if len(inner) != 1:
                return None
            pointer = code.polynomial(argument) + code.polynomial(inner[0])
        base = code.pointer_base(pointer)
        target, owner = node, node.parent
        while owner is not None and owner.type == "parenthesized_expression":
            target, owner = owner, owner.parent
        if base is None or owner is None:
            return None
        if owner.type == "pointer_expression" and source.of(owner.children[0]) == "&":
            return None  # an address, no access
        reads, writes = True, False
        # A store to one field, or one element, of a struct in memory leaves the others: it reads as far as we know.
        whole = True
        while owner.type in {"field_expression", "subscript_expression"} and same(field_of(owner, "argument"), target):
            target, whole = owner, False
            if owner.parent is None:
                return None
            owner = owner.parent
        if owner.type == "assignment_expression" and same(field_of(owner, "left"), target):
            writes, reads = True, source.of(owner, "operator") != "=" or not whole
        elif owner.type == "update_expression":
            writes = True
        elif owner.type == "pointer_expression" and not whole:
            writes = True  # the address of a field: anything may happen to it
        elif owner.type == "init_declarator":
            writes = code.binds(owner.parent, field_of(owner, "declarator"))
        wide = False
        if owner.type == "argument_list" and owner.parent is not None and owner.parent.type == "call_expression":
            writes, wide = code.lends(owner.parent, target)
        offset = pointer - Polynomial.symbol(base)
        return Access(node, base, code.root_of(base), offset, code.element_of(base), reads, writes, wide=wide)

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
    def has_barrier(self) -> bool:
        """Whether the block's threads, not only a warp's, wait for each other."""
        return any("__syncthreads" in self.source.of(f) for f in [self.node, *self.helpers])

    @cached_property
    def counts_warps(self) -> bool:
        """Whether it, or a helper, reads a fixed number of places of its shared memory, one for each warp, whatever the
        block's width: `sums[lane]` for all lanes, `sums[1]`, `for (w = 0; w < 8; ++w) ... sums[w]`."""
        return any(self._counts_warps(function) for function in [self.node, *self.helpers])

    def _counts_warps(self, function: Node) -> bool:
        code, source = self.code, self.source
        for node in source.walk(function, "subscript_expression"):
            argument, indices = field_of(node, "argument"), field_of(node, "indices")
            found = code.definition(argument) if argument is not None and argument.type == "identifier" else None
            if found is None or indices is None or "__shared__" not in source.of(found.declaration):
                continue
            owner = node.parent
            if owner is not None and owner.type == "assignment_expression" and same(field_of(owner, "left"), node):
                continue
            index = code.polynomial(indices.named_children[0])
            lane = any(s.operator == "%" and s.depends_on(Symbol("threadIdx.x")) for s in index.symbols)
            if index.value == 0 or (index.value is None and not lane and not self._has_fixed_bound(node, index)):
                continue
            if not self._asks_width(node, function):
                return True
        return False

    def _has_fixed_bound(self, node: Node, index: Polynomial) -> bool:
        """Whether the index runs to a number that is known when the kernel is compiled."""
        here: Node | None = node
        while here is not None and here.type != "function_definition":
            loop = self._loop(here) if here.type == "for_statement" else None
            if loop is not None and any(s == loop.symbol for s in index.symbols):
                kinds = {
                    found.kind if (found := self.code.definition(n)) is not None else ""
                    for n in self.source.walk(loop.bound_node, "identifier")
                }
                return not kinds & {"parameter", "local", "loop", ""}
            here = here.parent
        return False

    def _asks_width(self, node: Node, function: Node) -> bool:
        """Whether the node is only reached where a comparison with the block's width allows it."""
        here = node
        while here.parent is not None and not same(here, function):
            parent = here.parent
            condition = field_of(parent, "condition")
            if condition is not None and parent.type in {"if_statement", "conditional_expression", "for_statement"}:
                for part in self.source.walk(condition, "identifier", "field_expression"):
                    if not inside(here, condition) and self.code.polynomial(part).depends_on(Symbol("blockDim.x")):
                        return True
            here = parent
        return False

    @cached_property
    def helpers(self) -> list[Node]:
        """Functions of the file that the kernel calls, and those that these call."""
        found: list[Node] = []
        stack = [self.node]
        while stack:
            for call in self.source.walk(stack.pop(), "call_expression"):
                name = self.source.called(call)
                for function in self.code.overloads.get(name, []):
                    if not any(same(function, other) for other in found):
                        found.append(function)
                        stack.append(function)
        return found

    def block_indices(self, axis: str = "x") -> list[Node]:
        """Where the kernel asks which block it is, or how many there are, along one dimension of the grid."""
        names = {f"blockIdx.{axis}", f"gridDim.{axis}"}
        return [n for n in self.source.walk(self.body, "field_expression") if self.source.of(n) in names]

    def changes_within(self, polynomial: Polynomial, nodes: list[Node]) -> bool:
        """Whether a variable of the polynomial is assigned to below one of the nodes."""
        wheres = {symbol.where for symbol in polynomial.variables()}
        for node in nodes:
            for target in self.code.assigned(node):
                found = self.code.definition(target)
                if found is not None and found.where in wheres:
                    return True
        return False

    def global_accesses(self) -> list[Access]:
        """Through pointer parameters, and through pointers of unknown origin."""
        return [access for access in self.accesses if access.root]


def _template_name(source: Source, node: Node) -> str:
    if node.type == "type_parameter_declaration":
        return source.of(node.named_children[-1])
    declarator = field_of(node, "declarator") or node.named_children[-1]
    return source.of(declared_name(declarator) or declarator)


class Code:
    """A parsed CUDA source with names resolved."""

    def __init__(
        self, source: Source, pinned: frozenset[int] = frozenset(), integers: frozenset[str] = frozenset()
    ) -> None:
        self.source = source
        self.pinned = pinned
        """Byte offsets of definitions that polynomials do not see through."""
        self.integers = integers
        """Types, such as template parameters, that are known to be integers: polynomials see through their variables."""
        if source.root.has_error and any(n.type == "ERROR" for n in source.root.children):
            raise Unsupported("the parser does not understand the file's outer structure")

    @cached_property
    def launches(self) -> list[Launch]:
        found = []
        for call in self.source.walk(None, "call_expression"):
            chevrons = any(c.type == "kernel_call_syntax" for c in call.children)
            if chevrons or self.source.of(call, "function") == "launch_dependent":
                found.append(Launch(self, call))
        return found

    def launches_of(self, name: str) -> list[Launch]:
        """Every launch of the kernel, or none where there may be others: from a macro, through a pointer, of another
        kernel of the same name."""
        if len(self.overloads.get(name, [])) > 1:
            return []
        if name in self._words_of_macros:
            return []
        mine = [launch for launch in self.launches if launch.kernel_name == name]
        for node in self._mentions.get(name, []):
            if not any(inside(node, launch.function) for launch in mine):
                around = node.parent
                while around is not None and around.type in {"template_function", "qualified_identifier"}:
                    around = around.parent
                asks = around is not None and around.type == "argument_list" and around.parent is not None
                asked = self.source.of(around.parent, "function") if asks else ""
                declared = around is not None and around.type == "function_declarator"
                if not declared and asked not in ATTRIBUTES:
                    return []
        return mine

    @cached_property
    def _mentions(self) -> dict[str, list[Node]]:
        """Identifiers, also of types, by their text."""
        found: dict[str, list[Node]] = {}
        for node in self.source.walk(None, "identifier", "type_identifier"):
            found.setdefault(self.source.of(node), []).append(node)
        return found

    @cached_property
    def _words_of_macros(self) -> set[str]:
        """Every word of the bodies of macros that the file uses."""
        bodies = {name: set(re.findall(r"\w+", self.source.of(node, "value"))) for name, node in self.macros.items()}
        definitions = list(self.macros.values())
        used = {
            name for name in bodies
            if any(not any(inside(n, d) for d in definitions) for n in self._mentions.get(name, []))
        }  # fmt: skip
        while more := {name for name in set(bodies) - used if any(name in bodies[m] for m in used & set(bodies))}:
            used |= more
        return {word for name in used & set(bodies) for word in bodies[name]}

    @cached_property
    def aliases(self) -> dict[str, str]:
        """`typedef __half scalar;` and `using scalar = __half;` at the file's outer level or in a namespace, by name."""
        found = {}
        for node in self.source.walk(None, "type_definition", "alias_declaration"):
            name = field_of(node, "name") or field_of(node, "declarator")
            plain = name is not None and name.type == "type_identifier"
            if plain and node.parent is not None and node.parent.type in {"translation_unit", "declaration_list"}:
                found[self.source.of(name)] = self.source.of(node, "type")
        return found

    def plain_type(self, name: str) -> str:
        """What a type is called in the end, aliases of the file seen through."""
        for _ in range(8):
            name = self.aliases.get(name, name)
        return name

    @cached_property
    def functions(self) -> dict[str, Node]:
        """Functions with a body, by name; the last of an overload set."""
        found = {}
        for node in self.source.walk(None, "function_definition"):
            declarator = field_of(node, "declarator")
            name = declared_name(declarator) if declarator is not None else None
            if name is not None:
                found[self.source.of(name)] = node
        return found

    @cached_property
    def overloads(self) -> dict[str, list[Node]]:
        """Every function with a body, by name; not what kernels say about the grids around theirs, which computes nothing."""
        found: dict[str, list[Node]] = {}
        for node in self.source.walk(None, "function_definition"):
            declarator = field_of(node, "declarator")
            name = declared_name(declarator) if declarator is not None else None
            if name is None and declarator is not None:  # a specialisation, `from_float<float>`
                inner = field_of(declarator, "declarator")
                name = field_of(inner, "name") if inner is not None and inner.type == "template_function" else None
            if name is not None and self.source.of(name) not in ABOUT_GRIDS:
                found.setdefault(self.source.of(name), []).append(node)
        return found

    def pointer_effects(self, name: str, count: int) -> list[str | None]:
        """What a function does behind each argument that is a pointer: "r", "w" or "rw" of that one element, "R" and "W"
        of some elements from there on.

        None: not known, so anything. "" for arguments that it does not touch.
        """
        if self.loads(name):
            return ["r"] + [""] * (count - 1)
        effects: list[str | None] = [None] * count
        for number, function in enumerate(self.overloads.get(name, [])):
            mine = self._effects_of(function, count)
            effects = mine if number == 0 else [
                None if a is None or b is None else "".join(sorted(set(a + b))) for a, b in zip(effects, mine, strict=True)
            ]  # fmt: skip
        return effects

    def binds(self, declaration: Node | None, declarator: Node | None) -> bool:
        """Whether a declaration or parameter makes a name through which its value can be changed: `float& o = out[i]`."""
        qualifiers = declaration.children if declaration is not None else []
        constant = any(c.type == "type_qualifier" and self.source.of(c) == "const" for c in qualifiers)
        return declarator is not None and declarator.type == "reference_declarator" and not constant

    def lends(self, call: Node, argument: Node) -> tuple[bool, bool]:
        """Whether a call may change an lvalue that it is given, and whether it may reach what lies behind it in memory.

        Functions that are not in sight take values; a macro may make anything of its argument, its neighbours too.
        """
        name = self.source.called(call)
        macro = self.macros.get(name)
        if macro is not None:
            return (False, False) if self.source.of(macro, "value").isidentifier() else (True, True)
        arguments = children_of(call, "arguments")
        at = next((n for n, c in enumerate(arguments) if same(c, argument)), len(arguments))
        for function in self.overloads.get(name, []):
            mine = children_of(function, "declarator", "parameters")
            if at < len(mine) and self.binds(mine[at], field_of(mine[at], "declarator")):
                return True, False
        return False, False

    def loads(self, name: str) -> bool:
        """Whether `name(p)` reads `*p` and nothing else: an intrinsic, or a macro that stands for one."""
        if name in LOADS:
            return True
        macro = self.macros.get(name)
        if macro is None or macro.type != "preproc_function_def":
            return False
        value = self.source.reparsed(f"auto value = {self.source.of(macro, 'value')};")
        called = next(value.walk(None, "call_expression"), None)
        listed = field_of(called, "arguments")
        return called is not None and listed is not None and (
            value.of(called, "function") in LOADS
            and [value.of(c) for c in listed.named_children]
            == [self.source.of(c) for c in field_of(macro, "parameters").named_children]
            and called.end_byte == value.root.end_byte - 1
        )  # fmt: skip

    def _effects_of(self, function: Node, count: int) -> list[str | None]:
        declarator, body = field_of(function, "declarator"), field_of(function, "body")
        listed = field_of(declarator, "parameters")
        if listed is None or body is None:
            return [None] * count
        parameters = children_of(listed)
        found: list[str | None] = []
        for parameter in parameters[:count]:
            inner = field_of(parameter, "declarator")
            name = declared_name(inner) if inner is not None else None
            if name is None:
                found.append("")
                continue
            effect: str | None = ""
            for use in self.source.walk(body, "identifier"):
                if self.source.of(use) != self.source.of(name):
                    continue
                parent, wide = use.parent, False
                if parent is not None and parent.type == "argument_list" and parent.parent is not None:
                    cast = parent.parent  # `*reinterpret_cast<Wide*>(p)`: several elements from p on
                    called = self.source.of(cast, "function")
                    if self.loads(called) and same(parent.named_children[0], use):
                        effect += "r"
                        continue
                    if called == "reinterpret_cast<uintptr_t>":
                        continue  # where it is, not what
                    if called.startswith("reinterpret_cast<"):
                        parent, wide = cast.parent, True
                if parent is None or parent.type != "pointer_expression" or self.source.of(parent.children[0]) != "*":
                    effect = None
                    break
                owner = parent.parent
                stored = (
                    owner is not None
                    and owner.type == "assignment_expression"
                    and same(field_of(owner, "left"), parent)
                )
                if stored and owner is not None and self.source.of(owner, "operator") == "=":
                    effect += "W" if wide else "w"
                elif stored or (
                    owner is not None
                    and owner.type in {"update_expression", "field_expression", "subscript_expression"}
                ):
                    effect = None
                    break
                else:
                    effect += "R" if wide else "r"
            found.append(effect)
        return found + [None] * (count - len(found))

    def root_of(self, base: Symbol, depth: int = 0) -> str:
        """The parameter that a pointer comes from; "" for an array of the thread or block; "?" where unknown."""
        node = base.node
        if node is None or depth > 12:
            return "?"
        if node.type in {"call_expression", "cast_expression"}:
            arguments = field_of(node, "arguments")
            inner = arguments.named_children[0] if arguments is not None and arguments.named_child_count else None
            inner = field_of(node, "value") if inner is None else inner
        elif node.type == "identifier":
            found = self.definition(node)
            if found is None or found.declarator is None:
                return "?"
            if found.kind == "parameter":
                return self.source.of(node)
            declarator = found.declarator
            declarator = field_of(declarator, "declarator") if declarator.type == "init_declarator" else declarator
            if declarator is not None and declarator.type == "array_declarator":
                return ""
            inner = found.value
        else:
            return "?"
        if inner is not None and self.own_variable(inner) is not None:
            return ""
        deeper = self.pointer_base(self.polynomial(inner)) if inner is not None else None
        return self.root_of(deeper, depth + 1) if deeper is not None and deeper != base else "?"

    def own_variable(self, address: Node) -> Definition | None:
        """The variable of the thread's own that a pointer's first value, `&v`, `&v.x` or either seen as another type, is the
        address of; None for anything else."""
        while address.type in {"parenthesized_expression", "cast_expression", "call_expression"}:
            listed = field_of(address, "arguments")
            cast = listed is not None and self.source.of(address, "function").startswith("reinterpret_")
            if address.type == "call_expression" and (not cast or listed.named_child_count != 1):
                return None
            address = (listed or address).named_children[-1]
        if address.type != "pointer_expression" or self.source.of(address.children[0]) != "&":
            return None
        target = field_of(address, "argument")
        while target is not None and target.type in {"parenthesized_expression", "field_expression"}:
            if target.type == "field_expression" and target.children[1].type == "->":
                return None
            target = field_of(target, "argument") or target.named_children[0]
        found = self.definition(target) if target is not None and target.type == "identifier" else None
        declarator = found.declarator if found is not None and found.kind == "local" else None
        if declarator is not None and declarator.type == "init_declarator":
            declarator = field_of(declarator, "declarator")
        if found is None or declarator is None or declarator.type != "identifier":
            return None
        return None if "__shared__" in self.source.of(found.declaration) else found

    @cached_property
    def kernels(self) -> list[Kernel]:
        found = []
        for node in self.source.walk(None, "function_definition"):
            if any(c.type == "__global__" for c in node.children) and not node.has_error:
                found.append(Kernel(self, node))
        return found

    @cached_property
    def macros(self) -> dict[str, Node]:
        return {self.source.of(n, "name"): n for n in self.source.walk(None, "preproc_def", "preproc_function_def")}

    def names(self) -> set[str]:
        """Every identifier of the file and every word of a macro's body."""
        return set(self._names)

    @cached_property
    def _names(self) -> frozenset[str]:
        words = {self.source.of(n) for n in self.source.walk(None, "identifier", "type_identifier", "field_identifier")}
        for node in self.source.walk(None, "preproc_arg"):
            words |= set(re.findall(r"\w+", self.source.of(node)))
        return frozenset(words)

    def fresh(self, *wanted: str) -> str:
        """The first of the wanted names that is free, or one with a number behind it."""
        return next((name for name in wanted if name not in self._names), None) or free(wanted[0], self._names)

    def assigned(self, node: Node) -> Iterator[Node]:
        """Identifiers below `node` that are assigned to, wholly or in a field, counted up or down, or whose address is
        taken."""
        for here in self.source.walk(node, "assignment_expression", "update_expression", "pointer_expression"):
            if here.type == "assignment_expression":
                target = field_of(here, "left")
            elif here.type == "update_expression" or self.source.of(here.children[0]) == "&":
                target = field_of(here, "argument")
            else:
                continue
            while target is not None and target.type in {"field_expression", "parenthesized_expression"}:
                if target.type == "field_expression" and target.children[1].type == "->":
                    break
                target = field_of(target, "argument") or target.named_children[0]
            if target is not None and target.type == "identifier":
                yield target

    @cached_property
    def _assigned_definitions(self) -> set[int]:
        found = set()
        for target in self.assigned(self.source.root):
            definition = self.definition(target)
            if definition is not None:
                found.add(definition.where)
        return found

    def uses(self, found: Definition, within: Node) -> list[Node]:
        """Where a variable is named, in source order."""
        named = [n for n in self.source.walk(within, "identifier") if self.source.of(n) == found.name]
        return [n for n in named if (here := self.definition(n)) is not None and here.where == found.where]

    def mutated(self, definition: Definition) -> bool:
        return definition.where in self._assigned_definitions

    def definition(self, identifier: Node) -> Definition | None:
        """The innermost definition that is in sight of the identifier."""
        name, here = self.source.of(identifier), identifier
        while here.parent is not None:
            parent = here.parent
            if parent.type in {
                "compound_statement",
                "translation_unit",
                "declaration_list",
                "preproc_if",
                "preproc_ifdef",
            }:
                for sibling in reversed([c for c in parent.named_children if c.end_byte <= here.start_byte]):
                    found = self._declared(sibling, name, "local" if parent.type == "compound_statement" else "global")
                    if found is not None:
                        return found
            elif parent.type == "declaration":
                before = [d for d in parent.children_by_field_name("declarator") if d.end_byte <= here.start_byte]
                found = self._among(parent, before, name, "local")
                if found is not None:
                    return found
            elif parent.type in {"for_statement", "if_statement", "while_statement", "for_range_loop"}:
                start = field_of(parent, "initializer") or field_of(parent, "declarator")
                if start is not None and not inside(identifier, start):
                    found = self._declared(start, name, "loop")
                    if found is not None:
                        return found
            elif parent.type in {"function_definition", "lambda_expression"}:
                listed = field_of(parent, "declarator", "parameters")
                for parameter in children_of(listed):
                    inner = field_of(parameter, "declarator")
                    found_name = declared_name(inner) if inner is not None else None
                    if found_name is not None and self.source.of(found_name) == name:
                        return Definition(name, "parameter", parameter, inner, None)
            elif parent.type == "template_declaration":
                listed = field_of(parent, "parameters")
                for parameter in children_of(listed):
                    if _template_name(self.source, parameter) == name:
                        return Definition(name, "template", parameter, None, None)
            here = parent
        if name in self.macros:
            macro = self.macros[name]
            return Definition(name, "macro", macro, None, None)
        return None

    def _declared(self, node: Node, name: str, kind: str) -> Definition | None:
        if node.type != "declaration":
            return None
        return self._among(node, node.children_by_field_name("declarator"), name, kind)

    def _among(self, declaration: Node, declarators: list[Node], name: str, kind: str) -> Definition | None:
        for declarator in reversed(declarators):
            found = declared_name(declarator)
            if found is not None and self.source.of(found) == name:
                value = field_of(declarator, "value") if declarator.type == "init_declarator" else None
                return Definition(name, kind, declaration, declarator, value)
        return None

    def polynomial(self, node: Node, depth: int = 0) -> Polynomial:
        """The expression as a polynomial; what is not + - * of integers or pointers becomes an opaque symbol."""
        source = self.source
        kind = node.type
        if kind == "parenthesized_expression" and node.named_child_count == 1:
            return self.polynomial(node.named_children[0], depth)
        if kind == "number_literal":
            try:
                return Polynomial.constant(int(source.of(node).rstrip("uUlL").replace("'", ""), 0))
            except ValueError:
                return self._opaque(node, depth)
        if kind == "cast_expression" and (value := field_of(node, "value")) is not None:
            if "*" in source.of(node, "type"):
                return self._opaque(node, depth)
            return self.polynomial(value, depth)
        if kind == "call_expression":
            function, arguments = field_of(node, "function"), field_of(node, "arguments")
            name = source.of(function).split("<")[0]
            inner = children_of(arguments)
            if name in _SKIPPED_CALLS and len(inner) == 1 and "*" not in source.of(function):
                return self.polynomial(inner[0], depth)
            return self._opaque(node, depth)
        if kind == "compound_literal_expression" and source.of(node, "type") in _SKIPPED_CALLS:
            listed = field_of(node, "value")
            if listed is not None and listed.named_child_count == 1:
                return self.polynomial(listed.named_children[0], depth)
        if kind == "unary_expression" and source.of(node.children[0]) in "+-":
            argument = self.polynomial(node.children[-1], depth)
            return -argument if source.of(node.children[0]) == "-" else argument
        if kind == "pointer_expression" and source.of(node.children[0]) == "&":
            target = field_of(node, "argument")
            while target is not None and target.type == "parenthesized_expression":
                target = target.named_children[0]
            if target is not None and target.type == "subscript_expression":
                base, indices = field_of(target, "argument"), field_of(target, "indices")
                if base is not None and indices is not None and indices.named_child_count == 1:
                    return self.polynomial(base, depth) + self.polynomial(indices.named_children[0], depth)
        if kind == "binary_expression":
            left, right = field_of(node, "left"), field_of(node, "right")
            operator = source.of(node, "operator")
            if operator in {"+", "-", "*", "/", "%", "<<", ">>", "&"}:
                a, b = self.polynomial(left, depth), self.polynomial(right, depth)
                if operator == "+":
                    return a + b
                if operator == "-":
                    return a - b
                if operator == "*":
                    return a * b
                if operator in {"<<", ">>"} and b.value is not None and 0 <= b.value < 31:
                    b = Polynomial.constant(1 << b.value)
                    if operator == "<<":
                        return a * b
                    operator = "/"
                if operator == "&" and b.value is not None and b.value > 0 and (b.value & (b.value + 1)) == 0:
                    operator, b = "%", Polynomial.constant(b.value + 1)
                if operator == "/" and b.value and all(c % b.value == 0 for _, c in a.terms):
                    return Polynomial(frozenset((m, c // b.value) for m, c in a.terms))  # nothing is rounded
                if operator in {"/", "%"}:
                    return Polynomial.symbol(self._division(node, operator, a, b))
        if kind == "field_expression" and source.of(node).split(".")[0] in COORDINATES:
            return Polynomial.symbol(Symbol(source.of(node), node=node))
        if kind == "identifier":
            return self._variable(node, depth)
        return self._opaque(node, depth)

    def _division(self, node: Node, operator: str, a: Polynomial, b: Polynomial) -> Symbol:
        parts = frozenset(a.symbols | b.symbols)
        text = f"({_canonical(a)}) {operator} ({_canonical(b)})"
        return Symbol(text, parts=parts, operands=(a, b), operator=operator, node=node)

    def _variable(self, node: Node, depth: int) -> Polynomial:
        found = self.definition(node)
        name = self.source.of(node)
        if found is None:
            return Polynomial.symbol(Symbol(name, node=node))
        settled = found.kind in {"local", "global"} and found.value is not None and not self.mutated(found)
        settled = settled and found.where not in self.pinned
        if settled and depth < 24 and found.value is not None and found.declarator is not None:
            inner = field_of(found.declarator, "declarator")
            array = inner is not None and inner.type in {"array_declarator", "reference_declarator"}
            if not array and found.value.type not in {"initializer_list", "argument_list"}:
                kind = self.source.of(found.declaration, "type")
                pointer = inner is not None and inner.type == "pointer_declarator"
                if pointer or kind == "auto" or kind in self.integers or is_integer(kind):
                    return self.polynomial(found.value, depth + 1)
        return Polynomial.symbol(Symbol(name, found.where, node=node))

    def _opaque(self, node: Node, depth: int) -> Polynomial:
        parts: set[Symbol] = set()
        for identifier in self.source.walk(node, "identifier", "field_expression"):
            if identifier.type == "field_expression":
                if self.source.of(identifier).split(".")[0] in COORDINATES:
                    parts.add(Symbol(self.source.of(identifier)))
                continue
            if self.source.of(identifier) in COORDINATES:
                continue
            if identifier.parent is not None and same(field_of(identifier.parent, "function"), identifier):
                continue
            parts |= self._variable(identifier, depth + 1).symbols if depth < 24 else set()
        text = " ".join(self.source.of(node).split())
        # Two places may spell different variables alike: the definitions are part of the name.
        marks = ",".join(sorted(f"{p.text}@{p.where}" for p in parts))
        return Polynomial.symbol(
            Symbol(
                f"{text} [{marks}]",
                parts=frozenset(parts) or frozenset({Symbol(text)}),
                node=node,
                address=self._loaded(node, depth),
            )
        )

    def _loaded(self, node: Node, depth: int) -> Polynomial | None:
        """Where `p[i]` or `__ldg(&p[i])` is, None for anything else."""
        if node.type == "call_expression" and self.source.of(node, "function") in LOADS:
            listed = field_of(node, "arguments")
            return self.polynomial(listed.named_children[0], depth + 1) if listed is not None else None
        base, indices = field_of(node, "argument"), field_of(node, "indices")
        if node.type != "subscript_expression" or base is None or indices is None or indices.named_child_count != 1:
            return None
        return self.polynomial(base, depth + 1) + self.polynomial(indices.named_children[0], depth + 1)

    def pointer_base(self, pointer: Polynomial) -> Symbol | None:
        """The one pointer in `base + offset`, None where there is none (an array of a struct, a local)."""
        bases = [m[0] for m, c in pointer.terms if len(m) == 1 and c == 1 and self.element_of(m[0])]
        return bases[0] if len(bases) == 1 else None

    def element_of(self, symbol: Symbol) -> str:
        """The type that a pointer or array symbol points at, "" for anything else."""
        if symbol.node is None:
            return ""
        if symbol.node.type == "call_expression":
            text = self.source.of(symbol.node, "function")
            match = re.fullmatch(r"reinterpret_cast<\s*(?:const\s+)?(.+?)\s*(?:const\s*)?\*\s*>", text, re.DOTALL)
            return match[1] if match else ""
        if symbol.node.type == "cast_expression":
            text = self.source.of(symbol.node, "type").strip()
            return text.removesuffix("*").replace("const", "").strip() if text.endswith("*") else ""
        if symbol.node.type != "identifier":
            return ""
        found = self.definition(symbol.node)
        if found is None or found.declarator is None:
            return ""
        inner = found.declarator
        if inner.type == "init_declarator":
            inner = field_of(inner, "declarator") or inner
        if inner.type not in {"pointer_declarator", "array_declarator"}:
            return ""
        return self.source.of(found.declaration, "type")


def _canonical(polynomial: Polynomial) -> str:
    return " + ".join(sorted(f"{c}*" + "*".join(f"{s.text}@{s.where}" for s in m) for m, c in polynomial.terms)) or "0"


def host_text(kernel: Kernel, launch: Launch, node: Node, depth: int = 0) -> str:
    """A kernel's expression as the launch's function can write it: parameters become the launch's arguments.

    Raises Unsupported where the value is only known on the device.
    """
    code, text = kernel.code, kernel.source.of(node)
    if node.type == "number_literal":
        return text
    if node.type == "field_expression":  # of a struct that the launch passes by its name
        holder = field_of(node, "argument")
        found = code.definition(holder) if holder is not None and holder.type == "identifier" else None
        if found is not None and found.kind == "parameter" and node.children[1].type != "->":
            struct = host_text(kernel, launch, holder, depth)
            if re.fullmatch(r"\w+", struct):
                return f"{struct}.{code.source.of(node, 'field')}"
        raise Unsupported(f"{text} is only known on the device")
    if node.type == "identifier":
        found = code.definition(node)
        if found is None or found.kind == "macro":
            return text
        if found.kind == "parameter":
            names = [p.name for p in kernel.parameters]
            if text not in names or names.index(text) >= len(launch.arguments) or code.mutated(found):
                raise Unsupported(f"{text} is not an argument of the launch")
            argument = launch.arguments[names.index(text)]
            plain = argument.type in {"identifier", "number_literal", "call_expression", "parenthesized_expression"}
            return code.source.of(argument) if plain else f"({code.source.of(argument)})"
        if found.kind == "template":
            names = kernel.template_names
            if text not in names or names.index(text) >= len(launch.template_arguments):
                raise Unsupported(f"{text} is not named by the launch")
            return launch.template_arguments[names.index(text)]
        if found.kind == "global" and found.value is not None:
            return text
        if found.kind == "local" and found.value is not None and not code.mutated(found) and depth < 16:
            inner = host_text(kernel, launch, found.value, depth + 1)
            return inner if re.fullmatch(r"[\w.]+|\(.*\)", inner) and inner.count("(") <= 1 else f"({inner})"
        raise Unsupported(f"{text} is only known on the device")
    if node.type in {"binary_expression", "parenthesized_expression", "cast_expression", "call_expression", "unary_expression",
                     "sizeof_expression", "conditional_expression", "compound_literal_expression"}:  # fmt: skip
        if node.type == "sizeof_expression":
            return _substituted(kernel, launch, node)
        if node.type == "call_expression":
            name = code.source.of(node, "function").split("<")[0]
            if (
                name not in {"static_cast", "min", "max", "std::min", "std::max", "int", "int64_t"}
                and name not in code.functions
            ):
                raise Unsupported(f"{name} is called on the device")
        pieces, at = [], node.start_byte
        for child in node.named_children:
            skip = node.type == "call_expression" and same(child, field_of(node, "function"))
            skip = skip or same(child, field_of(node, "type")) or child.type == "comment"
            if child.type == "argument_list" or child.type == "initializer_list":
                inner = "(" if child.type == "argument_list" else "{"
                listed = [host_text(kernel, launch, c, depth) for c in child.named_children if c.type != "comment"]
                new = inner + ", ".join(listed) + (")" if inner == "(" else "}")
            else:
                new = code.source.of(child) if skip else host_text(kernel, launch, child, depth)
            pieces += [code.source.data[at : child.start_byte].decode(), new]
            at = child.end_byte
        return "".join(pieces) + code.source.data[at : node.end_byte].decode()
    raise Unsupported(f"{text} is only known on the device")


def _substituted(kernel: Kernel, launch: Launch, node: Node) -> str:
    text = kernel.source.of(node)
    for name, value in zip(kernel.template_names, launch.template_arguments, strict=False):
        text = re.sub(rf"\b{re.escape(name)}\b", value, text)
    return text


def insertion_point(source: Source) -> int:
    """Behind the last #include of the file."""
    includes = [n for n in source.root.children if n.type == "preproc_include"]
    return includes[-1].end_byte if includes else 0


def require(edits: Edits, code: Code, text: str, *names: str, includes: tuple[str, ...] = ()) -> None:
    """Put `text` behind the includes unless it is there. Raises Unsupported where its names mean something else."""
    source = edits.source
    at = insertion_point(source)
    for header in includes:
        line = f"#include <{header}>\n"
        if line not in source.text and not any(line in change[2] for change in edits.changes):
            edits.insert(at, line)
    if text in source.text or any(text in change[2] for change in edits.changes):
        return
    if set(names) & code.names():
        raise Unsupported(f"the source already has a {', '.join(sorted(set(names) & code.names()))}")
    edits.insert(_behind_called(source, at, text), "\n" + text)


def _behind_called(source: Source, at: int, text: str) -> int:
    """Where `text` may stand: behind the functions in front of the first kernel that it calls, if these are no further up."""
    called = set(re.findall(r"\b(\w+)\(", text))
    for node in source.root.children:
        if "__global__" in source.of(node):
            break
        declarator = field_of(node, "declarator") if node.type == "function_definition" else None
        name = declared_name(declarator) if declarator is not None else None
        if node.start_byte >= at and name is not None and source.of(name) in called:
            at = node.end_byte
    return at


@lru_cache(maxsize=16)
def code_of(source: Source) -> Code:
    """One for all the rewrites that look at a source. Raises Unsupported as Code does."""
    return Code(source)


def without_unused(before: Code, text: str) -> str:
    """The text without the host variables that shaped a launch before and that nothing reads any more."""
    names = set()
    for launch in before.launches:
        for node in launch.config_nodes[:3]:
            names |= {before.source.of(n) for n in before.source.walk(node, "identifier")}
    return drop_unused(before.source, text, names)


def drop_unused(source: Source, text: str, names: set[str]) -> str:
    """The text without local declarations of the names, and of what only they used, that nothing reads any more."""
    for _ in range(16):
        here = source.reparsed(text)
        dropped = _unused(here, names)
        if dropped is None:
            return text
        names |= {here.of(n) for n in here.walk(dropped, "identifier")}
        if dropped.type == "declaration":
            start = here.line_start(dropped)
            text = (here.data[:start] + here.data[dropped.end_byte :].lstrip(b" ").removeprefix(b"\n")).decode()
        else:  # one of several
            before, after = dropped.prev_named_sibling, dropped.next_named_sibling
            first = before is None or before.start_byte < field_of(dropped.parent, "declarator").start_byte
            start = dropped.start_byte if first or before is None else before.end_byte
            end = after.start_byte if first and after is not None else dropped.end_byte
            text = (here.data[:start] + here.data[end:]).decode()
    return text


def _unused(source: Source, names: set[str]) -> Node | None:
    """A declaration, or one of several declarators, of a name that is used nowhere else."""
    for node in source.walk(None, "declaration"):
        parent, declarators = node.parent, node.children_by_field_name("declarator")
        if parent is None or parent.type != "compound_statement":
            continue
        for declarator in declarators:
            if declarator.type not in {"init_declarator", "function_declarator"}:
                continue
            name = field_of(declarator, "declarator")
            if name is None or name.type != "identifier" or source.of(name) not in names:
                continue
            uses = sum(source.of(n) == source.of(name) for n in source.walk(parent, "identifier", "type_identifier"))
            impure = source.has(node, "assignment_expression", "update_expression")
            if uses == 1 and not impure:
                return node if len(declarators) == 1 else declarator
    return None


def one_after_another(source: Source, change: Callable[[Code], str | None], most: int) -> str | None:
    """As `repeated`, of changes to code."""
    return repeated(source, lambda left: change(code_of(left)), most)
