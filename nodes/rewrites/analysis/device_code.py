"""What names and functions of a CUDA source mean: definitions, overloads, macros, what a function does behind its pointers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from tree_sitter import Node

from nodes.rewrites.analysis.indices import LOADS, Indices
from nodes.rewrites.analysis.kernels import Kernel, template_name, use_of
from nodes.rewrites.analysis.launches import Launch
from nodes.rewrites.syntax.algebra import Symbol
from nodes.rewrites.syntax.insert import free
from nodes.rewrites.syntax.match import bare, match
from nodes.rewrites.syntax.source import Source, Unsupported, inside, repeated
from nodes.rewrites.syntax.source import one_by_one as by_source
from nodes.rewrites.syntax.tree import children_of, declared_name, field_of, same, upward, whole_of

ATTRIBUTES = {"cudaFuncGetAttributes", "cudaFuncSetAttribute", "cudaFuncSetCacheConfig"}
"""Host functions that take a kernel and do not launch it."""
GRID_CALLS = ("cudaGridDependencySynchronize", "cudaTriggerProgrammaticLaunchCompletion")
"""A kernel waits for the grid before its own, or lets the next one begin to."""
_SCOPES = {"compound_statement", "translation_unit", "declaration_list", "preproc_if", "preproc_ifdef"}


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

    @property
    def form(self) -> Node | None:
        """The declarator without its value: `x`, `*x`, `x[4]`."""
        whole = self.declarator
        return field_of(whole, "declarator") if whole is not None and whole.type == "init_declarator" else whole


class Code(Indices):
    """A parsed CUDA source with names resolved."""

    def __init__(
        self, source: Source, pinned: frozenset[int] = frozenset(), integers: frozenset[str] = frozenset()
    ) -> None:
        self.source = source
        self.pinned = pinned
        """Byte offsets of definitions that polynomials do not see through."""
        self.integers = integers
        """Types, such as template parameters, that are known to be integers: polynomials see through their variables."""
        self._definitions: dict[int, Definition | None] = code_of(source)._definitions if pinned or integers else {}
        """By the id of an identifier, whatever is pinned: they are asked for some hundred times for each one."""
        if source.root.has_error and any(n.type == "ERROR" for n in source.root.children):
            raise Unsupported("the parser does not understand the file's outer structure")

    @cached_property
    def launches(self) -> list[Launch]:
        found = []
        for call in self.source.walk(None, "call_expression"):
            if any(c.type == "kernel_call_syntax" for c in call.children):
                found.append(Launch(self, call))
        return found

    def launches_of(self, name: str) -> list[Launch]:
        """Every launch of the kernel, or none where there may be others: from a macro, through a pointer, of another
        kernel of the same name."""
        if len(self.overloads.get(name, [])) > 1 or name in self.words_of_macros:
            return []
        mine = [launch for launch in self.launches if launch.kernel_name == name]
        for node in self._mentions.get(name, []):
            if not any(inside(node, launch.function) for launch in mine):
                outer = (n for n in upward(node.parent) if n.type not in {"template_function", "qualified_identifier"})
                around = next(outer)
                asked = self.source.of(around.parent, "function") if around.type == "argument_list" else ""
                if around.type != "function_declarator" and asked not in ATTRIBUTES:
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
    def words_of_macros(self) -> set[str]:
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
        return {name: group[-1] for name, group in self.overloads.items()}

    @cached_property
    def overloads(self) -> dict[str, list[Node]]:
        """Every function with a body, by name; not what kernels say about the grids around theirs, which computes nothing."""
        found: dict[str, list[Node]] = {}
        for node in self.source.walk(None, "function_definition"):
            declarator = field_of(node, "declarator")
            name = declared_name(declarator)
            if name is None and declarator is not None:  # a specialisation, `from_float<float>`
                inner = field_of(declarator, "declarator")
                name = field_of(inner, "name") if inner is not None and inner.type == "template_function" else None
            if name is not None:
                found.setdefault(self.source.of(name), []).append(node)
        return found

    def reached(self, *names: str, beside: Iterable[str] = ()) -> list[Node]:
        """The functions of the file that have one of these names, and those that they lead to, `beside` others."""
        found, seen, stack = [], set(beside), list(names)
        while stack:
            if (name := stack.pop()) not in seen:
                seen.add(name)
                found += self.overloads.get(name, [])
                for function in self.overloads.get(name, []):
                    stack += map(self.source.called, self.source.walk(function, "call_expression"))
        return found

    def pointer_effects(self, name: str, count: int) -> list[str | None]:
        """What a function does behind each argument that is a pointer: "r", "w" or "rw" of that one element, "R" and "W"
        of some elements from there on.

        None: not known, so anything. "" for arguments that it does not touch.
        """
        if self.loads(name):
            return ["r"] + [""] * (count - 1)
        known = [self._effects_of(function, count) for function in self.overloads.get(name, [])]
        together = [None if None in each else "".join(sorted(set("".join(each)))) for each in zip(*known, strict=True)]
        return together or [None] * count

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
        macro = self.macros.get(name)
        form = re.fullmatch(r"\s*(\w+)\((\w+)\)\s*", self.source.of(macro, "value"))
        taken = [self.source.of(c) for c in children_of(macro, "parameters")]
        return name in LOADS or (form is not None and form[1] in LOADS and [form[2]] == taken)

    def _effects_of(self, function: Node, count: int) -> list[str | None]:
        body, parameters = field_of(function, "body"), children_of(function, "declarator", "parameters")
        found: list[str | None] = []
        for parameter in parameters[:count]:
            name = self.source.name(parameter)
            uses = [n for n in self.source.walk(body, "identifier") if name and self.source.of(n) == name]
            effects = [self._effect_of(use) for use in uses]
            found.append(None if None in effects else "".join(effects))
        return found + [None] * (count - len(found))

    def _effect_of(self, use: Node) -> str | None:
        """As `pointer_effects` has it, of one place where a parameter is named."""
        target, call = use, use.parent.parent if use.parent.type == "argument_list" else None
        called = self.source.of(call, "function")
        if self.loads(called) and same(use.parent.named_children[0], use):
            return "r"
        if called == "reinterpret_cast<uintptr_t>":
            return ""  # where it is, not what
        if called.startswith("reinterpret_cast<"):  # `*reinterpret_cast<Wide*>(p)`: several elements from p on
            target = call
        place = target.parent
        if place.type != "pointer_expression" or self.source.of(place.children[0]) != "*":
            return None
        used = use_of(self, place)
        effect = "r" * used[0] + "w" * used[1] if used is not None else None
        return effect.upper() if effect is not None and (target is call or used[2]) else effect

    def root_of(self, base: Symbol, depth: int = 0) -> str:
        """The parameter that a pointer comes from; "" for an array of the thread or block; "?" where unknown."""
        node = base.node
        if node is None or depth > 12:
            return "?"
        inner = field_of(node, "value") or next(iter(children_of(node, "arguments")), None)  # of a cast
        if node.type == "identifier":
            found = self.definition(node)
            if found is None or found.declarator is None:
                return "?"
            if found.kind == "parameter":
                return self.source.of(node)
            if found.form.type == "array_declarator":
                return ""
            inner = found.value
        if inner is not None and self.own_variable(inner) is not None:
            return ""
        deeper = self.pointer_base(self.polynomial(inner)) if inner is not None else None
        return self.root_of(deeper, depth + 1) if deeper is not None and deeper != base else "?"

    def own_variable(self, address: Node) -> Definition | None:
        """The variable of the thread's own that a pointer's first value, `&v`, `&v.x` or either seen as another type, is the
        address of; None for anything else."""
        address = bare(address)
        if address.type == "cast_expression" or self.source.of(address, "function").startswith("reinterpret_"):
            return self.own_variable(field_of(address, "value") or children_of(address, "arguments")[0])
        found = match(self.source, address, "&$place")
        own = self.variable(whole_of(found["place"])) if found is not None else None
        plain = own is not None and own.kind == "local" and own.form.type == "identifier"
        return own if plain and not self.source.says(own.declaration, "__shared__") else None

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
            target = whole_of(target)
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

    def set_at(self, found: Definition, within: Node) -> list[Node]:
        """Where a variable is named to be changed, as `assigned` has it."""
        named = (n for n in self.assigned(within) if self.source.of(n) == found.name)
        return [n for n in named if (here := self.definition(n)) is not None and here.where == found.where]

    def mutated(self, definition: Definition) -> bool:
        return definition.where in self._assigned_definitions

    def is_constant(self, node: Node, in_front_of: Node | None = None) -> bool:
        """Whether all names of an expression are template parameters, macros and constants that are known when the file is compiled,
        and in sight in front of a statement."""
        words = {"global": ("constexpr", "const"), "local": ("constexpr",)}  # a device sees no other globals
        for found in map(self.definition, self.source.walk(node, "identifier")):
            if found is None or found.kind not in {"template", "macro", *words}:
                return False
            if found.kind in words and not self.source.says(found.declaration, *words[found.kind]):
                return False
            behind = in_front_of is not None and found.declaration.end_byte > in_front_of.start_byte
            if found.kind == "local" and behind:
                return False
        return True

    def variable(self, node: Node | None) -> Definition | None:
        """The definition of an expression that is a name; None for any other one."""
        return self.definition(node) if node is not None and node.type == "identifier" else None

    def settled(self, node: Node) -> Node:
        """What a name stands for, where it never changes."""
        found = self.variable(node)
        if found is None or found.value is None or found.kind not in {"local", "global"} or self.mutated(found):
            return node
        return self.settled(found.value)

    def definition(self, identifier: Node) -> Definition | None:
        """The innermost definition that is in sight of the identifier."""
        if not self.source.owns(identifier):  # of a text beside it, whose nodes' ids others have once it is gone
            return self._definition(identifier)
        if identifier.id not in self._definitions:
            self._definitions[identifier.id] = self._definition(identifier)
        return self._definitions[identifier.id]

    def _definition(self, identifier: Node) -> Definition | None:
        name, here = self.source.of(identifier), identifier
        for around in upward(identifier.parent):
            for found in self._in_front(around, here):
                if found.name == name:
                    return found
            here = around
        macro = self.macros.get(name)
        return Definition(name, "macro", macro, None, None) if macro is not None else None

    def _in_front(self, around: Node, here: Node) -> Iterator[Definition]:
        """What a node declares in front of one right below it, the last first."""
        if around.type in _SCOPES:
            kind = "local" if around.type == "compound_statement" else "global"
            for sibling in reversed(around.named_children):
                if sibling.type == "declaration" and sibling.end_byte <= here.start_byte:
                    yield from reversed(self.declared(sibling, kind))
        elif around.type == "declaration":
            before = (found for found in self.declared(around) if found.declarator.end_byte <= here.start_byte)
            yield from reversed(list(before))
        elif around.type in {"for_statement", "if_statement", "while_statement"}:
            start = field_of(around, "initializer")
            if start is not None and start.type == "declaration" and not same(here, start):
                yield from reversed(self.declared(start, "loop"))
        elif around.type in {"function_definition", "lambda_expression"}:
            declared = field_of(around, "declarator")
            if declared is not None and declared.type == "pointer_declarator":  # what it returns
                declared = field_of(declared, "declarator")
            for parameter in children_of(declared, "parameters"):
                yield from self.declared(parameter, "parameter")
        elif around.type == "template_declaration":
            for parameter in children_of(around, "parameters"):
                yield Definition(template_name(self.source, parameter), "template", parameter, None, None)

    def declared(self, declaration: Node, kind: str = "local") -> list[Definition]:
        """The variables that a declaration makes."""
        found = []
        for declarator in declaration.children_by_field_name("declarator"):
            if (name := declared_name(declarator)) is not None:
                value = field_of(declarator, "value") if declarator.type == "init_declarator" else None
                found.append(Definition(self.source.of(name), kind, declaration, declarator, value))
        return found


@lru_cache(maxsize=16)
def code_of(source: Source, integers: frozenset[str] = frozenset()) -> Code:
    """One for all the rewrites that look at a source. Raises Unsupported as Code does."""
    return Code(source, integers=integers)


def one_after_another(source: Source, change: Callable[[Code], str | None], most: int) -> str | None:
    """As `repeated`, of changes to code."""
    return repeated(source, lambda left: change(code_of(left)), most)


def one_by_one(
    source: Source, form: Callable[..., bool | None], places: Callable[[Code], Iterable[tuple]], most: int
) -> str | None:
    """As in syntax/source.py, of places in code: `form(edits, code, *place)`."""
    return by_source(source, form, lambda left: ((code_of(left), *place) for place in places(code_of(left))), most)
