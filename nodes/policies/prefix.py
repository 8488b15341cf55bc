"""How much of a run's prompts stood at the beginning of an earlier one in the same words: what a server can keep, and a user
need not pay for in full."""

from __future__ import annotations

from collections.abc import Sequence

from nodes.policies.transcript import Exchange


def count_shared(one: str, other: str) -> int:
    """Characters at the beginning of both."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low


def cacheable(exchanges: Sequence[Exchange]) -> tuple[int, int]:
    """(characters that began an earlier request to the same model, characters) of all requests whose words are known.

    A later turn of a conversation repeats all of it, of which its exchange holds what is new.
    """
    before: dict[str, list[str]] = {}
    turns: dict[str, int] = {}
    kept = total = 0
    for exchange in exchanges:
        said = "".join(f"{message.role}: {message.content}\n" for message in exchange.question.messages)
        past = turns.get(exchange.question.after, 0)
        answered = len(exchange.reply.text) + sum(len(call.arguments) for call in exchange.reply.calls)
        turns[exchange.question.key("")] = past + len(said) + answered
        total += past + len(said)
        if exchange.question.after:
            kept += past
            continue
        known = before.setdefault(exchange.model, [])
        kept += max((count_shared(said, earlier) for earlier in known), default=0)
        known.append(said)
    return kept, total
