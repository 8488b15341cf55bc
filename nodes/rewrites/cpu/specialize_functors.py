"""A template that is given a function object to apply calls a function instead: in `map(x, y, n, Silu{})` what map does by `op(v)` it
does by `silu_value(v)`.

What a template parameter does cannot be seen in the template, so its loop stayed as it was. The object's call operator becomes a
function of the file, which other steps look into. Only objects without a state, and templates that are called once. Changes
nothing by itself.
"""

from __future__ import annotations

from tree_sitter import Node

from nodes.rewrites.analysis.host_source import arguments, declared_names, functions, host_code
from nodes.rewrites.analysis.kernels import Kernel, template_name
from nodes.rewrites.analysis.structs import structs
from nodes.rewrites.registry import rule
from nodes.rewrites.syntax.insert import free
from nodes.rewrites.syntax.source import Edits, Source, Unsupported, lifted, one_by_one
from nodes.rewrites.syntax.tree import children_of, field_of, same


@rule("cpu", expected="nothing by itself: later steps see what a template is asked to apply", normalizes=True)
def rewrite(source: Source, facts: object) -> str | None:
    return one_by_one(source, _write_out, lambda left: ((left, *group) for group in functions(left).values()), 64)


def _write_out(edits: Edits, source: Source, function: Kernel, *others: Kernel) -> None:
    *_, last = named = [n for n in source.walk(None, "identifier") if source.of(n) == function.name]
    template = function.template
    if others or template is None or len(named) != 2 or not same(field_of(last.parent, "function"), last):
        raise Unsupported("not called once by its name")
    types = {template_name(source, t) for t in children_of(template, "parameters")}
    for parameter, argument in zip(function.parameters, arguments(last.parent), strict=False):
        uses = [n for n in source.walk(function.body, "identifier") if source.of(n) == parameter.name]
        applied = uses and all(same(field_of(use.parent, "function"), use) for use in uses)
        if parameter.element in types and applied and parameter.name not in declared_names(source, function.body):
            name, text = _function_of(source, argument)
            edits.insert(template.start_byte, text)
            for use in uses:
                edits.replace(use, name)
            return
    raise Unsupported("it is given no function")


def _function_of(source: Source, argument: Node) -> tuple[str, str]:
    """(name, text) of the function that an object without a state, `Silu{}` or `Silu()`, becomes."""
    literal = argument.type == "compound_literal_expression"
    kind, given = ("type", "value") if literal else ("function", "arguments")
    struct = structs(host_code(source)).get(source.of(argument, kind))
    if struct is None or struct.parameters or struct.members or list(struct.methods) != ["operator()"]:
        raise Unsupported("not one struct of the file with nothing but a call operator")
    method = struct.methods["operator()"]
    if children_of(argument, given) or source.has(method, "this"):
        raise Unsupported("an object with a state, or one that knows itself")
    words = "".join(f"_{c.lower()}" if c.isupper() else c for c in struct.name).lstrip("_").replace("__", "_")
    name = free(f"{words}_value", host_code(source).names())
    head = f"static inline {source.of(method, 'type')} {name}{source.of(next(source.walk(method, 'parameter_list')))}"
    return name, f"{head} {lifted(source, method, source.of(method, 'body'))}\n\n"
