"""A run's transcript in the report's words."""

from __future__ import annotations

import json
from pathlib import Path

from harness.report.html import ExchangeView
from harness.report.words import count, duration
from nodes.policies.prefix import cacheable
from nodes.policies.transcript import Reply, Transcript


def describe_prompt_caching(path: Path) -> str:
    """How much of the prompts a server could keep, and said that it had kept; "" where no model was asked."""
    found = Transcript(path).exchanges()
    kept, total = cacheable(found)
    if not total:
        return ""
    sent, cached = sum(e.reply.tokens_in for e in found), sum(e.reply.tokens_cached for e in found)
    said = f"{kept / total:.0%} of what the prompts say began an earlier one in the same words, so a server can keep it"
    return f"{said}; of {count(sent, 'token')} sent, the server says, {cached:,} were kept" if cached else said


def exchanges(path: Path) -> tuple[ExchangeView, ...]:
    """What was asked and answered, in order; () where no model was asked. Raises TranscriptDamaged."""
    return tuple(
        ExchangeView(
            role=kept.question.role,
            title=", ".join(
                f"{name} {value}"
                for name, value in kept.question.facts.items()
                if name in ("step", "round", "plan", "turn")
            ),
            prompt="\n\n".join(f"[{message.role}]\n{message.content}" for message in kept.question.messages),
            answer=_answer(kept.reply),
            note=", ".join(
                [
                    kept.model,
                    count(kept.reply.tokens_in + kept.reply.tokens_out, "token"),
                    duration(kept.seconds),
                    *(["replayed"] if kept.replayed_from else []),
                ]
            ),
        )
        for kept in Transcript(path).exchanges()
    )


def _answer(reply: Reply) -> str:
    """Its text, and the tools that it called."""
    called = [f"[{call.name}]\n{_arguments(call.arguments)}" for call in reply.calls]
    return "\n\n".join(filter(None, [reply.text, *called]))


def _arguments(text: str) -> str:
    """Line by line, where they are an object: a source is read as one."""
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(arguments, dict):
        return text
    return "\n".join(
        f"{name}: {value if isinstance(value, str) else json.dumps(value)}" for name, value in arguments.items()
    )
