"""Candidates' and models' words made safe to show: no terminal escapes, no bidirectional tricks, no broken XML."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TextIO

# C0 and C1 controls except tab and newline; lone surrogates and the two non-characters XML forbids; the bidirectional
# overrides and isolates that can make a diff read differently from what it does ("Trojan Source", CVE-2021-42574).
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def _visible(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)  # the picture of that control character: an escape shows as ␛
    return "␡" if code == 0x7F else "\N{REPLACEMENT CHARACTER}"


def escape(text: str) -> str:
    """Every dangerous character replaced by a visible one."""
    return _UNSAFE.sub(_visible, text)


def escape_controls(text: object, limit: int = 1_000_000) -> str:
    """`text` with every dangerous character replaced by a visible one; cut with a note past `limit` characters."""
    whole = str(text)
    kept = whole[:limit].replace("\r\n", "\n")
    cut = f" … [{len(whole) - limit:,} more characters]" if len(whole) > limit else ""
    return escape(kept) + cut


def one_line(text: object, limit: int = 200) -> str:
    """`escape_controls` on one line: runs of white space become a single space."""
    whole = str(text)
    flat = " ".join(escape_controls(whole[: 4 * limit]).split())
    return flat if len(flat) <= limit and len(whole) <= 4 * limit else flat[: limit - 1].rstrip() + "…"


class EscapedStream:
    """A text stream that shows what it is given; all else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream
        """Stream that a Console writes to (harness/report/console.py), by rich's own name for it."""

    def write(self, text: str) -> int:
        return self.rich_proxied_file.write(escape(text))

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


@contextmanager
def escape_streams() -> Iterator[None]:
    """Whatever is printed in here, on standard output and error, is inert."""
    with redirect_stdout(EscapedStream(sys.stdout)), redirect_stderr(EscapedStream(sys.stderr)):
        yield
