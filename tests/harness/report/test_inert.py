import io

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from harness.report.inert import inert, one_line
from tests.harness.report.hostile import PAYLOAD, dangerous


@given(st.text())
def test_nothing_dangerous_is_left_and_everything_encodes(text):
    for made in (inert(text), one_line(text)):
        assert not dangerous(made)
        made.encode()


@given(st.text(st.characters(categories=("L", "N", "P", "S"), exclude_characters="\ufffd"), max_size=150))
def test_ordinary_text_stays_as_it_is(text):
    assert inert(text) == text


def test_an_escape_stays_visible():
    assert inert("\x1b[31m") == "␛[31m"


def test_lone_surrogates_can_be_printed():
    assert inert("a\ud800b") == "a\N{REPLACEMENT CHARACTER}b"


def test_long_text_is_cut_with_a_note():
    assert inert("x" * 50, 10) == "x" * 10 + " … [40 more characters]"
    assert len(one_line("word " * 10_000, 40)) <= 40


def test_the_terminal_gets_no_escape_of_ours():
    out = io.StringIO()
    Console(file=out, force_terminal=True, color_system=None, width=200).print(Text(one_line(PAYLOAD, 500)))
    assert not dangerous(out.getvalue())
