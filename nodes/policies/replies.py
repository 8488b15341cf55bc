"""The text of a reply: its JSON, its code, its edits. Everything here is hostile until it parsed.

`UnfitReply` says in one sentence, to the model, what is wrong; the caller asks again. Nothing in a reply is ever used as a
path, a command or a format string.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Iterator
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from harness.backends import is_python
from harness.judge.tunables import tunables

REPLY_CHARS = 400_000
"""A longer reply is not looked at."""
SOURCE_BYTES = 256_000


class UnfitReply(ValueError):
    """The answer cannot be used; the message tells the model why."""


def clip(limit: int) -> AfterValidator:
    # Long prose is cut rather than asked for again: another answer would cost more than the words are worth.
    return AfterValidator(lambda text: " ".join(text.split())[:limit])


class ReplyDraft(BaseModel):
    """Base of what a model writes: fields that nobody asked for are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class CodeHeader(ReplyDraft):
    """The JSON before the code."""

    format: Literal["file", "edit", "none"]
    notes: Annotated[str, clip(1000)] = ""
    spec_doubt: Annotated[str, clip(500)] = ""


Drafted = TypeVar("Drafted", bound=ReplyDraft)


THINKING = ("think", "thinking", "reasoning")


def without_thinking(reply: str) -> str:
    """What follows a reasoning model's thoughts, which some servers leave in the text, now and then without their first tag."""
    ends = [reply.rfind(f"</{tag}>") + len(tag) + 3 for tag in THINKING if f"</{tag}>" in reply]
    return reply[max(ends, default=0) :].strip() or reply.strip()


_OPENING = re.compile(r"\{\s*[\"}]")
MOST_OPENINGS = 200
"""Opening braces of a reply that are tried as the start of JSON (upper bound): each may nest arbitrarily deep."""


def _objects(text: str) -> Iterator[tuple[dict[str, Any], int, int]]:
    """(object, where it begins, where it ends) of the JSON objects in a text, one behind another."""
    decoder, at = json.JSONDecoder(), 0
    for _ in range(MOST_OPENINGS):
        opening = _OPENING.search(text, at)
        if opening is None:
            return
        try:
            found, at = decoder.raw_decode(text, opening.start())
        except (ValueError, RecursionError):
            at = opening.start() + 1
            continue
        yield found, opening.start(), at


def json_text(reply: str, names: Collection[str] = ()) -> str:
    """The JSON object in a reply: the whole of it, or of several the one that has most of the fields `names`.

    Where nothing parses, what stands between the outermost braces, so that the error can say what is wrong with it.
    """
    if len(reply) > REPLY_CHARS:
        raise UnfitReply(f"the answer is longer than {REPLY_CHARS} characters")
    text = without_thinking(reply)
    if text.startswith("{") and text.endswith("}"):
        return text
    found = [(len(set(value) & set(names)), text[begin:end]) for value, begin, end in _objects(text)]
    if found:
        return max(found, key=lambda one: one[0])[1]
    start, end = text.find("{"), text.rfind("}")
    if start < 0 or end < start:
        raise UnfitReply("the answer holds no JSON object")
    return text[start : end + 1]


def read_draft(reply: str, draft: type[Drafted]) -> Drafted:
    return validate(json_text(reply, draft.model_fields), draft)


def validate(text: str, draft: type[Drafted]) -> Drafted:
    try:
        return draft.model_validate_json(text)
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, e['loc'])) or 'the JSON'}: {e['msg']}" for e in error.errors()[:4]]
        raise UnfitReply("; ".join(wrong)) from None
    except RecursionError:
        raise UnfitReply("the JSON is nested too deeply") from None


# The coder -----------------------------------------------------------------------------------------------------------


def _lines(text: str) -> list[str]:
    return text.replace("\r\n", "\n").split("\n")  # not splitlines: it also breaks at form feeds inside of code


# Behind the language may stand a title: ```cuda title="kernel.cu", ```cpp kernel.cpp, ```cuda:kernel.cu.
_FENCE = re.compile(r"^(?P<ticks>`{3,})[ \t]*(?P<language>[\w+#-]*)(?:[\s:.{][^`]*)?$")


def find_fenced_blocks(text: str) -> list[tuple[str, str]]:
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
        raise UnfitReply("a fenced block is not closed")
    return blocks


def header_and_rest(text: str, draft: type[Drafted]) -> tuple[Drafted, str]:
    """The JSON header, bare or fenced, wherever it stands, and the text after it.

    Of an answer without one that is a fenced file or edits alone, the header that it would have had.
    """
    text = without_thinking(text)
    for found, begin, end in _objects(text):
        if "format" in found:
            before, rest = text[:begin].rstrip(), text[end:].lstrip()
            if before.endswith(("```json", "```")) and rest.startswith("```"):
                _, _, rest = rest.partition("\n")  # the closing fence of the header's own block
            return validate(text[begin:end], draft), rest
    required = any(field.is_required() for name, field in draft.model_fields.items() if name != "format")
    if not required and (edits_of(text) or _files(text)):
        return validate(json.dumps({"format": "edit" if edits_of(text) else "file"}), draft), text
    raise UnfitReply('the answer must begin with the JSON header, such as {"format": "file", "notes": "..."}')


