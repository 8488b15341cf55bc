"""Drafts of a round worked on side by side: asked of models, or judged on as many devices as the evaluator's engine has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

One = TypeVar("One")
Made = TypeVar("Made")


def each(work: Callable[[One], Made], drafts: Sequence[One], width: int) -> list[Made]:
    """`work` of every draft, in their order. With a width of 1 one after another, in this thread."""
    if width == 1 or len(drafts) < 2:
        return [work(draft) for draft in drafts]
    # Each in a copy of the node's context, so that spans of its model calls lie below the node's.
    contexts = [copy_context() for _ in drafts]
    with ThreadPoolExecutor(max_workers=min(width, len(drafts))) as pool:
        return list(pool.map(lambda own, draft: own.run(work, draft), contexts, drafts))
