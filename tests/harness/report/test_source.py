import difflib
import random
import re
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.report.source import diff_html, diff_text, source_html
from tests.harness.report.example import BASELINE, WIDE


def test_a_diff_counts_and_colours_both_sides():
    diff = diff_html(BASELINE, WIDE)
    assert (diff.added, diff.removed) == (13, 4)
    assert diff.html.count('class="l ins"') == 13 and diff.html.count('class="l del"') == 4
    assert '<span class="k">const' in diff.html


def test_a_diff_has_the_numbers_of_both_files():
    html = diff_html("a\nb\nc\nd\n", "a\nc\nd\ne\n").html
    numbers = re.findall(r'<b class="no old">(\d*)</b><b class="no">(\d*)</b>', html)
    assert numbers == [("", ""), ("1", "1"), ("2", ""), ("3", "2"), ("4", "3"), ("", "4")]


def test_equal_files_say_so():
    assert "the same" in diff_html(BASELINE, BASELINE).note


def test_colouring_never_loses_a_line():
    html = source_html('\n\n\nint a; /* two\nlines */\n\n#define X \\\n  1\n\x0cR"(raw\n)";\n')
    assert html.count('class="l"') == 10


@pytest.mark.parametrize("language", ["cu", "cpp", "py"])
def test_code_is_escaped(language):
    html = source_html("<script>alert('1')</script> // </span><b>\n", language)
    assert "<script" not in html and "<b>" not in html


def test_code_too_long_to_colour_is_escaped_too():
    html = source_html("<script>alert('1')</script>\n" * 6_000)
    assert "<script" not in html and '<span class="k' not in html and "&lt;script&gt;" in html


def test_too_many_lines_are_not_compared(monkeypatch):
    """It would take minutes: not even begun."""
    rng = random.Random(1)
    monkeypatch.setattr(difflib, "SequenceMatcher", lambda *_, **__: pytest.fail("they were compared"))
    diff = diff_html("".join(f"{rng.random()}\n" for _ in range(5_000)), "a\n" * 5_000)
    assert not diff.html and "too many" in diff.note


lines = st.lists(st.sampled_from(["a\n", "b\n", "c\x0cd\n", "e\u2028f\n", "\n", "g\r\n"]), max_size=12)


@settings(max_examples=25, deadline=None)
@given(old=lines, new=lines, end=st.sampled_from(["", "tail"]))
def test_best_diff_is_one_that_patch_takes(tmp_path_factory, old, new, end):
    folder = tmp_path_factory.mktemp("patch")
    before, after = "".join(old), "".join(new) + end
    text = diff_text(before, after, "a.cu", "b.cu")
    if before == after:
        assert text == ""
        return
    (folder / "a.cu").write_bytes(before.encode())
    (folder / "d").write_bytes(text.encode())
    done = subprocess.run(
        ["patch", "--binary", "-s", "-o", "out.cu", "a.cu", "d"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr + text
    made = folder / "out.cu"
    assert (made.read_bytes().decode() if made.exists() else "") == after
