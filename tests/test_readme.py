"""What the pages show runs, and what they point to is there."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests import forked
from tests.test_run import BASELINE, FASTER, REFERENCE, SPEC

HURRY = "import tests.machine\ntests.machine.hurry()\n"
REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_the_library_example_runs(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (REPOSITORY / "docs/tools.md").read_text(), re.DOTALL)
    (tmp_path / "twice").mkdir()
    for name, text in (("spec.py", SPEC), ("reference.py", REFERENCE), ("baseline.cpp", BASELINE)):
        (tmp_path / "twice" / name).write_text(text)
    small = code.replace('"silu_and_mul"', repr(str(tmp_path / "twice")))
    assert small != code
    (tmp_path / "my.cpp").write_text(FASTER)
    done = forked.run(f"import os\nos.chdir({str(tmp_path)!r})\n{HURRY}{small}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("PASSED") and "speedup=" in done.stdout


PAGES = sorted(str(path.relative_to(REPOSITORY)) for path in REPOSITORY.glob("docs/**/*.md"))


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md", *PAGES])
def test_every_link_of_a_page_leads_somewhere(page: str) -> None:
    path = REPOSITORY / page
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if "://" not in target:
            file, _, anchor = target.partition("#")
            there = (path.parent / file).resolve() if file else path
            assert there.exists(), target
            assert not anchor or anchor in anchors(there), target


def test_the_page_has_the_exit_codes_and_outcomes_that_there_are() -> None:
    from graph.commands import options
    from harness.records import Comparison, Outcome

    page = (REPOSITORY / "docs/troubleshooting.md").read_text()
    codes = {value for name, value in vars(options).items() if name.startswith("EXIT_")}
    assert sorted(map(int, re.findall(r"^\| (\d+) \|", page, re.MULTILINE))) == sorted(codes | {0})
    assert [one for one in (*Outcome, *Comparison) if one not in page] == []


def test_every_page_is_linked_from_the_readme() -> None:
    readme = (REPOSITORY / "README.md").read_text()
    assert [page for page in PAGES if f"({page}" not in readme] == []


def test_the_readme_is_short() -> None:
    """One screen (picture, commands, table), five uses, links."""
    text = (REPOSITORY / "README.md").read_text()
    assert len(text.split()) <= 650 and text.count("\n") <= 110
    assert len(re.findall(r"^\*\*\d\. ", text, re.MULTILINE)) == 5


@pytest.mark.parametrize("page", ["README.md", *PAGES])
def test_every_command_of_a_page_is_one(page: str) -> None:
    import run as door

    text = (REPOSITORY / page).read_text().replace("\\\n", " ")
    for command in re.findall(r"run\.py ([^|`\n]*?)[`\n]", text):
        words = [word.strip("`,;:.()") for word in command.split("#")[0].split() if "=" not in word]
        if words and words[0][:1] not in ("-", ""):
            assert words[0] in door.COMMANDS, command
        parser = door.parser_of(words[0] if words and words[0] in door.COMMANDS else "run")
        for option in words:
            assert not option.startswith("--") or option in parser._option_string_actions, command


@pytest.mark.parametrize("page", ["README.md", *PAGES])
def test_every_command_of_a_code_block_is_taken_whole(page: str) -> None:
    import run as door

    text = (REPOSITORY / page).read_text().replace("\\\n", " ")
    for block in re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in re.findall(r"run\.py +([^\n\[]*)", block):
            command = re.sub(r"\$\([^)]*\)", "x", line)  # what a shell puts in
            command = re.split(r" [|&>#]", command)[0]
            words = shlex.split(command.rstrip('"') if command.count('"') % 2 else command)
            if "..." not in words:
                door.parse(words)
            assert [word for word in words if word.startswith("kernels/") and not (REPOSITORY / word).exists()] == []


def test_the_help_lists_every_command() -> None:
    import run as door

    shown = door.parser_of("run").format_help()
    assert [name for name in door.COMMANDS if not re.search(rf"^  [\w, ]*\b{name}\b", shown, re.MULTILINE)] == []


def test_what_the_page_on_structure_points_to_is_there() -> None:
    (table,) = re.findall(
        r"\| what \| file \| function \|\n\|-.*\n((?:\|.*\n?)+)", (REPOSITORY / "docs/structure.md").read_text()
    )
    for row in table.splitlines():
        _, _, files, names, _ = row.split("|")
        defined = set()
        for file in re.findall(r"`([\w/]+\.py)`", files):
            for node in ast.parse((REPOSITORY / file).read_text()).body:
                inner = node.body if isinstance(node, ast.ClassDef) else ()
                defined |= {getattr(node, "name", "")} | {
                    f"{node.name}.{one.name}" for one in inner if hasattr(one, "name")
                }
        assert set(re.findall(r"`([\w.]+)`", names)) <= defined, row


def test_the_help_of_a_command_fits_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    import run as door

    monkeypatch.setenv("COLUMNS", "80")
    for command in door.COMMANDS:
        lines = door.parser_of(command).format_help().splitlines()
        assert len(lines) <= 50 and max(map(len, lines)) <= 80, f"{command}: {len(lines)} lines"