def as_file(reply: str, source: str) -> str:
    """The same answer with that whole file in the place of its edits."""
    header = next((found for found, _, _ in _objects(without_thinking(reply)) if "format" in found), {})
    ticks = "`" * max(3, 1 + max(map(len, re.findall("`+", source)), default=0))
    return f"{json.dumps({**header, 'format': 'file'})}\n{ticks}\n{source.rstrip()}\n{ticks}\n"


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
            raise UnfitReply("a SEARCH block begins inside another")
        elif state == "search":
            search.append(line)
        elif state == "replacement":
            replacement.append(line)
    if state != "outside":
        raise UnfitReply("the last SEARCH/REPLACE block is not finished")
    return found


MOST_PLACES = 4
ALIKE = 0.6
COMPARED_CHARS, COMPARED_LINES = 160, 4000
"""Characters and lines of a source that are compared at most: the cost is the product of the two lengths."""


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


def _without_ends(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.split("\n"))


def _found(source: str, search: str) -> str:
    """The text of the source that is meant: `search` itself, or the only lines that differ from it in spaces at their ends."""
    if search in source:
        return search
    wanted, lines = _without_ends(search).split("\n"), source.split("\n")
    bare = [line.rstrip() for line in lines]
    places = [at for at in range(len(lines) - len(wanted) + 1) if bare[at : at + len(wanted)] == wanted]
    return "\n".join(lines[places[0] : places[0] + len(wanted)]) if len(places) == 1 else search


def apply_edits(source: str, edits: list[tuple[str, str]]) -> str:
    """The source after the edits, one after another; each search text must occur exactly once at its turn.

    Spaces at the ends of lines need not be right where without them it is plain which lines are meant.
    """
    for number, (search, replacement) in enumerate(edits, start=1):
        if not search.strip():
            raise UnfitReply(f"edit {number}: the search text is empty")
        search = _found(source, search)
        count = source.count(search)
        if count != 1:
            first = search.strip().splitlines()[0][:80]
            raise UnfitReply(
                f"edit {number}: the search text (it begins {first!r}) occurs {count} times in the source; "
                f"it must occur exactly once, copied with its exact spaces{_where(source, search)}"
            )
        whole_lines = not replacement and f"\n{search}\n" in source
        source = source.replace(f"{search}\n" if whole_lines else search, replacement)
    return source


NATIVE = {"cpp", "c++", "cc", "cxx", "c", "h", "hpp", "cuh", "cu", "cuda", "cuda-cpp", "cuda-c++"}
PYTHON = {"python", "py", "python3"}


def _files(text: str, base: str = "") -> list[str]:
    """Fenced blocks that may be the whole file: those of the base's language where there are any, never a header."""
    blocks = [(language, block) for language, block in find_fenced_blocks(text) if not _is_json(language, block)]
    python = bool(base) and is_python(base)
    mine = [block for language, block in blocks if language in (PYTHON if python else NATIVE)]
    if not mine and not base:  # the first draft of a problem
        mine = [block for language, block in blocks if language in PYTHON]
    bare = [block for language, block in blocks if not language]
    return mine or bare


def _is_json(language: str, block: str) -> bool:
    return language == "json" or (not language and block.lstrip().startswith("{"))


MOST_OPEN = 3
_MEANT_OPEN = re.compile(r"^.*//[ \t]*tune:.*$", re.MULTILINE)


def _check_open(source: str, base: str) -> None:
    """Raises Unfit for open integers that no search could take as they are meant; those of the base are not the answer's."""
    found, before = tunables(source), set(tunables(base))
    for one in found:
        if one not in before and one.value not in one.choices:
            raise UnfitReply(
                f"{one.name} is {one.value}, which is none of its choices ({', '.join(map(str, one.choices))})"
            )
    searched = [one for one in found if len(one.choices) > 1]
    known = {one.name for one in before}
    if len(searched) > MOST_OPEN and not {one.name for one in searched} <= known:
        names = ", ".join(one.name for one in searched)
        raise UnfitReply(
            f"{len(searched)} integers are left open ({names}); leave open the {MOST_OPEN} that matter most"
        )
    meant = [line for line in _MEANT_OPEN.findall(source) if line not in base and not tunables(line)]
    if meant:
        raise UnfitReply(
            f"{meant[0].strip()[:120]!r} leaves nothing open: the form is `#define NAME 256  // tune: 64 128 256`, a name in "
            "capitals, integers with spaces between them, nothing behind"
        )


def new_source(header: CodeHeader, rest: str, base: str) -> str:
    """The whole new source that a file or edit answer describes. What stands there counts, whichever its header names."""
    edits = edits_of(rest)
    if edits:
        source = apply_edits(base.replace("\r\n", "\n"), edits)
    else:
        blocks = _files(rest, base)
        if header.format == "edit" and not blocks:
            raise UnfitReply("format edit: there is no SEARCH/REPLACE block after the header")
        if len(blocks) != 1:
            raise UnfitReply(
                f"format file: give exactly one fenced block with the whole file after the header, not {len(blocks)}"
            )
        source = blocks[0].rstrip() + "\n"
    if len(source.encode(errors="replace")) > SOURCE_BYTES:
        raise UnfitReply(f"the file is longer than {SOURCE_BYTES} bytes")
    if not source.strip() or "\x00" in source:
        raise UnfitReply("the file is empty or holds NUL bytes")
    if source.strip() == base.strip():
        raise UnfitReply("the file is the same as before; make the change of the plan")
    try:
        source.encode()
        _check_open(source, base)
    except UnfitReply:
        raise
    except ValueError as error:
        raise UnfitReply(str(error)) from None
    return source
