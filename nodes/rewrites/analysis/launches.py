"""Launches of kernels, and what their hosts can say of a kernel's own expressions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tree_sitter import Node

from nodes.rewrites.syntax.insert import substituted
from nodes.rewrites.syntax.source import Unsupported
from nodes.rewrites.syntax.tree import children_of, field_of, same

if TYPE_CHECKING:
    from nodes.rewrites.analysis.device_code import Code, Kernel


class Launch:
    """A kernel's launch in a host function, written `name<args><<<grid, block, shared, stream>>>(arguments)`."""

    def __init__(self, code: Code, node: Node) -> None:
        self.code, self.node = code, node
        self.config_nodes = children_of(next(c for c in node.children if c.type == "kernel_call_syntax"))
        self.function, self.arguments = field_of(node, "function"), children_of(node, "arguments")
        named = self.function
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
    ) -> str:
        """The launch as text, without the semicolon, with some of its parts replaced."""
        text = self.code.source.of
        function = text(self.function) if function is None else function
        config = [grid or text(self.grid), block or text(self.block), shared or self.shared_text, self.stream_text]
        arguments = [text(a) for a in self.arguments] if arguments is None else arguments
        # NULL may be a number, where an argument's type is deduced.
        arguments = ["nullptr" if a == "NULL" else a for a in arguments]
        return f"{function}<<<{', '.join(config)}>>>({', '.join(arguments)})"

    def all_template_arguments(self) -> list[str]:
        """With those that the compiler deduces from what is passed or takes from defaults. Raises Unsupported where neither says them."""
        kernel = next(kernel for kernel in self.code.kernels if kernel.name == self.kernel_name)
        found = list(self.template_arguments)
        for name, declared in list(zip(kernel.template_names, kernel.template_parameters, strict=True))[len(found) :]:
            passed = zip(kernel.parameters, self.arguments, strict=False)
            typed = (("*" if p.pointer else "") + self.code.source.of(a) for p, a in passed if p.element == name)
            default = field_of(declared, "default_value") or field_of(declared, "default_type")
            if (value := next(typed, None)) is not None:
                found.append(f"std::decay_t<decltype({value})>")
            elif default is not None:
                found.append(
                    substituted(self.code.source.of(default), dict(zip(kernel.template_names, found, strict=False)))
                )
            else:
                raise Unsupported(f"template argument {name} of {kernel.name} is deduced")
        return found

    def with_arguments(self, *added: str) -> str:
        """The function with all of its template arguments, and more behind them. Raises Unsupported where these are not known."""
        text, every = self.code.source.of(self.function), self.all_template_arguments()
        if len(every) > len(self.template_arguments) or (added and self.template_list is None):
            return f"{text.partition('<')[0].rstrip()}<{', '.join([*every, *added])}>"
        return f"{text[: text.rindex('>')].rstrip()}, {', '.join(added)}>" if added else text

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
        return x, y, z

    def along_x(self, node: Node) -> Node:
        """The expression that x is, of a grid or block. Raises Unsupported where it is assigned to later."""
        parts = self._dim3(node)
        if parts is not None and (not parts or "x" in self._set_later(node)):
            raise Unsupported("a launch shape that is assigned to, or 1")
        return parts[0] if parts else node

    def _set_later(self, node: Node) -> set[str]:
        """Which of a `dim3` variable's fields are assigned to behind its declaration."""
        source, found = self.code.source, self.code.variable(node)
        if found is None or not self.code.mutated(found):
            return set()
        targets = self.code.set_at(found, source.root)
        if any(target.parent.type != "field_expression" for target in targets):
            raise Unsupported("a launch shape that is assigned to")
        return {source.of(target.parent, "field") for target in targets}

    def _dim3(self, node: Node, depth: int = 0) -> list[Node] | None:
        source = self.code.source
        if node.type == "call_expression" and source.of(node, "function") == "dim3":
            return children_of(node, "arguments")
        if node.type in {"compound_literal_expression", "initializer_list", "argument_list"}:
            return children_of(field_of(node, "value") or node)
        found = self.code.variable(node)
        if found is None or found.kind != "local" or depth == 3:
            return None
        if "dim3" not in source.of(found.declaration, "type") and found.value is None:
            return None
        self._set_later(node)
        if found.value is not None:
            return self._dim3(found.value, depth + 1)
        return children_of(found.declarator, "parameters")  # `dim3 grid(n)` parses as a function; `dim3 grid;` has none


_HOST_FUNCTIONS = {"static_cast", "min", "max", "std::min", "std::max", "int", "int64_t"}
_HOST_EXPRESSIONS = {
    "binary_expression", "parenthesized_expression", "cast_expression", "call_expression", "unary_expression",
    "conditional_expression", "compound_literal_expression",
}  # fmt: skip


def host_text(kernel: Kernel, launch: Launch, node: Node, depth: int = 0) -> str:
    """A kernel's expression as the launch's function can write it: parameters become the launch's arguments.

    Raises Unsupported where the value is only known on the device.
    """
    code, source = kernel.code, kernel.source
    if node.type == "number_literal":
        return source.of(node)
    if node.type == "identifier":
        return _host_name(kernel, launch, node, depth)
    if node.type == "sizeof_expression":
        return substituted(source.of(node), dict(zip(kernel.template_names, launch.template_arguments, strict=False)))
    name = source.of(node, "function").split("<")[0]
    if node.type not in _HOST_EXPRESSIONS or (name and name not in _HOST_FUNCTIONS and name not in code.functions):
        raise Unsupported(f"{source.of(node)} is only known on the device")
    told = [c for c in children_of(node) if not any(same(c, field_of(node, f)) for f in ("function", "type"))]
    lists = {"argument_list", "initializer_list"}
    parts = [part for child in told for part in (children_of(child) if child.type in lists else [child])]
    return source.render(node, [(part, host_text(kernel, launch, part, depth)) for part in parts])


def _host_name(kernel: Kernel, launch: Launch, node: Node, depth: int) -> str:
    code, text = kernel.code, kernel.source.of(node)
    found = code.definition(node)
    if found is None or found.kind == "macro" or (found.kind == "global" and found.value is not None):
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
    if found.kind != "local" or found.value is None or code.mutated(found) or depth >= 16:
        raise Unsupported(f"{text} is only known on the device")
    inner = host_text(kernel, launch, found.value, depth + 1)
    return inner if re.fullmatch(r"[\w.]+|\(.*\)", inner) and inner.count("(") <= 1 else f"({inner})"
