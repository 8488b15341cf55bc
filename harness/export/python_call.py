"""A plain C winner called from the user's own Python: a source and a module that builds it beside the file, and two lines in its function."""

from __future__ import annotations

import ast
from pathlib import PurePosixPath

from harness.cpp import without_dead_conditionals
from harness.export import load_templates
from harness.export.dropin import PROGRAMMATIC, ExportError, describe, most_bytes
from harness.export.launcher import decides
from harness.farside.forms import take_arguments, take_inputs
from kernels.spec import Device, Scalar, Size, Spec

NAME = "astrolabe_launched"


def patch(spec: Spec, own: str, winner: str, name: str, device: Device, *, packaged: bool) -> dict[str, str]:
    """The files as they become, by path. packaged: the file is a module of a package, whose imports may be relative.

    Raises ExportError for a function that cannot call the winner.
    """
    path = PurePosixPath(name)
    module = f"{path.stem}_astrolabe"
    source = f"{module}{'.cu' if device == 'cuda' else '.cpp'}"
    context = describe(spec, device) | {"source": source, "include": [], "beside": True, "summary": spec.summary}
    asked = context["asked_names"]
    parameters = {one.arg for one in ast.walk(_function(spec, ast.parse(own)).args) if isinstance(one, ast.arg)}
    if lost := [one for one in asked if one not in parameters]:
        raise ExportError(f"the size {lost[0]} is told by no tensor's shape and is no parameter of {spec.entry_name}")
    context |= {"programmatic": device == "cuda" and PROGRAMMATIC in winner, "most_bytes": most_bytes(spec, device)}
    makes = _makes(spec, own)
    context["makes"] = makes
    if makes and context["late"]:
        raise ExportError(f"the size {context['late'][0]} of what it returns is told by no input's shape")
    context["given"] = [
        argument.name for argument in spec.arguments if not isinstance(argument, Size) or argument.name in asked
    ]
    made = {tensor["name"] for tensor in context["made"]}
    context["taken"] = [name for name in context["given"] if name not in made]
    context["ranks"] = " or ".join(f"{t.name}.dim() != {len(t.shape)}" for t in spec.inputs)
    context["numbers"] = [argument.name for argument in spec.arguments if isinstance(argument, Scalar)]
    return {
        name: _calling(
            spec,
            own,
            winner,
            f"from {'.' if packaged else ''}{module} import {'made' if makes else 'launched'} as {NAME}",
            makes=makes,
            asked=asked,
        ),
        str(path.with_name(f"{module}.py")): load_templates().get_template("init.py.j2").render(context),
        str(path.with_name(source)): without_dead_conditionals(winner),
    }


def _function(spec: Spec, tree: ast.Module) -> ast.FunctionDef:
    function = next((n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == spec.entry_name), None)
    if function is None:
        raise ExportError(f"it defines no function {spec.entry_name}")
    return function


def _inputs(spec: Spec, function: ast.FunctionDef) -> list[int] | None:
    """Which of the spec's arguments it takes where it returns the outputs, else None."""
    parameters = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    arguments = [[argument.kind, argument.name, getattr(argument, "role", "")] for argument in spec.arguments]
    return take_inputs(parameters, len(parameters) - len(function.args.defaults), arguments)


def _makes(spec: Spec, own: str) -> bool:
    return _inputs(spec, _function(spec, ast.parse(own))) is not None


def _calling(spec: Spec, own: str, winner: str, imported: str, *, makes: bool, asked: list[str]) -> str:
    tree = ast.parse(own)
    function = _function(spec, tree)
    given, condition = _named(spec, function)
    for one in spec.arguments:
        if isinstance(one, Scalar) and one.name in given and given[one.name].isidentifier() and decides(one, winner):
            condition += f"{given[one.name]} == {one.given!r} and "
    given |= {one: one for one in asked}  # sizes that no shape tells, by the function's own parameters
    told = ", ".join(f"{argument}={name}" for argument, name in given.items())
    first = function.body[0]
    said = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and len(function.body) > 1
    first = function.body[1] if said else first
    indent = " " * first.col_offset
    if makes:
        told = f"{condition}({NAME}_outputs := {NAME}({told})) is not None"
        branch = [f"{indent}if {told}:", f"{indent}    return {NAME}_outputs"]
    else:
        branch = [f"{indent}if {condition}{NAME}({told}):", f"{indent}    return{_returned(function)}"]
    lines = own.splitlines(keepends=True)
    at = first.lineno - 1
    lines[at:at] = [f"{line}\n" for line in branch]
    imports = [
        node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom)) and node.lineno < function.lineno
    ]
    after = (imports[-1].end_lineno or 0) if imports else 0
    lines[after:after] = [f"{imported}\n"]
    return "".join(lines)


def _named(spec: Spec, function: ast.FunctionDef) -> tuple[dict[str, str], str]:
    """(argument of the spec -> the function's parameter, what must hold of the others); as the harness calls it. Raises ExportError."""
    parameters = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    defaults = dict(
        zip(parameters[len(parameters) - len(function.args.defaults) :], function.args.defaults, strict=True)
    )
    kinds = [argument.kind for argument in spec.arguments]
    names = [argument.name for argument in spec.arguments]
    picked = _inputs(spec, function)
    if picked is None:
        picked = take_arguments(parameters, len(parameters) - len(defaults), names, list(kinds))
    if picked is None or function.args.vararg:
        raise ExportError(
            f"{function.name} takes {', '.join(parameters)}, which are not the spec's arguments, in order"
        )
    order = [spec.arguments[at] for at in picked]
    others = [
        f"{name} {'is' if isinstance(default, ast.Constant) and default.value is None else '=='} {ast.unparse(default)} and "
        for name, default in list(defaults.items())
        if name in parameters[len(order) :]
    ]
    named = {
        argument.name: name for argument, name in zip(order, parameters, strict=False) if not isinstance(argument, Size)
    }
    missing = {one.name: repr(one.given) for one in spec.arguments if isinstance(one, Scalar) and one.name not in named}
    return named | missing, "".join(others)


def _returned(function: ast.FunctionDef) -> str:
    """What it returns, where that is made of its parameters alone; "" where it returns nothing. Raises ExportError."""
    inner = [
        node for node in ast.walk(function) if isinstance(node, (ast.FunctionDef, ast.Lambda)) and node is not function
    ]
    within = {id(node) for one in inner for node in ast.walk(one)}
    found = {
        ast.unparse(node.value)
        for node in ast.walk(function)
        if isinstance(node, ast.Return) and node.value is not None and id(node) not in within
    } - {"None"}
    parameters = {one.arg for one in (*function.args.posonlyargs, *function.args.args)}
    if len(found) > 1:
        raise ExportError(f"{function.name} returns one of several things")
    if not found:
        return ""
    (text,) = found
    nodes = list(ast.walk(ast.parse(text, mode="eval")))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    if not names <= parameters or any(isinstance(node, (ast.Call, ast.Await)) for node in nodes):
        raise ExportError(
            f"{function.name} returns {text[:60]}, which it makes; only one that writes into given tensors is patched"
        )
    return f" {text}"
