"""A field is an option: its docstring the help, its constraints the check."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field

import run as door
from graph.campaign import Campaign, make_record
from graph.commands.campaign import NOT_OF_EACH
from graph.commands.mcp import NOT_SERVED
from graph.request import EachRequest, OpenRequest, RunRequest
from graph.studio import StudioRequest
from harness.options import Option, Options, command_line, from_words, leaves, list_given, program, words
from nodes.state import Settings


class Inner(Options):
    most: int = Field(default=3, ge=1)
    """At most so many."""
    named: Annotated[dict[Literal["a", "b"], str], Option("NAME", "name", every=True)] = Field(default_factory=dict)


class Outer(Options):
    place: Annotated[str, Option("PLACE", positional=True)]
    inner: Inner = Inner()


def test_a_field_of_a_nested_record_is_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    record = from_words(Outer, ["here", "--most", "5", "--name", "x", "--name-b", "y"])
    assert record == Outer(place="here", inner=Inner(most=5, named={"a": "x", "b": "y"}))
    assert list_given(record) == {"place": "here", "most": 5, "named": {"a": "x", "b": "y"}}
    assert from_words(Outer, words(record)) == record == Outer(place="here", most=5, name="x", name_b="y")  # type: ignore[call-arg]
    with pytest.raises(SystemExit):
        from_words(Outer, ["here", "--most", "0"])
    assert "argument --most: '0' is not a whole number of at least 1" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        from_words(Outer, ["--help"])
    assert "--most N     at most so many (3)" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["run", *door.COMMANDS])
def test_every_option_of_every_command_is_explained_and_named_once(name: str) -> None:
    for leaf in leaves(door.record_of(name)):
        assert leaf.help or leaf.keys or leaf.option.hidden or leaf.option.positional, leaf.path


@pytest.mark.parametrize("name", ["run", *door.COMMANDS])
def test_a_help_fits_a_screen_of_100_columns_and_40_lines(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert len(door.parser_of(name).format_help().splitlines()) <= 40
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, door.parser_of(name).format_help().splitlines())) <= 80


@pytest.mark.parametrize("name", ["run", "mcp"])
def test_help_all_has_every_option_and_help_those_that_are_named(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    record = door.record_of(name)
    shown = {}
    for flag in ("--help", "--help-all"):
        with pytest.raises(SystemExit):
            from_words(record, [flag])
        shown[flag] = set(re.findall(r"^  --([a-z-]+)", capsys.readouterr().out, re.MULTILINE))
    options = {leaf.name.replace("_", "-") for leaf in leaves(record) if not leaf.option.hidden}
    assert shown["--help-all"] == {"help-all", *options}
    assert shown["--help"] == {"help-all", *(word.replace("_", "-") for word in record.brief)}


def test_a_command_line_says_a_request_again() -> None:
    line = "--kernel k --rounds 3 --model m --model-coder a,b --tokens-coder 7 --when-spent pause --engine dask:2 --dtype float16"
    request = from_words(RunRequest, line.split())
    assert from_words(RunRequest, command_line(request).split()[2:]) == request
    assert request.chat.models["tester"] == "m" and request.budget.role_tokens == {"coder": 7}
    assert request.with_(rounds=4).stop.rounds == 4 and request.with_(rounds=4).chat == request.chat


def test_what_a_run_is_asked_for_is_asked_of_mcp_a_campaign_and_studio_too() -> None:
    """An option is one field: it is left out only where its name is in a list of those that do not apply."""
    names = lambda record: {leaf.path[-1] for leaf in leaves(record)}  # noqa: E731
    for command, left_out in (("mcp", NOT_SERVED), ("campaign", NOT_OF_EACH)):
        assert names(RunRequest) - names(door.record_of(command)) == set(left_out), command
    assert names(RunRequest) == names(StudioRequest)


def test_settings_of_the_last_release_are_read() -> None:
    flat = {"rounds": 2, "light_fraction": 0.9, "tokens": 5, "fallback": "none", "models": {"coder": "m"}}
    told = {"run_id": "a", "kernel": "k", "device": "cpu", "policy": {"coder": "chat"}, "baseline": "b", "source": "s"}
    settings = Settings.model_validate({**told, **flat, "approve": "none", "engine": {"name": "process"}})
    assert settings.stop.rounds == 2 and settings.budget.fallback == "pause" and settings.chat.models == {"coder": "m"}
    assert settings.with_changes(rounds=9, policy={"coder": "rules"}).stop.light_fraction == 0.9


def test_a_campaign_of_the_last_release_goes_on(tmp_path) -> None:
    old = [
        "--own-kernels",
        "some",
        "--numerics",
        "eager",
        "--rounds",
        "1",
        "--policy",
        "auto",
        "--memory",
        "off",
        "--device",
        "cpu",
    ]
    new = words(EachRequest(rounds=1, device="cpu"))  # type: ignore[call-arg]
    campaign = Campaign(tmp_path, "c")
    campaign.begin(make_record("c", "s", "cpu", old, [tmp_path / "1_A.py"]))
    campaign.begin(make_record("c", "s", "cpu", new, [tmp_path / "1_A.py"]))
    assert OpenRequest().kernel == ""


def test_a_command_is_named_so_that_it_can_be_typed_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(door.__file__).resolve().parent
    monkeypatch.setattr(sys, "executable", str(root / ".venv" / "bin" / "python"))
    monkeypatch.chdir(root)
    assert program() == ".venv/bin/python run.py"
    (tmp_path / "a folder").mkdir()
    monkeypatch.chdir(tmp_path / "a folder")
    assert program() == f"{root}/.venv/bin/python {root}/run.py"
