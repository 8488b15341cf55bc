"""Sources and diffs as coloured HTML. The text is a candidate's: everything is escaped, nothing is executed."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup, escape
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import CppLexer, CudaLexer, PythonLexer

from harness.report.inert import escape_controls

# Real candidates are 2 to 40 kB. Past these the lexer and difflib, both worse than linear on hostile input, would hold
# up the report: 128 kB of CUDA takes pygments about half a second.
COLOUR_LIMIT = 128_000
SHOW_LIMIT = 400_000
LINE_LIMIT = 2_000
DIFF_LINES = 6_000
CONTEXT = 3

_LEXERS = {"cu": CudaLexer, "cpp": CppLexer, "py": PythonLexer}


def _lines(text: str) -> list[str]:
    lines = escape_controls(text, SHOW_LIMIT).replace("\t", "    ").split("\n")
    if lines and not lines[-1]:
        lines.pop()
    return [line if len(line) <= LINE_LIMIT else f"{line[:LINE_LIMIT]} … [{len(line):,} characters]" for line in lines]


def _coloured(lines: Sequence[str], language: str) -> list[Markup]:
    """Each line as HTML; plain where colouring would be slow or would change the number of lines."""
    text = "\n".join(lines) + "\n"
    if len(text) <= COLOUR_LIMIT:
        lexer = _LEXERS.get(language, CudaLexer)(stripnl=False, ensurenl=True)
        html = highlight(text, lexer, HtmlFormatter(nowrap=True)).split("\n")[:-1]
        if len(html) == len(lines):
            return [Markup(line) for line in html]
    return [escape(line) for line in lines]


def source_html(text: str, language: str = "cu") -> Markup:
    """A whole file, one `<span class="l">` a line (CSS counts them)."""
    rows = Markup("").join(
        Markup('<span class="l">{}\n</span>').format(line) for line in _coloured(_lines(text), language)
    )
    return Markup('<pre class="code numbered"><code>{}</code></pre>').format(rows)


@dataclass(frozen=True)
class Diff:
    added: int
    removed: int
    html: Markup
    note: str = ""


def diff_html(old: str, new: str, language: str = "cu") -> Diff:
    """Unified diff with three lines of context, coloured by syntax and by side."""
    before, after = _lines(old), _lines(new)
    if before == after:
        return Diff(0, 0, Markup(""), "The two files are the same.")
    if len(before) + len(after) > DIFF_LINES:
        return Diff(
            0, 0, Markup(""), f"No diff: {len(before):,} and {len(after):,} lines are too many to compare here."
        )
    left, right = _coloured(before, language), _coloured(after, language)
    added = removed = 0
    rows: list[Markup] = []

    def row(
        kind: Literal["ctx", "del", "ins", "hunk"],
        sign: str,
        line: Markup | str,
        old_number: object = "",
        number: object = "",
    ) -> None:
        numbers = Markup('<b class="no old">{}</b><b class="no">{}</b>').format(old_number, number)
        rows.append(Markup('<span class="l {}">{}<i>{}</i>{}\n</span>').format(kind, numbers, sign, line))

    for group in difflib.SequenceMatcher(None, before, after).get_grouped_opcodes(CONTEXT):
        first, last = group[0], group[-1]
        row("hunk", "", f"@@ -{first[1] + 1},{last[2] - first[1]} +{first[3] + 1},{last[4] - first[3]} @@")
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                for at, line in enumerate(left[i1:i2], 1):
                    row("ctx", " ", line, i1 + at, j1 + at)
                continue
            for at, line in enumerate(left[i1:i2], i1 + 1):
                row("del", "−", line, at)
            for at, line in enumerate(right[j1:j2], j1 + 1):
                row("ins", "+", line, "", at)
            removed += i2 - i1
            added += j2 - j1
    html = Markup('<pre class="code diff"><code>{}</code></pre>').format(Markup("").join(rows))
    return Diff(added, removed, html)


def _with_ends(text: str) -> list[str]:
    """Lines with their "\n". Not `splitlines`, which also splits at form feeds that `patch` takes for text."""
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def diff_text(old: str, new: str, old_name: str, new_name: str) -> str:
    """`best.diff`: a unified diff that `patch` takes; "" where nothing differs."""
    lines = difflib.unified_diff(_with_ends(old), _with_ends(new), old_name, new_name, n=CONTEXT)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
