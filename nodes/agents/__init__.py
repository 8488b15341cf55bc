"""Agents, one a file: its node or nodes, and AGENT (nodes/roles.py), from which all else that differs between agents follows.

Light: `run.py --help` imports it. docs/agents.md says how to add one.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nodes.roles import Agent

NAMES = tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def load(name: str) -> Agent:
    return import_module(f"{__name__}.{name}").AGENT


def describe_nodes() -> dict[str, str]:
    """Every agent's nodes, and what each is doing."""
    return {node: doing for name in NAMES for node, doing in load(name).nodes.items()}
