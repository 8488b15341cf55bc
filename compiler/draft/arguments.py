"""What Model.forward takes, as it is written."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from .tensors import NoDraft

MOST_ARGUMENTS = 256
"""Of `*args`."""


@dataclass
class Arguments:
    """What forward takes, without annotations."""

    arguments: ast.arguments

    @property
    def listed(self) -> list[str]:
        return [argument.arg for argument in [*self.arguments.posonlyargs, *self.arguments.args]][1:]

    @property
    def names(self) -> list[str]:
        more = [*self.arguments.kwonlyargs, self.arguments.vararg, self.arguments.kwarg]
        return self.listed + [argument.arg for argument in more if argument is not None]

    @property
    def positional(self) -> list[str]:
        """Those of `*args` as `args[0]` and so on."""
        star = self.arguments.vararg
        return self.listed + ([f"{star.arg}[{place}]" for place in range(MOST_ARGUMENTS)] if star is not None else [])

    def rest(self, inputs: list[Any]) -> list[tuple[str, tuple]]:
        """What of the inputs is in `*args`, with its name."""
        star = self.arguments.vararg
        return [] if star is None else [(star.arg, tuple(inputs[len(self.listed) :]))]

    @property
    def call(self) -> str:
        star = [f"*{self.arguments.vararg.arg}"] if self.arguments.vararg is not None else []
        named = [f"{argument.arg}={argument.arg}" for argument in self.arguments.kwonlyargs]
        twice = [f"**{self.arguments.kwarg.arg}"] if self.arguments.kwarg is not None else []
        return ", ".join([*self.listed, *star, *named, *twice])

    def left_out(self, given: int) -> dict[str, str]:
        """Arguments behind the first `given` ones whose defaults are constants, with these."""
        defaults = self.arguments.defaults
        pairs = list(zip(self.listed[len(self.listed) - len(defaults) :], defaults, strict=True)) if defaults else []
        pairs = [pair for pair in pairs if pair[0] in self.listed[given:]]
        pairs += [
            (argument.arg, default)
            for argument, default in zip(self.arguments.kwonlyargs, self.arguments.kw_defaults, strict=True)
            if default is not None
        ]
        found = {name: ast.unparse(default) for name, default in pairs if isinstance(default, ast.Constant)}
        return found | ({self.arguments.kwarg.arg: "{}"} if self.arguments.kwarg is not None else {})


def forward_arguments(text: str, model: type) -> Arguments:
    owner = next(part for part in model.__mro__ if "forward" in vars(part))
    parsed = ast.parse(text.removeprefix("\ufeff")).body
    found = [node for node in parsed if isinstance(node, ast.ClassDef) and node.name == owner.__name__]
    methods = [part for part in found[-1].body if getattr(part, "name", "") == "forward"] if found else []
    if owner.__module__ != "problem" or not methods or not isinstance(methods[-1], ast.FunctionDef):
        raise NoDraft(
            "the problem's Model has no forward of its own, nor has a class of the problem that it inherits from"
        )
    arguments = methods[-1].args
    listed = [*arguments.posonlyargs, *arguments.args]
    for argument in [*listed, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]:
        if argument is not None:
            argument.annotation = None
    return Arguments(arguments)
