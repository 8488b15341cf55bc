"""A captured function's source as a module that stands alone: with the imports, constants and functions that it uses."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

PLAIN = (bool, int, float, str, type(None))


class CaptureError(Exception):
    """No problem can be made of what was captured; the message is one sentence."""


def literal(value: Any) -> str | None:
    """The value as Python source, None where it has none that we write: numbers, texts, None, dtypes and tuples of them."""
    import torch

    if isinstance(value, torch.dtype):
        return str(value)
    if type(value) is float and (value != value or abs(value) == float("inf")):
        return f"float('{value}')"
    if type(value) in PLAIN:
        return repr(value)
    if type(value) in (tuple, list, torch.Size):
        inner = [literal(one) for one in value]
        if any(one is None for one in inner):
            return None
        joined = ", ".join(one for one in inner if one is not None)
        return f"[{joined}]" if type(value) is list else f"({joined}{',' if len(inner) == 1 else ''})"
    return None


def write_standalone(function: Callable[..., Any]) -> str:
    """The function's source with all that it names. Raises CaptureError where that cannot be had."""
    parts: dict[str, str] = {}
    _collect(inspect.unwrap(function), parts)
    own = [part for part in parts.values() if part.strip() != "import torch"]
    return "import torch\n\n" + "\n\n".join(own) + "\n"


def _collect(function: Any, parts: dict[str, str]) -> None:
    if not isinstance(function, FunctionType):
        raise CaptureError(
            f"{getattr(function, '__name__', function)} has no source in Python, so it cannot be a reference"
        )
    text = _source(function)
    closed = inspect.getclosurevars(function).nonlocals
    for name in sorted(_names(function.__code__) | set(function.__code__.co_freevars)):
        if name in parts or name == function.__name__:
            continue
        if name in closed:
            _add(function, name, closed[name], parts)
        elif name in function.__globals__:
            _add(function, name, function.__globals__[name], parts)
    parts[function.__name__] = text


def _source(function: FunctionType) -> str:
    try:
        text = textwrap.dedent(inspect.getsource(function))
        node = ast.parse(text).body[0]
    except (OSError, SyntaxError) as error:
        raise CaptureError(f"the source of {function.__name__} cannot be had: {error}") from None
    if not isinstance(node, ast.FunctionDef) or node.name != function.__name__:
        raise CaptureError(f"{function.__name__} is not defined by `def` under that name, so it cannot be a reference")
    lines = text.splitlines()[node.lineno - 1 : node.end_lineno]  # without its decorators, this one among them
    plain = ast.parse("\n".join(lines)).body[0]
    assert isinstance(plain, ast.FunctionDef)
    arguments = plain.args
    annotated = any(one.annotation for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs))
    if not annotated and plain.returns is None and not arguments.defaults and not arguments.kw_defaults:
        return "\n".join(lines)
    # Annotations and defaults may name what is not there; every argument is given.
    for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        one.annotation = None
    plain.returns, arguments.defaults, arguments.kw_defaults = None, [], [None] * len(arguments.kwonlyargs)
    return ast.unparse(plain)


def _names(code: CodeType) -> set[str]:
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    return set(code.co_names).union(*(_names(one) for one in inner)) if inner else set(code.co_names)


def _add(user: FunctionType, name: str, value: Any, parts: dict[str, str]) -> None:
    if isinstance(value, ModuleType):
        parts[name] = f"import {value.__name__} as {name}" if name != value.__name__ else f"import {name}"
    elif (text := literal(value)) is not None:
        parts[name] = f"{name} = {text}"
    elif isinstance(inspect.unwrap(value) if callable(value) else None, FunctionType) and _is_users(value, user):
        own = inspect.unwrap(value)
        if own.__name__ != name:
            raise CaptureError(f"{user.__name__} uses {own.__name__} under the name {name}: use it under its own")
        parts[name] = ""  # it may name itself, or one that names it
        _collect(own, parts)
    elif isinstance(value, type | FunctionType | BuiltinFunctionType) and getattr(value, "__module__", None):
        outer, _, inner = value.__qualname__.rpartition(".")
        if outer or inner.startswith("<"):
            raise CaptureError(f"{user.__name__} uses {name}, which is defined inside {outer or value.__module__}")
        parts[name] = f"from {value.__module__} import {inner} as {name}"
    else:
        raise CaptureError(
            f"{user.__name__} uses {name}, a {type(value).__name__} outside of it: make it an argument, so that it is an input"
        )


def _is_users(value: Any, user: FunctionType) -> bool:
    """Whether a function is of the same program: its module is the user's own, or in the same package."""
    mine, other = user.__module__ or "", inspect.unwrap(value).__module__ or ""
    return mine.partition(".")[0] == other.partition(".")[0]
