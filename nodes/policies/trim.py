"""What a model needs of a compiler's or checker's words: the first errors, each once, without paths, within a limit."""

from __future__ import annotations

import re

LIMIT_CHARS = 4000
MOST_ERRORS = 6
LINES_PER_ERROR = 8
LINE_CHARS = 300

# Diagnostics of nvcc (`k.cu(12): error: ...`), g++ (`k.cpp:12:5: error: ...`), ptxas and the linker.
_DIAGNOSTIC = re.compile(
    r"^(?P<place>[^\s:(][^\n]*?(?:[(:]\d+(?:[,:]\d+)?\)?|\(\.text[^)]*\)): )?"
    r"(?:[\w./-]+\s*: )?"
    r"(?P<kind>(?:fatal |catastrophic |internal )?(?:error|warning|note|remark)|undefined reference)\b",
    re.IGNORECASE,
)
_PATH = re.compile(r"(?<![\w.<])/(?:[\w.+@-]+/)+(?=[\w.+@-])")
# Lines that open or close a group of diagnostics and say nothing of their own.
_FRAMES = re.compile(
    r"^\s*\d+ (?:errors?|warnings?) (?:detected|generated)|^compilation terminated|^collect2: "
    r"|^[^\s:]+: (?:In|At) (?:function|member|instantiation|substitution|global|lambda)|^\s*\|?\s*$"
)
_UNPRINTABLE = re.compile(r"[^\t\n\x20-\x7e\u00a0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def printable(text: str) -> str:
    """Without control characters: escape sequences in a log would reach terminals, and NUL breaks servers."""
    return _UNPRINTABLE.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def _error_blocks(lines: list[str]) -> list[list[str]]:
    """Each error with the lines that follow it (source line, caret, notes) up to the next error or warning."""
    blocks: list[list[str]] = []
    inside = False
    for line in lines:
        found = _DIAGNOSTIC.match(line)
        kind = found["kind"].lower() if found else ""
        if "warning" in kind or "remark" in kind or _FRAMES.match(line):
            inside = False
        elif "error" in kind or "undefined" in kind:
            blocks.append([line])
            inside = True
        elif inside and line.strip():
            blocks[-1].append(line)
    return blocks


def trim(text: str, limit_chars: int = LIMIT_CHARS) -> str:
    """At most `limit_chars` characters of what matters in a failure.

    Where the text has compiler errors: the first few, those of one message once with a count. Otherwise its beginning
    and its end.
    """
    lines = [_PATH.sub("", line.rstrip())[:LINE_CHARS] for line in printable(text).split("\n")]
    blocks = _error_blocks(lines)
    if blocks:
        unique: dict[str, list[list[str]]] = {}
        for block in blocks:
            found = _DIAGNOSTIC.match(block[0])
            unique.setdefault(block[0][len(found["place"] or "") :] if found else block[0], []).append(block)
        kept: list[str] = []
        for same in list(unique.values())[:MOST_ERRORS]:
            kept += same[0][:LINES_PER_ERROR]
            if len(same) > 1:
                kept.append(f"  (the same error {len(same) - 1} more times)")
        if len(unique) > MOST_ERRORS:
            kept.append(f"({len(unique) - MOST_ERRORS} other errors)")
        text = "\n".join(kept)
    else:
        text = "\n".join(line for line in lines if line.strip())
    if len(text) <= limit_chars:
        return text
    left_out = "\n[... left out ...]\n"
    half = (limit_chars - len(left_out)) // 2
    return text[:half] + left_out + text[-half:]
