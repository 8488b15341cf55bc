"""Drafts of a round judged side by side, as many at once as the evaluator's engine has devices."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from nodes.state import Draft


def each(work: Callable[[Draft], Draft], drafts: list[Draft], width: int) -> list[Draft]:
    """`work` of every draft, in their order. With a width of 1 one after another, in this thread."""
    if width == 1 or len(drafts) < 2:
        return [work(draft) for draft in drafts]
    with ThreadPoolExecutor(max_workers=min(width, len(drafts))) as pool:
        return list(pool.map(work, drafts))
