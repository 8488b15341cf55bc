"""What of a problem's text stays plain Python while it is followed: scripts, parts under torch.compile, inference mode."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch


class _Unscripted(torch.nn.Module):
    """A module of its own, since others are asked whether they are scripted."""


def _no_grad(mode: Any = True) -> Any:
    """Of tensors made under torch.inference_mode the exporter cannot follow the versions."""
    if callable(mode):
        return torch.no_grad()(mode)
    return torch.no_grad() if mode else contextlib.nullcontext()


@contextlib.contextmanager
def unscripted() -> Iterator[None]:
    """What the problem puts under `torch.jit.script` stays Python, as PYTORCH_JIT=0 has it: the exporter looks into it, and needs no file."""

    def as_it_is(scripted: Any, *_: Any, **__: Any) -> Any:
        return scripted

    def uncompiled(part: Any = None, **_: Any) -> Any:
        """A part under torch.compile is itself where its compiler is turned off, and wrapped elsewhere: `parameter_text` names what is in it so
        that both have it."""
        if part is None:
            return uncompiled
        with contextlib.suppress(AttributeError):
            part.under_compile = True
        return part

    plain: dict[str, Any] = {"script": as_it_is, "script_method": as_it_is, "ScriptModule": _Unscripted}
    with (
        patch.multiple(torch.jit, **plain), patch.object(torch, "compile", uncompiled),
        patch.object(torch, "inference_mode", _no_grad),
    ):  # fmt: skip
        yield
