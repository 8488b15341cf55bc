import io
import re
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from harness.report.console import Console as InertConsole
from harness.report.inert import escape_controls, escape_streams, one_line
from tests.harness.report.hostile import PAYLOAD, dangerous

REPOSITORY = Path(__file__).resolve().parents[3]


@given(st.text())
def test_nothing_dangerous_is_left_and_everything_encodes(text):
    for made in (escape_controls(text), one_line(text)):
        assert not dangerous(made)
        made.encode()


@given(st.text(st.characters(categories=("L", "N", "P", "S"), exclude_characters="\ufffd"), max_size=150))
def test_ordinary_text_stays_as_it_is(text):
    assert escape_controls(text) == text


def test_an_escape_stays_visible():
    assert escape_controls("\x1b[31m") == "␛[31m"


def test_lone_surrogates_can_be_printed():
    assert escape_controls("a\ud800b") == "a\N{REPLACEMENT CHARACTER}b"


def test_long_text_is_cut_with_a_note():
    assert escape_controls("x" * 50, 10) == "x" * 10 + " … [40 more characters]"
    assert len(one_line("word " * 10_000, 40)) <= 40


def test_the_terminal_gets_no_escape_of_ours():
    out = io.StringIO()
    Console(file=out, force_terminal=True, color_system=None, width=200).print(Text(one_line(PAYLOAD, 500)))
    assert not dangerous(out.getvalue())


def test_a_console_colours_and_its_text_does_not():
    """Whoever prints candidates' words without a thought, in a table as in a line, with styles that get through."""
    out = io.StringIO()
    console = inert_console(out)
    table = Table(title=PAYLOAD)
    table.add_column(PAYLOAD)
    table.add_row(Text(PAYLOAD, style="bold"))
    for said in (PAYLOAD, Text(PAYLOAD, style="red"), table, Panel(PAYLOAD)):
        console.print(said, markup=False) if isinstance(said, str) else console.print(said)
    own = re.compile(r"\x1b\[[0-9;]*m")
    assert own.search(out.getvalue())
    assert not dangerous(own.sub("", out.getvalue()))
    hidden = "\x1b[8m\x1b[2J"
    console.print(Text(hidden))
    assert hidden not in out.getvalue()


def inert_console(out):
    return InertConsole(file=out, force_terminal=True, color_system="standard", width=60)


def test_what_is_printed_to_a_wrapped_stream_is_inert(capsys):
    with escape_streams():
        print(PAYLOAD)
        print(PAYLOAD, file=sys.stderr)
        InertConsole(force_terminal=True, color_system="standard").print("seen", style="bold")
    out, err = capsys.readouterr()
    assert not dangerous(err) and "\x1b[1mseen\x1b[0m" in out
    assert not dangerous(out.replace("\x1b[1m", "").replace("\x1b[0m", ""))


def test_nobody_takes_another_console():
    for folder in ("graph", "harness", "minibatch", "nodes"):
        for path in (REPOSITORY / folder).rglob("*.py"):
            if path.name != "console.py":
                assert not re.search(r"from rich\.console import .*\bConsole\b", path.read_text()), path
