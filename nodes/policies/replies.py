"""The text of a reply: its JSON, its code, its edits. Everything here is hostile until it parsed.

`Unfit` says in one sentence, to the model, what is wrong; the caller asks again. Nothing in a reply is ever used as a
path, a command or a format string.
"""

from __future__ import annotations

import difflib
import json
import re
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from harness.tunables import tunables

REPLY_CHARS = 400_000
"""A longer reply is not looked at."""
SOURCE_BYTES = 256_000


class Unfit(ValueError):
    """The answer cannot be used; the message tells the model why."""


def clipped(limit: int) -> AfterValidator:
    # Long prose is cut rather than asked for again: another answer would cost more than the words are worth.
    return AfterValidator(lambda text: " ".join(text.split())[:limit])


class Draft(BaseModel):
    """Base of what a model writes: fields that nobody asked for are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class CodeHeader(Draft):
    """The JSON before the code."""

    format: Literal["file", "edit", "none"]
    notes: Annotated[str, clipped(1000)] = ""


Drafted = TypeVar("Drafted", bound=Draft)


def json_text(reply: str) -> str:
    """The JSON object in a reply: the whole of it, a fenced block, or what stands between the outermost braces."""
    if len(reply) > REPLY_CHARS:
        raise Unfit(f"the answer is longer than {REPLY_CHARS} characters")
    text = reply.strip()
    if text.startswith("{") and text.endswith("}"):
        return text
    for language, block in fenced_blocks(text):
        if language in {"json", ""} and block.lstrip().startswith("{"):
            return block
    start, end = text.find("{"), text.rfind("}")
    if start < 0 or end < start:
        raise Unfit("the answer holds no JSON object")
    return text[start : end + 1]


def read_draft(reply: str, draft: type[Drafted]) -> Drafted:
    return validated(json_text(reply), draft)


def validated(text: str, draft: type[Drafted]) -> Drafted:
    try:
        return draft.model_validate_json(text)
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, e['loc'])) or 'the JSON'}: {e['msg']}" for e in error.errors()[:4]]
        raise Unfit("; ".join(wrong)) from None
    except RecursionError:
        raise Unfit("the JSON is nested too deeply") from None


# The coder -----------------------------------------------------------------------------------------------------------


def _lines(text: str) -> list[str]:
    return text.replace("\r\n", "\n").split("\n")  # not splitlines: it also breaks at form feeds inside of code


_FENCE = re.compile(r"^(?P<ticks>`{3,})[ \t]*(?P<language>[\w+.-]*)[ \t]*$")


def fenced_blocks(text: str) -> list[tuple[str, str]]:
    """Fenced blocks as (language, text without the fences)."""
    blocks: list[tuple[str, str]] = []
    opened: tuple[str, str] | None = None
    inner: list[str] = []
    for line in _lines(text):
        fence = _FENCE.match(line)
        if opened is None:
            if fence:
                opened, inner = (fence["ticks"], fence["language"].lower()), []
        elif line.rstrip() == opened[0]:
            blocks.append((opened[1], "\n".join(inner)))
            opened = None
        else:
            inner.append(line)
    if opened is not None and inner:
        raise Unfit("a fenced block is not closed")
    return blocks


def header_and_rest(text: str, draft: type[Drafted]) -> tuple[Drafted, str]:
    """The JSON header, bare or fenced, and the text after it."""
    brace = text.find("{")
    try:
        _, end = json.JSONDecoder().raw_decode(text, max(brace, 0))
    except (ValueError, RecursionError):
        raise Unfit('the answer must begin with the JSON header, such as {"format": "file", "notes": "..."}') from None
    before, rest = text[:brace].rstrip(), text[end:].lstrip()
    if before.endswith(("```json", "```")) and rest.startswith("```"):
        _, _, rest = rest.partition("\n")  # the closing fence of the header's own block
    return validated(text[brace:end], draft), rest


_SEARCH, _DIVIDER, _REPLACE = re.compile(r"^<{5,9} SEARCH$"), re.compile(r"^={5,9}$"), re.compile(r"^>{5,9} REPLACE$")


def edits_of(text: str) -> list[tuple[str, str]]:
    """(search, replacement) of each SEARCH/REPLACE block, in order."""
    found: list[tuple[str, str]] = []
    state = "outside"
    search: list[str] = []
    replacement: list[str] = []
    for line in _lines(text):
        mark = line.rstrip()
        if state == "outside" and _SEARCH.match(mark):
            state, search, replacement = "search", [], []
        elif state == "search" and _DIVIDER.match(mark):
            state = "replacement"
        elif state == "replacement" and _REPLACE.match(mark):
            found.append(("\n".join(search), "\n".join(replacement)))
            state = "outside"
        elif state != "outside" and _SEARCH.match(mark):
            raise Unfit("a SEARCH block begins inside another")
        elif state == "search":
            search.append(line)
        elif state == "replacement":
            replacement.append(line)
    if state != "outside":
        raise Unfit("the last SEARCH/REPLACE block is not finished")
    return found


MOST_PLACES = 4
ALIKE = 0.6
COMPARED_CHARS, COMPARED_LINES = 160, 4000
"""Of a source, whatever its size: comparing takes the product of two lengths."""


def _where(source: str, search: str) -> str:
    """What helps to say it right: the lines that it stands on, or the line that is most like its first one."""
    if search in source:
        found: list[str] = []
        at = source.find(search)
        while at >= 0 and len(found) < MOST_PLACES:
            found.append(str(source.count("\n", 0, at) + 1))
            at = source.find(search, at + 1)
        return f" (it stands on lines {', '.join(found)}: copy lines around the one that you mean, too)"
    lines = [line[:COMPARED_CHARS] for line in source.split("\n")[:COMPARED_LINES]]
    # By its number: text of a source belongs between marks, and there are none in an error.
    near = difflib.get_close_matches(search.strip("\n").split("\n")[0][:COMPARED_CHARS], lines, n=1, cutoff=ALIKE)
    return f" (line {lines.index(near[0]) + 1} is most like its first one)" if near else ""


def edited(source: str, edits: list[tuple[str, str]]) -> str:
    """The source after the edits, one after another; each search text must occur exactly once at its turn."""
    for number, (search, replacement) in enumerate(edits, start=1):
        if not search.strip():
            raise Unfit(f"edit {number}: the search text is empty")
        count = source.count(search)
        if count != 1:
            first = search.strip().splitlines()[0][:80]
            raise Unfit(
                f"edit {number}: the search text (it begins {first!r}) occurs {count} times in the source; "
                f"it must occur exactly once, copied with its exact spaces{_where(source, search)}"
            )
        whole_lines = not replacement and f"\n{search}\n" in source
        source = source.replace(f"{search}\n" if whole_lines else search, replacement)
    return source


def new_source(header: CodeHeader, rest: str, base: str) -> str:
    """The whole new source that a file or edit answer describes."""
    if header.format == "file":
        blocks = [block for _, block in fenced_blocks(rest)]
        if len(blocks) != 1:
            raise Unfit(
                f"format file: give exactly one fenced block with the whole file after the header, not {len(blocks)}"
            )
        source = blocks[0].rstrip() + "\n"
    else:
        edits = edits_of(rest)
        if not edits:
            raise Unfit("format edit: there is no SEARCH/REPLACE block after the header")
        source = edited(base.replace("\r\n", "\n"), edits)
    if len(source.encode(errors="replace")) > SOURCE_BYTES:
        raise Unfit(f"the file is longer than {SOURCE_BYTES} bytes")
    if not source.strip() or "\x00" in source:
        raise Unfit("the file is empty or holds NUL bytes")
    if source.strip() == base.strip():
        raise Unfit("the file is the same as before; make the change of the plan")
    try:
        source.encode()
        tunables(source)
    except ValueError as error:
        raise Unfit(str(error)) from None
    return source
