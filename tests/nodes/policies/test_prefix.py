"""How much of a run's prompts a server could keep."""

from __future__ import annotations

from pathlib import Path

from graph.conversation import describe_prompt_caching
from nodes.policies.prefix import cacheable, count_shared
from nodes.policies.transcript import Exchange, Message, Question, Reply, Transcript
from nodes.roles import Usage


def exchange(number: int, *words: str, model: str = "m", cached: int = 0) -> Exchange:
    said = tuple(Message(role="user", content=text) for text in words)
    return Exchange(
        key=str(number), question=Question(role="coder", messages=said, wants=""), model=model,
        reply=Reply(text="", tokens_in=1000, tokens_cached=cached), usage=Usage(),
    )  # fmt: skip


def test_what_two_texts_begin_with() -> None:
    for one, other, length in (
        ("", "x", 0),
        ("abc", "abd", 2),
        ("abc", "abc", 3),
        ("abc", "abcd", 3),
        ("xbc", "abc", 0),
    ):
        assert count_shared(one, other) == count_shared(other, one) == length


def test_the_longest_beginning_of_an_earlier_request_to_that_model_counts(tmp_path: Path) -> None:
    first, grown, other, elsewhere = (
        exchange(1, "s" * 100, "one"), exchange(2, "s" * 100, "one", "more"), exchange(3, "s" * 100, "two"),
        exchange(4, "s" * 100, "one", model="n"),
    )  # fmt: skip
    one, two = len("user: ") + 101, len("user: one\n")
    assert cacheable([first]) == (0, one + two)
    assert cacheable([first, grown]) == (one + two, 2 * (one + two) + len("user: more\n"))
    assert cacheable([first, other])[0] == one + len("user: ")
    assert cacheable([first, elsewhere])[0] == 0
    transcript = Transcript(tmp_path / "transcript.jsonl")
    assert describe_prompt_caching(transcript.path) == ""
    transcript.append(first)
    transcript.append(exchange(5, "s" * 100, "one", cached=900))
    assert describe_prompt_caching(transcript.path) == (
        "50% of what the prompts say began an earlier one in the same words, so a server can keep it; "
        "of 2,000 tokens sent, the server says, 900 were kept"
    )
